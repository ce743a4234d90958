"""Whole schedules of the engine on real arithmetic: every request gets the tokens and the logprob bits that it has alone.

The truth is a cold engine on one thread that knows of no other request: for the real model the same numerics, for the tiny one
ordered numpy. `python -m tests.parity.many_schedules` plays more schedules for a given time.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.engine.engine_runs import alone, run_to_end, tokens_of
from tests.kit.engine.real_runs import play, real_models, tiny_models
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import GenerationRequest
from tlserve.kernels.native import load_native
from tlserve.model.decoder.numerics import Numerics
from tlserve.sampling_params import SamplingParams

SCHEDULES = {
    ("int12", "f16"): 10,
    ("int8", "f16"): 6,
    ("int12", "f32"): 4,
    ("int8", "f32"): 2,
    ("f32", "f16"): 2,
    ("f32", "f32"): 2,
}
"""The number of schedules of the real model for each numerics: 10 ms in int8 are 40 ms in f32, and 200 ms in numpy."""

FIRST = 103  # a short one, because numpy is slow
ONE_AND_TWO_THREADS = (("", 1), ("", 2))
NUMERICS = [Numerics(activations, kv_precision) for activations, kv_precision in SCHEDULES]


@pytest.mark.spec("CASE-29", "ENG-1")
@pytest.mark.real_model
@pytest.mark.parametrize("numerics", SCHEDULES, ids="-".join)
def test_every_request_of_a_random_schedule_on_the_real_model_has_its_bits(smol_path, numerics):
    models = real_models(smol_path, numerics[0], numerics[1], ONE_AND_TWO_THREADS)
    for seed in range(FIRST, FIRST + (SCHEDULES[numerics] if load_native() else 1)):
        play(models, seed)


@pytest.fixture(scope="module")
def tiny():
    return {numerics: tiny_models(numerics) for numerics in NUMERICS}


@pytest.mark.spec("ENG-1")
@pytest.mark.parametrize("numerics", NUMERICS, ids=str)
def test_every_request_of_a_random_schedule_on_a_tiny_llama_has_numpys_bits(tiny, numerics):
    for seed in range(1 if numerics.activations == "f32" else 6):
        play(tiny[numerics], seed)


@pytest.mark.spec("ENG-1")
@given(numerics=st.sampled_from(NUMERICS[:2]), seed=st.integers(1000, 2**32))
@settings(max_examples=25, database=None)
def test_no_schedule_from_hypothesis_changes_an_answer_of_a_tiny_llama(tiny, numerics, seed):
    play(tiny[numerics], seed)


@pytest.mark.spec("ENG-1", "ENG-44")
@pytest.mark.parametrize("prefix_cache", ["none", "hash", "radix"])
@pytest.mark.parametrize("speculative", ["none", "prompt_lookup"])
def test_requests_that_preempt_each_other_keep_their_bits(tiny, prefix_cache, speculative):
    models = tiny[NUMERICS[0]]
    requests = [
        GenerationRequest(
            prompt=tuple(range(12)) + (seed,) * (20 + seed),
            max_tokens=40,
            seed=seed,
            sampling=SamplingParams(temperature=0.7 * (seed % 2)),
            logprobs=2,
        )
        for seed in range(4)
    ]
    config = EngineConfig(block_size=4, kv_blocks=20, prefix_cache=prefix_cache, speculative=speculative)
    engine = Engine(models[1], config)
    keys = [engine.add_request(request) for request in requests]
    events = run_to_end(engine)
    assert engine.statistics().preemptions_total
    assert [tokens_of(events[key]) for key in keys] == [alone(request, models.truth) for request in requests]
