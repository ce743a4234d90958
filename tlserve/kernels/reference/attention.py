"""Attention of one sequence with every operation in a stated order: the same bits as the native kernels.

Keys are cut into segments of `SEGMENT`, counted from position 0. In each segment, for each (row, query head): scores are chains
of fused multiply-adds over components ascending; probabilities are 2**(score - greatest score of the segment); their sum is made
in 16 partial sums (number j over keys j, j + 16, ...) folded by halves; values are chains of fused multiply-adds over keys
ascending. Segments are joined in ascending order, each with the factor 2**(its greatest score - the greatest so far).
`native/attention.h` states every operation. A segment of which a row sees nothing changes nothing.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.chains import chain
from tlserve.kernels.reference.elementwise import exp2, soft_cap, sum_in_halves

F32 = NDArray[np.float32]
Hidden = NDArray[np.bool_]

SEGMENT = 256
KEY_TILE = 16
_NO_CAP = np.float32(0)
_LEAST = np.float32(np.finfo(np.float32).min)


@attrs.frozen(eq=False)
class _Part:
    """What some keys give to N queries. They are `values` / `total`, if all other keys are left out."""

    most: F32  # (N,) the greatest score
    total: F32  # (N,) the sum of the probabilities
    values: F32  # (N, D)


def attend_in_order(
    q: F32,
    keys: F32,
    values: F32,
    positions: NDArray[np.int32],
    window: int = 0,
    cap: np.float32 = _NO_CAP,
    sinks: F32 | None = None,
    *,
    both_sides: bool = False,
) -> F32:
    """Return the attention of the rows of one sequence, (R, kv_heads, group, D).

    q: (R, kv_heads, group, D), scaled by log2(e) / sqrt(D); keys, values: (L, kv_heads, D) at positions 0 .. L - 1, finite;
    positions: (R,), the last key that each row sees; window: how many it sees, 0: all from the first on.
    cap: above 0, a score becomes cap * tanh(score / cap); it is multiplied by log2(e) as the scores are.
    both_sides: each row sees all keys, or `window` on each side and its own.
    sinks: (kv_heads, group), one more score of each head, without a value; multiplied by log2(e) as well.
    """
    which = _hidden_on_both_sides if both_sides else _hidden
    hidden = np.repeat(which(len(keys), positions, window), q.shape[2], axis=0)
    out = np.empty_like(q)
    for head in range(q.shape[1]):
        lanes = np.ascontiguousarray(q[:, head]).reshape(-1, q.shape[3])
        sink = None if sinks is None else np.tile(sinks[head], len(q))
        attended = _attend_head(lanes, keys[:, head], values[:, head], hidden, cap, sink)
        out[:, head] = attended.reshape(len(q), *q.shape[2:])
    return out


def _attend_head(q: F32, keys: F32, values: F32, hidden: Hidden, cap: np.float32, sink: F32 | None) -> F32:
    """Return the attention of N queries of one key head.

    q: (N, D), keys, values: (L, D), hidden: (N, L), sink: (N,), which is joined last -> (N, D).
    """
    part = _Part(np.full(len(q), _LEAST), np.zeros(len(q), np.float32), np.zeros_like(q))
    for start in range(0, len(keys), SEGMENT):
        of_segment = slice(start, start + SEGMENT)
        if not hidden[:, of_segment].all():
            segment = _attend_segment(q, keys[of_segment], values[of_segment], hidden[:, of_segment], cap)
            part = _join(part, segment)
    if sink is not None:
        part = _join(part, _Part(sink, np.ones_like(sink), np.zeros_like(q)))
    result: F32 = part.values / part.total[:, None] + np.float32(0)
    return result


def _attend_segment(q: F32, keys: F32, values: F32, hidden: Hidden, cap: np.float32) -> _Part:
    """Attend to the keys of one segment."""
    scores = chain(q, np.ascontiguousarray(keys))
    if cap:
        scores = soft_cap(scores, cap)
    scores[hidden] = -np.inf
    most = np.fmax.reduce(scores, axis=1, initial=_LEAST)
    probabilities = exp2(scores - most[:, None])
    return _Part(most, _sum(probabilities), chain(np.ascontiguousarray(values.T), probabilities).T)


def _join(so_far: _Part, segment: _Part) -> _Part:
    """Add what the next segment gives to what those before it give."""
    most = np.where(segment.most > so_far.most, segment.most, so_far.most)
    a, b = exp2(so_far.most - most), exp2(segment.most - most)
    values = so_far.values * a[:, None] + segment.values * b[:, None]
    return _Part(most, so_far.total * a + segment.total * b, values)


def _hidden(length: int, positions: NDArray[np.int32], window: int) -> Hidden:
    """Return which keys no row may see, (R, L): those after it and those before its window."""
    keys, last = np.arange(length), positions[:, None]
    return (keys > last) | ((keys <= last - window) if window else False)


def _hidden_on_both_sides(length: int, positions: NDArray[np.int32], window: int) -> Hidden:
    """Return which keys are more than a window away from each row, (R, L); none are where `window` is 0."""
    far: Hidden = np.abs(np.arange(length) - positions[:, None]) > (window or length)
    return far


def _sum(probabilities: F32) -> F32:
    """Sum over the keys: 16 partial sums over whole tiles ascending, then by halves."""
    missing = -probabilities.shape[-1] % KEY_TILE
    padded = np.concatenate([probabilities, np.zeros((*probabilities.shape[:-1], missing), np.float32)], axis=-1)
    partial = np.zeros((*probabilities.shape[:-1], KEY_TILE), np.float32)
    for tile in range(0, padded.shape[-1], KEY_TILE):
        partial += padded[..., tile : tile + KEY_TILE]
    return sum_in_halves(partial)
