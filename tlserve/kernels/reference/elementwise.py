"""Sums, exponentials, norms: float32, in one stated order, from operations that round alike on every machine.

Uses only: add, subtract, multiply, divide, square root, round to nearest, minimum, maximum (each
correctly rounded by IEEE 754), and exact changes of representation. Never a math library's exp, never a fused
multiply-add, never a library's sum; so native kernels can agree to the bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

LOG2_E = np.float32(1.4426950408889634)

# 2**f for f in [-0.5, 0.5], highest power first: least greatest relative error (9e-8, before rounding), with the last
# coefficient fixed at 1 so that 2**0 is exactly 1. Applied by Horner's rule.
EXP2_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        0.001326472731307149,
        0.009671512991189957,
        0.05550733581185341,
        0.24022242426872253,
        0.6931470036506653,
        1.0,
    )
)
# a * (1 - Phi(a)) for a in [0, 5.5], as a polynomial in 2 a / 5.5 - 1, highest power first: least greatest absolute error
# (5.4e-7, before rounding). Phi is the normal distribution's. Applied by Horner's rule.
GELU_END = np.float32(5.5)
GELU_TAIL_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        0.03586279973387718,
        -0.0397605337202549,
        -0.15407727658748627,
        0.23637793958187103,
        0.18500642478466034,
        -0.5487241148948669,
        0.1922897845506668,
        0.4612792730331421,
        -0.6387202739715576,
        0.26004934310913086,
        0.18024154007434845,
        -0.30864328145980835,
        0.1912022829055786,
        -0.0605790801346302,
        0.008194840513169765,
    )
)
_EXPONENT_BIAS = np.float32(127 << 23)
_ONE_EXPONENT = np.float32(1 << 23)


def sum_in_halves(terms: F32) -> F32:
    """Sum over the last axis: add the upper half to the lower one, until one term is left.

    Of n terms, the last n // 2 are added to the first n // 2; a middle term (n odd) stays in place, after them.
    terms: (..., n), n at least 1 -> (...).
    """
    count = terms.shape[-1]
    while count > 1:
        half = count // 2
        folded = terms[..., :half] + terms[..., count - half : count]
        terms = np.concatenate([folded, terms[..., half : half + 1]], axis=-1) if count % 2 else folded
        count -= half
    return terms[..., 0]


def exp2(x: F32, out: F32 | None = None) -> F32:
    """Return 2**x, elementwise; overwrites `x`. Relative error at most 2e-7.

    x is clipped to [-127, 126] first; numbers that round to -127 give exactly 0, so -inf gives 0; nan stays nan.
    2**x = 2**n * 2**f with n = rint(x) and f = x - n (exact); 2**f by Horner's rule; 2**n made from its exponent bits.
    """
    np.clip(x, np.float32(-127), np.float32(126), out=x)
    n = np.rint(x)
    np.subtract(x, n, out=x)
    power = np.multiply(x, EXP2_COEFFICIENTS[0])
    for coefficient in EXP2_COEFFICIENTS[1:-1]:
        np.add(power, coefficient, out=power)
        np.multiply(power, x, out=power)
    np.add(power, EXP2_COEFFICIENTS[-1], out=power)
    np.multiply(n, _ONE_EXPONENT, out=n)
    np.add(n, _EXPONENT_BIAS, out=n)
    with np.errstate(invalid="ignore"):  # nan has no integer; the product below is nan all the same
        bits = n.astype(np.int32)
    result: F32 = power if out is None else out
    np.multiply(power, bits.view(np.float32), out=result)
    return result


def rms_norm(x: F32, weight: F32 | np.float32, epsilon: np.float32) -> F32:
    """Return x / sqrt(mean(x**2) + epsilon) * weight over the last axis; the mean by `sum_in_halves`.

    x: (R, F), weight: (F,) -> (R, F). Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    mean = sum_in_halves(np.multiply(x, x)) / np.float32(x.shape[-1])
    scale = np.float32(1) / np.sqrt(mean + epsilon)
    normed: F32 = x * scale[:, None]
    normed *= weight
    return normed


def silu_times(gate: F32, up: F32, out: F32) -> None:
    """Write gate / (1 + 2**(-gate * log2 e)) * up into `out`; all (..., F)."""
    denominator = exp2(np.multiply(gate, -LOG2_E))
    np.add(denominator, np.float32(1), out=denominator)
    np.divide(gate, denominator, out=denominator)
    np.multiply(denominator, up, out=out)


def layer_norm(x: F32, weight: F32, bias: F32 | None, epsilon: np.float32) -> F32:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis; both means by `sum_in_halves`.

    x: (..., F); weight, bias: (F,), or of the shape of a row of x; bias None: nothing is added. -> (..., F).
    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
    """
    count = np.float32(x.shape[-1])
    normed: F32 = x - (sum_in_halves(x) / count)[..., None]
    variance = sum_in_halves(np.multiply(normed, normed)) / count
    normed *= (np.float32(1) / np.sqrt(variance + epsilon))[..., None]
    normed *= weight
    if bias is not None:
        normed += bias
    return normed


def gelu(x: F32) -> None:
    """Replace x by x * Phi(x) = max(x, 0) - |x| * (1 - Phi(|x|)), elementwise. Absolute error at most 8e-7; nan stays nan.

    |x| is cut to 5.5, beyond which the second term is below 1.1e-7 and the cut one below the bound. The exact gelu, by the
    error function, not the tanh form. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    s = np.abs(x)
    np.minimum(s, GELU_END, out=s)
    np.multiply(s, np.float32(2) / GELU_END, out=s)
    np.subtract(s, np.float32(1), out=s)
    tail = np.multiply(s, GELU_TAIL_COEFFICIENTS[0])
    for coefficient in GELU_TAIL_COEFFICIENTS[1:-1]:
        np.add(tail, coefficient, out=tail)
        np.multiply(tail, s, out=tail)
    np.add(tail, GELU_TAIL_COEFFICIENTS[-1], out=tail)
    np.maximum(x, np.float32(0), out=x)
    np.subtract(x, tail, out=x)


GELU_TANH_EXPONENT = np.float32(-2.302208198)
"""-2 sqrt(2 / pi) log2(e)."""


def gelu_tanh(x: F32) -> None:
    """Replace x by x / (1 + 2**(-2 sqrt(2 / pi) log2(e) (x + 0.044715 x**3))), elementwise: gelu's tanh form.

    The polynomial is ((x * x) * 0.044715 + 1) * x * constant. Source: Hendrycks and Gimpel (2016), section 2.
    """
    inner = np.multiply(x, x)
    np.multiply(inner, np.float32(0.044715), out=inner)
    np.add(inner, np.float32(1), out=inner)
    np.multiply(inner, x, out=inner)
    np.multiply(inner, GELU_TANH_EXPONENT, out=inner)
    denominator = exp2(inner)
    np.add(denominator, np.float32(1), out=denominator)
    np.divide(x, denominator, out=x)


def activate(x: F32, activation: str) -> None:
    """Replace x by silu, gelu_tanh, gelu_erf or relu2 (the square of max(x, 0)) of x, elementwise."""
    if activation == "silu":
        silu_times(x, np.ones_like(x), out=x)
    elif activation == "gelu_tanh":
        gelu_tanh(x)
    elif activation == "gelu_erf":
        gelu(x)
    else:
        np.maximum(x, np.float32(0), out=x)
        np.multiply(x, x, out=x)


SWIGLU_LIMIT, SWIGLU_SLOPE = np.float32(7), np.float32(1.702)


def clamped_swiglu(gate: F32, up: F32) -> None:
    """Replace gate by g * sigmoid(1.702 g) * (u + 1), with g = min(gate, 7) and u = up cut to [-7, 7], elementwise.

    Nan stays nan. g is divided by 1 + 2**(-1.702 log2(e) g). Source: `GptOssExperts` of transformers.
    """
    np.minimum(gate, SWIGLU_LIMIT, out=gate)
    denominator = exp2(np.multiply(gate, SWIGLU_SLOPE * -LOG2_E))
    np.add(denominator, np.float32(1), out=denominator)
    np.divide(gate, denominator, out=gate)
    gate *= np.clip(up, -SWIGLU_LIMIT, SWIGLU_LIMIT) + np.float32(1)


def sigmoid(x: F32) -> F32:
    """Return 1 / (1 + 2**(-x * log2 e)), elementwise."""
    denominator = exp2(np.multiply(x, -LOG2_E))
    np.add(denominator, np.float32(1), out=denominator)
    return np.float32(1) / denominator


def softmax(x: F32) -> F32:
    """Return 2**((x - greatest) * log2 e), divided by their sum over the last axis, which `sum_in_halves` makes."""
    powers = exp2(np.multiply(x - x.max(axis=-1, keepdims=True), LOG2_E))
    shares: F32 = powers / sum_in_halves(powers)[..., None]
    return shares


def soft_cap(x: F32, cap: np.float32) -> F32:
    """Return cap * tanh(x / cap), elementwise: cap * (1 - e) / (1 + e) with e = 2**(-2 log2(e) |x / cap|), and the sign of x."""
    t = np.abs(x)
    np.divide(t, cap, out=t)
    np.multiply(t, np.float32(-2) * LOG2_E, out=t)
    e = exp2(t)
    capped: F32 = (np.float32(1) - e) / (np.float32(1) + e)
    np.multiply(capped, cap, out=capped)
    return np.copysign(capped, x)
