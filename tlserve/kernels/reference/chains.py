"""Products as chains of fused multiply-adds: one accumulator per output, inputs ascending, each step rounded once.

These are the bits of `native/gemm_f32.h`, in two ways. `emulated_chain` follows the definition and is slow. `chain` lets the
BLAS add, in small products that all have one shape. For such a product a BLAS with fused multiply-add usually keeps one
accumulator per output and adds in this order; `blas_adds_in_order` tries it once. Where it does not, the emulation computes.

A long chain is cut into links of `DEPTH` inputs. A link continues the totals of the one before: they become `ROWS` further
inputs at its beginning, of which row r takes number r with the factor 1 and the others with the factor 0.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.blas import pin_to_one_thread

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

# Measured: OpenBLAS 0.3.31 adds a product (384, 140) x (140, 12) in order with its kernels for Haswell, Zen and SkylakeX.
ROWS, DEPTH, OUTPUTS = 12, 128, 384
_BELOW_F32 = (1 << 29) - 1  # the bits of a float64 that a float32 does not have
_HALF_OF_F32 = 1 << 28  # half of the last bit of a float32
_MINUS_ZERO = np.iinfo(np.int32).min  # the bits of -0.0 as a signed number, which no other float32 goes below


def chain(x: F32, weight: F32) -> F32:
    """Return x times the transpose of `weight`: (R, K), (N, K) -> (R, N)."""
    out = np.empty((len(x), len(weight)), np.float32)
    tiles = _tiles(x)
    for first in range(0, len(weight), OUTPUTS):
        part = weight[first : first + OUTPUTS]
        totals = _linked(tiles, part) if blas_adds_in_order() else None
        for tile, start in enumerate(range(0, len(x), ROWS)):
            rows = x[start : start + ROWS]
            total = None if totals is None else totals[tile, : len(part), : len(rows)].T
            into = out[start : start + ROWS, first : first + OUTPUTS]
            if total is None or not np.isfinite(total).all():
                into[:] = emulated_chain(rows, part)
                continue
            into[:] = total
            if not blas_keeps_minus_zero() and not total.all():
                zero = np.flatnonzero(~total.all(axis=0))
                into[:, zero] = emulated_chain(rows, part[zero])
    return out


def emulated_chain(x: F32, weight: F32) -> F32:
    """Return x times the transpose of `weight`, by the definition: (R, K), (N, K) -> (R, N)."""
    total = np.zeros((len(x), len(weight)), np.float32)
    for k in range(weight.shape[1]):
        total = fused_multiply_add(x[:, k, None], weight[None, :, k], total)
    return total


@functools.cache
def blas_adds_in_order() -> bool:
    """Try whether products of the one shape have the bits of the emulation. Sets the BLAS to one thread, as all of it runs."""
    pin_to_one_thread()
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal((n, 2 * DEPTH + 5)).astype(np.float32) for n in (ROWS, OUTPUTS))
    totals = _linked(_tiles(x), weight)
    return totals is not None and np.array_equal(totals[0].T, emulated_chain(x, weight))


@functools.cache
def blas_keeps_minus_zero() -> bool:
    """Try whether a product of the one shape can be -0.0. A BLAS that adds it to a result of +0.0 loses the sign."""
    pin_to_one_thread()
    out = np.empty((OUTPUTS, ROWS), np.float32)
    tiny = np.zeros((OUTPUTS, ROWS + DEPTH), np.float32)
    tiny[:, -1] = -1e-30
    np.matmul(tiny, np.full((ROWS + DEPTH, ROWS), 1e-30, np.float32), out=out)
    return bool(np.signbit(out).all())


def _tiles(x: F32) -> F32:
    """Cut rows into tiles and inputs into links, zeros after them: (R, K) -> (links, tiles, ROWS + DEPTH, ROWS)."""
    links, tiles = -(-x.shape[1] // DEPTH), -(-len(x) // ROWS)
    padded = np.zeros((tiles * ROWS, links * DEPTH), np.float32)
    padded[: len(x), : x.shape[1]] = x
    cut = np.zeros((links, tiles, ROWS + DEPTH, ROWS), np.float32)
    cut[:, :, range(ROWS), range(ROWS)] = 1
    cut[:, :, ROWS:] = padded.reshape(tiles, ROWS, links, DEPTH).transpose(2, 0, 3, 1)
    return cut


def _linked(tiles: F32, weight: F32) -> F32 | None:
    """Return the totals of every tile, (tiles, OUTPUTS, ROWS), or None where a link would lose the sign of a zero.

    weight: (N, K) with N up to `OUTPUTS`. A total that is not finite stays so, and spoils the other rows of its tile.
    """
    totals = np.zeros((tiles.shape[1], OUTPUTS, ROWS), np.float32)
    inputs = np.empty((OUTPUTS, ROWS + DEPTH), np.float32)
    for link, rows in enumerate(tiles):
        part = weight[:, link * DEPTH : (link + 1) * DEPTH]
        if part.shape != (OUTPUTS, DEPTH):
            inputs[:, ROWS:] = np.float32(
                -0.0
            )  # a factor of 0 makes it -0, which changes no total, not even another -0
        inputs[: len(part), ROWS : ROWS + part.shape[1]] = part
        if totals.size and totals.view(np.int32).min() == _MINUS_ZERO:
            return None
        for tile, total in zip(rows, totals, strict=True):
            inputs[:, :ROWS] = total
            np.matmul(inputs, tile, out=total)
    return totals


def add_once_rounded(product: F64, addend: F32) -> F32:
    """Return product + addend rounded once to float32: `fused_multiply_add` where the product is exact in float64.

    Rounding to float64 first does harm only where that is half way between two float32; there the error of the sum decides.
    No sum below the least normal float32 may be inexact.
    """
    total = product + addend
    half_way = np.flatnonzero((total.view(np.int64) & _BELOW_F32) == _HALF_OF_F32)
    if half_way.size:
        flat = total.reshape(-1)
        flat[half_way] = _to_odd(flat[half_way], product.reshape(-1)[half_way], addend.reshape(-1)[half_way])
    return total.astype(np.float32)


def fused_multiply_add(a: F32, b: F32, c: F32) -> F32:
    """Return a * b + c rounded once.

    The product of two float32 is exact in float64. The sum is rounded to odd there (an inexact sum becomes that neighbour whose
    last bit is 1), and then to float32: as float64 has more than two bits to spare, that is the correct rounding.
    Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008); the error of the sum by Knuth's TwoSum.
    """
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    return _to_odd(product + addend, product, addend).astype(np.float32)


def _to_odd(total: F64, product: F64, addend: F64 | F32) -> F64:
    """Return `total`, which is product + addend rounded to nearest, rounded to odd."""
    part = total - product
    error = (product - (total - part)) + (addend - part)
    inexact = np.isfinite(total) & (error != 0)
    if not inexact.any():
        return total
    is_even = (total.view(np.int64) & 1) == 0
    return np.where(inexact & is_even, np.nextafter(total, np.copysign(np.inf, error)), total)
