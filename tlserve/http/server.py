"""The server: accept connections within the limit, drain, cut.

Owns the two nurseries: acceptors end when the drain begins, connections end after their requests; the cut is a deadline of the
second one. Does not know addresses and what is served.

    connections nursery                      deadline set by `cut`
      |- acceptors nursery                   cancelled by `drain`
      |    |- one task per listener
      |- one task per connection
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence

import trio

from tlserve.config.settings import HttpSettings
from tlserve.http.connection import Connection, ServerState
from tlserve.http.exchange import Handler, RenderFault, Service
from tlserve.http.messages import render_plain_fault
from tlserve.http.sockets.stream_listener import AcceptsWaiting
from tlserve.http.sockets.tls import shake_hands

logger = logging.getLogger("tlserve.http")

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_EXHAUSTED_PAUSE_S = 0.1

ACCEPTS_A_TURN = 64
"""Connections that are accepted in one turn of the event loop: a busy server has few turns in a second."""

Listener = trio.abc.Listener[trio.abc.Stream]


class Server:
    """Serves `handler` over listeners; `cutting` is set when open requests have only the grace time left."""

    def __init__(
        self, settings: HttpSettings, handler: Handler, render_fault: RenderFault = render_plain_fault
    ) -> None:
        self._service = Service(settings=settings, handler=handler, render_fault=render_fault)
        self._state = ServerState()
        self._accepting = trio.CancelScope()
        self._connections = trio.CancelScope()
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
    def draining(self) -> bool:
        """Say whether the drain has begun."""
        return self._state.draining

    async def serve(
        self, listeners: Sequence[Listener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until `drain` was called and the last request is done, or `cut` was. Closes `listeners`."""
        places = trio.Semaphore(self._service.settings.max_connections + len(listeners) - 1)
        with self._connections:
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as acceptors:
                        for listener in listeners:
                            acceptors.start_soon(self._accept, listener, places, connections)
                        task_status.started()

    def drain(self) -> None:
        """Close the listeners and the idle connections; open requests finish, and each is the last of its connection."""
        self._state.drain()
        self._accepting.cancel()

    def cut(self, grace_s: float = 0.0) -> None:
        """Drain, set `cutting`, and cancel what is still open after `grace_s`."""
        self.drain()
        self.cutting.set()
        self._connections.deadline = min(self._connections.deadline, trio.current_time() + max(grace_s, 0.0))

    async def _accept(self, listener: Listener, places: trio.Semaphore, connections: trio.Nursery) -> None:
        """Accept while there are places: each listener holds one while it waits, and hands it to the connection."""
        async with listener:
            while True:
                await places.acquire()
                connections.start_soon(self._serve_connection, await _accept_one(listener), places)
                for stream in _accept_waiting(listener, min(ACCEPTS_A_TURN - 1, places.value)):
                    places.acquire_nowait()
                    connections.start_soon(self._serve_connection, stream, places)

    async def _serve_connection(self, stream: trio.abc.Stream, places: trio.Semaphore) -> None:
        self._state.open_connections += 1
        try:
            if await self._shake_hands(stream):
                await Connection(stream, self._service, self._state).run()
            else:
                await trio.aclose_forcefully(stream)
        finally:
            self._state.open_connections -= 1
            places.release()

    async def _shake_hands(self, stream: trio.abc.Stream) -> bool:
        """Do the TLS handshake in time; until then the connection is idle, and a drain ends it."""
        with self._state.idle(self._service.settings.handshake_timeout_ms / 1000):
            if await shake_hands(stream):
                return True
        return False


def _accept_waiting(listener: Listener, most: int) -> Sequence[trio.abc.Stream]:
    return listener.accept_waiting(most) if isinstance(listener, AcceptsWaiting) else ()


async def _accept_one(listener: Listener) -> trio.abc.Stream:
    """Accept one connection; if the machine has no descriptors or memory left, log that and try again."""
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            logger.error("cannot accept a connection: %s; trying again", error.strerror)
            await trio.sleep(_EXHAUSTED_PAUSE_S)
