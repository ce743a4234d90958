"""A listening socket that gives one connection by waiting, and all that are already there without waiting.

Owns the socket, and the errors of `accept` that belong to one connection only. Does not know what is done with a connection.
A waiting `accept` of trio takes one turn of the event loop for each connection; with many busy connections a turn is long, so
that new clients would wait for as many turns as there are new clients. Source: accept(2), "Error handling".
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import trio

OF_ONE_CONNECTION = frozenset(
    getattr(errno, name)
    for name in (
        *("ECONNABORTED", "EPERM", "EPROTO", "ENOPROTOOPT", "EOPNOTSUPP"),
        *("ENETDOWN", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH", "ENONET"),
    )
    if hasattr(errno, name)
)
"""Errors of `accept` that say that the connection has failed, and nothing of the listener."""


StandardSocket = socket.socket


@runtime_checkable
class AcceptsWaiting(Protocol):
    """A listener that can return the connections that are already there."""

    def accept_waiting(self, most: int) -> Sequence[trio.abc.Stream]:
        """Return at most `most` connections without waiting; none if no client is there, or if the machine has no room."""


class StreamListener(trio.abc.Listener[trio.SocketStream]):
    """Listens on an open socket of the standard library. `lives_on`: a supervisor keeps the socket when this process ends."""

    def __init__(self, opened: socket.socket, *, lives_on: bool = False) -> None:
        self.lives_on = lives_on
        self._opened = opened  # the same socket, for calls that do not wait
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(opened))

    @property
    def socket(self) -> trio.socket.SocketType:
        """Return the listening socket."""
        return self._listener.socket

    @property
    def opened(self) -> StandardSocket:
        """Return the listening socket of the standard library."""
        return self._opened

    async def accept(self) -> trio.SocketStream:
        """Wait for a connection; raises `OSError` if the machine has no descriptors or memory left."""
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                if error.errno not in OF_ONE_CONNECTION:
                    raise

    def accept_waiting(self, most: int) -> list[trio.SocketStream]:
        """Return at most `most` connections that are already there."""
        found: list[trio.SocketStream] = []
        for _ in range(most):
            try:
                accepted, _peer = self._opened.accept()
            except OSError as error:
                if error.errno in OF_ONE_CONNECTION:
                    continue
                break  # nobody waits; or `accept` will raise the reason
            found.append(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))
        return found

    async def aclose(self) -> None:
        """Close the socket."""
        await self._listener.aclose()
