"""Penalties and biases: their effect on a logit, and that counts by token equal counts of the whole answer."""

import random

import attrs
import numpy as np
import pytest

from tests.kit.engine import naive_sampler as naive
from tests.kit.engine.engine_runs import alone, ids, random_edits, run_to_end, tokens_of
from tests.kit.engine.hash_model import HashModel
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.sampling.logit_edits import open_edits
from tlserve.errors import ClientError
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import SamplingParams

REQUEST = GenerationRequest(prompt=(0, 1), emitted=(1, 2, 2), max_tokens=99, seed=0)
LOGITS = np.array([2.0, -2.0, 3.0, 1.0, -1.0], np.float32)


def edited(**sampling):
    request = attrs.evolve(REQUEST, sampling=SamplingParams(**sampling))
    return open_edits(request).edit(LOGITS).tolist()


@pytest.mark.spec("ENG-57")
def test_repetition_divides_positive_logits_and_multiplies_the_others():
    assert edited(repetition_penalty=2.0) == [1.0, -4.0, 1.5, 1.0, -1.0]


@pytest.mark.spec("ENG-58")
def test_presence_is_subtracted_once_from_tokens_of_the_answer():
    assert edited(presence_penalty=0.5) == [2.0, -2.5, 2.5, 1.0, -1.0]


@pytest.mark.spec("ENG-58")
def test_frequency_is_subtracted_once_per_occurrence_in_the_answer():
    assert edited(frequency_penalty=0.5) == [2.0, -2.5, 2.0, 1.0, -1.0]


@pytest.mark.spec("ENG-38")
def test_a_bias_is_added_to_its_token_and_to_no_other():
    assert edited(logit_bias=((3, 0.25), (4, -8.0))) == [2.0, -2.0, 3.0, 1.25, -9.0]


@pytest.mark.spec("ENG-38")
def test_the_edits_are_applied_in_order_and_rounded_once():
    all_of_them = {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.7,
        "logit_bias": ((2, 9.1),),
    }
    assert edited(**all_of_them)[2] == naive.float32(3.0 / 1.1 - 0.3 - 0.7 * 2 + 9.1)


@pytest.mark.spec("ENG-38")
def test_a_request_that_edits_nothing_has_no_edits():
    assert open_edits(REQUEST) is None


@pytest.mark.spec("ENG-59")
@pytest.mark.parametrize("seed", range(40))
def test_edits_counted_token_by_token_are_those_of_the_whole_answer(seed):
    rng = random.Random(seed)
    request = attrs.evolve(
        REQUEST, prompt=tuple(ids(rng, 30)), emitted=(), sampling=SamplingParams(**random_edits(rng))
    )
    edits, answer = open_edits(request), ids(rng, 200)
    logits = np.array([rng.gauss(0, 3) for _ in range(61)], np.float32)
    for count, token in enumerate(answer[:-3]) if edits else ():
        whole = open_edits(attrs.evolve(request, emitted=tuple(answer[:count])))
        ahead = open_edits(attrs.evolve(request, emitted=tuple(answer[: count + 3])))
        assert edits.edit(logits).tobytes() == whole.edit(logits).tobytes()
        assert edits.after(answer[count : count + 3]).edit(logits).tobytes() == ahead.edit(logits).tobytes()
        edits.see(token)


@pytest.mark.spec("ENG-38")
def test_edits_have_the_bits_of_plain_floats():
    rng = random.Random(5)
    for _ in range(100):
        sampling = SamplingParams(**random_edits(rng))
        prompt, answer = tuple(ids(rng, 20)), tuple(ids(rng, 40))
        logits = np.array([rng.gauss(0, 3) for _ in range(61)], np.float32)
        edits = open_edits(attrs.evolve(REQUEST, prompt=prompt, emitted=answer, sampling=sampling))
        if edits is not None:
            assert edits.edit(logits).tolist() == naive.edited(logits.tolist(), sampling, prompt, answer)


# --- in the engine


@pytest.mark.spec("ENG-38")
def test_a_token_with_a_high_bias_is_drawn_and_a_banned_one_is_not():
    bias = ((7, 100.0), (9, -100.0))
    request = attrs.evolve(REQUEST, emitted=(), max_tokens=20, sampling=SamplingParams(logit_bias=bias))
    assert {event.token for event in alone(request)} == {7}


@pytest.mark.spec("ENG-38")
def test_the_lowest_id_wins_a_tie_that_an_edit_made():
    flat = HashModel(pull=0.0)
    greedy = SamplingParams(temperature=0, logit_bias=tuple((token, 1e9) for token in (40, 5, 22)))
    assert alone(attrs.evolve(REQUEST, sampling=greedy), flat)[0].token == 5


@pytest.mark.spec("ENG-29")
def test_logprobs_under_penalties_are_those_of_the_raw_distribution():
    request = attrs.evolve(REQUEST, emitted=(), max_tokens=1, logprobs=61, sampling=SamplingParams(temperature=0))
    plain = alone(request)[0]
    best = plain.token
    other = alone(attrs.evolve(request, sampling=SamplingParams(temperature=0, logit_bias=((best, -100.0),))))[0]
    assert other.top == plain.top
    assert other.token == plain.top[1].token
    assert other.logprob == plain.top[1].logprob


PENALISED = SamplingParams(temperature=0.8, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3)


@pytest.mark.spec("ENG-2")
def test_an_answer_with_penalties_continues_at_any_token_with_the_same_bits():
    request = GenerationRequest(prompt=(5, 6, 7), max_tokens=20, seed=11, sampling=PENALISED, logprobs=2, min_tokens=12)
    request = attrs.evolve(request, stop_ids=frozenset(range(0, 61, 3)))
    whole = alone(request)
    for cut in range(len(whole)):
        emitted = tuple(event.token for event in whole[:cut])
        assert alone(attrs.evolve(request, emitted=emitted)) == whole[cut:]


@pytest.mark.spec("ENG-59")
def test_drafts_do_not_change_an_answer_with_penalties_and_some_are_right():
    model = HashModel(pull=12.0)
    requests = [
        GenerationRequest(prompt=(1, 4, 13, 40) * 4, max_tokens=60, seed=seed, sampling=sampling)
        for seed in range(4)
        for sampling in (PENALISED, SamplingParams(temperature=0, frequency_penalty=0.9))
    ]
    engine = Engine(model, EngineConfig(speculative="prompt_lookup", speculative_tokens=8))
    keys = [engine.add_request(request) for request in requests]
    happened = run_to_end(engine)
    assert [tokens_of(happened[key]) for key in keys] == [alone(request, model) for request in requests]
    statistics = engine.statistics()
    assert 0 < statistics.accepted_tokens_total < statistics.drafted_tokens_total


@pytest.mark.spec("ENG-7")
@pytest.mark.parametrize(
    ("param", "wrong"),
    [
        ("logit_bias", ((61, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((3, 1.0), (3, 2.0))),
        ("logit_bias", ((3, float("nan")),)),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", float("nan")),
        ("temperature", -1.0),
    ],
)
def test_parameters_that_no_step_could_use_are_refused_by_name(param, wrong):
    engine = Engine(HashModel(), EngineConfig())
    with pytest.raises(ClientError) as refusal:
        engine.add_request(attrs.evolve(REQUEST, sampling=SamplingParams(**{param: wrong})))
    assert refusal.value.param == param
    assert not engine.has_work
