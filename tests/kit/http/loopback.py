"""A server of HTTP on a free port of the loopback, for the time of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from tlserve.http.server import Listener, Server
from tlserve.http.sockets.listener import bound_addresses, open_listeners

PATIENCE_S = 20.0


@asynccontextmanager
async def on_loopback(
    server: Server, wrap: Callable[[Sequence[Listener]], Sequence[Listener]] = lambda listeners: listeners
) -> AsyncIterator[int]:
    """Run `server` for the block and yield its port, then cut it; `wrap` puts other listeners around those of the port."""
    listeners = await open_listeners("127.0.0.1:0")
    port = int(bound_addresses(listeners)[0].rsplit(":", 1)[1])
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, wrap(listeners))
            yield port
            server.cut()
