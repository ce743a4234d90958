"""What the connections of a server share: whether it drains, what is open, and which connection gives way to a new one.

Owns the places: at most `max_connections`, of which one client address can have some. Without a free place the connection
that has waited longest for a request is closed; without one that waits for a request, the one whose headers have taken
longest. A connection that has a whole request never gives way. Does not know sockets and requests: a connection says when it
waits, and whether bytes have arrived that it has not read.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import attrs
import trio

from tlserve.config.tables.network import HttpSettings
from tlserve.http.messages import HttpFault

logger = logging.getLogger("tlserve.http")

PATIENCE_S = 1.0
"""A connection gives way only after this time, in which a new client can send its request."""

_SHORTEST_S = 0.001

ARRIVAL_S = 1.0
"""The time for a request that has begun to arrive when the drain begins."""

QUIET_S = 60.0
"""A condition that was logged is logged again only after it has been absent for this time."""


@attrs.define(eq=False)
class ConnectionPlace:
    """The place of one open connection; it `counts` until the connection was told to give way."""

    address: str = ""
    counts: bool = True


@attrs.define(eq=False)
class _Wait:
    """A connection that waits for a request, or for the rest of its headers."""

    place: ConnectionPlace
    scope: trio.CancelScope
    since_s: float
    has_bytes: Callable[[], bool]


class Episode:
    """A condition that is logged when it begins, and not again while it lasts."""

    def __init__(self) -> None:
        self._last_s = -math.inf

    def warn(self, message: str, *arguments: object) -> None:
        """Note that the condition is there; log it if it was not there a minute ago."""
        if trio.current_time() - self._last_s > QUIET_S:
            logger.warning(message + "; this is logged once while it lasts", *arguments)
        self._last_s = trio.current_time()


def _no_bytes() -> bool:
    return False


class ByteBudget:
    """The bytes of all requests that are in memory; each request gives back what it has taken when it ends."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.taken = 0

    def take(self, count: int, held: int, what: str = "the request body is") -> None:
        """Count `count` more bytes of a request that holds `held`; raises `HttpFault` 413 or 503 if they are too many."""
        if held + count > self._limit:
            raise HttpFault(413, f"{what} larger than {self._limit} bytes (max_bytes_in_flight)")
        if self.taken + count > self._limit:
            message = "all requests in flight have reached their limit of memory (max_bytes_in_flight); retry soon"
            raise HttpFault(503, message, None, (("Retry-After", "1"),), "busy")
        self.taken += count

    def give_back(self, count: int) -> None:
        """Note that a request that has taken `count` bytes has ended."""
        self.taken -= count


class ServerState:
    """The state of one server; `open_connections` and `open_requests` are counts of now."""

    def __init__(self, settings: HttpSettings | None = None) -> None:
        settings = settings or HttpSettings()
        self.draining = False
        self._last_request_s = math.inf  # the longest wait for a request, once each connection gets only one more
        self.open_connections = 0
        self.open_requests = 0
        self._most = settings.max_connections
        self.most_of_address = settings.max_connections_per_address or max(1, self._most // 2)
        self._taken = 0
        self._of_address = Counter[str]()
        self._idle: dict[_Wait, None] = {}  # in the order of their waiting
        self._in_head: dict[_Wait, None] = {}
        self.bodies = ByteBudget(settings.max_bytes_in_flight)
        self._arriving: set[trio.CancelScope] = set()
        self._arrived_by_s = math.inf
        self._acceptors = trio.lowlevel.ParkingLot()
        self._full = Episode()

    def drain(self) -> None:
        """Accept nothing new: idle connections end at once, except those whose next request has arrived.

        Requests that are arriving have `ARRIVAL_S` left: one that never comes must not hold up the end.
        """
        if not self.draining:
            self.draining = True
            self._arrived_by_s = trio.current_time() + ARRIVAL_S
        for scope in self._arriving:
            scope.deadline = min(scope.deadline, self._arrived_by_s)
        for wait in tuple(self._idle):
            if not wait.has_bytes():
                wait.scope.cancel()

    def retire(self, last_request_s: float) -> None:
        """Give each connection one more request, which must begin within the time."""
        self._last_request_s = last_request_s
        deadline = trio.current_time() + last_request_s
        for wait in self._idle:
            wait.scope.deadline = min(wait.scope.deadline, deadline)

    @property
    def is_retired(self) -> bool:
        """Say whether the listening sockets live on elsewhere, and only their accepted connections are left."""
        return self._last_request_s < math.inf

    @property
    def is_ending(self) -> bool:
        """Say whether the next answer of each connection is its last."""
        return self.draining or self.is_retired

    # --- places

    async def take_place(self, address: str = "") -> ConnectionPlace:
        """Return a place as soon as there is one."""
        while self._taken >= self._most:
            self._full.warn(
                "all %d connections are in use, and the oldest idle ones are closed for new ones", self._most
            )
            wait_s = self._make_room(_any_place)
            if wait_s:
                with trio.move_on_after(wait_s):
                    await self._acceptors.park()
        return self.add_place(address)

    def add_place(self, address: str = "") -> ConnectionPlace:
        """Return a place even if none is free."""
        place = ConnectionPlace(address)
        self.open_connections += 1
        self._taken += 1
        self._of_address[address] += 1
        return place

    def give_back(self, place: ConnectionPlace) -> None:
        """Note that the connection of `place` is closed."""
        self.open_connections -= 1
        self._uncount(place)

    def places_soon(self, most: int) -> int:
        """Return how many connections can get a place at once, at most `most`."""
        free = max(0, self._most - self._taken)
        latest_s = trio.current_time() - PATIENCE_S
        return min(most, free + sum(wait.since_s <= latest_s for wait in islice(self._idle, most)))

    def has_room_for(self, address: str) -> bool:
        """Say whether `address` can have one more connection, after its oldest idle one has been closed if necessary."""
        if not address or self._of_address[address] < self.most_of_address:
            return True
        return self._make_room(lambda place: place.address == address) == 0

    def make_room(self) -> None:
        """Close the oldest idle connection, if there is one: the process has no descriptors left."""
        self._make_room(_any_place)

    def _make_room(self, concerns: Callable[[ConnectionPlace], bool]) -> float:
        """Tell one connection to give way, and return 0; if none can, return the seconds until one can."""
        latest_s = trio.current_time() - PATIENCE_S
        soonest_s = math.inf
        for waits in (self._idle, self._in_head):
            wait = _first(waits, concerns, latest_s)
            if wait is None:
                continue
            if wait.since_s <= latest_s:
                self._uncount(wait.place)
                wait.scope.cancel()
                return 0.0
            soonest_s = min(soonest_s, max(_SHORTEST_S, wait.since_s - latest_s))
        return soonest_s

    def _uncount(self, place: ConnectionPlace) -> None:
        if not place.counts:
            return
        place.counts = False
        self._taken -= 1
        self._of_address[place.address] -= 1
        if not self._of_address[place.address]:
            del self._of_address[place.address]
        self._acceptors.unpark_all()

    # --- waiting

    @contextmanager
    def idle(
        self, place: ConnectionPlace, timeout_s: float, has_bytes: Callable[[], bool] = _no_bytes
    ) -> Iterator[None]:
        """Cancel the block after `timeout_s`, when the server ends, or when the connection gives way to a new one."""
        timeout_s = min(timeout_s, self._last_request_s)
        with trio.move_on_after(timeout_s) as scope, self._listed(self._idle, place, scope, has_bytes):
            if self.draining and not has_bytes():
                scope.cancel()
            yield

    @contextmanager
    def in_head(self, place: ConnectionPlace, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel `scope` when the connection gives way to a new one before the block ends, or when the drain has no more time."""
        with self._listed(self._in_head, place, scope, _no_bytes), self.arriving(scope):
            yield

    @contextmanager
    def arriving(self, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel `scope` when the drain has no more time for the bytes of a request that the block waits for."""
        scope.deadline = min(scope.deadline, self._arrived_by_s)
        self._arriving.add(scope)
        try:
            yield
        finally:
            self._arriving.discard(scope)

    def fault_of_late_arrival(self, what: str, setting: str, limit_ms: int) -> HttpFault:
        """Return the fault of a part of a request that did not arrive within its limit, or within that of the drain."""
        if trio.current_time() >= self._arrived_by_s:
            message = f"the server is shutting down, and the {what} did not arrive within {ARRIVAL_S:.0f} s; retry after a moment"
            return HttpFault(503, message, None, (("Retry-After", "1"),), "draining")
        return HttpFault(408, f"the {what} did not arrive within {limit_ms} ms ({setting})")

    @contextmanager
    def _listed(
        self, waits: dict[_Wait, None], place: ConnectionPlace, scope: trio.CancelScope, has_bytes: Callable[[], bool]
    ) -> Iterator[None]:
        wait = _Wait(place, scope, trio.current_time(), has_bytes)
        waits[wait] = None
        self._acceptors.unpark_all()
        try:
            yield
        finally:
            del waits[wait]

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Count one request as open."""
        self.open_requests += 1
        try:
            yield
        finally:
            self.open_requests -= 1


def _any_place(_: ConnectionPlace) -> bool:
    return True


def _first(waits: Iterable[_Wait], concerns: Callable[[ConnectionPlace], bool], latest_s: float) -> _Wait | None:
    """Return the oldest wait that can end; those since `latest_s` or longer are asked whether bytes have arrived."""
    for wait in waits:
        if wait.place.counts and concerns(wait.place) and not (wait.since_s <= latest_s and wait.has_bytes()):
            return wait
    return None
