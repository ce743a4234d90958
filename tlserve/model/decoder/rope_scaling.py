"""Rotary frequencies for contexts longer than a model was first trained for: dynamic, llama3, yarn and LongRoPE scaling.

Each kind changes the frequencies, in float64: `frequency_factors` returns the divisor of each one, `amplitude` the factor of
every cosine and sine. Both are fixed for a model and its served context, never by the length of a sequence, because stored keys
must not change when a sequence grows. So only the tables differ, and every kernel that takes tables serves every kind. Linear
scaling divides positions (`record.Rope.linear_factor`). Knows nothing of files. Sources: Peng et al., "YaRN" (2023),
sections 3.1 to 3.4; the Llama 3.1 model card; `modeling_rope_utils` of transformers.
"""

from __future__ import annotations

import math
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.decoder.record import Rope

F64 = NDArray[np.float64]


class RopeScaling(Protocol):
    """One kind of scaling with its numbers; frozen, and its text names all of them (it is part of the numerics hash)."""

    @property
    def amplitude(self) -> float:
        """The factor of cosines and sines."""

    def frequency_factors(self, base: float, rotated: int, context_tokens: int) -> F64:
        """Return the divisor of each of the (rotated / 2,) frequencies base**(-2 i / rotated), float64."""


@attrs.frozen(kw_only=True)
class DynamicScaling:
    """A larger base for contexts longer than `original` tokens, as if every sequence filled the served context.

    transformers uses the base for the longest sequence so far, so that answers depend on other requests. At exactly the
    served context the two agree, and within `original` nothing is scaled.
    """

    factor: float
    original: int
    amplitude: float = 1.0

    def frequency_factors(self, base: float, rotated: int, context_tokens: int) -> F64:  # noqa: ARG002 - the protocol's
        """See `RopeScaling`."""
        stretch = self.factor * max(context_tokens, self.original) / self.original - (self.factor - 1)
        return np.asarray(stretch ** (np.arange(0, rotated, 2) / max(rotated - 2, 1)), np.float64)


@attrs.frozen(kw_only=True)
class Llama3Scaling:
    """Slow frequencies are divided by `factor`, fast ones kept, those between mixed by their wavelength."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int
    amplitude: float = 1.0

    def frequency_factors(self, base: float, rotated: int, context_tokens: int) -> F64:  # noqa: ARG002 - the protocol's
        """See `RopeScaling`."""
        turns = self.original * _frequencies(base, rotated) / (2 * math.pi)  # of each pair over the original context
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return _mixed(np.clip(kept, 0, 1), self.factor)


@attrs.frozen(kw_only=True)
class LongScaling:
    """LongRoPE: one list of divisors for contexts up to `original` tokens, another for longer ones.

    transformers changes to the second list once a sequence is longer than `original`, so that keys which are already stored
    would be wrong. Here the served context decides, for every sequence.
    """

    original: int
    short: tuple[float, ...]
    long: tuple[float, ...]
    amplitude: float

    def frequency_factors(self, base: float, rotated: int, context_tokens: int) -> F64:  # noqa: ARG002 - the protocol's
        """See `RopeScaling`."""
        factors = self.long if context_tokens > self.original else self.short
        if len(factors) != rotated // 2:
            raise ModelRefused(f"the rotation has {len(factors)} factors, but {rotated // 2} pairs of a head turn")
        return np.array(factors, np.float64)


@attrs.frozen(kw_only=True)
class YarnScaling:
    """Pairs that rotate more than `beta_fast` times over the original context are kept, those below `beta_slow` divided."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    amplitude: float

    def frequency_factors(self, base: float, rotated: int, context_tokens: int) -> F64:  # noqa: ARG002 - the protocol's
        """See `RopeScaling`."""
        low, high = (
            self._pair_with_turns(self.beta_fast, base, rotated),
            self._pair_with_turns(self.beta_slow, base, rotated),
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotated - 1)
        width = high - low if high != low else 0.001
        return _mixed(1 - np.clip((np.arange(rotated // 2) - low) / width, 0, 1), self.factor)

    def _pair_with_turns(self, turns: float, base: float, rotated: int) -> float:
        """Return the (fractional) number of the pair that rotates this many times over the original context."""
        return rotated * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))


def yarn_amplitude(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's amplitude 0.1 * weight * ln(factor) + 1, and 1 for factors up to 1 (section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _frequencies(base: float, rotated: int) -> F64:
    return np.asarray(base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated), np.float64)


def _mixed(kept: F64, factor: float) -> F64:
    """Return the divisor of frequencies of which the share `kept` stays as it is and the rest is divided by `factor`."""
    return np.asarray(1 / (kept + (1 - kept) / factor), np.float64)


def scaled_rope(
    base: float,
    turned: int,
    context_tokens: int,
    scaling: RopeScaling | None = None,
    linear_factor: float = 1.0,
    factors: F64 | None = None,
) -> Rope:
    """Return the rope of `turned` components; the divisors are those of `scaling` times `factors`, where there are any.

    Raises `ModelRefused` for numbers that no frequencies follow from.
    """
    if turned % 2:
        raise ModelRefused(f"the rotated part of a head (rope.dimension_count) must be even, not {turned}")
    if base <= 1:
        raise ModelRefused(f"the base of the rotation (rope.freq_base, rope_theta) must be above 1, not {base:g}")
    divisors = np.ones(turned // 2) if factors is None else factors
    if scaling is not None:
        divisors = divisors * scaling.frequency_factors(base, turned, context_tokens)
    return Rope(
        base=base,
        turned=turned,
        divisors=tuple(divisors.tolist()),
        linear_factor=linear_factor,
        amplitude=1.0 if scaling is None else scaling.amplitude,
    )
