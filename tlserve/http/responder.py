"""The one answer to one request: whole, or as a stream of chunks; every write goes through here.

Owns the order head, data, end; the fields of every head (Date, Server, Connection); and that a HEAD request gets no body. Does
not know what is answered. Sources: RFC 9110 sections 6.6.1, 9.3.2, 10.2.4; RFC 9112 sections 6, 7.1, 9.6.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from types import TracebackType

import attrs
import h11
import trio

from tlserve.http.messages import Headers, Response
from tlserve.http.wire import PeerGone, Wire

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus} | {
    413: b"Content Too Large",  # RFC 9110's names, which Python has from 3.13 on
    422: b"Unprocessable Content",
}
_BODILESS = frozenset({204, 304})


@functools.lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def _no_tasks(*_: object) -> None:
    raise RuntimeError("this answer has no exchange that could run a task")


@attrs.frozen(kw_only=True)
class Surroundings:
    """What an answer needs of its exchange: whether it is the last, and callbacks for its end and for a lost client."""

    closes: Callable[[], bool] = lambda: True
    on_departed: Callable[[], None] = lambda: None
    on_finished: Callable[[], None] = lambda: None
    start_soon: Callable[..., None] = _no_tasks


class Responder:
    """Answers one request, once. `started`: bytes of the answer may have been sent; `finished`: all of them were."""

    def __init__(self, machine: h11.Connection, wire: Wire, method: str, surroundings: Surroundings) -> None:
        self._machine = machine
        self._wire = wire
        self._method = method
        self._surroundings = surroundings
        self.started = False
        self.finished = False

    async def send(self, response: Response) -> None:
        """Send a whole answer in one write. If the client has disconnected, this task is cancelled."""
        head = self._head(response.status, response.headers, len(response.body))
        parts = [self._machine.send(head)]
        if response.body and not self._bodiless(response.status):
            parts.append(self._machine.send(h11.Data(data=response.body)))
        parts.append(self._machine.send(h11.EndOfMessage()))
        self.started = True
        await self.write(b"".join(parts))
        self._finish()

    def stream(self, status: int, headers: Iterable[tuple[str, str]] = ()) -> BodyWriter:
        """Open an answer of unknown length: `async with responder.stream(200, headers) as body`.

        The head is sent on entering. Leaving in the ordinary way ends the body; leaving with an exception does not, so that
        the client can see that the answer is incomplete.
        """
        return BodyWriter(self, self._machine, self._head(status, Headers(headers), None), self._bodiless(status))

    def start_soon(self, run: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task next to the handler; it is cancelled when the exchange ends."""
        self._surroundings.start_soon(run, *args)

    async def write(self, data: bytes) -> None:
        """Send bytes that the machine has framed; for this package only."""
        try:
            await self._wire.send(data)
        except PeerGone:
            self._surroundings.on_departed()
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError("the client has disconnected") from None

    async def open(self, head: h11.Response) -> None:
        """Send the head of a stream; for `BodyWriter`."""
        data = self._machine.send(head)
        self.started = True
        await self.write(data)

    async def end(self) -> None:
        """Send the end of a stream; for `BodyWriter`."""
        data = self._machine.send(h11.EndOfMessage())
        if data:
            await self.write(data)
        self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._surroundings.on_finished()

    def _bodiless(self, status: int) -> bool:
        return self._method == "HEAD" or status in _BODILESS

    def _head(self, status: int, headers: Headers, length: int | None) -> h11.Response:
        fields = [(b"Date", _date(int(time.time()))), (b"Server", b"tlserve")]
        fields.extend((name.encode("ascii"), value.encode("latin-1")) for name, value in headers)
        if length is not None and status not in _BODILESS:
            fields.append((b"Content-Length", b"%d" % length))
        if self._surroundings.closes():
            fields.append((b"Connection", b"close"))
        return h11.Response(status_code=status, headers=fields, reason=_REASONS.get(status, b""))


class BodyWriter:
    """The body of a streamed answer: each `send` is one chunk and one write (HTTP/1.0: bytes up to the close)."""

    def __init__(self, responder: Responder, machine: h11.Connection, head: h11.Response, bodiless: bool) -> None:
        self._responder = responder
        self._machine = machine
        self._head = head
        self._bodiless = bodiless

    async def send(self, data: bytes) -> None:
        """Send `data` as one chunk. If the client has disconnected, or does not read, this task is cancelled."""
        if self._bodiless or not data:
            await trio.lowlevel.checkpoint()
        else:
            await self._responder.write(self._machine.send(h11.Data(data=data)))

    async def __aenter__(self) -> BodyWriter:
        await self._responder.open(self._head)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self._responder.end()
