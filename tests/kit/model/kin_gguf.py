"""A golden checkpoint written as by llama.cpp's converter: GGUF's names, rows of queries and keys permuted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.kit.model.golden_kin import KIN, KinCase
from tlserve.model.hugging_face.safetensors_file import SafetensorsFile

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3"}
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)  # the union of the tensors of the family


def write_kin_gguf(path: Path, case: KinCase, **metadata: Any) -> Path:
    """Write `case`; `metadata` (dots written as two underscores) is written below the architecture's name, next to the sizes."""
    config, architecture = case.config, ARCHITECTURES[case.config["model_type"]]
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(metadata.pop("context_length", config["max_position_embeddings"]))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("bytes")
    for name, value in metadata.items():
        _add(writer, f"{architecture}.{name.replace('__', '.')}", value)
    converted = not architecture.startswith("qwen")
    for name, tensor in checkpoint(case).items():
        turning = converted and re.search(r"\.[qk]_proj\.", name)
        stem, _, kind = name.rpartition(".")
        writer.add_tensor(f"{NAMES.get_name(stem)}.{kind}", permuted(tensor, head_size) if turning else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def checkpoint(case: KinCase) -> dict[str, np.ndarray]:
    """Return the tensors of a case by their own names, float32."""
    tensors: dict[str, np.ndarray] = {}
    for path in sorted((KIN / case.weights).glob("*.safetensors")):
        with SafetensorsFile(path) as file:
            tensors |= {name: file.rows(name, 0, info.shape[0]) for name, info in file.tensors.items()}
    return tensors


def permuted(tensor: np.ndarray, head_size: int) -> np.ndarray:
    """Return rows of heads whose halves are stored apart in adjacent pairs."""
    heads = tensor.reshape(-1, 2, head_size // 2, *tensor.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(tensor.shape))


def _add(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    add[type(value)](name, value)
