"""What decides the bits of a llama: the same for the native kernels and for the reference.

Owns the choice of activations and of the store's precision, the rotation tables, and the hash that names the numerics. Threads,
instruction sets and the kernels are not part of the hash: they change no bit.
"""

from __future__ import annotations

import hashlib

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import ModelSpec
from tlserve.kernels.reference.rope import RopeTables, rope_tables
from tlserve.model.llama.shape import LlamaShape

ORDER_VERSION = "ordered-3"
"""Raise the number whenever some sum or rounding changes."""


@attrs.frozen
class Numerics:
    """`activations`: "int12" or "int8" (for quantised weights; others always take f32), or "f32".

    `kv_precision`: "f16" or "f32".
    """

    activations: str
    kv_precision: str


def rotation_tables(shape: LlamaShape, rope_factors: NDArray[np.float64]) -> RopeTables:
    """Make the rotation tables of the whole context. rope_factors: (rotated / 2,), what each frequency is divided by."""
    factors, scaling = rope_factors, shape.rope_scaling
    if scaling is not None:
        factors = factors * scaling.frequency_factors(shape.rope_base, shape.rotated, shape.context_tokens)
    return rope_tables(
        shape.context_tokens,
        shape.rotated,
        shape.rope_base,
        linear_factor=shape.rope_linear_factor,
        frequency_factors=factors,
        amplitude=1.0 if scaling is None else scaling.amplitude,
    )


def llama_spec(shape: LlamaShape, identity: str, tables: RopeTables, numerics: Numerics, kernels: str) -> ModelSpec:
    """Describe the model. The tables are part of the hash, because they come from the machine's cosine."""
    decides = hashlib.blake2b(digest_size=8)
    for text in (identity, str(shape), numerics.activations, numerics.kv_precision, ORDER_VERSION):
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
