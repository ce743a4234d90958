"""Listening sockets that a supervisor has opened before it started this process: systemd's socket activation.

Owns the three environment variables and the check of each descriptor. Does not know which socket is for what. Source:
sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from tlserve.errors import OperatorError

FIRST_DESCRIPTOR = 3


def inherited_sockets(environ: Mapping[str, str]) -> list[tuple[str, socket.socket]]:
    """Return the sockets that were passed to this process, each with its name; raises `OperatorError` for other descriptors.

    Variables that name another process are left over from its start, and are ignored.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environ.get("LISTEN_FDS", "")
    if not (count.isascii() and count.isdecimal()):
        raise OperatorError(f"LISTEN_FDS is {count!r}, not a number of sockets")
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    return [(name, _open(FIRST_DESCRIPTOR + index, name)) for index, name in enumerate(_padded(names, int(count)))]


def _padded(names: Sequence[str], count: int) -> Sequence[str]:
    return [*names, *[""] * count][:count]


def _open(descriptor: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        opened = socket.socket(fileno=descriptor)
    except OSError as error:
        raise OperatorError(
            f"the descriptor {descriptor} ({name}) of LISTEN_FDS is not a socket: {error.strerror}"
        ) from None
    if opened.type != socket.SOCK_STREAM or not opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise OperatorError(
            f"the socket {name or descriptor} is not a stream socket that listens: in its socket unit use ListenStream= "
            "and leave Accept= out"
        )
    return opened
