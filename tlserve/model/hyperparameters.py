"""A llama's sizes and constants, from GGUF metadata; what is not served is refused by name.

Owns the keys `general.architecture` and `llama.*`. Refuses to know tensors.
Source: the GGUF specification, section "LLM"; `gguf.constants`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tlserve.errors import ModelRefused
from tlserve.model.llama import LlamaShape

MAX_CONTEXT_TOKENS = 1 << 20
MAX_ROPE_ANGLES = 1 << 26  # of the whole context: the tables take 8 bytes for each

Metadata = Mapping[str, object]


def llama_shape(metadata: Metadata, vocabulary: int, context_tokens: int = 0) -> LlamaShape:
    """Return the shape of the model that `metadata` describes; raises `ModelRefused`.

    `vocabulary`: rows of the embedding. `context_tokens` above 0 replaces the trained context, and must not exceed it.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelRefused(f"the architecture {architecture!r:.60} is not served; served from GGUF: llama")
    hidden = _integer(metadata, "llama.embedding_length", 1, 1 << 16)
    heads = _integer(metadata, "llama.attention.head_count", 1, 1024)
    kv_heads = _integer(metadata, "llama.attention.head_count_kv", 1, heads, default=heads)
    head_size = _integer(metadata, "llama.attention.key_length", 2, 1024, default=hidden // heads)
    _refuse_what_is_not_served(metadata, heads, kv_heads, head_size, vocabulary)
    rotated = _integer(metadata, "llama.rope.dimension_count", 2, head_size, default=head_size)
    if rotated % 2:
        raise ModelRefused(f"llama.rope.dimension_count must be even, not {rotated}")
    context = _context(metadata, context_tokens)
    if context * rotated // 2 > MAX_ROPE_ANGLES:
        raise ModelRefused(f"a context of {context} tokens needs too large rope tables; set a smaller context_tokens")
    return LlamaShape(
        layers=_integer(metadata, "llama.block_count", 1, 1024),
        hidden=hidden,
        intermediate=_integer(metadata, "llama.feed_forward_length", 1, 1 << 18),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        rotated=rotated,
        vocabulary=vocabulary,
        context_tokens=context,
        rope_base=_positive(metadata, "llama.rope.freq_base", 10000.0),
        rope_linear_factor=_linear_factor(metadata),
        epsilon=_positive(metadata, "llama.attention.layer_norm_rms_epsilon", None),
    )


def _refuse_what_is_not_served(metadata: Metadata, heads: int, kv_heads: int, head_size: int, vocabulary: int) -> None:
    """Refuse variants of the family whose answers would be wrong."""
    if heads % kv_heads:
        raise ModelRefused(f"{heads} query heads cannot share {kv_heads} key heads evenly")
    if _integer(metadata, "llama.attention.value_length", 1, 1024, default=head_size) != head_size:
        raise ModelRefused("values of another length than keys are not served")
    if metadata.get("llama.expert_count", 0) != 0:
        raise ModelRefused("mixtures of experts are not served")
    if metadata.get("llama.attention.sliding_window", 0) != 0:
        raise ModelRefused("sliding-window attention is not served")
    if _integer(metadata, "llama.vocab_size", 1, 1 << 30, default=vocabulary) != vocabulary:
        raise ModelRefused(f"llama.vocab_size differs from the embedding's {vocabulary} rows")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > vocabulary:
        raise ModelRefused(f"the tokenizer has {len(tokens)} tokens, the embedding only {vocabulary} rows")


def _context(metadata: Metadata, context_tokens: int) -> int:
    """Return the context: the wanted one, or what the model was trained for."""
    trained = _integer(metadata, "llama.context_length", 1, MAX_CONTEXT_TOKENS)
    if context_tokens > trained:
        raise ModelRefused(f"context_tokens {context_tokens} is more than the model's {trained}")
    return context_tokens or trained


def _linear_factor(metadata: Metadata) -> float:
    """Return by what positions are divided: 1, or the factor of linear scaling; other kinds of scaling are refused."""
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ModelRefused(f"rope scaling of the type {kind!r:.40} is not served; served: none, linear")
    if kind == "linear":
        return _positive(metadata, "llama.rope.scaling.factor", None)
    return _positive(metadata, "llama.rope.scale_linear", 1.0)


def _integer(metadata: Metadata, key: str, low: int, high: int, default: int | None = None) -> int:
    """Return the whole number under `key`, between `low` and `high`."""
    value = metadata.get(key, default)
    if isinstance(value, list):
        raise ModelRefused(f"{key} differs from layer to layer, which is not served")
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ModelRefused(f"{key} must be a whole number between {low} and {high}, not {value!r:.40}")
    return value


def _positive(metadata: Metadata, key: str, default: float | None) -> float:
    """Return the number above 0 under `key`."""
    value = metadata.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelRefused(f"{key} must be a number above 0, not {value!r:.40}")
    return float(value)
