"""Properties of the naive forward pass that need no other implementation."""

import numpy as np

from tests.kit.model.naive_llama import log_softmax, naive_logits
from tests.kit.model.tiny_models import tiny_shape, tiny_tensors


def test_naive_logits_of_a_prefix_are_the_prefix_of_the_logits() -> None:
    shape = tiny_shape()
    tensors = tiny_tensors(shape)
    whole = naive_logits(tensors, shape, range(40))
    assert np.abs(naive_logits(tensors, shape, range(25)) - whole[:25]).max() < 1e-12


def test_naive_logits_see_order_and_not_only_the_set_of_earlier_tokens() -> None:
    shape = tiny_shape()
    tensors = tiny_tensors(shape)
    there = naive_logits(tensors, shape, [1, 2, 3, 4])[-1]
    back = naive_logits(tensors, shape, [3, 2, 1, 4])[-1]
    assert np.abs(there - back).max() > 0.01


def test_log_softmax_sums_to_one() -> None:
    assert np.allclose(np.exp(log_softmax(np.array([[1.0, 2, 3], [1000, 0, 0]]))).sum(axis=1), 1)
