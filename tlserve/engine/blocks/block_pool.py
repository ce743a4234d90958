"""Which blocks of keys and values are free, and how many sequences hold each of the others.

Owns the reference counts and the choice of the next block. Knows nothing of tokens, sequences and the prefix cache: a block
without holders is free only after `put_back`, because the cache may still use it.

A sequence gets consecutive blocks where possible: attention reads long runs faster. A new run starts in the first free stretch
with enough space for it and some more, and a little after its left neighbour, so that the neighbour can also grow and little
memory is touched that is never used. If no stretch has that space, it starts in the middle of the longest one.
"""

from __future__ import annotations

import numpy as np

_SPARE_BLOCKS = 16  # blocks that a run leaves free for its left neighbour, and for its own growth


class BlockPool:
    """`blocks` blocks; each is free, or held by `holders(block)` sequences."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free_count = blocks
        self._free = np.ones(blocks, dtype=np.bool_)
        self._holders = [0] * blocks

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
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        roomy = lengths >= count + 2 * _SPARE_BLOCKS
        chosen = int(np.argmax(roomy if roomy.any() else lengths))
        start, spare = int(starts[chosen]), max(0, int(lengths[chosen]) - count)
        return start + (min(spare // 2, _SPARE_BLOCKS) if start else 0)
