"""Broken requests of every kind: each gets a 4xx or 5xx or a close, and the server then serves a good one."""

import re

import h11
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.kit.http.memory_http import memory_server
from tlserve.config.tables.network import HttpSettings
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder

LIMITS = HttpSettings(
    max_header_bytes=600, max_header_count=10, max_body_bytes=500, header_timeout_ms=1000, body_timeout_ms=1000
)

GOOD = (
    b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    b"GET / HTTP/1.0\r\n\r\n",
)
FRAGMENTS = st.sampled_from(
    [
        *(
            b"\r\n",
            b"\n",
            b"\r",
            b"\0",
            b" ",
            b"\t",
            b":",
            b"0\r\n\r\n",
            b"\r\n\r\n",
            b"\xff",
            b"%",
            b"chunked",
            b"PRI * HTTP/2.0",
        ),
        *(
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Length: 5\r\n",
            b"Content-Length: -1\r\n",
            b"Host: y\r\n",
            b"Expect: z\r\n",
        ),
        *(b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"Content-Encoding: gzip\r\n", b"A: " + b"a" * 700 + b"\r\n"),
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """One to three good requests, with up to four cuts, doublings, insertions and overwritten bytes."""
    data = b"".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 12)))
        inserted = draw(st.one_of(st.just(b""), FRAGMENTS, st.binary(max_size=4), st.just(data[start:end] * 2)))
        data = data[:start] + inserted + data[end:]
    return data


async def echo(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, await request.read_body()))


def check_answers(raw: bytes) -> None:
    """Every received byte is part of an HTTP answer (h11's client reads it), interim ones only before a final one."""
    while raw:
        machine = h11.Connection(h11.CLIENT)
        machine.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        machine.send(h11.EndOfMessage())
        machine.receive_data(raw)
        while not isinstance(event := machine.next_event(), h11.EndOfMessage):
            assert isinstance(event, (h11.InformationalResponse, h11.Response, h11.Data)), (event, raw)
        raw = machine.trailing_data[0]


async def serve_one(data: bytes) -> bytes:
    async with memory_server(echo, LIMITS) as server:
        stream = server.connect_raw()
        await stream.send_all(data)
        received = bytearray()
        while piece := await stream.receive_some():  # the server always closes: each of its waits has an end
            received += piece
        good = await server.request("POST", "/", body=b"good")
        assert (good.status, good.body) == (200, b"good")
        return bytes(received)


@pytest.mark.slow
@pytest.mark.spec("HTTP-42")
@given(mutated())
@settings(max_examples=400, deadline=None)
@example(b"")
@example(
    b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffffff\r\n"
)
def test_a_mutated_request_is_answered_in_http_or_closed_and_the_server_lives(data: bytes) -> None:
    answer = trio.run(serve_one, data, clock=MockClock(autojump_threshold=0))
    check_answers(answer)
    assert b"HTTP/1.1 500" not in answer


@pytest.mark.spec("HTTP-42")
@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_answered_with_a_4xx_or_closed(data: bytes) -> None:
    answer = trio.run(serve_one, data, clock=MockClock(autojump_threshold=0))
    assert answer == b"" or re.match(rb"HTTP/1\.1 (4|505|501)", answer)


@pytest.mark.parametrize("good", GOOD)
def test_the_requests_are_valid_before_their_mutation(good: bytes) -> None:
    answer = trio.run(serve_one, good, clock=MockClock(autojump_threshold=0))
    check_answers(answer)
    assert b"HTTP/1.1 200 OK" in answer
