"""GGML's types of stored numbers: the sizes of their blocks, and blocks as float32.

The `gguf` package turns most types into float32; the floats, Q1_0 and Q2_0 are ours. The native kernels read the usual types as
they are stored, so the package, which takes 0.05 s to import, is imported only where it must turn blocks into float32. Knows
nothing of files and tensors. Source: ggml-common.h and ggml-quants.c of llama.cpp (dequantize_row_q1_0, dequantize_row_q2_0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import attrs
import numpy as np
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


def _f32(rows: U8) -> F32:
    return rows.view(np.float32)


def _f16(rows: U8) -> F32:
    return rows.view(np.float16).astype(np.float32)


def _bf16(rows: U8) -> F32:
    return (rows.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


_OWN: Mapping[int, BlockType] = {
    0: BlockType("F32", 1, 4, _f32),
    1: BlockType("F16", 1, 2, _f16),
    30: BlockType("BF16", 1, 2, _bf16),
    41: BlockType("Q1_0", 128, 18, _q1_0),
    42: BlockType("Q2_0", 64, 18, _q2_0),
}

_USUAL: Mapping[int, tuple[str, int, int]] = {
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
}
"""Types that every version of the package reads: name, values and bytes of a block."""


@functools.cache
def block_type(kind: int) -> BlockType | None:
    """Return the type with GGML's number `kind`, None where it cannot be turned into float32."""
    if kind in _OWN:
        return _OWN[kind]
    if kind in _USUAL:
        return BlockType(*_USUAL[kind], functools.partial(_by_package, kind=kind))
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
        values, size = GGML_QUANT_SIZES[known]
        _by_package(np.zeros((1, size), np.uint8), kind)  # it knows the sizes of more types than it can read
    except (ValueError, KeyError, NotImplementedError):
        return None
    return BlockType(known.name, values, size, functools.partial(_by_package, kind=kind))


def _by_package(rows: U8, kind: int) -> F32:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    return np.asarray(dequantize(rows, GGMLQuantizationType(kind)), np.float32)


def type_name(kind: int) -> str:
    """Return the name of a type that cannot be read, for a refusal."""
    if kind in REMOVED:
        return f"{REMOVED[kind]}, which llama.cpp no longer reads either: convert the model again"
    from gguf import GGMLQuantizationType

    try:
        return f"{GGMLQuantizationType(kind).name}, which cannot be turned into float32"
    except ValueError:
        return f"the unknown type {kind}"
