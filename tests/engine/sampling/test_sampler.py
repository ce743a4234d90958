"""The sampler against its slow truth, its rules for ties, and the distribution that its draws follow."""

import math
import random

import numpy as np
import pytest

from tests.kit.engine import naive_sampler as naive
from tests.kit.engine.engine_runs import random_sampling
from tlserve.engine.sampling import sampler
from tlserve.engine.sampling.constraint import ConstraintFailed, all_but, allows, mask_of, narrowed
from tlserve.engine.sampling.interface import SamplerRun
from tlserve.engine.sampling.logit_edits import open_edits
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import SamplingParams

GOLDEN_DRAWS = [
    (3447, "e2c1e3f9a6421bc0"),
    (1185, "e2c1e3f9a6761ac0"),
    (3728, "e2c1e3f9a6ba1cc0"),
    (4523, "e2c1e3f9a6fa19c0"),
]


class Mask:
    """A constraint that always allows the same ids."""

    def __init__(self, allowed, vocabulary):
        bits = np.zeros(-(-vocabulary // 32) * 32, dtype=np.uint8)
        bits[list(allowed)] = 1
        self.words = np.packbits(bits, bitorder="little").view(np.uint32)

    def mask(self):
        return self.words


def request(sampling=None, *, seed=0, choice=0, logprobs=None, prompt=(0,), emitted=(), **fields):
    return GenerationRequest(
        prompt=prompt,
        emitted=emitted,
        max_tokens=8,
        seed=seed,
        choice=choice,
        sampling=sampling or SamplingParams(**fields),
        logprobs=logprobs,
    )


def draw(logits, asked, index, constraint=None):
    masks = () if constraint is None else (mask_of(constraint),)
    run = SamplerRun(asked, index, masks=masks, edits=open_edits(asked))
    drawn = sampler.NumpySampler().draw(logits[None], [run])[0]
    if drawn.fault is not None:
        raise drawn.fault
    return drawn.draws[0]


def random_logits(rng, size):
    """Return (size,) float32 with many equal values among them."""
    values = [rng.gauss(0, 3) for _ in range(size)]
    return np.array([round(v, rng.choice([0, 1, 6])) for v in values], dtype=np.float32)


@pytest.mark.spec("ENG-26")
@pytest.mark.parametrize("seed", range(300))
def test_a_draw_equals_that_of_the_naive_sampler(seed):
    rng = random.Random(seed)
    logits = random_logits(rng, rng.choice([1, 2, 61, 300, 1500]))
    size = len(logits)
    sampling = random_sampling(rng, size)
    allowed = rng.sample(range(size), rng.randrange(1, size + 1)) if rng.random() < 0.4 else None
    constraint = Mask(allowed, size) if allowed else None
    prompt, answer = (tuple(rng.choices(range(size), k=rng.randrange(20))) for _ in "ab")
    asked = request(sampling, seed=seed, choice=seed % 3, prompt=prompt, emitted=answer)
    got = draw(logits, asked, seed % 50, constraint)
    u = naive.uniform(seed, seed % 3, seed % 50)
    edited = naive.edited(logits.tolist(), sampling, prompt, answer)
    assert got.token == naive.draw_token(edited, sampling, u, allowed)


@pytest.mark.spec("ENG-29")
@pytest.mark.parametrize("seed", range(30))
def test_logprobs_have_the_bits_of_the_naive_sum_over_the_raw_distribution(seed):
    rng = random.Random(seed)
    logits = random_logits(rng, rng.choice([1, 61, 1500]))
    got = draw(logits, request(random_sampling(rng, len(logits)), seed=seed, logprobs=5), 0)
    raw = logits.tolist()
    log_total = sampler.fixed_math.log(naive.total(naive.weights_of(raw, 1.0)))
    expected = [(raw[i] - max(raw)) - log_total for i in range(len(raw))]
    assert naive.bits(got.logprob) == naive.bits(expected[got.token])
    best = sorted(range(len(raw)), key=lambda i: (-raw[i], i))[:5]
    assert [(t.token, t.logprob) for t in got.top] == [(i, expected[i]) for i in best]


@pytest.mark.spec("ENG-29")
def test_logprobs_are_the_logarithm_of_the_softmax():
    logits = np.random.default_rng(0).normal(0, 3, 5000).astype(np.float32)
    exact = logits.astype(np.float64)
    expected = exact - math.log(math.fsum(np.exp(exact)))
    got = draw(logits, request(temperature=0.0, logprobs=20), 0)
    assert [t.logprob for t in got.top] == pytest.approx([expected[t.token] for t in got.top], abs=1e-12)


@pytest.mark.spec("ENG-28")
@pytest.mark.parametrize(("seed", "choice", "index"), [(0, 0, 0), (2**64 - 1, 1, 7), (12345, 2**20, 100_000)])
def test_the_random_number_is_philox_keyed_by_seed_choice_and_index(seed, choice, index):
    assert sampler.uniforms(seed, choice, index) == naive.uniforms(seed, choice, index)


@pytest.mark.spec("ENG-28")
def test_seed_choice_and_index_each_change_the_random_number():
    numbers = {sampler.uniforms(s, c, i) for s in range(5) for c in range(5) for i in range(5)}
    assert len(numbers) == 125


@pytest.mark.spec("ENG-28")
def test_a_negative_seed_is_its_64_bits():
    assert sampler.uniforms(-1, 0, 0) == sampler.uniforms(2**64 - 1, 0, 0)


DISTRIBUTIONS = {
    "plain": SamplingParams(),
    "cool": SamplingParams(temperature=0.5),
    "hot": SamplingParams(temperature=1.7),
    "top_k": SamplingParams(top_k=4),
    "top_p": SamplingParams(top_p=0.8),
    "min_p": SamplingParams(min_p=0.2),
    "all": SamplingParams(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05),
}


@pytest.mark.spec("ENG-26")
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_draws_follow_the_filtered_distribution(name):
    """Chi-square over 4000 draws with a fixed seed; the bound is its 99.9th percentile (Wilson and Hilferty)."""
    logits = np.random.default_rng(5).normal(0, 1.5, 12).astype(np.float32)
    draws = [draw(logits, request(DISTRIBUTIONS[name], seed=77), index).token for index in range(4000)]
    weights = naive.survivors(logits.tolist(), DISTRIBUTIONS[name])
    assert set(draws) <= set(weights)
    share = {i: 4000 * weight / math.fsum(weights.values()) for i, weight in weights.items()}
    chi_square = sum((draws.count(i) - expected) ** 2 / expected for i, expected in share.items())
    freedom = len(share) - 1
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.spec("ENG-27", "ENG-53")
@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0, "top_k": 1}])
def test_the_lowest_id_wins_a_tie(fields):
    logits = np.array([0, 3, 1, 3, 3], dtype=np.float32)
    assert {draw(logits, request(**fields, seed=s), 0).token for s in range(20)} == {1}


@pytest.mark.spec("ENG-27")
def test_a_tie_at_the_edge_of_top_k_keeps_the_lower_ids():
    logits = np.zeros(200, dtype=np.float32)
    assert {draw(logits, request(top_k=3, seed=s), 0).token for s in range(60)} == {0, 1, 2}


@pytest.mark.spec("ENG-54")
def test_a_nucleus_ends_with_the_token_that_reaches_its_share():
    logits = np.zeros(4, dtype=np.float32)
    assert {draw(logits, request(top_p=0.5, seed=s), 0).token for s in range(60)} == {0, 1}


@pytest.mark.spec("ENG-27")
def test_best_ids_are_a_stable_sort_for_every_count():
    logits = random_logits(random.Random(3), 700)
    order = sorted(range(700), key=lambda i: (-logits[i], i))
    for count in (1, 2, 9, 10, 11, 12, 100, 699, 700):
        assert sampler.best_ids(logits, count).tolist() == order[:count]


@pytest.mark.spec("ENG-26", "ENG-53")
def test_a_tiny_temperature_is_greedy_and_raises_no_warning():
    logits = random_logits(random.Random(4), 100)
    logits[17] = 50
    assert draw(logits, request(temperature=5e-324), 0).token == 17


@pytest.mark.spec("ENG-26", "ENG-54")
def test_a_nucleus_that_needs_nearly_all_tokens_is_found():
    logits = np.random.default_rng(6).normal(0, 0.1, 5000).astype(np.float32)
    sampling = SamplingParams(top_p=0.999)
    got = draw(logits, request(sampling, seed=9), 0).token
    assert got == naive.draw_token(logits.tolist(), sampling, naive.uniform(9, 0, 0))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_not_a_number_is_a_fault_and_never_a_token(bad, temperature):
    logits = np.zeros(300, dtype=np.float32)
    logits[200] = bad
    with pytest.raises(sampler.NotSampled):
        draw(logits, request(temperature=temperature), 0)


def test_logits_that_are_all_minus_infinity_are_a_fault():
    with pytest.raises(sampler.NotSampled):
        draw(np.full(10, -math.inf, dtype=np.float32), request(), 0)


@pytest.mark.spec("ENG-29")
def test_a_mask_is_obeyed_while_logprobs_stay_those_of_the_raw_distribution():
    logits = np.array([5, 1, 0, 4], dtype=np.float32)
    for temperature in (0.0, 1.0):
        got = draw(logits, request(temperature=temperature, logprobs=1), 0, Mask([1], 4))
        assert got.token == 1
        assert got.top[0].token == 0
        assert got.logprob == pytest.approx(1 - math.log(math.fsum(math.exp(v) for v in (5, 1, 0, 4))))


@pytest.mark.spec("ENG-31")
def test_extra_bits_of_a_mask_longer_than_the_vocabulary_do_not_count():
    logits = np.zeros(4, dtype=np.float32)
    with pytest.raises(ConstraintFailed):
        draw(logits, request(), 0, Mask([30], 64))


@pytest.mark.spec("ENG-39", "ENG-60")
def test_banned_ids_are_masked_unless_no_id_would_be_left():
    assert all_but([], 40) is None
    assert all_but([40, 99, -1], 40) is None
    assert all_but(range(40), 40) is None
    kept = all_but([3, 39], 40)
    assert [i for i in range(64) if allows(kept, i)] == [i for i in range(39) if i != 3]


@pytest.mark.spec("ENG-60")
def test_the_constraint_wins_over_a_mask_if_both_allow_nothing():
    ends, others = Mask([3], 40).words, all_but([3], 40)
    assert narrowed(ends, others) is ends
    assert narrowed(None, others) is others
    assert narrowed(ends, None) is ends
    assert narrowed(Mask([2, 3], 40).words, others).tolist() == Mask([2], 40).words.tolist()


@pytest.mark.spec("ENG-30")
def test_the_answer_of_a_fixed_row_has_not_changed():
    logits = np.array([(i * 7919 % 2003) / 256 for i in range(5000)], dtype=np.float32)
    drawn = [draw(logits, request(temperature=0.8, top_p=0.9, seed=42, logprobs=0), i) for i in range(4)]
    assert [(d.token, naive.bits(d.logprob)) for d in drawn] == GOLDEN_DRAWS
