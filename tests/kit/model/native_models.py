"""Small llamas with weights of any stored type, on every instruction set of this machine and in ordered numpy."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.kit.model.llama_shape import LlamaShape, gguf_name
from tests.kit.model.tiny_models import tiny_shape
from tlserve.kernels.native import load_native, native_isas
from tlserve.kernels.reference.blocks import BlockMatrix, unpack
from tlserve.kernels.reference.linear import LINEAR, QUANTISE, linear_f32
from tlserve.model.decoder.native.model import NativeModel
from tlserve.model.decoder.native.probe import random_weights
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.reference import ReferenceModel
from tlserve.model.decoder.weights import Weights

ISAS = native_isas() or ("the extension is not built",)  # without it the tests fail: they must not be skipped silently

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, BF16, MXFP4 = 0, 1, 2, 3, 6, 7, 8, 30, 39
Q3_K, Q4_K, Q5_K, Q6_K = 11, 12, 13, 14
KIND_NAMES = {
    F32: "F32",
    F16: "F16",
    BF16: "BF16",
    Q4_0: "Q4_0",
    Q4_1: "Q4_1",
    Q5_0: "Q5_0",
    Q5_1: "Q5_1",
    Q8_0: "Q8_0",
    MXFP4: "MXFP4",
    Q3_K: "Q3_K",
    Q4_K: "Q4_K",
    Q5_K: "Q5_K",
    Q6_K: "Q6_K",
}

SUPER = [Q3_K, Q4_K, Q5_K, Q6_K]
"""The K-quants, in super-blocks of 256."""

MIXED = [Q4_1, Q4_0, Q5_1, Q8_0, Q5_0, Q4_1, Q8_0]  # q, k, v, output, gate, up, down; the embedding is as q
SUPER_MIXED = [Q4_K, Q5_K, Q6_K, Q3_K, Q4_K, Q5_K, Q6_K]
INT8 = Numerics("int8", "f16")
COMPILED = "native" if native_isas() else "auto"
"""The kernels that must be there if they were built; without a compiler numpy computes, and must pass the same tests."""

INT12 = Numerics("int12", "f16")
QUANTISED = tuple(QUANTISE)
"""The formats of activations that meet quantised weights as integers."""

ACTIVATIONS = (*QUANTISED, "f32")


def built_native() -> ModuleType:
    """Return the extension, which must have been built."""
    module = load_native()
    assert module is not None, "the extension is not built"
    return module


def block_shape(**changes: Any) -> LlamaShape:
    """Return a tiny shape whose rows are whole blocks of 32."""
    return tiny_shape(**({"hidden": 64, "intermediate": 96, "head_size": 16} | changes))


def super_shape(**changes: Any) -> LlamaShape:
    """Return a tiny shape whose rows are whole super-blocks of 256."""
    return tiny_shape(**({"hidden": 256, "intermediate": 512, "head_size": 64, "rotated": 64} | changes))


def stored(shape: LlamaShape, kinds: Iterable[int] = MIXED, seed: int = 0) -> Weights:
    """Return random tensors of `shape`; `kinds` of a layer's matrices in order."""
    return random_weights(shape.record(), list(kinds), np.random.default_rng(seed))


def native(
    shape: LlamaShape, weights: Weights, numerics: Numerics = INT12, isa: str = ISAS[0], threads: int = 1
) -> NativeModel:
    return NativeModel(built_native(), record_of(shape, weights), weights, numerics, isa=isa, threads=threads)


def ordered(shape: LlamaShape, weights: Weights, numerics: Numerics = INT12) -> ReferenceModel:
    return ReferenceModel(record_of(shape, weights), weights, numerics)


def record_of(shape: LlamaShape, weights: Weights) -> Decoder:
    """Return the record of `shape`, with an output matrix of its own where `weights` have one."""
    return shape.record(tied="head" not in weights.matrices)


def multiply(
    matrix: Any, x: NDArray[Any], *, activations: str, isa: str = ISAS[0], module: ModuleType | None = None
) -> NDArray[np.float32]:
    """Return the native product of (R, K) rows with a stored matrix, (R, N); `module`: another build of the extension."""
    module = module or built_native()
    out = np.empty((len(x), matrix.outputs), np.float32)
    packed = module.Matrix(matrix.kind, matrix.outputs, matrix.inputs, matrix.rows)
    module.multiply(packed, np.ascontiguousarray(x, np.float32), out, activations, isa)
    return out


def ordered_product(matrix: Any, x: NDArray[np.float32], activations: str) -> NDArray[np.float32]:
    """Return the same product in ordered numpy."""
    weights = unpack(matrix.kind, matrix.rows)
    if activations == "f32" or not isinstance(weights, BlockMatrix):
        return linear_f32(x, weights)
    return LINEAR[activations](QUANTISE[activations](x), weights)


def dequantised(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """Return stored tensors as float32 arrays by GGUF's names, as the gguf package reads them."""
    arrays = {
        gguf_name(slot): gguf.quants.dequantize(matrix.rows, gguf.GGMLQuantizationType(matrix.kind))
        for slot, matrix in weights.matrices.items()
    }
    return arrays | {gguf_name(slot): vector for slot, vector in weights.vectors.items()}
