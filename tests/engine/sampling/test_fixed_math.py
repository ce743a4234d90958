"""The arithmetic that decides tokens: close to the true functions, with the same bits as plain Python floats."""

import math
from decimal import Context, Decimal

import numpy as np
import pytest

from tests.kit.engine import naive_sampler as naive
from tlserve.engine.sampling import fixed_math

GOLDEN_EXP = ["98aba1b876bdeb3f", "bb84878ca2f7a43e", "e52f832565153026"]
GOLDEN_LOG_TOTAL = "08365abcc4210040"

LENGTHS = [1, 2, 1023, 1024, 1025, 5000, 20_000]


def exp(values):
    x = np.array(values, dtype=np.float64)
    fixed_math.exp_in_place(x)
    return x


@pytest.mark.spec("ENG-30")
def test_exp_has_the_bits_of_the_same_steps_in_plain_python():
    x = np.concatenate([-np.random.default_rng(1).exponential(30.0, 20_000), [-0.0, 0.0, -700.0, -1e300, 1.0, 50.0]])
    assert exp(x).tolist() == [naive.exp(v) for v in x.tolist()]


@pytest.mark.spec("ENG-30")
def test_exp_is_within_two_units_of_the_last_place():
    exact = Context(prec=40)
    x = -np.random.default_rng(2).exponential(20.0, 3000)
    for value, got in zip(x.tolist(), exp(x).tolist(), strict=True):
        true = exact.exp(Decimal(value))
        assert abs(exact.subtract(Decimal(got), true)) <= 2 * Decimal(math.ulp(float(true)))


def test_exp_of_zero_is_exactly_one_and_of_the_floor_still_positive():
    assert exp([0.0, -700.0, -math.inf]).tolist() == [1.0, naive.exp(-700.0), naive.exp(-700.0)]
    assert naive.exp(-700.0) > 0


def test_exp_of_an_element_does_not_depend_on_its_place_or_its_neighbours():
    x = -np.random.default_rng(3).exponential(5.0, 20_000)
    whole = exp(x)
    for start, end in ((0, 1), (5, 9000), (8191, 8194), (19_999, 20_000)):
        assert exp(x[start:end]).tobytes() == whole[start:end].tobytes()


@pytest.mark.spec("ENG-30")
@pytest.mark.parametrize("x", [1.0, 1.5, 2.0, math.e, 49_152.0, 1e300, 0.7, 1e-300, 1 + 2**-52])
def test_log_is_within_two_units_of_the_last_place(x):
    true = Context(prec=40).ln(Decimal(x))
    assert abs(Decimal(fixed_math.log(x)) - true) <= 2 * Decimal(math.ulp(float(true)))


@pytest.mark.spec("ENG-30")
@pytest.mark.parametrize("length", LENGTHS)
def test_total_adds_in_the_documented_order(length):
    weights = np.random.default_rng(length).exponential(1.0, length)
    assert naive.bits(fixed_math.total(weights)) == naive.bits(naive.total(weights.tolist()))


@pytest.mark.parametrize("length", LENGTHS)
def test_inverse_cdf_gives_every_element_an_interval_of_its_weight(length):
    weights = np.random.default_rng(length).exponential(1.0, length)
    line = sorted(range(length), key=lambda i: (i % 1024, i))
    middles = (np.cumsum(weights[line]) - weights[line] / 2) / weights.sum()
    step = max(1, length // 500)
    assert [fixed_math.inverse_cdf(weights, u) for u in middles[::step].tolist()] == line[::step]


def test_inverse_cdf_never_returns_an_element_of_weight_zero():
    weights = np.array([0.0, 1.0, 0.0, 0.0, 2.0, 0.0])
    assert {fixed_math.inverse_cdf(weights, u) for u in (0.0, 1 / 3, 0.5, 1 - 2**-53)} == {1, 4}


@pytest.mark.spec("ENG-30")
def test_the_bits_are_those_of_the_machine_that_first_ran_this():
    x = -np.arange(2000) / 7.0
    assert [naive.bits(v) for v in exp(x)[[1, 100, 1999]]] == GOLDEN_EXP
    assert naive.bits(fixed_math.log(fixed_math.total(exp(x)))) == GOLDEN_LOG_TOTAL
