"""A node behind the real HTTP server over memory streams, and links to it whose connections the test breaks.

async with http_node(Script(token_s=1)) as at:
    events = await follow(at.link(), request)
    at.cut_connections()                      # every open connection ends, as when a router dies
    at.listens = False                        # no connection is accepted
    at.answers = False                        # connections are accepted, but not answered
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from tests.kit.http.memory_http import MemoryServer, memory_server
from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tlserve.config.tables.network import HttpSettings
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.http.node_routes import add_node_routes, make_node_handler
from tlserve.fleet.node.service import NodeService
from tlserve.fleet.remote_node import USUAL_TIMES, CallTimes
from tlserve.http.messages import Headers, HttpFault, Request, Response
from tlserve.http.responder import Responder

URL = "http://node:8000"


@attrs.define(eq=False)
class HttpNode:
    """A node, its server, and the network between them and a head."""

    backend: ScriptedBackend
    service: NodeService
    server: MemoryServer
    listens: bool = True
    answers: bool = True
    opened: int = 0
    _streams: list[trio.abc.Stream] = attrs.field(factory=list)

    def link(self, key: str = "", times: CallTimes = USUAL_TIMES) -> HttpLink:
        return HttpLink(URL, key=key, times=times, open_stream=self.open_stream)

    async def open_stream(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not self.listens:
            raise ConnectionRefusedError("nothing listens")
        self.opened += 1
        if not self.answers:
            ours, theirs = trio.testing.memory_stream_pair()
            self._streams.append(theirs)
            return ours
        self._streams.append(self.server.connect_raw())
        return self._streams[-1]

    async def cut_connections(self) -> None:
        """End all connections: their readers see the end of the input."""
        for stream in self._streams:
            assert isinstance(stream, trio.StapledStream)
            await trio.aclose_forcefully(stream)
        self._streams.clear()


async def plain_api(request: Request, responder: Responder) -> None:
    """The API next to the node."""
    await responder.send(Response(200, b"the api"))


def key_guard(key: str) -> Callable[[Headers], None]:
    def guard(headers: Headers) -> None:
        if headers.get("authorization") != f"Bearer {key}":
            raise HttpFault(401, "no key")

    return guard


@asynccontextmanager
async def http_node(script: Script | None = None, *, key: str = "", **settings: Any) -> AsyncIterator[HttpNode]:
    """Run a node over a scripted backend for the block; `settings` are those of [http]."""
    backend = ScriptedBackend(script or Script(), attrs.evolve(INFO, context_tokens=2000))
    service = NodeService(backend, node=URL, slots=2)
    handler = add_node_routes(plain_api, make_node_handler(service, key_guard(key) if key else lambda _: None))
    async with trio.open_nursery() as nursery, memory_server(handler, HttpSettings(**settings)) as server:
        await nursery.start(service.run)
        yield HttpNode(backend, service, server)
        nursery.cancel_scope.cancel()
