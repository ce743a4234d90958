"""Sums, exponentials and norms: their stated order, their bound against float64, and their edges."""

import math
import warnings

import numpy as np
import pytest

from tlserve.kernels.reference.elementwise import exp2, gelu, layer_norm, rms_norm, silu_times, sum_in_halves

F32 = np.float32


def sum_in_halves_by_hand(terms):
    """The stated order, one number at a time."""
    terms = [F32(t) for t in terms]
    while len(terms) > 1:
        half, middle = len(terms) // 2, (len(terms) + 1) // 2
        terms = [terms[i] + terms[middle + i] for i in range(half)] + terms[half:middle]
    return terms[0]


@pytest.mark.spec("MOD-6")
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 27, 64, 576])
def test_sum_in_halves_adds_in_the_stated_order(count):
    terms = np.random.default_rng(count).standard_normal((3, count)).astype(F32)
    assert sum_in_halves(terms).tolist() == [sum_in_halves_by_hand(row) for row in terms]


def test_sum_in_halves_does_not_change_its_terms():
    terms = np.arange(9, dtype=F32)
    sum_in_halves(terms)
    assert terms.tolist() == list(range(9))


@pytest.mark.spec("MOD-7")
def test_exp2_is_within_two_ten_millionths_of_the_truth():
    x = np.linspace(-126, 126, 200_001, dtype=F32)
    truth = np.exp2(x.astype(np.float64))
    assert (np.abs(exp2(x.copy()) - truth) / truth).max() < 2e-7


@pytest.mark.spec("MOD-7")
def test_exp2_of_whole_numbers_is_exact():
    n = np.arange(-126, 127, dtype=F32)
    assert np.array_equal(exp2(n.copy()).astype(np.float64), 2.0 ** np.arange(-126, 127))


@pytest.mark.spec("MOD-7")
def test_exp2_of_a_masked_value_is_exactly_zero_and_of_nan_is_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = exp2(np.array([-np.inf, -1000, -127, np.nan, np.inf], F32))
    assert result[:3].tolist() == [0, 0, 0]
    assert not np.signbit(result[:3]).any()
    assert np.isnan(result[3])
    assert result[4] == 2.0**126


def test_rms_norm_is_within_float32_of_the_truth():
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((5, 576)).astype(F32), random.standard_normal(576).astype(F32)
    wide = x.astype(np.float64)
    truth = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    assert np.abs(rms_norm(x, weight, F32(1e-5)) - truth).max() < 2e-6


def test_rms_norm_of_a_row_does_not_depend_on_its_neighbours():
    x = np.random.default_rng(1).standard_normal((40, 27)).astype(F32)
    weight = np.ones(27, F32)
    together = rms_norm(x, weight, F32(1e-5))
    assert all(np.array_equal(rms_norm(x[i : i + 1], weight, F32(1e-5))[0], together[i]) for i in range(40))


def test_silu_times_is_within_float32_of_the_truth_and_survives_large_gates():
    gate = np.array([-1e4, -90, -20, -1, 0, 1, 20, 1e4], F32)
    up, out = np.full(8, 2, F32), np.empty(8, F32)
    with np.errstate(all="raise", under="ignore"):
        silu_times(gate, up, out)
    truth = gate / (1 + np.exp(-gate.astype(np.float64).clip(-700, 700))) * 2
    assert np.allclose(out, truth, rtol=4e-7, atol=1e-30)


@pytest.mark.spec("MOD-35")
def test_gelu_is_within_eight_ten_millionths_of_the_truth():
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.geomspace(1e-30, 1e3, 999), -np.geomspace(1e-30, 1e3, 999)])
    got = x.astype(F32)
    truth = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in got.tolist()]
    gelu(got)
    near = np.abs(x) < 6
    assert np.abs(got - truth)[near].max() < 8e-7
    assert (np.abs(got - truth)[~near] <= np.maximum(8e-7, 6e-8 * np.abs(x[~near]))).all()


@pytest.mark.spec("MOD-35")
def test_gelu_keeps_large_values_drops_very_negative_ones_and_passes_nan():
    x = np.array([np.inf, 1e30, 100, -np.inf, -1e30, -100, np.nan], F32)
    gelu(x)
    assert x[:3].tolist() == [np.inf, F32(1e30), 100]
    assert np.abs(x[3:6]).max() < 8e-7
    assert np.isnan(x[6])


@pytest.mark.parametrize("features", [1, 3, 32, 384])
def test_layer_norm_is_within_float32_of_the_truth(features):
    random = np.random.default_rng(features)
    x, weight, bias = (random.standard_normal(size).astype(F32) for size in ((9, features), features, features))
    wide = x.astype(np.float64)
    truth = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(layer_norm(x, weight, bias, F32(1e-5)), truth, atol=3e-6)


def test_layer_norm_gives_each_row_the_bits_that_it_has_alone_in_any_layout():
    random = np.random.default_rng(5)
    x, weight, bias = (random.standard_normal(size).astype(F32) for size in ((7, 48), 48, 48))
    together = layer_norm(np.asfortranarray(x), weight, bias, F32(1e-12))
    for row, own in zip(x, together, strict=True):
        assert np.array_equal(layer_norm(row[None], weight, bias, F32(1e-12))[0], own)
