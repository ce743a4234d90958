"""Weights in super-blocks of 256, as GGUF's K-quants store them, unpacked into small integers and scales.

Has the formats Q3_K, Q4_K, Q5_K and Q6_K, by GGML's type numbers. A scale there is one number in half precision times a small
integer of 32 weights (Q4_K, Q5_K, with a minimum of the same form) or of 16 (Q3_K, Q6_K, signed). The product of unit and part
has at most 18 bits and is exact in float32. Where parts change every 16 weights they are multiplied into the quants:
whole numbers of at most 4096, so that a block of 32 keeps one scale. Source: ggml-quants.c of llama.cpp (dequantize_row_q3_K ..
dequantize_row_q6_K).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]

SUPER_VALUES, SUPER_BLOCKS = 256, 8


@attrs.frozen(eq=False)
class SuperParts:
    """The contents of super-blocks: weight = scale * quant + minimum. Leading axes (N, K / 256)."""

    quants: NDArray[np.uint8] | NDArray[np.int16]  # (..., 256)
    scales: F32  # (..., 8)
    minima: F32 | None  # (..., 8)


@attrs.frozen(eq=False)
class SuperFormat:
    """The layout of one super-block in the file, and the places of its numbers of half precision."""

    block_bytes: int
    unit_starts: tuple[int, ...]
    take_apart: Callable[[U8], SuperParts]


def _half(blocks: U8, start: int) -> F32:
    """Read the half-precision number at byte `start` of every super-block, (..., 1) float32."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16).astype(np.float32)


def _shifted(packed: U8, shifts: list[int], mask: int) -> U8:
    """Cut every byte into fields: (..., n) -> (..., len(shifts), n), field i from bit shifts[i] on."""
    fields: U8 = packed[..., None, :] >> np.array(shifts, np.uint8)[:, None] & np.uint8(mask)
    return fields


def _flat(fields: U8) -> U8:
    """Join the last axes, beginning with that of the super-block's parts. (N, B, ...) -> (N, B, 256)."""
    return np.ascontiguousarray(fields).reshape(*fields.shape[:2], -1)


def _with_bits(low: U8, high: U8, place: int) -> U8:
    """Return `low` with the bits `high` above it, from bit `place` on."""
    return low | high << np.uint8(place)


def _nibbles(packed: U8) -> U8:
    """Return the 256 nibbles of 128 bytes: for each 32 bytes the low ones, then the high ones."""
    return _flat(_shifted(packed.reshape(*packed.shape[:2], 4, 32), [0, 4], 15))


def _with_minima(blocks: U8, quants: U8) -> SuperParts:
    """Read units and 6-bit parts of scales and minima, which are in bytes 4 .. 15."""
    first, second, third = (blocks[..., start : start + 4] for start in (4, 8, 12))
    parts = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimum_parts = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return SuperParts(quants, _half(blocks, 0) * parts, -(_half(blocks, 2) * minimum_parts))


def _with_signed_parts(quants: U8, offset: int, parts: I8, unit: F32) -> SuperParts:
    """Multiply the parts (..., 16) of 16 weights each into the quants (..., 256)."""
    whole = (quants.astype(np.int16) - np.int16(offset)) * np.repeat(parts.astype(np.int16), 16, axis=-1)
    return SuperParts(whole, np.repeat(unit, SUPER_BLOCKS, axis=-1), None)


def _q3_k(blocks: U8) -> SuperParts:
    third_bits = _flat(_shifted(blocks[..., 0:32], list(range(8)), 1))
    low = _flat(_shifted(blocks[..., 32:96].reshape(*blocks.shape[:2], 2, 32), [0, 2, 4, 6], 3))
    part_low = _flat(_shifted(blocks[..., 96:104], [0, 4], 15))
    part_high = _flat(_shifted(blocks[..., 104:108], [0, 2, 4, 6], 3))
    parts = _with_bits(part_low, part_high, 4).astype(np.int8) - np.int8(32)
    return _with_signed_parts(_with_bits(low, third_bits, 2), 4, parts, _half(blocks, 108))


def _q4_k(blocks: U8) -> SuperParts:
    return _with_minima(blocks, _nibbles(blocks[..., 16:]))


def _q5_k(blocks: U8) -> SuperParts:
    fifth_bits = _flat(_shifted(blocks[..., 16:48], list(range(8)), 1))
    return _with_minima(blocks, _with_bits(_nibbles(blocks[..., 48:]), fifth_bits, 4))


def _q6_k(blocks: U8) -> SuperParts:
    low = _flat(_shifted(blocks[..., 0:128].reshape(*blocks.shape[:2], 2, 64), [0, 4], 15))
    high = _flat(_shifted(blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32), [0, 2, 4, 6], 3))
    parts = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return _with_signed_parts(_with_bits(low, high, 4), 32, parts, _half(blocks, 208))


SUPER_FORMATS = {
    11: SuperFormat(110, (108,), _q3_k),
    12: SuperFormat(144, (0, 2), _q4_k),
    13: SuperFormat(176, (0, 2), _q5_k),
    14: SuperFormat(210, (208,), _q6_k),
}
