"""Rotary position embedding, on interleaved pairs: components 2i and 2i + 1 of a head are rotated by position * frequency i.

The tables are computed once in float64 and rounded to float32. GGUF stores the query and
key weights of the llama family permuted for interleaved pairs. Source: Su et al., "RoFormer" (2021).
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@attrs.frozen(eq=False)
class RopeTables:
    """cos and sin of every angle: (context, rotated / 2) float32 each."""

    cos: F32
    sin: F32


def rope_tables(
    context_tokens: int,
    rotated: int,
    base: float,
    *,
    linear_factor: float,
    frequency_factors: NDArray[np.float64],
    amplitude: float = 1.0,
) -> RopeTables:
    """Make the tables for `rotated` components of a head.

    Frequency i is base**(-2 i / rotated) / frequency_factors[i]; positions are divided by `linear_factor`; cos and sin
    are multiplied by `amplitude`. frequency_factors: (rotated / 2,) float64, all 1 without scaling.
    """
    frequencies = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated) / frequency_factors
    angles = np.arange(context_tokens, dtype=np.float64)[:, None] / linear_factor * frequencies
    return RopeTables(*((amplitude * turned).astype(np.float32) for turned in (np.cos(angles), np.sin(angles))))


def rotate(heads: F32, cos: F32, sin: F32) -> None:
    """Rotate in place: (a, b) becomes (a cos - b sin, a sin + b cos), each product rounded, then the sum.

    heads: (T, H, D), of which the first 2 * cos.shape[1] components are rotated; cos, sin: (T, rotated / 2), rows of the tables.
    """
    rotated = 2 * cos.shape[1]
    even, odd = heads[..., 0:rotated:2], heads[..., 1:rotated:2]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = even * cos - odd * sin
    np.add(even * sin, odd * cos, out=odd)
    even[...] = turned
