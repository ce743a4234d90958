"""What the server and the program that checks grammars say to each other: msgpack, each message after its length in four bytes.

Owns the messages and their framing. Knows nothing of processes and of grammars.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size

Verdict = Literal["ok", "refused", "time", "memory", "died"]


class CheckSetup(msgspec.Struct, frozen=True):
    """The first message: what the compiler needs to know of a model's vocabulary.

    `spellings` has the bytes of each token id, empty where there are none; `special` are the ids that no text matches;
    `vocabulary_size` is that of the logits.
    """

    spellings: list[bytes]
    special: list[int]
    vocabulary_size: int
    source_bytes: int


class CheckRequest(msgspec.Struct, frozen=True):
    """One grammar to compile, and what that may cost: CPU and wall time in seconds, memory in bytes."""

    number: int
    source: str
    stop_ids: list[int]
    cpu_s: float
    wall_s: float
    memory_bytes: int


class CheckReply(msgspec.Struct, frozen=True):
    """What became of it. `message` and `param` are the refusal's; the costs are those of compiling and of the slowest mask."""

    number: int
    verdict: Verdict
    message: str = ""
    param: str | None = None
    cpu_s: float = 0.0
    mask_s: float = 0.0
    memory_bytes: int = 0


def framed(message: msgspec.Struct) -> bytes:
    """Return `message` as bytes, its length first."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes that arrive in pieces, cut into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield each body that is complete."""
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH_BYTES:end])
            del self._buffer[:end]
            yield body
