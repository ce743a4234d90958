"""The one table from an error to (status, type, code).

Owns what a client learns of a failure. Does not know where a failure came from, since the code that raises it chooses the class,
nor the document that shows it: each family of endpoints has its own.

Source: the types and codes of the public API's error object.
"""

from __future__ import annotations

import attrs

from tlserve import errors

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"


@attrs.frozen
class ErrorRow:
    """The answer to one class of errors; `code` None: the error's own, if it has one."""

    status: int
    type: str
    code: str | None = None


TABLE: dict[type[BaseException], ErrorRow] = {
    errors.ClientError: ErrorRow(400, INVALID_REQUEST),
    errors.ContextLengthExceeded: ErrorRow(400, INVALID_REQUEST, "context_length_exceeded"),
    errors.Refusal: ErrorRow(422, INVALID_REQUEST, "unsupported_parameter"),
    errors.ModelNotFound: ErrorRow(404, INVALID_REQUEST, "model_not_found"),
    errors.KvHandleNotFound: ErrorRow(404, INVALID_REQUEST, "kv_handle_not_found"),
    errors.CancelledById: ErrorRow(499, INVALID_REQUEST, "cancelled"),
    errors.Unavailable: ErrorRow(503, SERVER, "unavailable"),
    errors.Overloaded: ErrorRow(429, RATE_LIMIT, "rate_limit_exceeded"),
    errors.NoCapacity: ErrorRow(503, SERVER, "no_capacity"),
    errors.ModelLoading: ErrorRow(503, SERVER, "model_loading"),
    errors.ModelLoadFailed: ErrorRow(503, SERVER, "model_load_failed"),
    errors.Draining: ErrorRow(503, SERVER, "draining"),
    errors.DeadlineExceeded: ErrorRow(504, SERVER, "deadline_exceeded"),
    errors.ServerFault: ErrorRow(500, SERVER, "internal_error"),
    errors.GrammarLimitExceeded: ErrorRow(400, INVALID_REQUEST, "grammar_limit_exceeded"),
    errors.ModelTooLarge: ErrorRow(507, SERVER, "model_too_large"),
    errors.EngineFailed: ErrorRow(500, SERVER, "engine_failed"),
    errors.DrainCut: ErrorRow(503, SERVER, "draining"),
    Exception: ErrorRow(500, SERVER, "internal_error"),
}
"""The first class in an error's method resolution order decides; `Exception` is for unforeseen errors."""

HTTP_CODES: dict[int, str] = {
    401: "invalid_api_key",
    403: "api_key_not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    417: "expectation_failed",
    429: "rate_limit_exceeded",
    431: "headers_too_large",
    503: "unavailable",
}
"""The code of a failure in the HTTP layer, by status; other statuses have none."""

_HTTP_TYPES = {401: AUTHENTICATION, 403: AUTHENTICATION, 429: RATE_LIMIT}
_RETRY_AFTER_S = {429: 1, 503: 1}
"""The default of Retry-After, by status."""


@attrs.frozen
class ErrorAnswer:
    """A failure, ready for the wire; `retry_after_s` is set if a retry can help."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    @property
    def kind(self) -> str:
        """Return the code for the log line, or the type if there is no code."""
        return self.code or self.type


def describe_error(error: BaseException) -> ErrorAnswer:
    """Return the answer to `error`. The client learns nothing about an error that is not a `TlserveError`."""
    row = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    if not isinstance(error, errors.TlserveError):
        return ErrorAnswer(row.status, row.type, row.code, "the server failed to answer; the request is not at fault")
    return ErrorAnswer(
        row.status,
        row.type,
        row.code or getattr(error, "code", None),
        error.message,
        getattr(error, "param", None),
        getattr(error, "retry_after_s", _RETRY_AFTER_S.get(row.status)),
    )


def describe_http_fault(status: int, message: str) -> ErrorAnswer:
    """Return the answer to a failure of the HTTP layer: framing, limits, routing."""
    kind = _HTTP_TYPES.get(status, SERVER if status >= 500 else INVALID_REQUEST)
    return ErrorAnswer(status, kind, HTTP_CODES.get(status), message, retry_after_s=_RETRY_AFTER_S.get(status))
