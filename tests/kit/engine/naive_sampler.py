"""The sampler in plain Python floats, one token after the other: slow, and the truth for the fast one.

`exp` and the order of sums repeat what `tlserve.engine.sampling.fixed_math` states, so the bits must agree; the filters are
written from their definitions alone (sort everything, walk down the list).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from functools import cache

from tlserve.sampling_params import SamplingParams

EXACT = Context(prec=50)
STEP = EXACT.divide(EXACT.ln(Decimal(2)), 64)
HIGH = math.floor(float(STEP) * 2**40) / 2**40
LOW = float(EXACT.subtract(STEP, Decimal(HIGH)))
INVERSE = float(EXACT.divide(1, STEP))
MASK64 = 2**64 - 1


@cache
def power_of_two(j: int) -> float:
    return float(EXACT.power(2, EXACT.divide(j, 64)))


def exp(x: float) -> float:
    x = max(x, -700.0)
    steps = round(x * INVERSE)  # to even, as rint does
    r = x - steps * HIGH
    r = r - steps * LOW
    result = r * (1 / 720)
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0):
        result = (result + coefficient) * r
    result = (result + 1.0) * power_of_two(steps % 64)
    return math.ldexp(result, steps // 64)


def lanes(weights: Sequence[float]) -> list[float]:
    sums = [0.0] * min(1024, len(weights))
    for i, weight in enumerate(weights):
        sums[i % 1024] += weight
    return sums


def total(weights: Sequence[float]) -> float:
    value = 0.0
    for lane in lanes(weights):
        value += lane
    return value


def philox(key: int, counter: int) -> tuple[int, int]:
    """Philox4x64-10 from its paper; the first two 64-bit numbers. Numpy counts up before it computes."""
    k0, k1 = key & MASK64, key >> 64
    c0, c1, c2, c3 = counter + 1, 0, 0, 0
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & MASK64, (a >> 64) ^ c3 ^ k1, a & MASK64
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK64, (k1 + 0xBB67AE8584CAA73B) & MASK64
    return c0, c1


def uniforms(seed: int, choice: int, index: int) -> tuple[float, float]:
    first, second = philox(seed | choice << 64, index)
    return (first >> 11) * 2.0**-53, (second >> 11) * 2.0**-53


def uniform(seed: int, choice: int, index: int) -> float:
    return uniforms(seed, choice, index)[0]


def edited(
    logits: Iterable[float], sampling: SamplingParams, prompt: Sequence[int] = (), answer: Sequence[int] = ()
) -> list[float]:
    """Return the logits after penalties and biases, each in Python's float64, and rounded to float32 once."""
    return [_edited(logit, i, sampling, prompt, answer) for i, logit in enumerate(logits)]


def _edited(x: float, i: int, sampling: SamplingParams, prompt: Sequence[int], answer: Sequence[int]) -> float:
    if i in prompt or i in answer:
        x = x / sampling.repetition_penalty if x > 0 else x * sampling.repetition_penalty
    if i in answer:
        x = x - sampling.presence_penalty
        x = x - sampling.frequency_penalty * answer.count(i)
    return float32(x + dict(sampling.logit_bias).get(i, 0.0))


def float32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def weights_of(logits: Sequence[float], temperature: float) -> list[float]:
    best = max(logits)
    return [exp((logit - best) / temperature) for logit in logits]


def survivors(
    logits: Sequence[float], sampling: SamplingParams, allowed: Iterable[int] | None = None
) -> dict[int, float]:
    """Return {id: weight} of the tokens that may be drawn."""
    ids = sorted(range(len(logits)) if allowed is None else allowed)
    ranked = sorted(ids, key=lambda i: (-logits[i], i))
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    ids = sorted(ranked)
    weights = dict(zip(ids, weights_of([logits[i] for i in ids], sampling.temperature), strict=True))
    if sampling.top_p < 1:
        shares = {i: int(weight * 2**44) for i, weight in weights.items()}
        enough, reached, kept = int(sampling.top_p * float(sum(shares.values()))), 0, []
        for i in ranked:
            kept.append(i)
            reached += shares[i]
            if reached >= enough:
                break
        weights = {i: weights[i] for i in sorted(kept)}
    return {i: weight for i, weight in weights.items() if weight >= sampling.min_p}


def draw_token(
    logits: Sequence[float], sampling: SamplingParams, u: float, allowed: Iterable[int] | None = None
) -> int:
    if sampling.temperature == 0:
        return min(range(len(logits)) if allowed is None else allowed, key=lambda i: (-logits[i], i))
    weights = survivors(logits, sampling, allowed)
    line = sorted(range(len(weights)), key=lambda place: (place % 1024, place))
    ids, values = list(weights), list(weights.values())
    target, reached = u * math.fsum(values), 0.0
    for place in line:
        reached += values[place]
        if reached > target:
            return ids[place]
    return ids[line[-1]]


def bits(x: float) -> str:
    return struct.pack("<d", x).hex()
