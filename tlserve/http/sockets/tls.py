"""TLS below a connection: the certificate, which can be replaced while the server runs, and the handshake.

Owns the TLS context and the end of a handshake that fails. Does not know HTTP, except for the one line to a client that speaks
it without TLS. TLS 1.2 and 1.3 only; ALPN offers http/1.1. Sources: RFC 8446 section 6.1 (close_notify), RFC 7301 (ALPN), RFC
9325 (versions).
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

import trio

from tlserve.errors import SettingsError
from tlserve.http.sockets.certificate_dates import fault_of_dates
from tlserve.http.sockets.stream_listener import AcceptsWaiting

logger = logging.getLogger("tlserve.http")

_CLEAR_TEXT_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 45\r\n"
    b"Connection: close\r\n\r\nthis port speaks TLS: use https, not http://\n"
)


def _now() -> datetime:
    return datetime.now(UTC)


class Certificate:
    """A certificate and its key, in the context that new connections get. `key` is empty if it is in the same file."""

    def __init__(self, certificate: str, key: str = "", clock: Callable[[], datetime] = _now) -> None:
        """Load the files; raises `SettingsError` with what is wrong with them, or if the certificate is not valid now."""
        self._clock = clock
        self._certificate = certificate
        self._key = key
        self.context = self._load()

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files."""
        return (self._certificate, self._key) if self._key else (self._certificate,)

    def reload(self) -> None:
        """Read the files again for new connections; raises `SettingsError` and keeps the old certificate if they are wrong."""
        self.context = self._load()

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key or None, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError((f"tls: {' and '.join(self.paths)}: {_reason(error)}",)) from None
        if fault := self._fault_of_dates():
            raise SettingsError((f"tls: {self._certificate}: {fault}",))
        return context

    def _fault_of_dates(self) -> str:
        try:
            return fault_of_dates(self._certificate, self._clock())
        except (OSError, ValueError, IndexError) as error:
            return f"its dates cannot be read ({error})"


def _no_password() -> str:
    raise ValueError("the private key is encrypted; use a key that is not, and protect its file from other users")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        reasons = {
            "KEY_VALUES_MISMATCH": "the private key does not belong to the certificate",
            "NO_START_LINE": "the file has no certificate and private key in PEM form",
            None: "the file has no certificate and private key in PEM form",
        }
        return reasons.get(error.reason, f"cannot be used ({error.reason})")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class TlsListener(trio.abc.Listener[trio.SSLStream[trio.abc.Stream]]):
    """A listener whose connections speak TLS, each with the certificate that is current when it is accepted."""

    def __init__(self, transport: trio.abc.Listener[trio.abc.Stream], certificate: Certificate) -> None:
        self._transport = transport
        self._certificate = certificate

    async def accept(self) -> trio.SSLStream[trio.abc.Stream]:
        """Accept a connection; its handshake comes later."""
        return self._over(await self._transport.accept())

    def accept_waiting(self, most: int) -> list[trio.SSLStream[trio.abc.Stream]]:
        """Accept at most `most` connections that are already there."""
        ready = self._transport.accept_waiting(most) if isinstance(self._transport, AcceptsWaiting) else ()
        return [self._over(stream) for stream in ready]

    def _over(self, stream: trio.abc.Stream) -> trio.SSLStream[trio.abc.Stream]:
        return trio.SSLStream(stream, self._certificate.context, server_side=True)

    async def aclose(self) -> None:
        """Close the listener."""
        await self._transport.aclose()


async def shake_hands(stream: trio.abc.Stream) -> bool:
    """Do the handshake of a TLS stream; return False if it fails. Other streams need none."""
    if not isinstance(stream, trio.SSLStream):
        return True
    try:
        await stream.do_handshake()
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        logger.debug("a TLS handshake failed: %s", error.__cause__ or "the client has disconnected")
        await _answer_clear_text(stream.transport_stream, error.__cause__)
        return False
    return True


async def _answer_clear_text(transport: trio.abc.Stream, cause: BaseException | None) -> None:
    """Send one readable line to a client that speaks HTTP without TLS: it cannot read a TLS alert."""
    if isinstance(cause, ssl.SSLError) and cause.reason == "HTTP_REQUEST":
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await transport.send_all(_CLEAR_TEXT_ANSWER)


def transport_of(stream: trio.abc.Stream) -> trio.abc.Stream:
    """Return the transport of a stream: the stream below TLS, or the stream itself."""
    return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
