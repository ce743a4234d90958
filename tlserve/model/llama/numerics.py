"""What decides the bits of a llama whose sums have a stated order: the same with native kernels and with numpy.

Owns the choice of activations and of the store's precision, the rotation tables, and the hash that names the numerics. Threads,
instruction sets and who computes are not in it: they change no bit.
"""

from __future__ import annotations

import hashlib

import attrs

from tlserve.kernels.interface import ModelSpec
from tlserve.kernels.reference.rope import RopeTables
from tlserve.model.llama.blas import rotation_tables
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.llama.tensors import LlamaTensors

ORDER_VERSION = "ordered-2"
"""Raise the number whenever some sum or rounding changes."""

KNOWN_FEATURES = frozenset({"qkv_bias", "output_bias", "qk_norm", "sliding_window", "unrotated_layers"})
"""What of `LlamaShape.features` the ordered arithmetic has."""


@attrs.frozen
class Numerics:
    """`activations`: "int8" (for quantised weights; others always take f32) or "f32"; `kv_precision`: "f16" or "f32"."""

    activations: str
    kv_precision: str


def ordered_tables(shape: LlamaShape, tensors: LlamaTensors) -> RopeTables:
    """Make the rotation tables of the whole context."""
    return rotation_tables(shape, tensors.rope_factors)


def ordered_spec(
    shape: LlamaShape, tensors: LlamaTensors, tables: RopeTables, numerics: Numerics, kernels: str
) -> ModelSpec:
    """Describe the model. The tables are part of the hash: they come from the machine's cosine."""
    decides = hashlib.blake2b(digest_size=8)
    for text in (tensors.identity, str(shape), numerics.activations, numerics.kv_precision, ORDER_VERSION):
        decides.update(text.encode() + b"\0")
    for table in (tables.cos, tables.sin):
        decides.update(table.tobytes())
    width = {"f16": 2, "f32": 4}[numerics.kv_precision]
    return ModelSpec(
        architecture=shape.architecture,
        vocabulary_size=shape.vocabulary,
        hidden_size=shape.hidden,
        context_tokens=shape.context_tokens,
        kv_bytes_per_token=2 * width * shape.layers * shape.kv_heads * shape.head_size,
        kernels=kernels,
        numerics=decides.hexdigest(),
    )
