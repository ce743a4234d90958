"""Sizes and constants of the Llama family, from GGUF metadata; a value that is not served is refused by name.

Reads the keys `general.architecture` and `<architecture>.*`. Reads no tensors; their names say whether a llama has biases,
which the metadata do not say. Source: the GGUF specification, section "LLM"; `gguf.constants`; llama.cpp for the meaning of
each architecture: where the halves of a head are rotated together, and which layers of smollm3 have no rotation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.fields import Fields
from tlserve.model.llama.rope_scaling import RopeScaling, YarnScaling, yarn_amplitude
from tlserve.model.llama.shape import LlamaShape

MAX_CONTEXT_TOKENS = 1 << 20
MAX_ROPE_ANGLES = 1 << 26  # of the whole context: the tables take 8 bytes for each

Metadata = Mapping[str, object]


@attrs.frozen(kw_only=True)
class GgufFamily:
    """What an architecture implies. `half_split`: query and key rows are stored half by half."""

    half_split: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    unrotated_every: int = 0
    may_have_window: bool = False


FAMILIES = {
    "llama": GgufFamily(may_have_window=True),
    "qwen2": GgufFamily(half_split=True, qkv_bias=True),
    "qwen3": GgufFamily(half_split=True, qk_norm=True),
    "smollm3": GgufFamily(unrotated_every=4),
}


def gguf_family(metadata: Metadata) -> GgufFamily:
    """Return the family of a file; raises `ModelRefused` for one that is not served."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ModelRefused(f"the architecture {architecture!r:.60} is not served; served from GGUF: {known}")
    return FAMILIES[architecture]


def llama_shape(
    metadata: Metadata, vocabulary: int, context_tokens: int = 0, tensors: Collection[str] = ()
) -> LlamaShape:
    """Return the shape of the model that `metadata` describes; raises `ModelRefused`.

    `vocabulary`: rows of the embedding. `context_tokens` above 0 replaces the trained context, and must not exceed it.
    `tensors`: the names of the file's tensors.
    """
    family = gguf_family(metadata)
    architecture = str(metadata["general.architecture"])
    fields = _fields_of(metadata, f"{architecture}.")
    hidden = fields.integer("embedding_length", 1, 1 << 16)
    heads = fields.integer("attention.head_count", 1, 1024)
    kv_heads = fields.integer("attention.head_count_kv", 1, heads, default=heads)
    head_size = fields.integer("attention.key_length", 2, 1024, default=hidden // heads)
    _refuse_what_is_not_served(fields, family, head_size, vocabulary)
    _refuse_tokens_without_rows(metadata, vocabulary)
    rotated = fields.integer("rope.dimension_count", 2, head_size, default=head_size)
    if family.half_split and rotated != head_size:
        raise fields.refusal("rope.dimension_count", f"must be the whole head of {head_size}, not {rotated}")
    layers = fields.integer("block_count", 1, 1024)
    window = fields.integer("attention.sliding_window", 0, 1 << 30, default=0)
    every = family.unrotated_every
    return checked_shape(
        LlamaShape(
            architecture=architecture,
            layers=layers,
            hidden=hidden,
            intermediate=fields.integer("feed_forward_length", 1, 1 << 18),
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            rotated=rotated,
            vocabulary=vocabulary,
            context_tokens=_context(fields, context_tokens),
            rope_base=fields.positive("rope.freq_base", 10000.0),
            rope_linear_factor=_linear_factor(fields),
            rope_scaling=_scaling(fields),
            epsilon=fields.positive("attention.layer_norm_rms_epsilon"),
            qkv_bias=family.qkv_bias or "blk.0.attn_q.bias" in tensors,
            output_bias="blk.0.attn_output.bias" in tensors,
            qk_norm=family.qk_norm,
            windows=(window,) * layers if window else (),
            unrotated_layers=tuple(range(every - 1, layers, every)) if every else (),
        )
    )


def _fields_of(metadata: Metadata, prefix: str) -> Fields:
    """Return the values whose keys begin with `prefix`, without it."""
    return Fields({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, prefix)


def checked_shape(shape: LlamaShape) -> LlamaShape:
    """Return `shape`; raises `ModelRefused` where its sizes do not fit each other."""
    if shape.heads % shape.kv_heads:
        raise ModelRefused(f"{shape.heads} query heads cannot share {shape.kv_heads} key heads evenly")
    if shape.rotated % 2:
        raise ModelRefused(f"the rotated part of a head (rope.dimension_count) must be even, not {shape.rotated}")
    if shape.rope_base <= 1:
        raise ModelRefused(
            f"the base of the rotation (rope.freq_base, rope_theta) must be above 1, not {shape.rope_base:g}"
        )
    if shape.context_tokens * shape.rotated // 2 > MAX_ROPE_ANGLES:
        raise ModelRefused(
            f"a context of {shape.context_tokens} tokens needs rope tables that are too large; set a smaller context_tokens"
        )
    return shape


def chosen_context(trained: int, requested: int, most: int) -> int:
    """Return the context to serve: `requested`, or `trained` where it is 0; refuses one past `most`."""
    if requested > most:
        raise ModelRefused(f"context_tokens {requested} is more than the model's {most}")
    return requested or trained


def _refuse_what_is_not_served(fields: Fields, family: GgufFamily, head_size: int, vocabulary: int) -> None:
    """Refuse variants of the family whose answers would be wrong."""
    if fields.integer("attention.value_length", 1, 1024, default=head_size) != head_size:
        raise ModelRefused("values whose length differs from that of keys are not served")
    if fields.get("expert_count") not in (None, 0):
        raise ModelRefused("mixtures of experts are not served")
    if fields.get("attention.sliding_window") not in (None, 0) and not family.may_have_window:
        raise fields.refusal("attention.sliding_window", "is not served for this architecture")
    fields.refuse_unless("attention.sliding_window_pattern", (), "one window for all layers")
    fields.refuse_unless("attention.causal", (True,), "attention to earlier tokens only")
    if fields.integer("vocab_size", 1, 1 << 30, default=vocabulary) != vocabulary:
        raise fields.refusal("vocab_size", f"differs from the embedding's {vocabulary} rows")


def _refuse_tokens_without_rows(metadata: Metadata, vocabulary: int) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > vocabulary:
        raise ModelRefused(f"the tokenizer has {len(tokens)} tokens, the embedding only {vocabulary} rows")


def _context(fields: Fields, requested: int) -> int:
    """Return the context: the requested one, or the trained one, which yarn may lengthen."""
    trained = fields.integer("context_length", 1, MAX_CONTEXT_TOKENS)
    if fields.get("rope.scaling.type") == "yarn" and fields.has("rope.scaling.original_context_length"):
        original = fields.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT_TOKENS)
        trained = max(trained, min(int(original * fields.positive("rope.scaling.factor")), MAX_CONTEXT_TOKENS))
    return chosen_context(trained, requested, trained)


def _linear_factor(fields: Fields) -> float:
    """Return the divisor of positions: 1, or the factor of linear scaling."""
    if fields.get("rope.scaling.type") == "linear":
        return fields.positive("rope.scaling.factor")
    return fields.positive("rope.scale_linear", 1.0)


def _scaling(fields: Fields) -> RopeScaling | None:
    """Return the scaling of frequencies; kinds that are not known are refused. Llama 3's is a tensor in GGUF."""
    fields.refuse_unless("rope.scaling.type", ("none", "linear", "yarn"), "none, linear, yarn")
    if fields.get("rope.scaling.type") != "yarn":
        return None
    fields.refuse_unless("rope.scaling.yarn_log_multiplier", (0.0,), "0")
    fields.refuse_unless("rope.scaling.yarn_ext_factor", (1.0, -1.0), "1")
    factor = fields.positive("rope.scaling.factor")
    context = fields.integer("context_length", 1, MAX_CONTEXT_TOKENS)
    attention = fields.positive("rope.scaling.attn_factor", 1.0) * fields.positive("rope.scaling.yarn_attn_factor", 1.0)
    return YarnScaling(
        factor=factor,
        original=fields.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT_TOKENS, default=context),
        beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        truncate=True,
        amplitude=attention * yarn_amplitude(factor),
    )
