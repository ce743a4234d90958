"""GGUF files of any sizes whose matrices are random blocks of the types that a test or a measurement needs.

The `gguf` package cannot make K-quants from numbers; blocks with random quants and sane scales have the same cost and the
same arithmetic. By hand, with the sizes and types of a real model (Q4_K_M as llama.cpp chooses them):

    python -m tests.kit.model.stored_gguf qwen2-0.5b Q4_K_M model.gguf
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.kit.model.llama_shape import LlamaShape, gguf_shapes
from tests.kit.model.native_models import F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q6_K, Q8_0
from tests.kit.model.tiny_models import tiny_shape
from tlserve.kernels.reference.blocks import values_per_block
from tlserve.model.decoder.native.probe import random_matrix

Kinds = Callable[[str, int], int]
"""Name of a tensor, its inputs -> GGML's type number."""


def write_stored_gguf(path: Path, shape: LlamaShape, kinds: Kinds, seed: int = 0) -> Path:
    """Write a model with tied embeddings and the byte tokenizer; return `path`. Vectors are float32."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_tokenizer_model("bytes")
    if shape.windows:
        writer.add_sliding_window(shape.windows[0])
    for name, size in gguf_shapes(shape).items():
        if len(size) == 1:
            writer.add_tensor(name, random.uniform(0.5, 1.5, size).astype(np.float32))
            continue
        matrix = random_matrix(random, kinds(name, size[1]), *size)
        writer.add_tensor(name, matrix.rows, raw_dtype=gguf.GGMLQuantizationType(matrix.kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def one_kind(kind: int, embedding: int | None = None) -> Kinds:
    """Return `kind` for every matrix, `embedding` for the embedding."""
    return lambda name, inputs: kind if embedding is None or name != "token_embd.weight" else embedding


def q4_k_m(layers: int) -> Kinds:
    """Return the types that llama.cpp chooses for Q4_K_M: more bits for some values and downs, others if rows do not fit."""

    def kind(name: str, inputs: int) -> int:
        index = int(name.split(".")[1]) if name.startswith("blk.") else 0
        eighth = layers // 8
        more = index < eighth or index >= 7 * eighth or (index - eighth) % 3 == 2
        wanted = Q6_K if name == "token_embd.weight" or (more and ("attn_v" in name or "ffn_down" in name)) else Q4_K
        return wanted if inputs % values_per_block(wanted) == 0 else {Q4_K: Q5_0, Q6_K: Q8_0}[wanted]

    return kind


SHAPES = {
    "qwen2-0.5b": tiny_shape(
        layers=24,
        context_tokens=4096,
        architecture="qwen2",
        hidden=896,
        intermediate=4864,
        heads=14,
        kv_heads=2,
        head_size=64,
        rotated=64,
        vocabulary=151936,
        rope_base=1e6,
        epsilon=1e-6,
        qkv_bias=True,
    ),
    "qwen3-0.6b": tiny_shape(
        layers=28,
        context_tokens=4096,
        architecture="qwen3",
        hidden=1024,
        intermediate=3072,
        heads=16,
        kv_heads=8,
        head_size=128,
        rotated=128,
        vocabulary=151936,
        rope_base=1e6,
        epsilon=1e-6,
        qk_norm=True,
    ),
}
FORMATS = {
    "Q4_K_M": q4_k_m,
    "Q4_0": lambda layers: one_kind(Q4_0, Q8_0),
    "Q4_1": lambda layers: one_kind(Q4_1, Q8_0),
    "Q8_0": lambda layers: one_kind(Q8_0),
    "F16": lambda layers: one_kind(F16),
    "F32": lambda layers: one_kind(F32),
}

if __name__ == "__main__":
    name, file_format, target = sys.argv[1:]
    write_stored_gguf(Path(target), SHAPES[name], FORMATS[file_format](SHAPES[name].layers))
