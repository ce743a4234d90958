"""The whole server without sockets: a real `Server` behind a listener whose connections are pairs of memory streams.

    async with memory_server(handler, settings) as server:
        answer = await server.client.request("POST", "/x", headers, body)     # one connection, kept alive
        other = server.connect()                                              # a further HttpClient
        raw = server.connect_raw()                                            # a stream to write any bytes to
        await other.disconnect()                                              # close both directions at once

Nothing here waits for real time: with an autojump clock every time-out of the server fires at once. The streams hold any
number of bytes; `connect_raw(lockstep=True)` gives one whose writer waits for the reader, a client that does not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio
import trio.testing

from tlserve.config.tables.network import HttpSettings
from tlserve.http.client.connection import HttpClient, HttpResponse
from tlserve.http.exchange import Handler, RenderFault
from tlserve.http.messages import render_plain_fault
from tlserve.http.server import Server


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """A listener that `connect` gives connections to; connecting after its close raises `BrokenResourceError`."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](math.inf)
        self.accepted = 0

    def connect(self, pair: tuple[trio.abc.Stream, trio.abc.Stream] | None = None) -> trio.abc.Stream:
        ours, theirs = pair or trio.testing.memory_stream_pair()
        self._send.send_nowait(theirs)
        return ours

    async def accept(self) -> trio.abc.Stream:
        stream = await self._receive.receive()
        self.accepted += 1
        return stream

    async def aclose(self) -> None:
        await self._receive.aclose()


class MemoryClient(HttpClient):
    """A client that can leave at a chosen moment."""

    async def disconnect(self) -> None:
        """Leave: the server reads the end of the input, and can no longer send."""
        await trio.aclose_forcefully(self.stream)

    async def half_close(self) -> None:
        """End our side only, as `shutdown(SHUT_WR)` does."""
        assert isinstance(self.stream, trio.StapledStream)
        await self.stream.send_eof()


class MemoryServer:
    """A running server and the ways to reach it. `client` is one connection that is opened when it is first used."""

    def __init__(self, server: Server, listener: MemoryListener, ended: trio.Event) -> None:
        self.server = server
        self.listener = listener
        self.ended = ended
        self._client: MemoryClient | None = None

    @property
    def client(self) -> MemoryClient:
        self._client = self._client or self.connect()
        return self._client

    def connect(self) -> MemoryClient:
        return MemoryClient(self.connect_raw())

    def connect_raw(self, *, lockstep: bool = False) -> trio.abc.Stream:
        return self.listener.connect(trio.testing.lockstep_stream_pair() if lockstep else None)

    async def request(
        self, method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b""
    ) -> HttpResponse:
        """Ask over a new connection."""
        async with self.connect() as client:
            return await client.request(method, target, headers, body)

    async def exchange(self, pieces: Iterable[bytes]) -> bytes:
        """Send `pieces`, each only when the server waits for more, and return all it answers until it closes or waits."""
        stream = self.connect_raw()
        for piece in pieces:
            try:
                await stream.send_all(piece)
            except trio.BrokenResourceError:
                break
            await trio.testing.wait_all_tasks_blocked()
        return await read_available(stream)


async def read_available(stream: trio.abc.Stream) -> bytes:
    """Return the bytes of `stream` until it ends or every task waits; then close it."""
    received = bytearray()
    with trio.CancelScope() as reading:

        async def stop_when_all_wait() -> None:
            await trio.testing.wait_all_tasks_blocked()
            reading.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_when_all_wait)
            while data := await stream.receive_some(65_536):
                received += data
            nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)
    return bytes(received)


@asynccontextmanager
async def memory_server(
    handler: Handler,
    settings: HttpSettings | None = None,
    render_fault: RenderFault = render_plain_fault,
    *,
    on_made: Callable[[Server], None] = lambda _: None,
) -> AsyncIterator[MemoryServer]:
    """Serve `handler` inside the block; leaving it cuts open connections. `on_made` gets the server before it serves."""
    server = Server(settings or HttpSettings(), handler, render_fault)
    on_made(server)
    listener, ended = MemoryListener(), trio.Event()

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        await server.serve([listener], task_status=task_status)
        ended.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        yield MemoryServer(server, listener, ended)
        nursery.cancel_scope.cancel()


def undated(answer: bytes) -> bytes:
    """Return raw answers without their Date fields, so that two of them can be compared."""
    return re.sub(rb"Date: [^\r\n]*\r\n", b"", answer)


def statuses(answer: bytes) -> list[int]:
    """Return the statuses of all answers in raw bytes, interim ones too."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Z]", answer)]
