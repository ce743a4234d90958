"""The small client against scripted servers."""

import pytest
import trio

from tests.kit.http.evil_streams import BrittleStream, TricklingStream
from tlserve.http.client.connection import HttpClient, ResponseBroken

ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\na\nb\nc\r\n2\r\nd\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_lines_are_the_same_however_the_answer_arrives(size: int) -> None:
    stream = TricklingStream(ANSWER[place : place + size] for place in range(0, len(ANSWER), size))
    answer = await HttpClient(stream).open("GET", "/")
    assert [line async for line in answer.lines()] == [b"a", b"b", b"cd"]


async def test_a_request_is_one_write_with_its_host_and_length() -> None:
    stream = TricklingStream([b"HTTP/1.1 204 No Content\r\n\r\n"])
    await HttpClient(stream, "name:1").request("POST", "/p", [("A", "b")], b"body")
    assert stream.writes == [b"POST /p HTTP/1.1\r\nHost: name:1\r\nA: b\r\nContent-Length: 4\r\n\r\nbody"]


async def test_interim_answers_are_skipped() -> None:
    stream = TricklingStream([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])
    answer = await HttpClient(stream).request("GET", "/")
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize("length", [0, 10, 60, len(ANSWER) - 1])
async def test_an_answer_cut_short_is_broken(length: int) -> None:
    with pytest.raises(ResponseBroken):
        await HttpClient(TricklingStream([ANSWER[:length]])).request("GET", "/")


@pytest.mark.parametrize("breaks_at", [0, 1, 2])
async def test_a_reset_is_broken(breaks_at: int) -> None:
    stream = BrittleStream(TricklingStream([ANSWER[:20], ANSWER[20:]]), breaks_at)
    with pytest.raises(ResponseBroken):
        await HttpClient(stream).request("GET", "/")


async def test_leaving_the_block_closes_the_connection() -> None:
    stream = TricklingStream([ANSWER])
    async with HttpClient(stream):
        pass
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()
