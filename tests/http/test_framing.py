"""Raw bytes in, raw bytes out: every request whole, byte by byte and split at every place, with the same result."""

import pytest

from tests.kit.http.feeding import splits_in_two, units
from tests.kit.http.memory_http import MemoryServer, memory_server, statuses, undated
from tlserve.config.tables.network import HttpSettings
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder

SETTINGS = HttpSettings(max_header_bytes=400, max_header_count=20, max_body_bytes=64)


async def echo(request: Request, responder: Responder) -> None:
    body = await request.read_body()
    await responder.send(Response(200, f"{request.method} {request.path} ".encode() + body))


async def answers_to_every_cut(server: MemoryServer, data: bytes) -> set[bytes]:
    """Send `data` whole, byte by byte, and split in two at every place; return the different answers."""
    return {undated(await server.exchange(pieces)) for pieces in ([data], units(data), *splits_in_two(data))}


def post(*fields: str, body: bytes = b"", version: str = "1.1") -> bytes:
    head = "".join(f"{field}\r\n" for field in (f"POST /p HTTP/{version}", *fields, ""))
    return head.encode("latin-1") + body


CHUNKED = "Transfer-Encoding: chunked"

ACCEPTED = {
    "no body": (b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /a "),
    "a length": (post("Host: x", "Content-Length: 3", body=b"abc"), b"POST /p abc"),
    "chunks": (post("Host: x", CHUNKED, body=b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"), b"POST /p abc0123456789"),
    "trailers": (post("Host: x", CHUNKED, body=b"1\r\na\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n"), b"POST /p a"),
    "an extension": (post("Host: x", CHUNKED, body=b"1;a=b\r\na\r\n0\r\n\r\n"), b"POST /p a"),
    "the same length twice": (post("Host: x", "Content-Length: 1", "Content-Length: 1", body=b"a"), b"POST /p a"),
    "lines before it": (b"\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /a "),
    "bare line feeds": (b"GET /a HTTP/1.1\nHost: x\n\n", b"GET /a "),
    "a whole URL": (b"GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /a "),
    "a body at the limit": (post("Host: x", "Content-Length: 64", body=b"a" * 64), b"POST /p " + b"a" * 64),
    "an upgrade": (b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", b"GET /a "),
}


@pytest.mark.spec("HTTP-1")
@pytest.mark.parametrize("name", ACCEPTED)
async def test_a_good_request_is_answered_the_same_however_it_arrives(name: str) -> None:
    data, body = ACCEPTED[name]
    async with memory_server(echo, SETTINGS) as server:
        answers = await answers_to_every_cut(server, data)
    (answer,) = answers
    assert statuses(answer) == [200]
    assert answer.endswith(b"\r\n\r\n" + body)
    assert b"onnection: close" not in answer


REFUSED = {
    "both framings": (400, post("Host: x", "Content-Length: 3", CHUNKED, body=b"0\r\n\r\n")),
    "both framings, other order": (400, post("Host: x", CHUNKED, "Content-Length: 3", body=b"0\r\n\r\n")),
    "two lengths": (400, post("Host: x", "Content-Length: 3", "Content-Length: 4", body=b"abc")),
    "two lengths in one field": (400, post("Host: x", "Content-Length: 3, 4", body=b"abc")),
    "a negative length": (400, post("Host: x", "Content-Length: -1")),
    "a signed length": (400, post("Host: x", "Content-Length: +1", body=b"a")),
    "a length in words": (400, post("Host: x", "Content-Length: three")),
    "an empty length": (400, post("Host: x", "Content-Length:")),
    "a length past all bounds": (400, post("Host: x", "Content-Length: 100000000000000000000000")),
    "an unknown coding": (501, post("Host: x", "Transfer-Encoding: gzip")),
    "a coding before chunked": (501, post("Host: x", "Transfer-Encoding: gzip, chunked")),
    "chunked twice": (501, post("Host: x", CHUNKED, CHUNKED)),
    "chunked in 1.0": (400, post("Host: x", CHUNKED, body=b"0\r\n\r\n", version="1.0")),
    "no host": (400, post("Content-Length: 0")),
    "two hosts": (400, post("Host: x", "Host: y")),
    "a space before the colon": (400, post("Host: x", "A : b")),
    "no colon": (400, post("Host: x", "A")),
    "a null byte": (400, post("Host: x", "A: b\0c")),
    "a folded first field": (400, b"GET / HTTP/1.1\r\n A: b\r\n\r\n"),
    "HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (400, b"GET /\r\n"),
    "HTTP/3.0 in words": (505, b"GET / HTTP/3.0\r\nHost: x\r\n\r\n"),
    "TLS": (400, bytes.fromhex("16030100a5010000a10303")),
    "a proxy request": (501, b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a bad escape": (400, b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a large head": (431, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 400 + b"\r\n\r\n"),
    "a line without end": (431, b"GET /" + b"a" * 400),
    "many fields": (431, b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 20 + b"\r\n"),
    "a long body": (413, post("Host: x", "Content-Length: 65", body=b"a" * 65)),
    "a growing body": (413, post("Host: x", CHUNKED, body=b"40\r\n" + b"a" * 64 + b"\r\n1\r\na\r\n")),
    "a chunk past all bounds": (413, post("Host: x", CHUNKED, body=b"FFFFFFFFFFFF\r\n" + b"a" * 65)),
    "a bad chunk size": (400, post("Host: x", CHUNKED, body=b"zz\r\n")),
    "a bad chunk end": (400, post("Host: x", CHUNKED, body=b"1\r\nabc\r\n0\r\n\r\n")),
    "a bad trailer": (400, post("Host: x", CHUNKED, body=b"0\r\nA : b\r\n\r\n")),
    "trailers without end": (400, post("Host: x", CHUNKED, body=b"0\r\nA: " + b"a" * 420)),
    "an extension without end": (400, post("Host: x", CHUNKED, body=b"1;" + b"a" * 420)),
    "a coded body": (415, post("Host: x", "Content-Encoding: gzip", "Content-Length: 3", body=b"abc")),
    "an odd expectation": (417, post("Host: x", "Expect: x", "Content-Length: 3", body=b"abc")),
}


@pytest.mark.spec("HTTP-1", "HTTP-2", "HTTP-45", "HTTP-46", "HTTP-47")
@pytest.mark.parametrize("name", REFUSED)
async def test_a_bad_request_is_refused_however_it_arrives_and_the_close_follows(name: str) -> None:
    status, data = REFUSED[name]
    async with memory_server(echo, SETTINGS) as server:
        answers = await answers_to_every_cut(server, data)
        assert (await server.request("GET", "/")).status == 200
    (answer,) = answers
    assert statuses(answer) == [status]
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.spec("HTTP-4")
async def test_three_pipelined_requests_are_answered_in_order_however_they_arrive() -> None:
    data = (
        post("Host: x", "Content-Length: 1", body=b"1") + post("Host: x", CHUNKED, body=b"1\r\n2\r\n0\r\n\r\n")
    ) + b"GET /3 HTTP/1.1\r\nHost: x\r\n\r\n"
    async with memory_server(echo, SETTINGS) as server:
        answers = await answers_to_every_cut(server, data)
    (answer,) = answers
    assert statuses(answer) == [200, 200, 200]
    assert answer.index(b"POST /p 1") < answer.index(b"POST /p 2") < answer.index(b"GET /3 ")


@pytest.mark.spec("HTTP-3")
async def test_bytes_after_a_refused_request_are_not_served() -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    data = post("Host: x", "Content-Length: 3", CHUNKED, body=b"0\r\n\r\n" + smuggled)
    async with memory_server(echo, SETTINGS) as server:
        answer = await server.exchange([data])
    assert statuses(answer) == [400]
    assert b"smuggled" not in answer
