"""The error family: one class per kind of fault, so that the code that catches one knows whose fault it is.

Owns the classes. Knows nothing of HTTP: the table from class to (status, type, code) is
`tlserve.api.errors`; the table from class to exit code is `tlserve.cli.exit_codes`.
"""

from __future__ import annotations


class TlserveError(Exception):
    """Base of every error that this package raises on purpose; `message` is one sentence for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def single_cause(error: BaseException) -> BaseException:
    """Return the error that is alone inside the groups that nurseries wrapped around it, or the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


# --- the client's fault ------------------------------------------------------------------------------------------


class ClientError(TlserveError):
    """A request that can never succeed as it was sent; `param` names the field, `code` the kind, if it has one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Refusal(ClientError):
    """A public field with a value that this server does not support (yet): it is named, never ignored."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="unsupported_parameter")


class ContextLengthExceeded(ClientError):
    """The prompt, or the prompt with the requested tokens, does not fit the model's context."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")

    @classmethod
    def of_prompt(
        cls, length: str, context_tokens: int, *, param: str | None = None, answer: bool = True
    ) -> ContextLengthExceeded:
        """Return the error for a prompt that alone is too long; `length` says how long it is, such as "it has 9 tokens".

        `answer`: the context must hold an answer as well.

        LiteLLM and LangChain recognise this error by "prompt is too long" and "this model's maximum context length is".
        """
        return cls(
            f"the prompt is too long: {length}, and this model's maximum context length is {context_tokens} tokens"
            f"{', for prompt and answer together' if answer else ''}; shorten it",
            param=param,
        )


class ModelNotFound(ClientError):
    """The request names a model that is not served here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class KvHandleNotFound(ClientError):
    """The request names a KV handle that this node does not hold."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param=None, code="kv_handle_not_found")


class CancelledById(ClientError):
    """The client has cancelled the request by its id, from another connection."""

    def __init__(self, message: str = "the request was cancelled by its id") -> None:
        super().__init__(message, code="cancelled")


# --- nobody's fault: too much at once, or the wrong moment ---------------------------------------------------------


class Unavailable(TlserveError):
    """The request is valid and may succeed later; `retry_after_s` is a whole number of seconds, at least 1."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, retry_after_s)


class Overloaded(Unavailable):
    """The admission queue is full: the request is refused at once and not queued."""

    code = "rate_limit_exceeded"


class NoCapacity(Unavailable):
    """The request was admitted, but no KV blocks became free before the queue deadline."""

    code = "no_capacity"


class ModelLoading(Unavailable):
    """The model that the request needs was not in memory in time."""

    code = "model_loading"


class ModelLoadFailed(Unavailable):
    """The model that the request needs could not be loaded: its files are missing or damaged. The next request tries again."""

    code = "model_load_failed"


class Draining(Unavailable):
    """The server is shutting down: it finishes its open requests and admits no new ones."""

    code = "draining"

    def __init__(
        self,
        message: str = "the server is shutting down and takes no new requests; retry after a moment",
        *,
        retry_after_s: int = 1,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class DeadlineExceeded(TlserveError):
    """The request's own deadline passed before its answer was complete."""


# --- the server's fault --------------------------------------------------------------------------------------------


class ServerFault(TlserveError):
    """A fault of the server; the client did nothing wrong."""


class GrammarLimitExceeded(ServerFault):
    """Finding the tokens that a request's grammar allows next takes more work than is allowed; only that request ends."""


class ModelTooLarge(ServerFault):
    """The model that the request needs does not fit the memory for models, even if every other one leaves."""


class EngineFailed(ServerFault):
    """The engine raised an exception: every open request ends with this error, and the process with a non-zero code."""


class DrainCut(ServerFault):
    """The drain reached its limit, so an unfinished answer ends with this error."""

    def __init__(self, message: str = "the server had to stop before this answer was complete") -> None:
        super().__init__(message)


# --- the operator's fault, found at start --------------------------------------------------------------------------


class OperatorError(TlserveError):
    """The server cannot start with this configuration; the message says what to change."""


class SettingsError(OperatorError):
    """One or more settings are refused; `refusals` holds one line each, all found at once."""

    def __init__(self, refusals: tuple[str, ...]) -> None:
        super().__init__("; ".join(refusals))
        self.refusals = refusals


class ModelMissing(OperatorError):
    """There is no model at the place that the settings name."""


class ModelRefused(OperatorError):
    """The model's files exist, but cannot be served: they are damaged, or of an unsupported architecture."""


class AddressInUse(OperatorError):
    """Another process already listens on the address."""


class DownloadFailed(OperatorError):
    """A model could not be downloaded, or the download is not the expected file."""
