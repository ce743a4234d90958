"""A request's body: read whole, by Content-Length or in chunks, within its limits of bytes and time; and `100 Continue`.

Joins h11's data events to one bytes object, and gives the bytes of the next request back to the wire. Does not know what the
bytes mean. Sources: RFC 9112 sections 6 and 7.1; RFC 9110 section 10.1.1.
"""

from __future__ import annotations

from collections.abc import Callable

import h11
import trio

from tlserve.config.tables.network import HttpSettings
from tlserve.http import limits
from tlserve.http.messages import Headers, HttpFault
from tlserve.http.server_state import ServerState
from tlserve.http.wire import PeerGone, Wire

DISCARD_BYTES = 65_536
"""An unread body up to this size is read and dropped, so that the connection stays open; above it closing is cheaper."""


class RequestBody:
    """The body of the request that `machine` has just parsed; `on_end` is called once, after its last byte."""

    def __init__(
        self,
        machine: h11.Connection,
        wire: Wire,
        headers: Headers,
        settings: HttpSettings,
        state: ServerState,
        on_end: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._wire = wire
        self._headers = headers
        self._settings = settings
        self._state = state
        self._on_end = on_end
        self._deadline_s = trio.current_time() + settings.body_timeout_ms / 1000
        self._parts: list[bytes] = []
        self._data_bytes = 0
        self._held_bytes = 0
        self._wire_bytes = 0
        self._fault: HttpFault | None = None
        self.length = limits.declared_length(headers)
        self.ended = False

    def begin(self) -> None:
        """End at once if the request has no body."""
        if self.length == 0:
            self._parse()

    async def read(self) -> bytes:
        """Return the whole body; raises `HttpFault` 400, 408, 413 or 415, the same one each time."""
        if self._fault is not None:
            raise self._fault
        try:
            if not self.ended:
                await self._read_checked()
        except HttpFault as fault:
            self._fault = fault
            raise
        return self._joined()

    def hold(self, count: int) -> None:
        """Count `count` more bytes of memory until the request ends, fewer if negative; raises `HttpFault` 413 or 503."""
        what = "the body, the token ids and the log-probabilities of the request are together"
        self._state.bodies.take(count, self._held_bytes, what)
        self._held_bytes += count

    def forget(self) -> None:
        """Drop the bytes of the body, and give back all that is counted: the request has ended."""
        self._parts.clear()
        self._state.bodies.give_back(self._held_bytes)
        self._held_bytes = 0

    def will_end(self) -> bool:
        """Say whether the body is read, or so small that `discard` will read it."""
        waiting = self._machine.they_are_waiting_for_100_continue
        small = self.length is not None and self.length <= DISCARD_BYTES
        return self.ended or (small and not waiting and self._fault is None)

    async def discard(self) -> None:
        """Read and drop a body that the handler did not read; afterwards `ended` says whether it was complete."""
        try:
            if not self.ended:
                await self._read_in_time()
        except HttpFault as fault:
            self._fault = fault

    async def _read_checked(self) -> None:
        limits.check_coding(self._headers)
        limits.check_body_bytes(self.length or 0, self._settings)
        if self._machine.they_are_waiting_for_100_continue and not self._wire.received:
            await self._invite()
        await self._read_in_time()

    async def _invite(self) -> None:
        go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
        try:
            await self._wire.send(self._machine.send(go_on))
        except PeerGone:
            raise _cut_short() from None

    async def _read_in_time(self) -> None:
        with trio.move_on_at(self._deadline_s) as scope, self._state.arriving(scope):
            await self._read_to_end()
        if not self.ended:
            raise self._state.fault_of_late_arrival("request body", "body_timeout_ms", self._settings.body_timeout_ms)

    async def _read_to_end(self) -> None:
        self._parse()
        while not self.ended:
            if not self._wire.received and not await self._wire.receive():
                raise _cut_short()
            self._parse()

    def _parse(self) -> None:
        """Pass all received bytes through h11, one event after the other."""
        data = self._wire.take(len(self._wire.received)) if self.length != 0 else b""
        if data:
            self._machine.receive_data(data)
            self._wire_bytes += len(data)
        while not self.ended and (event := self._next_event()) is not h11.NEED_DATA:
            self._apply(event)
        if not self.ended and self.length is None:
            limits.check_framing_bytes(self._wire_bytes - self._data_bytes, self._settings)

    def _next_event(self) -> object:
        try:
            return self._machine.next_event()
        except h11.RemoteProtocolError as error:
            raise limits.fault_of_protocol_error(error) from None

    def _apply(self, event: object) -> None:
        if isinstance(event, h11.Data):
            limits.check_body_bytes(self._data_bytes + len(event.data), self._settings)
            self._state.bodies.take(len(event.data), self._held_bytes)
            self._held_bytes += len(event.data)
            self._parts.append(event.data)
            self._data_bytes += len(event.data)
        else:
            self._end()

    def _end(self) -> None:
        """Give the bytes after the body back to the wire: h11 never holds a byte of the next request."""
        rest, _ = self._machine.trailing_data
        self._wire.received[:0] = rest
        if self.length is None:
            limits.check_framing_bytes(self._wire_bytes - self._data_bytes - len(rest), self._settings)
        self.ended = True
        self._on_end()

    def _joined(self) -> bytes:
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return bytes(self._parts[0])


def _cut_short() -> HttpFault:
    return HttpFault(400, "the connection ended before the request body was complete")
