"""One connection: keep-alive, HEAD, HTTP/1.0, headers of every answer, handlers that fail, and time-outs."""

import logging
from email.utils import parsedate_to_datetime

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.http.evil_streams import BrittleStream, TricklingStream
from tests.kit.http.memory_http import memory_server, read_available, statuses
from tlserve.config.tables.network import HttpSettings
from tlserve.http.client.connection import ResponseBroken
from tlserve.http.connection import Connection
from tlserve.http.exchange import Handler, Service
from tlserve.http.messages import HttpFault, Request, Response, render_plain_fault
from tlserve.http.responder import Responder
from tlserve.http.server_state import ServerState

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def echo(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, await request.read_body()))


async def stream_two(request: Request, responder: Responder) -> None:
    async with responder.stream(200, [("Content-Type", "text/plain")]) as body:
        await body.send(b"one")
        await body.send(b"")
        await body.send(b"two")


async def run_connection(stream: trio.abc.Stream, handler: Handler, settings: HttpSettings | None = None) -> None:
    service = Service(settings=settings or HttpSettings(), handler=handler, render_fault=render_plain_fault)
    await Connection(stream, service, ServerState()).run()


@pytest.mark.spec("HTTP-20")
async def test_every_answer_carries_a_date_and_the_servers_name() -> None:
    async with memory_server(echo) as server:
        for answer in (await server.request("GET", "/"), await server.request("GET", "/%zz")):
            assert answer.headers.get_all("server") == ("tlserve",)
            assert parsedate_to_datetime(answer.headers.get("date") or "").tzinfo is not None


@pytest.mark.spec("HTTP-21")
async def test_a_stream_is_one_chunk_and_one_write_per_send() -> None:
    stream = TricklingStream([GET], ends=False)
    release = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            assert len(stream.writes) == 1
            await body.send(b"one")
            assert stream.writes[1:] == [b"3\r\none\r\n"]
            await body.send(b"three")
        assert stream.writes[2:] == [b"5\r\nthree\r\n", b"0\r\n\r\n"]
        release.set()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_connection, stream, handler)
            await release.wait()
            scope.cancel()


@pytest.mark.spec("HTTP-21")
async def test_a_whole_answer_is_one_write() -> None:
    stream = TricklingStream([GET], ends=False)

    async def handler(request: Request, responder: Responder) -> None:
        await responder.send(Response(200, b"body"))

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_connection, stream, handler)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert len(stream.writes) == 1
    assert stream.writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert stream.writes[0].endswith(b"Content-Length: 4\r\n\r\nbody")


@pytest.mark.spec("HTTP-22")
@pytest.mark.parametrize("handler", [echo, stream_two])
async def test_head_has_the_headers_of_get_and_no_body(handler: Handler) -> None:
    async with memory_server(handler) as server:
        raw = await server.exchange([GET.replace(b"GET", b"HEAD") + GET])
    head, rest = raw.split(b"\r\n\r\n", 1)
    assert statuses(raw) == [200, 200]
    assert rest.split(b"\r\n\r\n")[0] == head
    assert b"Content-Length: 0" in head or b"Transfer-Encoding: chunked" in head


@pytest.mark.spec("HTTP-22")
async def test_head_of_a_whole_answer_has_the_length_of_get() -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.send(Response(200, b"12345"))

    async with memory_server(handler) as server:
        answer = await server.request("HEAD", "/")
    assert (answer.headers.get("content-length"), answer.body) == ("5", b"")


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_content_has_no_length_and_keeps_the_connection(status: int) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.send(Response(status, b"ignored"))

    async with memory_server(handler) as server:
        for _ in range(2):
            answer = await server.client.request("GET", "/")
            assert (answer.status, answer.body, "content-length" in answer.headers) == (status, b"", False)
        assert server.listener.accepted == 1


@pytest.mark.spec("HTTP-24")
async def test_http_1_0_gets_its_stream_without_chunks_up_to_the_close() -> None:
    async with memory_server(stream_two) as server:
        raw = await server.exchange([b"GET / HTTP/1.0\r\n\r\n"])
    head, body = raw.split(b"\r\n\r\n", 1)
    assert body == b"onetwo"
    assert b"onnection: close" in head
    assert b"Transfer-Encoding" not in head


@pytest.mark.spec("HTTP-24")
async def test_http_1_0_closes_even_when_it_asks_to_be_kept() -> None:
    async with memory_server(echo) as server:
        raw = await server.exchange([b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2])
    assert statuses(raw) == [200]
    assert b"onnection: close" in raw


@pytest.mark.spec("HTTP-20")
async def test_a_client_that_requests_close_gets_it() -> None:
    async with memory_server(echo) as server:
        raw = await server.exchange([b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET])
    assert statuses(raw) == [200]
    assert b"onnection: close" in raw


@pytest.mark.spec("HTTP-25")
async def test_a_fault_of_the_handler_is_rendered_and_the_connection_is_kept() -> None:
    async def handler(request: Request, responder: Responder) -> None:
        raise HttpFault(429, "later", headers=[("Retry-After", "3")])

    async with memory_server(handler) as server:
        for _ in range(2):
            answer = await server.client.request("POST", "/", body=b"small and unread")
            assert (answer.status, answer.headers.get("retry-after"), answer.body) == (429, "3", b"later\n")
            assert "connection" not in answer.headers
        assert server.listener.accepted == 1


@pytest.mark.spec("HTTP-27")
async def test_a_large_unread_body_ends_the_connection_after_the_answer() -> None:
    async def handler(request: Request, responder: Responder) -> None:
        raise HttpFault(404, "no")

    async with memory_server(handler) as server:
        answer = await server.client.request("POST", "/", body=b"x" * 100_000)
        assert (answer.status, answer.headers.get("connection")) == (404, "close")


@pytest.mark.spec("HTTP-25")
async def test_a_handler_that_fails_is_a_logged_500_and_the_connection_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        raise RuntimeError("secret")

    async with memory_server(handler) as server:
        for _ in range(2):
            answer = await server.client.request("GET", "/x")
            assert answer.status == 500
            assert b"secret" not in answer.body
        assert server.listener.accepted == 1
    (record, _) = caplog.records
    assert (record.name, record.levelno, "RuntimeError: secret" in caplog.text) == ("tlserve.http", logging.ERROR, True)


@pytest.mark.spec("HTTP-25")
async def test_a_handler_that_answers_nothing_is_a_500() -> None:
    async def handler(request: Request, responder: Responder) -> None:
        assert not responder.started

    async with memory_server(handler) as server:
        assert (await server.request("GET", "/")).status == 500


async def test_a_header_that_cannot_be_sent_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.send(Response(200, b"", [("X", "a\r\nSet-Cookie: b")]))

    async with memory_server(handler) as server:
        answer = await server.request("GET", "/")
    assert (answer.status, "set-cookie" in answer.headers) == (500, False)
    assert "failed" in caplog.text


@pytest.mark.spec("HTTP-26")
@pytest.mark.parametrize("error", [RuntimeError("late"), HttpFault(400, "late")])
async def test_a_stream_whose_handler_fails_is_cut_without_its_final_chunk(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            await body.send(b"begun")
            raise error

    async with memory_server(handler) as server:
        answer = await server.client.open("GET", "/")
        assert await answer.receive() == b"begun"
        with pytest.raises(ResponseBroken):
            await answer.receive()
    assert "late" in caplog.text


@pytest.mark.spec("HTTP-29")
async def test_the_caller_renders_faults_also_without_a_request() -> None:
    seen: list[Request | None] = []

    def render(fault: HttpFault, request: Request | None) -> Response:
        seen.append(request)
        return Response(fault.status, b"{}", [("X-Request-Id", "7")])

    async def handler(request: Request, responder: Responder) -> None:
        raise HttpFault(404, "no")

    async with memory_server(handler, render_fault=render) as server:
        assert (await server.request("GET", "/")).headers.get("x-request-id") == "7"
        assert b"X-Request-Id: 7" in await server.exchange([b"garbage\r\n"])
    assert [request and request.path for request in seen] == ["/", None]


async def test_a_renderer_that_fails_ends_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    def render(fault: HttpFault, request: Request | None) -> Response:
        raise RuntimeError("no words")

    async with memory_server(echo, render_fault=render) as server:
        assert await server.exchange([b"garbage\r\n"]) == b""
        assert (await server.request("GET", "/")).status == 200
    assert "no words" in caplog.text


SETTINGS = HttpSettings(header_timeout_ms=1000, body_timeout_ms=2000, idle_timeout_ms=3000)


@pytest.mark.spec("HTTP-14", "HTTP-48")
@pytest.mark.parametrize(
    ("sent", "answer", "after_s"),
    [
        (b"", [], 3),
        (b"\r\n", [], 3),
        (b"\r", [], 3),
        (b"G", [408], 1),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", [408], 1),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc", [408], 2),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", [408], 2),
        (GET, [200], 3),
        (GET + b"\r\n", [200], 3),
        (GET + b"G", [200, 408], 1),
    ],
)
async def test_every_wait_ends_with_the_right_answer(
    sent: bytes, answer: list[int], after_s: float, autojump_clock: MockClock
) -> None:
    async with memory_server(echo, SETTINGS) as server:
        stream = server.connect_raw()
        start_s = trio.current_time()
        await stream.send_all(sent)
        received = b""
        while data := await stream.receive_some():
            received += data
        assert trio.current_time() - start_s == pytest.approx(after_s)
        assert statuses(received) == answer


@pytest.mark.spec("HTTP-48", "HTTP-49")
async def test_empty_lines_do_not_keep_an_idle_connection(autojump_clock: MockClock) -> None:
    async with memory_server(echo, SETTINGS) as server:
        stream = server.connect_raw()
        with trio.move_on_after(3.5) as dripping:
            while True:
                await stream.send_all(b"\r\n")
                with trio.move_on_after(0.7):
                    if await stream.receive_some() == b"":
                        break
        assert not dripping.cancelled_caught


@pytest.mark.spec("HTTP-49")
async def test_a_drip_of_header_bytes_does_not_extend_the_header_time(autojump_clock: MockClock) -> None:
    async with memory_server(echo, SETTINGS) as server:
        stream = server.connect_raw()
        for byte in b"GET / H":
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.15)
        assert statuses(await read_available(stream)) == [408]


async def test_an_unread_body_that_never_comes_ends_the_connection_in_time(autojump_clock: MockClock) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        raise HttpFault(404, "no")

    async with memory_server(handler, SETTINGS) as server:
        stream = server.connect_raw()
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        received = b""
        while data := await stream.receive_some():
            received += data
        assert statuses(received) == [404]
        assert trio.current_time() == pytest.approx(2)


@pytest.mark.spec("HTTP-42")
@pytest.mark.parametrize("breaks_at", range(12))
async def test_a_reset_at_any_operation_ends_only_the_connection(breaks_at: int, autojump_clock: MockClock) -> None:
    requests = GET + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" + GET + b"garbage\r\n"
    for handler in (echo, stream_two):
        inner = TricklingStream(requests[place : place + 20] for place in range(0, len(requests), 20))
        await run_connection(BrittleStream(inner, breaks_at), handler)
        assert inner.closed


async def test_the_body_can_be_read_twice_and_its_fault_is_the_same_twice() -> None:
    async def handler(request: Request, responder: Responder) -> None:
        faults = []
        for _ in range(2):
            try:
                await request.read_body()
            except HttpFault as fault:
                faults.append(fault.status)
        await responder.send(Response(200, (await request.read_body()) if not faults else repr(faults).encode()))

    async with memory_server(handler, HttpSettings(max_body_bytes=4)) as server:
        assert (await server.request("POST", "/", body=b"abcd")).body == b"abcd"
        assert (await server.request("POST", "/", body=b"abcde")).body == b"[413, 413]"


async def test_a_handler_sees_all_parts_of_a_request() -> None:
    seen: list[Request] = []

    async def handler(request: Request, responder: Responder) -> None:
        seen.append(request)
        await responder.send(Response(200))

    async with memory_server(handler) as server:
        await server.request("PUT", "/a%20b?c=%20", [("X-Name", "caf\u00e9"), ("x-name", "2")])
    (request,) = seen
    assert (request.method, request.target, request.path, request.query) == ("PUT", "/a%20b?c=%20", "/a b", "c=%20")
    assert request.headers.get_all("X-NAME") == ("caf\u00e9", "2")
    assert request.http_version == "1.1"
