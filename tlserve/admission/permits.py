"""The limit of requests that are inside at once.

Owns the count, and the refusal with the time after which a retry makes sense. Does not know what a request does once it is
inside. Runs on the event loop: no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from tlserve.admission.pace import Pace
from tlserve.errors import Overloaded, TlserveError


class Admission:
    """Permits for requests that were admitted and have not ended."""

    def __init__(self, limit: int, waiting: Callable[[], int] = lambda: 1) -> None:
        """`limit`: sequences that run plus requests that can wait; `waiting` returns the number of requests that wait now."""
        self._limit = limit
        self._waiting = waiting
        self._pace = Pace()
        self._inside = 0
        self._refuse: Callable[[], TlserveError] | None = None
        self._empty = trio.Event()
        self._empty.set()

    @property
    def inside(self) -> int:
        """Requests that hold a permit."""
        return self._inside

    def check(self) -> None:
        """Raise `Overloaded` if there is no permit now, or the error of `close` after that was called."""
        if self._refuse is not None:
            raise self._refuse()
        if self._inside >= self._limit:
            raise self._overloaded()

    @contextmanager
    def permit(self) -> Iterator[None]:
        """Hold one permit for the block; raises the same errors as `check`."""
        self.check()
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def close(self, refuse: Callable[[], TlserveError]) -> None:
        """Admit no more requests: later calls of `permit` raise the error that `refuse` makes."""
        self._refuse = refuse

    def _overloaded(self) -> Overloaded:
        wait_s = self._pace.retry_after_s(self._waiting(), trio.current_time())
        return Overloaded(
            f"the queue is full: {self._inside} requests are running or waiting; retry in {wait_s} s",
            retry_after_s=wait_s,
        )

    async def wait_empty(self) -> None:
        """Wait until no request holds a permit."""
        await self._empty.wait()

    def _take(self) -> None:
        if self._inside == 0:
            self._empty = trio.Event()
        self._inside += 1
        self._pace.begin(trio.current_time())

    def _give_back(self) -> None:
        self._inside -= 1
        self._pace.end(trio.current_time())
        if self._inside == 0:
            self._empty.set()
