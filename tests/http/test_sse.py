"""Events: their bytes, one write for all of a call, and pings only between them."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.http.evil_streams import TricklingStream
from tests.kit.http.memory_http import memory_server
from tlserve.config.tables.network import HttpSettings
from tlserve.http.client.connection import ResponseBroken
from tlserve.http.connection import Connection
from tlserve.http.exchange import Service
from tlserve.http.messages import Request, render_plain_fault
from tlserve.http.responder import Responder
from tlserve.http.server_state import ServerState
from tlserve.http.sse import DONE, PING, EventStream, comment, event

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def parse_events(stream: bytes) -> list[str]:
    """Read a stream by the standard (WHATWG HTML section 9.2.6): slow, independent, strict about our own rules."""
    events, data = [], []
    *lines, rest = stream.decode("utf-8").split("\n")
    assert rest == ""
    for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif line == "":
            events.extend(["\n".join(data)] if data else [])
            data = []
        else:
            assert line == ": ping"
            assert data == []
    assert data == []
    return events


@pytest.mark.spec("HTTP-50")
@given(st.lists(st.text().filter(lambda text: "\n" not in text and "\r" not in text)))
def test_an_event_is_read_as_it_was_written(payloads: list[str]) -> None:
    written = b"".join(map(event, payloads)) + PING + DONE
    assert parse_events(written) == [*payloads, "[DONE]"]


@pytest.mark.parametrize("payload", ["a\nb", "a\rb", b"a\n"])
def test_a_payload_with_a_line_break_is_refused(payload: str | bytes) -> None:
    with pytest.raises(ValueError, match="one line"):
        event(payload)


def test_bytes_and_text_make_the_same_event() -> None:
    assert event("é") == event("é".encode()) == b"data: \xc3\xa9\n\n"


@pytest.mark.spec("HTTP-50")
async def test_all_payloads_of_one_call_leave_in_one_write() -> None:
    stream = TricklingStream([GET], ends=False)

    async def handler(request: Request, responder: Responder) -> None:
        async with EventStream(responder, ping_interval_ms=1000, headers=[("X-Request-Id", "1")]) as events:
            await events.send("a", b"b", "c")
            await events.send_raw(event("d") + DONE)

    service = Service(settings=HttpSettings(), handler=handler, render_fault=render_plain_fault)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(stream, service, ServerState()).run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    head, first, second, end = stream.writes
    for field in (
        b"Content-Type: text/event-stream",
        b"Cache-Control: no-cache",
        b"X-Accel-Buffering: no",
        b"X-Request-Id: 1",
    ):
        assert b"\r\n" + field in head
    assert first.split(b"\r\n")[1] == b"data: a\n\ndata: b\n\ndata: c\n\n"
    assert second.split(b"\r\n")[1] == b"data: d\n\ndata: [DONE]\n\n"
    assert end == b"0\r\n\r\n"


@pytest.mark.spec("HTTP-51")
async def test_a_ping_is_sent_after_every_interval_without_an_event(autojump_clock: MockClock) -> None:
    times: list[float] = []

    async def handler(request: Request, responder: Responder) -> None:
        async with EventStream(responder, ping_interval_ms=10_000) as events:
            await trio.sleep(25)
            await events.send("a")
            await trio.sleep(9)
            await events.send("b")
            await trio.sleep(9.5)
            await events.send("c")
            await trio.sleep(11)
            await events.send_raw(DONE)

    async with memory_server(handler) as server:
        answer = await server.client.open("GET", "/")
        pieces = []
        while piece := await answer.receive():
            pieces.append(piece)
            times.append(trio.current_time())
    assert pieces == [PING, PING, event("a"), event("b"), event("c"), PING, DONE]
    assert times == pytest.approx([10, 20, 25, 34, 43.5, 53.5, 54.5])


@pytest.mark.spec("HTTP-51")
async def test_a_ping_is_never_inside_an_event_and_an_event_waits_for_it(autojump_clock: MockClock) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        async with EventStream(responder, ping_interval_ms=1000) as events:
            for number in range(20):
                await trio.sleep(0.7 if number % 3 else 1.0)
                await events.send(str(number))
            await events.send_raw(DONE)

    async with memory_server(handler) as server:
        stream = server.connect_raw(lockstep=True)
        await stream.send_all(GET)
        raw = b""
        while not raw.endswith(b"0\r\n\r\n"):
            await trio.sleep(0.45)  # a slow reader: writes take longer than the gaps between them
            raw += await stream.receive_some(7)
    chunks = raw.split(b"\r\n\r\n", 1)[1].split(b"\r\n")[1::2]
    assert parse_events(b"".join(chunks)) == [*map(str, range(20)), "[DONE]"]
    assert PING in chunks


async def test_a_client_that_leaves_before_a_ping_ends_the_handler_without_a_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ended = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        try:
            async with EventStream(responder, ping_interval_ms=1000):
                await trio.sleep_forever()
        finally:
            ended.set()

    settings = HttpSettings(write_timeout_ms=500)
    async with memory_server(handler, settings) as server:
        stream = server.connect_raw(lockstep=True)
        await stream.send_all(GET)
        await stream.receive_some()  # the head, and then nothing: the ping is sent to a reader that does not read
        await ended.wait()
        assert trio.current_time() == pytest.approx(1.5)
        await wait_all_tasks_blocked()
    assert caplog.records == []


async def test_an_error_inside_the_stream_is_raised_unchanged_and_cuts_the_answer() -> None:
    seen: list[Exception] = []

    async def handler(request: Request, responder: Responder) -> None:
        try:
            async with EventStream(responder, ping_interval_ms=1000) as events:
                await events.send("a")
                raise KeyError("mine")
        except KeyError as error:
            seen.append(error)

    async with memory_server(handler) as server:
        answer = await server.client.open("GET", "/")
        assert await answer.receive() == event("a")
        with pytest.raises(ResponseBroken):
            await answer.receive()
    assert len(seen) == 1


@pytest.mark.spec("HTTP-52")
def test_a_comment_is_one_line_of_ascii_and_a_blank_one() -> None:
    assert comment("progress queue=3") == b": progress queue=3\n\n"
    with pytest.raises(UnicodeEncodeError):
        comment("é")
