"""One connection from its first byte to its last: wait, parse a head, exchange, again.

Owns the loop, its waiting times, and the answer to bytes that are not a request. Does not know what is served and how many
connections there are. Each request has an h11 machine of its own, which gets exactly the bytes of that request; the bytes of the
next one stay in the wire. Sources: RFC 9112 sections 2.2, 9.3 to 9.6; RFC 9110 section 15.5.9.
"""

from __future__ import annotations

import logging
import sys

import h11
import trio

from tlserve.http import limits
from tlserve.http.exchange import AfterAnswer, Exchange, Service
from tlserve.http.messages import HttpFault, parse_target
from tlserve.http.responder import Responder, Surroundings
from tlserve.http.server_state import ConnectionPlace, ServerState
from tlserve.http.sockets.peers import peer_name
from tlserve.http.wire import Wire

logger = logging.getLogger("tlserve.http")


class Connection:
    """Serves the requests of `stream`, one after the other."""

    def __init__(
        self, stream: trio.abc.Stream, service: Service, state: ServerState, place: ConnectionPlace | None = None
    ) -> None:
        self._wire = Wire(stream, service.settings.write_timeout_ms / 1000)
        self._service = service
        self._settings = service.settings
        self._state = state
        self._place = place or ConnectionPlace()
        self._peer = peer_name(stream)

    async def run(self) -> None:
        """Serve until the client, a limit or the drain ends the connection; raises only cancellation."""
        ending = AfterAnswer.CUT
        try:
            ending = await self._serve()
        except Exception:
            logger.exception("a connection from %s failed", self._peer)
        except BaseExceptionGroup as group:
            failures, cancellation = group.split(Exception)
            if failures is not None:
                logger.error("a connection from %s failed while it was closed", self._peer, exc_info=failures)
            if cancellation is not None:
                raise cancellation from None
        finally:
            await self._end(ending)

    async def refuse(self, fault: HttpFault) -> None:
        """Answer with `fault` without reading a request, and close."""
        machine = h11.Connection(h11.SERVER)
        try:
            await Responder(machine, self._wire, "", Surroundings()).send(self._service.render_refusal(fault, None))
            await self._wire.linger()
        except trio.BrokenResourceError:
            await self._wire.abort()

    async def _end(self, ending: AfterAnswer) -> None:
        if ending is AfterAnswer.LINGER:
            await self._wire.linger()
        elif ending is AfterAnswer.CLOSE:
            await self._wire.close()
        else:
            await self._wire.abort()

    async def _serve(self) -> AfterAnswer:
        ending = AfterAnswer.KEEP
        while ending is AfterAnswer.KEEP:
            ending = await self._serve_next() if await self._wait_request() else AfterAnswer.CLOSE
        return ending

    async def _wait_request(self) -> bool:
        """Wait for the first byte of a request; False when there will be none."""
        if self._has_begun():
            return True
        with self._state.idle(self._place, self._settings.idle_timeout_ms / 1000, self._wire.has_bytes):
            while await self._wire.receive():
                if self._has_begun():
                    return True
                if self._state.draining:
                    break
        return False

    def _has_begun(self) -> bool:
        """Say whether a byte of a request has arrived; empty lines before it, or half of one, do not count."""
        self._wire.take(limits.empty_lines_length(self._wire.received))
        return bytes(self._wire.received[:2]) not in (b"", b"\r")

    async def _serve_next(self) -> AfterAnswer:
        machine = h11.Connection(h11.SERVER, max_incomplete_event_size=sys.maxsize)
        head: h11.Request | None = None
        with self._state.open_request():
            try:
                head = await self._read_head(machine)
                if head is None:
                    return AfterAnswer.CLOSE
                limits.check_head(head)
                target = parse_target(head.target.decode("ascii"))
            except HttpFault as fault:
                return await self._refuse(machine, head, fault)
            exchange = Exchange(machine, self._wire, head, target, self._service, self._peer, self._state)
            return await exchange.run()

    async def _read_head(self, machine: h11.Connection) -> h11.Request | None:
        """Read and parse one head; None if the input ends before it does. Raises `HttpFault`."""
        length = await self._find_head()
        if length is None:
            return None
        machine.receive_data(self._wire.take(length))
        try:
            event = machine.next_event()
        except h11.RemoteProtocolError as error:
            raise limits.fault_of_protocol_error(error) from None
        assert isinstance(event, h11.Request)
        return event

    async def _find_head(self) -> int | None:
        timeout_ms = self._settings.header_timeout_ms
        searched = 0
        with trio.move_on_after(timeout_ms / 1000) as scope, self._state.in_head(self._place, scope):
            while (length := limits.find_head(self._wire.received, searched, self._settings)) is None:
                searched = len(self._wire.received)
                if not await self._wire.receive():
                    return None
            return length
        if not self._place.counts:
            raise HttpFault(408, "the request headers did not arrive in time: another client needs the connection")
        raise self._state.fault_of_late_arrival("request headers", "header_timeout_ms", timeout_ms)

    async def _refuse(self, machine: h11.Connection, head: h11.Request | None, fault: HttpFault) -> AfterAnswer:
        """Answer bytes that cannot be handled as a request; the connection cannot be used after them."""
        method = head.method.decode("ascii") if head else ""
        responder = Responder(machine, self._wire, method, Surroundings())
        try:
            await responder.send(self._service.render_fault(fault, None))
        except trio.BrokenResourceError:
            return AfterAnswer.CUT
        return AfterAnswer.LINGER
