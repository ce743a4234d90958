"""The requests that hold one model in memory, and those that wait for it.

Owns both counts, the bound of the wait, and the refusals. Does not know how a model is loaded: `open` lets in those that wait,
`fail` ends their wait. A request that waits is in line: it gets its hold with all the others when the model is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from tlserve.errors import ModelLoading, Overloaded, TlserveError


@attrs.define(eq=False)
class _Hold:
    """The place of one request: waiting, holding, or ended by an error."""

    over: trio.Event = attrs.field(factory=trio.Event)
    holds: bool = False
    error: TlserveError | None = None


class Holds:
    """Holds of one model; `changed` is called after every change of a count."""

    def __init__(self, name: str, *, most_waiting: int, wait_s: float, changed: Callable[[], None]) -> None:
        """`most_waiting`: requests that can wait for a load; `wait_s`: how long one waits."""
        self._name = name
        self._most_waiting = most_waiting
        self._wait_s = wait_s
        self._changed = changed
        self._is_open = False
        self._refuse: Callable[[], TlserveError] | None = None
        self._waiting: dict[_Hold, None] = {}
        self.held = 0
        self.last_used_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests that wait for the model."""
        return len(self._waiting)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[float]:
        """Hold the model for the block, after waiting for it; gives the seconds of the wait."""
        if self._refuse is not None:
            raise self._refuse()
        place = _Hold()
        try:
            if self._is_open:
                self._admit(place)
                yield 0.0
            else:
                began_s = trio.current_time()
                await self._wait(place)
                yield trio.current_time() - began_s
        finally:
            self._leave(place)

    def open(self) -> None:
        """Let in the requests that wait, and those that come from now on: the model is in memory."""
        self._is_open = True
        for place in tuple(self._waiting):
            self._admit(place)

    def close(self) -> None:
        """Let those that come from now on wait: the model is to leave."""
        self._is_open = False

    def fail(self, make_error: Callable[[], TlserveError]) -> None:
        """End the wait of every request that waits now with an error."""
        for place in tuple(self._waiting):
            place.error = make_error()
            self._end_wait(place)

    def refuse(self, refuse: Callable[[], TlserveError]) -> None:
        """Refuse the requests that come from now on; those that wait go on waiting."""
        self._refuse = refuse

    def _admit(self, place: _Hold) -> None:
        place.holds = True
        self.held += 1
        self.last_used_s = trio.current_time()
        self._end_wait(place)

    def _end_wait(self, place: _Hold) -> None:
        self._waiting.pop(place, None)
        place.over.set()
        self._changed()

    async def _wait(self, place: _Hold) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise Overloaded(
                f"the model {self._name!r} is being loaded, and {len(self._waiting)} requests wait for it already; retry in 1 s"
            )
        self._waiting[place] = None
        self._changed()
        with trio.move_on_after(self._wait_s):
            await place.over.wait()
        if place.error is not None:
            raise place.error
        if not place.holds:
            raise ModelLoading(
                f"the model {self._name!r} was not in memory within {self._wait_s:g} s; retry after a moment",
                retry_after_s=5,
            )

    def _leave(self, place: _Hold) -> None:
        if place.holds:
            self.held -= 1
            self.last_used_s = trio.current_time()
            self._changed()
        elif place in self._waiting:
            self._end_wait(place)
