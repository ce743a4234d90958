"""HTTP as a handler sees it: `Headers`, `Request`, `Response` and `HttpFault`, as plain values.

Owns the types and the reading of a request target. Does not know sockets, h11 and timing: a body is an object with one method.
Source: RFC 9110 (fields, methods, statuses), RFC 9112 section 3.2 (request targets).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol
from urllib.parse import unquote_to_bytes

import attrs

from tlserve.errors import TlserveError

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


class HttpFault(TlserveError):
    """A request that gets an error: the status, one sentence, and the headers that the answer must have.

    `code` names the kind of the error for programs, if it is not the usual one of the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.headers = tuple(headers)
        self.code = code


def _pairs(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(pairs)


@attrs.frozen
class Headers:
    """Header fields in their order and case; look-ups ignore the case (RFC 9110 section 5.1)."""

    pairs: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_pairs)

    def get_all(self, name: str) -> tuple[str, ...]:
        """Return every value of `name`, in order."""
        wanted = name.lower()
        return tuple(value for key, value in self.pairs if key.lower() == wanted)

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the first value of `name`, or `default`."""
        wanted = name.lower()
        for key, value in self.pairs:
            if key.lower() == wanted:
                return value
        return default

    def tokens(self, name: str) -> tuple[str, ...]:
        """Return the comma-separated members of all values of `name`, in lower case, empty ones left out."""
        members = ",".join(self.get_all(name)).lower().split(",")
        return tuple(member.strip() for member in members if member.strip())

    def adding(self, *pairs: tuple[str, str]) -> Headers:
        """Return these fields with `pairs` after them."""
        return Headers((*self.pairs, *pairs))

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


class BodySource(Protocol):
    """Where the bytes of a request's body come from, and where the memory that the request takes is counted."""

    async def read(self) -> bytes:
        """Return the whole body; raises `HttpFault` 400, 408, 413 or 415."""

    def hold(self, count: int) -> None:
        """Count `count` more bytes of memory until the request ends, fewer if negative; raises `HttpFault` 413 or 503."""


@attrs.frozen
class FixedBody:
    """A body that is already complete, for requests that did not come over a connection."""

    data: bytes = b""

    async def read(self) -> bytes:
        """Return the bytes."""
        return self.data

    def hold(self, count: int) -> None:
        """Count nothing: the request has no server with a budget."""


@attrs.frozen(kw_only=True)
class Request:
    """One request. `segments` are the decoded parts of the path between its slashes.

    `path` is `segments` joined again: an escaped slash stays `%2F` in it, and nothing is normalised, so that a path either is
    exactly a route or is not a route. `query` is raw.
    """

    method: str
    target: str
    segments: tuple[str, ...]
    query: str = ""
    headers: Headers = Headers()
    http_version: str = "1.1"
    peer: str = ""
    body: BodySource = attrs.field(factory=FixedBody, repr=False)

    @property
    def path(self) -> str:
        """Return the decoded path, with escaped slashes kept as `%2F`; `*` for the request of that form."""
        return "/".join(segment.replace("/", "%2F") for segment in self.segments)

    async def read_body(self) -> bytes:
        """Return the whole body; raises `HttpFault` 400 (broken), 408 (slow), 413 (large) or 415 (encoded)."""
        return await self.body.read()


def _headers(pairs: Iterable[tuple[str, str]]) -> Headers:
    return Headers(pairs)


@attrs.frozen
class Response:
    """A whole answer. The server adds Content-Length, Date, Server and, before it closes, `Connection: close`."""

    status: int
    body: bytes = b""
    headers: Headers = attrs.field(default=Headers(), converter=_headers)


@attrs.frozen
class RequestTarget:
    """The parts of a request target: decoded path segments (the first is empty) and the raw query."""

    segments: tuple[str, ...]
    query: str = ""


def parse_target(target: str) -> RequestTarget:
    """Split `target` (origin, absolute or asterisk form); raises `HttpFault` 400. RFC 9112 section 3.2."""
    if target == "*":
        return RequestTarget(("*",))
    origin = _ABSOLUTE.sub("", target, count=1) if target[:1] != "/" else target
    path, _, query = (origin or "/").partition("?")
    if not path.startswith("/") or "#" in origin:
        raise HttpFault(400, "the request target is neither a path nor an http URL")
    segments = path.split("/")
    return RequestTarget(tuple(map(_decoded, segments) if "%" in path else segments), query)


def _decoded(segment: str) -> str:
    if _BAD_ESCAPE.search(segment):
        raise HttpFault(400, "the request target has a '%' that is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise HttpFault(400, "the request target does not decode to UTF-8") from None


def render_plain_fault(fault: HttpFault, _request: Request | None = None) -> Response:
    """Show a fault as one line of text; the default of a server."""
    headers = (("Content-Type", "text/plain; charset=utf-8"), *fault.headers)
    return Response(fault.status, f"{fault.message}\n".encode(), Headers(headers))
