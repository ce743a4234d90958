"""Encoders from GGUF: what transformers computes for the same checkpoint, and llama.cpp for the files of its converter."""

import attrs
import numpy as np
import pytest

from tests.kit.model.drawn_weights import drawn
from tests.kit.model.encoder_gguf import write_encoder_gguf
from tests.kit.model.encoders import FOLDER, encoder_cases, jina_cases, whole_hidden, write_encoder
from tests.parity.test_encoders import ALIVE, BOUND, EXACT, outcome
from tlserve.engine.pooling import HiddenSum
from tlserve.errors import ModelRefused
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import PooledRows
from tlserve.kernels.reference import elementwise
from tlserve.model.decoder import mixers
from tlserve.model.encoder import forward
from tlserve.model.encoder.build import build_encoder
from tlserve.model.encoder.kinds import GGUF_ENCODER_TYPES
from tlserve.model.encoder.record import Distance, WholeAttention
from tlserve.model.gguf import encoders as gguf_encoders
from tlserve.model.gguf.encoder_forms import GGUF_ENCODERS
from tlserve.model.load import load_front, load_model

CASES = encoder_cases() | jina_cases()
LLAMA_CPP = np.load(FOLDER / "llama_cpp.npz")
OTHER_SCALE = {"gemma3_text"}  # GGUF has no scale of scores: it is head_dim**-0.5
VECTORS = ["bert", "roberta", "xlm-roberta", "nomic_bert", "modernbert"]
SCORES = ["roberta, scores", "xlm-roberta, scores", "modernbert, scores", "modernbert, scores of the mean"]


def load(path):
    return load_model(path, threads=1, kernels=EXACT)


@pytest.mark.spec("MOD-93")
@pytest.mark.parametrize("name", VECTORS)
def test_the_same_checkpoint_as_gguf_gives_the_same(tmp_path, name):
    case = CASES[name]
    loaded = load(write_encoder_gguf(tmp_path / "encoder.gguf", case, pooling_type=2))
    assert np.abs(outcome(loaded.model, case) - case.expected).max() < BOUND
    pooling = loaded.model.spec.pooling
    assert (pooling.rows, pooling.normalised, loaded.generates) == (PooledRows.FIRST, True, False)
    context = 70 if "roberta" in name else 72
    assert load_front(tmp_path / "encoder.gguf").context_tokens == loaded.context_tokens == context
    with pytest.raises(ModelRefused, match="more than the model's"):
        load_model(tmp_path / "encoder.gguf", context_tokens=73)


@pytest.mark.spec("MOD-93")
@pytest.mark.parametrize("name", ["gemma3_text", "jina"])
def test_what_transformers_computes_otherwise_is_the_same_from_both_files(tmp_path, name):
    changes = {"query_pre_attn_scalar": 24} if name == "gemma3_text" else {}
    directory = load(write_encoder(tmp_path / "directory", CASES[name], **changes))
    file = load(write_encoder_gguf(tmp_path / "encoder.gguf", CASES[name]))
    vectors, same = (outcome(loaded.model, CASES[name]) for loaded in (directory, file))
    assert np.abs(vectors - same).max() < 1e-5
    assert file.model.spec.pooling.rows is PooledRows.MEAN


@pytest.mark.spec("MOD-93")
def test_gate_and_up_in_tensors_of_their_own_are_the_same_model(tmp_path):
    case, apart = CASES["jina"], {}
    for name, tensor in case.tensors().items():
        if "gated_layers" in name:
            layer = name.split(".")[2]
            gate, up = np.split(tensor, 2)
            apart |= {f"blk.{layer}.ffn_gate.weight": gate, f"blk.{layer}.ffn_up.weight": up}
    left = attrs.evolve(case, shapes={n: shape for n, shape in case.shapes.items() if "gated_layers" not in n})
    whole = load(write_encoder_gguf(tmp_path / "whole.gguf", case))
    parts = load(write_encoder_gguf(tmp_path / "parts.gguf", left, apart))
    assert np.array_equal(outcome(whole.model, case), outcome(parts.model, case))


@pytest.mark.spec("MOD-101")
@pytest.mark.parametrize("name", SCORES)
def test_a_head_in_gguf_makes_the_scores_of_transformers(tmp_path, name):
    case = CASES[name]
    loaded = load(write_encoder_gguf(tmp_path / "encoder.gguf", case, pooling_type=4))
    assert np.abs(outcome(loaded.model, case) - case.expected).max() < BOUND
    between = 1 if "modern" in name else 2
    assert loaded.scores.pair == ((0,), (2,) * between, (2,))
    assert loaded.scores.activation == ("sigmoid" if len(case.expected) == 1 else "softmax")
    assert loaded.scores.labels == tuple(case.config["id2label"].values())
    assert load_front(tmp_path / "encoder.gguf").scores == loaded.scores


@pytest.mark.spec("MOD-93")
def test_dense_layers_in_gguf_come_after_the_mean(tmp_path):
    case, sizes = CASES["gemma3_text"], {"dense_2": (80, 64), "dense_3": (48, 80)}
    dense = {f"{name}.weight": drawn(name, size) for name, size in sizes.items()}
    loaded = load(write_encoder_gguf(tmp_path / "encoder.gguf", case, dense))
    hidden = whole_hidden(loaded.model, case.ids)[0]
    total = HiddenSum(loaded.model.spec.pooling)
    total.add(hidden)
    expected = dense["dense_3.weight"] @ (dense["dense_2.weight"] @ hidden.mean(axis=0))
    assert np.abs(total.embedding() - expected / np.linalg.norm(expected)).max() < 1e-5


def gelu_of_a_table(x, activation=None):
    """Apply gelu as llama.cpp does: from a table in half precision, of the tanh form."""
    if activation == "silu":
        return elementwise.activate(x, activation)
    half = x.astype(np.float16).astype(np.float32)
    elementwise.activate(half, "gelu_tanh")
    x[:] = np.where(np.abs(x) < 10, half.astype(np.float16), np.maximum(x, 0))
    return None


@pytest.mark.spec("MOD-93", "MOD-101")
@pytest.mark.parametrize("name", LLAMA_CPP)
def test_encoders_give_what_llama_cpp_computes_but_for_its_gelu(tmp_path, monkeypatch, name):
    case = CASES[name]
    monkeypatch.setattr(mixers, "activate", gelu_of_a_table)
    monkeypatch.setattr(forward, "activate", gelu_of_a_table)
    path = write_encoder_gguf(tmp_path / "encoder.gguf", case)
    numpy = KernelChoice(kernels="reference", kv_precision="f32")
    found = outcome(load_model(path, threads=1, kernels=numpy).model, case)
    assert np.abs(found - LLAMA_CPP[name]).max() < (3e-3 if "modernbert" in name else 2e-4)


@pytest.mark.spec("MOD-93")
@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("bert", {"pooling_type": 4}, "pooling_type 4 is not served"),
        ("bert", {"attention__head_count": 7}, "cannot be shared by 7 heads"),
        ("nomic_bert", {"rope__scaling__type": "yarn"}, "rope.scaling.type 'yarn' is not served; served: none"),
        ("gemma3_text", {"attention__value_length": 8}, "attention.value_length 8 is not served"),
        ("gemma3_text", {"attention__sliding_window_pattern": [True]}, "must be true or false for each of 2 layers"),
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation 'relu' is not served"),
        ("roberta, scores", {"pooling_type": 1}, r"pooling_type 1 is not served; served: 4 \(rank\)"),
        ("roberta, scores", {"classifier__output_labels": ["one"]}, "classifier.output_labels must name 3 labels"),
    ],
)
def test_metadata_of_an_encoder_that_are_not_served_are_refused_by_key(tmp_path, name, changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(write_encoder_gguf(tmp_path / "encoder.gguf", CASES[name], **changes))


@pytest.mark.spec("MOD-101")
def test_a_head_without_its_first_layer_is_refused(tmp_path):
    with pytest.raises(ModelRefused, match=r"the tensor cls\.weight is missing: without the first layer of its head"):
        load_model(write_encoder_gguf(tmp_path / "encoder.gguf", CASES["bert, scores"]))


@pytest.mark.spec("MOD-93")
@pytest.mark.parametrize("part", ["distance", "q_norm", "k_norm", "again"])
def test_every_mechanism_of_jina_is_alive(tmp_path, part):
    case = CASES["jina, norms"]
    decoded = []

    def changed(encoder, weights, pooling, options):
        if part == "again":
            blocks = tuple(attrs.evolve(block, again=None) for block in encoder.blocks)
        else:
            off = Distance.NONE if part == "distance" else None
            blocks = tuple(
                attrs.evolve(b, mixer=attrs.evolve(b.mixer, **{part: off}))
                if isinstance(b.mixer, WholeAttention)
                else b
                for b in encoder.blocks
            )
        decoded.append(encoder)
        return build_encoder(attrs.evolve(encoder, blocks=blocks), weights, pooling, options)

    path = write_encoder_gguf(tmp_path / "encoder.gguf", case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_encoders, "build_encoder", changed)
        without = outcome(load(path).model, case)
    assert len(decoded) == 1
    assert np.abs(without - outcome(load(path).model, case)).max() > ALIVE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"position_embedding_type": None}, "position_embedding_type None is not served; served: alibi"),
        ({"feed_forward_type": "reglu"}, "feed_forward_type 'reglu' is not served; served: geglu"),
    ],
)
def test_jina_with_other_parts_is_refused_by_field(tmp_path, changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(write_encoder(tmp_path / "jina", CASES["jina"], **changes))


def test_the_names_that_are_known_before_anything_is_loaded_are_those_of_the_table():
    assert set(GGUF_ENCODERS) == GGUF_ENCODER_TYPES
