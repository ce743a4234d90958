"""Products with weights, each sum in the one order that the native kernels have: the same bits, slowly.

With int8 or int12 activations: exact integer sums inside a block of 32, scaled and added in f32 in block
order. With f32 activations: chains of fused multiply-adds, see `chains`. In C: `native/gemm_int8.h`, `native/gemm_int12.h`,
`native/gemm_f32.h`.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.blocks import BLOCK, BlockMatrix, Matrix, as_floats
from tlserve.kernels.reference.chains import add_once_rounded, chain

F32 = NDArray[np.float32]

_COLUMNS = 2048  # columns made at once, to bound the memory
_LEAST = np.float32(2.0**-100)  # a block whose values are all smaller is zero: its reciprocal would not be finite
_CACHED_VALUES = 8192  # of a part of a product in float64, so that each step over it stays in the cache
_LEAST_COLUMNS = 128
_GREATEST_INT12 = 2039
_MOST_INT12 = np.float32(_GREATEST_INT12 * 2.0**104)  # a block with a greater value counts as one that is not finite


@attrs.frozen(eq=False)
class QuantisedRows:
    """Activations x = d * q per block of 32."""

    q: F32  # (R, K / 32, 32) whole numbers from -127 to 127, with int12 from -2039 to 2039
    d: F32  # (R, K / 32)
    d_sum: F32  # (R, K / 32) d times the sum of q


def quantise_int8(x: F32) -> QuantisedRows:
    """Quantise (R, K) to 8 bits: d = greatest |x| / 127, q = x * (127 / greatest) rounded to nearest even.

    A block with a value that is not finite gets d = nan and q = 0.
    """
    blocks = x.reshape(len(x), x.shape[1] // BLOCK, BLOCK)  # a step without requested logits has no rows here
    greatest = np.abs(blocks).max(axis=-1)
    finite = np.isfinite(greatest)
    used = finite & (greatest >= _LEAST)
    safe = np.where(used, greatest, np.float32(1))
    q = np.rint(np.where(used[..., None], blocks, np.float32(0)) * (np.float32(127) / safe)[..., None])
    d = np.where(used, safe / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    return QuantisedRows(q, d, d * q.sum(axis=-1, dtype=np.float32))


def quantise_int12(x: F32) -> QuantisedRows:
    """Quantise (R, K) to 12 bits: d = least power of two with greatest |x| <= 2039 d, q = x / d rounded to nearest even.

    A block with a value that is not finite, or above 2039 * 2**104, gets d = nan and q = 0.
    """
    blocks = x.reshape(len(x), x.shape[1] // BLOCK, BLOCK)
    greatest = np.abs(blocks).max(axis=-1)
    small = greatest < _LEAST
    used = ~small & (greatest <= _MOST_INT12)  # nan compares as false
    fraction, exponent = np.frexp(np.where(used, greatest, np.float32(1)))  # 0.5 <= fraction < 1
    exponent -= np.where(fraction * 2048 <= _GREATEST_INT12, 11, 10)
    q = np.rint(np.ldexp(np.where(used[..., None], blocks, np.float32(0)), -exponent[..., None]))
    d = np.where(used, np.ldexp(np.float32(1), exponent), np.where(small, np.float32(0), np.float32(np.nan)))
    return QuantisedRows(q, d, d * q.sum(axis=-1, dtype=np.float32))


def linear_int8(x: QuantisedRows, weight: BlockMatrix) -> F32:
    """Return the product of quantised rows with a quantised matrix, (R, N)."""
    parts = [_int8_columns(x, weight, slice(n, n + _COLUMNS)) for n in range(0, len(weight.quants), _COLUMNS)]
    return np.concatenate(parts, axis=1)


def _int8_columns(x: QuantisedRows, weight: BlockMatrix, columns: slice) -> F32:
    """Return some columns.

    The BLAS adds whole numbers here, in all less than 32 * 127 * 4096 < 2**24, so it is exact in whatever order it adds.
    """
    quants = weight.quants[columns].reshape(-1, x.q.shape[1], BLOCK).astype(np.float32) - np.float32(weight.offset)
    sums = np.matmul(x.q.transpose(1, 0, 2), quants.transpose(1, 2, 0))  # (K / 32, R, columns)
    total = np.zeros(sums.shape[1:], np.float32)
    for block in range(len(sums)):
        sums[block] *= weight.scales[columns, block]
        sums[block] *= x.d[:, block, None]
        total += sums[block]
        if weight.minima is not None:
            total += weight.minima[columns, block] * x.d_sum[:, block, None]
    return total


def linear_int12(x: QuantisedRows, weight: BlockMatrix) -> F32:
    """Return the product of rows of 12 bits with a quantised matrix, (R, N)."""
    size = min(_COLUMNS, max(_LEAST_COLUMNS, _CACHED_VALUES // max(1, len(x.q))))
    parts = [_int12_columns(x, weight, slice(n, n + size)) for n in range(0, len(weight.quants), size)]
    return np.concatenate(parts, axis=1)


def _int12_columns(x: QuantisedRows, weight: BlockMatrix, columns: slice) -> F32:
    """Return some columns. Where scales change every 16 weights, a sum is of 16; products by the scale are exact in float64."""
    d, d_sum = x.d.astype(np.float64), x.d_sum.astype(np.float64)
    scales = weight.scales[columns].T.astype(np.float64)
    minima = None if weight.minima is None else weight.minima[columns].T.astype(np.float64)
    sums = _exact_sums(x, weight, columns)
    total = np.zeros(sums.shape[1:], np.float32)
    for index, part in enumerate(sums):
        block = index * len(scales) // len(sums)
        scaled = d[:, block, None] * scales[block]
        scaled *= part
        total = add_once_rounded(scaled, total)
        if minima is not None:
            total = add_once_rounded(d_sum[:, block, None] * minima[block], total)
    return total


def _exact_sums(x: QuantisedRows, weight: BlockMatrix, columns: slice) -> NDArray[Any]:
    """Return the sums of each block, or of each half where scales change so often: (K / 32 or K / 16, R, columns).

    The BLAS adds whole numbers: in float32 less than 32 * 2039 * 128 < 2**24, with quants that hold parts of scales in float64.
    """
    size = BLOCK // 2 if weight.halves else BLOCK
    exact = np.float64 if weight.halves else np.float32
    q = x.q.reshape(len(x.q), x.q.shape[1] * BLOCK // size, size).transpose(1, 0, 2).astype(exact)
    quants: NDArray[Any] = weight.quants[columns].reshape(-1, len(q), size).astype(exact)
    quants -= weight.offset
    return np.asarray(np.matmul(q, quants.transpose(1, 2, 0)))


QUANTISE = {"int8": quantise_int8, "int12": quantise_int12}
LINEAR = {"int8": linear_int8, "int12": linear_int12}


def linear_f32(x: F32, weight: Matrix) -> F32:
    """Return x times the transpose of `weight`: per output one chain of fused multiply-adds over the inputs, (R, N)."""
    return chain(x, as_floats(weight).values)
