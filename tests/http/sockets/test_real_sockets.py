"""The server over real sockets of the loopback, for behaviour that memory streams do not have."""

import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio

from tests.kit.http.loopback import on_loopback
from tests.kit.http.memory_http import statuses
from tlserve.config.tables.network import HttpSettings
from tlserve.http import server_state
from tlserve.http.client.connection import connect
from tlserve.http.exchange import Handler
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder
from tlserve.http.server import Server
from tlserve.http.sockets.listener import bound_addresses, open_listeners
from tlserve.http.sockets.stream_listener import StreamListener

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def socket_server(handler: Handler, settings: HttpSettings | None = None) -> AsyncIterator[tuple[Server, int]]:
    server = Server(settings or HttpSettings(), handler)
    async with on_loopback(server) as port:
        yield server, port


async def echo(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, await request.read_body(), [("X-Peer", request.peer)]))


async def test_requests_are_answered_and_the_peer_is_known() -> None:
    async with socket_server(echo) as (_, port), await connect("127.0.0.1", port) as client:
        for body in (b"one", b"two" * 100_000):
            answer = await client.request("POST", "/", body=body)
            assert answer.body == body
        assert isinstance(client.stream, trio.SocketStream)
        host, own_port = client.stream.socket.getsockname()
        assert answer.headers.get("x-peer") == f"{host}:{own_port}"


async def test_small_writes_are_not_delayed() -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.send(Response(200))

    (listener,) = await open_listeners("127.0.0.1:0")
    assert isinstance(listener, StreamListener)
    client = await trio.open_tcp_stream(*listener.socket.getsockname())
    accepted = await listener.accept()
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    for stream in (accepted, client, listener):
        await stream.aclose()


@pytest.mark.spec("HTTP-30")
@pytest.mark.parametrize("leave", ["close", "half-close", "reset"])
async def test_a_departure_is_noticed_while_nothing_is_sent(leave: str) -> None:
    started, cancelled = trio.Event(), trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with socket_server(handler) as (_, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(GET + GET)
        await started.wait()
        if leave == "half-close":
            await stream.send_eof()
        else:
            if leave == "reset":
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await stream.aclose()
        await cancelled.wait()
        await stream.aclose()


@pytest.mark.spec("HTTP-26")
async def test_a_cut_stream_is_a_reset_even_for_a_client_of_http_1_0() -> None:
    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            await body.send(b"begun")
            await trio.sleep_forever()

    async with socket_server(handler) as (server, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
        received = b""
        while not received.endswith(b"begun"):
            received += await stream.receive_some()
        server.cut()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        await stream.aclose()


@pytest.mark.spec("HTTP-53")
async def test_a_client_that_sends_a_large_body_before_it_reads_still_gets_its_413() -> None:
    async with (
        socket_server(echo, HttpSettings(max_body_bytes=1000)) as (_, port),
        await connect("127.0.0.1", port) as client,
    ):
        answer = await client.request("POST", "/", body=bytes(5_000_000))
        assert (answer.status, answer.headers.get("connection")) == (413, "close")


async def test_a_reader_that_does_not_read_is_cut_and_the_next_one_is_served() -> None:
    cancelled = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        if request.path == "/endless":
            try:
                async with responder.stream(200) as body:
                    while True:
                        await body.send(bytes(65_536))
            finally:
                cancelled.set()
        await responder.send(Response(200))

    async with socket_server(handler, HttpSettings(write_timeout_ms=50)) as (_, port):
        deaf = await connect("127.0.0.1", port)
        await deaf.open("GET", "/endless")
        await cancelled.wait()
        async with await connect("127.0.0.1", port) as client:
            assert (await client.request("GET", "/")).status == 200
        await deaf.aclose()


async def test_a_drain_refuses_new_connections_and_finishes_open_requests() -> None:
    release = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            await body.send(b"begun")
            await release.wait()
            await body.send(b"ended")

    async with socket_server(handler) as (server, port), await connect("127.0.0.1", port) as client:
        answer = await client.open("GET", "/")
        assert await answer.receive() == b"begun"
        server.drain()
        with pytest.raises(OSError, match="connect"):
            while True:
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
        release.set()
        assert await answer.read() == b"ended"


async def test_many_connections_at_once_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        server_state, "PATIENCE_S", 60.0
    )  # a client of a busy machine may need long to send its request
    answers: list[bytes] = []

    async def ask(port: int, body: bytes) -> None:
        async with await connect("127.0.0.1", port) as client:
            answers.append((await client.request("POST", "/", body=body)).body)

    async with socket_server(echo, HttpSettings(max_connections=8)) as (_, port), trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, port, b"%d" % number)
    assert sorted(answers) == sorted(b"%d" % number for number in range(100))


@pytest.mark.parametrize("cut_at", [0, 1, 5, 20, 30, 45, 60])
async def test_a_client_that_resets_at_any_byte_does_no_harm(cut_at: int) -> None:
    data = GET + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    async with socket_server(echo) as (_, port):
        for _ in range(5):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if cut_at:
                await stream.send_all(data[:cut_at])
            await stream.aclose()
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(data)
        received = b""
        while statuses(received) != [200, 200] or not received.endswith(b"abc"):
            received += await stream.receive_some()
        await stream.aclose()


@pytest.mark.spec("HTTP-75")
@pytest.mark.parametrize("limit", [1024, 30])
async def test_waiting_clients_are_accepted_together_up_to_the_limit(limit: int) -> None:
    """One connection in each turn of the event loop would keep the last client waiting for as many turns as there are clients."""
    clients = 60
    server = Server(HttpSettings(max_connections=limit), echo)
    listeners = await open_listeners("127.0.0.1:0")
    port = int(bound_addresses(listeners)[0].rsplit(":", 1)[1])
    with ExitStack() as stack, trio.fail_after(20):
        for _ in range(clients):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            for _ in range(8):
                await trio.lowlevel.checkpoint()
            assert server.open_connections == min(clients, limit)
            server.cut()
