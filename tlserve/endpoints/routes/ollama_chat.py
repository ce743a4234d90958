"""POST /api/chat and /api/generate: a chat, or a text, in the form of Ollama's API.

The prompt and the answer are those of /v1/chat/completions; with `raw`, those of /v1/completions. A stream is one JSON document a
line. A limit of tokens that does not fit the context is lowered, as there. A request without messages or prompt loads the model,
or unloads it if its `keep_alive` is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tlserve.api.answers import moment
from tlserve.api.errors import ErrorAnswer
from tlserve.chat.output.deltas import Delta, fold
from tlserve.chat.prompt import encode_completion
from tlserve.endpoints.answers.answer import answer
from tlserve.endpoints.answers.answer_plan import AnswerShape, GenerationTask, StartedAnswer, TaskPrompt
from tlserve.endpoints.answers.budget import check_length
from tlserve.endpoints.answers.chat import answer_chat
from tlserve.endpoints.answers.residency import kept_for, loaded
from tlserve.endpoints.answers.token_reader import AnswerPart, Ready
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_ids
from tlserve.endpoints.request_body import IncomingGeneration, read_generation
from tlserve.endpoints.request_headers import SPECIAL_TOKENS, read_switch
from tlserve.http.sse import StreamForm
from tlserve.ollama.documents import (
    Times,
    chat_fields,
    encode,
    end_fields,
    error_document,
    head_fields,
    text_fields,
)
from tlserve.ollama.requests import OllamaRequest, parse_ollama_chat, parse_ollama_generate

LINES = StreamForm("application/x-ndjson", b"")
Content = Callable[..., dict[str, Any]]


async def ollama_chat(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the assistant's next turn."""
    await _answer(api, exchange, await read_generation(api, exchange, parse_ollama_chat), CHAT_SHAPE, chat_fields)


async def ollama_generate(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the continuation of a text, as a turn of the user or raw."""
    specials = read_switch(exchange.request.headers, SPECIAL_TOKENS)
    incoming = await read_generation(api, exchange, parse_ollama_generate)
    if incoming.request.raw:
        await _continue(api, exchange, incoming, specials=specials)
    else:
        await _answer(api, exchange, incoming, TEXT_SHAPE, text_fields)


async def _answer(
    api: ApiContext,
    exchange: ApiExchange,
    incoming: IncomingGeneration[OllamaRequest],
    shape: AnswerShape,
    content: Content,
) -> None:
    with kept_for(incoming.served, incoming.request.keep_alive_s):
        if incoming.request.messages:
            await answer_chat(api, exchange, incoming, shape)
        else:
            reason = await _load_or_unload(exchange, incoming)
            head = {"model": incoming.named, "created_at": moment(int(api.now_s()))}
            await exchange.send(encode({**head, **content(), "done": True, "done_reason": reason}))


async def _load_or_unload(exchange: ApiExchange, incoming: IncomingGeneration[OllamaRequest]) -> str:
    """Return which of both was done; a model leaves when its last request has ended."""
    if incoming.request.keep_alive_s == 0:
        return "unload"
    async with loaded(exchange, incoming.served, incoming.deadline):
        return "load"


async def _continue(
    api: ApiContext, exchange: ApiExchange, incoming: IncomingGeneration[OllamaRequest], *, specials: bool
) -> None:
    """Answer with the continuation of a raw prompt; it can spell control tokens only if the header says so."""
    served, text = incoming.served, incoming.request.raw or ""
    with kept_for(served, incoming.request.keep_alive_s):
        await answer(api, exchange, await _raw_task(api, exchange, incoming, text, specials=specials))


async def _raw_task(
    api: ApiContext, exchange: ApiExchange, incoming: IncomingGeneration[OllamaRequest], text: str, *, specials: bool
) -> GenerationTask:
    served = incoming.served
    check_length(served.tokenizer, len(text), served.backend.info().context_tokens, "prompt")
    with incoming.deadline.obeyed():
        ids = await api.offload.run(
            incoming.size_bytes,
            lambda: encode_completion(served.tokenizer, text, specials=specials),
            exchange.tenant,
        )
    exchange.hold_bytes(bytes_of_ids(len(ids)))
    return GenerationTask(
        served=served,
        named=incoming.named,
        shape=TEXT_SHAPE,
        options=incoming.request.options,
        prompts=[TaskPrompt(ids=ids, place="prompt")],
        headers=incoming.headers,
        deadline=incoming.deadline,
    )


def _ending(started: StartedAnswer, deltas: Sequence[Delta]) -> dict[str, Any]:
    figures, ended_ms = started.figures, started.elapsed_ms()
    times = Times(
        started_ms=figures.queue_ms or 0.0,
        first_ms=ended_ms if figures.first_token_ms is None else figures.first_token_ms,
        ended_ms=ended_ms,
        load_ms=figures.load_ms or 0.0,
    )
    return end_fields(fold(deltas), started.usage(), times)


class LineWriter:
    """Writes the lines of one answer; a call is in one line, when all of them are complete."""

    def __init__(self, started: StartedAnswer, content: Content) -> None:
        self._started = started
        self._head = head_fields(started.head)
        self._content = content
        self._deltas: list[Delta] = []

    def write(self, ready: Ready) -> bytes:
        """Return a line for each part with text."""
        return b"".join([self._piece(part.delta) for _, parts in ready for part in parts])

    def _piece(self, delta: Delta) -> bytes:
        if delta.calls or delta.finish is not None:
            self._deltas.append(delta)
        if not delta.content and not delta.reasoning:
            return b""
        return self._line(**self._content(delta.content, delta.reasoning), done=False)

    def end(self) -> bytes:
        """Return the calls, if there are some, and the last line."""
        calls = fold(self._deltas).calls
        called = self._line(**self._content("", "", calls), done=False) if calls else b""
        return called + self._line(**self._content(), **_ending(self._started, self._deltas))

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return the line of an error."""
        return error_document(answer) + b"\n"

    def _line(self, **fields: Any) -> bytes:
        return encode({**self._head, **fields}) + b"\n"


def _shape(content: Content) -> AnswerShape:
    def whole(started: StartedAnswer, parts: Sequence[Sequence[AnswerPart]]) -> bytes:
        deltas = [part.delta for part in parts[0]]
        given = fold(deltas)
        said = content(given.content, given.reasoning, given.calls)
        return encode({**head_fields(started.head), **said, **_ending(started, deltas)})

    return AnswerShape(
        id_prefix="ollama-", clips=True, whole=whole, writer=lambda started: LineWriter(started, content), stream=LINES
    )


CHAT_SHAPE = _shape(chat_fields)
TEXT_SHAPE = _shape(text_fields)
