"""Keys and values in the precision of the store: half or single.

Rounds them. A stored number is always finite: nan becomes 0, and a number that is too large becomes the greatest finite one,
because a masked key has probability 0, and 0 * nan would reach other rows. Attention reads the stored numbers back, also in
prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Stored = NDArray[np.floating[Any]]

PRECISIONS: dict[str, type[np.float16] | type[np.float32]] = {"f16": np.float16, "f32": np.float32}


def to_stored(x: F32, precision: str) -> Stored:
    """Return `x` rounded to nearest even in `precision`, finite."""
    greatest = np.float32(np.finfo(PRECISIONS[precision]).max)
    finite = np.clip(np.where(np.isnan(x), np.float32(0), x), -greatest, greatest)
    stored: Stored = finite.astype(PRECISIONS[precision])
    return stored


class PositionStore:
    """A `kernels.interface.KvStore` with keys and values of (slots, kv_heads, head_size) for each attention: simple, copied.

    `heads`: (kv_heads, head_size) of each attention mixer.
    """

    def __init__(self, heads: Sequence[tuple[int, int]], *, blocks: int, block_size: int, precision: str) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._precision = precision
        shapes = [(blocks * block_size, *sizes) for sizes in heads]
        self.keys: list[Stored] = [np.zeros(shape, PRECISIONS[precision]) for shape in shapes]
        self.values: list[Stored] = [np.zeros(shape, PRECISIONS[precision]) for shape in shapes]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self._blocks

    @property
    def block_size(self) -> int:
        """Positions per block."""
        return self._block_size

    def write(self, number: int, slots: NDArray[np.int64], keys: F32, values: F32) -> None:
        """Store row t of `keys` and `values` (T, kv_heads, head_size) of attention `number` in slot slots[t]."""
        self.keys[number][slots] = to_stored(keys, self._precision)
        self.values[number][slots] = to_stored(values, self._precision)

    def read(self, number: int, slots: NDArray[np.int64]) -> tuple[F32, F32]:
        """Return keys and values of `slots` in float32, (len(slots), kv_heads, head_size) each."""
        return self.keys[number][slots].astype(np.float32), self.values[number][slots].astype(np.float32)
