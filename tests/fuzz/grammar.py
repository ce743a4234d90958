"""A grammar of HTTP/1.1 messages, each with the right answer: valid and invalid input of a connection.

A conversation is a few good messages, pipelined, and mostly one bad one after them. A good message must reach the handler
unchanged, and nothing else can. A bad one is refused with one of its statuses; the bytes after it on the connection (a
valid-looking request for /smuggled) are never served if the framing is ambiguous. Sources: RFC 9112, RFC 9110.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import attrs

from tlserve.config.tables.network import HttpSettings

LIMITS = HttpSettings(
    max_header_bytes=6000, max_header_count=20, max_body_bytes=4000, header_timeout_ms=1000, body_timeout_ms=1000
)

PIPELINED_BYTES = 3000
"""The most bytes of the good messages of a conversation: a client that pipelines much more is cut (HTTP-58)."""

SMUGGLED = "/smuggled"
_BEHIND = f"GET {SMUGGLED} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@attrs.frozen
class Good:
    """A message that the handler gets as `method`, `target` and `body`; `last`: the server closes after its answer."""

    data: bytes
    method: str
    target: str
    body: bytes = b""
    last: bool = False


@attrs.frozen
class Bad:
    """A message that is refused with one of `statuses`; without statuses a close without an answer is also right.

    `keeps`: the framing is clear, so that the bytes after it can be served.
    """

    data: bytes
    kind: str
    statuses: frozenset[int] = frozenset()
    keeps: bool = False
    any_answer: bool = False


@attrs.frozen
class Conversation:
    """The bytes of one connection, in pieces as a network can split them."""

    good: tuple[Good, ...]
    bad: Bad | None
    cuts: tuple[int, ...] = ()

    @property
    def data(self) -> bytes:
        return b"".join(message.data for message in self.good) + (self.bad.data if self.bad else b"")

    @property
    def inputs(self) -> int:
        """The number of sent messages."""
        return len(self.good) + (self.bad is not None)

    def pieces(self) -> list[bytes]:
        edges = [0, *self.cuts, len(self.data)]
        return [self.data[start:end] for start, end in itertools.pairwise(edges)]


def make_conversation(rng: random.Random) -> Conversation:
    good = [good_message(rng) for _ in range(rng.choice((0, 1, 2, 4, 8)))]
    good = good[: how_many_fit(good)]
    ends = bool(good) and good[-1].last
    bad = None if ends or (good and rng.random() < 0.2) else bad_message(rng)
    length = sum(len(message.data) for message in good) + (len(bad.data) if bad else 0)
    cuts = sorted(rng.sample(range(1, length), min(length - 1, rng.choice((1, 2, 5))))) if rng.random() < 0.2 else []
    return Conversation(tuple(good), bad, tuple(cuts))


def how_many_fit(messages: Sequence[Good]) -> int:
    """Return the number of `messages` for one connection: up to the first after which the server closes, within the bytes."""
    said_bytes = 0
    for count, message in enumerate(messages):
        said_bytes += len(message.data)
        if said_bytes > PIPELINED_BYTES:
            return count
        if message.last:
            return count + 1
    return len(messages)


# --- good messages ---------------------------------------------------------------------------------------------------------

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "M-SEARCH", "x!#$%&'*+-.^_`|~9")
_TARGETS = ("/", "/a", "/a/b?c=d", "/%41%2f", "/a//b/../c", "/?", "/~:@!$&'()*+,;=", "http://x/abs?q", "/" + "t" * 200)
_FIELDS = (
    b"A: b",
    b"a:b",
    b"X-Y:  \t z \t",
    b"Accept: */*",
    b"Cookie: a=b; c=d",
    b"X: \xe9\xff",
    b"Empty:",
    b'Q: "a\\"b"',
)


def good_message(rng: random.Random) -> Good:
    method, target = rng.choice(_METHODS), rng.choice(_TARGETS)
    fields = [b"Host: x", *rng.choices(_FIELDS, k=rng.choice((0, 0, 1, 3, 8)))]
    old = rng.random() < 0.05
    closes = old or rng.random() < 0.05
    if closes and not old:
        fields.append(rng.choice((b"Connection: close", b"connection: Close", b"Connection: x, close")))
    body, framed = good_body(rng, fields, chunked_is_known=not old)
    rng.shuffle(fields)
    line = f"{method} {target} HTTP/1.{0 if old else 1}".encode()
    head = b"\r\n" * rng.choice((0, 0, 0, 1, 2)) + b"\r\n".join([line, *map(cased(rng), fields)]) + b"\r\n\r\n"
    return Good(head + framed, method, target, body, closes)


def cased(rng: random.Random) -> Callable[[bytes], bytes]:
    """Return what changes the case of a field's name."""
    change = rng.choice((bytes.lower, bytes.upper, bytes))

    def change_name(field: bytes) -> bytes:
        name, colon, value = field.partition(b":")
        return change(name) + colon + value

    return change_name


def good_body(rng: random.Random, fields: list[bytes], *, chunked_is_known: bool) -> tuple[bytes, bytes]:
    """Add the framing to `fields`; return the body and its bytes on the wire."""
    kind = rng.choice(("none", "none", "length", "length", "zero", *(("chunked",) * 3 if chunked_is_known else ())))
    body = rng.choice(
        (b"x", b"hello", b"0\r\n\r\n", b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n", rng.randbytes(rng.randrange(300)))
    )
    if kind == "none":
        return b"", b""
    if kind == "chunked":
        fields.append(rng.choice((b"Transfer-Encoding: chunked", b"Transfer-Encoding: Chunked")))
        return body, chunked(rng, body)
    body = b"" if kind == "zero" else body
    fields.append(b"Content-Length: %d" % len(body))
    return body, body


def chunked(rng: random.Random, body: bytes) -> bytes:
    parts, wire = body, b""
    while parts:
        size = rng.randint(1, len(parts))
        extension = rng.choice((b"", b"", b";a=b", b';a="q"', b" ;x"[1:]))
        wire += rng.choice((b"%x", b"%X", b"0%x", b"000%X")) % size + extension + b"\r\n" + parts[:size] + b"\r\n"
        parts = parts[size:]
    trailers = rng.choice((b"", b"", b"A: b\r\n", b"A: b\r\nC: d\r\n"))
    return wire + rng.choice((b"0", b"000")) + b"\r\n" + trailers + b"\r\n"


# --- bad messages ----------------------------------------------------------------------------------------------------------


def request(*fields: bytes, line: bytes = b"POST /bad HTTP/1.1", host: bytes = b"Host: x", body: bytes = b"") -> bytes:
    head = [line, *([host] if host else []), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"


def _ambiguous_length(rng: random.Random) -> bytes:
    return request(
        *rng.choice(
            (
                (b"Content-Length: 5", CHUNKED),
                (CHUNKED, b"Content-Length: 0"),
                (b"Content-Length: 5", b"Content-Length: 6"),
                (b"Content-Length: 5, 6",),
                (b"Transfer-Encoding: chunked, chunked",),
                (CHUNKED, CHUNKED, b"Content-Length: 3"),
            )
        ),
        body=b"0\r\n\r\n",
    )


def _broken_length(rng: random.Random) -> bytes:
    value = rng.choice((b"-1", b"+5", b"0x5", b"5.0", b"1 2", b"", b"five", b"5;", b"\xb2", b"9" * 400))
    return request(b"Content-Length: " + value, body=b"hello")


def _unknown_coding(rng: random.Random) -> bytes:
    coding = rng.choice(
        (b"gzip", b"chunked, gzip", b"gzip, chunked", b"xchunked", b"identity", b'"chunked"', b"chunked;q=1")
    )
    return request(b"Transfer-Encoding: " + coding, body=b"0\r\n\r\n")


def _broken_chunk(rng: random.Random) -> bytes:
    good = chunked(rng, b"abcdef")
    start = rng.choice(
        (
            b"g\r\n",
            b"-1\r\nx\r\n",
            b"0x3\r\nabc\r\n",
            b"\r\n",
            b"3\r\nabcd\r\n",
            b"3\r\nab\r\n\r\n",
            b"1" * 30 + b"\r\n",
            b"+2\r\nab\r\n",
            b"3 3\r\nabc\r\n",
            b"\xd9\xa3\r\nabc\r\n",
        )
    )
    return request(CHUNKED, body=start + good)


# Control characters in a value, except NUL and line breaks, can be kept (RFC 9110 section 5.5), and are.
def _broken_field(rng: random.Random) -> bytes:
    field = rng.choice(
        (
            b"no colon",
            b"A : b",
            b": b",
            b"A\0: b",
            b"A: b\0c",
            b"(A): b",
            b"A\t: b",
            b"\xe9: x",
            b"A: b\rX: c",
        )
    )
    return request(field)


def _broken_host(rng: random.Random) -> bytes:
    return rng.choice((request(host=b""), request(b"Host: y"), request(b"HOST: x")))


def _broken_line(rng: random.Random) -> bytes:
    line = rng.choice(
        (
            b"GET /",
            b"GET  / HTTP/1.1",
            b"GET / http/1.1",
            b"GET\t/ HTTP/1.1",
            b"GET / HTTP/1.1 ",
            b"G@T / HTTP/1.1",
            b"GET /\x7f HTTP/1.1",
            b"GET /a b HTTP/1.1",
            b"GET / HTTP/1",
            b"GET / HTTP/11.1",
            b" / HTTP/1.1",
            b"PRI * HTTP/2.0",
            b"\x16\x03\x01\x02\x00",
            b"GET /\xff HTTP/1.1",
            b"HTTP/1.1 200 OK",
        )
    )
    return request(line=line)


def _other_version(rng: random.Random) -> bytes:
    return request(line=b"GET / HTTP/" + rng.choice((b"2.0", b"1.2", b"0.9", b"3.0")))


def _broken_target(rng: random.Random) -> bytes:
    return request(
        line=b"GET "
        + rng.choice((b"a/b", b"/%zz", b"/%f", b"/%ff", b"/a#b", b"ftp://x/", b"?a", b"%2f"))
        + b" HTTP/1.1"
    )


def _large_head(rng: random.Random) -> bytes:
    return rng.choice(
        (request(b"A: " + b"a" * 6000), request(*[b"A: b"] * 30), request(line=b"GET /" + b"a" * 6000 + b" HTTP/1.1"))
    )


def _large_body(rng: random.Random) -> bytes:
    length = rng.choice((4001, 10**9, 10**18))
    return rng.choice(
        (request(b"Content-Length: %d" % length), request(CHUNKED, body=b"fff\r\n" + b"a" * 4095 + b"\r\n"))
    )


def _old_chunked(_: random.Random) -> bytes:
    return request(CHUNKED, line=b"POST / HTTP/1.0", body=b"0\r\n\r\n")


def _cut_short(rng: random.Random) -> bytes:
    whole = good_message(rng).data.lstrip(b"\r\n")
    return (
        whole[: rng.randrange(1, len(whole))]
        if b"\n\r\n" not in whole[:-1]
        else whole[: rng.randrange(1, whole.index(b"\n\r\n") + 1)]
    )


def _mutated(rng: random.Random) -> bytes:
    """Return a good message with a few bytes changed; no HEAD, so that the lengths in the answers are those of their bodies."""
    data = bytearray(good_message(rng).data.replace(b"HEAD ", b"GET ", 1))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.choice((0, 0, 1, 3))] = rng.choice(
            (b"", b"\r\n", b"\n", b"\0", b" ", b":", b"0", b"\xff", rng.randbytes(2))
        )
    return bytes(data)


def _expectation(rng: random.Random) -> bytes:
    return request(b"Expect: " + rng.choice((b"x", b"100-continue, y", b"200-ok")), b"Content-Length: 0")


def _coded(rng: random.Random) -> bytes:
    return request(
        b"Content-Encoding: " + rng.choice((b"gzip", b"br", b"gzip, identity")), b"Content-Length: 5", body=b"hello"
    )


@attrs.frozen
class Kind:
    """A kind of bad message: how it is made, the right statuses, and whether the bytes after it can be served."""

    make: Callable[[random.Random], bytes]
    statuses: frozenset[int]
    keeps: bool = False
    any_answer: bool = False


def _kind(
    make: Callable[[random.Random], bytes], *statuses: int, keeps: bool = False, any_answer: bool = False
) -> Kind:
    return Kind(make, frozenset(statuses), keeps, any_answer)


KINDS: Sequence[Kind] = (
    _kind(_ambiguous_length, 400, 501),
    _kind(_broken_length, 400, 413),
    _kind(_unknown_coding, 400, 501),
    _kind(_broken_chunk, 400, 413),
    _kind(_broken_field, 400),
    _kind(_broken_host, 400),
    _kind(_broken_line, 400),
    _kind(_other_version, 505, 400),
    _kind(_broken_target, 400, keeps=True),
    _kind(_large_head, 431),
    _kind(_large_body, 413),
    _kind(_old_chunked, 400),
    _kind(_expectation, 417, keeps=True),
    _kind(_coded, 415, keeps=True),
    _kind(_cut_short, 408),
    _kind(_mutated, keeps=True, any_answer=True),
)


def bad_message(rng: random.Random) -> Bad:
    kind = rng.choice(KINDS)
    behind = b"" if kind.make is _cut_short else _BEHIND
    name = kind.make.__name__.strip("_")
    return Bad(kind.make(rng) + behind, name, kind.statuses, kind.keeps, kind.any_answer)
