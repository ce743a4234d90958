"""Attention in which every row sees its whole sequence: softmax(q k) v over sequences that are whole in the step.

Only the length of a sequence decides the order of its sums. A sequence is padded with zeros to a multiple of `GRAIN` positions;
for each head the scores are one product, the probabilities 2**(score - greatest), their sum by halves, the weighted values one
product, and the quotient comes last. A padded key has probability exactly 0. Sequences of one padded length are computed
together, but each in its own products, so that none affects the bits of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.elementwise import exp2, sum_in_halves
from tlserve.kernels.thread_pool import ThreadPool, Unit

F32 = NDArray[np.float32]
Ints = NDArray[np.int64]
ScoreBias = Callable[[int, slice], F32]
"""(padded positions, heads) -> what is added to scores: (heads or 1, positions, positions)."""

GRAIN = 16
_UNIT_SCORES = 1 << 18  # scores of one unit at most, unless a single head has more: a megabyte


@attrs.frozen(eq=False)
class LengthGroup:
    """The sequences whose lengths round up to the same `padded` positions.

    Row `rows[i]` of the step is at place `places[i]` of the group's `sequences` * `padded` places.
    """

    sequences: int
    padded: int
    rows: Ints
    places: Ints
    mask: F32  # (sequences, 1, 1, padded): 0 where there is a key, -inf where there is none


def plan_whole(row_starts: NDArray[np.int32]) -> tuple[LengthGroup, ...]:
    """Group the sequences of a step; sequence s owns rows row_starts[s] .. row_starts[s + 1]."""
    starts, lengths = row_starts[:-1].astype(np.int64), np.diff(row_starts).astype(np.int64)
    padded = -(-lengths // GRAIN) * GRAIN
    return tuple(
        _group(starts[members], lengths[members], int(size))
        for size in np.unique(padded)
        for members in [np.flatnonzero(padded == size)]
    )


def _group(starts: Ints, lengths: Ints, padded: int) -> LengthGroup:
    """Give numbers to the rows and places of sequences that have `padded` places each."""
    ends = np.cumsum(lengths)
    position = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    there = np.arange(padded) < lengths[:, None]
    return LengthGroup(
        sequences=len(starts),
        padded=padded,
        rows=np.repeat(starts, lengths) + position,
        places=np.repeat(np.arange(len(starts)) * padded, lengths) + position,
        mask=np.where(there, np.float32(0), np.float32(-np.inf))[:, None, None, :],
    )


def attend_whole(
    qkv: F32, groups: tuple[LengthGroup, ...], heads: int, pool: ThreadPool, bias: ScoreBias | None = None
) -> F32:
    """Return the attention of every row, (R, heads * D).

    qkv: (R, 3 * heads * D): queries, keys, values, the queries scaled by log2(e) / sqrt(D). `bias` is scaled by log2(e).
    """
    out = np.empty((len(qkv), qkv.shape[1] // 3), np.float32)
    gathered = [_gather(qkv, group, heads) for group in groups]
    mixed = [np.empty((*parts.shape[:2], *parts.shape[3:]), np.float32) for parts in gathered]
    pool.run(
        [
            _unit(parts, group.mask, into, sequences, of_heads, bias)
            for group, parts, into in zip(groups, gathered, mixed, strict=True)
            for sequences, of_heads in _cuts(group, heads, pool.threads)
        ]
    )
    for group, into in zip(groups, mixed, strict=True):
        out[group.rows] = into.reshape(group.sequences * group.padded, -1)[group.places]
    return out


def _gather(qkv: F32, group: LengthGroup, heads: int) -> F32:
    """Return (sequences, padded, 3, heads, D), zeros where there is no row."""
    parts = np.zeros((group.sequences * group.padded, qkv.shape[1]), np.float32)
    parts[group.places] = qkv[group.rows]
    return parts.reshape(group.sequences, group.padded, 3, heads, -1)


def _cuts(group: LengthGroup, heads: int, threads: int) -> Iterator[tuple[slice, slice]]:
    """Cut a group into (sequences, heads) whose scores stay in the cache, and so that every thread has some."""
    per_head = group.padded**2
    most = max(per_head, min(_UNIT_SCORES, -(-group.sequences * heads * per_head // threads)))
    some_heads = min(heads, most // per_head)
    some_sequences = max(1, most // (per_head * heads))
    for first in range(0, group.sequences, some_sequences):
        for head in range(0, heads, some_heads):
            yield slice(first, first + some_sequences), slice(head, head + some_heads)


def _unit(parts: F32, mask: F32, into: F32, sequences: slice, heads: slice, bias: ScoreBias | None) -> Unit:
    """Return a unit that attends for some heads of some sequences. into: (sequences, padded, heads, D)."""
    queries, keys, values = (parts[sequences, :, part, heads].transpose(0, 2, 1, 3) for part in range(3))

    def attend() -> None:
        scores = np.matmul(queries, keys.transpose(0, 1, 3, 2))
        scores += mask[sequences]
        if bias is not None:
            scores += bias(parts.shape[1], heads)
        scores -= scores.max(axis=-1, keepdims=True)
        probabilities = exp2(scores)
        weighted = np.matmul(probabilities, values)
        weighted /= sum_in_halves(probabilities)[..., None]
        into[sequences, :, heads] = weighted.transpose(0, 2, 1, 3)

    return attend
