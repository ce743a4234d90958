"""One connection's bytes: the received bytes that are not parsed yet, the state of the peer, and the deadline of every write.

Owns the stream and the way it ends. Does not know HTTP. After a write that did not complete nothing more can be sent: nothing
may follow half a chunk.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct

import trio

from tlserve.http.sockets.tls import transport_of

RECEIVE_BYTES = 16_384
"""The size of one read: small, so that a body in tiny chunks is parsed in slices, and other tasks run between them."""

TURN_WRITES = 8
"""The number of writes without waiting after which the other tasks get a turn."""

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

    def has_bytes(self) -> bool:
        """Say whether bytes have arrived that are not read yet, or the end of the input; a stream without a socket has none."""
        transport = transport_of(self.stream)
        if not isinstance(transport, trio.SocketStream):
            return False
        poll = select.poll()
        try:
            poll.register(transport.socket.fileno(), select.POLLIN)
        except (OSError, ValueError):
            return False
        return bool(poll.poll(0))

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
        """Return the number of bytes that the kernel took at once; 0 if it has to be waited for, or if the write failed.

        Most writes fit, and then need no deadline and no second turn of the event loop: half the cost of a small event.
        """
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def _give_turn(self) -> None:
        """Be a checkpoint, and let the other tasks run at every few writes."""
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
        """Close in the ordinary way: no bytes are under way that a reset could destroy. TLS ends with close_notify."""
        with trio.move_on_after(CLOSE_S):
            await self.stream.aclose()

    async def linger(self) -> None:
        """Close so that the peer can read the last answer: end our side, and drop what still arrives for a limited time.

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
        """Send close_notify, if this is TLS. The peer's may come late, or after the dropped bytes, or never."""
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
        """Abort: unsent bytes are dropped, and a TCP peer sees a reset, which does not look like a proper end."""
        transport = transport_of(self.stream)
        if isinstance(transport, trio.SocketStream):
            with contextlib.suppress(OSError, trio.ClosedResourceError):
                transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        await trio.aclose_forcefully(self.stream)
