"""Rows that no request needs are left out of the last layer: requested rows, and stored keys, stay the same."""

import attrs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit.engine.schedules import same_bits
from tests.kit.engine.step_batches import Rows, run_whole, step_batch
from tests.kit.model.mechanism_records import MECHANISMS, mechanism_weights
from tests.kit.model.native_models import INT12, ISAS, block_shape, built_native
from tlserve.model.decoder.native.model import NativeModel
from tlserve.model.decoder.reference import ReferenceModel

RECORDS = {
    "one layer": block_shape(layers=1).record(),
    "three layers": block_shape(layers=3).record(),
    **{
        name: record for name, record in MECHANISMS.items() if name != "both sides"
    },  # no prefix has rows of its own there
}


@pytest.fixture(scope="module", params=RECORDS)
def models(request):
    decoder = attrs.evolve(RECORDS[request.param], vocabulary=256, context_tokens=96)
    weights = mechanism_weights(decoder)
    natives = [NativeModel(built_native(), decoder, weights, INT12, isa=isa, threads=2) for isa in ISAS]
    return ReferenceModel(decoder, weights, INT12), natives


def chosen(random, rows):
    """Return some rows of a step, ascending: often the last ones, as a server asks."""
    share = random.choice([0.0, 0.05, 0.5, 0.95, 1.0])
    return np.flatnonzero(random.uniform(size=rows) < share).astype(np.int32)


@pytest.mark.spec("KER-17")
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=0)
@settings(max_examples=40)
def test_any_choice_of_rows_has_the_bits_of_each_sequence_alone(models, seed):
    alone, fast = models
    random = np.random.default_rng(seed)  # hypothesis prints the seed of a failure
    lengths = random.integers(1, 80, random.integers(1, 5))
    sequences = [random.integers(0, 256, length + 3) for length in lengths]
    model = fast[random.integers(len(fast))]
    kv, tables = model.new_kv_store(24, 16), np.split(random.permutation(24), np.arange(6, 24, 6))
    truth = [run_whole(alone, tokens) for tokens in sequences]
    starts = np.zeros(len(lengths), int)
    for counts in (lengths, np.ones_like(lengths), np.full_like(lengths, 2)):
        given = zip(sequences, starts, counts, tables, strict=False)
        batch = step_batch(*(Rows(tokens[start : start + n], start, table) for tokens, start, n, table in given))
        rows = len(batch.tokens)
        batch = attrs.evolve(batch, logit_rows=chosen(random, rows), hidden_rows=chosen(random, rows))
        got = model.forward(batch, kv)
        parts = list(zip(truth, starts, counts, strict=True))
        logits = np.concatenate([whole.logits[start : start + n] for whole, start, n in parts])
        hidden = np.concatenate([whole.hidden[start : start + n] for whole, start, n in parts])
        assert same_bits(got.logits, logits[batch.logit_rows])
        assert same_bits(got.hidden, hidden[batch.hidden_rows])
        starts += counts
