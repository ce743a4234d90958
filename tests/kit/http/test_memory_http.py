"""The in-memory server behaves like one over sockets, and its clients can leave at a chosen moment."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.kit.http.memory_http import memory_server, read_available, statuses, undated
from tlserve.http.client.connection import ResponseBroken
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder


async def echo(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, await request.read_body()))


async def test_requests_of_the_client_share_one_connection() -> None:
    async with memory_server(echo) as server:
        for body in (b"one", b"two", b""):
            assert (await server.client.request("POST", "/", body=body)).body == body
        assert server.listener.accepted == 1


async def test_every_connect_opens_a_new_connection() -> None:
    async with memory_server(echo) as server:
        assert (await server.request("POST", "/", body=b"a")).body == b"a"
        assert (await server.request("POST", "/", body=b"b")).body == b"b"
        assert server.listener.accepted == 2


async def test_a_streamed_answer_is_read_line_by_line_as_it_comes() -> None:
    send, receive = trio.open_memory_channel[bytes](0)

    async def relay(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            async for piece in receive:
                await body.send(piece)

    async with memory_server(relay) as server:
        answer = await server.client.open("GET", "/")
        lines = answer.lines()
        await send.send(b"a\nb")
        assert await anext(lines) == b"a"
        await send.send(b"c\nrest")
        assert await anext(lines) == b"bc"
        await send.aclose()
        assert [line async for line in lines] == [b"rest"]


@pytest.mark.parametrize("leave", ["disconnect", "half_close"])
async def test_leaving_cancels_the_handler(leave: str) -> None:
    cancelled = trio.Event()

    async def wait(request: Request, responder: Responder) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with memory_server(wait) as server, trio.open_nursery() as nursery:
        client = server.connect()

        async def ask() -> None:
            with pytest.raises(ResponseBroken):
                await client.request("GET", "/")

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        await getattr(client, leave)()
        await cancelled.wait()


async def test_exchange_returns_the_bytes_before_the_server_waits_again() -> None:
    async with memory_server(echo) as server:
        answer = await server.exchange([b"GET / HT", b"TP/1.1\r\nHost: x\r\n\r\n"])
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_read_available_ends_at_the_end_of_a_stream() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"all")
    await theirs.aclose()
    assert await read_available(ours) == b"all"


async def test_connecting_to_a_drained_server_is_refused() -> None:
    async with memory_server(echo) as server:
        server.server.drain()
        await server.ended.wait()
        with pytest.raises(trio.BrokenResourceError):
            server.connect()


def test_statuses_and_dates_are_found_in_raw_answers() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nDate: now\r\nX: y\r\n\r\n"
    assert statuses(raw) == [100, 200]
    assert undated(raw) == b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\n\r\n"
