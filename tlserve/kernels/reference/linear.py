"""Products of activations with weights: fixed tiles of rows times fixed panels of columns.

Owns how a product is cut. The panels follow from the number of columns alone, never from the number of threads, because
the bits of a column may depend on the panel it lies in. Each output is one product of a (tile_rows, K) tile with a
(K, panel) matrix on one BLAS thread; the order of its sum over K is the BLAS's own, the same for every row.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.blas import ProductShape
from tlserve.kernels.thread_pool import ThreadPool, Unit

F32 = NDArray[np.float32]
_COLUMN_GRAIN = 16
_CHUNK_ROWS = 128  # rows of one unit at most: what it makes stays in the cache for what is done with it next


@attrs.frozen
class RowTiles:
    """How rows are cut and who computes: what every product of a model has in common."""

    rows: int
    pool: ThreadPool


def panels(columns: int) -> list[tuple[int, int]]:
    """Return (start, end) of the panels of a weight with `columns` columns: two, or four where they stay wide enough."""
    count = 4 if columns >= 768 else 2
    width = -(-columns // (count * _COLUMN_GRAIN)) * _COLUMN_GRAIN
    return [(start, min(start + width, columns)) for start in range(0, columns, width)]


def panel_shapes(weight: F32) -> list[ProductShape]:
    """Return the shapes of the products that `apply_panels` makes with `weight` (K, N)."""
    return [ProductShape(weight.shape[0], end - start) for start, end in panels(weight.shape[1])]


def linear(x: F32, weight: F32, tiles: RowTiles) -> F32:
    """Return x @ weight. x: (R, K) with R a multiple of tiles.rows, weight: (K, N) -> (R, N)."""
    out = np.empty((len(x), weight.shape[1]), np.float32)

    def product(rows: slice, start: int, end: int) -> None:
        np.matmul(_tiled(x[rows], tiles.rows), weight[:, start:end], out=_tiled(out[rows], tiles.rows)[:, :, start:end])

    apply_panels(product, len(x), panels(weight.shape[1]), tiles)
    return out


def gated_linear(x: F32, weight: F32, combine: Callable[[F32, F32, F32], None], tiles: RowTiles) -> F32:
    """Return combine(x @ gate, x @ up), both columns of one `weight` laid out by `interleave_panels`.

    x: (R, K), weight: (K, 2 * N) -> (R, N). combine(gate, up, out) is elementwise and runs while its panel is in the cache.
    """
    out = np.empty((len(x), weight.shape[1] // 2), np.float32)

    def product(rows: slice, start: int, end: int) -> None:
        both = np.matmul(_tiled(x[rows], tiles.rows), weight[:, 2 * start : 2 * end])
        combine(both[..., : end - start], both[..., end - start :], _tiled(out[rows], tiles.rows)[:, :, start:end])

    apply_panels(product, len(x), panels(out.shape[1]), tiles)
    return out


def gated_panel_shapes(weight: F32) -> list[ProductShape]:
    """Return the shapes of the products that `gated_linear` makes with `weight` (K, 2 * N)."""
    return [ProductShape(weight.shape[0], 2 * (end - start)) for start, end in panels(weight.shape[1] // 2)]


def gate_columns(columns: int, *, up: bool) -> list[tuple[slice, slice]]:
    """Return pairs (columns of the gate or up matrix, columns of the fused one) for a matrix with `columns` columns."""
    return [
        (slice(start, end), slice(start + end, 2 * end) if up else slice(2 * start, start + end))
        for start, end in panels(columns)
    ]


def apply_panels(
    product: Callable[[slice, int, int], None], rows: int, columns: list[tuple[int, int]], tiles: RowTiles
) -> None:
    """Call `product(rows, start, end)` for every panel of `columns` and every chunk of whole row tiles."""
    units = [
        _bind(product, chunk, start, end) for chunk in row_chunks(rows, len(columns), tiles) for start, end in columns
    ]
    tiles.pool.run(units)


def row_chunks(rows: int, panel_count: int, tiles: RowTiles) -> list[slice]:
    """Cut `rows` into chunks of whole tiles, enough of them that `panel_count` units each keep all threads busy."""
    wanted = max(-(-rows // _CHUNK_ROWS), -(-tiles.pool.threads // panel_count))
    chunk = -(-rows // (wanted * tiles.rows)) * tiles.rows if rows else 1
    return [slice(start, min(start + chunk, rows)) for start in range(0, rows, chunk)]


def _bind(product: Callable[[slice, int, int], None], rows: slice, start: int, end: int) -> Unit:
    """Return a unit that calls `product(rows, start, end)`."""
    return lambda: product(rows, start, end)


def _tiled(x: F32, tile_rows: int) -> F32:
    """View (R, F) as (R / tile_rows, tile_rows, F)."""
    return x.reshape(-1, tile_rows, x.shape[1])
