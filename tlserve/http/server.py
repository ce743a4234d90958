"""The server: accept connections within the limits, drain, cut.

Owns the two nurseries: acceptors end when the drain begins, connections end after their requests; the cut is a deadline of the
second one. Does not know addresses and what is served.

    connections nursery                      deadline set by `cut`
      |- acceptors nursery                   cancelled by `drain`
      |    |- one task per listener
      |- one task per connection
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import trio

from tlserve.config.tables.network import HttpSettings
from tlserve.http.connection import Connection
from tlserve.http.exchange import Handler, RenderFault, Service
from tlserve.http.messages import HttpFault, render_plain_fault
from tlserve.http.server_state import ConnectionPlace, Episode, ServerState
from tlserve.http.sockets.peers import address_of, is_this_machine, peer_name
from tlserve.http.sockets.stream_listener import AcceptsWaiting
from tlserve.http.sockets.tls import shake_hands, transport_of

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_EXHAUSTED_PAUSE_S = 0.1
_MOST_REFUSALS = 64

ACCEPTS_A_TURN = 64
"""Connections that are accepted in one turn of the event loop: a busy server has few turns in a second."""

Listener = trio.abc.Listener[trio.abc.Stream]


class Server:
    """Serves `handler` over listeners; `cutting` is set when open requests have only the grace time left."""

    def __init__(
        self,
        settings: HttpSettings,
        handler: Handler,
        render_fault: RenderFault = render_plain_fault,
        render_refusal: RenderFault = render_plain_fault,
        is_trusted: Callable[[str], bool] = is_this_machine,
    ) -> None:
        """`render_refusal` shows the faults of connections that are refused when they are accepted; it must not log them.

        `is_trusted` says of a peer, such as "127.0.0.1:50000", that its address has no limit of its own.
        """
        self._service = Service(
            settings=settings, handler=handler, render_fault=render_fault, render_refusal=render_refusal
        )
        self._state = ServerState(settings)
        self._is_trusted = is_trusted
        self._exhausted = Episode()
        self._refused_addresses = Episode()
        self._refusals = 0
        self._accepting = trio.CancelScope()
        self._connections = trio.CancelScope()
        self._all_accepted = trio.Event()
        self.cutting = trio.Event()

    @property
    def open_connections(self) -> int:
        """Return the number of connections that are being served."""
        return self._state.open_connections

    @property
    def open_requests(self) -> int:
        """Return the number of requests that have begun to arrive and whose answer is not complete."""
        return self._state.open_requests

    @property
    def bytes_in_flight(self) -> int:
        """Return the bytes of memory that are counted for requests that have not ended."""
        return self._state.bodies.taken

    @property
    def draining(self) -> bool:
        """Say whether the drain has begun."""
        return self._state.draining

    async def serve(
        self, listeners: Sequence[Listener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until `drain` was called and the last request is done, or `cut` was. Closes `listeners`."""
        with self._connections:
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as acceptors:
                        for listener in listeners:
                            acceptors.start_soon(self._accept, listener, connections)
                        task_status.started()
                self._all_accepted.set()

    async def retire(self, last_request_s: float) -> None:
        """Stop accepting, and give each open connection one more request, which must begin within the time.

        For a server whose listening sockets live on elsewhere. Afterwards every accepted connection is in `open_connections`.
        """
        self._state.retire(last_request_s)
        self._accepting.cancel()
        await self._all_accepted.wait()
        for _ in range(2):  # the tasks of the last connections start in the next turn of the event loop
            await trio.lowlevel.checkpoint()

    def drain(self) -> None:
        """Close the listeners and the idle connections; open requests finish, and each is the last of its connection."""
        self._state.drain()
        self._accepting.cancel()

    def cut(self, grace_s: float = 0.0) -> None:
        """Drain, set `cutting`, and cancel what is still open after `grace_s`."""
        self.drain()
        self.cutting.set()
        self._connections.deadline = min(self._connections.deadline, trio.current_time() + max(grace_s, 0.0))

    async def _accept(self, listener: Listener, connections: trio.Nursery) -> None:
        """Accept connections; without a free place the one that was accepted last waits for it, and others in the backlog."""
        async with listener:
            while True:
                await self._admit(await self._accept_one(listener), connections)
                waiting = _accept_waiting(listener, self._state.places_soon(ACCEPTS_A_TURN - 1))
                try:
                    while waiting:
                        await self._admit(waiting.pop(0), connections)
                finally:
                    for stream in waiting:
                        await self._give_up(stream, connections)

    async def _accept_one(self, listener: Listener) -> trio.abc.Stream:
        """Accept one connection; if the process has no descriptors or memory left, log that, make room, and try again."""
        while True:
            try:
                return await listener.accept()
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhausted.warn(
                    "cannot accept a connection: %s; idle connections are closed, and it is tried again", error.strerror
                )
                self._state.make_room()
                await trio.sleep(_EXHAUSTED_PAUSE_S)

    async def _admit(self, stream: trio.abc.Stream, connections: trio.Nursery) -> None:
        """Start the connection once it has a place, or refuse it if its address has too many."""
        peer = peer_name(stream)
        address = "" if self._is_trusted(peer) else address_of(peer)
        if not self._state.has_room_for(address):
            connections.start_soon(self._refuse, stream, address)
            return
        try:
            place = await self._state.take_place(address)
        except trio.Cancelled:
            await self._give_up(stream, connections)
            raise
        connections.start_soon(self._serve_connection, stream, place)

    async def _give_up(self, stream: trio.abc.Stream, connections: trio.Nursery) -> None:
        """Close a connection that still waits for a place when the acceptors end, unless each accepted one gets its answer."""
        if self._state.is_retired:
            connections.start_soon(self._serve_connection, stream, self._state.add_place())
        else:
            await trio.aclose_forcefully(stream)

    async def _refuse(self, stream: trio.abc.Stream, address: str) -> None:
        """Answer a connection that is one too many of its address; without a handshake, and some of them at once at most."""
        most = self._state.most_of_address
        self._refused_addresses.warn(
            "%s has %d open connections, all in use, and gets no more (max_connections_per_address)", address, most
        )
        if self._refusals >= _MOST_REFUSALS or isinstance(stream, trio.SSLStream):
            await trio.aclose_forcefully(transport_of(stream))
            return
        self._refusals += 1
        try:
            message = f"your address has {most} open connections, which is its limit (max_connections_per_address)"
            fault = HttpFault(429, message, None, (("Retry-After", "1"),))
            await Connection(stream, self._service, self._state).refuse(fault)
        finally:
            self._refusals -= 1

    async def _serve_connection(self, stream: trio.abc.Stream, place: ConnectionPlace) -> None:
        try:
            if await self._shake_hands(stream, place):
                await Connection(stream, self._service, self._state, place).run()
            else:
                await trio.aclose_forcefully(stream)
        finally:
            self._state.give_back(place)

    async def _shake_hands(self, stream: trio.abc.Stream, place: ConnectionPlace) -> bool:
        """Do the TLS handshake in time; until then the connection is idle, and a drain ends it."""
        with self._state.idle(place, self._service.settings.handshake_timeout_ms / 1000):
            if await shake_hands(stream):
                return True
        return False


def _accept_waiting(listener: Listener, most: int) -> list[trio.abc.Stream]:
    return list(listener.accept_waiting(most)) if isinstance(listener, AcceptsWaiting) else []
