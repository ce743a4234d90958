"""The sequences of a step, and the number of rows of each."""

import random

import attrs
import pytest

from tests.kit.engine.block_invariants import queue_position
from tests.kit.engine.hash_model import HashModel
from tests.kit.model.tiny_models import succ_model
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.scheduler import share_prefill
from tlserve.generation import GenerationRequest, PrefillStarted, TokenEvent

# --- sharing the budget: a pure function


@pytest.mark.spec("ENG-15")
@pytest.mark.parametrize(
    ("prompts", "budget", "shares"),
    [
        ([], 10, []),
        ([(0, 5)], 10, [5]),
        ([(0, 50)], 10, [10]),
        ([(0, 5), (0, 5)], 10, [5, 5]),
        ([(0, 100), (0, 3)], 10, [7, 3]),  # the short one does not wait behind the long one
        ([(0, 100), (0, 90)], 10, [5, 5]),  # the first has half, the shortest the rest
        ([(0, 100), (0, 90), (0, 3)], 10, [5, 2, 3]),
        ([(0, 8), (0, 8), (0, 8)], 10, [8, 2, 0]),  # the same length: first come, first served
        ([(0, 0), (0, 8)], 10, [0, 8]),  # a sequence that waits for a common block gets nothing
        ([(1, 100), (0, 3)], 10, [10, 0]),  # priorities come first
        ([(1, 4), (0, 100), (0, 3)], 10, [4, 3, 3]),
        ([(0, 9)], 1, [1]),
    ],
)
def test_the_budget_is_shared_by_the_rules(prompts, budget, shares):
    assert share_prefill(prompts, budget) == shares


@pytest.mark.spec("ENG-15")
def test_shares_never_exceed_budget_or_need_and_never_waste_what_is_needed():
    rng = random.Random(1)
    for _ in range(500):
        prompts = sorted(((rng.choice([0, 3]), rng.randrange(30)) for _ in range(rng.randrange(6))), reverse=True)
        budget = rng.randrange(1, 60)
        shares = share_prefill(prompts, budget)
        assert all(0 <= share <= pending for share, (_, pending) in zip(shares, prompts, strict=True))
        assert sum(shares) == min(budget, sum(pending for _, pending in prompts))


# --- steps


def engine(**config):
    return Engine(HashModel(), EngineConfig(**{"block_size": 4, "kv_blocks": 200, "prefix_cache": "none"} | config))


def request(length, max_tokens=50, *, start=0, priority=0):
    return GenerationRequest(
        prompt=tuple((start + i) % 61 for i in range(length)), max_tokens=max_tokens, seed=0, priority=priority
    )


def tokens_by_step(eng, steps):
    """Return, for each step, the keys that got a token."""
    return [[e.key for e in eng.step() if isinstance(e.what, TokenEvent)] for _ in range(steps)]


def started_by_step(eng, steps):
    return [[e.key for e in eng.step() if isinstance(e.what, PrefillStarted)] for _ in range(steps)]


@pytest.mark.spec("ENG-13")
def test_decodes_continue_in_every_step_of_a_long_prefill():
    eng = engine(prefill_chunk=8)
    first = eng.add_request(request(4))
    eng.step()
    long = eng.add_request(request(80, start=9))
    steps = tokens_by_step(eng, 10)
    assert all(first in keys for keys in steps)
    assert long in steps[-1]


@pytest.mark.spec("ENG-13")
def test_an_embedding_does_not_stall_decodes():
    eng = engine(prefill_chunk=8)
    first = eng.add_request(request(4))
    eng.step()
    eng.add_embedding(range(60))
    assert tokens_by_step(eng, 8) == [[first]] * 8
    assert eng.statistics().active_sequences == 1


@pytest.mark.spec("ENG-14")
def test_a_step_computes_no_more_prompt_tokens_than_the_chunk():
    eng = engine(prefill_chunk=8)
    for start in range(5):
        eng.add_request(request(20, start=10 * start))
    while eng.has_work:
        decoding = sum(s.decoding for s in eng.scheduler.running)
        eng.step()
        assert eng.statistics().batch_tokens <= 8 + decoding


@pytest.mark.spec("ENG-14")
def test_chunk_zero_computes_whole_prompts_in_one_step():
    eng = engine(prefill_chunk=0)
    keys = [eng.add_request(request(100, start=s)) for s in (0, 7)]
    assert tokens_by_step(eng, 1) == [keys]


@pytest.mark.spec("ENG-15")
def test_a_short_prompt_passes_a_very_long_one():
    eng = engine(prefill_chunk=8)
    eng.add_request(request(400))
    eng.step()
    short = eng.add_request(request(4, start=30))
    assert tokens_by_step(eng, 1) == [[short]]


@pytest.mark.spec("ENG-15")
def test_a_long_prompt_makes_progress_among_many_short_ones():
    eng = engine(prefill_chunk=8, max_num_seqs=64)
    long = eng.add_request(request(100))
    for step in range(25):
        eng.add_request(request(8, 1, start=step))
        if long in [e.key for e in eng.step() if isinstance(e.what, TokenEvent)]:
            return
    raise AssertionError("half of the budget would have been enough after 25 steps")


@pytest.mark.spec("ENG-12")
def test_admission_is_in_order_of_priority_then_of_arrival():
    eng = engine(max_num_seqs=1, prefill_chunk=0)
    running = eng.add_request(request(4, 3))
    eng.step()
    low, first, second, high = (eng.add_request(request(4, 1, priority=p)) for p in (-1, 0, 0, 100))
    assert [queue_position(eng, key) for key in (running, high, first, second, low)] == [None, 0, 1, 2, 3]
    assert [k for keys in started_by_step(eng, 8) for k in keys] == [high, first, second, low]


@pytest.mark.spec("ENG-12")
def test_a_sequence_that_does_not_fit_holds_back_those_behind_it():
    eng = engine(kv_blocks=10, prefill_chunk=0)
    eng.add_request(request(20, 8))
    eng.step()
    big, small = eng.add_request(request(30, 1, start=5)), eng.add_request(request(2, 1, start=9))
    started = [k for keys in started_by_step(eng, 12) for k in keys]
    assert started == [big, small]
    assert eng.statistics().preemptions_total == 0


@pytest.mark.spec("ENG-12")
def test_prefill_of_a_higher_priority_takes_the_whole_budget():
    eng = engine(prefill_chunk=8)
    eng.add_request(request(80))
    eng.step()
    high = eng.add_request(request(24, start=3, priority=1))
    assert tokens_by_step(eng, 3) == [[], [], [high]]


# --- preemption


@pytest.mark.spec("ENG-16")
def test_the_lowest_priority_then_the_latest_arrival_is_preempted():
    eng = engine(kv_blocks=10, prefill_chunk=0)
    low = eng.add_request(request(8, 20, priority=-1))
    first, last = eng.add_request(request(8, 20, start=20)), eng.add_request(request(8, 20, start=40))
    eng.step()
    preempted = []
    while eng.has_work:
        waiting = {s.key for s in eng.scheduler.waiting}
        eng.step()
        preempted += [s.key for s in eng.scheduler.waiting if s.key not in waiting]
    assert preempted[:2] == [low, last]
    assert first not in preempted
    assert eng.statistics().finished_length_total == 3


@pytest.mark.spec("ENG-17")
def test_a_preempted_sequence_keeps_its_place_before_later_arrivals():
    eng = engine(kv_blocks=8, prefill_chunk=0, max_num_seqs=2)
    eng.add_request(request(8, 20))
    second = eng.add_request(request(8, 20, start=20))
    third = eng.add_request(request(2, 2, start=50))
    while queue_position(eng, second) is None or eng.statistics().preemptions_total == 0:
        eng.step()
    assert (queue_position(eng, second), queue_position(eng, third)) == (0, 1)


@pytest.mark.spec("ENG-50")
def test_a_sequence_that_needs_the_whole_pool_ends_among_many_others():
    eng = engine(kv_blocks=10, prefill_chunk=3, max_num_seqs=8)
    big = eng.add_request(request(20, 20))
    ends = []
    for step in range(400):
        if step < 100:
            eng.add_request(request(6, 6, start=step))
        ends += [e.key for e in eng.step() if isinstance(e.what, TokenEvent) and e.what.finish]
    assert not eng.has_work
    assert len(ends) == 101
    assert ends.index(big) < 20


@pytest.mark.spec("ENG-64")
def test_a_draft_never_takes_a_block_from_another_sequence():
    eng = Engine(succ_model(), EngineConfig(kv_blocks=6, block_size=4, speculative="prompt_lookup"))
    repeating = eng.add_request(GenerationRequest(prompt=(1, 2, 3, 4, 5, 1, 2), max_tokens=8, seed=0))
    other = eng.add_request(GenerationRequest(prompt=tuple(range(100, 114)), max_tokens=2, seed=0))
    eng.step()
    assert tokens_by_step(eng, 1) == [[repeating, other]]
    assert eng.statistics().preemptions_total == 0
    while eng.has_work:
        eng.step()
    assert eng.statistics().accepted_tokens_total > 0


# --- common beginnings


def rows_computed(eng):
    rows = 0
    while eng.has_work:
        eng.step()
        rows += eng.statistics().batch_tokens
    return rows


@pytest.mark.spec("ENG-18")
@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("chunk", [0, 6, 16])
def test_prompts_that_arrive_together_compute_their_common_beginning_once(cache, chunk):
    eng = engine(prefix_cache=cache, prefill_chunk=chunk)
    for own in range(5):
        eng.add_request(GenerationRequest(prompt=(*range(40), 50 + own), max_tokens=1, seed=0))
    assert rows_computed(eng) == 40 + 5


@pytest.mark.spec("ENG-18")
def test_a_sequence_waiting_for_a_common_block_survives_the_others_abort():
    eng = engine(prefix_cache="radix", prefill_chunk=4)
    first, second = (eng.add_request(GenerationRequest(prompt=tuple(range(40)), max_tokens=1, seed=0)) for _ in "ab")
    eng.step()
    eng.abort(first)
    assert [second] in tokens_by_step(eng, 12)


@pytest.mark.spec("ENG-68")
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_preempted_sequence_counts_once_for_the_prefix_cache(cache):
    eng = engine(prefix_cache=cache, kv_blocks=12, prefill_chunk=0)
    for start in (0, 20, 40):
        eng.add_request(request(8, 24, start=start))
    rows_computed(eng)
    statistics = eng.statistics()
    assert statistics.preemptions_total > 0
    assert (statistics.prefix_cache_queries_total, statistics.prefix_cache_hits_total) == (24, 0)


@pytest.mark.spec("ENG-68")
def test_an_answer_that_continues_on_another_node_counts_once():
    eng = engine(prefix_cache="radix")
    first = request(9, 20)
    for asked in (first, attrs.evolve(first, emitted=(1, 2, 3))):
        eng.add_request(asked)
        rows_computed(eng)
    statistics = eng.statistics()
    assert (statistics.prefix_cache_queries_total, statistics.prefix_cache_hits_total) == (9, 0)


@pytest.mark.spec("ENG-11")
def test_the_hit_ratio_counts_every_prompt_token_that_was_not_computed():
    eng = engine(prefix_cache="radix")
    for _ in range(2):
        eng.add_request(GenerationRequest(prompt=tuple(range(41)), max_tokens=1, seed=0))
        rows_computed(eng)
    statistics = eng.statistics()
    assert (statistics.prefix_cache_queries_total, statistics.prefix_cache_hits_total) == (82, 40)
    assert statistics.prefix_cache_hit_ratio == 40 / 82


# --- choices of one prompt, and salts


def choices(count, prompt_tokens, **fields):
    prompt = tuple(i % 61 for i in range(prompt_tokens))
    return [GenerationRequest(prompt=prompt, max_tokens=4, seed=3, choice=i, **fields) for i in range(count)]


@pytest.mark.spec("ENG-18")
@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("chunk", [0, 16, 256])
def test_the_choices_of_one_prompt_share_its_blocks_and_compute_it_once(cache, chunk):
    eng = engine(prefix_cache=cache, prefill_chunk=chunk)
    for each in choices(8, 41):
        eng.add_request(each)
    rows = used = 0
    while eng.has_work:
        eng.step()
        rows += eng.statistics().batch_tokens
        used = max(used, eng.statistics().kv_used)
    assert rows == 40 + 8 + 8 * 3  # the common blocks, the last token of each, and all drawn tokens except the last
    assert used == 10 + 8


@pytest.mark.spec("ENG-51")
def test_without_a_cache_each_choice_computes_the_whole_prompt():
    eng = engine(prefix_cache="none")
    for each in choices(3, 41):
        eng.add_request(each)
    assert rows_computed(eng) == 3 * (41 + 3)


@pytest.mark.spec("ACC-60")
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_requests_of_different_owners_neither_find_nor_wait_for_each_others_blocks(cache):
    eng = engine(prefix_cache=cache, prefill_chunk=0)
    for owner, salt in (("a", ""), ("b", ""), ("a", ""), ("", "a"), ("a", "1:b")):
        eng.add_request(choices(1, 41, cache_owner=owner, cache_salt=salt)[0])
    assert len(started_by_step(eng, 1)[0]) == 4
    while eng.has_work:
        eng.step()
    assert eng.statistics().prefix_cache_hits_total == 40


@pytest.mark.spec("ENG-22")
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_requests_of_different_salts_neither_find_nor_wait_for_each_others_blocks(cache):
    eng = engine(prefix_cache=cache, prefill_chunk=0)
    for salt in ("one", "two", "one", ""):
        eng.add_request(choices(1, 41, cache_salt=salt)[0])
    assert len(started_by_step(eng, 1)[0]) == 3
    while eng.has_work:
        eng.step()
    assert eng.statistics().prefix_cache_hits_total == 40
