"""Weights in blocks of 32, as GGUF stores them, unpacked into small integers and scales.

Has the formats Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, F16, BF16 and F32, by GGML's type numbers; `super_blocks` has the K-quants.
A quantised weight is scale * (quant - offset), or scale * quant + minimum. Source: ggml-common.h of llama.cpp (block_q4_0 ..
block_q8_0, block_mxfp4); Open Compute Project, "OCP Microscaling Formats (MX)" 1.0 (2023).
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.super_blocks import SUPER_FORMATS, SUPER_VALUES, SuperFormat

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

BLOCK = 32


@attrs.frozen
class BlockFormat:
    """The layout of one block in the file: scale, then minimum and fifth bits where it has them, then quants."""

    bits: int
    has_minimum: bool
    offset: int

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block."""
        return self.quants_start + BLOCK * min(self.bits, 8) // 8 - (4 if self.bits == 5 else 0)

    @property
    def quants_start(self) -> int:
        """Return where the nibbles or bytes begin."""
        return (4 if self.has_minimum else 2) + (4 if self.bits == 5 else 0)


F32_KIND, F16_KIND, BF16_KIND = 0, 1, 30
BLOCK_FORMATS = {
    2: BlockFormat(4, has_minimum=False, offset=8),
    3: BlockFormat(4, has_minimum=True, offset=0),
    6: BlockFormat(5, has_minimum=False, offset=16),
    7: BlockFormat(5, has_minimum=True, offset=0),
    8: BlockFormat(8, has_minimum=False, offset=128),
}
FLOAT_KINDS = frozenset({F32_KIND, F16_KIND, BF16_KIND})
MXFP4_KIND, MXFP4_BYTES = 39, 17
KINDS = FLOAT_KINDS | BLOCK_FORMATS.keys() | SUPER_FORMATS.keys() | {MXFP4_KIND}


def values_per_block(kind: int) -> int:
    """Return the unit of a row, in values: 1, a block of 32, or a super-block of 256."""
    return SUPER_VALUES if kind in SUPER_FORMATS else BLOCK if kind in BLOCK_FORMATS or kind == MXFP4_KIND else 1


@attrs.frozen(eq=False)
class FloatMatrix:
    """A matrix that is stored as floating-point numbers."""

    values: F32  # (N, K)

    def rows(self, indices: NDArray[np.int32]) -> F32:
        """Return rows as float32, (R, K)."""
        return self.values[indices]

    @property
    def nbytes(self) -> int:
        """Return the memory of the weights."""
        return self.values.nbytes


@attrs.frozen(eq=False)
class BlockMatrix:
    """A matrix of N outputs and K inputs in blocks of 32."""

    quants: NDArray[np.uint8] | NDArray[np.int16]  # (N, K), at most 4096 in size
    scales: F32  # (N, K / 32)
    minima: F32 | None  # (N, K / 32)
    offset: int
    halves: bool = False
    """Whether quants hold a part of the scale that changes every 16 weights."""

    def rows(self, indices: NDArray[np.int32]) -> F32:
        """Return rows as float32, (R, K): the product with the scale is exact, the minimum is added and rounded."""
        quants = self.quants[indices].reshape(len(indices), -1, BLOCK).astype(np.float32) - np.float32(self.offset)
        values = quants * self.scales[indices][..., None]
        if self.minima is not None:
            values += self.minima[indices][..., None]
        return values.reshape(len(indices), -1)

    @property
    def nbytes(self) -> int:
        """Return the memory of the weights."""
        return self.quants.nbytes + self.scales.nbytes + (0 if self.minima is None else self.minima.nbytes)


Matrix = FloatMatrix | BlockMatrix


def as_floats(matrix: Matrix) -> FloatMatrix:
    """Return the matrix with every weight as a float32."""
    if isinstance(matrix, FloatMatrix):
        return matrix
    return FloatMatrix(matrix.rows(np.arange(len(matrix.quants), dtype=np.int32)))


def unpack(kind: int, rows: U8) -> Matrix:
    """Return the matrix whose rows are `rows` (N, bytes of a row) in GGML's type `kind`, one of `KINDS`."""
    if kind in BLOCK_FORMATS:
        return _unpack_blocks(BLOCK_FORMATS[kind], rows)
    if kind in SUPER_FORMATS:
        return _unpack_super_blocks(SUPER_FORMATS[kind], rows)
    if kind == MXFP4_KIND:
        return _unpack_mxfp4(rows)
    if kind == F32_KIND:
        return FloatMatrix(rows.view(np.float32))
    if kind == F16_KIND:
        return FloatMatrix(rows.view(np.float16).astype(np.float32))
    return FloatMatrix((rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32))


def _unpack_blocks(layout: BlockFormat, rows: U8) -> BlockMatrix:
    """Take blocks apart. rows: (N, K / 32 * block_bytes)."""
    blocks = rows.reshape(len(rows), -1, layout.block_bytes)
    quants = blocks[..., layout.quants_start :]
    if layout.bits == 8:
        quants = quants ^ np.uint8(0x80)
    else:
        quants = np.concatenate([quants & np.uint8(15), quants >> np.uint8(4)], axis=-1)
    if layout.bits == 5:
        fifth = np.unpackbits(blocks[..., layout.quants_start - 4 : layout.quants_start], axis=-1, bitorder="little")
        quants |= fifth << np.uint8(4)
    return BlockMatrix(
        quants=np.ascontiguousarray(quants).reshape(len(rows), -1),
        scales=_halves(blocks[..., 0:2]),
        minima=_halves(blocks[..., 2:4]) if layout.has_minimum else None,
        offset=layout.offset,
    )


_MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])  # times 2
_MXFP4_OFFSET = 12
_MXFP4_EXPONENTS = (104, 143)  # of scales that half precision has


def mxfp4_fits(rows: U8) -> bool:
    """Return whether every scale of (N, row bytes) is a number of half precision, or scales zeros only."""
    blocks = rows.reshape(-1, MXFP4_BYTES)
    least, most = _MXFP4_EXPONENTS
    outside = (blocks[:, 0] < least) | (blocks[:, 0] > most)
    return not (outside & ~_mxfp4_zeros(blocks)).any()


def _mxfp4_zeros(blocks: U8) -> NDArray[np.bool_]:
    """Return which blocks have no number but 0 and -0."""
    return np.asarray(~(blocks[..., 1:] & 0x77).any(axis=-1))


def _unpack_mxfp4(rows: U8) -> BlockMatrix:
    """Take blocks apart: an exponent e, then floats of 4 bits, times 2 so that they are whole. The scale is 2**(e - 128)."""
    blocks = rows.reshape(len(rows), -1, MXFP4_BYTES)
    nibbles = np.concatenate([blocks[..., 1:] & np.uint8(15), blocks[..., 1:] >> np.uint8(4)], axis=-1)
    quants = (_MXFP4_VALUES + _MXFP4_OFFSET).astype(np.uint8)[nibbles]
    scales = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128).astype(np.float32)
    scales[_mxfp4_zeros(blocks)] = 0
    return BlockMatrix(quants.reshape(len(rows), -1), scales, None, _MXFP4_OFFSET)


def _unpack_super_blocks(layout: SuperFormat, rows: U8) -> BlockMatrix:
    """Take super-blocks apart. rows: (N, K / 256 * block_bytes)."""
    parts = layout.take_apart(rows.reshape(len(rows), -1, layout.block_bytes))
    return BlockMatrix(
        quants=parts.quants.reshape(len(rows), -1),
        scales=parts.scales.reshape(len(rows), -1),
        minima=None if parts.minima is None else parts.minima.reshape(len(rows), -1),
        offset=0,
        halves=parts.quants.dtype == np.int16,
    )


def _halves(pairs: U8) -> F32:
    """Read (N, B, 2) bytes as (N, B) half-precision numbers, in float32."""
    return np.ascontiguousarray(pairs).view(np.float16)[..., 0].astype(np.float32)
