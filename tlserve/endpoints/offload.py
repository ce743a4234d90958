"""Work that grows with a request: here, or in a worker thread.

Owns the rule which work leaves the event loop: rendering and encoding megabytes must neither stall other streams nor take every
worker thread. Long work has threads of its own, so that other work overtakes it, and no tenant has all threads. Does not know
what the work is.
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

INLINE_BYTES = 2_048
"""Up to this size the work is done at once: a hop to a thread and back takes 0.1 ms.

Some templates walk the whole history for each message. 16 KiB of one-letter messages then take 0.2 s, for which other streams
must not wait.
"""

LONG_BYTES = 1 << 18
"""Above this size it can take a tenth of a second and more."""


@attrs.define
class _Caller:
    has_left: bool = False


class _Lane:
    """Threads for work of one size. One tenant has all but one of them at most, also those that nobody waits for."""

    def __init__(self, count: int) -> None:
        self._most = count - 1
        self._places = FairPlaces(count)
        self._threads = dict[str, trio.CapacityLimiter]()

    async def run(self, work: Callable[[], Result], tenant: str) -> Result:
        async with self._places.hold(tenant):
            return await _run_in_thread(work, self._threads_of(tenant))

    def _threads_of(self, tenant: str) -> trio.CapacityLimiter:
        """Return the threads of a tenant, and forget those that are not in use."""
        used = {name: limiter for name, limiter in self._threads.items() if limiter.borrowed_tokens}
        self._threads = {tenant: trio.CapacityLimiter(self._most), **used}
        return self._threads[tenant]


@attrs.define(eq=False)
class Offload:
    """Runs functions here or in a worker thread, by the size of their input."""

    _short: _Lane = attrs.field(factory=partial(_Lane, 3))
    _long: _Lane = attrs.field(factory=partial(_Lane, 2))

    async def run(self, size_bytes: int, work: Callable[[], Result], tenant: str) -> Result:
        """Return the result of `work`. A caller that is cancelled does not wait, and its encoding ends after a piece."""
        if size_bytes <= INLINE_BYTES:
            return work()
        lane = self._short if size_bytes <= LONG_BYTES else self._long
        return await lane.run(work, tenant)


async def _run_in_thread(work: Callable[[], Result], limiter: trio.CapacityLimiter) -> Result:
    caller = _Caller()
    before = is_dropped.set(lambda: caller.has_left)
    try:
        return await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)
    finally:
        caller.has_left = True
        is_dropped.reset(before)
