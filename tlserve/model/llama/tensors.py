"""A llama's tensors in the precision of their file, checked and named.

Has the names of a layer, and decides which types keep their stored form: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q3_K to Q6_K, F16, BF16
and F32. Any other type becomes float32: its values need more bits than half precision has, and to quantise them a second time
would change the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.kernels.reference.blocks import F32_KIND, FLOAT_KINDS, KINDS
from tlserve.model.llama.expected_tensors import expected_shapes
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.tensor_shapes import check_shapes

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

_ROPE_FACTORS = "rope_freqs.weight"


class TensorSource(Protocol):
    """Named tensors of (outputs, inputs) or (n,), in the types of their files."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end of a tensor as float32; for a vector, the elements."""

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's type number and the bytes of each row, (outputs, row bytes)."""


@attrs.frozen(eq=False)
class StoredMatrix:
    """An (outputs, inputs) matrix in the form of its file."""

    kind: int
    outputs: int
    inputs: int
    rows: U8  # (outputs, row bytes)


@attrs.frozen(kw_only=True, eq=False)
class LayerTensors:
    """One layer; every matrix is (outputs, inputs). Biases are added to their products, norms applied to every head."""

    attention_norm: F32
    q: StoredMatrix
    k: StoredMatrix
    v: StoredMatrix
    output: StoredMatrix
    ffn_norm: F32
    gate: StoredMatrix
    up: StoredMatrix
    down: StoredMatrix
    q_bias: F32 | None = None  # (outputs,), as the others
    k_bias: F32 | None = None
    v_bias: F32 | None = None
    output_bias: F32 | None = None
    query_norm: F32 | None = None  # (head size,)
    key_norm: F32 | None = None

    def vectors(self) -> tuple[F32, ...]:
        """Return the vectors that the layer has."""
        optional = (self.q_bias, self.k_bias, self.v_bias, self.output_bias, self.query_norm, self.key_norm)
        return (self.attention_norm, self.ffn_norm, *(vector for vector in optional if vector is not None))

    def matrices(self) -> tuple[StoredMatrix, ...]:
        """Return the matrices in the order of their fields."""
        return (self.q, self.k, self.v, self.output, self.gate, self.up, self.down)


@attrs.frozen(kw_only=True, eq=False)
class LlamaTensors:
    """All tensors. With tied embeddings `head` is `embedding`. `identity`: a hash of the file they came from."""

    embedding: StoredMatrix
    layers: tuple[LayerTensors, ...]
    norm: F32
    head: StoredMatrix
    rope_factors: NDArray[np.float64]
    identity: str

    def vector_bytes(self) -> int:
        """Return the memory of norms and biases."""
        return self.norm.nbytes + sum(vector.nbytes for layer in self.layers for vector in layer.vectors())

    def is_quantised(self) -> bool:
        """Return whether some matrix is stored in blocks."""
        matrices = [self.embedding, self.head, *(m for layer in self.layers for m in layer.matrices())]
        return any(m.kind not in FLOAT_KINDS for m in matrices)


def read_tensors(shape: LlamaShape, source: TensorSource, identity: str) -> LlamaTensors:
    """Collect the tensors of a llama; raises `ModelRefused` where one is missing or has a wrong shape.

    The bytes of matrices are views of the source where their type is kept.
    """
    shapes = source.shapes()
    tied = "output.weight" not in shapes
    expected = expected_shapes(shape, tied=tied)
    check_shapes(expected, shapes)
    unknown = sorted(shapes.keys() - expected.keys() - {_ROPE_FACTORS})
    if unknown:  # a forward pass without it would be another model
        raise ModelRefused(f"the tensor {unknown[0][:80]!r} is not part of the architecture as served here")
    embedding = _matrix(source, "token_embd.weight")
    return LlamaTensors(
        embedding=embedding,
        layers=tuple(_layer(shape, source, f"blk.{index}.") for index in range(shape.layers)),
        norm=_vector(source, "output_norm.weight"),
        head=embedding if tied else _matrix(source, "output.weight"),
        rope_factors=_rope_factors(source, shape),
        identity=identity,
    )


def _layer(shape: LlamaShape, source: TensorSource, prefix: str) -> LayerTensors:
    """Collect one layer."""

    def matrix(name: str) -> StoredMatrix:
        return _matrix(source, f"{prefix}{name}.weight")

    return LayerTensors(
        attention_norm=_vector(source, f"{prefix}attn_norm.weight"),
        q=matrix("attn_q"),
        k=matrix("attn_k"),
        v=matrix("attn_v"),
        output=matrix("attn_output"),
        ffn_norm=_vector(source, f"{prefix}ffn_norm.weight"),
        gate=matrix("ffn_gate"),
        up=matrix("ffn_up"),
        down=matrix("ffn_down"),
        **{name: _vector(source, prefix + tensor) for name, tensor in _optional_vectors(shape).items()},
    )


def _optional_vectors(shape: LlamaShape) -> dict[str, str]:
    """Return the biases and head norms that a layer of `shape` has: our name -> the tensor's."""
    names: dict[str, str] = {}
    if shape.qkv_bias:
        names |= {f"{part}_bias": f"attn_{part}.bias" for part in "qkv"}
    if shape.output_bias:
        names["output_bias"] = "attn_output.bias"
    if shape.qk_norm:
        names |= {"query_norm": "attn_q_norm.weight", "key_norm": "attn_k_norm.weight"}
    return names


def _vector(source: TensorSource, name: str) -> F32:
    """Return a vector in float32."""
    return np.array(source.rows(name, 0, source.shapes()[name][0]), np.float32)


def _matrix(source: TensorSource, name: str) -> StoredMatrix:
    """Return a matrix in its stored type, or in float32 where that type is not kept."""
    outputs, inputs = source.shapes()[name]
    kind, rows = source.stored(name)
    if kind not in KINDS:
        kind, rows = F32_KIND, np.ascontiguousarray(source.rows(name, 0, outputs), np.float32).view(np.uint8)
    return StoredMatrix(kind, outputs, inputs, rows)


def _rope_factors(source: TensorSource, shape: LlamaShape) -> NDArray[np.float64]:
    """Return the divisor of each frequency: 1, or the tensor that the converter computed; raises `ModelRefused`."""
    shapes, pairs = source.shapes(), shape.rotated // 2
    if _ROPE_FACTORS not in shapes:
        return np.ones(pairs)
    check_shapes({_ROPE_FACTORS: (pairs,)}, shapes)
    factors = source.rows(_ROPE_FACTORS, 0, pairs).astype(np.float64)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelRefused(f"the tensor {_ROPE_FACTORS} must hold finite numbers above 0")
    return factors
