"""Listening sockets that move from a serving process to the next one, so that a restart refuses no connection.

Owns the messages on a Unix socket, at a path that both processes know. Does not know what the sockets are for and when a process
is ready. A queue of connections belongs to a listening socket, not to a process, so none is lost while it changes its owner.

    next process                              serving process
    connects                            ->
                                        <-    the names of its listening sockets, with their descriptors
    loads its model, begins to accept
    READY                               ->
                                              stops accepting, answers what is open, ends

If the next process ends before it is ready, the serving process continues and offers its sockets again. The socket at the path
is one of those that move. Source: unix(7), SCM_RIGHTS.
"""

from __future__ import annotations

import array
import json
import logging
import os
import socket
from collections.abc import Sequence

import attrs
import trio

from tlserve.errors import OperatorError
from tlserve.http.sockets.stream_listener import StreamListener

READY = b"ready\n"
ANSWER_LIMIT_S = 60.0
"""How long the next process waits for the sockets: another one can be before it."""

_MOST_SOCKETS = 64
_MOST_BYTES = 65_536

log = logging.getLogger("tlserve.http")


@attrs.frozen(eq=False)
class Offered:
    """A listening socket that moves. Several can have one name. `lives_on`: a supervisor keeps it."""

    name: str
    opened: socket.socket
    lives_on: bool = False


class Predecessor:
    """The process that still serves, and its listening sockets."""

    def __init__(self, stream: trio.SocketStream, sockets: list[Offered]) -> None:
        self._stream = stream
        self._sockets = sockets

    def take(self, name: str) -> list[Offered]:
        """Return the sockets of a name, which belong to the caller from now on."""
        taken = [one for one in self._sockets if one.name == name]
        self._sockets = [one for one in self._sockets if one.name != name]
        return taken

    async def replace(self) -> None:
        """Tell the process to stop accepting: this one is ready."""
        try:
            await self._stream.send_all(READY)
        except trio.BrokenResourceError:
            log.warning("the process that handed its sockets over has ended already")

    async def aclose(self) -> None:
        """Close the connection to the process, and the sockets that nobody has taken."""
        for left in self._sockets:
            left.opened.close()
        self._sockets.clear()
        await self._stream.aclose()


async def find_predecessor(path: str) -> Predecessor | None:
    """Return the process that offers its sockets at `path`, or None if there is none; raises `OperatorError`."""
    opened = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await opened.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        opened.close()
        return None
    except OSError as error:
        opened.close()
        raise OperatorError(f"http.handover_socket: cannot connect to {path}: {error.strerror}") from None
    stream = trio.SocketStream(opened)
    with trio.move_on_after(ANSWER_LIMIT_S):
        sockets = await _receive(stream, path)
        return None if sockets is None else Predecessor(stream, sockets)
    await trio.aclose_forcefully(stream)
    raise OperatorError(
        f"http.handover_socket: the process at {path} did not hand over its sockets within {ANSWER_LIMIT_S:g} s"
    )


async def _receive(stream: trio.SocketStream, path: str) -> list[Offered] | None:
    """Return the sockets; None if the process has ended meanwhile."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(_MOST_SOCKETS * descriptors.itemsize)
    try:
        data, ancillary, _flags, _address = await stream.socket.recvmsg(_MOST_BYTES, space)
    except ConnectionResetError:
        data, ancillary = b"", []
    if not data:
        await trio.aclose_forcefully(stream)
        return None
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    opened = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    try:
        return [Offered(name, one, lives_on) for (name, lives_on), one in zip(_read(data), opened, strict=True)]
    except ValueError:
        for one in opened:
            one.close()
        await trio.aclose_forcefully(stream)
        raise OperatorError(f"http.handover_socket: the process at {path} is not a tlserve") from None


def _read(data: bytes) -> list[tuple[str, bool]]:
    """Return the names of the sockets, and whether each lives on; raises `ValueError`."""
    document = json.loads(data)
    if not isinstance(document, dict) or not isinstance(document.get("sockets"), list):
        raise ValueError
    return [(str(one["name"]), bool(one["lives_on"])) for one in document["sockets"]]


async def offer(listener: StreamListener, sockets: Sequence[Offered]) -> None:
    """Offer `sockets` to one process after the other, and return when one of them is ready."""
    while True:
        async with await listener.accept() as stream:
            if await _give(stream, sockets):
                return
        log.warning("a process that took the listening sockets ended before it was ready; this one continues")


async def _give(stream: trio.SocketStream, sockets: Sequence[Offered]) -> bool:
    """Send the sockets; say whether the other process became ready."""
    message = json.dumps({"sockets": [{"name": one.name, "lives_on": one.lives_on} for one in sockets]}).encode()
    descriptors = array.array("i", [one.opened.fileno() for one in sockets])
    try:
        await stream.socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        return await stream.receive_some(len(READY)) == READY
    except (OSError, trio.BrokenResourceError):
        return False
