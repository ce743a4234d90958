"""Batched, chunked, cached, preempted, drafted or resumed: an answer has the bits that the request has alone."""

import random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.engine.engine_runs import RandomRun, alone, constraint_of, ids, random_request, run_to_end, tokens_of
from tests.kit.engine.hash_model import HashModel
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import SamplingParams


@pytest.mark.spec("CASE-29", "ENG-1", "ENG-44")
@pytest.mark.parametrize("part", range(3))
def test_every_request_of_a_random_schedule_has_the_same_bits_as_alone(part):
    seen = {"preemptions_total": 0, "kv_evictions_total": 0, "prefix_cache_hits_total": 0, "accepted_tokens_total": 0}
    for seed in range(60 * part, 60 * part + 60):
        print(f"seed {seed}")
        run = RandomRun(seed).play()
        assert not run.wrong, f"seed {seed}: {[run.requests[key] for key in run.wrong]}"
        for name in seen:
            seen[name] += getattr(run.engine.statistics(), name)
    assert all(seen.values()), f"the schedules do not reach everything: {seen}"


@pytest.mark.spec("ENG-1")
@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(min_value=1000, max_value=2**32))
def test_no_schedule_from_hypothesis_changes_an_answer(seed):
    assert not RandomRun(seed).play().wrong


CONFIGS = {
    "chunks of one": EngineConfig(prefill_chunk=1),
    "whole prompts": EngineConfig(prefill_chunk=0),
    "blocks of one": EngineConfig(block_size=1),
    "hash cache": EngineConfig(prefix_cache="hash", block_size=4),
    "radix cache": EngineConfig(prefix_cache="radix", block_size=4),
    "drafts": EngineConfig(speculative="prompt_lookup", speculative_tokens=8),
    "a pool for one": EngineConfig(kv_blocks=30, block_size=4, prefill_chunk=8),
    "one at a time": EngineConfig(max_num_seqs=1),
}


@pytest.mark.spec("ENG-1", "ENG-44")
@pytest.mark.parametrize("name", CONFIGS)
def test_no_setting_of_the_engine_changes_the_bits_of_an_answer(name):
    rng = random.Random(name)
    beginnings = [ids(rng, 60)]
    requests = [random_request(rng, beginnings) for _ in range(8)]
    engine = Engine(HashModel(), CONFIGS[name])
    keys = [engine.add_request(request, constraint_of(request)) for request in requests]
    events = run_to_end(engine)
    assert [tokens_of(events[key]) for key in keys] == [alone(request) for request in requests]


@pytest.mark.spec("ENG-2")
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_an_answer_resumed_at_any_token_continues_with_the_same_bits(temperature):
    request = GenerationRequest(
        prompt=(5, 6, 7), max_tokens=20, seed=11, sampling=SamplingParams(temperature=temperature), logprobs=2
    )
    whole = alone(request)
    for cut in range(len(whole)):
        emitted = tuple(event.token for event in whole[:cut])
        assert alone(attrs.evolve(request, emitted=emitted)) == whole[cut:]


def test_a_second_run_from_the_cache_has_the_same_bits():
    engine = Engine(HashModel(), EngineConfig(block_size=4))
    requests = [GenerationRequest(prompt=tuple(range(40)), max_tokens=10, seed=s, logprobs=1) for s in range(4)]
    answers = []
    for _ in range(2):
        keys = [engine.add_request(request) for request in requests]
        events = run_to_end(engine)
        answers.append([tokens_of(events[key]) for key in keys])
    assert answers[0] == answers[1]
    assert events[keys[0]][0].cached_tokens == 36
