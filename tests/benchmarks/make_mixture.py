"""Write a random Qwen3-MoE of 1.7 billion parameters, 0.3 of them active, as GGUF in f16: to measure speed, it knows nothing.

    python -m tests.benchmarks.make_mixture mixture-f16.gguf
    llama-quantize mixture-f16.gguf mixture-q4_k_m.gguf Q4_K_M

The tokenizer is one of bytes with unused tokens after them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 32_000, 1024, 16, 16, 4, 64
EXPERTS, CHOSEN, WIDTH = 64, 8, 512


def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of all tensors."""
    yield "token_embd", (VOCABULARY, HIDDEN)
    yield "output", (VOCABULARY, HIDDEN)
    yield "output_norm", (HIDDEN,)
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_SIZE, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_SIZE, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_SIZE, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_SIZE),
            "attn_q_norm": (HEAD_SIZE,),
            "attn_k_norm": (HEAD_SIZE,),
            "ffn_norm": (HIDDEN,),
            "ffn_gate_inp": (EXPERTS, HIDDEN),
            "ffn_gate_exps": (EXPERTS, WIDTH, HIDDEN),
            "ffn_up_exps": (EXPERTS, WIDTH, HIDDEN),
            "ffn_down_exps": (EXPERTS, HIDDEN, WIDTH),
        }
        yield from ((f"blk.{layer}.{name}", shape) for name, shape in parts.items())


def write_mixture(path: Path) -> None:
    """Write the file."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CHOSEN)
    writer.add_expert_feed_forward_length(WIDTH)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    random = np.random.default_rng(0)
    for name, shape in tensors():
        values = random.standard_normal(shape, np.float32)
        if "norm" in name:
            values = 1 + 0.1 * values
        else:
            values *= 1 / np.sqrt(shape[-1])
        wide = "norm" in name or "gate_inp" in name
        writer.add_tensor(f"{name}.weight", values.astype(np.float32 if wide else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_mixture(Path(sys.argv[1]))
