"""Places for work that several tenants want at the same time, so that none of them holds all.

Owns the count. Knows nothing of the work.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tlserve.errors import Overloaded


class FairPlaces:
    """`count` places; one tenant holds at most all but one of them.

    A place that comes free goes to the tenants in turn: each has only so many requests in the common queue as it can hold
    places. If there is one place, any tenant can hold it, and another one waits for one piece of work at most.
    """

    def __init__(self, count: int, busy: str = "too much work of this kind is waiting; retry in 1 s") -> None:
        """`busy` is the error of those that waited in vain."""
        self._busy = busy
        self._all = trio.CapacityLimiter(count)
        self._most = max(1, count - 1)
        self._tenants: dict[str, trio.CapacityLimiter] = {}

    @asynccontextmanager
    async def hold(self, tenant: str, *, patience_s: float = math.inf) -> AsyncIterator[None]:
        """Hold a place for the block; raises Overloaded if none came free in time."""
        own = self._tenants.setdefault(tenant, trio.CapacityLimiter(self._most))
        borrower, has_own, has_place = object(), False, False
        try:
            with trio.move_on_after(patience_s):
                await own.acquire_on_behalf_of(borrower)
                has_own = True
                await self._all.acquire_on_behalf_of(borrower)
                has_place = True
            if not has_place:
                raise Overloaded(self._busy)
            yield
        finally:
            if has_place:
                self._all.release_on_behalf_of(borrower)
            if has_own:
                own.release_on_behalf_of(borrower)
            if not own.borrowed_tokens and not own.statistics().tasks_waiting:
                self._tenants.pop(tenant, None)
