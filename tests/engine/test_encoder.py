"""A bidirectional model: whole sequences only, bounded by the row budget, each with the bits that it has alone."""

import random

import attrs
import numpy as np
import pytest

from tests.kit.engine.hash_model import HashModel, mix
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.events import EmbeddingReady
from tlserve.engine.scheduler import share_whole
from tlserve.errors import Refusal
from tlserve.generation import GenerationRequest
from tlserve.kernels.interface import PooledRows, Pooling, StepOutput


@attrs.define(eq=False)
class EncoderModel(HashModel):
    """The hidden state of a row is a hash of its whole sequence and its place; an incomplete sequence is a fault."""

    pooling: Pooling = attrs.field(factory=Pooling)

    @property
    def spec(self):
        return attrs.evolve(super().spec, bidirectional=True, kv_bytes_per_token=0, pooling=self.pooling)

    def forward(self, batch, kv):
        self.forwards.append(batch)
        assert not len(batch.logit_rows)
        hidden = []
        for start, end in zip(batch.row_starts[:-1], batch.row_starts[1:], strict=True):
            assert (batch.positions[start:end] == np.arange(end - start)).all()
            state = mix(batch.tokens[start:end]) ^ mix(np.arange(end - start))
            hidden += [self._noise(int(state.sum()) ^ place, self.hidden_size) for place in range(end - start)]
        return StepOutput(logits=np.empty((0, self.vocabulary_size), np.float32), hidden=np.array(hidden, np.float32))


def engine(model=None, **config):
    return Engine(model or EncoderModel(), EngineConfig(**{"block_size": 4, "kv_blocks": 4096} | config))


def encode_all(eng, inputs):
    """Return the vector of every input, and the number of rows of every step."""
    keys = [eng.add_embedding(tokens) for tokens in inputs]
    vectors, rows = {}, []
    while eng.has_work:
        vectors |= {e.key: e.what.vector for e in eng.step() if isinstance(e.what, EmbeddingReady)}
        rows.append(eng.statistics().batch_tokens)
    return [vectors[key] for key in keys], rows


@pytest.mark.spec("ENG-35")
@pytest.mark.parametrize(
    ("prompts", "budget", "shares"),
    [
        ([], 10, []),
        ([(0, 5)], 10, [5]),
        ([(0, 50)], 10, [50]),  # longer than a step: alone in one step
        ([(0, 50), (0, 3)], 10, [50, 0]),
        ([(0, 5), (0, 5), (0, 1)], 10, [5, 5, 0]),
        ([(0, 5), (0, 6), (0, 4)], 10, [5, 0, 4]),  # an input that does not fit waits, and one that fits is included
        ([(3, 2), (0, 50), (0, 8)], 10, [2, 0, 8]),
    ],
)
def test_the_budget_is_shared_among_whole_sequences(prompts, budget, shares):
    assert share_whole(prompts, budget) == shares


@pytest.mark.spec("ENG-35", "ENG-65")
def test_a_step_has_whole_sequences_within_the_budget_or_one_longer_alone():
    _, rows = encode_all(engine(prefill_chunk=10), [range(4), range(6), range(30), range(3), range(7)])
    assert rows == [10, 30, 10]


@pytest.mark.spec("ENG-35")
def test_long_sequences_make_progress_among_many_short_ones():
    eng = engine(prefill_chunk=8, max_num_seqs=4)
    eng.add_embedding(range(2))
    long = eng.add_embedding(range(40))
    for _ in range(3):
        for _ in range(4):
            eng.add_embedding(range(2))
        if long in [event.key for event in eng.step() if isinstance(event.what, EmbeddingReady)]:
            return
    raise AssertionError("the long input must be the first of the second step")


@pytest.mark.spec("ENG-36")
@pytest.mark.parametrize("seed", range(20))
def test_the_vector_of_a_sequence_is_the_same_as_alone(seed):
    print("seed", seed)
    rng = random.Random(seed)
    inputs = [[rng.randrange(61) for _ in range(rng.randrange(1, 40))] for _ in range(12)]
    config = {"prefill_chunk": rng.choice([0, 1, 16, 64]), "max_num_seqs": rng.choice([1, 3, 16])}
    vectors, _ = encode_all(engine(**config), inputs)
    for tokens, vector in zip(inputs, vectors, strict=True):
        (alone,), _ = encode_all(engine(prefill_chunk=0), [tokens])
        assert vector.tobytes() == alone.tobytes()


@pytest.mark.spec("ENG-36")
def test_the_first_hidden_state_is_the_vector_if_the_model_says_so():
    pooling = Pooling(rows=PooledRows.FIRST, normalised=False)
    model = EncoderModel(pooling=pooling)
    (vector,), _ = encode_all(engine(model), [[1, 2, 3]])
    whole = model.forward(model.forwards[0], None).hidden
    assert vector.tobytes() == whole[0].tobytes()


@pytest.mark.spec("ENG-37")
def test_a_bidirectional_model_refuses_to_continue_a_text():
    with pytest.raises(Refusal, match="makes embeddings and no text"):
        engine().add_request(GenerationRequest(prompt=(1,), max_tokens=1, seed=0))


def test_an_abort_of_an_encoding_leaves_nothing():
    eng = engine(prefill_chunk=4)
    first, second = eng.add_embedding(range(4)), eng.add_embedding(range(4))
    eng.step()
    eng.abort(second)
    assert not eng.has_work
    assert first != second
    assert eng.statistics().kv_used == 0
