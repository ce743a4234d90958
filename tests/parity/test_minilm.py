"""The real sentence encoder, compared with sentence-transformers for twenty texts (tests/golden/minilm.json)."""

import json

import numpy as np
import pytest

from tests.kit.source_tree import GOLDEN
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.events import EmbeddingReady
from tlserve.model.load import load_model
from tlserve.text.tokenizer import build_tokenizer, framed

MINILM = GOLDEN / "minilm.json"
CASES = json.loads(MINILM.read_text(encoding="utf-8"))
BOUND = 1e-4

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def loaded(minilm_path):
    return load_model(minilm_path)


def encode(model, inputs, **config):
    """Return the vectors of token sequences that an engine receives together."""
    engine = Engine(model, EngineConfig(kv_blocks=4096, **config))
    keys = [engine.add_embedding(tokens) for tokens in inputs]
    vectors = {}
    while engine.has_work:
        vectors |= {event.key: event.what.vector for event in engine.step() if isinstance(event.what, EmbeddingReady)}
    return [vectors[key] for key in keys]


@pytest.mark.spec("MOD-53")
def test_texts_become_the_ids_of_sentence_transformers(loaded):
    tokenizer = build_tokenizer(loaded.metadata)
    assert len(CASES) == 20
    for case in CASES:
        assert framed(tokenizer, tokenizer.encode(case["text"])) == case["ids"]


@pytest.mark.spec("MOD-53")
def test_vectors_are_those_of_sentence_transformers(loaded):
    vectors = encode(loaded.model, [case["ids"] for case in CASES])
    for case, vector in zip(CASES, vectors, strict=True):
        assert np.abs(vector - np.array(case["vector"])).max() < BOUND, case["text"]


@pytest.mark.spec("MOD-32")
def test_a_text_among_twenty_has_the_same_bits_as_alone(loaded, minilm_path):
    together = encode(loaded.model, [case["ids"] for case in CASES], prefill_chunk=0)
    single = load_model(minilm_path, threads=1)
    for case, vector in zip(CASES, together, strict=True):
        assert encode(single.model, [case["ids"]])[0].tobytes() == vector.tobytes()


def test_the_length_and_the_pooling_come_from_its_files(loaded):
    assert loaded.model.spec.context_tokens == 256 == max(len(case["ids"]) for case in CASES)
    assert loaded.model.spec.pooling.normalised
