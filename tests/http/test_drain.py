"""Stopping: drain, cut, and the limit of open connections."""

import errno

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.http.memory_http import MemoryListener, MemoryServer, memory_server, read_available, statuses
from tlserve.config.tables.network import HttpSettings
from tlserve.http.client.connection import ResponseBroken
from tlserve.http.messages import HttpFault, Request, Response
from tlserve.http.responder import Responder
from tlserve.http.server import Server

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Application:
    """Streams under /stream until `release`; elsewhere 200, or 503 in a drain."""

    def __init__(self) -> None:
        self.release = trio.Event()
        self.server: Server | None = None
        self.cut: list[str] = []

    def knows(self, server: Server) -> None:
        self.server = server

    async def __call__(self, request: Request, responder: Responder) -> None:
        if request.path == "/stream":
            await self.stream(responder)
        elif self.server is not None and self.server.draining:
            raise HttpFault(503, "draining", headers=[("Retry-After", "1")])
        else:
            await responder.send(Response(200))

    async def stream(self, responder: Responder) -> None:
        async with responder.stream(200) as body:
            await body.send(b"begun")
            try:
                await self.release.wait()
            except trio.Cancelled:
                self.cut.append("cancelled")
                raise
            await body.send(b"ended")


async def open_stream(server: MemoryServer) -> trio.abc.Stream:
    stream = server.connect_raw()
    await stream.send_all(GET.replace(b"/ ", b"/stream "))
    await wait_all_tasks_blocked()
    return stream


@pytest.mark.spec("HTTP-40")
async def test_a_drain_closes_idle_connections_and_lets_open_requests_finish(autojump_clock: MockClock) -> None:
    application = Application()
    async with memory_server(application, on_made=application.knows) as server:
        streaming = await open_stream(server)
        idle = server.connect_raw()
        in_head = server.connect_raw()
        used = server.connect()
        assert (await used.request("GET", "/")).status == 200
        await in_head.send_all(GET[:10])
        await wait_all_tasks_blocked()
        assert server.server.open_connections == 4
        assert server.server.open_requests == 2

        server.server.drain()
        assert await idle.receive_some() == b""
        assert await used.stream.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            server.connect_raw()
        await in_head.send_all(GET[10:])
        answer = await read_available(in_head)
        assert statuses(answer) == [503]
        assert b"Connection: close" in answer
        assert not server.ended.is_set()

        application.release.set()
        assert (await read_available(streaming)).endswith(b"5\r\nended\r\n0\r\n\r\n")
        await server.ended.wait()
        assert trio.current_time() == 0
    assert application.cut == []


@pytest.mark.spec("HTTP-56")
async def test_a_request_pipelined_behind_a_stream_is_answered_in_a_drain() -> None:
    application = Application()
    async with memory_server(application, on_made=application.knows) as server:
        streaming = await open_stream(server)
        await streaming.send_all(GET + GET)
        await wait_all_tasks_blocked()
        server.server.drain()
        application.release.set()
        assert statuses(await read_available(streaming)) == [200, 503]
        await server.ended.wait()


async def test_a_drain_with_nothing_open_ends_at_once() -> None:
    async with memory_server(Application()) as server:
        server.server.drain()
        server.server.drain()
        await server.ended.wait()


async def test_a_drain_before_the_start_serves_nothing() -> None:
    async with memory_server(Application(), on_made=Server.drain) as server:
        await server.ended.wait()


@pytest.mark.spec("HTTP-41")
async def test_a_cut_without_grace_ends_requests_without_their_final_chunk(
    autojump_clock: MockClock,
) -> None:
    application = Application()
    async with memory_server(application, on_made=application.knows) as server:
        client = server.connect()
        answer = await client.open("GET", "/stream")
        assert await answer.receive() == b"begun"
        server.server.cut()
        with pytest.raises(ResponseBroken):
            await answer.receive()
        await server.ended.wait()
        assert trio.current_time() == 0
    assert application.cut == ["cancelled"]


@pytest.mark.spec("HTTP-41")
async def test_a_cut_with_grace_lets_handlers_send_an_error_first(autojump_clock: MockClock) -> None:
    servers: list[Server] = []

    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            await servers[0].cutting.wait()
            await body.send(b"error")
            if request.path == "/stubborn":
                await trio.sleep_forever()

    async with memory_server(handler, on_made=servers.append) as server:
        good = await server.connect().open("GET", "/good")
        stubborn = await server.connect().open("GET", "/stubborn")
        server.server.drain()
        await wait_all_tasks_blocked()
        server.server.cut(grace_s=5)
        assert await good.read() == b"error"
        assert await stubborn.receive() == b"error"
        with pytest.raises(ResponseBroken):
            await stubborn.receive()
        assert trio.current_time() == pytest.approx(5)
        await server.ended.wait()


async def test_a_cut_also_closes_a_connection_that_lingers_after_its_answer() -> None:
    async with memory_server(Application()) as server:
        stream = server.connect_raw()
        await stream.send_all(b"garbage\r\n")
        await wait_all_tasks_blocked()
        await stream.send_all(b"is dropped while the server lingers")
        server.server.cut()
        await server.ended.wait()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"too late")
        assert statuses(await read_available(stream)) == [400]


@pytest.mark.spec("HTTP-42")
async def test_a_handler_that_fails_during_a_cut_does_not_end_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in the cleanup")

    async def handler(request: Request, responder: Responder) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_when_cancelled)
            nursery.start_soon(trio.sleep_forever)

    async with memory_server(handler) as server:
        await open_stream(server)
        server.server.cut()
        await server.ended.wait()
    assert "in the cleanup" in caplog.text


async def test_a_second_cut_never_extends_the_time(autojump_clock: MockClock) -> None:
    application = Application()
    async with memory_server(application, on_made=application.knows) as server:
        await open_stream(server)
        server.server.cut(grace_s=1)
        server.server.cut(grace_s=100)
        await server.ended.wait()
        assert trio.current_time() == pytest.approx(1)


async def test_cancelling_serve_ends_everything() -> None:
    application = Application()
    async with memory_server(application, on_made=application.knows) as server:
        await open_stream(server)
    assert application.cut == ["cancelled"]


@pytest.mark.spec("HTTP-16")
async def test_accepting_pauses_at_the_limit_of_open_connections() -> None:
    settings = HttpSettings(max_connections=2)
    async with memory_server(Application(), settings) as server:
        first, _ = await open_stream(server), await open_stream(server)
        waiting, _ = server.connect(), server.connect()
        await wait_all_tasks_blocked()
        assert (server.listener.accepted, server.server.open_connections) == (3, 2)
        await trio.aclose_forcefully(first)
        await wait_all_tasks_blocked()
        assert (server.listener.accepted, server.server.open_connections) == (4, 2)
        assert (await waiting.request("GET", "/")).status == 200


class ExhaustedListener(MemoryListener):
    """A listener of a machine that has no descriptors left for the first `failures` connections."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures = failures

    async def accept(self) -> trio.abc.Stream:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return await super().accept()


@pytest.mark.spec("HTTP-17")
async def test_without_free_descriptors_accepting_pauses_and_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener = ExhaustedListener(failures=3)
    server = Server(HttpSettings(), Application())
    server_side = MemoryServer(server, listener, trio.Event())
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [listener])
        assert (await server_side.request("GET", "/")).status == 200
        server.drain()
    assert trio.current_time() == pytest.approx(0.3)
    assert caplog.text.count("Too many open files") == 1


@pytest.mark.spec("LIFE-15")
async def test_a_retired_server_answers_one_more_request_of_each_connection(autojump_clock: MockClock) -> None:
    application = Application()
    async with memory_server(application) as server:
        silent, used, never = server.connect_raw(), server.connect(), server.connect_raw()
        streaming = await open_stream(server)
        assert (await used.request("GET", "/")).status == 200
        await server.server.retire(1.0)
        assert server.server.open_connections == 4
        await silent.send_all(GET)
        answer = await read_available(silent)
        assert statuses(answer) == [200]
        assert b"Connection: close" in answer
        last = await used.request("GET", "/")
        assert (last.status, last.headers.get("connection")) == (200, "close")
        started_s = trio.current_time()
        assert await never.receive_some() == b""
        assert trio.current_time() - started_s <= 1.0
        application.release.set()
        assert (await read_available(streaming)).endswith(b"0\r\n\r\n")
        await server.ended.wait()


@pytest.mark.spec("LIFE-15")
async def test_accepted_connections_without_a_place_are_answered_by_a_retired_server(autojump_clock: MockClock) -> None:
    application = Application()
    async with memory_server(application, HttpSettings(max_connections=1)) as server:
        streaming = await open_stream(server)
        waiting = server.connect_raw()
        await waiting.send_all(GET)
        await wait_all_tasks_blocked()
        await server.server.retire(1.0)
        assert statuses(await read_available(waiting)) == [200]
        application.release.set()
        await read_available(streaming)
        await server.ended.wait()


@pytest.mark.spec("HTTP-79")
@pytest.mark.parametrize(
    "half",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhal",
        GET[:-2],
    ],
)
@pytest.mark.parametrize("first", ["request", "drain"])
async def test_a_request_that_never_comes_whole_does_not_hold_the_drain(
    autojump_clock: MockClock, half: bytes, first: str
) -> None:
    async def echo(request: Request, responder: Responder) -> None:
        await responder.send(Response(200, await request.read_body()))

    async with memory_server(echo) as server:
        late = server.connect_raw()
        await late.send_all(half[:20] if first == "drain" else half)
        await wait_all_tasks_blocked()
        server.server.drain()
        if first == "drain":
            await late.send_all(half[20:])
        await trio.sleep(0.99)
        assert server.server.open_requests == 1
        await trio.sleep(0.02)
        assert server.server.open_requests == 0
        answer = await read_available(late)
        assert statuses(answer) == [503]
        assert b"shutting down" in answer
        await server.ended.wait()
