"""Streams that behave like the worst peers, for tests of code that reads from or writes to a stream.

`BrittleStream` breaks at a chosen operation, as a reset does. `TricklingStream` gives its bytes in pieces of chosen sizes.
`DeafStream` never reads: a write to it never returns.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio


class DeafStream(trio.abc.Stream):
    """The other side sends `heard` and then nothing, and never reads: sending never returns."""

    def __init__(self, heard: bytes = b"") -> None:
        self._heard = heard
        self.closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.sleep_forever()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._heard:
            await trio.sleep_forever()
        data, self._heard = self._heard[:max_bytes], self._heard[max_bytes or len(self._heard) :]
        return data

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


class TricklingStream(trio.abc.Stream):
    """Reads return `pieces`, one each, then the end, or with `ends=False` wait forever; `writes` has the sent bytes."""

    def __init__(self, pieces: Iterable[bytes], *, ends: bool = True) -> None:
        self._pieces = iter(pieces)
        self._ends = ends
        self.writes: list[bytes] = []
        self.closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError
        self.writes.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError
        piece = next((piece for piece in self._pieces if piece), b"")
        if not piece and not self._ends:
            await trio.sleep_forever()
        return piece

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


class BrittleStream(trio.abc.HalfCloseableStream):
    """Passes everything to `inner` and counts the operations; operation `breaks_at` and all later ones get a reset."""

    def __init__(self, inner: trio.abc.Stream, breaks_at: int) -> None:
        self._inner = inner
        self._left = breaks_at

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise trio.BrokenResourceError("reset by the test")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._count()
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        await trio.lowlevel.checkpoint()
        self._count()
        return await self._inner.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._count()

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._inner)
