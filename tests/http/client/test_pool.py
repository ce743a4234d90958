"""Connections that are kept."""

import pytest
import trio
import trio.testing

from tests.kit.http.memory_http import memory_server
from tlserve.http.client import pool as client_pool
from tlserve.http.client.connection import ResponseBroken
from tlserve.http.client.pool import ClientPool
from tlserve.http.messages import Response


async def _echo(request, responder):
    await responder.send(Response(200, await request.read_body()))


async def test_successive_requests_share_a_connection_and_simultaneous_do_not(autojump_clock):
    async with memory_server(_echo) as server:
        pool = ClientPool(_opener(server), "node")
        for word in (b"one", b"two"):
            assert (await pool.request("POST", "/", (), word)).body == word
        assert server.listener.accepted == 1
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(pool.request, "POST", "/", (), b"x")
        assert server.listener.accepted == 3
        await pool.aclose()


async def test_a_connection_that_the_server_will_close_is_not_kept(autojump_clock):
    async def close(request, responder):
        await responder.send(Response(200, b"", [("Connection", "close")]))

    async with memory_server(close) as server:
        pool = ClientPool(_opener(server), "node")
        await pool.request("POST", "/")
        await pool.request("POST", "/")
        assert server.listener.accepted == 2


async def test_an_endless_answer_is_not_read_forever(autojump_clock, monkeypatch):
    monkeypatch.setattr(client_pool, "MAX_ANSWER_BYTES", 1000)

    async def pour(request, responder):
        async with responder.stream(200) as body:
            while True:
                await body.send(b"x" * 100)

    async with memory_server(pour) as server:
        with pytest.raises(ResponseBroken, match="larger than 1000 bytes"):
            await ClientPool(_opener(server), "node").request("POST", "/")


async def test_a_pool_that_was_closed_keeps_nothing(autojump_clock):
    async with memory_server(_echo) as server:
        pool = ClientPool(_opener(server), "node")
        await pool.aclose()
        await pool.request("POST", "/", (), b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert server.server.open_connections == 0


async def test_a_pool_closed_during_cancellation_leaves_no_connection_open(autojump_clock):
    async with memory_server(_echo) as server:
        pool = ClientPool(_opener(server), "node")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(pool.request, "POST", "/", (), b"x")
        with trio.CancelScope() as scope:
            scope.cancel()
            await pool.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server.server.open_connections == 0


def _opener(server):
    async def open_stream():
        return server.connect_raw()

    return open_stream
