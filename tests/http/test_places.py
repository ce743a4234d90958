"""Which connections are open: the limits, and the connection that gives way to a new one."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.http.loopback import on_loopback
from tests.kit.http.memory_http import memory_server, read_available, statuses
from tlserve.config.tables.network import HttpSettings
from tlserve.http.client.connection import HttpClient, connect
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder
from tlserve.http.server import Server
from tlserve.http.server_state import PATIENCE_S, ConnectionPlace, ServerState

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def answer(request: Request, responder: Responder) -> None:
    """Answer, but under /wait never."""
    if request.path == "/wait":
        await trio.sleep_forever()
    await responder.send(Response(200))


@pytest.mark.spec("HTTP-76")
async def test_the_oldest_idle_connection_gives_way_to_a_new_one(autojump_clock: MockClock) -> None:
    async with memory_server(answer, HttpSettings(max_connections=2)) as server:
        oldest, other = server.connect(), server.connect()
        for client in (oldest, other, oldest, other):
            assert (await client.request("GET", "/")).status == 200
            await trio.sleep(PATIENCE_S)
        assert (await server.connect().request("GET", "/")).status == 200
        assert trio.current_time() == 4 * PATIENCE_S
        assert await oldest.stream.receive_some() == b""
        assert (await other.request("GET", "/")).status == 200


@pytest.mark.spec("HTTP-76")
async def test_a_new_connection_has_a_second_for_its_request_before_it_gives_way(autojump_clock: MockClock) -> None:
    async with memory_server(answer, HttpSettings(max_connections=1)) as server:
        first = server.connect()
        await wait_all_tasks_blocked()
        assert (await server.request("GET", "/")).status == 200
        assert trio.current_time() == pytest.approx(PATIENCE_S)
        assert await first.stream.receive_some() == b""


@pytest.mark.spec("HTTP-76")
async def test_a_connection_with_a_request_does_not_give_way(autojump_clock: MockClock) -> None:
    async with memory_server(answer, HttpSettings(max_connections=1)) as server:
        busy, waiting = server.connect_raw(), server.connect_raw()
        await busy.send_all(GET.replace(b"/ ", b"/wait "))
        await waiting.send_all(GET)
        await trio.sleep(100)
        assert server.server.open_connections == 1
        await trio.aclose_forcefully(busy)
        assert statuses(await read_available(waiting)) == [200]


@pytest.mark.spec("HTTP-76")
async def test_without_an_idle_connection_slow_headers_give_way_with_408(autojump_clock: MockClock) -> None:
    async with memory_server(answer, HttpSettings(max_connections=1)) as server:
        slow = server.connect_raw()
        await slow.send_all(GET[:9])
        await wait_all_tasks_blocked()
        assert (await server.request("GET", "/")).status == 200
        assert trio.current_time() < 2 * PATIENCE_S
        assert statuses(await read_available(slow)) == [408]


async def test_a_connection_whose_request_has_arrived_does_not_give_way(autojump_clock: MockClock) -> None:
    state = ServerState(HttpSettings(max_connections=2))
    arrived, empty = await state.take_place(), await state.take_place()

    async def wait(place: ConnectionPlace, *, has_bytes: bool) -> None:
        with state.idle(place, 60, lambda: has_bytes):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(wait, arrived, has_bytes=True))
        await wait_all_tasks_blocked()
        nursery.start_soon(partial(wait, empty, has_bytes=False))
        await trio.sleep(PATIENCE_S)
        await wait_all_tasks_blocked()
        await state.take_place()
        assert (arrived.counts, empty.counts) == (True, False)
        nursery.cancel_scope.cancel()


@pytest.mark.spec("HTTP-78")
async def test_a_full_server_is_logged_once(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with memory_server(answer, HttpSettings(max_connections=1)) as server:
        for _ in range(20):
            assert (await server.connect().request("GET", "/")).status == 200
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "all 1 connections are in use" in caplog.text


# --- one address


@asynccontextmanager
async def limited_server(of_address: int) -> AsyncIterator[tuple[Server, int]]:
    """Serve on a loopback address that has a limit of its own."""
    settings = HttpSettings(max_connections_per_address=of_address)
    server = Server(settings, answer, is_trusted=lambda _: False)
    async with on_loopback(server) as port:
        yield server, port


async def waiting_client(port: int) -> HttpClient:
    client = await connect("127.0.0.1", port)
    await client.stream.send_all(GET.replace(b"/ ", b"/wait "))
    return client


@pytest.mark.spec("HTTP-77")
async def test_an_address_with_all_its_connections_in_use_gets_429(caplog: pytest.LogCaptureFixture) -> None:
    async with limited_server(3) as (server, port):
        clients = [await waiting_client(port) for _ in range(3)]
        for _ in range(5):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(GET)
            refusal = await stream.receive_some()
            assert statuses(refusal) == [429]
            assert b"max_connections_per_address" in refusal
            await stream.aclose()
        assert caplog.text.count("127.0.0.1 has 3 open connections") == 1
        assert server.open_requests == 3
        await trio.aclose_forcefully(clients[0].stream)
        while server.open_requests > 2:
            await trio.lowlevel.checkpoint()
        async with await connect("127.0.0.1", port) as client:
            assert (await client.request("GET", "/")).status == 200
        for one in clients[1:]:
            await trio.aclose_forcefully(one.stream)


@pytest.mark.spec("HTTP-77")
async def test_connections_of_this_machine_have_no_limit_of_their_own() -> None:
    server = Server(HttpSettings(max_connections_per_address=1), answer)
    async with on_loopback(server) as port:
        busy = await waiting_client(port)
        async with await connect("127.0.0.1", port) as client:
            assert (await client.request("GET", "/")).status == 200
        await trio.aclose_forcefully(busy.stream)


# --- the drain


@pytest.mark.spec("HTTP-40")
async def test_a_request_that_has_arrived_on_an_idle_connection_is_answered_in_a_drain() -> None:
    async with limited_server(0) as (server, port), await connect("127.0.0.1", port) as client:
        assert (await client.request("GET", "/")).status == 200
        assert isinstance(client.stream, trio.SocketStream)
        await client.stream.send_all(GET)
        server.drain()
        last = await client.stream.receive_some()
        assert statuses(last) == [200]
        assert b"Connection: close" in last
