"""Query and key rows that a file stores half by half, in the order of the rotation.

In Hugging Face checkpoints, and in GGUF files of some architectures, components i and i + D / 2 of a head are rotated together;
here 2 i and 2 i + 1 are (see `kernels.reference.rope`). Scores stay the same, because queries and keys change in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.model.llama.tensors import TensorSource

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Rows = TypeVar("Rows", F32, U8)

_TURNING = re.compile(r"blk\.[0-9]+\.attn_[qk](_norm)?\.(weight|bias)")


@attrs.frozen
class InterleavedSource:
    """A `TensorSource` over one whose heads of `head_size` components are stored half by half."""

    source: TensorSource
    head_size: int

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the source."""
        return self.source.shapes()

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows in the interleaved order, read as whole heads; for a vector, the elements."""
        if not _TURNING.fullmatch(name):
            return self.source.rows(name, start, end)
        first = start // self.head_size * self.head_size
        heads = self.source.rows(name, first, -(-end // self.head_size) * self.head_size)
        return interleaved(heads, self.head_size)[start - first : end - first]

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's type number of a matrix and the bytes of its rows in the interleaved order."""
        kind, rows = self.source.stored(name)
        return kind, interleaved(rows, self.head_size) if _TURNING.fullmatch(name) else rows


def interleaved(heads: Rows, head_size: int) -> Rows:
    """Return whole heads of rows, half by half, with rows i and i + head_size / 2 at 2 i and 2 i + 1; a copy."""
    halves = heads.reshape(-1, 2, head_size // 2, *heads.shape[1:])
    return halves.swapaxes(1, 2).reshape(heads.shape)
