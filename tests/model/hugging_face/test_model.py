"""Hugging Face directories: the values of each file, and every refusal by field and value."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.golden_kin import kin_cases, write_kin
from tlserve.errors import ModelRefused
from tlserve.model.hugging_face.facts import hf_decoder
from tlserve.model.load import load_model
from tlserve.sampling_params import SamplingParams

CASES = kin_cases()
LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3 = (CASES[name] for name in ("llama", "mistral", "qwen2", "qwen3", "smollm3"))
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<s>": 2}, "merges": []},
    "added_tokens": [
        {"id": i, "content": t, "special": True} for i, t in ((5, "<end>"), (6, "<turn>"), (7, "<begin>"))
    ],
}


@pytest.fixture
def llama(tmp_path):
    return write_kin(tmp_path / "tiny-llama", LLAMA)


def put(directory, name, document):
    (directory / name).write_text(document if isinstance(document, str) else json.dumps(document))


def record_of(case, context_tokens=0, **changes):
    return hf_decoder({**case.config, **changes}, context_tokens)


def windows_of(decoder):
    return tuple(attention.window for attention in decoder.attentions())


def unrotated_layers_of(decoder):
    return tuple(i for i, attention in enumerate(decoder.attentions()) if attention.rope is None)


@pytest.mark.spec("MOD-12")
def test_a_directory_loads_under_its_own_name(llama):
    loaded = load_model(llama, threads=1)
    assert (loaded.name, loaded.model.spec.architecture) == ("tiny-llama", "llama")
    assert loaded.description == "tiny-llama (llama, 0.0421M parameters, safetensors)"
    assert loaded.metadata["tokenizer.huggingface.vocabulary_size"] == 320
    assert "tokenizer.huggingface.json" in loaded.metadata


# --- the values of each file --------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-29")
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("spell", [lambda token: token, lambda token: {"content": token, "lstrip": False}])
def test_begin_and_end_are_named_by_their_spelling(llama, name, spell):
    put(llama, "tokenizer.json", TOKENIZER)
    put(llama, name, {"bos_token": spell("<begin>"), "eos_token": spell("<end>"), "pad_token": None})
    loaded = load_model(llama, threads=1)
    assert (loaded.bos_id, loaded.metadata["tokenizer.ggml.bos_token_id"]) == (7, 7)
    assert loaded.eos_ids == {2, 5}  # the config's own number, and the tokenizer's


@pytest.mark.spec("MOD-29")
def test_without_a_spelling_the_ids_of_the_config_apply(llama):
    loaded = load_model(llama, threads=1)
    assert (loaded.bos_id, loaded.eos_ids) == (1, {2})


@pytest.mark.spec("MOD-29")
def test_generation_config_wins_over_config_about_what_ends_an_answer(llama):
    put(llama, "generation_config.json", {"eos_token_id": [7, 9]})
    put(llama, "tokenizer.json", TOKENIZER)
    put(llama, "tokenizer_config.json", {"eos_token": "<turn>"})
    assert load_model(llama, threads=1).eos_ids == {7, 9, 6}


@pytest.mark.spec("MOD-29")
def test_a_config_can_name_several_ends(tmp_path):
    assert load_model(write_kin(tmp_path, LLAMA, eos_token_id=[3, 4]), threads=1).eos_ids == {3, 4}


def test_add_bos_token_is_passed_on_if_it_is_set(llama):
    assert "tokenizer.ggml.add_bos_token" not in load_model(llama, threads=1).metadata
    put(llama, "tokenizer_config.json", {"add_bos_token": False})
    assert load_model(llama, threads=1).metadata["tokenizer.ggml.add_bos_token"] is False


def test_a_template_of_its_own_file_wins_over_tokenizer_config(llama):
    put(llama, "tokenizer_config.json", {"chat_template": "from config"})
    assert load_model(llama, threads=1).chat_template == "from config"
    put(llama, "chat_template.jinja", "from file: ü\n")
    assert load_model(llama, threads=1).chat_template == "from file: ü\n"


def test_a_directory_without_a_template_has_none(llama):
    assert load_model(llama, threads=1).chat_template is None


# --- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-30")
@pytest.mark.parametrize(
    ("document", "sampling"),
    [
        ({}, SamplingParams()),
        ({"temperature": 0.6, "top_p": 0.9, "do_sample": True}, SamplingParams(temperature=0.6, top_p=0.9)),
        ({"temperature": 0.6, "top_k": 20, "min_p": 0.05}, SamplingParams(temperature=0.6, top_k=20, min_p=0.05)),
        ({"do_sample": False, "temperature": 0.6, "top_k": 5}, SamplingParams(temperature=0, top_k=5)),
        ({"temperature": None, "top_p": None, "do_sample": None}, SamplingParams()),
        ({"temperature": 1, "top_p": 1}, SamplingParams()),
        (
            {"repetition_penalty": 1.1, "presence_penalty": 1.5},
            SamplingParams(repetition_penalty=1.1, presence_penalty=1.5),
        ),
        ({"frequency_penalty": -0.5, "repetition_penalty": None}, SamplingParams(frequency_penalty=-0.5)),
    ],
)
def test_the_makers_sampling_is_the_default(llama, document, sampling):
    put(llama, "generation_config.json", document)
    assert load_model(llama, threads=1).default_sampling == sampling


@pytest.mark.spec("MOD-51")
def test_unsupported_defaults_are_logged_except_harmless_ones(llama):
    wishes = {
        "encoder_repetition_penalty": 1.1,
        "no_repeat_ngram_size": 0,
        "typical_p": 1.0,
        "num_beams": 4,
        "top_h": None,
    }
    put(llama, "generation_config.json", wishes)
    notes = load_model(llama, threads=1).notes
    assert [note.split(",")[0] for note in notes] == [
        "generation_config.json asks for encoder_repetition_penalty 1.1",
        "generation_config.json asks for num_beams 4",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "warm"),
        ("temperature", True),
        ("top_k", 1.5),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("min_p", 2),
        ("do_sample", "no"),
    ],
)
def test_sampling_out_of_bounds_is_refused_by_name(llama, name, value):
    put(llama, "generation_config.json", {name: value})
    with pytest.raises(ModelRefused, match=f"generation_config.json: {name} must be"):
        load_model(llama, threads=1)


# --- the context -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-24", "MOD-47", "MOD-48")
@pytest.mark.parametrize(
    ("name", "trained", "longest"),
    [
        ("llama", 512, 512),
        ("llama linear", 64, 256),
        ("llama dynamic", 64, 256),
        ("llama llama3", 512, 512),
        ("llama yarn", 256, 256),
        ("llama yarn, every number", 256, 256),
    ],
)
def test_scaling_determines_the_longest_context(name, trained, longest):
    assert record_of(CASES[name]).context_tokens == trained
    assert record_of(CASES[name], longest).context_tokens == longest
    with pytest.raises(ModelRefused, match=f"is more than the model's {longest}"):
        record_of(CASES[name], longest + 1)


@pytest.mark.spec("MOD-24")
def test_both_ways_to_write_rotation_scaling_mean_the_same():
    numbers = {"rope_type": "linear", "factor": 2.0}
    old = record_of(LLAMA, rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert record_of(LLAMA, rope_parameters={**numbers, "rope_theta": 500.0}) == old
    assert [(rope.base, rope.linear_factor) for rope in old.ropes()] == [(500.0, 2.0)]


# --- layers that differ ----------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-26")
@pytest.mark.parametrize(
    ("case", "changes", "windows"),
    [
        (MISTRAL, {}, (24, 24)),
        (MISTRAL, {"sliding_window": None}, (0, 0)),
        (QWEN2, {"sliding_window": 24}, (0, 0)),
        (QWEN2, {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}, (0, 24)),
        (QWEN2, {"sliding_window": 24, "use_sliding_window": True}, (0, 0)),
        (
            QWEN3,
            {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
            (4096, 0),
        ),
        (QWEN3, {"use_sliding_window": True, "sliding_window": None}, (0, 0)),
        (SMOLLM3, {"use_sliding_window": True, "sliding_window": 8}, (0, 8)),
    ],
)
def test_windows_are_read_as_each_architecture_writes_them(case, changes, windows):
    assert windows_of(record_of(case, **changes)) == windows


@pytest.mark.spec("MOD-26")
def test_a_mistral_without_a_window_has_the_default_one_of_its_class():
    config = {name: value for name, value in MISTRAL.config.items() if name != "sliding_window"}
    assert windows_of(hf_decoder(config)) == (4096, 4096)


@pytest.mark.spec("MOD-26")
def test_layers_without_rotation_are_listed_or_every_fourth():
    assert unrotated_layers_of(record_of(SMOLLM3, no_rope_layers=[0, 1])) == (0,)
    assert unrotated_layers_of(record_of(SMOLLM3, no_rope_layer_interval=4, num_hidden_layers=9)) == (3, 7)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-25")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"model_type": "gpt2"},
            "model_type 'gpt2' is not served; served: llama, mistral, .*gemma3_text, .*nemotron, .*glm4_moe, bert",
        ),
        ({"model_type": ["llama"]}, "model_type"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            r"architectures \['LlamaForSequence.* LlamaForCausalLM",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not served; served: silu"),
        ({"hidden_act": ["silu"]}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias True is not served"),
        ({"attention_bias": "yes"}, "attention_bias must be true or false"),
        ({"quantization_config": {"bits": 4}}, "quantization_config .*bits.* is not served"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not served"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not served"),
        ({"sliding_window": 4096}, "sliding_window 4096 is not served"),
        ({"hidden_size": None}, "hidden_size must be a whole number"),
        ({"hidden_size": 1 << 40}, "hidden_size must be a whole number between 1 and 65536"),
        ({"hidden_size": 33, "head_dim": None}, "33 cannot be shared by 4 heads evenly"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"num_key_value_heads": 5}, "between 1 and 4"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"head_dim": 15}, "must be even"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a number above 0"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"rope_theta": 0}, "rope_theta must be a number above 0"),
        ({"rope_theta": 1}, "must be above 1"),
        ({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 4}}, "must be above 1"),
        ({"head_dim": 15, "rope_scaling": {"type": "yarn", "factor": 4}}, "must be even"),
        ({"rope_scaling": []}, None),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        (
            {"rope_scaling": {"rope_type": "proportional"}},
            "rope_scaling.rope_type 'proportional' is not served; served: default, linear",
        ),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "'mrope' is not served"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling.short_factor must be a list of numbers"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2, "alpha": 3}},
            "alpha 3 is not served for the kind dynamic",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor must be a number above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, "rope_scaling.factor must be a number"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}},
            "beta_fast 3 is not served for the kind linear",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 9}},
            "served: max_position",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4}},
            "low_freq_factor must be less than high_freq_factor",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "whole heads rotated"),
    ],
)
def test_a_config_that_is_not_served_is_refused_by_field_and_value(changes, reason):
    with pytest.raises(ModelRefused, match=reason) if reason else contextlib.nullcontext():
        record_of(LLAMA, **changes)


@pytest.mark.spec("MOD-25")
@pytest.mark.parametrize(
    ("case", "changes", "reason"),
    [
        (MISTRAL, {"layer_types": ["full_attention"] * 2}, "layer_types"),
        (MISTRAL, {"sliding_window": 0}, "sliding_window must be a whole number between 1"),
        (QWEN2, {"layer_types": ["sliding_attention"] * 2}, "use_sliding_window or sliding_window is not set"),
        (QWEN2, {"use_sliding_window": True, "layer_types": ["sliding_attention"]}, "for each of 2 layers"),
        (QWEN2, {"use_sliding_window": True, "layer_types": ["linear_attention"] * 2}, "for each of 2 layers"),
        (SMOLLM3, {"no_rope_layers": [1]}, "no_rope_layers must hold 0 or 1 for each of 2 layers"),
        (SMOLLM3, {"no_rope_layers": [1, {}]}, "no_rope_layers"),
    ],
)
def test_layers_that_are_not_served_are_refused_by_field(case, changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        record_of(case, **changes)


def rewritten(directory, change):
    """Change the tensors of a directory's single file."""
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    change(tensors)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.spec("MOD-50")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight is missing"),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(31, np.float32)}),
            r"model.norm.weight has the shape \[31\]",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}),
            "self_attn.q_proj.bias' is not part of the architecture llama as served here",
        ),
        (lambda t: t.update({"model.layers.2.input_layernorm.weight": np.zeros(32, np.float32)}), "layers.2.input"),
        (lambda t: t.update({"score.weight": np.zeros(3, np.float32)}), "'score.weight' is not part of"),
        (lambda t: t.update({"model.norm.weight": np.zeros(32, np.float64)}), "has the type F64"),
    ],
)
def test_missing_misshapen_and_unknown_tensors_are_refused_by_their_own_names(llama, change, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(rewritten(llama, change), threads=1)


def test_old_rotation_tables_and_a_second_tied_embedding_are_ignored(tmp_path):
    plain = load_model(write_kin(tmp_path / "a", CASES["llama"]), threads=1)
    changed = rewritten(
        write_kin(tmp_path / "b", CASES["llama"]),
        lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32)}),
    )
    logits = [run_whole(model, range(20)).logits for model in (plain.model, load_model(changed, threads=1).model)]
    assert np.array_equal(*logits)
    tied = write_kin(tmp_path / "c", CASES["llama"], tie_word_embeddings=True)
    assert not np.array_equal(run_whole(load_model(tied, threads=1).model, range(20)).logits, logits[0])


def test_every_byte_of_every_shard_is_in_the_numerics(tmp_path):
    first = load_model(write_kin(tmp_path / "a", MISTRAL), threads=1).model.spec.numerics
    other = write_kin(tmp_path / "b", MISTRAL)
    shard = other / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x11")
    assert load_model(other, threads=1).model.spec.numerics != first
    assert load_model(tmp_path / "a", threads=2).model.spec.numerics == first


@pytest.mark.spec("MOD-28")
@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({}, "weight_map must be an object of file names"),
        ({"weight_map": {"a": 3}}, "weight_map must be an object"),
        ({"weight_map": {"a": "../../etc/passwd.safetensors"}}, "a shard is a .safetensors file next to it"),
        ({"weight_map": {"a": "/etc/x.safetensors"}}, "a shard is"),
        ({"weight_map": {"a": "weights.bin"}}, "a shard is"),
        ({"weight_map": {"a": "missing.safetensors"}}, "cannot read missing.safetensors"),
        ({"weight_map": {str(i): f"{i}.safetensors" for i in range(1025)}}, "names 1025 files"),
        ("{", "cannot be read"),
    ],
)
def test_an_inconsistent_index_is_refused(tmp_path, index, reason):
    directory = write_kin(tmp_path, MISTRAL)
    put(directory, "model.safetensors.index.json", index)
    with pytest.raises(ModelRefused, match=reason):
        load_model(directory, threads=1)


@pytest.mark.spec("MOD-50")
def test_a_tensor_in_two_shards_is_refused(tmp_path):
    directory = write_kin(tmp_path, MISTRAL)
    shutil.copy(directory / "model-00001-of-00002.safetensors", directory / "third.safetensors")
    put(
        directory,
        "model.safetensors.index.json",
        {"weight_map": {"a": "third.safetensors", "b": "model-00001-of-00002.safetensors"}},
    )
    with pytest.raises(ModelRefused, match=r"is in both model-00001-of-00002\.safetensors and third\.safetensors"):
        load_model(directory, threads=1)


def test_a_cut_shard_is_refused(tmp_path):
    directory = write_kin(tmp_path, MISTRAL)
    shard = directory / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelRefused, match="truncated or its header is wrong"):
        load_model(directory, threads=1)


@pytest.mark.spec("MOD-28")
def test_weights_that_are_only_a_pickle_are_refused_and_not_opened(llama):
    (llama / "model.safetensors").unlink()
    (llama / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(ModelRefused, match=r"pytorch_model.bin is a pickle, which can run code"):
        load_model(llama, threads=1)


@pytest.mark.spec("MOD-31")
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "it has no tokenizer.json"),
        ({"tokenizer.model": "x"}, "tokenizer.model alone cannot be read"),
        ({"tokenizer.json": "{"}, "tokenizer.json cannot be read"),
        ({"tokenizer.json": "[" * 100_000}, "tokenizer.json cannot be read"),
        ({"tokenizer.json": "[]"}, "has no model"),
        ({"tokenizer.json": {"model": 3}}, "has no model"),
        ({"tokenizer.json": {"model": {"vocab": {"a": 320}}}}, "ids up to 320, the embedding only 320 rows"),
        ({"tokenizer.json": {"model": {}, "added_tokens": [{"id": 999, "content": "x"}]}}, "ids up to 999"),
        ({"tokenizer.json": TOKENIZER, "tokenizer_config.json": "3"}, "must hold a JSON object"),
        ({"tokenizer.json": TOKENIZER, "tokenizer_config.json": {"chat_template": {}}}, "must be a string"),
        ({"tokenizer.json": TOKENIZER, "chat_template.jinja": "x" * 2_000_000}, "larger than 1048576 bytes"),
        ({"tokenizer.json": TOKENIZER, "generation_config.json": {"eos_token_id": 320}}, "ids below 320"),
    ],
)
def test_missing_or_inconsistent_text_files_are_refused(llama, files, reason):
    (llama / "tokenizer.json").unlink()
    for name, document in files.items():
        put(llama, name, document)
    with pytest.raises(ModelRefused, match=reason):
        load_model(llama, threads=1)


def test_a_template_that_is_not_utf8_is_refused(llama):
    (llama / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelRefused, match=r"chat_template.jinja cannot be read"):
        load_model(llama, threads=1)


SOME = (
    st.none()
    | st.booleans()
    | st.integers(-2, 600)
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.lists(st.integers(0, 1) | st.sampled_from(["full_attention", "sliding_attention"]), max_size=3)
)
KIND = st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn"])
NUMBERS = st.sampled_from(
    [
        *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        *("attention_factor", "beta_fast", "mscale", "rope_theta"),
    ]
)
SCALING = st.builds(
    lambda kind, numbers: {"rope_type": kind, **numbers}, KIND, st.dictionaries(NUMBERS, SOME, max_size=4)
)


@pytest.mark.spec("MOD-25")
@given(
    case=st.sampled_from([LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3]),
    changes=st.dictionaries(
        st.sampled_from([*LLAMA.config, "sliding_window", "layer_types", "no_rope_layers"]), SOME, max_size=3
    ),
    scaling=st.none() | SCALING | SOME,
    switched=st.booleans(),
)
def test_any_config_is_a_shape_or_a_refusal_and_nothing_else(case, changes, scaling, switched):
    with contextlib.suppress(ModelRefused):
        decoder = record_of(case, **{**changes, "rope_scaling": scaling, "use_sliding_window": switched})
        for rope in decoder.ropes():
            assert len(rope.divisors) == rope.turned // 2
            assert np.isfinite(rope.divisors).all()
