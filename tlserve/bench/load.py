"""Two kinds of load: a closed loop of clients, and an open loop of arrivals.

Owns the times at which requests are sent. In a closed loop each client sends its next request when its last one has ended, so
that a slow server gets fewer requests: it shows the throughput of a server. In an open loop requests arrive independently of the
server, at exponential intervals (a Poisson process): it shows the wait of users, and times count from the arrival. Does not know
the content of requests.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import attrs
import trio

from tlserve.bench.samples import Outcome

Send = Callable[[bytes, float], Awaitable[Outcome]]
"""Sends a body that is due at a time of this process's clock."""


@attrs.frozen
class Closed:
    """`streams` clients at once."""

    streams: int

    def describe(self) -> dict[str, float]:
        """Return the load as it is written in a report."""
        return {"streams": self.streams}


@attrs.frozen
class Open:
    """`rate` arrivals per second on average, at times that `seed` decides."""

    rate: float
    seed: int = 0

    def describe(self) -> dict[str, float]:
        """Return the load as it is written in a report."""
        return {"rate": self.rate}


Load = Closed | Open


def arrivals(load: Open, count: int) -> Iterator[float]:
    """Yield the seconds after the start at which `count` requests arrive, the first one at 0."""
    source = random.Random(load.seed)
    at_s = 0.0
    for _ in range(count):
        yield at_s
        at_s += source.expovariate(load.rate)


async def run_load(load: Load, bodies: Sequence[bytes], send: Send, done: Callable[[], None]) -> list[Outcome]:
    """Send all `bodies` under `load` and return their outcomes in the order in which they ended."""
    if isinstance(load, Closed):
        return await _run_closed(load, bodies, send, done)
    return await _run_open(load, bodies, send, done)


async def _run_closed(load: Closed, bodies: Sequence[bytes], send: Send, done: Callable[[], None]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    left = iter(bodies)

    async def client() -> None:
        for body in left:
            outcomes.append(await send(body, time.perf_counter()))
            done()

    async with trio.open_nursery() as nursery:
        for _ in range(min(load.streams, len(bodies))):
            nursery.start_soon(client)
    return outcomes


async def _run_open(load: Open, bodies: Sequence[bytes], send: Send, done: Callable[[], None]) -> list[Outcome]:
    outcomes: list[Outcome] = []

    async def request(body: bytes, due_s: float) -> None:
        outcomes.append(await send(body, due_s))
        done()

    began_s, began = time.perf_counter(), trio.current_time()
    async with trio.open_nursery() as nursery:
        for body, at_s in zip(bodies, arrivals(load, len(bodies)), strict=True):
            await trio.sleep_until(began + at_s)
            nursery.start_soon(request, body, began_s + at_s)
    return outcomes
