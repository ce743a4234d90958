"""A small HTTP/1.1 client over one stream, for the fleet, the terminal chat, the benchmarks and the tests.

Owns one connection: requests one after the other, responses whole or piece by piece. Does not know host names, TLS, redirects
and retries; `tlserve.http.client.pool` keeps connections open. Source: h11's client side.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType

import attrs
import h11
import trio

from tlserve.http.messages import Headers

_RECEIVE_BYTES = 65_536
_MAX_HEAD_BYTES = 1 << 20


class ResponseBroken(Exception):
    """The connection ended before the response was complete, or the received bytes are not HTTP."""


@attrs.frozen
class HttpResponse:
    """A whole response."""

    status: int
    headers: Headers
    body: bytes


_BROKEN = (h11.ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError)


class ResponseStream:
    """A response whose head has arrived; the body is read in pieces, in order, once."""

    def __init__(self, status: int, headers: Headers, machine: h11.Connection, stream: trio.abc.Stream) -> None:
        self.status = status
        self.headers = headers
        self._machine = machine
        self._stream = stream

    async def receive(self) -> bytes:
        """Return the next bytes of the body as they arrive, b"" at its end; raises `ResponseBroken`."""
        event = await _next_event(self._machine, self._stream)
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def read(self, limit_bytes: float = math.inf) -> bytes:
        """Return the rest of the body; raises `ResponseBroken`, also if it is larger than `limit_bytes`."""
        parts, size = [], 0
        while isinstance(event := await _next_event(self._machine, self._stream), h11.Data):
            parts.append(bytes(event.data))
            size += len(event.data)
            if size > limit_bytes:
                raise ResponseBroken(f"the response is larger than {limit_bytes} bytes")
        return b"".join(parts)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of the body without their ends, each as soon as it is complete."""
        rest = b""
        while part := await self.receive():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line
        if rest:
            yield rest


class HttpClient:
    """One connection to a server, open until `aclose`; `async with` closes it."""

    def __init__(self, stream: trio.abc.Stream, host: str = "localhost") -> None:
        self.stream = stream
        self._host = host
        self._machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)

    async def request(
        self, method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b""
    ) -> HttpResponse:
        """Send a request and return its whole response; raises `ResponseBroken`."""
        answer = await self.open(method, target, headers, body)
        return HttpResponse(answer.status, answer.headers, await answer.read())

    async def open(
        self, method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b""
    ) -> ResponseStream:
        """Send a request and return its response as soon as the head has arrived; raises `ResponseBroken`."""
        try:
            if self._machine.our_state is h11.DONE:
                self._machine.start_next_cycle()
            await self.stream.send_all(self._request_bytes(method, target, [*headers, ("Host", self._host)], body))
        except _BROKEN as error:
            raise _broken(error) from error
        event: object = h11.InformationalResponse(status_code=100, headers=[])
        while isinstance(event, h11.InformationalResponse):
            event = await _next_event(self._machine, self.stream)
        if not isinstance(event, h11.Response):
            raise ResponseBroken("the connection was closed before a response arrived")
        pairs = ((name.decode("ascii"), value.decode("latin-1")) for name, value in event.headers.raw_items())
        return ResponseStream(event.status_code, Headers(pairs), self._machine, self.stream)

    def _request_bytes(self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
        fields = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
        if (body or method == "POST") and all(name.lower() != "transfer-encoding" for name, _ in headers):
            fields.append((b"Content-Length", b"%d" % len(body)))
        parts = [self._machine.send(h11.Request(method=method, target=target, headers=fields))]
        if body:
            parts.append(self._machine.send(h11.Data(data=body)))
        parts.append(self._machine.send(h11.EndOfMessage()))
        return b"".join(parts)

    @property
    def is_reusable(self) -> bool:
        """Say whether the last response was read to its end and the connection is open for another request."""
        return self._machine.our_state is h11.DONE and self._machine.their_state is h11.DONE

    async def aclose(self) -> None:
        """Close the connection at once."""
        await trio.aclose_forcefully(self.stream)

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def connect(host: str, port: int) -> HttpClient:
    """Connect to a server over TCP; raises `OSError`."""
    return HttpClient(await trio.open_tcp_stream(host, port), f"{host}:{port}")


async def _next_event(machine: h11.Connection, stream: trio.abc.Stream) -> object:
    try:
        while (event := machine.next_event()) is h11.NEED_DATA:
            machine.receive_data(bytes(await stream.receive_some(_RECEIVE_BYTES)))
    except _BROKEN as error:
        raise _broken(error) from error
    return event


def _broken(error: Exception) -> ResponseBroken:
    return ResponseBroken(str(error) or "the connection was lost")
