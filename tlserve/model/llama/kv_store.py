"""The paged keys and values of a llama, float32.

Owns the memory and how blocks lie in it. For one layer, keys and values are (kv_heads, slots, head_size), and block b is
the slots b * block_size .. (b + 1) * block_size: blocks that follow one another are one array without a copy. Refuses to know
which sequence owns a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class PagedKvStore:
    """A `kernels.interface.KvStore` of `blocks` blocks; memory is touched only where keys were written.

    `spare_slots` more slots lie behind the last block, so that a whole tile of keys can be read from any slot.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_size: int, blocks: int, block_size: int, spare_slots: int
    ) -> None:
        self._blocks = blocks
        self._block_size = block_size
        shape = (layers, kv_heads, blocks * block_size + spare_slots, head_size)
        self.keys: F32 = np.zeros(shape, np.float32)
        self.values: F32 = np.zeros(shape, np.float32)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self._blocks

    @property
    def block_size(self) -> int:
        """Positions per block."""
        return self._block_size

    def write(self, layer: int, slots: NDArray[np.int64], keys: F32, values: F32) -> None:
        """Store row t of `keys` and `values` (T, kv_heads, head_size) in slot slots[t].

        A value that is not finite is stored as 0: a masked key has probability 0, and 0 * nan would reach other rows. The
        row itself stays nan, by its own residual and its keys.
        """
        if not np.isfinite(values).all():
            values = np.where(np.isfinite(values), values, np.float32(0))
        self.keys[layer][:, slots] = keys.transpose(1, 0, 2)
        self.values[layer][:, slots] = values.transpose(1, 0, 2)
