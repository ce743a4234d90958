"""A described checkpoint written as by llama.cpp's converter: the names of the gguf package, rows and norms as GGUF has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import gguf
import gguf.quants
import numpy as np

from tests.kit.model.described import DescribedCase
from tests.kit.model.described_experts import merged_experts
from tests.kit.model.kin_gguf import permuted

Metadata = dict[str, Any]


@attrs.frozen(kw_only=True)
class Conversion:
    """What the converter does for one `model_type`. `turned`: rows of queries and keys are permuted; `epsilon`: by default."""

    arch: gguf.MODEL_ARCH
    turned: bool = False
    epsilon: float = 1e-6
    layer_norm: bool = False
    plus_one: bool = False
    more: Callable[[Mapping[str, Any]], Metadata] = lambda config: {}
    factors: Callable[[Mapping[str, Any]], np.ndarray | None] = lambda config: None


def _granite(config: Mapping[str, Any]) -> Metadata:
    names = {
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {ours: float(config[theirs]) for theirs, ours in names.items()}


def _window(config: Mapping[str, Any]) -> Metadata:
    return {"attention.sliding_window": config["sliding_window"]} if config.get("sliding_window") else {}


def _local(config: Mapping[str, Any]) -> Metadata:
    if not config.get("sliding_window"):
        return {}
    pattern = [kind == "sliding_attention" for kind in config["layer_types"]]
    return _window(config) | {"attention.sliding_window_pattern": pattern}


def _caps(config: Mapping[str, Any]) -> Metadata:
    return _local(config) | {
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    }


def _olmo3(config: Mapping[str, Any]) -> Metadata:
    full = (config.get("rope_parameters") or {}).get("full_attention", {})
    if full.get("rope_type") != "yarn":
        return _local(config)
    scaling = {"factor": full["factor"], "original_context_length": full["original_max_position_embeddings"]}
    return _local(config) | {"rope.scaling.type": "yarn"} | {f"rope.scaling.{n}": v for n, v in scaling.items()}


def _gemma3(config: Mapping[str, Any]) -> Metadata:
    full = config["rope_parameters"]["full_attention"]
    return _local(config) | {
        "rope.freq_base": full["rope_theta"],
        "rope.scaling.type": "linear",
        "rope.scaling.factor": full["factor"],
    }


def _gemma4(config: Mapping[str, Any]) -> Metadata:
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    own = [config["per_layer_config"].get(str(layer), {}) for layer in range(len(local))]
    first_shared = len(local) - config["num_kv_shared_layers"]
    wide = 2 if config["use_double_wide_mlp"] else 1
    full, usual = _full_size(config), config["head_dim"]
    sizes: Metadata = {
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": usual,
        "attention.value_length_swa": usual,
        "rope.dimension_count": full,
        "rope.dimension_count_swa": usual,
        "attention.head_count_kv": [o.get("num_key_value_heads", config["num_key_value_heads"]) for o in own],
        "feed_forward_length": [
            config["intermediate_size"] * (1 if layer < first_shared else wide) for layer in range(len(local))
        ],
    }
    experts = {
        "expert_count": config["num_experts"],
        "expert_used_count": config["top_k_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }
    return (
        _local(config)
        | sizes
        | {name: value for name, value in experts.items() if value is not None}
        | {
            "attention.shared_kv_layers": config["num_kv_shared_layers"],
            "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
            "final_logit_softcapping": config["final_logit_softcapping"],
            "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
            "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        }
    )


def _full_size(config: Mapping[str, Any]) -> int:
    return max(own["head_dim"] for own in config["per_layer_config"].values())


def _proportional(config: Mapping[str, Any]) -> np.ndarray:
    """Return the divisors by which the converter says that the last pairs of a head do not turn."""
    pairs = _full_size(config) // 2
    turned = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return np.array([1.0] * turned + [1e30] * (pairs - turned), np.float32)


def _logit_scale(config: Mapping[str, Any]) -> Metadata:
    return _local(config) | {"logit_scale": config["logit_scale"]}


def _experts(*names: str) -> Callable[[Mapping[str, Any]], Metadata]:
    """Return a reader of what has the same name in most configs of mixtures; `names` come before the usual ones."""
    fields = {
        "expert_count": (*names, "num_experts", "num_local_experts", "n_routed_experts"),
        "expert_used_count": ("num_experts_per_tok", "moe_k", "moe_topk"),
        "expert_feed_forward_length": ("moe_intermediate_size",),
        "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
        "expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
        "leading_dense_block_count": ("first_k_dense_replace", "moe_layer_start_index"),
        "expert_group_count": ("n_group",),
        "expert_group_used_count": ("topk_group",),
        "expert_weights_scale": ("routed_scaling_factor",),
    }

    def read(config: Mapping[str, Any]) -> Metadata:
        given = {ours: next((config[n] for n in theirs if n in config), None) for ours, theirs in fields.items()}
        return {name: value for name, value in given.items() if value is not None}

    return read


def _granite_moe(config: Mapping[str, Any]) -> Metadata:
    return _granite(config) | _experts()(config)


def _gpt_oss(config: Mapping[str, Any]) -> Metadata:
    rope = config["rope_parameters"]
    return _experts()(config) | {
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }


def _ernie_moe(config: Mapping[str, Any]) -> Metadata:
    return _experts("moe_num_experts")(config) | {"interleave_moe_layer_step": config["moe_layer_interval"]}


def _glm4_moe(config: Mapping[str, Any]) -> Metadata:
    return _experts()(config) | {"expert_gating_func": 2, "expert_weights_norm": config["norm_topk_prob"]}


ARCH = gguf.MODEL_ARCH
CONVERSIONS = {
    "granite": Conversion(arch=ARCH.GRANITE, turned=True, more=_granite),
    "seed_oss": Conversion(arch=ARCH.SEED_OSS),
    "arcee": Conversion(arch=ARCH.ARCEE, turned=True, epsilon=1e-5),
    "ernie4_5": Conversion(arch=ARCH.ERNIE4_5, epsilon=1e-5),
    "hunyuan_v1_dense": Conversion(arch=ARCH.HUNYUAN_DENSE, epsilon=1e-5),
    "gemma": Conversion(arch=ARCH.GEMMA, plus_one=True),
    "gemma2": Conversion(arch=ARCH.GEMMA2, plus_one=True, more=_caps),
    "gemma3_text": Conversion(arch=ARCH.GEMMA3, plus_one=True, more=_gemma3),
    "gemma4_text": Conversion(arch=ARCH.GEMMA4, more=_gemma4, factors=_proportional),
    "phi": Conversion(arch=ARCH.PHI2, epsilon=1e-5, layer_norm=True),
    "phi3": Conversion(arch=ARCH.PHI3, epsilon=1e-5, more=_window),
    "olmo2": Conversion(arch=ARCH.OLMO2, epsilon=1e-5),
    "olmo3": Conversion(arch=ARCH.OLMO2, epsilon=1e-5, more=_olmo3),
    "cohere": Conversion(arch=ARCH.COMMAND_R, epsilon=1e-5, layer_norm=True, more=_logit_scale),
    "cohere2": Conversion(arch=ARCH.COHERE2, epsilon=1e-5, layer_norm=True, more=_logit_scale),
    "exaone4": Conversion(arch=ARCH.EXAONE4, epsilon=1e-5, more=_local),
    "glm4": Conversion(arch=ARCH.GLM4, epsilon=1.5625e-07),
    "stablelm": Conversion(arch=ARCH.STABLELM, epsilon=1e-5, layer_norm=True),
    "starcoder2": Conversion(arch=ARCH.STARCODER2, epsilon=1e-5, layer_norm=True, more=_window),
    "nemotron": Conversion(arch=ARCH.NEMOTRON, epsilon=1e-5, layer_norm=True, plus_one=True),
    "qwen2_moe": Conversion(arch=ARCH.QWEN2MOE, more=_experts()),
    "qwen3_moe": Conversion(arch=ARCH.QWEN3MOE, more=_experts()),
    "mixtral": Conversion(arch=ARCH.LLAMA, turned=True, more=lambda c: _experts()(c) | _window(c)),
    "olmoe": Conversion(arch=ARCH.OLMOE, more=_experts()),
    "granitemoe": Conversion(arch=ARCH.GRANITE_MOE, turned=True, more=_granite_moe),
    "gpt_oss": Conversion(arch=ARCH.GPT_OSS, more=_gpt_oss),
    "ernie4_5_moe": Conversion(arch=ARCH.ERNIE4_5_MOE, more=_ernie_moe),
    "hunyuan_v1_moe": Conversion(arch=ARCH.HUNYUAN_MOE, more=_experts()),
    "glm4_moe": Conversion(arch=ARCH.GLM4_MOE, more=_glm4_moe),
}


def write_described_gguf(
    path: Path, case: DescribedCase, experts: gguf.GGMLQuantizationType | None = None, **changes: Any
) -> Path:
    """Write `case`; `changes` (dots written as two underscores) are metadata below the architecture's name.

    `experts`: the type of their matrices, where it is not float32.
    """
    config, conversion = case.config, CONVERSIONS[case.config["model_type"]]
    architecture = gguf.MODEL_ARCH_NAMES[conversion.arch]
    writer = gguf.GGUFWriter(path, architecture)
    values = _sizes(config, conversion) | conversion.more(config)
    for name, value in (values | {n.replace("__", "."): v for n, v in changes.items()}).items():
        _add(writer, f"{architecture}.{name}", value)
    writer.add_tokenizer_model("bytes")
    names = gguf.get_tensor_name_map(conversion.arch, config["num_hidden_layers"])
    for name, tensor in merged_experts(case.tensors()).items():
        stem, _, kind = name.rpartition(".")
        ours = names.get_name(stem)
        assert ours is not None, stem
        stored = _as_stored(name, tensor, _head_size(config), conversion)
        if experts is not None and tensor.ndim == 3:
            writer.add_tensor(f"{ours}.{kind}", gguf.quants.quantize(stored, experts), raw_dtype=experts)
        else:
            writer.add_tensor(f"{ours}.{kind}", stored)
    if (factors := conversion.factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _head_size(config: Mapping[str, Any]) -> int:
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def _sizes(config: Mapping[str, Any], conversion: Conversion) -> Metadata:
    rope = config.get("rope_parameters") or {}
    head_size = _head_size(config)
    epsilon = "layer_norm_epsilon" if conversion.layer_norm else "layer_norm_rms_epsilon"
    given = next((config[name] for name in ("rms_norm_eps", "layer_norm_eps", "norm_eps") if name in config), None)
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "rope.dimension_count": int(head_size * rope.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": float(rope.get("rope_theta", rope.get("sliding_attention", {}).get("rope_theta", 10000.0))),
        f"attention.{epsilon}": given or conversion.epsilon,
    }


def _as_stored(name: str, tensor: np.ndarray, head_size: int, conversion: Conversion) -> np.ndarray:
    if conversion.turned and (".q_proj." in name or ".k_proj." in name):
        return permuted(tensor, head_size)
    if conversion.plus_one and "norm" in name and name.endswith("weight"):
        return tensor + np.float32(1)
    return tensor


def _add(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    if isinstance(value, list):
        return writer.add_array(name, value)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    return add[type(value)](name, value)
