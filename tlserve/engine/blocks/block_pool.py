"""Which blocks of keys and values are free, and how many sequences hold each of the others.

Owns the reference counts and the choice of the next block. Refuses to know tokens, sequences and the prefix cache: a block
that nobody holds is free only once its owner says so (`put_back`), because the cache may still want it.

Blocks of one sequence are handed out one after the other where possible: attention reads long runs faster. A new run starts
in the first free stretch that has room for it and some more, a little behind its left neighbour, so that this can grow too and
the memory that was ever touched stays near what is used; where no stretch has that room, in the middle of the longest.
"""

from __future__ import annotations

import numpy as np

_ROOM_BLOCKS = 16  # what a run leaves free for its left neighbour, and wants for itself


class BlockPool:
    """`blocks` blocks, each free, or held by `holders(block)` sequences."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free_count = blocks
        self._free = np.ones(blocks, dtype=np.bool_)
        self._holders = [0] * blocks

    def holders(self, block: int) -> int:
        """Return how many block tables hold `block`."""
        return self._holders[block]

    def take(self, count: int, after: int = -1) -> list[int]:
        """Hand out `count` free blocks, each with one holder; they follow `after` where they can.

        The caller has checked that `free_count` suffices.
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
        """Count one holder less, and say whether that was the last one."""
        self._holders[block] -= 1
        return self._holders[block] == 0

    def put_back(self, block: int) -> None:
        """Make `block`, which nobody holds, free."""
        self._free[block] = True
        self.free_count += 1

    def _follows(self, block: int) -> bool:
        return 0 <= block < self.blocks - 1 and bool(self._free[block + 1])

    def _start_of_run(self, count: int) -> int:
        edges = np.flatnonzero(np.diff(self._free.astype(np.int8), prepend=0, append=0))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        roomy = lengths >= count + 2 * _ROOM_BLOCKS
        chosen = int(np.argmax(roomy if roomy.any() else lengths))
        start, spare = int(starts[chosen]), max(0, int(lengths[chosen]) - count)
        return start + (min(spare // 2, _ROOM_BLOCKS) if start else 0)
