"""Where a server is, and connections to it: over TCP, or over TLS with the certificates that are trusted.

Owns the reading of origins, the handshake of a client, and the one line that says why a handshake failed. Does not know requests.
Sources: RFC 6454 section 4 (origins), RFC 9110 section 4.3.4 (https certificate verification).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable
from urllib.parse import SplitResult, urlsplit

import attrs
import trio

from tlserve.errors import OperatorError
from tlserve.http.client.connection import HttpClient, ResponseBroken

OpenStream = Callable[[], Awaitable[trio.abc.Stream]]

_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(?::(?P<port>[0-9]{1,5}))?/?")
_PORTS = {"http": 80, "https": 443}
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""What OpenSSL reports when a server answers in clear text."""


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
    return Origin(match["scheme"], match["host"].strip("[]"), int(match["port"] or _PORTS[match["scheme"]]))


def split_url(url: str) -> tuple[Origin, SplitResult]:
    """Return the origin of an http or https URL, and all its parts; raises `ValueError` for other texts."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} has no http or https address")
    return Origin(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]), parts


def stream_opener(origin: Origin, tls: ssl.SSLContext | None = None, server_name: str = "") -> OpenStream:
    """Return a function that connects to `origin`. `server_name`: the name in the certificate, if it is not the host.

    `tls` None: https trusts the certificates that this machine trusts.
    """
    context = (tls or trust()) if origin.scheme == "https" else None

    async def open_stream() -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(origin.host, origin.port)
        if context is None:
            return stream
        return await _shake_hands(
            trio.SSLStream(stream, context, server_hostname=server_name or origin.host, https_compatible=True)
        )

    return open_stream


def trust(ca_file: str = "") -> ssl.SSLContext:
    """Return a context that trusts the certificates in `ca_file`, without it those that this machine trusts.

    Raises `OperatorError` if the file cannot be read or has no certificate.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise OperatorError(f"{ca_file} has no certificate in PEM form") from None
    except OSError as error:
        raise OperatorError(f"cannot read the certificates in {ca_file}: {error.strerror}") from None


def trust_for(origin: Origin, ca_file: str = "") -> ssl.SSLContext | None:
    """Return whom a client of `origin` trusts, as `trust` does; None for http."""
    return trust(ca_file) if origin.scheme == "https" else None


async def open_client(origin: Origin, tls: ssl.SSLContext | None = None) -> HttpClient:
    """Connect to `origin`; raises `OSError`, and `HandshakeFailed` if TLS cannot be agreed on."""
    return HttpClient(await stream_opener(origin, tls)(), origin.authority)


class HandshakeFailed(ResponseBroken):
    """The TLS handshake failed; the message says why."""


async def _shake_hands(stream: trio.SSLStream[trio.SocketStream]) -> trio.abc.Stream:
    try:
        await stream.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError):
            raise HandshakeFailed(f"TLS handshake failed: {_reason(error.__cause__)}") from error
        raise
    return stream


def _reason(cause: BaseException | None) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {cause.verify_message.rstrip('.')}"
    if isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
        return "the server does not use TLS at this port"
    return str(cause or "the server closed the connection")
