"""numpy's matrix product, tamed: one BLAS thread, fixed tiles of rows, and a probe that the tiles are exact.

Owns what is known about the BLAS. A BLAS picks its inner loops by the shape of the whole product, so the bits of a row change
with the number of rows beside it, and with the number of BLAS threads. In products of one fixed shape they do not
change with the row's place or with its neighbours: measured for OpenBLAS 0.3.31 with 8 rows, and probed at start for the
shapes that a model uses. Where the probe fails, tiles of a single row serve: slow, and exact by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import attrs
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

F32 = NDArray[np.float32]

TILE_ROWS = 8


@attrs.frozen
class ProductShape:
    """A product (rows, inner) x (inner, columns); `transposed`: the right side is the view of a (columns, inner) array."""

    inner: int
    columns: int
    transposed: bool = False


@functools.cache
def pin_to_one_thread() -> None:
    """Set every BLAS of this process to one thread, for good: with more, the bits would depend on how many."""
    threadpool_limits(limits=1, user_api="blas")


def describe() -> str:
    """Return what of numpy and its BLAS may decide bits: versions and the chosen processor architecture."""
    libraries = sorted(
        f"{info['internal_api']} {info.get('version')} {info.get('architecture')}"
        for info in threadpool_info()
        if info["user_api"] == "blas"
    )
    return f"numpy {np.__version__}, {', '.join(libraries) or 'unknown BLAS'}"


def rows_are_exact(shape: ProductShape, tile_rows: int) -> bool:
    """Try whether one row gives the same bits in every place of a tile, beside zeros and beside other rows."""
    random = np.random.default_rng(0)
    right = (shape.columns, shape.inner) if shape.transposed else (shape.inner, shape.columns)
    # drawing millions of numbers would take longer than the products: a run of prime length is repeated
    weights = np.resize(random.standard_normal(4099).astype(np.float32), right)
    weights = weights.T if shape.transposed else weights
    row = random.standard_normal(shape.inner).astype(np.float32)
    tiles = random.standard_normal((tile_rows + 1, tile_rows, shape.inner)).astype(np.float32)
    tiles[tile_rows] = 0  # the last tile: the row alone among zeros
    places = [*range(tile_rows), 0]
    tiles[range(tile_rows + 1), places] = row
    products = np.matmul(tiles, weights)[range(tile_rows + 1), places]
    return bool((products.view(np.int32) == products[:1].view(np.int32)).all())


def choose_tile_rows(
    shapes: Iterable[ProductShape], probe: Callable[[ProductShape, int], bool] = rows_are_exact
) -> int:
    """Return `TILE_ROWS` if rows of such tiles are exact in every product of `shapes`, else 1; some 30 ms."""
    return TILE_ROWS if all(probe(shape, TILE_ROWS) for shape in set(shapes)) else 1


def pad_rows(rows: F32, tile_rows: int) -> F32:
    """Return `rows` (T, F) with zero rows after them up to a multiple of `tile_rows`."""
    missing = -len(rows) % tile_rows
    return np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.float32)]) if missing else rows
