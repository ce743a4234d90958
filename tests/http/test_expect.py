"""Expect: 100-continue and bodies of the wrong size or kind."""

import tracemalloc

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.http.memory_http import memory_server, read_available, statuses
from tlserve.config.tables.network import HttpSettings
from tlserve.http.messages import HttpFault, Request, Response
from tlserve.http.responder import Responder

SETTINGS = HttpSettings(max_body_bytes=2 << 20, body_timeout_ms=1000)


async def echo_length(request: Request, responder: Responder) -> None:
    if request.path == "/refused":
        raise HttpFault(401, "no")
    await responder.send(Response(200, b"%d" % len(await request.read_body())))


def head(*fields: str, path: str = "/", version: str = "1.1") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/{version}", "Host: x", *fields, "", ""]).encode()


EXPECT = "Expect: 100-continue"

TABLE = {
    # name: (head, body that the client sends after the first answer, statuses before the body, statuses after it)
    "a length": (head(EXPECT, "Content-Length: 3"), b"abc", [100], [200]),
    "in another case": (head("expect: 100-Continue", "Content-Length: 3"), b"abc", [100], [200]),
    "chunks": (head(EXPECT, "Transfer-Encoding: chunked"), b"3\r\nabc\r\n0\r\n\r\n", [100], [200]),
    "too large": (head(EXPECT, "Content-Length: 3000000"), b"", [413], []),
    "refused before the body": (head(EXPECT, "Content-Length: 3", path="/refused"), b"", [401], []),
    "coded": (head(EXPECT, "Content-Length: 3", "Content-Encoding: gzip"), b"", [415], []),
    "HTTP/1.0": (head(EXPECT, "Content-Length: 3", version="1.0"), b"abc", [], [200]),
    "HTTP/1.0, another value": (head("Expect: x", "Content-Length: 3", version="1.0"), b"abc", [], [200]),
    "another value": (head("Expect: x", "Content-Length: 3"), b"", [417], []),
    "another value beside it": (head("Expect: 100-continue, x", "Content-Length: 3"), b"", [417], []),
    "no body": (head(EXPECT), b"", [200], []),
    "no expectation": (head("Content-Length: 3"), b"abc", [], [200]),
}


@pytest.mark.spec("CASE-38", "HTTP-28", "HTTP-54")
@pytest.mark.parametrize("name", TABLE)
async def test_the_continue_is_sent_at_once_or_the_final_status_instead(name: str) -> None:
    request, body, before, after = TABLE[name]
    async with memory_server(echo_length, SETTINGS) as server:
        stream = server.connect_raw()
        await stream.send_all(request)
        await wait_all_tasks_blocked()
        first = await stream.receive_some() if before else b""
        assert statuses(bytes(first)) == before
        await stream.send_all(body)
        assert statuses(await read_available(stream)) == after


async def test_a_body_that_has_arrived_needs_no_continue() -> None:
    async with memory_server(echo_length, SETTINGS) as server:
        assert statuses(await server.exchange([head(EXPECT, "Content-Length: 3") + b"abc"])) == [200]


async def test_after_a_final_status_instead_of_the_continue_the_connection_closes() -> None:
    async with memory_server(echo_length, SETTINGS) as server:
        answer = await server.exchange([head(EXPECT, "Content-Length: 3", path="/refused") + head("Content-Length: 0")])
        assert statuses(answer) == [401]
        assert b"Connection: close" in answer


@pytest.mark.spec("HTTP-11")
async def test_a_gigabyte_is_refused_by_its_length_alone(autojump_clock: MockClock) -> None:
    async with memory_server(echo_length, SETTINGS) as server:
        assert statuses(await server.exchange([head("Content-Length: 1000000000")])) == [413]


async def test_an_unread_large_body_is_answered_and_memory_stays_bounded() -> None:
    async with memory_server(echo_length, SETTINGS) as server:
        stream = server.connect_raw(lockstep=True)
        tracemalloc.start()
        await stream.send_all(head("Content-Length: 5000000"))
        chunk = bytes(100_000)
        answer = await stream.receive_some()
        for _ in range(50):
            await stream.send_all(chunk)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert statuses(bytes(answer)) == [413]
        assert peak < 1 << 20


@pytest.mark.spec("CASE-40", "HTTP-11")
async def test_a_chunked_body_is_refused_at_the_limit_in_bounded_memory() -> None:
    async with memory_server(echo_length, SETTINGS) as server:
        stream = server.connect_raw(lockstep=True)
        await stream.send_all(head("Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        answers: list[bytes] = []

        async def read_the_answer() -> None:
            answers.append(bytes(await stream.receive_some()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_the_answer)
            tracemalloc.start()
            for _ in range(64):  # 4 MB against a limit of 2 MB
                await stream.send_all(chunk)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert statuses(answers[0]) == [413]
        assert peak < 3 << 20


@pytest.mark.spec("CASE-40", "HTTP-10")
async def test_a_64_kilobyte_line_and_300_headers_are_431_before_memory_grows() -> None:
    async with memory_server(echo_length, SETTINGS) as server:
        line = await server.exchange([head("X-Request-Id: " + "a" * 65_536)])
        many = await server.exchange([head(*(f"X-{n}: {n}" for n in range(300)))])
        million = await server.exchange([head("X-Request-Id: " + "a" * 1_000_000)])
    assert statuses(line) == statuses(many) == statuses(million) == [431]


@pytest.mark.spec("HTTP-12")
async def test_a_body_in_tiny_chunks_is_refused_when_its_framing_outweighs_it() -> None:
    settings = HttpSettings(max_body_bytes=10_000, max_header_bytes=500)
    async with memory_server(echo_length, settings) as server:
        small = await server.exchange([head("Transfer-Encoding: chunked"), b"1\r\na\r\n" * 500 + b"0\r\n\r\n"])
        large = await server.exchange([head("Transfer-Encoding: chunked"), b"1\r\na\r\n" * 900 + b"0\r\n\r\n"])
    assert (statuses(small), statuses(large)) == ([200], [400])


async def test_a_body_cut_short_is_400() -> None:
    async with memory_server(echo_length, SETTINGS) as server:
        client = server.connect()
        await client.stream.send_all(head("Content-Length: 5") + b"abc")
        await client.half_close()
        assert statuses(await read_available(client.stream)) == [400]
