"""The blocks of all sequences: which sequence holds which, which are shared, and which is evicted first.

Owns the block tables' contents and the order of eviction. Does not know why a sequence needs blocks (scheduler) and what is in
them (model). Every block is in exactly one state: free, held by tables, or idle (cached, but held by no table).

One rule makes it work: a table that holds a cached block holds all blocks of its beginning. A table releases its blocks from
the end, so in the order of release every cached block comes before its parent, and the least recently used idle block
never has a cached continuation: eviction takes the head of one queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.engine.blocks.block_pool import BlockPool
from tlserve.engine.blocks.prefix_cache import Prefix, PrefixCache


@attrs.define(eq=False)
class BlockTable:
    """One sequence's blocks in order of position; `path` are the first ones, as far as they are cached.

    `root` None: the sequence neither reads nor fills the cache.
    """

    root: Prefix | None = None
    blocks: list[int] = attrs.field(factory=list)
    path: list[Prefix] = attrs.field(factory=list)
    _array: NDArray[np.int32] | None = None

    @property
    def last(self) -> Prefix | None:
        """The beginning that the cached blocks cover; None without a cache."""
        return self.path[-1] if self.path else self.root

    def as_array(self) -> NDArray[np.int32]:
        """Return the blocks as (blocks,) int32; the same array until the table changes."""
        if self._array is None:
            self._array = np.array(self.blocks, dtype=np.int32)
        return self._array

    def changed(self) -> None:
        """Drop the array: the blocks have changed."""
        self._array = None


class KvBlocks:
    """All blocks, with the prefix cache over them. `cache` None: nothing is shared."""

    def __init__(self, blocks: int, block_size: int, cache: PrefixCache | None) -> None:
        self.pool = BlockPool(blocks)
        self.block_size = block_size
        self.cache = cache
        self.evictions = 0
        self.idle: OrderedDict[int, Prefix] = OrderedDict()  # least recently used first
        self._cached: dict[int, Prefix] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken without preempting a sequence."""
        return self.pool.free_count + len(self.idle)

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.pool.blocks - self.available

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for `tokens` positions."""
        return -(-tokens // self.block_size)

    def new_table(self, *, namespace: str = "", cached: bool = True) -> BlockTable:
        """Return an empty table; a `cached` one shares blocks with tables of the same namespace."""
        return BlockTable(self.cache.root(namespace) if cached and self.cache else None)

    def missing(self, table: BlockTable, tokens: int) -> int:
        """Return the number of blocks that `table` lacks for `tokens` positions."""
        return max(0, self.blocks_for(tokens) - len(table.blocks))

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Give `table` blocks for `tokens` positions, evicting idle blocks if needed; return False if there are too few."""
        if tokens <= len(table.blocks) * self.block_size:
            return True
        missing = self.missing(table, tokens)
        if missing > self.available:
            return False
        self._evict(missing - self.pool.free_count)
        table.blocks += self.pool.take(missing, table.blocks[-1] if table.blocks else -1)
        table.changed()
        return True

    def next_block(self, table: BlockTable, tokens: Sequence[int]) -> tuple[Prefix, tuple[int, ...]] | None:
        """Return the key of the block of `tokens` after the cached beginning; None if it is not full or must not be shared.

        The last token never counts: at least one token must be computed.
        """
        if table.last is None:
            return None
        start = len(table.path) * self.block_size
        end = start + self.block_size
        return (table.last, tuple(tokens[start:end])) if end < len(tokens) else None

    def extend_from_cache(self, table: BlockTable, tokens: Sequence[int]) -> int:
        """Take over every cached block that continues `table`; return the number of cached positions from 0 on."""
        while (following := self.next_block(table, tokens)) and self.cache:
            prefix = self.cache.find(*following)
            if prefix is None:
                break
            self._adopt(table, prefix)
        return len(table.path) * self.block_size

    def publish(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Enter the blocks that `computed` positions fill into the cache.

        If another sequence did that earlier, `table` takes over its block: by the exactness contract it has the same bits.
        """
        parent = table.last
        if self.cache is None or parent is None or computed < (len(table.path) + 1) * self.block_size:
            return
        for start in range(len(table.path) * self.block_size, computed - self.block_size + 1, self.block_size):
            own = tuple(tokens[start : start + self.block_size])
            prefix = self.cache.find(parent, own)
            if prefix is None:
                block = table.blocks[len(table.path)]
                prefix = self._cached[block] = self.cache.add(parent, own, block)
                table.path.append(prefix)
            else:
                self._adopt(table, prefix)
            parent = prefix

    def release(self, table: BlockTable) -> None:
        """Take all blocks from `table`; the cached ones stay, as the most recently used, until they are evicted."""
        for block in reversed(table.blocks):
            self._let_go(block)
        table.blocks.clear()
        table.path.clear()
        table.changed()

    def _adopt(self, table: BlockTable, prefix: Prefix) -> None:
        self.pool.hold(prefix.block)
        self.idle.pop(prefix.block, None)
        index = len(table.path)
        if index < len(table.blocks):
            self._let_go(table.blocks[index])
            table.blocks[index] = prefix.block
        else:
            table.blocks.append(prefix.block)
        table.path.append(prefix)
        table.changed()

    def _let_go(self, block: int) -> None:
        if not self.pool.let_go(block):
            return
        if block in self._cached:
            self.idle[block] = self._cached[block]
        else:
            self.pool.put_back(block)

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, prefix = self.idle.popitem(last=False)
            assert self.cache is not None
            self.cache.remove(prefix)
            del self._cached[block]
            self.pool.put_back(block)
            self.evictions += 1
