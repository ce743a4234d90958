"""Every encoder, compared with transformers on the same random checkpoint, and each of its mechanisms alive."""

import json

import attrs
import numpy as np
import pytest

from tests.kit.model.encoders import encoder_and_weights, encoder_cases, whole_hidden, write_encoder
from tests.kit.model.native_models import COMPILED
from tlserve.engine.pooling import HiddenSum
from tlserve.errors import ModelRefused, SettingsError
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import PooledActivation, PooledRows, Pooling
from tlserve.model.decoder.record import Activation, Rope
from tlserve.model.encoder.architectures.registry import ENCODERS
from tlserve.model.encoder.as_decoder import has_decoder
from tlserve.model.encoder.build import build_encoder
from tlserve.model.encoder.forward import EncoderModel
from tlserve.model.encoder.kinds import ENCODER_TYPES
from tlserve.model.encoder.record import Distance, WholeAttention
from tlserve.model.encoder.weights import EncoderWeights
from tlserve.model.load import load_model
from tlserve.model.loaded_model import LoadOptions

CASES = encoder_cases()
BOUND = 1e-4  # of a hidden state or a logit; transformers adds in another order
LEAST_COSINE = 0.99999
ALIVE = 0.01
EXACT = KernelChoice(kv_precision="f32")
COMPARED_ELSEWHERE = {"JinaBertModel", "NewModel"}  # transformers has no class of these names


def outcome(model, case, pooling=None):
    """Return what the case expects: the hidden states of its rows, or the logits."""
    hidden = whole_hidden(model, case.ids)[0]
    if not case.scores:
        return hidden[case.rows]
    total = HiddenSum(pooling or model.spec.pooling)
    total.add(hidden)
    return total.embedding()


def load(directory, case):
    return load_model(write_as_used(directory, case), threads=1, kernels=EXACT)


def write_as_used(directory, case):
    """Write a case; a decoder is an encoder by its modules, and a reranker by the tokens that it answers."""
    changes = {"classifier_from_token": ["w11", "w9"]} if "answers" in case.name else {}
    path = write_encoder(directory, case, **changes)
    if case.name == "qwen3":
        (path / "modules.json").write_text(json.dumps(MODULES))
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return path


MODULES = [
    {"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}" if i else ""}
    for i, kind in enumerate(("Transformer", "Pooling", "Normalize"))
]
DECODERS = {name for name in CASES if name.startswith("qwen3")}


def cosine(a, b):
    return float(np.sum(a * b) / np.sqrt(np.sum(a * a) * np.sum(b * b)))


@pytest.mark.spec("MOD-90")
@pytest.mark.parametrize("name", CASES)
def test_hidden_states_and_scores_are_those_of_transformers(tmp_path, name):
    case = CASES[name]
    found = outcome(load(tmp_path, case).model, case)
    assert np.abs(found - case.expected).max() < BOUND
    assert cosine(found.astype(np.float64), case.expected.astype(np.float64)) >= LEAST_COSINE


@pytest.mark.spec("MOD-32", "MOD-38")
@pytest.mark.parametrize("name", [name for name in CASES if name not in DECODERS])
def test_a_sequence_has_the_bits_of_numpy_beside_others_and_alone(tmp_path, name):
    encoder, weights = encoder_and_weights(tmp_path, CASES[name])
    if not has_decoder(encoder):
        with pytest.raises(SettingsError, match=r"no attention by distances|were not built"):
            build_encoder(encoder, weights, Pooling(), LoadOptions(kernels=KernelChoice(kernels="native")))
        return
    options = [LoadOptions(threads=2, kernels=KernelChoice(kernels=kernels)) for kernels in (COMPILED, "reference")]
    native, numpy = (build_encoder(encoder, weights, Pooling(), option) for option in options)
    sequences = [CASES[name].ids, CASES[name].ids[:5], [1], CASES[name].ids[::-1]]
    for tokens, together in zip(sequences, whole_hidden(native, *sequences), strict=True):
        assert together.tobytes() == whole_hidden(numpy, tokens)[0].tobytes()


def test_every_encoder_has_a_case_and_is_found_by_its_name():
    compared = {case.config["architectures"][0] for case in CASES.values()}
    for form in ENCODERS:
        assert form.models
        assert form.model_type in ENCODER_TYPES | {"gemma3_text"}
        if form.classes[0] not in COMPARED_ELSEWHERE:
            assert form.classes[0] in compared or form.classes[0] == "BertModel"
            assert not form.scores or form.scores in compared


# --- each mechanism switched off -----------------------------------------------------------------------------------------


def with_mixers(encoder, change):
    return attrs.evolve(encoder, blocks=tuple(attrs.evolve(b, mixer=change(b.mixer)) for b in encoder.blocks))


def with_blocks(encoder, **changes):
    return attrs.evolve(encoder, blocks=tuple(attrs.evolve(b, **changes) for b in encoder.blocks))


def attention_without(**off):
    return lambda e: with_mixers(e, lambda m: attrs.evolve(m, **off) if isinstance(m, WholeAttention) else m)


def other_activation(mixer):
    if isinstance(mixer, WholeAttention):
        return mixer
    other = Activation.SILU if mixer.activation is not Activation.SILU else Activation.RELU2
    return attrs.evolve(mixer, activation=other)


def one_rope(mixer):
    if not isinstance(mixer, WholeAttention) or mixer.rope is None:
        return mixer
    return attrs.evolve(mixer, rope=Rope(base=10_000.0, turned=mixer.rope.turned, divisors=mixer.rope.divisors))


SWITCHES = {
    "scaled embeddings": lambda e: attrs.evolve(e, embed_scale=1.0),
    "the norm of embeddings": lambda e: attrs.evolve(e, embed_norm=None),
    "positions": lambda e: attrs.evolve(e, positions=0),
    "the first position": lambda e: attrs.evolve(e, first_position=0),
    "token types": lambda e: attrs.evolve(e, types=0),
    "the last norm": lambda e: attrs.evolve(e, norm=None),
    "norms before parts": lambda e: with_blocks(e, pre=None),
    "norms after parts": lambda e: with_blocks(e, post=None),
    "norms of sums": lambda e: with_blocks(e, after=None),
    "windows": attention_without(window=0),
    "distances": attention_without(distance=Distance.NONE),
    "rotation": attention_without(rope=None),
    "the bases of rotations": lambda e: with_mixers(e, one_rope),
    "norms of queries": attention_without(q_norm=None),
    "norms of keys": attention_without(k_norm=None),
    "the scale of scores": attention_without(scale=1.0),
    "activation": lambda e: with_mixers(e, other_activation),
}
BARE = [name for name, case in CASES.items() if not case.scores and name not in DECODERS]


def hidden_with(encoder, weights, case):
    kept = {s: a for s, a in weights.arrays.items() if s not in ("positions", "types") or getattr(encoder, s)}
    model = EncoderModel(encoder, EncoderWeights(kept, "test"), pooling=Pooling(), threads=1)
    return whole_hidden(model, case.ids)[0][case.rows]


@pytest.mark.spec("MOD-90")
@pytest.mark.parametrize("name", BARE)
def test_every_mechanism_of_an_encoder_is_alive(tmp_path, name):
    case = CASES[name]
    encoder, weights = encoder_and_weights(tmp_path, case)
    assert np.abs(hidden_with(encoder, weights, case) - case.expected).max() < BOUND
    alive = set()
    for mechanism, switch in SWITCHES.items():
        without = switch(encoder)
        if without != encoder:
            change = np.abs(hidden_with(without, weights, case) - case.expected).max()
            assert change > ALIVE, (mechanism, change)
            alive.add(mechanism)
    for ending in {slot.split(".", 1)[-1] for slot in weights.arrays if slot.endswith(".bias")}:
        off = {s: np.zeros_like(a) if s.endswith(ending) else a for s, a in weights.arrays.items()}
        change = np.abs(hidden_with(encoder, EncoderWeights(off, "test"), case) - case.expected).max()
        # a bias of keys adds the same to all scores of a query, which changes nothing unless keys turn
        assert change > ALIVE or (ending == "attention.k.bias" and change < BOUND), (ending, change)
    assert {"activation", "the scale of scores"} <= alive
    assert alive & {"positions", "rotation"}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.scores])
def test_every_part_of_a_head_is_alive(tmp_path, name):
    case = CASES[name]
    model = load(tmp_path, case).model
    pooling = model.spec.pooling
    other = PooledRows.MEAN if pooling.rows is PooledRows.FIRST else PooledRows.FIRST
    changed = [attrs.evolve(pooling, rows=other)]
    for index, layer in enumerate(pooling.layers):
        off = []
        if layer.activation is not PooledActivation.IDENTITY:
            off.append({"activation": PooledActivation.IDENTITY})
        if layer.bias is not None:
            off.append({"bias": None})
        if layer.norm_weight is not None:
            off.append({"norm_weight": None})
        for change in off:
            layers = list(pooling.layers)
            layers[index] = attrs.evolve(layer, **change)
            changed.append(attrs.evolve(pooling, layers=tuple(layers)))
    for without in changed:
        assert (
            np.abs(outcome(model, case, without) - case.expected).max() > 20 * BOUND
        )  # one number changes less than many


@pytest.mark.parametrize("name", ["bert, scores", "nomic_bert, scores"])
def test_the_second_text_has_the_second_token_type(tmp_path, name):
    case = CASES[name]
    model = load(tmp_path, case).model
    ids = list(case.ids)
    ids[17] = 3  # no token after which the second text begins
    both = [case.ids, ids]
    alone = [whole_hidden(model, each)[0] for each in both]
    for together, single in zip(whole_hidden(model, *both), alone, strict=True):
        assert together.tobytes() == single.tobytes()
    assert np.abs(outcome(model, attrs.evolve(case, ids=ids)) - case.expected).max() > ALIVE


# --- exactness -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-32", "MOD-90")
@pytest.mark.parametrize("name", sorted(CASES.keys() - DECODERS))
def test_a_sequence_has_the_same_bits_whatever_its_neighbours_and_threads(tmp_path, name):
    case = CASES[name]
    random = np.random.default_rng(5)
    sequences = [[0, *map(int, random.integers(3, 96, n)), 2] for n in (1, 14, 15, 30, 38, 60)]
    path = write_encoder(tmp_path, case)
    together = whole_hidden(load_model(path, threads=3).model, *sequences)
    alone = load_model(path, threads=1).model
    for tokens, hidden in zip(sequences, together, strict=True):
        assert hidden.tobytes() == whole_hidden(alone, tokens)[0].tobytes()


# --- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-25")
@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        (
            "xlm-roberta",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type 'relative_key' is not served",
        ),
        (
            "xlm-roberta",
            {"architectures": ["XLMRobertaForTokenClassification"]},
            "is not served; served: XLMRobertaModel",
        ),
        ("xlm-roberta", {"hidden_act": "relu"}, "hidden_act 'relu' is not served"),
        ("xlm-roberta", {"is_decoder": True}, "is_decoder True is not served"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets 16 is not served"),
        ("nomic_bert", {"moe_every_n_layers": 2}, "moe_every_n_layers 2 is not served"),
        ("gte", {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "rope_type 'ntk' is not served"),
        ("modernbert", {"layer_types": ["full_attention"]}, "must name the kind of each of 4 layers"),
        ("modernbert, scores", {"classifier_pooling": "max"}, "classifier_pooling 'max' is not served"),
        ("bert, scores", {"id2label": {"0": "a", "2": "b"}}, "id2label must name labels"),
        (
            "bert, scores",
            {"id2label": {"0": "a", "1": "b"}},
            r"classifier.weight has the shape \[1, 64\], not \[2, 64\]",
        ),
        ("bert, scores", {"problem_type": "regression"}, "problem_type 'regression' is not served"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not served"),
    ],
)
def test_what_an_encoder_does_not_serve_is_refused_by_field(tmp_path, name, changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(write_encoder(tmp_path, CASES[name], **changes), threads=1)


def test_a_tensor_that_no_part_reads_is_refused(tmp_path):
    case = CASES["xlm-roberta"]
    odd = attrs.evolve(case, shapes={**case.shapes, "encoder.layer.0.lora_A.weight": [4, 64]})
    with pytest.raises(ModelRefused, match=r"lora_A.weight' is not part of the architecture"):
        load_model(write_encoder(tmp_path, odd), threads=1)


# --- decoders that make vectors and scores ------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-92")
def test_a_decoder_with_modules_makes_vectors_of_its_last_token(tmp_path):
    loaded = load(tmp_path, CASES["qwen3"])
    assert (loaded.generates, loaded.scores, loaded.model.spec.pooling.rows) == (False, None, PooledRows.LAST)
    assert loaded.metadata["tokenizer.ggml.eos_token_id"] == 2  # what tokenizer.json puts at the end of a text
    total = HiddenSum(loaded.model.spec.pooling)
    hidden = whole_hidden(loaded.model, CASES["qwen3"].ids)[0]
    for part in np.split(hidden, [3, 20]):
        total.add(part)
    assert np.abs(total.embedding() - hidden[-1] / np.linalg.norm(hidden[-1])).max() < 1e-6


@pytest.mark.spec("MOD-92")
@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("qwen3, answers", {"classifier_from_token": ["yes", "no"]}, "must be two tokens"),
        ("qwen3, answers", {"classifier_from_token": ["w9"]}, "must be two tokens"),
        ("qwen3", {"architectures": ["Qwen3ForTokenClassification"]}, "architectures"),
    ],
)
def test_a_decoder_whose_scores_are_not_served_is_refused_by_field(tmp_path, name, changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(write_encoder(tmp_path, CASES[name], **changes), threads=1)


@pytest.mark.spec("MOD-92")
def test_the_module_of_a_reranker_names_its_two_tokens(tmp_path):
    case = CASES["qwen3, answers"]
    path = write_encoder(tmp_path, case)
    kinds = [{"type": "Transformer", "path": ""}, {"type": "sentence_transformers.LogitScore", "path": "1_LogitScore"}]
    (path / "modules.json").write_text(json.dumps(kinds))
    (path / "1_LogitScore").mkdir()
    (path / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": 9, "false_token_id": 11}))
    loaded = load_model(path, threads=1, kernels=EXACT)
    assert np.abs(outcome(loaded.model, case) - case.expected).max() < BOUND
    assert (loaded.generates, loaded.scores.labels, loaded.scores.activation) == (False, ("yes",), "sigmoid")
