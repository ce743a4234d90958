"""A planned request -> its answer, whole or as a stream.

Owns the order of what is sent: nothing while the request is queued (so that it can still be refused), the head when its first
prefill starts, pieces as they come, all that is ready together in one write, and the end. Both forms read the same deltas.
Refuses to know routes and bodies: what chat and completions differ in is the plan's shape.

A fault after the head becomes one error event and `[DONE]`. The backend's block is left before the last write, so that a
reader that is slow at the end holds nothing.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio

from tlserve.chat.output_reader import Delta, fold
from tlserve.endpoints.call import Call, describe_fault, log_unforeseen
from tlserve.endpoints.choices import Ready, open_choices
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.planning import Plan
from tlserve.http import sse


async def answer(api: ApiContext, call: Call, plan: Plan) -> None:
    """Generate and send the answer that `plan` describes."""
    if plan.options.stream:
        await _Stream(api, call, plan).run()
    else:
        await _answer_whole(call, plan)


async def _answer_whole(call: Call, plan: Plan) -> None:
    deltas: list[list[Delta]] = [[] for _ in plan.choices]
    async with open_choices(plan.served.backend, plan.choices) as batches:
        async for ready in batches:
            for index, gained in ready:
                deltas[index] += gained
    answers = [fold(gained) for gained in deltas]
    await call.send(plan.shape.document(plan.head, answers, plan.usage(), plan.options.logprobs is not None))


class _Stream:
    """One streamed answer on its way."""

    def __init__(self, api: ApiContext, call: Call, plan: Plan) -> None:
        self._call = call
        self._plan = plan
        self._chunks = plan.shape.chunks(plan.head, plan.options.include_usage)
        self._ping_interval_ms = api.settings.ping_interval_ms
        self._events: sse.EventStream | None = None

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
        async with open_choices(self._plan.served.backend, self._plan.choices) as batches:
            async for ready in batches:
                unsent = self._write(ready)
                if self._events is None:
                    self._events = await self._open(stack)
                    unsent = self._opening() + unsent
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

    def _opening(self) -> bytes:
        openings = map(self._chunks.opening, range(len(self._plan.choices)))
        return b"".join(sse.event(opening) for opening in openings if opening is not None)

    def _write(self, ready: Ready) -> bytes:
        return b"".join(sse.event(self._chunks.piece(delta, index)) for index, deltas in ready for delta in deltas)

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
