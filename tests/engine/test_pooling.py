"""The mean of hidden states: exact whatever the chunks are, and of length 1."""

import math

import numpy as np
import pytest

from tlserve.engine.pooling import HiddenSum
from tlserve.kernels.interface import PooledRows, Pooling

HIDDEN = np.random.default_rng(0).normal(0, 1, (50, 24)).astype(np.float32)


def embedding(*chunks):
    pooled = HiddenSum()
    for chunk in chunks:
        pooled.add(chunk)
    return pooled.embedding()


@pytest.mark.spec("ENG-3")
@pytest.mark.parametrize("cuts", [[], [1], [49], [7, 8, 30], list(range(1, 50))])
def test_chunks_do_not_change_the_bits_of_an_embedding(cuts):
    assert embedding(*np.split(HIDDEN, cuts)).tobytes() == embedding(HIDDEN).tobytes()


@pytest.mark.spec("ENG-3")
def test_an_embedding_is_the_normalised_mean():
    mean = [math.fsum(column) / 50 for column in HIDDEN.astype(float).T.tolist()]
    norm = math.sqrt(math.fsum(v * v for v in mean))
    got = embedding(HIDDEN)
    assert got.dtype == np.float32
    assert got.tolist() == pytest.approx([v / norm for v in mean], abs=1e-7)


def test_hidden_states_that_cancel_out_give_zeros_and_no_warning():
    assert embedding(np.array([[1, -1], [-1, 1]], dtype=np.float32)).tolist() == [0, 0]


def test_infinite_hidden_states_show_in_the_embedding_without_a_warning():
    for rows in ([[math.inf, 1]], [[math.inf, 1], [-math.inf, 1]], [[math.nan, 1]]):
        assert not np.isfinite(embedding(np.array(rows, dtype=np.float32))).all()


def test_the_largest_hidden_states_still_give_a_vector_of_length_one():
    got = embedding(np.full((3, 2), np.finfo(np.float32).max))
    assert got.tolist() == pytest.approx([math.sqrt(0.5)] * 2)


@pytest.mark.spec("ENG-36")
@pytest.mark.parametrize("cuts", [[], [1], [7, 8, 30]])
def test_only_the_first_hidden_state_is_pooled_if_the_model_says_so(cuts):
    pooled = HiddenSum(Pooling(rows=PooledRows.FIRST, normalised=False))
    for chunk in np.split(HIDDEN, cuts):
        pooled.add(chunk)
    assert pooled.embedding().tobytes() == HIDDEN[0].tobytes()


@pytest.mark.spec("ENG-36")
def test_without_normalisation_an_embedding_is_the_mean():
    pooled = HiddenSum(Pooling(normalised=False))
    pooled.add(HIDDEN)
    mean = [math.fsum(column) / 50 for column in HIDDEN.astype(float).T.tolist()]
    assert pooled.embedding().tolist() == pytest.approx(mean, abs=1e-7)
