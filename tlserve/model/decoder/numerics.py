"""What decides the bits of a decoder: the same for the native kernels and for the reference.

Owns the choice of activations and of the store's precision, the rotation tables, and the hash that names the numerics. Threads,
instruction sets and the kernels are not part of the hash: they change no bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import attrs
import numpy as np

from tlserve.kernels.interface import ModelSpec
from tlserve.kernels.reference.rope import RopeTables, rope_tables
from tlserve.model.decoder.record import Decoder, Rope

ORDER_VERSION = "ordered-3"
"""Raise the number whenever some sum or rounding changes."""


@attrs.frozen
class Numerics:
    """`activations`: "int12" or "int8" (for quantised weights; others always take f32), or "f32".

    `kv_precision`: "f16" or "f32".
    """

    activations: str
    kv_precision: str


def rotation_tables(decoder: Decoder) -> Mapping[Rope, RopeTables]:
    """Make the rotation tables of the whole context, one for each rope."""
    return {
        rope: rope_tables(
            decoder.context_tokens,
            rope.turned,
            rope.base,
            linear_factor=rope.linear_factor,
            frequency_factors=np.array(rope.divisors, np.float64),
            amplitude=rope.amplitude,
        )
        for rope in decoder.ropes()
    }


def decoder_spec(
    decoder: Decoder, identity: str, tables: Mapping[Rope, RopeTables], numerics: Numerics, kernels: str
) -> ModelSpec:
    """Describe the model. The tables are part of the hash, because they come from the machine's cosine."""
    decides = hashlib.blake2b(digest_size=8)
    for text in (identity, str(decoder), numerics.activations, numerics.kv_precision, ORDER_VERSION):
        decides.update(text.encode() + b"\0")
    for table in tables.values():
        decides.update(table.cos.tobytes() + table.sin.tobytes())
    width = {"f16": 2, "f32": 4}[numerics.kv_precision]
    return ModelSpec(
        architecture=decoder.architecture,
        vocabulary_size=decoder.vocabulary,
        hidden_size=decoder.hidden,
        context_tokens=decoder.context_tokens,
        kv_bytes_per_token=sum(2 * width * a.kv_heads * a.head_size for a in decoder.stored_attentions()),
        kernels=kernels,
        numerics=decides.hexdigest(),
    )
