"""Kept connections to one server, for requests that can be sent twice without harm.

Owns the idle connections, and the one retry: a server may close an idle connection at any time, so a request that fails on a
kept connection is sent again over a new one. Does not know time: the caller sets the deadline, and a request that is cancelled
closes its connection. Source: RFC 9112 section 9.3.1 (retrying).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from tlserve.http.client.connection import HttpClient, HttpResponse, ResponseBroken

OpenStream = Callable[[], Awaitable[trio.abc.Stream]]

MAX_ANSWER_BYTES = 1 << 28
MAX_IDLE = 16
CLOSE_LIMIT_S = 1.0

_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(?::(?P<port>[0-9]{1,5}))?/?")


@attrs.frozen
class Origin:
    """Where a server is: "http://host:port" or "https://host:port"."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return the value of the Host field."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the address as text."""
        return f"{self.scheme}://{self.authority}"


def parse_origin(url: str) -> Origin:
    """Parse `url`; raises `ValueError` if it has a path, a user, or another scheme."""
    match = _ORIGIN.fullmatch(url)
    if match is None or int(match["port"] or 0) > 65_535:
        raise ValueError(f"{url!r} is not an address like http://10.0.0.7:8000")
    default = 443 if match["scheme"] == "https" else 80
    return Origin(match["scheme"], match["host"].strip("[]"), int(match["port"] or default))


def stream_opener(origin: Origin, tls: ssl.SSLContext | None = None, server_name: str = "") -> OpenStream:
    """Return a function that connects to `origin`. `server_name`: the name in the certificate, if it is not the host.

    `tls` None: https trusts the certificates that this machine trusts.
    """
    context = (tls or ssl.create_default_context()) if origin.scheme == "https" else None

    async def open_stream() -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(origin.host, origin.port)
        if context is None:
            return stream
        return await _shake_hands(
            trio.SSLStream(stream, context, server_hostname=server_name or origin.host, https_compatible=True)
        )

    return open_stream


async def _shake_hands(stream: trio.SSLStream[trio.SocketStream]) -> trio.abc.Stream:
    try:
        await stream.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError):
            raise ResponseBroken(f"TLS handshake failed: {error.__cause__ or 'the connection was lost'}") from error
        raise
    return stream


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
