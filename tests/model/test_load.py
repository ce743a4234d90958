"""Loading: every kind of path, the files next to the weights, and every refusal with its reason."""

import contextlib
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.golden_kin import kin_cases, write_kin
from tests.kit.model.tiny_models import tiny_shape, tiny_tensors, write_tiny_gguf
from tlserve.errors import ModelMissing, ModelRefused
from tlserve.kernels.choose import KernelChoice
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.load import builtin_model_path, load_front, load_model

KINDS = gguf.GGMLQuantizationType
SHAPE_FOR_BLOCKS = tiny_shape(hidden=64, intermediate=96, head_size=16)


@pytest.fixture
def tiny_path(tmp_path):
    return write_tiny_gguf(tmp_path / "tiny.gguf")


@pytest.mark.spec("MOD-12")
def test_a_file_and_its_directory_load_the_same_model(tiny_path):
    by_file, by_directory = load_model(tiny_path), load_model(tiny_path.parent)
    assert by_file.model.spec == by_directory.model.spec
    assert by_file.name == "tiny"
    assert by_file.metadata["tokenizer.ggml.model"] == "bytes"
    assert by_file.weights_bytes == sum(t.nbytes for t in tiny_tensors(tiny_shape()).values())


@pytest.mark.spec("MOD-16")
@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.F16, KINDS.BF16, KINDS.Q8_0, KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_1])
@pytest.mark.parametrize("tied", [False, True])
def test_tensors_of_every_kind_equal_what_the_gguf_package_reads(tmp_path, kind, tied):
    path = write_tiny_gguf(tmp_path / "q.gguf", shape=SHAPE_FOR_BLOCKS, quantization=kind, tied=tied)
    with GgufFile(path) as file:
        for info in gguf.GGUFReader(path).tensors:
            truth = gguf.quants.dequantize(info.data, info.tensor_type)
            assert np.array_equal(file.rows(info.name, 0, len(truth)), truth)
            if truth.ndim == 2:
                assert np.array_equal(file.rows(info.name, 3, 9), truth[3:9])
    assert np.isfinite(run_whole(load_model(path).model, range(20)).logits).all()


def spoken(front):
    """Return the parts of a model that a client must know; only a complete model can count its parameters."""
    names = (
        "metadata",
        "chat_template",
        "tool_template",
        "eos_ids",
        "bos_id",
        "context_tokens",
        "name",
        "default_sampling",
        "notes",
        "generates",
    )
    return {name: getattr(front, name) for name in names}


@pytest.mark.parametrize("kind", ["gguf", "bigram", "bert", "hf"])
def test_the_front_of_a_model_equals_that_of_the_whole_model(kind, tmp_path, tiny_path, minilm_path):
    hf = tmp_path / "hf"
    paths = {"gguf": tiny_path, "bigram": builtin_model_path("succ"), "bert": minilm_path, "hf": hf}
    if kind == "hf":
        write_kin(hf, kin_cases()["qwen2"])
    front, whole = load_front(paths[kind]), load_model(paths[kind])
    assert spoken(front) == spoken(whole)
    assert front.description[: len(front.name)] == front.name


@pytest.mark.spec("MOD-5", "MOD-18")
def test_numerics_name_the_weights_and_the_context_can_be_shortened(tmp_path):
    one, two = (load_model(write_tiny_gguf(tmp_path / f"{i}.gguf", seed=i)).model.spec for i in (1, 2))
    assert one.numerics != two.numerics
    assert load_model(tmp_path / "1.gguf").model.spec == one
    assert load_model(tmp_path / "1.gguf", threads=2).model.spec.numerics == one.numerics
    assert load_model(tmp_path / "1.gguf", context_tokens=100).model.spec.context_tokens == 100


@pytest.mark.spec("MOD-18")
def test_a_longer_context_than_trained_is_refused(tiny_path):
    with pytest.raises(ModelRefused, match="513 is more than the model's 512"):
        load_model(tiny_path, context_tokens=513)


@pytest.mark.spec("MOD-17", "MOD-43")
def test_template_of_generation_config_wins_over_tokenizer_config_and_both_over_gguf(tiny_path):
    beside = tiny_path.parent
    assert load_model(tiny_path).chat_template == "{% for m in messages %}{{ m.content }}{% endfor %}"
    (beside / "tokenizer_config.json").write_text(json.dumps({"chat_template": "from tokenizer"}))
    assert load_model(tiny_path).chat_template == "from tokenizer"
    (beside / "generation_config.json").write_text(json.dumps({"chat_template": "from generation", "eos_token_id": 3}))
    assert load_model(tiny_path).chat_template == "from generation"
    assert load_model(tiny_path).eos_ids == {3}


NAMED = json.dumps({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})
PLAIN_FILE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def templates(path):
    front = load_model(path)
    return front.chat_template, front.tool_template


@pytest.mark.spec("MOD-97")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": NAMED}, ("d", "t")),
        ({"chat_template.json": NAMED}, ("d", "t")),
        ({"chat_template.json": '{"chat_template": "j"}', "tokenizer_config.json": NAMED}, ("j", "t")),
        ({"chat_template.jinja": "f", "additional_chat_templates/tool_use.jinja": "a"}, ("f", "a")),
        ({"additional_chat_templates/tool_use.jinja": "a"}, (PLAIN_FILE, "a")),
        ({"tokenizer_config.json": '{"chat_template": "one"}'}, ("one", None)),
        ({}, (PLAIN_FILE, None)),
    ],
)
def test_named_templates_are_read_from_every_place(tiny_path, files, expected):
    for name, text in files.items():
        (tiny_path.parent / name).parent.mkdir(exist_ok=True)
        (tiny_path.parent / name).write_text(text)
    assert templates(tiny_path) == expected


@pytest.mark.spec("MOD-97")
def test_a_gguf_file_can_have_a_template_for_tools(tmp_path):
    path = write_tiny_gguf(tmp_path / "tools.gguf", chat_template="d", tool_template="t")
    assert templates(path) == ("d", "t")
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert templates(path) == ("beside", None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        ("[" * 100_000, "cannot be read"),
        ('{"eos_token_id": 256}', "ids below 256"),
        ('{"eos_token_id": [1, "a"]}', "ids below 256"),
        ('{"eos_token_id": true}', "ids below 256"),
        ('{"chat_template": 3}', "must be a string"),
    ],
)
def test_a_damaged_file_next_to_the_weights_is_refused(tiny_path, text, reason):
    (tiny_path.parent / "generation_config.json").write_text(text)
    with pytest.raises(ModelRefused, match=reason):
        load_model(tiny_path)


@pytest.mark.spec("MOD-12")
def test_succ_is_built_in_and_needs_no_download():
    path = builtin_model_path("succ")
    assert path is not None
    loaded = load_model(path)
    assert (loaded.name, loaded.eos_ids, loaded.bos_id) == ("succ", frozenset(), None)
    assert loaded.chat_template == "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert loaded.model.spec.context_tokens == 4096
    assert run_whole(loaded.model, b"a").logits.argmax() == ord("b")


def test_there_is_no_built_in_model_of_another_name():
    assert builtin_model_path("smol-135m") is None
    assert builtin_model_path("../builtin/succ") is None


@pytest.mark.spec("MOD-13")
def test_a_missing_model_is_reported_with_the_remedy(tmp_path):
    with pytest.raises(ModelMissing, match="tlserve pull smol-135m"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ModelMissing, match="has no model"):
        load_model(tmp_path)


def test_two_gguf_files_in_one_directory_are_refused(tiny_path):
    shutil.copy(tiny_path, tiny_path.with_name("second.gguf"))
    with pytest.raises(ModelRefused, match=r"has 2 \.gguf files"):
        load_model(tiny_path.parent)


def write_changed(path: Path, *, metadata=(), tensors=None, architecture="llama", **tokens: int) -> Path:
    """Write a tiny llama with changed metadata or tensors."""
    shape = tiny_shape()
    values = {
        "context_length": shape.context_tokens,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.intermediate,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_size,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
    } | dict(metadata)
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        add = {bool: writer.add_bool, int: writer.add_int64, float: writer.add_float64, str: writer.add_string}
        if isinstance(value, list):
            writer.add_array(f"llama.{name}", value)
        elif value is not None:
            add[type(value)](f"llama.{name}", value)
    for name, tensor in (tiny_tensors(shape) if tensors is None else tensors).items():
        writer.add_tensor(name, tensor)
    for name, value in tokens.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_only_the_written_values_are_needed(tmp_path):
    assert load_model(write_changed(tmp_path / "t.gguf")).model.spec.architecture == "llama"


@pytest.mark.spec("MOD-13")
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("embedding_length", 0, "between 1"),
        ("embedding_length", "32", "whole number"),
        ("embedding_length", None, "whole number"),
        ("block_count", 1 << 40, "between 1 and 1024"),
        ("block_count", 3, "blk.2.attn_norm.weight is missing"),
        ("attention.head_count", [4, 2], "differs from layer to layer"),
        ("attention.head_count_kv", 3, "evenly"),
        ("attention.head_count_kv", 0, "between 1 and 4"),
        ("attention.key_length", 8, "has the shape"),
        ("attention.value_length", 8, "whose length differs"),
        ("attention.layer_norm_rms_epsilon", None, "number above 0"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "number above 0"),
        ("context_length", 1 << 50, "between 1"),
        ("rope.dimension_count", 5, "even"),
        ("rope.freq_base", -1.0, "number above 0"),
        ("rope.scaling.type", "yarn", "llama.rope.scaling.factor must be a number above 0"),
        ("expert_count", 8, "llama.expert_used_count must be a whole number"),
        ("rope.scaling.type", "longrope", "rope.scaling.type 'longrope' is not served; served: none, linear, yarn"),
        ("rope.freq_base", 1.0, "must be above 1"),
        ("attention.sliding_window_pattern", [1, 0], "one window for all layers"),
        ("attention.sliding_window", "wide", "whole number"),
        ("attention.causal", False, "earlier tokens only"),
        ("vocab_size", 300, "differs from the embedding"),
    ],
)
def test_metadata_that_is_not_served_is_refused_by_name(tmp_path, name, value, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(write_changed(tmp_path / "t.gguf", metadata={name: value}))


@pytest.mark.spec("MOD-13")
def test_more_heads_than_components_are_refused(tmp_path):
    many = {"attention.key_length": None, "attention.head_count": 64, "attention.head_count_kv": 64}
    with pytest.raises(ModelRefused, match="heads of at least 2"):
        load_model(write_changed(tmp_path / "t.gguf", metadata=many))


@pytest.mark.spec("MOD-44")
def test_ends_of_text_turn_and_message_all_end_an_answer(tmp_path):
    loaded = load_model(write_changed(tmp_path / "t.gguf", bos=1, eos=2, eot=5, eom=7))
    assert (loaded.bos_id, loaded.eos_ids) == (1, {2, 5, 7})


@pytest.mark.spec("MOD-13")
def test_another_architecture_is_refused_by_name(tmp_path):
    with pytest.raises(ModelRefused, match="architecture 'mamba' is not served"):
        load_model(write_changed(tmp_path / "t.gguf", architecture="mamba"))


@pytest.mark.spec("MOD-14")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("token_embd.weight"), "token_embd.weight is missing"),
        (lambda t: t.pop("output_norm.weight"), "output_norm.weight is missing"),
        (lambda t: t.pop("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight is missing"),
        (lambda t: t.update({"blk.0.attn_q.bias": np.zeros(64, np.float32)}), "attn_k.bias is missing"),
        (lambda t: t.update({"blk.0.ffn_up.bias": np.zeros(64, np.float32)}), "ffn_up.bias' is not part"),
        (lambda t: t.update({"rope_freqs.weight": np.ones(3, np.float32)}), "rope_freqs.weight has the shape"),
        (lambda t: t.update({"rope_freqs.weight": np.zeros(8, np.float32)}), "finite numbers above 0"),
        (lambda t: t.update({"output_norm.weight": np.zeros(31, np.float32)}), "has the shape"),
    ],
)
def test_missing_misshapen_and_unknown_tensors_are_refused_by_name(tmp_path, change, reason):
    tensors = tiny_tensors(tiny_shape())
    change(tensors)
    with pytest.raises(ModelRefused, match=reason):
        load_model(write_changed(tmp_path / "t.gguf", tensors=tensors))


def test_a_tensor_of_a_type_that_cannot_become_float32_is_refused_by_name(tmp_path):
    tensors = tiny_tensors(tiny_shape()) | {"output_norm.weight": np.ones(32, np.int32)}
    with pytest.raises(ModelRefused, match=r"'output_norm.weight' holds I32"):
        load_model(write_changed(tmp_path / "t.gguf", tensors=tensors))


def test_a_tensor_of_an_unknown_type_is_refused_by_name(tiny_path):
    data = bytearray(tiny_path.read_bytes())
    at = data.rfind(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    data[at : at + 4] = (999).to_bytes(4, "little")
    tiny_path.write_bytes(data)
    with pytest.raises(ModelRefused, match="unknown type 999"):
        load_model(tiny_path)


def test_a_file_cut_off_in_its_tensors_is_refused(tiny_path):
    tiny_path.write_bytes(tiny_path.read_bytes()[:-1000])
    with pytest.raises(ModelRefused, match="truncated"):
        load_model(tiny_path)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelRefused, match="cannot read"):
        load_model(tmp_path / "empty.gguf")


@pytest.mark.spec("MOD-15")
@given(flips=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_loaded_or_refused_and_nothing_else(tiny_path, flips):
    whole = tiny_path.read_bytes()
    damaged = bytearray(whole)
    for place, value in flips:
        damaged[place] = value
    other = tiny_path.with_name("damaged")
    other.write_bytes(damaged)
    with contextlib.suppress(ModelRefused):
        load_model(other, threads=1)


@pytest.mark.real_model
def test_the_real_model_describes_itself(smol_path):
    loaded = load_model(smol_path, kernels=KernelChoice(kv_precision="f16"))
    spec = loaded.model.spec
    assert (spec.architecture, spec.vocabulary_size, spec.hidden_size) == ("llama", 49152, 576)
    assert (spec.context_tokens, spec.kv_bytes_per_token) == (8192, 23_040)
    assert (loaded.bos_id, loaded.eos_ids) == (1, {0, 2, 4})
    assert "<|im_start|>" in (loaded.chat_template or "")
    assert loaded.description.startswith("Smollm2 135M")
    assert "135M parameters" in loaded.description
