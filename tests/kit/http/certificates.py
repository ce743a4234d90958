"""Certificates of a test's own authority, and a client that trusts it.

made = Certificates(folder)                     # certificate.pem and key.pem for 127.0.0.1 and localhost
stream = await made.connect(port)               # a TLS stream whose handshake is done
made.renew()                                    # the same files hold another certificate
"""

from __future__ import annotations

import ssl
from pathlib import Path

import trio
import trustme


class Certificates:
    """The files of one server's certificate and key, signed by an authority that only the test knows."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate = folder / "certificate.pem"
        self.key = folder / "key.pem"
        self.renew()

    def renew(self) -> None:
        """Write another certificate with another key into the files."""
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        self.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    def client_context(self) -> ssl.SSLContext:
        """Return a context that trusts only this authority."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    async def connect(self, port: int, context: ssl.SSLContext | None = None) -> trio.SSLStream[trio.SocketStream]:
        """Connect over TCP and make the handshake; raises the errors of a client."""
        transport = await trio.open_tcp_stream("127.0.0.1", port)
        stream = trio.SSLStream(transport, context or self.client_context(), server_hostname="127.0.0.1")
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(transport)
            raise
        return stream
