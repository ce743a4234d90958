"""The end of a server: what closes when the drain begins, what is waited for, and what is cut at its limit.

Owns the order of the end, and the two extra steps of a server that is also a node of a fleet: heads fetch the rest of their
sessions by new requests, so the HTTP server accepts requests until they have done so. When to cut is decided by
`tlserve.lifecycle.drain`.

The nursery of `run`:

    run
    |- _drain_after_sessions     only for a node with open sessions, from the beginning of the drain
    |- _cut_after_sessions       the same, from the cut
    `- Drain.run                 the body: waits for the stop, drains, cuts at the deadline, returns the exit code
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from tlserve.http.server import Server
from tlserve.lifecycle.drain import CUT_GRACE_S, Drain
from tlserve.programs.hosted_model import HostedBackend

if TYPE_CHECKING:
    from tlserve.fleet.node.service import NodeService

CUT_NEWS_S = 1.0
"""How long heads can still fetch the ends of their sessions from a node that is cut, in seconds."""


LAST_REQUEST_S = 1.0
"""How long an open connection can wait with its last request if the listening sockets live on, in seconds."""


class ServerEnd:
    """The parts of a server that end with it; `node` is None for a server that is not a node.

    `in_background` returns the number of responses that are made without an open request.

    `living_on` returns the servers whose listening sockets have another owner when the end begins. They answer what their open
    connections still send, so the backends stay open.
    """

    def __init__(
        self,
        server: Server,
        backends: Sequence[HostedBackend],
        node: NodeService | None,
        living_on: Callable[[], Sequence[Server]] = tuple,
        in_background: Callable[[], int] = int,
    ) -> None:
        self._server = server
        self._backends = backends
        self._node = node
        self._living_on = living_on
        self._in_background = in_background
        self._retired: Sequence[Server] = ()

    async def run(self, drain: Drain, wait_answered: Callable[[], Awaitable[None]]) -> int:
        """Wait until `drain` begins, end everything in order, and return the exit code.

        `wait_answered` returns when the HTTP server has answered every request.
        """
        async with trio.open_nursery() as nursery:
            code = await drain.run(
                close=partial(self._close, nursery),
                open_requests=self._open_requests,
                wait_ended=wait_answered,
                cut=partial(self._cut, nursery),
            )
            nursery.cancel_scope.cancel()
        return code

    @property
    def _open_sessions(self) -> int:
        return 0 if self._node is None else self._node.open_sessions

    def _open_requests(self) -> int:
        if self._retired:
            return sum(server.open_connections for server in self._retired) + self._in_background()
        return self._server.open_requests + self._open_sessions + self._in_background()

    async def _close(self, nursery: trio.Nursery) -> None:
        """Admit nothing more, except from clients that are connected to a server whose listening sockets live on."""
        self._retired = self._living_on()
        for server in self._retired:
            await server.retire(LAST_REQUEST_S)
        if self._retired:
            return
        for backend in self._backends:
            backend.close()
        if self._node is not None:
            self._node.close()
        if self._open_sessions:
            nursery.start_soon(self._drain_after_sessions)
        else:
            self._server.drain()

    async def _drain_after_sessions(self) -> None:
        """Let the heads fetch the rest of their sessions: each poll is a new request, which a drained server refuses."""
        await self._wait_no_sessions()
        self._server.drain()

    def _cut(self, nursery: trio.Nursery) -> None:
        """End every open request with an error."""
        for backend in self._backends:
            backend.cut()
        if self._open_sessions:
            nursery.start_soon(self._cut_after_sessions)
        else:
            self._server.cut(CUT_GRACE_S)

    async def _cut_after_sessions(self) -> None:
        """Let the heads learn how their sessions ended, which their next polls return."""
        with trio.move_on_after(CUT_NEWS_S):
            await self._wait_no_sessions()
        self._server.cut(CUT_GRACE_S - CUT_NEWS_S)

    async def _wait_no_sessions(self) -> None:
        if self._node is not None:
            await self._node.wait_empty()
