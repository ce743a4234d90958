"""Attention in a stated order: against its formula in float64, and what a row sees."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tlserve.kernels.reference.attention import attend_in_order

F32 = NDArray[np.float32]

KV_HEADS, GROUP, SIZE = 2, 3, 8


def draw(*shape: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def naive(q: F32, keys: F32, values: F32, position: int, window: int) -> NDArray[np.float64]:
    """Return the attention of one row, (KV_HEADS, GROUP, SIZE); the queries are scaled for powers of two."""
    first = max(0, position + 1 - window) if window else 0
    seen = slice(first, position + 1)
    scores = np.einsum("hgd,thd->hgt", q.astype(np.float64), keys[seen])
    p = np.exp2(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hgt,thd->hgd", p / p.sum(axis=-1, keepdims=True), values[seen])


@pytest.mark.spec("MOD-8", "MOD-22")
@pytest.mark.parametrize("length", [1, 15, 16, 17, 70, 257, 600])
@pytest.mark.parametrize("window", [0, 1, 9, 16, 200, 300])
def test_a_row_attends_to_the_keys_of_its_window_up_to_itself(length: int, window: int) -> None:
    keys, values = draw(length, KV_HEADS, SIZE, seed=1), draw(length, KV_HEADS, SIZE, seed=2)
    positions = np.arange(length, dtype=np.int32)
    q = draw(length, KV_HEADS, GROUP, SIZE, seed=3)
    out = attend_in_order(q, keys, values, positions, window)
    for position in positions:
        truth = naive(q[position], keys, values, int(position), window)
        np.testing.assert_allclose(out[position], truth, atol=2e-6)


@pytest.mark.spec("MOD-8")
def test_a_great_score_in_any_segment_takes_all_of_the_weight() -> None:
    keys, values, q = (
        draw(600, KV_HEADS, SIZE, seed=1),
        draw(600, KV_HEADS, SIZE, seed=2),
        draw(1, 2, 3, SIZE, seed=3),
    )
    for place in (3, 255, 256, 511, 599):
        great = keys.copy()
        great[place] = 0
        great[place, :, 0] = 1e4
        q[..., 0] = 1
        out = attend_in_order(q, great, values, np.array([599], np.int32))
        assert (out[0] == values[place][:, None, :]).all()


@pytest.mark.spec("MOD-8", "MOD-22")
@pytest.mark.parametrize("window", [0, 5])
def test_a_row_has_the_same_bits_whatever_keys_it_does_not_see(window: int) -> None:
    keys, values, q = (draw(40, KV_HEADS, SIZE, seed=1), draw(40, KV_HEADS, SIZE, seed=2), draw(1, 2, 3, SIZE, seed=3))
    position = np.array([20], np.int32)
    alone = attend_in_order(q, keys[:21], values[:21], position, window)
    first = 21 - window if window else 0
    for hidden in (slice(21, 40), slice(0, first)):
        keys[hidden] = 1e30
        values[hidden] = -1e30
    assert attend_in_order(q, keys, values, position, window).tobytes() == alone.tobytes()
