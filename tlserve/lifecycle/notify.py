"""Notes to the supervisor: the server is ready, or it stops. systemd reads them for units with `Type=notify`.

Owns the datagram. Without the variable NOTIFY_SOCKET nothing is sent. Source: sd_notify(3).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(environ: Mapping[str, str], state: str) -> None:
    """Send `state`; a supervisor that cannot be reached is not an error of the server."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.setblocking(False)
        opened.sendto(state.encode(), address)
