"""A planned request -> its answer, whole or as a stream.

Owns the order of what is sent: nothing while the request is queued (so that it can still be refused), the head when its first
prefill starts, pieces as they come, all that is ready together in one write, and the end. A stream that asked for its progress
gets its head once it is admitted, and comments up to its first token. Both forms read the same parts. Refuses to know routes
and bodies: what chat and completions differ in is the plan's shape.

A fault after the head becomes one error event and `[DONE]`. The backend's block is left before the last write, so that a
reader that is slow at the end holds nothing.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import attrs
import trio

from tlserve.chat.output.deltas import fold
from tlserve.endpoints.answers.answer_plan import Plan
from tlserve.endpoints.answers.choices import Ready, open_choices
from tlserve.endpoints.answers.token_reader import Part
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange, describe_fault, log_unforeseen
from tlserve.generation import Progress
from tlserve.http import sse
from tlserve.openai.documents import NO_EXTRAS, Extras, Usage


async def answer(api: ApiContext, exchange: ApiExchange, plan: Plan) -> None:
    """Generate and send the answer that `plan` describes."""
    if plan.options.stream:
        await _Stream(api, exchange, plan).run()
    else:
        await _answer_whole(api, exchange, plan)


async def _answer_whole(api: ApiContext, exchange: ApiExchange, plan: Plan) -> None:
    parts: list[list[Part]] = [[] for _ in plan.choices]
    async with open_choices(plan.served.backend, plan.choices, plan.deadline) as batches:
        async for ready in batches:
            for index, gained in ready:
                parts[index] += gained
    size_bytes = _DOCUMENT_BYTES * sum(len(choice.request.prompt) for choice in plan.choices)
    if plan.options.prompt_logprobs is None:
        await exchange.send(_document(plan, parts))
    else:
        await exchange.send(await api.offload.run(size_bytes, lambda: _document(plan, parts)))


_DOCUMENT_BYTES = 100
"""What one token of a prompt with log-probabilities takes in a document, at least."""


def _document(plan: Plan, parts: list[list[Part]]) -> bytes:
    answers = [fold(part.delta for part in own) for own in parts]
    extras = [_extras(plan, index, own) for index, own in enumerate(parts)]
    return plan.shape.document(plan.head, answers, plan.usage(), plan.options.logprobs is not None, extras)


def _extras(plan: Plan, index: int, parts: list[Part]) -> Extras:
    tokens = [token for part in parts for token in part.tokens] if plan.options.return_token_ids else None
    return attrs.evolve(plan.prompt_extras(index), token_ids=tokens)


class _Stream:
    """One streamed answer on its way."""

    def __init__(self, api: ApiContext, exchange: ApiExchange, plan: Plan) -> None:
        self._call = exchange
        self._plan = plan
        self._chunks = plan.shape.chunks(plan.head, plan.options.include_usage)
        self._ping_interval_ms = api.settings.ping_interval_ms
        self._events: sse.EventStream | None = None
        self._opened = False
        self._sent = _Sent(plan)
        options = plan.options
        self._tells_more = options.return_token_ids or options.continuous_usage or plan.progress

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            try:
                last = await self._relay(stack)
            except trio.BrokenResourceError:  # the client has gone
                raise
            except Exception as error:
                last = self._last_words(error)
            if self._events is not None:
                await self._events.send_raw(last + sse.DONE)

    async def _relay(self, stack: AsyncExitStack) -> bytes:
        """Send what comes; return the events that are to be sent after the backend was left."""
        unsent = b""
        plan = self._plan
        async with open_choices(plan.served.backend, plan.choices, plan.deadline) as batches:
            if plan.progress:
                self._events = await self._open(stack)
            async for ready in batches:
                before = b"" if self._opened and not plan.progress else self._progress(ready) + self._opening()
                unsent = before + self._write(ready)
                if self._events is None:
                    self._events = await self._open(stack)
                if unsent and not batches.ended:
                    await self._events.send_raw(unsent)
                    unsent = b""
        return unsent + self._usage()

    async def _open(self, stack: AsyncExitStack) -> sse.EventStream:
        """Send the head."""
        headers, responder = self._call.headers(), self._call.responder
        self._call.status = 200
        events = sse.EventStream(responder, ping_interval_ms=self._ping_interval_ms, headers=headers)
        return await stack.enter_async_context(events)

    def _progress(self, ready: Ready) -> bytes:
        """Return the news of the first choice as a comment, unless a token tells more."""
        news = self._plan.choices[0].reading.take_progress() if self._plan.progress else None
        if news is None or self._sent.tokens or any(part.tokens for _, parts in ready for part in parts):
            return b""
        return sse.comment(progress_words(news, len(self._plan.choices[0].request.prompt)))

    def _opening(self) -> bytes:
        """Return the chunks that name the roles, once, when the first prefill has started."""
        if self._opened or not any(choice.reading.started for choice in self._plan.choices):
            return b""
        self._opened = True
        openings = map(self._opening_of, range(len(self._plan.choices)))
        return b"".join(sse.event(opening) for opening in openings if opening is not None)

    def _opening_of(self, index: int) -> bytes | None:
        extras = self._plan.prompt_extras(index) if index == 0 else NO_EXTRAS
        opening = self._chunks.opening(index, extras, self._sent.usage())
        if opening is not None:
            self._sent.begun.add(index)
        return opening

    def _write(self, ready: Ready) -> bytes:
        piece = self._piece if self._tells_more else self._plain_piece
        return b"".join([sse.event(piece(index, part)) for index, parts in ready for part in parts])

    def _plain_piece(self, index: int, part: Part) -> bytes:
        return self._chunks.piece(part.delta, index)

    def _piece(self, index: int, part: Part) -> bytes:
        extras = self._sent.extras(index, part)
        self._sent.add(index, part)
        return self._chunks.piece(part.delta, index, extras, self._sent.usage())

    def _usage(self) -> bytes:
        return sse.event(self._chunks.usage(self._plan.usage())) if self._plan.options.include_usage else b""

    def _last_words(self, error: Exception) -> bytes:
        """Return the event that tells of a fault after the head; before it, the fault is raised on."""
        if self._events is None:
            raise error
        self._call.notes["finish"] = "error"
        log_unforeseen(error, self._call)
        answer = describe_fault(error)
        self._call.note_error(answer)
        return sse.event(answer.document())


class _Sent:
    """What of each choice was sent: chunks tell of it, and not of what is only ready. `begun` are those that were heard of."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._reasoning = [0] * len(plan.choices)
        self.begun: set[int] = set()
        self.tokens = 0

    def add(self, index: int, part: Part) -> None:
        """Count a part."""
        self.begun.add(index)
        self.tokens += len(part.tokens)
        self._reasoning[index] = part.reasoning_tokens

    def extras(self, index: int, part: Part) -> Extras:
        """Return what the chunk of a part says besides, the prompt's ids in the first one of a choice."""
        if not self._plan.options.return_token_ids:
            return NO_EXTRAS
        own = NO_EXTRAS if index in self.begun else self._plan.prompt_extras(index)
        return attrs.evolve(own, token_ids=part.tokens)

    def usage(self) -> Usage | None:
        """Return the usage up to what was sent last, if each chunk is to tell it."""
        if not self._plan.options.continuous_usage:
            return None
        return attrs.evolve(self._plan.usage(), completion=self.tokens, reasoning=sum(self._reasoning))


def progress_words(news: Progress, prompt_tokens: int) -> str:
    """Return the words of a progress comment: who waits before the request, or how much of its prompt is there."""
    if news.ahead is not None:
        return f"progress queue={news.ahead}"
    return f"progress prefill={news.done}/{prompt_tokens}"
