"""Attention over whole sequences: against its formula, and one sequence next to another."""

import numpy as np
import pytest

from tlserve.kernels.reference import blas
from tlserve.kernels.reference.whole_attention import GRAIN, attend_whole, plan_whole
from tlserve.kernels.thread_pool import ThreadPool

HEADS, SIZE = 3, 8
LENGTHS = [1, 5, 16, 17, 33, 2, 16, 64, 40]


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread():
    blas.pin_to_one_thread()


def starts(lengths):
    return np.cumsum([0, *lengths]).astype(np.int32)


def draw(lengths, seed=0):
    rows = np.random.default_rng(seed).standard_normal((sum(lengths), 3 * HEADS * SIZE))
    return rows.astype(np.float32)


def attend(qkv, lengths, threads=1):
    return attend_whole(qkv, plan_whole(starts(lengths)), HEADS, ThreadPool(threads))


def naive(qkv):
    """One sequence in float64; the queries are scaled for powers of two."""
    q, k, v = (part.reshape(-1, HEADS, SIZE).transpose(1, 0, 2) for part in np.split(qkv.astype(np.float64), 3, axis=1))
    scores = q @ k.transpose(0, 2, 1)
    p = np.exp2(scores - scores.max(axis=-1, keepdims=True))
    return (p / p.sum(axis=-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(qkv), -1)


@pytest.mark.spec("MOD-34")
def test_every_row_is_at_one_place_of_its_own_sequence():
    seen = []
    for group in plan_whole(starts(LENGTHS)):
        sequence, position = np.divmod(group.places, group.padded)
        assert group.padded % GRAIN == 0
        assert (np.diff(group.rows)[np.diff(sequence) == 0] == 1).all()
        there = np.zeros((group.sequences, group.padded), bool)
        there[sequence, position] = True
        assert (there == np.isfinite(group.mask[:, 0, 0])).all()
        seen += group.rows.tolist()
    assert sorted(seen) == list(range(sum(LENGTHS)))


@pytest.mark.spec("MOD-34", "MOD-52")
def test_every_sequence_gets_its_softmax():
    qkv = draw(LENGTHS)
    got = np.split(attend(qkv, LENGTHS), starts(LENGTHS)[1:-1])
    for rows, own in zip(np.split(qkv, starts(LENGTHS)[1:-1]), got, strict=True):
        np.testing.assert_allclose(own, naive(rows), atol=1e-5)


@pytest.mark.spec("MOD-34")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_sequence_has_the_bits_that_it_has_alone(threads):
    qkv = draw(LENGTHS, seed=threads)
    got = np.split(attend(qkv, LENGTHS, threads), starts(LENGTHS)[1:-1])
    for rows, own in zip(np.split(qkv, starts(LENGTHS)[1:-1]), got, strict=True):
        assert own.tobytes() == attend(rows, [len(rows)]).tobytes()


def test_values_that_are_not_numbers_stay_in_their_sequence():
    qkv = draw([5, 6, 7])
    spoilt = qkv.copy()
    spoilt[5:11] = np.nan
    got, good = attend(spoilt, [5, 6, 7]), attend(qkv, [5, 6, 7])
    assert np.isnan(got[5:11]).all()
    assert got[:5].tobytes() == good[:5].tobytes()
    assert got[11:].tobytes() == good[11:].tobytes()


def test_a_head_that_is_larger_than_a_unit_is_computed_whole():
    qkv = draw([600])
    np.testing.assert_allclose(attend(qkv, [600], 2), naive(qkv), atol=1e-5)
