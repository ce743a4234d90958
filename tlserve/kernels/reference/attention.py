"""Attention of one sequence with every sum in a stated order: the same bits as the native kernels, slowly.

The order, for each (row, query head): scores over components ascending from 0; probabilities 2**(score - greatest); their
sum in 16 partial sums (number j over keys j, j + 16, ...) folded by halves; values over keys ascending from 0; the quotient.
Every operation is rounded by itself. See `native/attention.h`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.elementwise import exp2, sum_in_halves

F32 = NDArray[np.float32]
KEY_TILE = 16


def attend_in_order(q: F32, keys: F32, values: F32, positions: NDArray[np.int32], window: int = 0) -> F32:
    """Return the attention of the rows of one sequence, (R, kv_heads, group, D).

    q: (R, kv_heads, group, D), scaled by log2(e) / sqrt(D); keys, values: (L, kv_heads, D) at positions 0 .. L - 1, finite;
    positions: (R,), the last key that each row sees; window: how many it sees, 0: all from the first on.
    """
    scores = np.zeros((*q.shape[:3], len(keys)), np.float32)
    for d in range(q.shape[3]):
        scores += q[..., d, None] * keys[:, :, d].T[None, :, None, :]
    scores[np.broadcast_to(_hidden(len(keys), positions, window)[:, None, None, :], scores.shape)] = -np.inf
    probabilities = exp2(scores - scores.max(axis=-1, keepdims=True))
    out = np.zeros_like(q)
    for t in range(len(keys)):
        out += probabilities[..., t, None] * values[t][None, :, None, :]
    out /= _sum(probabilities)[..., None]
    return out


def _hidden(length: int, positions: NDArray[np.int32], window: int) -> NDArray[np.bool_]:
    """Return which keys no row may see, (R, L): those after it and those before its window."""
    keys, last = np.arange(length), positions[:, None]
    return (keys > last) | ((keys <= last - window) if window else False)


def _sum(probabilities: F32) -> F32:
    """Sum over the keys: 16 partial sums over whole tiles ascending, then by halves."""
    missing = -probabilities.shape[-1] % KEY_TILE
    padded = np.concatenate([probabilities, np.zeros((*probabilities.shape[:-1], missing), np.float32)], axis=-1)
    partial = np.zeros((*probabilities.shape[:-1], KEY_TILE), np.float32)
    for tile in range(0, padded.shape[-1], KEY_TILE):
        partial += padded[..., tile : tile + KEY_TILE]
    return sum_in_halves(partial)
