"""TLS on the way to a connection: the certificate, which can be replaced while serving, and the handshake in its time.

Owns the TLS context and what becomes of a handshake that does not succeed. Refuses to know HTTP, apart from the one line for a
client that speaks it in clear. TLS 1.2 and 1.3 only; ALPN offers http/1.1. Sources: RFC 8446 section 6.1 (close_notify),
RFC 7301 (ALPN), RFC 9325 (versions).
"""

from __future__ import annotations

import contextlib
import logging
import ssl

import trio

from tlserve.errors import SettingsError

logger = logging.getLogger("tlserve.http")

_CLEAR_TEXT_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 45\r\n"
    b"Connection: close\r\n\r\nthis port speaks TLS: use https, not http://\n"
)


class Certificate:
    """A certificate and its key, in the context that new connections get. `key` may be empty: it is in the same file."""

    def __init__(self, certificate: str, key: str = "") -> None:
        """Load the files; raises `SettingsError` with what is wrong with them."""
        self._certificate = certificate
        self._key = key
        self.context = self._load()

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files."""
        return (self._certificate, self._key) if self._key else (self._certificate,)

    def reload(self) -> None:
        """Give new connections what is in the files now; raises `SettingsError` and keeps what was there."""
        self.context = self._load()

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key or None, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError((f"tls: {' and '.join(self.paths)}: {_reason(error)}",)) from None
        return context


def _no_password() -> str:
    raise ValueError("the private key is encrypted; give one that is not, and keep others from reading it")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        told = {
            "KEY_VALUES_MISMATCH": "the private key does not belong to the certificate",
            "NO_START_LINE": "there is no PEM text of a certificate and a private key in it",
            None: "there is no PEM text of a certificate and a private key in it",
        }
        return told.get(error.reason, f"cannot be used ({error.reason})")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class TlsListener(trio.abc.Listener[trio.SSLStream[trio.abc.Stream]]):
    """A listener whose connections speak TLS, by the certificate of the moment at which they come."""

    def __init__(self, transport: trio.abc.Listener[trio.abc.Stream], certificate: Certificate) -> None:
        self._transport = transport
        self._certificate = certificate

    async def accept(self) -> trio.SSLStream[trio.abc.Stream]:
        """Accept a connection; its handshake is still to come."""
        stream = await self._transport.accept()
        return trio.SSLStream(stream, self._certificate.context, server_side=True)

    async def aclose(self) -> None:
        """Close the listener."""
        await self._transport.aclose()


async def shake_hands(stream: trio.abc.Stream) -> bool:
    """Do the handshake of a TLS stream; False if there is nothing to talk to. Other streams need none."""
    if not isinstance(stream, trio.SSLStream):
        return True
    try:
        await stream.do_handshake()
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        logger.debug("a TLS handshake failed: %s", error.__cause__ or "the client has gone")
        await _answer_clear_text(stream.transport_stream, error.__cause__)
        return False
    return True


async def _answer_clear_text(transport: trio.abc.Stream, cause: BaseException | None) -> None:
    """Tell a client that speaks HTTP in clear what is wrong: the broken bytes of TLS tell it nothing."""
    if isinstance(cause, ssl.SSLError) and cause.reason == "HTTP_REQUEST":
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await transport.send_all(_CLEAR_TEXT_ANSWER)


def transport_of(stream: trio.abc.Stream) -> trio.abc.Stream:
    """Return what carries a stream: the one below TLS, or the stream itself."""
    return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
