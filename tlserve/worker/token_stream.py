"""One request's events as its consumer sees them: batches of all that is ready, or the error that ended it.

Owns the channel's reading end, the queue deadline, and the joining of what came while the consumer was busy. Refuses to
know the engine.
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
    """Read batches of outcomes; the first that is more than progress must come before `deadline` (trio time)."""

    def __init__(self, receive: trio.MemoryReceiveChannel[Batch], deadline: float = math.inf) -> None:
        self._receive = receive
        self._deadline = deadline

    async def next_batch(self) -> list[Outcome]:
        """Wait for an outcome and return it with all that is ready behind it; raises `NoCapacity` at the deadline."""
        if self._deadline < math.inf:
            return await self._early_batch()
        return self._join_ready(
            list(await self._receive.receive())
        )  # once a token: a cancel scope costs more than the rest

    async def _early_batch(self) -> list[Outcome]:
        with trio.move_on_at(self._deadline):
            batch = self._join_ready(list(await self._receive.receive()))
            if not is_progress(batch):
                self._deadline = math.inf
            return batch
        raise NoCapacity("no room came free for this request before the queue deadline; retry after a moment")

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
        """Whether the engine itself said the last word, so that no abort is needed."""
        return self._ended and not self._cut

    def __aiter__(self) -> LocalTokenStream:
        return self

    async def __anext__(self) -> Sequence[GenerationEvent]:
        if not self._ended:
            batch = self._settle(await self._reader.next_batch())
            if batch:
                return batch
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _settle(self, batch: list[Outcome]) -> Sequence[GenerationEvent]:
        """Deliver the tokens that came before an error; the error itself follows them."""
        self._ended = is_last(batch[-1])
        self._cut = isinstance(batch[-1], Ended)
        if isinstance(batch[-1], Failed | Ended):
            self._error = batch.pop().error  # type: ignore[union-attr]
        return cast("list[GenerationEvent]", batch)
