"""Rows side by side: the layout, and products whose bits are those of each row alone."""

import numpy as np
import pytest

from tlserve.kernels.reference import blas
from tlserve.kernels.reference.lanes import (
    LANE_COUNTS,
    Lanes,
    ProductShape,
    choose_lane_count,
    from_lanes,
    lanes_are_exact,
    linear_lanes,
    map_tiles,
    panels,
    to_lanes,
    weight_shapes,
)
from tlserve.kernels.thread_pool import ThreadPool

RANDOM = np.random.default_rng(11)
WEIGHT = (RANDOM.standard_normal((900, 72)) / 8).astype(np.float32)
BIAS = RANDOM.standard_normal(900).astype(np.float32)
ROWS = RANDOM.standard_normal((203, 72)).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread():
    blas.pin_to_one_thread()


def product(rows, lanes, threads=1, activate=None):
    out = linear_lanes(to_lanes(rows, lanes), WEIGHT, BIAS, Lanes(lanes, ThreadPool(threads)), activate)
    return from_lanes(out, len(rows))


@pytest.mark.spec("MOD-9")
@pytest.mark.parametrize("outputs", [1, 16, 50, 576, 768, 960, 1000, 49152])
def test_panels_cover_every_output_once_and_begin_at_multiples_of_sixteen(outputs):
    cut = panels(outputs)
    assert [output for start, end in cut for output in range(start, end)] == list(range(outputs))
    assert all(start % 16 == 0 for start, _ in cut)


@pytest.mark.spec("MOD-33")
@pytest.mark.parametrize("lanes", LANE_COUNTS)
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 15, 16, 17, 203])
def test_rows_survive_the_layout_unchanged(rows, lanes):
    x = to_lanes(ROWS[:rows], lanes)
    assert x.shape == (-(-rows // lanes), 72, lanes)
    assert from_lanes(x, rows).tobytes() == ROWS[:rows].tobytes()
    assert not from_lanes(x, len(x) * lanes)[rows:].any()


@pytest.mark.parametrize("lanes", LANE_COUNTS)
def test_the_product_is_within_float32_of_the_truth(lanes):
    assert np.abs(product(ROWS, lanes) - (ROWS.astype(np.float64) @ WEIGHT.T + BIAS)).max() < 1e-5


@pytest.mark.spec("MOD-33")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_row_has_the_bits_that_it_has_alone(threads):
    lanes = choose_lane_count(weight_shapes(WEIGHT))
    together = product(ROWS, lanes, threads)
    for row in range(0, len(ROWS), 9):
        assert product(ROWS[row : row + 1], lanes)[0].tobytes() == together[row].tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_operation_on_a_product_is_applied_once_to_every_number(threads):
    def double(part):
        part *= 2

    assert (product(ROWS, 8, threads, double) == 2 * product(ROWS, 8)).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_work_on_tiles_reaches_every_tile_once(threads):
    x = to_lanes(ROWS, 8)
    assert (map_tiles(x, lambda tiles: tiles + 1, Lanes(8, ThreadPool(threads))) == x + 1).all()


@pytest.mark.spec("MOD-33")
def test_the_probe_falls_to_fewer_lanes_until_they_are_exact():
    shapes = weight_shapes(WEIGHT)
    assert choose_lane_count(shapes, lambda shape, lanes: True) == 16
    assert choose_lane_count(shapes, lambda shape, lanes: lanes == 8) == 8
    assert choose_lane_count(shapes, lambda shape, lanes: shape != shapes[-1]) == 1


@pytest.mark.spec("MOD-33")
def test_the_probe_detects_a_row_that_differs_in_one_lane(monkeypatch):
    shape = ProductShape(24, 16)
    assert lanes_are_exact(shape, 1)
    whole = np.matmul

    def careless(left, right):
        out = whole(left, right)
        out[5, 3, 5] = np.nextafter(out[5, 3, 5], np.float32(9))
        return out

    monkeypatch.setattr(np, "matmul", careless)
    assert not lanes_are_exact(shape, 8)
