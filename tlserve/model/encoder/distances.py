"""What the distance between query and key adds to their score: windows, ALiBi, and MPNet's buckets.

Sources: Press et al., "Train Short, Test Long" (2021); Raffel et al., "T5" (2019), section 2.1, for the buckets.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.whole_attention import ScoreBias
from tlserve.model.encoder.record import BUCKETS, FURTHEST, Distance, WholeAttention

F32 = NDArray[np.float32]
LOG2_E = math.log2(math.e)


def score_bias(attention: WholeAttention, stored: F32 | None) -> ScoreBias | None:
    """Return the function of (positions, heads) that gives what is added to scores, times log2(e); None: nothing is.

    stored: (BUCKETS, H), for that kind.
    """
    if not attention.window and attention.distance is Distance.NONE:
        return None

    def bias(positions: int, heads: slice) -> F32:
        steps = np.arange(positions, dtype=np.int32)
        ahead = steps[None, :] - steps[:, None]
        out = _added(attention, stored, ahead, heads)
        if attention.window:
            out = np.where(np.abs(ahead) <= attention.window, out, np.float32(-np.inf))
        return out

    return bias


def _added(attention: WholeAttention, stored: F32 | None, ahead: NDArray[np.int32], heads: slice) -> F32:
    """Return (heads or 1, positions, positions); ahead: how far a key is after its query."""
    if attention.distance is Distance.ALIBI:
        slopes = (np.array(alibi_slopes(attention.heads)) * LOG2_E).astype(np.float32)[heads]
        return -slopes[:, None, None] * np.abs(ahead).astype(np.float32)
    if attention.distance is Distance.BUCKETS:
        assert stored is not None
        most = len(ahead) - 1
        row = buckets(np.arange(-most, most + 1))
        by_head = (stored.T[heads] * np.float32(LOG2_E))[:, row]
        return by_head[:, ahead + most]
    return np.zeros((1, *ahead.shape), np.float32)


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head: a geometric series, and beyond a power of 2 every second one of the next series."""
    whole = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return first + [2 ** (-8 * (2 * i + 1) / (2 * whole)) for i in range(heads - whole)]


def buckets(ahead: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each distance: half of them for keys after their query, half of these for single distances."""
    half = BUCKETS // 2
    exact = half // 2
    far = np.abs(ahead)
    with np.errstate(divide="ignore"):
        logarithm = np.log(far.astype(np.float32) / np.float32(exact)) / np.float32(math.log(FURTHEST / exact))
    large = exact + np.maximum(logarithm, 0) * (half - exact)
    return np.where(ahead > 0, half, 0) + np.where(far < exact, far, np.minimum(large.astype(np.int64), half - 1))
