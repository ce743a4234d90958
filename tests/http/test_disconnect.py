"""A client that leaves: noticed in every phase of its request, at once."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.http.evil_streams import DeafStream
from tests.kit.http.memory_http import memory_server, read_available, statuses
from tlserve.config.tables.network import HttpSettings
from tlserve.http.client.connection import HttpClient
from tlserve.http.connection import Connection
from tlserve.http.disconnect import pipelined_bytes_limit
from tlserve.http.exchange import Service
from tlserve.http.messages import Request, Response, render_plain_fault
from tlserve.http.responder import Responder
from tlserve.http.server_state import ServerState

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Phases:
    """A handler that stops at a chosen place and records how it ended there."""

    def __init__(self, stop_at: str) -> None:
        self.stop_at = stop_at
        self.reached: list[str] = []
        self.ended = trio.Event()
        self.cancelled = False

    async def __call__(self, request: Request, responder: Responder) -> None:
        try:
            await request.read_body()
            await self.reach("before the answer")
            async with responder.stream(200) as body:
                await self.reach("after the head")
                await body.send(b"token")
                await self.reach("in the stream")
        except trio.Cancelled:
            self.cancelled = True
            raise
        finally:
            self.ended.set()

    async def reach(self, place: str) -> None:
        self.reached.append(place)
        if place == self.stop_at:
            await trio.sleep_forever()


PLACES = ["before the answer", "after the head", "in the stream"]


@pytest.mark.spec("HTTP-30", "HTTP-55")
@pytest.mark.parametrize("leave", ["disconnect", "half_close"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("request_bytes", [POST, GET])
async def test_a_departure_cancels_the_handler_at_once(
    leave: str, place: str, request_bytes: bytes, autojump_clock: MockClock
) -> None:
    handler = Phases(place)
    async with memory_server(handler) as server:
        client = server.connect()
        await client.stream.send_all(request_bytes)
        await wait_all_tasks_blocked()
        assert handler.reached[-1] == place
        assert not handler.ended.is_set()
        await getattr(client, leave)()
        await handler.ended.wait()
        await wait_all_tasks_blocked()
        assert handler.cancelled
        assert trio.current_time() == 0
        assert (server.server.open_requests, server.server.open_connections) == (0, 0)


@pytest.mark.spec("HTTP-31")
@pytest.mark.parametrize("place", PLACES)
async def test_a_departure_is_noticed_behind_pipelined_requests(place: str) -> None:
    handler = Phases(place)
    async with memory_server(handler) as server:
        client = server.connect()
        await client.stream.send_all(POST + GET * 2000 + b"GET / half")
        await wait_all_tasks_blocked()
        assert not handler.ended.is_set()
        await client.half_close()
        await handler.ended.wait()
        assert handler.reached == PLACES[: PLACES.index(place) + 1]


@pytest.mark.spec("HTTP-58")
async def test_a_client_that_pipelines_past_the_limit_is_cut() -> None:
    settings = HttpSettings(max_header_bytes=256, max_body_bytes=1000)
    handler = Phases("before the answer")
    async with memory_server(handler, settings) as server:
        stream = server.connect_raw()
        await stream.send_all(GET + b"x" * pipelined_bytes_limit(settings))
        await wait_all_tasks_blocked()
        assert not handler.ended.is_set()
        await stream.send_all(b"x")
        await handler.ended.wait()
        assert await read_available(stream) == b""


@pytest.mark.spec("HTTP-32")
async def test_bytes_that_arrive_during_an_answer_are_the_next_request() -> None:
    release = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await release.wait()
        await responder.send(Response(200, request.path.encode()))

    async with memory_server(handler) as server:
        stream = server.connect_raw()
        for byte in GET.replace(b"/ ", b"/1 ") + GET.replace(b"/ ", b"/2 ")[:-1]:
            await stream.send_all(bytes([byte]))
            await wait_all_tasks_blocked()
        release.set()
        await wait_all_tasks_blocked()
        await stream.send_all(b"\n")
        answer = await read_available(stream)
        assert statuses(answer) == [200, 200]
        assert answer.endswith(b"/2")


async def test_a_departure_after_the_answer_does_not_cancel_the_handler() -> None:
    answered, finished = trio.Event(), trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.send(Response(200))
        answered.set()
        await wait_all_tasks_blocked()
        finished.set()

    async with memory_server(handler) as server:
        client = server.connect()
        await client.stream.send_all(GET)
        await answered.wait()
        await client.disconnect()
        await finished.wait()


@pytest.mark.spec("HTTP-33")
async def test_nothing_is_sent_after_a_departure_even_from_a_shielded_cleanup() -> None:
    refused = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(1, shield=True):
                    try:
                        await body.send(b"goodbye")
                    except trio.BrokenResourceError:
                        refused.set()

    async with memory_server(handler) as server:
        client = server.connect()
        await client.stream.send_all(GET)
        await wait_all_tasks_blocked()
        await client.half_close()
        await refused.wait()
        assert b"goodbye" not in await read_available(client.stream)


@pytest.mark.spec("HTTP-33")
async def test_a_send_that_was_cancelled_half_way_makes_the_answer_unusable() -> None:
    outcome: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            with trio.CancelScope() as scope:
                scope.cancel()
                await body.send(b"half")
            try:
                await body.send(b"more")
            finally:
                outcome.append("stopped")
        outcome.append("went on")

    async with memory_server(handler) as server:
        answer = await server.exchange([GET])
    assert outcome == ["stopped"]
    assert not answer.endswith(b"0\r\n\r\n")


@pytest.mark.spec("HTTP-15")
async def test_a_reader_that_does_not_read_is_cut_after_the_write_time(autojump_clock: MockClock) -> None:
    handler = Phases("never")
    stream = DeafStream(GET)
    settings = HttpSettings(write_timeout_ms=2500)
    service = Service(settings=settings, handler=handler, render_fault=render_plain_fault)
    await Connection(stream, service, ServerState()).run()
    assert trio.current_time() == pytest.approx(2.5)
    assert handler.cancelled
    assert stream.closed


@pytest.mark.spec("HTTP-15")
async def test_a_slow_reader_that_does_read_is_not_cut(autojump_clock: MockClock) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            for _ in range(10):
                await body.send(b"token")

    async with memory_server(handler, HttpSettings(write_timeout_ms=1000)) as server:
        stream = server.connect_raw(lockstep=True)
        await stream.send_all(GET)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            await trio.sleep(0.9)
            received += await stream.receive_some()
        assert received.count(b"token") == 10


@pytest.mark.spec("HTTP-15")
async def test_a_reader_that_stops_in_the_middle_of_a_stream_is_cut(autojump_clock: MockClock) -> None:
    handler = Phases("never")
    async with memory_server(handler, HttpSettings(write_timeout_ms=1000)) as server:
        stream = server.connect_raw(lockstep=True)
        await stream.send_all(GET)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        await handler.ended.wait()
        assert handler.cancelled
        assert trio.current_time() == pytest.approx(1)


async def test_a_client_that_leaves_while_its_body_is_read_ends_the_request() -> None:
    handler = Phases("before the answer")
    async with memory_server(handler) as server:
        client: HttpClient = server.connect()
        await client.stream.send_all(POST[:-1])
        await wait_all_tasks_blocked()
        await client.aclose()
        await handler.ended.wait()
        assert handler.reached == []
