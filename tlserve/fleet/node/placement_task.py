"""One placement on a node: the task that reads its tokens from the backend.

Owns its course from admission to the last event: the wall limit, the pause at the window, and the conversion of errors. Knows
nothing of heads and other placements: it calls `on_news` whenever there is a new event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from tlserve.errors import DeadlineExceeded, EngineFailed, TlserveError, single_cause
from tlserve.fleet.link import Ack, SessionKey, StalePlacement
from tlserve.fleet.node.event_buffer import EventBuffer
from tlserve.generation import Backend, GenerationRequest, TokenStream, is_last_event

log = logging.getLogger("tlserve.fleet")


class PlacementTask:
    """A session on this node, from its start to its last event; `lease_until` is a moment of trio's clock."""

    def __init__(self, key: SessionKey, lease_until: float, on_news: Callable[[], object]) -> None:
        self.key = key
        self.lease_until = lease_until
        self.buffer = EventBuffer(key)
        self.refusal: TlserveError | None = None
        self._on_news = on_news
        self._decided = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._dropped = False

    async def run(self, backend: Backend, request: GenerationRequest, wall_s: float) -> None:
        """Read the tokens of `request`, for at most `wall_s`; raises nothing but cancellation."""
        error: TlserveError | None = StalePlacement("this placement ended before it began")
        self._scope.deadline = trio.current_time() + wall_s
        try:
            with self._scope:
                error = await self._read(backend, request)
            if self._scope.cancelled_caught and not self._dropped:
                error = DeadlineExceeded(f"the answer was not complete within its limit of {wall_s:.0f} s on this node")
        finally:
            self._end(error)

    async def wait_admitted(self) -> None:
        """Return once the backend has admitted the request; raises the backend's refusal."""
        await self._decided.wait()
        if self.refusal is not None:
            raise self.refusal

    def acknowledge(self, ack: Ack) -> bool:
        """Apply an ack; return False for one that is impossible."""
        known = self.buffer.acknowledge(ack)
        if not self.buffer.is_full:
            self._room.unpark_all()
        return known

    def drop(self) -> None:
        """End it at once; its events are no longer needed."""
        self._dropped = True
        self._scope.cancel()

    async def _read(self, backend: Backend, request: GenerationRequest) -> TlserveError | None:
        """Read all tokens; return the error that ended them, if one did."""
        try:
            async with backend.generate(request) as tokens:
                self._decided.set()
                await self._keep_all(tokens)
        except Exception as raised:
            error = single_cause(raised)
            if isinstance(error, TlserveError):
                return error
            log.exception("session %d of head %s failed", self.key.session, self.key.head)
            return EngineFailed(f"the node failed while it answered: {type(error).__name__}")
        return None

    async def _keep_all(self, tokens: TokenStream) -> None:
        async for batch in tokens:
            self.buffer.add(batch)
            self._on_news()
            if is_last_event(batch[-1]):
                return
            while self.buffer.is_full:
                await self._room.park()
        raise EngineFailed("the node's backend ended an answer without a reason")

    def _end(self, error: TlserveError | None) -> None:
        if not self._decided.is_set():
            self.refusal = error
            self._decided.set()
        self.buffer.end(error)
        self._on_news()
