"""Chains of fused multiply-adds: the bits of the definition, from the BLAS and from the emulation."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlserve.kernels.reference import chains
from tlserve.kernels.reference.chains import (
    DEPTH,
    OUTPUTS,
    ROWS,
    add_once_rounded,
    chain,
    emulated_chain,
    fused_multiply_add,
)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(params=["as the BLAS adds", "as a BLAS that loses the sign of zeros", "emulated"], autouse=True)
def _who_adds(request, monkeypatch):
    if request.param == "as a BLAS that loses the sign of zeros":
        monkeypatch.setattr(chains, "blas_keeps_minus_zero", lambda: False)
    if request.param == "emulated":
        monkeypatch.setattr(chains, "blas_adds_in_order", lambda: False)


SIZES = [
    (1, 1, 1),
    (1, 27, 19),
    (ROWS, DEPTH, OUTPUTS),
    (ROWS + 1, DEPTH + 1, OUTPUTS + 1),
    (2, 3 * DEPTH, 70),
    (2, 300, 70),
    (0, 40, 7),
]


@pytest.mark.spec("KER-5", "MOD-40")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_size_has_the_bits_of_the_definition(size):
    rows, inputs, outputs = size
    x, weight = draw(rows, inputs), draw(outputs, inputs, seed=1)
    assert chain(x, weight).tobytes() == emulated_chain(x, weight).tobytes()


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf, np.float32(3e38)])
def test_a_row_that_is_not_finite_leaves_the_bits_of_the_others(strange):
    x, weight = draw(5, 200), draw(30, 200, seed=1)
    whole = chain(x, weight)
    x[2, 3] = strange
    with np.errstate(all="ignore"):
        spoilt = chain(np.float32(10) * x, np.float32(0.1) * weight)
        assert spoilt.tobytes() == emulated_chain(np.float32(10) * x, np.float32(0.1) * weight).tobytes()
        others = np.delete(chain(x, weight), 2, axis=0)
    assert others.tobytes() == np.delete(whole, 2, axis=0).tobytes()


@pytest.mark.parametrize("at", [0, DEPTH - 1, DEPTH, 2 * DEPTH])
def test_the_sign_of_a_zero_that_underflowed_is_kept(at):
    x, weight = np.zeros((2, 2 * DEPTH + 1), np.float32), np.full((3, 2 * DEPTH + 1), -1e-30, np.float32)
    x[1, at] = 1e-30
    x[1, at + 1 :] = 0
    out = chain(x, weight)
    assert out.tobytes() == emulated_chain(x, weight).tobytes()
    assert not out.any()
    assert np.signbit(out[1]).all()
    assert not np.signbit(out[0]).any()


def test_numbers_below_the_normal_ones_add_as_they_are_defined():
    x, weight = draw(3, 150) * np.float32(1e-22), draw(20, 150, seed=1) * np.float32(1e-20)
    out = chain(x, weight)
    assert out.any()
    assert out.tobytes() == emulated_chain(x, weight).tobytes()


def rounded(value):
    """Round a fraction to float32, to nearest even, by looking at its neighbours."""
    near = np.float32(float(value))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.int32)) & 1))


@pytest.mark.spec("KER-5")
@given(st.lists(st.floats(width=32, min_value=-(2.0**40), max_value=2.0**40), min_size=3, max_size=3))
@settings(max_examples=300, database=None)
def test_fused_multiply_add_in_numpy_is_the_exact_result_rounded_once(numbers):
    a, b, c = (np.float32([number]) for number in numbers)
    exact = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(c[0]))
    assert fused_multiply_add(a, b, c)[0] == rounded(exact)


def test_fused_multiply_add_is_right_where_two_roundings_would_go_wrong():
    random = np.random.default_rng(2)
    a, b = (random.integers(1 << 23, 1 << 24, 4000).astype(np.float32) for _ in range(2))
    c = (random.choice([-1, 1], 4000) * 2.0 ** random.integers(20, 50, 4000)).astype(np.float32)
    got = fused_multiply_add(a, b, c)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert [float(g) for g in got] == [float(rounded(value)) for value in exact]


@pytest.mark.spec("KER-34")
@pytest.mark.parametrize("seed", range(4))
def test_a_product_added_in_float64_is_rounded_once_also_half_way_between_two_floats(seed):
    """Addends of 24 bits and products with a last bit far below: many sums are half way, or next to it in both directions."""
    random = np.random.default_rng(seed)
    addend = random.integers(1 << 23, 1 << 24, (40, 100)).astype(np.float32)
    half = random.choice([0.5, -0.5, 0.25, 1.5], addend.shape)
    product = half + random.choice([0, 2.0**-35, -(2.0**-35)], addend.shape)
    got = add_once_rounded(product, addend)
    exact = [Fraction(p) + Fraction(float(a)) for p, a in zip(product.flat, addend.flat, strict=True)]
    assert [float(g) for g in got.flat] == [float(rounded(value)) for value in exact]
    assert (got != (product + addend).astype(np.float32)).any()


def test_sums_that_are_not_finite_stay_so():
    with np.errstate(over="ignore"):
        got = add_once_rounded(np.array([np.inf, np.nan, 3e38, 1.0]), np.float32([1, 1, 3e38, -np.inf]))
    assert np.array_equal(got, np.float32([np.inf, np.nan, np.inf, -np.inf]), equal_nan=True)
