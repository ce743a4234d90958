"""Attention of one sequence with every sum in a stated order: the same bits as the native kernels, slowly.

Owns the order, for each (row, query head): scores over components ascending from 0; probabilities 2**(score - greatest); their
sum in 16 partial sums (number j over keys j, j + 16, ...) folded by halves; values over keys ascending from 0; the quotient.
Every operation is rounded by itself. See `native/attention.h`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.elementwise import exp2, sum_in_halves

F32 = NDArray[np.float32]
KEY_TILE = 16


def attend_in_order(q: F32, keys: F32, values: F32, positions: NDArray[np.int32]) -> F32:
    """Return the attention of the rows of one sequence, (R, kv_heads, group, D).

    q: (R, kv_heads, group, D), scaled by log2(e) / sqrt(D); keys, values: (L, kv_heads, D) at positions 0 .. L - 1, finite;
    positions: (R,), the last key that each row sees.
    """
    scores = np.zeros((*q.shape[:3], len(keys)), np.float32)
    for d in range(q.shape[3]):
        scores += q[..., d, None] * keys[:, :, d].T[None, :, None, :]
    scores[np.broadcast_to((np.arange(len(keys)) > positions[:, None])[:, None, None, :], scores.shape)] = -np.inf
    probabilities = exp2(scores - scores.max(axis=-1, keepdims=True))
    out = np.zeros_like(q)
    for t in range(len(keys)):
        out += probabilities[..., t, None] * values[t][None, :, None, :]
    out /= _sum(probabilities)[..., None]
    return out


def _sum(probabilities: F32) -> F32:
    """Sum over the keys: 16 partial sums over whole tiles ascending, then by halves."""
    missing = -probabilities.shape[-1] % KEY_TILE
    padded = np.concatenate([probabilities, np.zeros((*probabilities.shape[:-1], missing), np.float32)], axis=-1)
    partial = np.zeros((*probabilities.shape[:-1], KEY_TILE), np.float32)
    for tile in range(0, padded.shape[-1], KEY_TILE):
        partial += padded[..., tile : tile + KEY_TILE]
    return sum_in_halves(partial)
