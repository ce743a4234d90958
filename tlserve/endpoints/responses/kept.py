"""The responses that a server keeps, and those that it makes in the background, for the endpoints.

Owns the thread in which the database is used, one call at a time, so that the event loop never waits for it; and the nursery of
the background. Does not know how a response is made.

The nursery of `KeptResponses.run`:

    run
    `- one task for each response in the background
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio

from tlserve.errors import SettingsError
from tlserve.http.messages import HttpFault
from tlserve.responses.store import KeptResponse, ResponseStore

if TYPE_CHECKING:
    from tlserve.responses.events import ResponseEvents

log = logging.getLogger("tlserve.endpoints")

Result = TypeVar("Result")


@attrs.define(eq=False)
class LiveResponse:
    """A response that is made in the background; `scope` cancels it. `events` grow until it has `ended`.

    It has `begun` when it is admitted, or `refusal` is why not.
    """

    id: str
    owner: str
    events: ResponseEvents
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    begun: trio.Event = attrs.field(factory=trio.Event)
    refusal: Exception | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        """Wake those who read the events."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait_more(self, count: int) -> None:
        """Wait until there are more than `count` events, or the response has ended."""
        while len(self.events.sent) <= count and not self.ended.is_set():
            await self._changed.wait()


class KeptResponses:
    """The responses in `store`, while `run` runs, and those in the background."""

    def __init__(self, store: ResponseStore, now_s: Callable[[], float]) -> None:
        self._store = store
        self._now_s = now_s
        self._limiter = trio.CapacityLimiter(1)
        self._live: dict[str, LiveResponse] = {}
        self._nursery: trio.Nursery | None = None

    @property
    def running(self) -> int:
        """Return the number of responses in the background that are not complete."""
        return len(self._live)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep responses until cancelled; raises SettingsError if the database cannot be opened."""
        try:
            await trio.to_thread.run_sync(self._store.open, limiter=self._limiter)
        except sqlite3.Error as fault:
            raise SettingsError((f"responses.database cannot be opened: {fault}",)) from fault
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._store.close, limiter=self._limiter)

    async def put(self, kept: KeptResponse) -> None:
        """Keep a response. A fault of the database is logged: the answer itself is not lost."""
        try:
            await self._call(lambda: self._store.put(kept, self._now_s()))
        except sqlite3.Error as fault:
            log.error("the response %s cannot be kept: %s", kept.id, fault)

    async def get(self, name: str, owner: str) -> KeptResponse:
        """Return a response; raises `HttpFault` 404 if there is none of this owner."""
        kept = await self._call(lambda: self._store.get(name, owner, self._now_s()))
        if kept is None:
            raise not_found(name)
        return kept

    async def delete(self, name: str, owner: str) -> None:
        """Delete a response, after it was cancelled if it runs; raises `HttpFault` 404 if there is none of this owner."""
        if (live := self.live(name, owner)) is not None:
            await self.cancel(live)
        if not await self._call(lambda: self._store.delete(name, owner)):
            raise not_found(name)

    async def find(self, work: Callable[[Callable[[str], KeptResponse | None]], Result], owner: str) -> Result:
        """Return the result of `work` in the thread; it gets the function that finds a response by its id."""
        return await self._call(lambda: work(lambda name: self._store.get(name, owner, self._now_s())))

    async def start(self, live: LiveResponse, work: Callable[[], Awaitable[None]]) -> None:
        """Make a response in the background; return when it has begun, or raise its refusal.

        A caller that is cancelled meanwhile does not end it.
        """
        assert self._nursery is not None
        self._live[live.id] = live
        self._nursery.start_soon(self._make, live, work)
        await live.begun.wait()
        if live.refusal is not None:
            raise live.refusal

    def live(self, name: str, owner: str) -> LiveResponse | None:
        """Return a response that is made in the background, or None if there is none of this owner."""
        live = self._live.get(name)
        return live if live is not None and live.owner == owner else None

    async def cancel(self, live: LiveResponse) -> None:
        """Cancel a response, and wait until it has ended."""
        live.scope.cancel()
        await live.ended.wait()

    async def wait_idle(self) -> None:
        """Wait until no response is made in the background."""
        while self._live:
            await next(iter(self._live.values())).ended.wait()

    async def _make(self, live: LiveResponse, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            del self._live[live.id]
            live.ended.set()
            live.begun.set()
            live.wake()

    async def _call(self, work: Callable[[], Result]) -> Result:
        return await trio.to_thread.run_sync(work, limiter=self._limiter)


def not_found(name: str) -> HttpFault:
    """Return the refusal of a response that is not kept, or is of another key."""
    return HttpFault(404, f"the response {name[:64]!r} is not kept here", code="response_not_found")
