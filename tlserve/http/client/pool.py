"""Kept connections to one server, for requests that can be sent twice without harm.

Owns the idle connections, and the one retry: a server may close an idle connection at any time, so a request that fails on a
kept connection is sent again over a new one. Does not know time: the caller sets the deadline, and a request that is cancelled
closes its connection. Source: RFC 9112 section 9.3.1 (retrying).
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from tlserve.http.client.connection import HttpClient, HttpResponse, ResponseBroken
from tlserve.http.client.origin import OpenStream

MAX_ANSWER_BYTES = 1 << 28
MAX_IDLE = 16
CLOSE_LIMIT_S = 1.0


class ClientPool:
    """Connections to one server that are opened by `open_stream` as they are needed; `aclose` closes those that idle."""

    def __init__(self, open_stream: OpenStream, host: str) -> None:
        self._open_stream = open_stream
        self._host = host
        self._idle: list[HttpClient] = []
        self._closed = False

    async def request(
        self, method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b""
    ) -> HttpResponse:
        """Send a request and return its whole response, with one retry if a kept connection breaks.

        Raises `ResponseBroken` and `OSError`.
        """
        pairs = tuple(headers)
        if self._idle:
            try:
                return await self._ask(self._idle.pop(), method, target, pairs, body)
            except ResponseBroken:
                pass
        return await self._ask(HttpClient(await self._open_stream(), self._host), method, target, pairs, body)

    async def aclose(self) -> None:
        """Close the idle connections, and each other one at the end of its request."""
        self._closed = True
        # each is closed at once; a cancellation at the first would leave the others open
        with trio.move_on_after(CLOSE_LIMIT_S, shield=True):
            while self._idle:
                await self._idle.pop().aclose()

    async def _ask(
        self, client: HttpClient, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes
    ) -> HttpResponse:
        keep = False
        try:
            answer = await client.open(method, target, headers, body)
            whole = HttpResponse(answer.status, answer.headers, await answer.read(MAX_ANSWER_BYTES))
            keep = client.is_reusable and not self._closed and len(self._idle) < MAX_IDLE
            return whole
        finally:
            if keep:
                self._idle.append(client)
            else:
                await client.aclose()
