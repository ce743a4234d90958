"""Blocks: their holders, sharing and eviction, and that no block is lost."""

import random

import pytest

from tests.kit.engine.block_invariants import is_free
from tlserve.engine.blocks.block_pool import BlockPool
from tlserve.engine.blocks.kv_blocks import KvBlocks
from tlserve.engine.blocks.prefix_cache import HashCache, RadixCache, make_prefix_cache

CACHES = {"hash": HashCache, "radix": RadixCache}
both_caches = pytest.mark.parametrize("kind", CACHES)


def filled(kv, tokens, *, namespace=""):
    """Return a table that computed and published all of `tokens`."""
    table = kv.new_table(namespace=namespace)
    cached = kv.extend_from_cache(table, tokens)
    assert kv.grow(table, len(tokens))
    kv.publish(table, tokens, len(tokens))
    return table, cached


# --- the pool


@pytest.mark.spec("ENG-21")
def test_a_sequence_gets_consecutive_blocks_while_others_grow():
    pool = BlockPool(256)
    tables = [pool.take(2) for _ in range(8)]
    for _ in range(10):
        for table in tables:
            table += pool.take(1, table[-1])
    for table in tables:
        assert table == list(range(table[0], table[0] + 12))


def keep_in_cache(pool, blocks, cached):
    """Release `blocks`; the cache keeps the first `cached` of them."""
    for block in blocks:
        assert pool.let_go(block)
    for block in blocks[cached:]:
        pool.put_back(block)


@pytest.mark.spec("ENG-66")
def test_free_blocks_are_taken_again_before_those_that_were_never_taken():
    pool = BlockPool(4000)
    keep_in_cache(pool, [pool.take(1, after)[0] for after in range(-1, 199, 20)], cached=10)
    for _ in range(3):
        taken = pool.take(9)
        assert taken == list(range(1, 10))
        keep_in_cache(pool, taken, cached=0)


@pytest.mark.spec("ENG-66")
def test_the_space_next_to_a_cached_block_that_does_not_grow_is_used():
    pool = BlockPool(4000)
    highest = 0
    for _ in range(100):
        taken = pool.take(12)
        highest = max(highest, *taken)
        keep_in_cache(pool, taken, cached=12)
    assert highest == 1199


@pytest.mark.spec("ENG-20")
def test_the_pool_hands_out_every_block_once():
    pool = BlockPool(17)
    taken = [pool.take(1)[0] for _ in range(5)] + pool.take(12, 3)
    assert sorted(taken) == list(range(17))
    assert pool.free_count == 0


@pytest.mark.spec("ENG-20")
def test_a_block_is_free_only_after_its_last_holder_and_owner_release_it():
    pool = BlockPool(1)
    (block,) = pool.take(1)
    pool.hold(block)
    assert not pool.let_go(block)
    assert pool.let_go(block)
    assert not is_free(pool, block)
    pool.put_back(block)
    assert pool.take(1) == [block]


# --- sharing


@pytest.mark.spec("ENG-22")
@both_caches
def test_a_common_beginning_is_shared_in_whole_blocks(kind):
    kv = KvBlocks(20, 4, CACHES[kind]())
    first, _ = filled(kv, list(range(12)))
    second, cached = filled(kv, [*range(10), 50, 51, 52])
    assert cached == 8
    assert second.blocks[:2] == first.blocks[:2]
    assert [kv.pool.holders(block) for block in first.blocks] == [2, 2, 1]


@pytest.mark.spec("ENG-52")
@both_caches
def test_at_least_one_token_is_left_to_compute(kind):
    kv = KvBlocks(20, 4, CACHES[kind]())
    kv.release(filled(kv, list(range(8)))[0])
    assert filled(kv, list(range(8)))[1] == 4
    assert filled(kv, list(range(9)))[1] == 8


@pytest.mark.spec("ENG-22")
@both_caches
def test_namespaces_share_nothing(kind):
    kv = KvBlocks(20, 4, CACHES[kind]())
    filled(kv, list(range(9)), namespace="a")
    assert filled(kv, list(range(9)), namespace="b")[1] == 0
    assert filled(kv, list(range(9)), namespace="a")[1] == 8


@pytest.mark.spec("ENG-22")
@both_caches
def test_equal_blocks_after_different_beginnings_are_not_confused(kind):
    kv = KvBlocks(20, 2, CACHES[kind]())
    filled(kv, [1, 1, 7, 7, 0])
    assert filled(kv, [2, 2, 7, 7, 0])[1] == 0


@pytest.mark.spec("ENG-22")
@both_caches
def test_a_block_computed_twice_is_kept_once(kind):
    kv = KvBlocks(20, 4, CACHES[kind]())
    tables = [kv.new_table(), kv.new_table()]
    for table in tables:
        kv.grow(table, 9)
    for table in tables:
        kv.publish(table, list(range(9)), 9)
    assert tables[0].blocks[:2] == tables[1].blocks[:2]
    assert tables[0].blocks[2] != tables[1].blocks[2]
    assert kv.used == 4


@pytest.mark.spec("ENG-24")
def test_without_a_cache_a_released_block_is_free_at_once():
    kv = KvBlocks(10, 4, make_prefix_cache("none"))
    table, _ = filled(kv, list(range(9)))
    kv.release(table)
    assert (kv.used, len(kv.idle), kv.pool.free_count) == (0, 0, 10)


@pytest.mark.spec("ENG-23")
def test_an_unused_namespace_leaves_nothing_behind():
    kv = KvBlocks(4, 4, cache := RadixCache())
    for i in range(10):
        kv.release(filled(kv, list(range(9)), namespace=str(i))[0])
    assert len(cache._roots) <= 2


# --- eviction


@pytest.mark.spec("ENG-23")
@both_caches
def test_the_least_recently_used_beginning_is_evicted_first_and_from_its_end(kind):
    kv = KvBlocks(6, 2, CACHES[kind]())
    a, b = [1, 1, 1, 1, 1, 1], [2, 2, 2, 2, 2, 2]
    kv.release(filled(kv, a)[0])
    kv.release(filled(kv, b)[0])
    kv.release(filled(kv, [*a, 0])[0])  # used again: now b is the oldest
    table = kv.new_table()
    assert kv.grow(table, 4)
    assert kv.evictions == 2  # one for the seventh token of a, one for this sequence
    kv.release(table)
    retried, cached = filled(kv, [*a, 0])
    assert cached == 6
    kv.release(retried)
    assert filled(kv, [*b, 0])[1] == 2  # of b only the first block is left


@pytest.mark.spec("ENG-23")
@both_caches
def test_a_block_in_use_is_never_evicted(kind):
    kv = KvBlocks(4, 2, CACHES[kind]())
    held, _ = filled(kv, [1, 1, 1, 1])
    other, _ = filled(kv, [2, 2, 2, 2])
    kv.release(other)
    greedy = kv.new_table()
    assert not kv.grow(greedy, 6)
    assert greedy.blocks == []
    assert kv.grow(greedy, 4)
    assert not set(greedy.blocks) & set(held.blocks)


@pytest.mark.spec("ENG-24")
def test_both_caches_hit_and_evict_the_same():
    """The two differ only in their look-up of a block."""
    rng = random.Random(8)
    beginnings = [[rng.randrange(3) for _ in range(30)] for _ in range(6)]
    operations = [(rng.randrange(6), rng.randrange(1, 30), rng.random() < 0.5) for _ in range(400)]
    histories = []
    for kind in CACHES.values():
        kv, live, history = KvBlocks(24, 4, kind()), [], []
        for which, length, release in operations:
            if release and live:
                kv.release(live.pop(which % len(live)))
            elif kv.blocks_for(length) <= kv.available:
                table, cached = filled(kv, beginnings[which][:length])
                live.append(table)
                history.append((cached, table.blocks.copy()))
        histories.append((history, kv.evictions))
    assert histories[0] == histories[1]
    assert histories[0][1] > 0
