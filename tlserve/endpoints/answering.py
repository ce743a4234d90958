"""A planned request -> its answer, whole or as a stream.

Owns the order of what is sent: nothing while the request is queued (so that it can still be refused), the head when its
prefill starts, pieces as they come, all of one batch in one write, and the end. Both forms read the same deltas. Refuses to
know routes and bodies: what chat and completions differ in is the plan's shape.

A fault after the head becomes one error event and `[DONE]`. The backend's block is left before the last write, so that a
reader that is slow at the end holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack

import trio

from tlserve.chat.output_reader import Delta, fold
from tlserve.endpoints.call import Call, describe_fault, log_unforeseen
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.planning import Plan
from tlserve.endpoints.reading import Reading
from tlserve.http import sse


async def answer(api: ApiContext, call: Call, plan: Plan) -> None:
    """Generate and send the answer that `plan` describes."""
    reading = Reading(plan.reader, len(plan.request.prompt), call)
    if plan.options.stream:
        await _Stream(api, call, plan, reading).run()
    else:
        await _answer_whole(call, plan, reading)


async def _answer_whole(call: Call, plan: Plan, reading: Reading) -> None:
    deltas: list[Delta] = []
    async with plan.served.backend.generate(plan.request) as tokens:
        async for batch in tokens:
            deltas += reading.feed(batch)
            if reading.ended:
                break
    _check_ended(reading)
    await call.send(plan.shape.document(plan.head, fold(deltas), reading.usage(), plan.request.logprobs is not None))


class _Stream:
    """One streamed answer on its way."""

    def __init__(self, api: ApiContext, call: Call, plan: Plan, reading: Reading) -> None:
        self._call = call
        self._plan = plan
        self._reading = reading
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
        ready = b""
        async with self._plan.served.backend.generate(self._plan.request) as tokens:
            async for batch in tokens:
                ready = self._write(self._reading.feed(batch))
                if self._events is None:
                    self._events = await self._open(stack)
                    ready = self._opening() + ready
                if self._reading.ended:
                    break
                if ready:
                    await self._events.send_raw(ready)
        _check_ended(self._reading)
        return ready + self._usage()

    async def _open(self, stack: AsyncExitStack) -> sse.EventStream:
        """Send the head."""
        headers, responder = self._call.headers(), self._call.responder
        self._call.status = 200
        events = sse.EventStream(responder, ping_interval_ms=self._ping_interval_ms, headers=headers)
        return await stack.enter_async_context(events)

    def _opening(self) -> bytes:
        opening = self._chunks.opening()
        return b"" if opening is None else sse.event(opening)

    def _write(self, deltas: Iterable[Delta]) -> bytes:
        return b"".join(sse.event(self._chunks.piece(delta)) for delta in deltas)

    def _usage(self) -> bytes:
        asked = self._plan.options.include_usage
        return sse.event(self._chunks.usage(self._reading.usage())) if asked else b""

    def _last_words(self, error: Exception) -> bytes:
        """Return the event that tells of a fault after the head; before it, the fault is raised on."""
        if self._events is None:
            raise error
        self._call.notes["finish"] = "error"
        log_unforeseen(error, self._call)
        return sse.event(describe_fault(error).document())


def _check_ended(reading: Reading) -> None:
    if not reading.ended:
        raise RuntimeError("the backend ended an answer without saying why")
