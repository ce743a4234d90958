"""Every described architecture, compared with transformers on the same random checkpoint, and each of its mechanisms alive.

A mechanism that does not act is not tested: switched off, it must change the log-probabilities.
"""

import attrs
import gguf
import numpy as np
import pytest
import safetensors.numpy

from docs.make.models_page import IN_NUMPY as NUMPY_ONLY
from tests.kit.engine.real_runs import Models, play
from tests.kit.engine.schedules import random_schedule, same_bits
from tests.kit.engine.step_batches import run_whole
from tests.kit.model.described import EXACT as IN_NUMPY
from tests.kit.model.described import FOLDER, described_cases, load_described, record_and_weights, write_described
from tests.kit.model.described_experts import merged_experts
from tests.kit.model.described_gguf import CONVERSIONS, write_described_gguf
from tests.kit.model.naive_llama import log_softmax
from tests.kit.model.native_models import COMPILED
from tlserve.errors import ModelRefused
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.reference import elementwise
from tlserve.model.architectures.registry import ARCHITECTURES, HF
from tlserve.model.decoder.native.form import missing_mechanism
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.record import Activation, Attention, Experts, Layer, LayerInput, Score
from tlserve.model.decoder.reference import ReferenceModel
from tlserve.model.hugging_face.facts import hf_decoder
from tlserve.model.load import load_model

CASES = described_cases()
BOUND = 1e-4  # of a log-probability; transformers adds in another order
ALIVE = 0.01
F32 = Numerics("f32", "f32")
IN_KIN = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}  # see test_kin.py


def context_of(name):
    return 256 if "short" in name else 0  # within the original context of the case


@pytest.mark.spec("MOD-56")
@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_of_every_architecture_are_those_of_transformers(tmp_path, name):
    case = CASES[name]
    logits = run_whole(load_described(tmp_path, case, context_of(name)), case.ids).logits
    assert np.abs(log_softmax(logits)[case.rows] - case.logprobs).max() < BOUND


def test_every_architecture_of_the_table_has_a_case():
    compared = {case.config["model_type"] for case in CASES.values()}
    assert compared | IN_KIN == set(HF)
    assert all(architecture.models for architecture in ARCHITECTURES)


NOT_IN_GGUF = ("longrope", "undivided", "dense first", "rounded")  # it has no key for them
AS_GGUF = [
    name
    for name, case in CASES.items()
    if case.config["model_type"] in CONVERSIONS and not any(variant in name for variant in NOT_IN_GGUF)
]
OTHER_SCALE = {"gemma2", "gemma3_text"}  # GGUF has no scale of scores: it is head_size**-0.5 in models of these sizes


@pytest.mark.spec("MOD-20", "MOD-56")
@pytest.mark.parametrize("name", AS_GGUF)
def test_the_same_checkpoint_as_gguf_gives_the_same(tmp_path, name):
    case = CASES[name]
    path = write_described_gguf(tmp_path / "described.gguf", case)
    ours = log_softmax(run_whole(load_model(path, threads=1, kernels=IN_NUMPY).model, case.ids).logits)
    if name in OTHER_SCALE:
        usual = load_described(tmp_path / "hf", case, query_pre_attn_scalar=case.config["head_dim"])
        assert np.abs(ours - log_softmax(run_whole(usual, case.ids).logits)).max() < BOUND
    else:
        assert np.abs(ours[case.rows] - case.logprobs).max() < BOUND


LLAMA_CPP = np.load(FOLDER / "llama_cpp.npz")
ROUNDED = {"gpt_oss": "gpt_oss, rounded yarn"}  # llama.cpp always rounds the range of yarn


@pytest.mark.spec("MOD-20", "MOD-56")
@pytest.mark.parametrize("name", [name for name in LLAMA_CPP if not name.startswith("gemma4")])
def test_mixtures_give_what_llama_cpp_computes_for_the_files_of_its_converter(tmp_path, name):
    case = CASES[ROUNDED.get(name, name)]
    if name in ROUNDED:
        ours = log_softmax(run_whole(load_described(tmp_path, case), case.ids).logits)
    else:
        path = write_described_gguf(tmp_path / "described.gguf", case)
        ours = log_softmax(run_whole(load_model(path, threads=1, kernels=IN_NUMPY).model, case.ids).logits)
    assert np.abs(ours[case.rows] - LLAMA_CPP[name]).max() < BOUND


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("gemma2", {"attention__sliding_window_pattern": [True]}, "must be true or false for each of 2 layers"),
        (
            "gemma4_text",
            {"attention__head_count_kv": [2, 2]},
            "must be whole numbers between 1 and 4 for each of 4 layers",
        ),
        ("gemma4_text", {"attention__value_length_swa": 8}, "must be attention.key_length_swa"),
        ("gemma3_text", {"feed_forward_length": [112, 96]}, "differs from layer to layer, which is not served"),
        ("granite", {"attention__sliding_window": 7, "residual_scale": 0.0}, "residual_scale must be a number above 0"),
        ("seed_oss", {"attention__sliding_window_pattern": 2}, "served: one window for all layers"),
    ],
)
def test_metadata_that_a_description_does_not_serve_are_refused_by_key(tmp_path, name, changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(write_described_gguf(tmp_path / "described.gguf", CASES[name], **changes), threads=1)


def test_the_reference_page_says_which_architectures_run_natively():
    first = {case.config["model_type"]: case for case in reversed(CASES.values())}
    assert {name for name, case in first.items() if missing_mechanism(hf_decoder(case.config))} == NUMPY_ONLY


# --- each mechanism switched off -----------------------------------------------------------------------------------------


def with_mixers(decoder, change):
    """Return `decoder` with `change` applied to every mixer."""
    return attrs.evolve(
        decoder,
        layers=tuple(
            Layer(blocks=tuple(attrs.evolve(b, mixers=tuple(change(m) for m in b.mixers)) for b in layer.blocks))
            for layer in decoder.layers
        ),
    )


def with_experts(**changes):
    """Return a switch that changes the routers of a decoder, or with `mixer` fields of its experts."""
    whole = changes.pop("mixer", {})

    def change(mixer):
        if not isinstance(mixer, Experts) or (mixer.norms is not None and "divided" in changes):
            return mixer  # a norm of the sum takes the divisor away
        return attrs.evolve(mixer, router=attrs.evolve(mixer.router, **changes), **whole)

    return lambda decoder: with_mixers(decoder, change)


def with_blocks(decoder, **changes):
    """Return `decoder` with the fields `changes` in every block."""
    return attrs.evolve(
        decoder,
        layers=tuple(Layer(blocks=tuple(attrs.evolve(b, **changes) for b in layer.blocks)) for layer in decoder.layers),
    )


def attention_without(**off):
    def change(mixer):
        return attrs.evolve(mixer, **off) if isinstance(mixer, Attention) else mixer

    return lambda decoder: with_mixers(decoder, change)


def without_layer_inputs(decoder):
    """Take away the blocks with the inputs of layers."""
    layers = [
        Layer(blocks=tuple(b for b in layer.blocks if not isinstance(b.mixers[0], LayerInput)))
        for layer in decoder.layers
    ]
    return attrs.evolve(decoder, layers=tuple(layers), layer_inputs=None)


def other_activation(mixer):
    if isinstance(mixer, Attention):
        return mixer
    if isinstance(mixer, Experts):
        return attrs.evolve(mixer, expert=other_activation(mixer.expert))
    other = Activation.SILU if mixer.activation is not Activation.SILU else Activation.RELU2
    return attrs.evolve(mixer, activation=other)


def unscaled(mixer):
    return attrs.evolve(mixer, scale=mixer.head_size**-0.5) if isinstance(mixer, Attention) else mixer


def turned_as_usual(mixer):
    """Take away the scaling of a rotation."""
    if not isinstance(mixer, Attention) or mixer.rope is None:
        return mixer
    plain = attrs.evolve(mixer.rope, divisors=(1.0,) * len(mixer.rope.divisors), linear_factor=1.0, amplitude=1.0)
    return attrs.evolve(mixer, rope=plain)


def one_rope(decoder):
    """Give every layer that turns the rope of the first one."""

    def change(mixer):
        return attrs.evolve(mixer, rope=decoder.ropes()[0]) if isinstance(mixer, Attention) and mixer.rope else mixer

    return with_mixers(decoder, change)


SWITCHES = {
    "scaled embeddings": lambda d: attrs.evolve(d, embed_scale=1.0),
    "scaled logits": lambda d: attrs.evolve(d, logit_scale=1.0),
    "capped logits": lambda d: attrs.evolve(d, logit_cap=0.0),
    "norms before parts": lambda d: with_blocks(d, pre=None),
    "norms after parts": lambda d: with_blocks(d, post=None),
    "scaled parts": lambda d: with_blocks(d, scale=1.0),
    "the scale of scores": lambda d: with_mixers(d, unscaled),
    "capped scores": attention_without(cap=0.0),
    "windows": attention_without(window=0),
    "rotation": attention_without(rope=None),
    "the scaling of the rotation": lambda d: with_mixers(d, turned_as_usual),
    "two rotations": one_rope,
    "temperature": attention_without(temperature=None),
    "norms of queries": attention_without(q_norm=None),
    "norms of keys": attention_without(k_norm=None),
    "norms after the rotation": attention_without(norm_after_rope=False),
    "activation": lambda d: with_mixers(d, other_activation),
    "norms of values": attention_without(v_norm=None),
    "inputs of layers": without_layer_inputs,
    "scaled layers": lambda d: with_blocks(d, out_scaled=False),
    "sinks": attention_without(sinks=False),
    "the number of chosen experts": with_experts(chosen=1),
    "scores by softmax": with_experts(score=Score.SIGMOID),
    "scores by sigmoid": with_experts(score=Score.SOFTMAX),
    "weights that are divided by their sum": with_experts(divided=False),
    "weights that are not": with_experts(divided=True),
    "scaled weights": with_experts(scale=1.0),
    "scales of experts": with_experts(own_scales=False),
    "norms of a mixture": with_experts(mixer={"norms": None}),
    "groups of experts": with_experts(groups=1, kept_groups=1),
    "a shared expert": with_experts(mixer={"shared": None, "shared_gate": False}),
    "the gate of a shared expert": with_experts(mixer={"shared_gate": False}),
}


@pytest.mark.spec("MOD-56")
@pytest.mark.parametrize("name", CASES)
def test_every_mechanism_of_an_architecture_is_alive(tmp_path, name):
    case = CASES[name]
    decoder, weights = record_and_weights(tmp_path, case, context_of(name))
    alive = []
    for mechanism, switch in SWITCHES.items():
        without = switch(decoder)
        if without != decoder:
            logits = run_whole(ReferenceModel(without, weights, F32), case.ids).logits
            change = np.abs(log_softmax(logits)[case.rows] - case.logprobs).max()
            assert change > ALIVE, (mechanism, change)
            alive.append(mechanism)
    for ending in {slot.split(".", 1)[-1] for slot in weights.vectors if slot.endswith((".bias", ".choice"))}:
        if "experts" in ending:
            ending = ending.rpartition("experts.")[2].partition(".")[2]
        kept = {slot: vector for slot, vector in weights.vectors.items() if not slot.endswith(ending)}
        model = ReferenceModel(decoder, attrs.evolve(weights, vectors=kept), F32)
        assert np.abs(log_softmax(run_whole(model, case.ids).logits)[case.rows] - case.logprobs).max() > ALIVE, ending
    assert {"rotation", "activation"} <= set(alive)


@pytest.mark.spec("MOD-56")
def test_the_clamp_of_an_activation_is_alive(tmp_path, monkeypatch):
    case = CASES["gpt_oss"]
    monkeypatch.setattr(elementwise, "SWIGLU_LIMIT", np.float32(1e9))
    logits = run_whole(load_described(tmp_path, case), case.ids).logits
    assert np.abs(log_softmax(logits)[case.rows] - case.logprobs).max() > ALIVE


@pytest.mark.spec("MOD-56")
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe", "mixtral"])
def test_experts_of_a_checkpoint_in_one_tensor_are_the_same_model(tmp_path, name):
    case = CASES[name]
    tensors = merged_experts(case.tensors())
    tensors = {n.replace("e_score_correction.bias", "e_score_correction_bias"): t for n, t in tensors.items()}
    for gate in [name for name in tensors if name.endswith(".experts.gate_proj.weight")]:
        prefix = gate.removesuffix("gate_proj.weight")
        both = np.concatenate([tensors.pop(gate), tensors.pop(f"{prefix}up_proj.weight")], axis=1)
        tensors |= {f"{prefix}gate_up_proj": both, f"{prefix}down_proj": tensors.pop(f"{prefix}down_proj.weight")}
    path = write_described(tmp_path, case)
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    logits = run_whole(load_model(path, threads=1, kernels=IN_NUMPY).model, case.ids).logits
    assert np.abs(log_softmax(logits)[case.rows] - case.logprobs).max() < BOUND


@pytest.mark.spec("MOD-50")
@pytest.mark.parametrize(
    ("name", "further"),
    [("glm4_moe", "model.layers.2.eh_proj.weight"), ("ernie4_5_moe", "model.mtp_emb_norm.0.weight")],
)
def test_tensors_for_drafts_are_not_needed_and_others_are_refused(tmp_path, name, further):
    case, one = CASES[name], np.ones((1, 1), np.float32)
    path = write_described(tmp_path, case)
    for extra in (further, "model.layers.1.eh_proj.weight"):
        safetensors.numpy.save_file({**case.tensors(), extra: one}, path / "model.safetensors")
        if extra == further:
            logits = run_whole(load_model(path, threads=1, kernels=IN_NUMPY).model, case.ids).logits
            assert np.abs(log_softmax(logits)[case.rows] - case.logprobs).max() < BOUND
        else:
            with pytest.raises(ModelRefused, match="is not part of the architecture"):
                load_model(path, threads=1)


@pytest.mark.spec("KER-18", "KER-41")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16", "BF16"])
def test_stacked_experts_in_every_type_are_near_the_model_with_the_bits_of_numpy(tmp_path, kind):
    case = CASES["gpt_oss"]
    path = write_described_gguf(tmp_path / "described.gguf", case, experts=gguf.GGMLQuantizationType[kind])
    native, numpy = (
        run_whole(load_model(path, threads=2, kernels=KernelChoice(kernels=kernels)).model, case.ids).logits
        for kernels in (COMPILED, "reference")
    )
    assert same_bits(native, numpy)
    exact = run_whole(load_described(tmp_path / "exact", case), case.ids).logits
    assert np.corrcoef(native.ravel(), exact.ravel())[0, 1] > (0.99 if "8" in kind or "F16" in kind else 0.8)


# --- exactness -------------------------------------------------------------------------------------------------------------

EXACT = [
    "gemma4_text",
    "gemma4_text, mixture",
    "glm4_moe",
    "gpt_oss",
    "qwen2_moe",
    "gemma2",
    "gemma3_text",
    "ministral3",
    "hunyuan_v1_dense",
    "cohere, norms of heads",
    "phi",
    "olmo3, yarn",
]
"""At least one of each kind of block, norm, activation and attention."""


@pytest.mark.spec("ENG-1", "MOD-57")
@pytest.mark.parametrize("name", EXACT)
def test_a_sequence_has_its_bits_in_any_chunks_and_next_to_any_neighbours(tmp_path, name):
    model = load_described(tmp_path, CASES[name])
    random = np.random.default_rng(11)
    sequences = [random.integers(3, 96, n) for n in (1, 17, 40)]
    got = random_schedule(model, model.new_kv_store(30, 8), sequences, random, 8, 30, 9)
    for tokens, logits in zip(sequences, got, strict=True):
        assert same_bits(logits, run_whole(model, tokens).logits)


@pytest.mark.spec("ENG-1", "MOD-57")
@pytest.mark.parametrize("name", EXACT)
def test_requests_that_are_cached_preempted_and_drafted_keep_their_bits(tmp_path, name):
    model = load_described(tmp_path, CASES[name])
    play(Models((model,), model, tuple(range(3, 96))), seed=5)


# --- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("MOD-25")
@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("phi", {"qk_layernorm": True}, "qk_layernorm True is not served"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not served"),
        ("gemma", {"hidden_act": "relu"}, "hidden_act 'relu' is not served; served: gelu_pytorch_tanh"),
        ("gemma3_text", {"layer_types": ["full_attention"]}, "for each of 2 layers"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "'all' is not served; served: null or vision"),
        ("gemma4_text", {"attention_bias": True}, "attention_bias True is not served"),
        ("gemma4_text", {"rope_parameters": None}, "rope_parameters is missing"),
        ("gemma4_text", {"num_kv_shared_layers": 4}, "the last 4 layers cannot use the keys"),
        ("gemma4_text", {"layer_types": ["sliding_attention"] * 4}, "windows in some layers, and none in the last"),
        (
            "gemma4_text",
            {"per_layer_config": {"1": {"head_dim": 8, "rope": 1}}},
            "served: head_dim, num_key_value_heads",
        ),
        ("gemma4_text", {"per_layer_config": [1]}, "must be an object with an object for each layer"),
        ("gemma4_text", {"per_layer_config": {"3": {"head_dim": 8}}}, "cannot use the keys of another one"),
        ("gpt_oss", {"rope_parameters": None}, "rope_scaling is missing; needed: rope_scaling or rope_parameters"),
        ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit 5.0 is not served; served: 7"),
        ("gpt_oss", {"quantization_config": {"quant_method": "fp8"}}, "served: quant_method mxfp4"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window True is not served"),
        ("qwen3_moe", {"mlp_only_layers": "all"}, "mlp_only_layers must be a list of whole numbers"),
        ("qwen3_moe", {"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not served; served: null"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias True is not served"),
        ("hunyuan_v1_moe", {"moe_intermediate_size": 64}, "experts of width 64 beside a width of 48"),
        ("glm4_moe", {"topk_group": 9}, "8 experts cannot be in 4 groups of which 9 are kept"),
        ("granite", {"residual_multiplier": -1}, "residual_multiplier must be a number above 0"),
        ("glm4", {"partial_rotary_factor": 2.0, "rope_parameters": None}, "must be at most 1"),
        (
            "phi3, longrope, long",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "has 1 factors, but 8 pairs",
        ),
    ],
)
def test_a_value_that_a_description_does_not_serve_is_refused_by_field(name, changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        hf_decoder({**CASES[name].config, **changes})


def test_a_missing_part_of_a_shared_tensor_is_refused_by_its_shape(tmp_path):
    case = attrs.evolve(
        CASES["phi3"], shapes={**CASES["phi3"].shapes, "model.layers.0.mlp.gate_up_proj.weight": [112, 64]}
    )
    with pytest.raises(ModelRefused, match=r"gate_up_proj.weight has the shape \[112, 64\], not \[224, 64\]"):
        load_model(write_described(tmp_path, case), threads=1)
