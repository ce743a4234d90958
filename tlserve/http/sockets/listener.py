"""Open the sockets of an address, and report which were bound.

Owns the way from "127.0.0.1:8000" or "unix:/path" to listening sockets, and the one clear line if that fails. Does not know what
is served. An empty host means every interface; a name can have several addresses, which then share one port.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Sequence

import trio

from tlserve.config.addresses import Address, UnixAddress, parse_listen
from tlserve.errors import AddressInUse, OperatorError
from tlserve.http.sockets.stream_listener import StreamListener
from tlserve.http.sockets.unix_socket import UnixListener, open_unix_listener

BACKLOG = 1024
UNIX_MODE = 0o600

_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


async def open_listeners(text: str, *, backlog: int = BACKLOG, unix_mode: int = UNIX_MODE) -> Sequence[StreamListener]:
    """Listen on "host:port" or "unix:/path"; raises `SettingsError`, `AddressInUse`, or `OperatorError` for other reasons."""
    address = parse_listen(text)
    if isinstance(address, UnixAddress):
        return [open_unix_listener(address, mode=unix_mode, backlog=backlog)]
    if not address.host:
        return [StreamListener(_open_every_interface(address, backlog))]
    return [StreamListener(opened) for opened in _open_all(address, await _look_up(address), backlog)]


def adopt(opened: socket.socket, *, lives_on: bool) -> StreamListener:
    """Return the listener of a socket that another process has opened; `lives_on`: a supervisor keeps it."""
    if opened.family == socket.AF_UNIX:
        return UnixListener(opened, UnixAddress(str(opened.getsockname())), lives_on=lives_on)
    return StreamListener(opened, lives_on=lives_on)


def bound_addresses(listeners: Iterable[StreamListener]) -> tuple[str, ...]:
    """Return "host:port" or "unix:/path" of every listener, with the ports that were really bound."""
    return tuple(map(_bound_address, listeners))


def _bound_address(listener: StreamListener) -> str:
    if isinstance(listener, UnixListener):
        return str(listener.address)
    return str(Address(*listener.socket.getsockname()[:2]))


async def _look_up(address: Address) -> list[tuple[socket.AddressFamily, str]]:
    """Return the addresses of the host, IPv4 first, each once."""
    try:
        found = await trio.socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OperatorError(f"cannot listen on {address}: the host is unknown ({error.strerror})") from None
    families = {str(entry[4][0]): entry[0] for entry in found}
    return sorted(((family, host) for host, family in families.items()), key=lambda pair: pair[0])


def _open_all(
    address: Address, places: list[tuple[socket.AddressFamily, str]], backlog: int
) -> Iterable[socket.socket]:
    """Open every place on one port; a family that this machine does not have is left out if another one works."""
    opened: list[socket.socket] = []
    refused: OSError | None = None
    port = address.port
    for family, host in places:
        try:
            opened.append(socket.create_server((host, port), family=family, backlog=backlog))
            port = opened[0].getsockname()[1]
        except OSError as error:
            refused = error
            if error.errno not in _NOT_HERE:
                break
    if refused is not None and (not opened or refused.errno not in _NOT_HERE):
        for one in opened:
            one.close()
        raise _refusal(address, refused)
    return opened


def _open_every_interface(address: Address, backlog: int) -> socket.socket:
    """Open one socket for IPv6 and IPv4 if the machine has IPv6, so that port 0 means one port."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", address.port), family=family, dualstack_ipv6=both, backlog=backlog)
    except OSError as error:
        raise _refusal(address, error) from None


def _refusal(address: Address, error: OSError) -> OperatorError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{address} is in use by another process; stop that one, or listen elsewhere (port 0 picks a free port)"
        )
    reason = os.strerror(error.errno) if error.errno else error  # the standard library adds the address a second time
    return OperatorError(f"cannot listen on {address}: {reason}")
