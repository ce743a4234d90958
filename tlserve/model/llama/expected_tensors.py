"""The tensors that a llama must have: their names, as GGUF has them, and their shapes.

Knows nothing of how a tensor is stored. Source: GGUF's naming convention (`gguf.constants`, MODEL_ARCH.LLAMA).
"""

from __future__ import annotations

from tlserve.model.llama.shape import LlamaShape


def expected_shapes(shape: LlamaShape, *, tied: bool) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a llama of `shape` must have, and their shapes."""
    whole: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.vocabulary, shape.hidden),
        "output_norm.weight": (shape.hidden,),
    }
    if not tied:
        whole["output.weight"] = (shape.vocabulary, shape.hidden)
    layer = _layer_shapes(shape)
    return whole | {f"blk.{i}.{name}": value for i in range(shape.layers) for name, value in layer.items()}


def _layer_shapes(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer, without its number."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (shape.hidden,),
        "attn_q.weight": (queries, shape.hidden),
        "attn_k.weight": (keys, shape.hidden),
        "attn_v.weight": (keys, shape.hidden),
        "attn_output.weight": (shape.hidden, queries),
        "ffn_norm.weight": (shape.hidden,),
        "ffn_gate.weight": (shape.intermediate, shape.hidden),
        "ffn_up.weight": (shape.intermediate, shape.hidden),
        "ffn_down.weight": (shape.hidden, shape.intermediate),
    }
    if shape.qkv_bias:
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if shape.output_bias:
        layer["attn_output.bias"] = (shape.hidden,)
    if shape.qk_norm:
        layer |= {"attn_q_norm.weight": (shape.head_size,), "attn_k_norm.weight": (shape.head_size,)}
    return layer
