"""Attention over paged keys and values: softmax(q k) v, without a copy of what lies in one piece.

Owns the order of its sums. For one row and head, with keys in tiles of `KEY_TILE` counted from position 0: scores are products
of a tile of 8 lanes with a tile of keys; the greatest score over all keys; probabilities 2**(score - greatest); their sum inside
a tile by halves (`sum_in_halves`), over tiles ascending from 0; the values weighted by them inside a tile by one product,
over tiles ascending from 0; at last the quotient. A masked key has probability exactly 0, so tiles behind a row's
own position add exactly nothing. None of it depends on other rows, on blocks, or on what was gathered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.attention_plan import KEY_TILE, LANES, AttentionPlan, Segment, TaskBatch
from tlserve.kernels.reference.blas import ProductShape
from tlserve.kernels.reference.elementwise import exp2, sum_in_halves
from tlserve.kernels.thread_pool import ThreadPool, Unit

F32 = NDArray[np.float32]


def attention_shapes(head_size: int) -> list[ProductShape]:
    """Return the shapes of the products that `attend` makes."""
    return [ProductShape(head_size, KEY_TILE, transposed=True), ProductShape(KEY_TILE, head_size)]


def attend(q: F32, keys: F32, values: F32, plan: AttentionPlan, out: F32, *, tile_lanes: int, pool: ThreadPool) -> None:
    """Write the attention of every row into `out`.

    q: (T, kv_heads, group, D), scaled by log2(e) / sqrt(D); keys, values: (kv_heads, slots, D), one layer of the store, already
    holding the step's own rows; out: (T, kv_heads, group, D). tile_lanes: lanes of one product, 8 or 1.
    """
    sources = _Sources(keys, values, plan)

    def unit(batch: TaskBatch) -> Unit:
        return lambda: _attend_batch(q, sources, batch, out, tile_lanes)

    pool.run([unit(batch) for batch in plan.batches])


class _Sources:
    """The keys and values of one layer, in place or gathered, as stacks of tiles."""

    def __init__(self, keys: F32, values: F32, plan: AttentionPlan) -> None:
        gather = len(plan.gathered_slots) > 0
        self._keys = (keys, keys[:, plan.gathered_slots] if gather else keys)
        self._values = (values, values[:, plan.gathered_slots] if gather else values)

    def key_tiles(self, segment: Segment) -> F32:
        """Return the keys of `segment` as (count, kv_heads, D, KEY_TILE), a view."""
        return _tiles(self._keys[segment.gathered], segment).transpose(1, 0, 3, 2)

    def value_tiles(self, segment: Segment) -> F32:
        """Return the values of `segment` as (count, kv_heads, KEY_TILE, D), a view."""
        return _tiles(self._values[segment.gathered], segment).transpose(1, 0, 2, 3)


def _tiles(source: F32, segment: Segment) -> F32:
    """View the slots of `segment` as (kv_heads, count, KEY_TILE, D)."""
    heads, _, size = source.shape
    run = source[:, segment.slot : segment.slot + segment.count * KEY_TILE]
    return run.reshape(heads, segment.count, KEY_TILE, size)


def _attend_batch(q: F32, sources: _Sources, batch: TaskBatch, out: F32, tile_lanes: int) -> None:
    """Compute the rows of one batch: scores, softmax, weighted values."""
    heads, size, live = q.shape[1], q.shape[3], batch.live
    units = int(batch.key_tiles.sum())
    queries = np.zeros((len(batch.key_tiles), heads, LANES, size), np.float32)
    lane_tile, lane = batch.lane // LANES, batch.lane % LANES
    queries[lane_tile, :, lane] = q[batch.row, :, batch.group_head]

    scores = np.empty((units, heads, LANES, KEY_TILE), np.float32)
    for piece in batch.pieces:
        _product(queries[piece.lane_tiles, None], sources.key_tiles(piece.segment), piece.view(scores), tile_lanes)
    probabilities, sums = _softmax(scores, batch)

    parts = np.empty((units, heads, LANES, size), np.float32)
    for piece in batch.pieces:
        _product(piece.view(probabilities), sources.value_tiles(piece.segment), piece.view(parts), tile_lanes)
    weighted = _sum_tiles(parts[:, :, :live], batch)
    np.divide(weighted, sums[..., None], out=weighted)
    out[batch.row, :, batch.group_head] = weighted[lane_tile, :, lane]


def _softmax(scores: F32, batch: TaskBatch) -> tuple[F32, F32]:
    """Return 2**(score - greatest score of the lane), and the sum of them for each lane.

    scores: (units, heads, LANES, KEY_TILE) -> the same, 0 in lanes that are not in use; (lane tiles, heads, live).
    """
    live = scores[:, :, : batch.live]
    live[batch.masked_units] = np.where(batch.mask, np.float32(-np.inf), live[batch.masked_units])
    greatest = np.maximum.reduceat(live.max(axis=-1), batch.unit_starts, axis=0)
    shifted = np.subtract(live, np.repeat(greatest, batch.key_tiles, axis=0)[..., None])
    probabilities = np.zeros_like(scores)
    exp2(shifted, out=probabilities[:, :, : batch.live])
    return probabilities, _sum_tiles(sum_in_halves(probabilities[:, :, : batch.live]), batch)


def _sum_tiles(parts: F32, batch: TaskBatch) -> F32:
    """Sum over the key tiles of each lane tile, ascending, from 0. parts: (units, ...) -> (lane tiles, ...)."""
    total = np.zeros((len(batch.key_tiles), *parts.shape[1:]), np.float32)
    for tile, lane_tiles in enumerate(batch.tile_counts):
        total[:lane_tiles] += parts[batch.unit_starts[:lane_tiles] + tile]
    return total


def _product(left: F32, right: F32, out: F32, tile_lanes: int) -> None:
    """Write the stacked products left @ right into `out`, LANES rows at a time or (tile_lanes 1) one by one."""
    if tile_lanes == 1:
        left, right, out = left[..., None, :], right[..., None, :, :], out[..., None, :]
    np.matmul(left, right, out=out)
