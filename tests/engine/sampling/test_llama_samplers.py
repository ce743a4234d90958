"""The samplers of llama.cpp: what they leave of random logits, as recorded from llama.cpp itself.

It computes in float32, and this sampler in float64: probabilities agree to 2e-5 of their values.
"""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.golden.make_llama_samplers import logits_of
from tlserve.engine.sampling import sampler_chain
from tlserve.engine.sampling.interface import SamplerRun
from tlserve.engine.sampling.logit_edits import open_edits
from tlserve.engine.sampling.repetition import Repetition, match_lengths
from tlserve.engine.sampling.sampler import NumpySampler
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import FILTERS, Breaker, Dry, SamplingParams

CASES = json.loads((Path(__file__).parents[2] / "golden/llama_samplers.json").read_text())
CHAINS = [case for case in CASES if case["samplers"][-1][0] != "mirostat"]
MIROSTATS = [case for case in CASES if case["samplers"][-1][0] == "mirostat"]
NAMES = {
    "penalties": ("penalty_last_n", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    "temperature": ("temperature", "dynatemp_range", "dynatemp_exponent"),
    "typical_p": ("typical_p", "min_keep"),
    "top_p": ("top_p", "min_keep"),
    "min_p": ("min_p", "min_keep"),
    "xtc": ("xtc_probability", "xtc_threshold", "min_keep"),
}


def mask_of(*ids):
    bits = np.zeros(64, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def dry_of(multiplier, base, allowed_length, last_n, breakers):
    read = tuple(Breaker(heads=mask_of(head), tail=tuple(tail)) for head, *tail in breakers)
    return Dry(multiplier=multiplier, base=base, allowed_length=allowed_length, last_n=last_n, breakers=read)


def sampling_of(case):
    fields = {}
    for name, *numbers in case["samplers"]:
        if name == "dry":
            fields["dry"] = dry_of(*numbers)
        else:
            fields |= dict(zip(NAMES.get(name, (name,)), numbers, strict=True))
    order = tuple(name for name, *_ in case["samplers"] if name in FILTERS)
    return SamplingParams(**fields, samplers=order)


@pytest.mark.spec("ENG-69")
@pytest.mark.parametrize("case", CHAINS, ids=lambda case: f"{case['seed']}-{'-'.join(s[0] for s in case['samplers'])}")
def test_the_samplers_leave_what_those_of_llama_cpp_leave(case):
    sampling, logits = sampling_of(case), logits_of(case)
    history = tuple(case["history"])
    cut = case["seed"] % (len(history) + 1)
    edits = open_edits(
        GenerationRequest(prompt=history[:cut], emitted=history[cut:], max_tokens=99, seed=0, sampling=sampling)
    )
    edited = logits if edits is None else edits.edit(logits)
    field = sampler_chain.filtered(edited, None, sampling, sampler_chain.acting_filters(sampling), 0.0)
    ids = list(range(len(logits))) if field.ids is None else field.ids.tolist()
    assert ids == [int(id_) for id_ in case["left"][::2]]
    assert (field.weights / field.weights.sum()).tolist() == pytest.approx(case["left"][1::2], rel=2e-5)


@pytest.mark.spec("ENG-70")
@pytest.mark.parametrize("case", MIROSTATS, ids=lambda case: f"{case['seed']}-{case['samplers'][0][1]}")
def test_mirostat_keeps_as_many_tokens_and_steers_mu_as_in_llama_cpp(case):
    _, version, tau, eta, draws = case["samplers"][0]
    sampling, logits = SamplingParams(mirostat=version, mirostat_tau=tau, mirostat_eta=eta), logits_of(case)
    mu, left = sampler_chain.first_mu(sampling), case["left"]
    for token, count, share in zip(left[::3], left[1::3], left[2::3], strict=True):
        field = sampler_chain.within_mu(logits, None, sampling, mu)
        ids = list(range(len(logits))) if field.ids is None else field.ids.tolist()
        place = ids.index(int(token))
        assert len(ids) == count
        assert field.weights[place] / field.weights.sum() == pytest.approx(share, rel=1e-4)
        mu = sampler_chain.mu_after(field, place, sampling, mu)
    assert len(left) == 3 * draws


def naive_lengths(tokens):
    """Return for each place how many tokens before it equal the last ones."""
    return [
        next(n for n in range(place + 1) if n == place or tokens[place - 1 - n] != tokens[-1 - n])
        for place in range(len(tokens))
    ]


@pytest.mark.spec("ENG-71")
@pytest.mark.parametrize("seed", range(100))
def test_the_state_of_dry_follows_from_the_tokens_alone(seed):
    rng = random.Random(seed)
    kinds = rng.choice([1, 2, 3, 8])
    tokens = [rng.randrange(kinds) for _ in range(rng.randrange(40))]
    breakers = [[rng.randrange(8) for _ in range(rng.choice([1, 2, 3]))] for _ in range(rng.choice([0, 1, 2]))]
    dry = dry_of(1.0, 1.5, rng.choice([1, 2, 3]), rng.choice([None, 3, 7, 20]), breakers)
    repetition = Repetition(dry, tokens)
    assert [*match_lengths(tuple(tokens))] == naive_lengths(tokens)
    for _ in range(20):
        token = rng.randrange(kinds)
        repetition.see(token)
        tokens.append(token)
        for kept, anew in zip(repetition.penalties(), Repetition(dry, tokens).penalties(), strict=True):
            assert kept.tolist() == anew.tolist()


@pytest.mark.spec("ENG-71")
def test_a_token_that_dry_punishes_beyond_all_bounds_keeps_a_finite_logit():
    dry = dry_of(100.0, 1e6, 1, None, [])
    edits = open_edits(GenerationRequest(prompt=(5,) * 500, max_tokens=9, seed=0, sampling=SamplingParams(dry=dry)))
    edited = edits.edit(np.zeros(8, np.float32))
    assert np.isfinite(edited).all()
    assert edited[5] < -1e29


@pytest.mark.spec("ENG-69")
def test_xtc_acts_with_its_probability_and_by_its_own_random_number():
    logits = np.array([2.0, 2.0, 1.9, -3.0], np.float32)
    asked = [
        GenerationRequest(prompt=(0,), max_tokens=9, seed=seed, sampling=SamplingParams(xtc_probability=0.25))
        for seed in range(2000)
    ]
    drawn = [NumpySampler().draw(logits[None], [SamplerRun(request, 0)])[0].draws[0].token for request in asked]
    shares = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    expected = 0.75 * (shares[0] + shares[1])  # with XTC only the third and the fourth are left
    assert sum(token < 2 for token in drawn) / 2000 == pytest.approx(expected, abs=0.03)
