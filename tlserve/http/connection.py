"""One connection from its first byte to its last: wait, parse a head, exchange, again.

Owns the loop, its waiting times, and the answer to bytes that are not a request. Does not know what is served and how many
connections there are. Each request has an h11 machine of its own, which gets exactly the bytes of that request; the bytes of the
next one stay in the wire. Sources: RFC 9112 sections 2.2, 9.3 to 9.6; RFC 9110 section 15.5.9.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import h11
import trio

from tlserve.http import limits
from tlserve.http.exchange import AfterAnswer, Exchange, Service
from tlserve.http.messages import HttpFault, parse_target
from tlserve.http.responder import Responder, Surroundings
from tlserve.http.sockets.tls import transport_of
from tlserve.http.wire import Wire

logger = logging.getLogger("tlserve.http")


class ServerState:
    """What all connections of a server share: whether it drains, how much is open, and the connections that are idle."""

    def __init__(self) -> None:
        self.draining = False
        self.open_connections = 0
        self.open_requests = 0
        self._idle: set[trio.CancelScope] = set()

    def drain(self) -> None:
        """Accept nothing new: connections that wait for a request end at once."""
        self.draining = True
        for scope in tuple(self._idle):
            scope.cancel()

    @contextmanager
    def idle(self, timeout_s: float) -> Iterator[None]:
        """Cancel the block after `timeout_s`, or as soon as the server drains."""
        with trio.move_on_after(timeout_s) as scope:
            self._idle.add(scope)
            if self.draining:
                scope.cancel()
            try:
                yield
            finally:
                self._idle.discard(scope)

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Count one request as open."""
        self.open_requests += 1
        try:
            yield
        finally:
            self.open_requests -= 1


class Connection:
    """Serves the requests of `stream`, one after the other."""

    def __init__(self, stream: trio.abc.Stream, service: Service, state: ServerState) -> None:
        self._wire = Wire(stream, service.settings.write_timeout_ms / 1000)
        self._service = service
        self._settings = service.settings
        self._state = state
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
        with self._state.idle(self._settings.idle_timeout_ms / 1000):
            while await self._wire.receive():
                if self._has_begun():
                    return True
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
            exchange = Exchange(machine, self._wire, head, target, self._service, self._peer, self._is_draining)
            return await exchange.run()

    def _is_draining(self) -> bool:
        return self._state.draining

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
        with trio.move_on_after(timeout_ms / 1000):
            while (length := limits.find_head(self._wire.received, searched, self._settings)) is None:
                searched = len(self._wire.received)
                if not await self._wire.receive():
                    return None
            return length
        raise HttpFault(408, f"the request headers did not arrive within {timeout_ms} ms (header_timeout_ms)")

    async def _refuse(self, machine: h11.Connection, head: h11.Request | None, fault: HttpFault) -> AfterAnswer:
        """Answer bytes that cannot be handled as a request; the connection cannot be used after them."""
        method = head.method.decode("ascii") if head else ""
        responder = Responder(machine, self._wire, method, Surroundings())
        try:
            await responder.send(self._service.render_fault(fault, None))
        except trio.BrokenResourceError:
            return AfterAnswer.CUT
        return AfterAnswer.LINGER


def peer_name(stream: trio.abc.Stream) -> str:
    """Return "address:port" of the other side, as the kernel knows it; empty for a stream without one."""
    transport = transport_of(stream)
    if not isinstance(transport, trio.SocketStream):
        return ""
    try:
        host, port, *_ = transport.socket.getpeername()
    except (OSError, ValueError):
        return ""
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
