"""Products: how they are divided, and that the division changes no bit of a row."""

import numpy as np
import pytest

from tlserve.kernels.reference import blas
from tlserve.kernels.reference.elementwise import silu_times
from tlserve.kernels.reference.linear import RowTiles, gate_columns, gated_linear, linear, panels, row_chunks
from tlserve.kernels.thread_pool import ThreadPool

RANDOM = np.random.default_rng(7)
WEIGHT = (RANDOM.standard_normal((72, 960)) / 8).astype(np.float32)
X = RANDOM.standard_normal((264, 72)).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread():
    blas.pin_to_one_thread()


def tiles(threads=1, rows=8):
    return RowTiles(rows, ThreadPool(threads))


@pytest.mark.parametrize("columns", [1, 16, 50, 576, 768, 960, 1000, 49152])
def test_panels_cover_every_column_once_and_begin_at_multiples_of_sixteen(columns):
    cut = panels(columns)
    assert [c for start, end in cut for c in range(start, end)] == list(range(columns))
    assert all(start % 16 == 0 for start, _ in cut)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [0, 8, 16, 40, 264, 1000])
def test_row_chunks_cover_every_row_once_in_whole_tiles(rows, threads):
    chunks = row_chunks(rows, 4, tiles(threads))
    assert [r for chunk in chunks for r in range(chunk.start, chunk.stop)] == list(range(rows))
    assert all(chunk.start % 8 == 0 for chunk in chunks)


@pytest.mark.spec("MOD-9")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_linear_gives_each_tile_of_rows_the_bits_it_has_alone(threads):
    together = linear(X, WEIGHT, tiles(threads))
    for start in range(0, len(X), 8):
        assert np.array_equal(linear(X[start : start + 8], WEIGHT, tiles()), together[start : start + 8])


def test_linear_is_within_float32_of_the_truth():
    assert np.abs(linear(X, WEIGHT, tiles()) - X.astype(np.float64) @ WEIGHT).max() < 1e-5


def test_linear_of_no_rows_is_empty():
    assert linear(X[:0], WEIGHT, tiles(2)).shape == (0, 960)


@pytest.mark.parametrize("threads", [1, 3])
def test_gated_linear_combines_gate_and_up_of_the_same_column(threads):
    gate, up = WEIGHT[:, :400], WEIGHT[:, 500:900]
    fused = np.empty((72, 800), np.float32)
    for matrix, is_up in ((gate, False), (up, True)):
        for source, place in gate_columns(400, up=is_up):
            fused[:, place] = matrix[:, source]
    got = gated_linear(X, fused, silu_times, tiles(threads))
    wide = X.astype(np.float64)
    truth = wide @ gate / (1 + np.exp(-(wide @ gate))) * (wide @ up)
    assert np.abs(got - truth).max() < 1e-5


def test_tiles_of_a_single_row_are_exact_for_any_shape():
    assert blas.rows_are_exact(blas.ProductShape(27, 13), 1)
    assert blas.rows_are_exact(blas.ProductShape(27, 13, transposed=True), 1)


@pytest.mark.spec("MOD-40")
def test_probe_falls_to_single_rows_when_one_shape_is_not_exact():
    shapes = [blas.ProductShape(16, 16), blas.ProductShape(16, 17)]
    assert blas.choose_tile_rows(shapes, lambda shape, rows: rows == 8) == 8
    assert blas.choose_tile_rows(shapes, lambda shape, rows: shape.columns != 17) == 1


def test_pad_rows_adds_zero_rows_up_to_a_whole_tile():
    padded = blas.pad_rows(X[:3], 8)
    assert np.array_equal(padded[:3], X[:3])
    assert padded.shape == (8, 72)
    assert not padded[3:].any()


@pytest.mark.spec("MOD-4")
def test_blas_runs_on_one_thread_once_pinned():
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    assert all(info["num_threads"] == 1 for info in threadpool_info() if info["user_api"] == "blas")
