"""An encoder's checkpoint written as by llama.cpp's converter: names of the gguf package, metadata of each architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np

from tests.kit.model.encoders import EncoderCase

Metadata = dict[str, Any]
_ARCHITECTURES = {
    "nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA_EMBEDDING,
}


def write_encoder_gguf(
    path: Path, case: EncoderCase, more: Mapping[str, np.ndarray] = MappingProxyType({}), **changes: Any
) -> Path:
    """Write a case and `more` tensors; `changes` (dots as two underscores) are metadata of the architecture."""
    config = case.config
    arch = _ARCHITECTURES.get(config["model_type"], gguf.MODEL_ARCH.BERT)
    if "JinaBertModel" in config["architectures"]:
        arch = gguf.MODEL_ARCH.JINA_BERT_V2
    architecture = gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (_metadata(config) | {n.replace("__", "."): v for n, v in changes.items()}).items():
        _add(writer, f"{architecture}.{name}", value)
    writer.add_tokenizer_model("bytes")
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, tensor in case.tensors().items():
        stem, _, kind = name.rpartition(".")
        ours = names.get_name(_stem(stem, config["model_type"]))
        if ours is not None and "pooler" not in stem:
            writer.add_tensor(f"{ours}.{kind}", _as_stored(name, tensor, config))
    for name, tensor in more.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: Mapping[str, Any]) -> Metadata:
    rms = config["model_type"] == "gemma3_text"
    epsilon = next(config[name] for name in ("layer_norm_eps", "norm_eps", "rms_norm_eps") if name in config)
    found: Metadata = {
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "feed_forward_length": config["intermediate_size"],
        "context_length": config["max_position_embeddings"] - _first_position(config),
        "attention.causal": False,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": epsilon,
    }
    if "id2label" in config:
        found["classifier.output_labels"] = list(config["id2label"].values())
    if "classifier_pooling" in config:
        found["classifier.pooling_type"] = {"mean": 1, "cls": 2}[config["classifier_pooling"]]
    return found | _rotation(config)


def _rotation(config: Mapping[str, Any]) -> Metadata:
    rope = config.get("rope_parameters") or {}
    if "layer_types" not in config:
        return {"rope.freq_base": rope["rope_theta"]} if rope else {}
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    found: Metadata = {
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "attention.sliding_window": config.get("local_attention") or config["sliding_window"],
    }
    if config["model_type"] == "modernbert":
        return found | {"hidden_activation": config["hidden_activation"], "rope.scaling.type": "none"}
    return found | {
        "attention.sliding_window_pattern": local,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
    }


def _first_position(config: Mapping[str, Any]) -> int:
    return 1 + config["pad_token_id"] if "roberta" in config["model_type"] else 0


def _stem(stem: str, model_type: str) -> str:
    for prefix in ("roberta.", "bert.", "nomic_bert.", "model."):
        stem = stem.removeprefix(prefix)
    if stem == "classifier":
        return "classifier.out_proj"
    return f"model.{stem}" if model_type == "gemma3_text" else stem


def _as_stored(name: str, tensor: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    if "position_embeddings" in name:
        return tensor[_first_position(config) :]
    return tensor + np.float32(1) if config["model_type"] == "gemma3_text" and "norm" in name else tensor


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    add: dict[type, Any] = {
        list: writer.add_array,
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    add[type(value)](name, value)
