"""Which blocks of keys and values are free, and how many sequences hold each of the others.

Owns the reference counts and the choice of the next block. Knows nothing of tokens, sequences and the prefix cache: a block
without holders is free only after `put_back`, because the cache may still use it.

A sequence gets consecutive blocks where possible: attention reads long runs faster. A new run starts in the lowest free stretch
with enough space for it, first among the blocks that were taken before: a block that was never taken costs no resident memory.
It leaves some blocks free after a neighbour that still grows. If no stretch has that space, it starts in the longest one.
"""

from __future__ import annotations

import numpy as np

_SPARE_BLOCKS = 16  # blocks that a run leaves free for its left neighbour while a sequence holds that


class BlockPool:
    """`blocks` blocks; each is free, or held by `holders(block)` sequences."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free_count = blocks
        self._free = np.ones(blocks, dtype=np.bool_)
        self._holders = [0] * blocks
        self._touched = 0  # no block from here on was ever taken

    def holders(self, block: int) -> int:
        """Return the number of block tables that hold `block`."""
        return self._holders[block]

    def take(self, count: int, after: int = -1) -> list[int]:
        """Hand out `count` free blocks, each with one holder; they follow `after` where possible.

        The caller has checked that there are `count` free blocks.
        """
        taken: list[int] = []
        while len(taken) < count:
            after = after + 1 if self._follows(after) else self._start_of_run(count - len(taken))
            self._free[after] = False
            self._holders[after] = 1
            taken.append(after)
            self._touched = max(self._touched, after + 1)
        self.free_count -= count
        return taken

    def hold(self, block: int) -> None:
        """Count one more holder of `block`, which is not free."""
        self._holders[block] += 1

    def let_go(self, block: int) -> bool:
        """Remove one holder; return whether that was the last one."""
        self._holders[block] -= 1
        return self._holders[block] == 0

    def put_back(self, block: int) -> None:
        """Make `block`, which has no holders, free."""
        self._free[block] = True
        self.free_count += 1

    def _follows(self, block: int) -> bool:
        return 0 <= block < self.blocks - 1 and bool(self._free[block + 1])

    def _start_of_run(self, count: int) -> int:
        edges = np.flatnonzero(np.diff(self._free.astype(np.int8), prepend=0, append=0))
        starts, ends = edges[::2], edges[1::2]
        lengths = ends - starts
        # blocks whose holders are gone do not grow: only the cache keeps them
        spared = np.array([_SPARE_BLOCKS if start and self._holders[start - 1] else 0 for start in starts])
        for usable in (np.minimum(ends, self._touched) - starts, lengths):
            fits = usable >= count + spared
            if fits.any():
                chosen = int(np.argmax(fits))
                return int(starts[chosen] + spared[chosen])
        longest = int(np.argmax(lengths))
        return int(starts[longest]) + min(max(0, int(lengths[longest]) - count) // 2, int(spared[longest]))
