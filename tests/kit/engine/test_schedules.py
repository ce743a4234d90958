"""The kit of schedules: every token once and in order, and an exact comparison of bits."""

import numpy as np

from tests.kit.engine.schedules import random_schedule, same_bits
from tests.kit.model.tiny_models import succ_model


def test_a_random_schedule_runs_every_token_of_every_sequence_once_and_in_order() -> None:
    model = succ_model()
    sequences = [np.arange(n) for n in (1, 7, 20)]
    got = random_schedule(model, model.new_kv_store(20, 4), sequences, np.random.default_rng(0), 4, 20, 5)
    assert [logits.argmax(axis=1).tolist() for logits in got] == [(tokens + 1).tolist() for tokens in sequences]


def test_same_bits_distinguishes_zeros() -> None:
    assert same_bits(np.zeros(1, np.float32), np.zeros(1, np.float32))
    assert not same_bits(np.zeros(1, np.float32), -np.zeros(1, np.float32))
    assert not same_bits(np.zeros(2, np.float32), np.zeros(3, np.float32))
