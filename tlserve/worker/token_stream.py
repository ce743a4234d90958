"""One request's events as its consumer gets them: batches of all that is ready, or the error that ended it.

Owns the channel's reading end and the queue deadline, and joins the batches that arrive while the consumer is busy. Knows
nothing of the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import trio

from tlserve.engine.events import Failed
from tlserve.errors import NoCapacity, TlserveError
from tlserve.generation import GenerationEvent
from tlserve.worker.engine_thread import Batch, Ended, Outcome, is_last, is_progress


class OutcomeReader:
    """Read batches of outcomes; the first one besides progress must arrive before `deadline` (trio time)."""

    def __init__(self, receive: trio.MemoryReceiveChannel[Batch], deadline: float = math.inf) -> None:
        self._receive = receive
        self._deadline = deadline

    async def next_batch(self) -> list[Outcome]:
        """Wait for an outcome and return it with all that are ready after it; raises `NoCapacity` at the deadline."""
        if self._deadline < math.inf:
            return await self._early_batch()
        # once a token: a cancel scope would cost more than the rest
        return self._join_ready(list(await self._receive.receive()))

    async def _early_batch(self) -> list[Outcome]:
        with trio.move_on_at(self._deadline):
            batch = self._join_ready(list(await self._receive.receive()))
            if not is_progress(batch):
                self._deadline = math.inf
            return batch
        raise NoCapacity("no capacity became free for this request before the queue deadline; retry after a moment")

    def _join_ready(self, batch: list[Outcome]) -> list[Outcome]:
        while True:
            try:
                batch.extend(self._receive.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return batch


class LocalTokenStream:
    """The `TokenStream` of a local request."""

    def __init__(self, reader: OutcomeReader) -> None:
        self._reader = reader
        self._error: TlserveError | None = None
        self._ended = False
        self._cut = False

    @property
    def engine_is_done(self) -> bool:
        """Whether the engine itself ended the request, so that no abort is needed."""
        return self._ended and not self._cut

    def __aiter__(self) -> LocalTokenStream:
        return self

    async def __anext__(self) -> Sequence[GenerationEvent]:
        if not self._ended:
            batch = self._take(await self._reader.next_batch())
            if batch:
                return batch
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _take(self, batch: list[Outcome]) -> Sequence[GenerationEvent]:
        """Return the events before an error; the error is raised after them."""
        self._ended = is_last(batch[-1])
        self._cut = isinstance(batch[-1], Ended)
        if isinstance(batch[-1], Failed | Ended):
            self._error = batch.pop().error  # type: ignore[union-attr]
        return cast("list[GenerationEvent]", batch)
