"""POST /v1/messages and /v1/messages/count_tokens: a chat in the form of the Messages API.

The prompt and the answer are those of /v1/chat/completions. A limit of tokens that does not fit the context is lowered, because
every request of this API must have one; the answer then ends with `model_context_window_exceeded`. `temperature`, `top_p` and
`top_k` are served in every version, although the newest has dropped them: models that are served here have use for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.anthropic.documents import content_of, count_document, encode, message_fields, stop_fields
from tlserve.anthropic.events import FORM, MessageEvents
from tlserve.anthropic.requests import parse_count, parse_messages
from tlserve.api.errors import ErrorAnswer
from tlserve.endpoints.answers.answer_plan import AnswerShape, StartedAnswer
from tlserve.endpoints.answers.chat import answer_chat, count_chat_tokens
from tlserve.endpoints.answers.token_reader import AnswerPart, Ready
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.request_body import read_generation
from tlserve.errors import ClientError
from tlserve.http.messages import Headers

VERSION = "anthropic-version"
VERSIONS = ("2026-10-21", "2023-06-01")


async def messages(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the assistant's next message."""
    check_version(exchange.request.headers)
    incoming = await read_generation(api, exchange, parse_messages)
    await answer_chat(api, exchange, incoming, SHAPE)


async def count_tokens(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the number of tokens in the prompt of a body."""
    check_version(exchange.request.headers)
    await exchange.send(count_document(await count_chat_tokens(api, exchange, parse_count)))


def check_version(headers: Headers) -> None:
    """Refuse a version of the Messages API that is not served; a request can leave it out."""
    version = headers.get(VERSION)
    if version is not None and version not in VERSIONS:
        raise ClientError(f"{VERSION} is {version[:20]!a}; send {VERSIONS[0]}, or leave it out", param=VERSION)


def _is_filled(started: StartedAnswer) -> bool:
    """Say whether the limit of tokens was lowered to what fits the context."""
    asked = started.task.options.max_tokens
    return asked is not None and started.choices[0].request.max_tokens < asked


def _whole(started: StartedAnswer, parts: Sequence[Sequence[AnswerPart]]) -> bytes:
    deltas = [part.delta for part in parts[0]]
    ending = stop_fields(deltas[-1] if deltas else None, filled=_is_filled(started))
    head = started.head
    return encode(message_fields(head.id, head.model, content_of(deltas), started.usage(), ending))


class MessageWriter:
    """Writes the events of one message."""

    def __init__(self, started: StartedAnswer) -> None:
        self._started = started
        self._events = MessageEvents(started.head, started.choices[0].request.request_id)
        self._opened = False

    def write(self, ready: Ready) -> bytes:
        """Return the events of the parts that became ready; the first is the start, when the prefill has started."""
        opening = b""
        if not self._opened and self._started.choices[0].reader.started:
            self._opened = True
            opening = self._events.start(self._started.prompt_usage())
        return opening + b"".join([self._events.piece(part.delta) for _, parts in ready for part in parts])

    def end(self) -> bytes:
        """Return the events after the last part."""
        return self._events.end(self._started.usage(), filled=_is_filled(self._started))

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return the event of an error."""
        return self._events.fault(answer)


SHAPE = AnswerShape(id_prefix="msg-", clips=True, whole=_whole, writer=MessageWriter, stream=FORM)
