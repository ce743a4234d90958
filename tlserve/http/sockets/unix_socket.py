"""A Unix socket to listen on: its file, the file's permissions, and its removal.

Owns the file. A socket file without a listener was left by a process that was killed, and is replaced; a socket file with a
listener, and any other kind of file, is refused. Source: unix(7).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from tlserve.config.addresses import UnixAddress
from tlserve.errors import AddressInUse, OperatorError
from tlserve.http.sockets.stream_listener import StreamListener


class UnixListener(StreamListener):
    """A listener that removes its file when it closes, unless it lives on, or another file has taken its place."""

    def __init__(self, opened: socket.socket, address: UnixAddress, *, lives_on: bool = False) -> None:
        super().__init__(opened, lives_on=lives_on)
        self.address = address
        self._file = _identity(address.path) if not lives_on else None

    def keep_file(self) -> None:
        """Leave the file when this listener closes: another process listens on it."""
        self._file = None

    async def aclose(self) -> None:
        """Close the listener and remove its file."""
        if self._file is not None and _identity(self.address.path) == self._file:
            with contextlib.suppress(OSError):
                os.unlink(self.address.path)
        self._file = None
        await super().aclose()


def open_unix_listener(address: UnixAddress, *, mode: int, backlog: int) -> UnixListener:
    """Listen on the file of `address`, which gets the permissions `mode`; raises `AddressInUse` or `OperatorError`."""
    _remove_stale(address)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.bind(address.path)
        os.chmod(address.path, mode)  # no client can connect before `listen`
        opened.listen(backlog)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(address) from None
        raise OperatorError(f"cannot listen on {address}: {error.strerror}") from None
    return UnixListener(opened, address)


def _remove_stale(address: UnixAddress) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(address.path).st_mode):
            raise OperatorError(f"cannot listen on {address}: the path is a file that is not a socket; remove it first")
    except FileNotFoundError:
        return
    except OSError as error:
        raise OperatorError(f"cannot listen on {address}: {error.strerror}") from None
    if _is_listened_on(address):
        raise _in_use(address)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address.path)


def _is_listened_on(address: UnixAddress) -> bool:
    """Say whether a process listens there; a socket without permission, or with a full queue, counts as one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _in_use(address: UnixAddress) -> AddressInUse:
    return AddressInUse(f"{address} is in use by another process; stop that one, or listen on another path")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
