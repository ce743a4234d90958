"""The bigram: logits and hidden states are table rows; a config that makes no sense is refused."""

import numpy as np
import pytest

from tests.kit.engine.step_batches import Rows, forward_rows, run_whole, step_batch
from tests.kit.model.tiny_models import succ_model
from tlserve.errors import ModelRefused
from tlserve.model.bigram import bigram_from_config, successor_table

CONFIG = {"vocab_size": 8, "context_tokens": 100, "successor_offset": 3, "successor_logit": 2.5}


def test_after_each_token_comes_its_successor():
    logits = run_whole(bigram_from_config(CONFIG), range(8)).logits
    assert np.array_equal(logits, successor_table(8, 3, 2.5))
    assert logits.argmax(axis=1).tolist() == [3, 4, 5, 6, 7, 0, 1, 2]


def test_hidden_state_of_a_row_is_its_table_row():
    out = run_whole(succ_model(), [5])
    assert np.array_equal(out.hidden, out.logits)


def test_requested_rows_are_in_their_order():
    model = succ_model()
    batch = step_batch(Rows([10, 11], 0, [0]), Rows([99], 0, [1]))
    assert model.forward(batch, model.new_kv_store(2, 16)).logits.argmax(axis=1).tolist() == [11, 12, 100]


def test_it_has_no_state_and_needs_no_memory():
    model = succ_model()
    assert model.spec.kv_bytes_per_token == 0
    kv = model.new_kv_store(10**9, 16)
    assert (kv.blocks, kv.block_size) == (10**9, 16)
    assert forward_rows(model, kv, Rows([7], 1000, [0]))[0].argmax() == 8


def test_the_context_can_be_shortened_but_not_lengthened():
    assert bigram_from_config(CONFIG, 50).spec.context_tokens == 50
    with pytest.raises(ModelRefused, match="101 is more"):
        bigram_from_config(CONFIG, 101)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 1 << 40),
        ("vocab_size", True),
        ("vocab_size", None),
        ("context_tokens", 0),
        ("successor_offset", 8),
        ("successor_logit", "2"),
        ("successor_logit", float("nan")),
        ("successor_logit", 1e9),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_name(name, value):
    with pytest.raises(ModelRefused, match=name):
        bigram_from_config(CONFIG | {name: value})
