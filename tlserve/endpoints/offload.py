"""Work that grows with a request: here, or in a worker thread.

Owns the rule which work leaves the event loop: rendering and encoding megabytes must neither stall other streams nor take every
worker thread. Long work has places of its own, so that other work overtakes it: two, of which one tenant has one at most. Does
not know what the work is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import attrs
import trio

from tlserve.admission.fair_places import FairPlaces
from tlserve.text.pieces import is_dropped

Result = TypeVar("Result")

INLINE_BYTES = 16_384
"""Below this size the work takes less time than a hop to a thread and back."""

LONG_BYTES = 1 << 18
"""Above this size it can take a tenth of a second and more."""


@attrs.define
class _Caller:
    has_left: bool = False


@attrs.define(eq=False)
class Offload:
    """Runs functions here or in a worker thread, by the size of their input.

    A thread that nobody waits for keeps the tenant's only place for long work until it ends.
    """

    limiter: trio.CapacityLimiter = attrs.field(factory=partial(trio.CapacityLimiter, 2))
    _long_places: FairPlaces = attrs.field(factory=partial(FairPlaces, 2))
    _long_threads: dict[str, trio.CapacityLimiter] = attrs.field(factory=dict)

    async def run(self, size_bytes: int, work: Callable[[], Result], tenant: str) -> Result:
        """Return the result of `work`. A caller that is cancelled does not wait, and its encoding ends after a piece."""
        if size_bytes <= INLINE_BYTES:
            return work()
        if size_bytes <= LONG_BYTES:
            return await _run_in_thread(work, self.limiter)
        async with self._long_places.hold(tenant):
            return await _run_in_thread(work, self._long_thread(tenant))

    def _long_thread(self, tenant: str) -> trio.CapacityLimiter:
        """Return the place of a tenant, and forget those that are not in use."""
        used = {name: place for name, place in self._long_threads.items() if place.borrowed_tokens}
        self._long_threads = {tenant: trio.CapacityLimiter(1), **used}
        return self._long_threads[tenant]


async def _run_in_thread(work: Callable[[], Result], limiter: trio.CapacityLimiter) -> Result:
    caller = _Caller()
    before = is_dropped.set(lambda: caller.has_left)
    try:
        return await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)
    finally:
        caller.has_left = True
        is_dropped.reset(before)
