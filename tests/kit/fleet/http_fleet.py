"""A head over nodes with engine threads, every call through the real HTTP server and link, over memory streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from tests.kit.engine.local_backend import local_backend
from tests.kit.http.memory_http import memory_server
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.overview import FleetModel
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.http.node_routes import make_node_handler
from tlserve.fleet.http.static_directory import StaticDirectory
from tlserve.fleet.node.service import NodeService
from tlserve.http.client.origin import OpenStream

MODEL = FleetModel(model_id="succ", max_context=4096, vocabulary_size=256, embedding_size=256)


@asynccontextmanager
async def http_fleet(nodes: int = 2) -> AsyncIterator[FleetBackend]:
    """Run `nodes` nodes of the successor model and a head over them for the block."""
    async with AsyncExitStack() as stack:
        openers = {f"http://n{number}": await _start_node(stack, f"n{number}") for number in range(nodes)}
        directory = StaticDirectory(openers, lambda url: HttpLink(url, open_stream=openers[url]))
        stack.push_async_callback(directory.aclose)
        nursery = await stack.enter_async_context(_nursery())
        head = FleetBackend(directory, MODEL)
        await nursery.start(head.run)
        await head.wait_ready(nodes)
        yield head


async def _start_node(stack: AsyncExitStack, name: str) -> OpenStream:
    """Start one node; return the function that connects to it."""
    nursery = await stack.enter_async_context(_nursery())
    backend = await stack.enter_async_context(local_backend())
    service = NodeService(backend, node=name, slots=4)
    await nursery.start(service.run)
    server = await stack.enter_async_context(memory_server(make_node_handler(service, lambda _: None)))

    async def open_stream() -> trio.abc.Stream:
        return server.connect_raw()

    return open_stream


@asynccontextmanager
async def _nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()
