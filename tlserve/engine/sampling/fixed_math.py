"""exp, log and sums in float64 whose bits are the same on every machine.

Owns the few functions that decide a token. The C library's and numpy's own exp and log differ in the last bit between
processors, and numpy's sum changes its order with the shape. Here everything consists of additions, multiplications and
divisions, which IEEE 754 rounds in one way, in a documented order, so that native code can repeat it.

- exp: x = (64 q + j) ln 2 / 64 + r; 2^(j/64) from a table made with exact arithmetic, exp(r) by a polynomial of degree 6
  (Tang, "Table-driven implementation of the exponential function in IEEE floating-point arithmetic", 1989). Error below 2 ulp.
- log: the series of the inverse hyperbolic tangent, for one number.
- sums: element i of an array belongs to lane i mod 1024. Each lane adds its elements one after the other from 0.0, then the
  lanes are added one after the other.
- shares: where a sum is only compared, weights are integer multiples of 2^-44, and their sum is exact in any order. So a
  nucleus is found without sorting.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
from numpy.typing import NDArray

LANES = 1024
FLOOR = -700.0  # exp clips its arguments to this: its results stay normal numbers

_STEPS = 64
_TILE = 8 * LANES  # elements worked on at a time: they fit the first-level cache
_EXACT = decimal.Context(prec=50)
_LN2 = _EXACT.ln(decimal.Decimal(2))
_STEP = _EXACT.divide(_LN2, _STEPS)
_INVERSE_STEP = float(_EXACT.divide(1, _STEP))
_STEP_HIGH = math.floor(float(_STEP) * 2.0**40) / 2.0**40  # 34 bits: times a whole number below 2^17 it is exact
_STEP_LOW = float(_EXACT.subtract(_STEP, decimal.Decimal(_STEP_HIGH)))
_POWERS = np.array([float(_EXACT.power(2, _EXACT.divide(j, _STEPS))) for j in range(_STEPS)])
_COEFFICIENTS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0)
_LN2_HIGH = _STEP_HIGH * _STEPS
_LN2_LOW = _STEP_LOW * _STEPS
LN2 = _LN2_HIGH + _LN2_LOW
_ROOT_HALF = math.sqrt(0.5)
_LOG_TERMS = tuple(1 / n for n in range(25, 2, -2))


def exp_constants() -> NDArray[np.float64]:
    """Return the constants for a native `exp_in_place`: the inverse step, the step in two parts, the table of powers."""
    return np.array([_INVERSE_STEP, _STEP_HIGH, _STEP_LOW, *_POWERS])


def exp_in_place(x: NDArray[np.float64]) -> None:
    """Replace each of x: (n,) float64, in FLOOR..700, by its exponential; values below FLOOR count as FLOOR, 0 gives exactly 1.

    In place, because new arrays of a vocabulary's size cost more in page faults than the arithmetic.
    """
    np.maximum(x, FLOOR, out=x)
    steps, part, whole = np.empty(_TILE), np.empty(_TILE), np.empty(_TILE, dtype=np.int64)
    for start in range(0, len(x), _TILE):
        tile = x[start : start + _TILE]
        size = len(tile)
        _exp_tile(tile, steps[:size], part[:size], whole[:size])


def _exp_tile(
    x: NDArray[np.float64], steps: NDArray[np.float64], part: NDArray[np.float64], whole: NDArray[np.int64]
) -> None:
    """Replace x by its exponential; the other arrays are scratch space of the same length."""
    np.rint(np.multiply(x, _INVERSE_STEP, out=steps), out=steps)
    x -= np.multiply(steps, _STEP_HIGH, out=part)
    x -= np.multiply(steps, _STEP_LOW, out=part)
    np.multiply(x, _COEFFICIENTS[0], out=part)
    for coefficient in _COEFFICIENTS[1:]:
        part += coefficient
        part *= x
    part += 1.0
    np.copyto(whole, steps, casting="unsafe")
    entry = np.bitwise_and(whole, _STEPS - 1, out=steps.view(np.int64))
    np.take(_POWERS, entry, out=x, mode="clip")
    x *= part
    whole >>= 6
    whole <<= 52
    x.view(np.int64)[:] += whole  # times a power of two, in the exponent's bits


def exp(x: float) -> float:
    """Return the exponential of x, as `exp_in_place` does; a value above 700 counts as 700."""
    one = np.array([min(x, -FLOOR)])
    exp_in_place(one)
    return float(one[0])


def power(x: float, exponent: float) -> float:
    """Return x to the power of `exponent`, both at least 0, as exp(exponent log x); 0 for an x below 1e-300."""
    if exponent == 0:
        return 1.0
    return 0.0 if x < 1e-300 else exp(exponent * log(x))


def log(x: float) -> float:
    """Return the natural logarithm of x, a positive normal number."""
    mantissa, exponent = math.frexp(x)
    if mantissa < _ROOT_HALF:
        mantissa, exponent = 2 * mantissa, exponent - 1
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = 0.0
    for term in _LOG_TERMS:
        series = (series + term) * square
    return exponent * _LN2_HIGH + (2 * s + (2 * s * series + exponent * _LN2_LOW))


def lane_sums(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of each lane: (min(n, LANES),) float64, for weights: (n,) float64."""
    lanes = weights[:LANES].copy()
    for start in range(LANES, len(weights), LANES):
        row = weights[start : start + LANES]
        lanes[: len(row)] += row
    return lanes


def total(weights: NDArray[np.float64]) -> float:
    """Return the sum of weights: (n,) float64, n at least 1, in the order given at the top of this module."""
    return float(np.add.accumulate(lane_sums(weights))[-1])


def shares(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return weights: (n,) float64, in 0..1, as integer multiples of 2^-44: (n,) int64; their sums are exact in any order."""
    return (weights * 2.0**44).astype(np.int64)


def inverse_cdf(weights: NDArray[np.float64], u: float) -> int:
    """Return the element that contains the share u of the total; u in [0, 1), weights: (n,) float64, none negative.

    The elements are ordered lane by lane, and ascending within a lane; one of weight 0 is never returned.
    """
    lanes = lane_sums(weights)
    lane, rest = _pick(lanes, u * float(np.add.accumulate(lanes)[-1]))
    row, _ = _pick(weights[lane::LANES], rest)
    return lane + row * LANES


def _pick(weights: NDArray[np.float64], target: float) -> tuple[int, float]:
    """Return the first element whose running sum passes `target`, and the distance of the target from its beginning."""
    sums = np.add.accumulate(weights)
    index = int(np.searchsorted(sums, target, side="right"))
    if index == len(sums):  # rounding put the target at the very end
        index = int(np.flatnonzero(weights)[-1])
    return index, target - (float(sums[index - 1]) if index else 0.0)
