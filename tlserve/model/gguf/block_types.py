"""GGML's types of stored numbers: the sizes of their blocks, and blocks as float32.

The `gguf` package turns most types into float32; Q1_0 and Q2_0 are ours. Knows nothing of files and tensors. Source:
ggml-common.h and ggml-quants.c of llama.cpp (dequantize_row_q1_0, dequantize_row_q2_0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import attrs
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

REMOVED: Mapping[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""The types that llama.cpp no longer reads."""


@attrs.frozen
class BlockType:
    """A type that can be read: `values` in a block of `size` bytes; `dequantized` makes (rows, bytes) into (rows, values)."""

    name: str
    values: int
    size: int
    dequantized: Callable[[U8], F32]


def _q1_0(rows: U8) -> F32:
    """Read blocks of a scale, then a bit for each of 128 weights: plus or minus the scale."""
    blocks = rows.reshape(len(rows), -1, 18)
    signs = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little").astype(np.float32) * 2 - 1
    return (signs * _scales(blocks)).reshape(len(rows), -1)


def _q2_0(rows: U8) -> F32:
    """Read blocks of a scale, then two bits for each of 64 weights: -1, 0, 1 or 2 times the scale."""
    blocks = rows.reshape(len(rows), -1, 18)
    fields = blocks[..., 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
    quants = fields.reshape(*blocks.shape[:2], 64).astype(np.float32) - np.float32(1)
    return (quants * _scales(blocks)).reshape(len(rows), -1)


def _scales(blocks: U8) -> F32:
    return np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)


_OWN: Mapping[int, BlockType] = {41: BlockType("Q1_0", 128, 18, _q1_0), 42: BlockType("Q2_0", 64, 18, _q2_0)}


@functools.cache
def block_type(kind: int) -> BlockType | None:
    """Return the type with GGML's number `kind`, None where it cannot be turned into float32."""
    if kind in _OWN:
        return _OWN[kind]
    try:
        known = GGMLQuantizationType(kind)
        values, size = GGML_QUANT_SIZES[known]
        dequantize(np.zeros((1, size), np.uint8), known)  # the package knows the sizes of more types than it can read
    except (ValueError, KeyError, NotImplementedError):
        return None
    return BlockType(known.name, values, size, lambda rows: np.asarray(dequantize(rows, known), np.float32))


def type_name(kind: int) -> str:
    """Return the name of a type that cannot be read, for a refusal."""
    if kind in REMOVED:
        return f"{REMOVED[kind]}, which llama.cpp no longer reads either: convert the model again"
    try:
        return f"{GGMLQuantizationType(kind).name}, which cannot be turned into float32"
    except ValueError:
        return f"the unknown type {kind}"
