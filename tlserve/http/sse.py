"""Server-sent events: the form of an event, and a stream of events that is never silent for long.

Owns the bytes between events, the comments and the pings. Does not know what the payloads mean. Only `data:` and
`event:` lines and comments, such as `: ping`, are ever written: no `id:` or `retry:`. Source: WHATWG HTML section 9.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import attrs
import trio

from tlserve.http.responder import BodyWriter, Responder

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_HEADERS = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))


@attrs.frozen
class StreamForm:
    """The media type of a stream, and what is sent when it would be silent for long; b"": nothing."""

    media_type: str
    ping: bytes


EVENTS = StreamForm("text/event-stream; charset=utf-8", PING)


def event(payload: str | bytes, name: str = "") -> bytes:
    """Return one event, named if it has a name; raises `ValueError` if `payload` has a line break, which would end the line."""
    data = payload.encode() if isinstance(payload, str) else payload
    if b"\n" in data or b"\r" in data:
        raise ValueError("the payload of an event must be one line")
    named = b"event: %b\n" % name.encode() if name else b""
    return named + b"data: " + data + b"\n\n"


def comment(words: str) -> bytes:
    """Return a comment, which readers of events skip; `words` are one line of ASCII."""
    return b": " + words.encode("ascii") + b"\n\n"


class EventStream:
    """An answer made of events: `async with EventStream(responder, ping_interval_ms=15_000) as events`.

    The head is sent on entering. Events and pings never mix: a ping is written only while no event is being written, and an event
    waits for a ping that is being written.
    """

    def __init__(
        self,
        responder: Responder,
        form: StreamForm = EVENTS,
        *,
        ping_interval_ms: int,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._responder = responder
        self._form = form
        self._body: BodyWriter = responder.stream(200, (("Content-Type", form.media_type), *_HEADERS, *headers))
        self._interval_s = ping_interval_ms / 1000
        self._last_s = 0.0
        self._sending = False
        self._ping_done: trio.Event | None = None
        self._pinging = trio.CancelScope()

    async def send(self, *payloads: str | bytes) -> None:
        """Send one event per payload, all in one write."""
        await self.send_raw(b"".join(map(event, payloads)))

    async def send_raw(self, data: bytes) -> None:
        """Send events and comments that are already formed, such as `DONE`, in one write."""
        if self._ping_done is not None:
            await self._ping_done.wait()
        self._sending = True
        try:
            await self._body.send(data)
        finally:
            self._sending = False
            self._last_s = trio.current_time()

    async def __aenter__(self) -> EventStream:
        await self._body.__aenter__()
        self._last_s = trio.current_time()
        if self._form.ping:
            self._responder.start_soon(self._ping)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ping_done is None:
            self._pinging.cancel()
        else:
            self._sending = True  # no further ping; the one being written ends within the write time
            await self._ping_done.wait()
            self._pinging.cancel()
        await self._body.__aexit__(kind, error, traceback)

    async def _ping(self) -> None:
        with self._pinging:
            while True:
                await trio.sleep_until(self._last_s + self._interval_s)
                if self._sending:
                    self._last_s = trio.current_time()
                elif trio.current_time() >= self._last_s + self._interval_s:
                    await self._ping_once()

    async def _ping_once(self) -> None:
        self._ping_done = trio.Event()
        try:
            await self._body.send(self._form.ping)
        except trio.BrokenResourceError:
            self._pinging.cancel()  # the client has disconnected, and the handler's scope is cancelled already
        finally:
            self._last_s = trio.current_time()
            self._ping_done.set()
            self._ping_done = None
