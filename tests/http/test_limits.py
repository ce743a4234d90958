"""Decisions on bytes: early, and independent of how the bytes were split."""

import random

import h11
import pytest

from tlserve.config.tables.network import HttpSettings
from tlserve.http import limits
from tlserve.http.messages import Headers, HttpFault

SETTINGS = HttpSettings(max_header_bytes=256, max_header_count=5, max_body_bytes=1000)


def found_in_pieces(data: bytes, pieces: list[bytes]) -> int | str | None:
    received = bytearray()
    for piece in pieces:
        searched = len(received)
        received += piece
        try:
            length = limits.find_head(received, searched, SETTINGS)
        except HttpFault as fault:
            return f"{fault.status}"
        if length is not None:
            return length
    return None


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.spec("HTTP-1")
@pytest.mark.parametrize(
    ("data", "result"),
    [
        (HEAD, len(HEAD)),
        (HEAD + b"body", len(HEAD)),
        (HEAD.replace(b"\r", b""), len(HEAD) - 3),
        (HEAD[:-1], None),
        (b"", None),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5 + b"\r\n", 48),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 6 + b"\r\n", "431"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 233 + b"\r\n\r\n", 256),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 234 + b"\r\n\r\n", "431"),
        (b"GET /" + b"b" * 252, "431"),
        (b"\x16\x03\x01", "400"),
        (b"garbage\r\n", "400"),
        (b"GET /\r\n", "400"),
        (b"GET  / HTTP/1.1\r\n", "400"),
        (b"GET / HTTP/1.1 \r\n", "400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
        (b" GET / HTTP/1.1\r\n", "400"),
        (b"\xff\xfe", "400"),
    ],
)
def test_the_head_is_found_or_refused_the_same_however_it_is_split(data: bytes, result: int | str | None) -> None:
    assert found_in_pieces(data, [data]) == result
    assert found_in_pieces(data, [data[i : i + 1] for i in range(len(data))]) == result
    for place in range(1, len(data)):
        assert found_in_pieces(data, [data[:place], data[place:]]) == result


def test_the_found_head_is_the_one_that_h11_parses() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(300):
        lines = [b"GET / HTTP/1.1", b"Host: x", *(b"A: " + b"b" * draw.randrange(3) for _ in range(draw.randrange(3)))]
        head = b"".join(line + draw.choice([b"\r\n", b"\n"]) for line in [*lines, b""])
        after = bytes(draw.choices(b"\r\nx", k=draw.randrange(5)))
        length = limits.find_head(bytearray(head + after), 0, SETTINGS)
        machine = h11.Connection(h11.SERVER)
        machine.receive_data(head + after)
        assert isinstance(machine.next_event(), h11.Request)
        assert length == len(head + after) - len(machine.trailing_data[0])


@pytest.mark.parametrize(
    ("data", "length"), [(b"", 0), (b"\r\n\n\r\nGET", 5), (b"\r", 0), (b"\rG", 0), (b"GET\r\n", 0)]
)
def test_empty_lines_before_a_request_are_counted(data: bytes, length: int) -> None:
    assert limits.empty_lines_length(bytearray(data)) == length


@pytest.mark.parametrize(
    ("pairs", "length"),
    [
        ([], 0),
        ([("Content-Length", "12")], 12),
        ([("Transfer-Encoding", "chunked")], None),
        ([("content-length", "0")], 0),
    ],
)
def test_the_length_of_a_body_is_declared_by_its_headers(pairs: list[tuple[str, str]], length: int | None) -> None:
    assert limits.declared_length(Headers(pairs)) == length


def test_a_body_of_exactly_the_limit_is_accepted() -> None:
    limits.check_body_bytes(1000, SETTINGS)
    with pytest.raises(HttpFault, match="1000 bytes"):
        limits.check_body_bytes(1001, SETTINGS)


@pytest.mark.spec("HTTP-13")
@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "x"])
def test_a_body_with_a_content_encoding_is_415_with_accept_encoding(coding: str) -> None:
    with pytest.raises(HttpFault) as caught:
        limits.check_coding(Headers([("Content-Encoding", coding)]))
    assert caught.value.status == 415
    assert caught.value.headers == (("Accept-Encoding", "identity"),)


def test_identity_is_not_a_content_encoding() -> None:
    limits.check_coding(Headers([("Content-Encoding", "Identity")]))
