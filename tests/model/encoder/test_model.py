"""A BERT on the kernels of decoders: its numbers, its exactness, and the files of its directory that are accepted or refused."""

import contextlib
import json
import random

import attrs
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.engine.step_batches import Rows, run_whole, step_batch
from tests.kit.model.tiny_bert import (
    CLS,
    CONFIG,
    MAX_SEQ_LENGTH,
    MODULES,
    POOLING,
    SEP,
    TOKENIZER,
    VOCABULARY,
    naive_hidden,
    tiny_bert,
    tiny_bert_record,
    tiny_bert_tensors,
    write_tiny_bert,
)
from tlserve.errors import ModelRefused
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import PooledRows, Pooling
from tlserve.model.load import load_model
from tlserve.model.loaded_model import Prompts

TENSORS = tiny_bert_tensors()
NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.just({}),
)
NOTHING = np.zeros(0, np.int32)


def hidden_of(model, *sequences):
    """Return the hidden states of each of `sequences`, all in one step."""
    batch = attrs.evolve(step_batch(*(Rows(tokens, 0, (0,)) for tokens in sequences)), logit_rows=NOTHING)
    output = model.forward(batch, model.new_kv_store(1, 16))
    return np.split(output.hidden, batch.row_starts[1:-1])


def random_sequences(rng, count, longest=MAX_SEQ_LENGTH):
    return [
        [CLS, *(rng.randrange(5, len(VOCABULARY)) for _ in range(rng.randrange(longest - 1))), SEP]
        for _ in range(count)
    ]


# --- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-36")
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40, 64])
def test_hidden_states_agree_with_the_naive_forward(length):
    tokens = [(7 * i) % len(VOCABULARY) for i in range(length)]
    (hidden,) = hidden_of(tiny_bert(), tokens)
    np.testing.assert_allclose(hidden, naive_hidden(TENSORS, tokens), atol=2e-5)


@pytest.mark.spec("MOD-32")
@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("seed", range(6))
def test_a_sequence_has_the_same_bits_whatever_its_neighbours_and_threads(seed, kernels):
    print("seed", seed)
    rng = random.Random(seed)
    sequences = random_sequences(rng, rng.randrange(2, 9))
    together = hidden_of(tiny_bert(threads=rng.choice([1, 2, 3]), kernels=kernels), *sequences)
    alone = tiny_bert(kernels="native")
    for tokens, hidden in zip(sequences, together, strict=True):
        assert hidden.tobytes() == hidden_of(alone, tokens)[0].tobytes()


@pytest.mark.spec("MOD-32")
def test_a_sequence_of_nans_does_not_reach_its_neighbours():
    poisoned = {**TENSORS, "embeddings.word_embeddings.weight": TENSORS["embeddings.word_embeddings.weight"].copy()}
    poisoned["embeddings.word_embeddings.weight"][9] = np.nan
    before, spoilt, after = hidden_of(tiny_bert(poisoned), [2, 5, 3], [2, 9, 3], [2, 6, 7, 3])
    assert np.isnan(spoilt[1]).all()
    assert before.tobytes() == hidden_of(tiny_bert(), [2, 5, 3])[0].tobytes()
    assert after.tobytes() == hidden_of(tiny_bert(), [2, 6, 7, 3])[0].tobytes()


def test_only_the_requested_rows_are_returned():
    model = tiny_bert()
    batch = attrs.evolve(step_batch(Rows([2, 5, 6, 3], 0, (0,))), logit_rows=NOTHING)
    whole = model.forward(batch, model.new_kv_store(1, 16)).hidden
    some = model.forward(attrs.evolve(batch, hidden_rows=np.array([0, 2], np.int32)), model.new_kv_store(1, 16)).hidden
    assert some.tobytes() == whole[[0, 2]].tobytes()


def test_logits_and_parts_of_a_sequence_are_refused():
    model = tiny_bert()
    with pytest.raises(ValueError, match="no logits"):
        run_whole(model, [2, 3])
    with pytest.raises(ValueError, match="whole sequences"):
        model.forward(attrs.evolve(step_batch(Rows([5], 3, (0,))), logit_rows=NOTHING), model.new_kv_store(1, 16))


def test_the_spec_describes_the_encoder_and_numerics_name_its_parts(tmp_path):
    spec = load_model(write_tiny_bert(tmp_path), threads=1).model.spec
    assert (spec.architecture, spec.bidirectional, spec.kv_bytes_per_token) == ("bert", True, 0)
    assert (spec.context_tokens, spec.hidden_size, spec.vocabulary_size) == (MAX_SEQ_LENGTH, 32, len(VOCABULARY))
    assert load_model(tmp_path, threads=2).model.spec.numerics == spec.numerics
    put(tmp_path, "modules.json", MODULES[:2])
    assert load_model(tmp_path).model.spec.numerics != spec.numerics
    write_tiny_bert(tmp_path, tiny_bert_tensors(seed=1))
    assert load_model(tmp_path).model.spec.numerics != spec.numerics


# --- the directory -----------------------------------------------------------------------------------------------------


def put(directory, name, document):
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text(document if isinstance(document, str) else json.dumps(document))


def test_a_directory_loads_and_makes_vectors_only(tmp_path):
    loaded = load_model(write_tiny_bert(tmp_path / "tiny-bert"), threads=1)
    assert (loaded.name, loaded.generates, loaded.notes) == ("tiny-bert", False, ())
    assert loaded.description == "tiny-bert (bert sentence encoder, 0.0245M parameters, safetensors)"
    assert loaded.weights_bytes >= 4 * sum(tensor.size for tensor in TENSORS.values())  # rows are padded
    assert (loaded.bos_id, loaded.metadata["tokenizer.ggml.eos_token_id"]) == (CLS, SEP)
    assert loaded.model.spec.pooling == Pooling()
    tokens = [2, 40, 7, 3]
    assert hidden_of(loaded.model, tokens)[0].tobytes() == hidden_of(tiny_bert(), tokens)[0].tobytes()


def test_a_version_folder_is_named_by_its_model(tmp_path):
    assert load_model(write_tiny_bert(tmp_path / "tiny-bert" / "v2")).name == "tiny-bert"


def test_weights_in_half_precision_are_read(tmp_path):
    halves = {name: tensor.astype(np.float16) for name, tensor in TENSORS.items()}
    loaded = load_model(write_tiny_bert(tmp_path, halves), threads=1)
    widened = {name: tensor.astype(np.float32) for name, tensor in halves.items()}
    assert hidden_of(loaded.model, [2, 9, 3])[0].tobytes() == hidden_of(tiny_bert(widened), [2, 9, 3])[0].tobytes()


def test_position_ids_and_a_pooler_in_the_file_are_ignored(tmp_path):
    more = {"embeddings.position_ids": np.arange(96)[None], "pooler.dense.weight": np.zeros((32, 32), np.float32)}
    load_model(write_tiny_bert(tmp_path, {**TENSORS, **more}), threads=1)


@pytest.mark.spec("MOD-37")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder.layer.1.output.dense.bias": None}, "encoder.layer.1.output.dense.bias is missing"),
        ({"embeddings.LayerNorm.weight": np.zeros(31, np.float32)}, r"has the shape \[31\], not \[32\]"),
        ({"encoder.layer.2.output.dense.bias": np.zeros(32, np.float32)}, "not part of the architecture bert"),
        ({"classifier.bias": np.zeros(3, np.float32)}, "not part of the architecture bert"),
    ],
)
def test_missing_misshapen_and_unknown_tensors_are_refused_by_their_names(tmp_path, change, words):
    tensors = {name: tensor for name, tensor in {**TENSORS, **change}.items() if tensor is not None}
    with pytest.raises(ModelRefused, match=words):
        load_model(write_tiny_bert(tmp_path, tensors))


@pytest.mark.spec("MOD-54")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["BertForTokenClassification"]}, "architectures"),
        ({"architectures": "BertModel"}, "architectures"),
        ({"hidden_act": "tanh"}, "hidden_act 'tanh' is not served; served: gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"quantization_config": {}}, "quantization_config"),
        ({"num_attention_heads": 5}, "hidden_size 32 cannot be shared by 5 heads evenly"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"layer_norm_eps": 0}, "layer_norm_eps"),
        ({"vocab_size": 10}, "ids up to"),
        ({"max_position_embeddings": 95}, r"position_embeddings.weight has the shape \[96, 32\], not \[95, 32\]"),
    ],
)
def test_an_unsupported_config_is_refused_by_name(tmp_path, change, words):
    with pytest.raises(ModelRefused, match=words):
        load_model(write_tiny_bert(tmp_path, **change))


@pytest.mark.spec("MOD-37")
@given(st.dictionaries(st.sampled_from([*CONFIG, "is_decoder", "quantization_config"]), NASTY, min_size=1, max_size=3))
def test_any_config_is_a_shape_or_a_refusal_and_nothing_else(change):
    with contextlib.suppress(ModelRefused):
        assert tiny_bert_record(**change).hidden > 0


def test_a_longer_context_is_refused(tmp_path):
    write_tiny_bert(tmp_path)
    with pytest.raises(ModelRefused, match="context_tokens 65 is more than the model's 64"):
        load_model(tmp_path, context_tokens=65)


@pytest.mark.spec("MOD-38")
@pytest.mark.parametrize("weights", ["stored", "q8_0"])
def test_native_kernels_and_numpy_have_the_same_bits_and_numerics(tmp_path, weights):
    write_tiny_bert(tmp_path)
    kinds = [KernelChoice(kernels=kernels, weights=weights) for kernels in ("native", "reference")]
    native, numpy = (load_model(tmp_path, kernels=kernels).model for kernels in kinds)
    assert ("native" in native.spec.kernels, "numpy" in numpy.spec.kernels) == (True, True)
    assert native.spec.numerics == numpy.spec.numerics
    for tokens in ([2], [2, 9, 3], [(7 * i) % len(VOCABULARY) for i in range(61)]):
        assert hidden_of(native, tokens)[0].tobytes() == hidden_of(numpy, tokens)[0].tobytes()


def test_weights_in_8_bits_are_close_and_have_other_numerics(tmp_path):
    write_tiny_bert(tmp_path)
    wide, narrow = (load_model(tmp_path, kernels=KernelChoice(weights=w)).model for w in ("stored", "q8_0"))
    a, b = (hidden_of(model, [2, 40, 7, 9, 3])[0].ravel() for model in (wide, narrow))
    assert 0.999 < a @ b / np.sqrt((a @ a) * (b @ b)) < 1
    assert wide.spec.numerics != narrow.spec.numerics


def test_the_context_can_be_shortened(tmp_path):
    assert load_model(write_tiny_bert(tmp_path), context_tokens=20).model.spec.context_tokens == 20


# --- the sentence encoder's own files ----------------------------------------------------------------------------------


@pytest.mark.spec("MOD-37")
@pytest.mark.parametrize(
    ("files", "pooling"),
    [
        ({"modules.json": MODULES[:2]}, Pooling(normalised=False)),
        ({"modules.json": None}, Pooling(normalised=False)),
        (
            {"1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}},
            Pooling(rows=PooledRows.FIRST),
        ),
        ({"1_Pooling/config.json": {"pooling_mode": "cls"}}, Pooling(rows=PooledRows.FIRST)),
        ({"1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": True}}, Pooling()),
    ],
)
def test_pooling_and_length_come_from_the_files(tmp_path, files, pooling):
    write_tiny_bert(tmp_path)
    for name, document in files.items():
        (tmp_path / name).unlink() if document is None else put(tmp_path, name, document)
    assert load_model(tmp_path).model.spec.pooling == pooling


@pytest.mark.spec("MOD-54")
@pytest.mark.parametrize(
    ("name", "document", "words"),
    [
        ("modules.json", "[", r"modules\.json cannot be read"),
        ("modules.json", {}, r"modules\.json must be a list of objects"),
        ("modules.json", [], r"modules\.json must be a list of objects"),
        ("modules.json", [1], r"modules\.json must be a list of objects"),
        ("modules.json", [*MODULES[:2], {"type": "sentence_transformers.models.LSTM"}], "LSTM"),
        ("modules.json", [MODULES[0], {**MODULES[1], "path": "../1_Pooling"}, MODULES[2]], "not a folder next to it"),
        ("1_Pooling/config.json", {**POOLING, "pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ("1_Pooling/config.json", {**POOLING, "pooling_mode_cls_token": True}, "is not served; served: mean, cls"),
        ("1_Pooling/config.json", {}, "is not served; served: mean, cls"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "max"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length"),
    ],
)
def test_an_unsupported_sentence_encoder_is_refused_by_file(tmp_path, name, document, words):
    write_tiny_bert(tmp_path)
    put(tmp_path, name, document)
    with pytest.raises(ModelRefused, match=words):
        load_model(tmp_path)


@pytest.mark.spec("MOD-37")
@pytest.mark.parametrize(("said", "context"), [({}, 96), ({"max_seq_length": None}, 96), ({"max_seq_length": 500}, 96)])
def test_the_positions_bound_the_length_if_the_files_do_not(tmp_path, said, context):
    write_tiny_bert(tmp_path)
    put(tmp_path, "sentence_bert_config.json", said)
    assert load_model(tmp_path).model.spec.context_tokens == context


def test_the_prompts_of_the_files_are_read(tmp_path):
    write_tiny_bert(tmp_path)
    name = "config_sentence_transformers.json"
    put(tmp_path, name, {"prompts": {"query": "query: "}, "default_prompt_name": "query"})
    assert load_model(tmp_path).prompts == Prompts(texts={"query": "query: "}, default="query")
    put(tmp_path, name, {"prompts": {"query": "query: "}, "default_prompt_name": "other"})
    with pytest.raises(ModelRefused, match="default_prompt_name 'other' is not one of prompts"):
        load_model(tmp_path)
    put(tmp_path, name, {"prompts": {"query": 3}})
    with pytest.raises(ModelRefused, match="prompts must have texts"):
        load_model(tmp_path)


def test_the_tokenizer_must_exist(tmp_path):
    write_tiny_bert(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    put(tmp_path, "vocab.txt", "\n".join(VOCABULARY))
    with pytest.raises(ModelRefused, match=r"vocab\.txt alone cannot be read"):
        load_model(tmp_path)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    write_tiny_bert(tmp_path)
    whole = safetensors.numpy.save(TENSORS)
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ModelRefused, match="is truncated or its header is wrong"):
        load_model(tmp_path)


def test_the_tiny_tokenizer_is_the_one_that_is_written(tmp_path):
    assert json.loads((write_tiny_bert(tmp_path) / "tokenizer.json").read_text()) == TOKENIZER
    assert CONFIG["vocab_size"] == len(TOKENIZER["model"]["vocab"])
