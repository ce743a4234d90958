"""The rules that the engine's blocks keep after every step, checked against its tables one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tlserve.engine.blocks.block_pool import BlockPool
from tlserve.engine.engine import Engine


def is_free(pool: BlockPool, block: int) -> bool:
    """Return whether the pool could hand `block` out."""
    return bool(pool._free[block])


def queue_position(engine: Engine, key: int) -> int | None:
    """Return the number of requests that wait before this one; None if it runs, has ended, or is unknown."""
    keys = [sequence.key for sequence in engine.scheduler.waiting]
    return keys.index(key) if key in keys else None


def check_blocks(engine: Engine) -> None:
    """Assert that every block is free, idle in the cache, or held, exactly once, and that all counts agree."""
    kv, pool, scheduler = engine.kv, engine.kv.pool, engine.scheduler
    sequences = scheduler.running + scheduler.waiting
    held = Counter(block for sequence in sequences for block in sequence.table.blocks)
    free = {block for block in range(pool.blocks) if is_free(pool, block)}
    idle = set(kv.idle)

    assert all(pool.holders(block) == held[block] for block in range(pool.blocks))
    assert sorted([*free, *idle, *set(held)]) == list(range(pool.blocks))
    assert pool.free_count == len(free)
    statistics = engine.statistics()
    assert (statistics.kv_used, statistics.kv_cached, statistics.kv_free) == (len(held), len(idle), len(free))
    assert scheduler.cache_hits <= scheduler.cache_queries
    for sequence in sequences:
        _check_table(kv, sequence)
    _check_idle_order(kv)
    assert len(scheduler.running) <= engine.config.max_num_seqs
    for queue in (scheduler.running, scheduler.waiting):
        assert [s.order for s in queue] == sorted(s.order for s in queue)
    assert all(not s.table.blocks and s.computed == 0 for s in scheduler.waiting)


def _check_table(kv: Any, sequence: Any) -> None:
    table = sequence.table
    assert len(set(table.blocks)) == len(table.blocks)
    assert 0 <= sequence.computed < len(sequence.tokens) or sequence.hidden_sum is not None
    assert kv.blocks_for(sequence.computed) <= len(table.blocks) <= kv.blocks_for(sequence.limit)
    assert table.as_array().tolist() == table.blocks
    assert [prefix.block for prefix in table.path] == table.blocks[: len(table.path)]
    full = sequence.computed // kv.block_size
    assert len(table.path) == (full if table.root is not None else 0)
    for i, prefix in enumerate(table.path):
        assert prefix.tokens == tuple(sequence.tokens[i * kv.block_size : (i + 1) * kv.block_size])
        assert prefix.parent is (table.path[i - 1] if i else table.root) or not i


def _check_idle_order(kv: Any) -> None:
    """A cached block leaves before its parent: no unreachable block is kept."""
    place = {block: i for i, block in enumerate(kv.idle)}
    for block, prefix in kv.idle.items():
        parent = prefix.parent.block
        assert parent == -1 or place.get(parent, len(place)) > place[block]
        assert kv.cache.find(prefix.parent, prefix.tokens) is prefix
