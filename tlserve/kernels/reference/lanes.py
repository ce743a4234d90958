"""Rows next to each other: the layout in which an encoder computes, and its products.

Row r of a step is lane r % lanes of tile r // lanes: an array is (tiles, features, lanes), and its last tile may hold rows of
zeros. A weight stays as checkpoints store it, (outputs, inputs), and a product is weight @ tile. A product is cut into fixed
panels of outputs, never by the number of threads, because the bits of an output may depend on its panel.

Lanes are exact where a row has the same bits in every lane, whatever is in the others. OpenBLAS 0.3.31 is exact with 16 rows as
the right side of a product and not with 16 rows as the left side; a test at the start decides. Sixteen lanes take three
quarters of the time of two tiles of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.thread_pool import ThreadPool, Unit

F32 = NDArray[np.float32]

LANE_COUNTS = (16, 8, 1)  # tried in this order; a product with a single lane is exact by construction
_UNIT_ROWS = 128  # of one unit at most: its results stay in the cache for the next operation
_PANEL_GRAIN = 16


@attrs.frozen
class ProductShape:
    """A product (outputs, inputs) x (inputs, lanes)."""

    inputs: int
    outputs: int


@attrs.frozen
class Lanes:
    """The number of rows next to each other, and the threads that compute."""

    count: int
    pool: ThreadPool


def to_lanes(rows: F32, lanes: int) -> F32:
    """Lay out rows: (R, F) -> (tiles, F, lanes), zeros in the lanes that are left over."""
    tiles = -(-len(rows) // lanes)
    out = np.zeros((tiles, rows.shape[1], lanes), np.float32)
    whole = len(rows) // lanes
    out[:whole] = rows[: whole * lanes].reshape(whole, lanes, rows.shape[1]).transpose(0, 2, 1)
    if whole < tiles:
        out[whole, :, : len(rows) - whole * lanes] = rows[whole * lanes :].T
    return out


def from_lanes(x: F32, rows: int) -> F32:
    """Return the first `rows` rows: (tiles, F, lanes) -> (R, F)."""
    return np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(-1, x.shape[1])[:rows]


def panels(outputs: int) -> list[tuple[int, int]]:
    """Return (start, end) of the panels of a weight with `outputs` outputs: two, or four where they stay wide enough."""
    count = 4 if outputs >= 768 else 2
    width = -(-outputs // (count * _PANEL_GRAIN)) * _PANEL_GRAIN
    return [(start, min(start + width, outputs)) for start in range(0, outputs, width)]


def weight_shapes(weight: F32) -> list[ProductShape]:
    """Return the shapes of the products that `linear_lanes` makes with `weight` (N, K)."""
    return [ProductShape(weight.shape[1], end - start) for start, end in panels(len(weight))]


def lanes_are_exact(shape: ProductShape, lanes: int) -> bool:
    """Try whether one row gives the same bits in every lane, next to other rows and next to zeros."""
    random = np.random.default_rng(0)
    # drawing millions of numbers would take longer than the products: a run of prime length is repeated
    weight = np.resize(random.standard_normal(4099).astype(np.float32), (shape.outputs, shape.inputs))
    row = random.standard_normal(shape.inputs).astype(np.float32)
    tiles = random.standard_normal((lanes + 1, shape.inputs, lanes)).astype(np.float32)
    tiles[lanes] = 0  # the last tile: the row alone among zeros
    places = [*range(lanes), 0]
    tiles[range(lanes + 1), :, places] = row
    products = np.matmul(weight, tiles)[range(lanes + 1), :, places]
    return bool((products.view(np.int32) == products[:1].view(np.int32)).all())


def choose_lane_count(
    shapes: Iterable[ProductShape], probe: Callable[[ProductShape, int], bool] = lanes_are_exact
) -> int:
    """Return the first of `LANE_COUNTS` whose lanes are exact in every product of `shapes`."""
    distinct = set(shapes)
    return next(count for count in LANE_COUNTS if count == 1 or all(probe(shape, count) for shape in distinct))


def linear_lanes(x: F32, weight: F32, bias: F32, lanes: Lanes, activate: Callable[[F32], None] | None = None) -> F32:
    """Return weight @ x + bias, then `activate`d in place while it is in the cache.

    x: (tiles, K, lanes), weight: (N, K), bias: (N,) -> (tiles, N, lanes).
    """
    out = np.empty((len(x), len(weight), x.shape[2]), np.float32)

    def product(tiles: slice, start: int, end: int) -> None:
        part = out[tiles, start:end]
        np.matmul(weight[start:end], x[tiles], out=part)
        np.add(part, bias[start:end, None], out=part)
        if activate is not None:
            activate(part)

    columns = panels(len(weight))
    lanes.pool.run(
        [_bind(product, tiles, *panel) for tiles in _tile_chunks(len(x), len(columns), lanes) for panel in columns]
    )
    return out


def map_tiles(x: F32, work: Callable[[F32], F32], lanes: Lanes) -> F32:
    """Return `work` of every tile of x, computed in chunks. (tiles, F, lanes) -> the same shape."""
    out = np.empty_like(x)

    def chunk(tiles: slice, _start: int, _end: int) -> None:
        out[tiles] = work(x[tiles])

    lanes.pool.run([_bind(chunk, tiles, 0, 0) for tiles in _tile_chunks(len(x), 1, lanes)])
    return out


def _tile_chunks(tiles: int, units_each: int, lanes: Lanes) -> list[slice]:
    """Cut `tiles` into chunks, enough of them that `units_each` units for each keep all threads busy."""
    most = max(1, min(_UNIT_ROWS // lanes.count, -(-tiles * units_each // lanes.pool.threads)))
    return [slice(start, min(start + most, tiles)) for start in range(0, tiles, most)]


def _bind(work: Callable[[slice, int, int], None], tiles: slice, start: int, end: int) -> Unit:
    """Return a unit that calls `work(tiles, start, end)`."""
    return lambda: work(tiles, start, end)
