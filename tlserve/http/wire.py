"""One connection's bytes: what came and is not parsed yet, whether the peer is still there, and every write's deadline.

Owns the stream and the way it ends. Refuses to know HTTP. A write that did not complete makes the sending side unusable
for good: nothing may follow half a chunk.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

import trio

from tlserve.http.sockets.tls import transport_of

RECEIVE_BYTES = 16_384
"""One read: small, so that a body in tiny chunks is parsed in slices between which the other tasks run."""

TURN_WRITES = 8
"""Writes that the kernel took at once before the other tasks get a turn, whatever the sender waits for."""

CLOSE_S = 2.0
LINGER_S = 2.0
LINGER_BYTES = 16 << 20

_LINGER_ZERO = struct.pack("ii", 1, 0)


class PeerGone(Exception):
    """The peer closed, reset, or does not read: nothing more can be sent."""


class Wire:
    """A stream with its unparsed bytes. `ended`: nothing more comes; `broken`: nothing more can be sent."""

    def __init__(self, stream: trio.abc.Stream, write_timeout_s: float) -> None:
        self.stream = stream
        self.received = bytearray()
        self.ended = False
        self.broken = False
        self._write_timeout_s = write_timeout_s
        self._sent_at_once = 0
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None

    async def receive(self) -> bool:
        """Wait for bytes and keep them; return False at the end of the input. Cancelling it loses nothing."""
        data = await self._receive_some()
        self.received += data
        return not self.ended

    async def _receive_some(self) -> bytes | bytearray:
        try:
            data = await self.stream.receive_some(RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        self.ended = self.ended or not data
        return data

    def take(self, count: int) -> bytes:
        """Remove and return the first `count` unparsed bytes."""
        taken = bytes(self.received[:count])
        del self.received[:count]
        return taken

    async def send(self, data: bytes) -> None:
        """Send all of `data` within the write time; raises `PeerGone`."""
        if self.broken:
            raise PeerGone
        self.broken = True  # until the last byte is out
        sent = self._send_nowait(data)
        if sent == len(data):
            self.broken = False
            await self._give_turn()
        else:
            await self._send_in_time(data[sent:])

    def _send_nowait(self, data: bytes) -> int:
        """Return how much the kernel took at once; 0 where waiting is the only way, which also tells what is wrong.

        Most writes fit, and then need no deadline and no second turn of the event loop: half the cost of a small event.
        """
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def _give_turn(self) -> None:
        """Be a checkpoint that lets the other tasks run now and then: who sends often also waits for what it sends."""
        self._sent_at_once += 1
        if self._sent_at_once % TURN_WRITES:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()

    async def _send_in_time(self, data: bytes) -> None:
        with trio.CancelScope(deadline=trio.current_time() + self._write_timeout_s):
            try:
                await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise PeerGone from None
            self.broken = False
        if self.broken:
            raise PeerGone

    async def close(self) -> None:
        """Close in the ordinary way: the peer has nothing under way that a reset could destroy. TLS ends by close_notify."""
        with trio.move_on_after(CLOSE_S):
            await self.stream.aclose()

    async def linger(self) -> None:
        """Close so that the peer can read the last answer: end our side, drop what still comes, for a bounded while.

        Closing with unread bytes would send a reset, which destroys an answer that the peer has not read
        (RFC 9112 section 9.6).
        """
        transport = transport_of(self.stream)
        try:
            with trio.move_on_after(LINGER_S):
                await self._end_tls()
                if isinstance(transport, trio.abc.HalfCloseableStream):
                    await self._drop_the_rest(transport)
        finally:
            await trio.aclose_forcefully(transport)

    async def _end_tls(self) -> None:
        """Say close_notify, if this is TLS. The peer's own may come late, or behind what is dropped, or never."""
        if isinstance(self.stream, trio.SSLStream):
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self.stream.unwrap()

    async def _drop_the_rest(self, stream: trio.abc.HalfCloseableStream) -> None:
        try:
            await stream.send_eof()
            dropped = 0
            while dropped < LINGER_BYTES and (data := await stream.receive_some(RECEIVE_BYTES)):
                dropped += len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def abort(self) -> None:
        """Cut: what is unsent is thrown away, and a TCP peer sees a reset, never something like a proper end."""
        transport = transport_of(self.stream)
        if isinstance(transport, trio.SocketStream):
            with contextlib.suppress(OSError, trio.ClosedResourceError):
                transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        await trio.aclose_forcefully(self.stream)
