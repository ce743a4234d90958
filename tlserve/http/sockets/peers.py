"""The other side of a connection: its name, and what identifies its machine.

Owns the form "address:port" of a peer. An IPv6 host can use all addresses of its /64, so the /64 identifies it.
"""

from __future__ import annotations

import ipaddress

import trio

from tlserve.http.sockets.tls import transport_of

_HOST_NETWORK_BITS = 64


def peer_name(stream: trio.abc.Stream) -> str:
    """Return "address:port" of the other side, as the kernel knows it; empty for a stream without one."""
    transport = transport_of(stream)
    if not isinstance(transport, trio.SocketStream):
        return ""
    try:
        host, port, *_ = transport.socket.getpeername()
    except (OSError, ValueError):
        return ""
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(peer: str) -> str:
    """Return what identifies the client at `peer`: its IPv4 address, its IPv6 /64, or "" without an address."""
    address = _parse(peer)
    if address is None or isinstance(address, ipaddress.IPv4Address):
        return str(address or "")
    return str(ipaddress.ip_network((address, _HOST_NETWORK_BITS), strict=False))


def is_this_machine(peer: str) -> bool:
    """Say whether `peer` is on this machine: at a loopback address, or without an address, behind a Unix socket."""
    address = _parse(peer)
    return address is None or address.is_loopback


def _parse(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    host = peer.rpartition(":")[0].removeprefix("[").removesuffix("]").partition("%")[0]
    return ipaddress.ip_address(host) if host else None
