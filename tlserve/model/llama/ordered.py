"""The llama in numpy with every sum in the order of the native kernels: the same bits, without a compiler.

Owns the order of the layers a second time, over weights in their stored form. Slow beside native code; it serves where that could
not be built, and it is what the native kernels must agree with to the bit. Refuses to know files.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput
from tlserve.kernels.reference import blas
from tlserve.kernels.reference.blocks import BlockMatrix, Matrix, as_floats, unpack
from tlserve.kernels.reference.elementwise import rms_norm, silu_times
from tlserve.kernels.reference.ordered_attention import attend_in_order
from tlserve.kernels.reference.ordered_linear import linear_f32, linear_int8, quantise_rows
from tlserve.kernels.reference.rope import RopeTables, rotate
from tlserve.model.llama.kv_precision import PositionStore
from tlserve.model.llama.numerics import Numerics, ordered_spec, ordered_tables
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.llama.tensors import LayerTensors, LlamaTensors, StoredMatrix

F32 = NDArray[np.float32]


@attrs.frozen(kw_only=True, eq=False)
class _Layer:
    attention_norm: F32
    q: Matrix
    k: Matrix
    v: Matrix
    output: Matrix
    ffn_norm: F32
    gate: Matrix
    up: Matrix
    down: Matrix
    q_bias: F32 | None
    k_bias: F32 | None
    v_bias: F32 | None
    output_bias: F32 | None
    query_norm: F32 | None
    key_norm: F32 | None


@attrs.frozen(eq=False)
class _Sequence:
    """Where one sequence of a step finds its rows and keys."""

    rows: slice
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]  # of positions 0 .. the last


class OrderedLlamaModel:
    """A `kernels.interface.Model` of the llama family."""

    def __init__(self, shape: LlamaShape, tensors: LlamaTensors, numerics: Numerics) -> None:
        blas.pin_to_one_thread()
        self._shape = shape
        self._numerics = numerics
        activations = numerics.activations
        self._embedding = _unpack(tensors.embedding, activations)
        self._head = self._embedding if tensors.head is tensors.embedding else _unpack(tensors.head, activations)
        self._layers = tuple(_layer(layer, activations) for layer in tensors.layers)
        self._norm = tensors.norm
        self._rope = ordered_tables(shape, tensors)
        self._epsilon = np.float32(shape.epsilon)
        self._query_scale = np.float32(math.log2(math.e) / math.sqrt(shape.head_size))
        self._spec = ordered_spec(
            shape, tensors, self._rope, numerics, f"reference (numpy, {numerics.activations} activations)"
        )

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    @property
    def weights_bytes(self) -> int:
        """Return the memory of the weights."""
        layers = [part for layer in self._layers for part in attrs.astuple(layer, recurse=False) if part is not None]
        total: int = sum(part.nbytes for part in (*layers, self._norm, self._head))
        return total + (0 if self._head is self._embedding else self._embedding.nbytes)

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve room for `blocks` blocks of keys and values."""
        return PositionStore(
            layers=self._shape.layers,
            kv_heads=self._shape.kv_heads,
            head_size=self._shape.head_size,
            blocks=blocks,
            block_size=block_size,
            precision=self._numerics.kv_precision,
        )

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        """Run all rows of `batch` through all layers; see `kernels.interface.Model.forward`."""
        if not isinstance(kv, PositionStore):
            raise TypeError("a llama's forward pass takes a store made by its own new_kv_store")
        with np.errstate(all="ignore"):  # an overflow is part of a row's answer, not a warning
            return self._forward(batch, kv)

    def _forward(self, batch: StepBatch, kv: PositionStore) -> StepOutput:
        sequences = _sequences(batch, kv.block_size)
        rope = RopeTables(self._rope.cos[batch.positions], self._rope.sin[batch.positions])
        x = self._embedding.rows(batch.tokens)
        for index, layer in enumerate(self._layers):
            x += self._attention(index, layer, x, sequences, rope, kv)
            if layer.output_bias is not None:
                x += layer.output_bias
            x += self._feed_forward(layer, x)
        wanted = rms_norm(x[batch.logit_rows], self._norm, self._epsilon)
        hidden = rms_norm(x[batch.hidden_rows], self._norm, self._epsilon)
        return StepOutput(logits=self._linear(wanted, self._head)[0], hidden=hidden)

    def _attention(
        self, index: int, layer: _Layer, x: F32, sequences: list[_Sequence], rope: RopeTables, kv: PositionStore
    ) -> F32:
        """Return what layer `index` adds to the residual by attention; stores the rows' keys and values. (T, F) -> (T, F)."""
        q, k, v = self._queries_keys_values(layer, x)
        if index not in self._shape.unrotated_layers:
            rotate(q, rope.cos, rope.sin)
            rotate(k, rope.cos, rope.sin)
        q *= self._query_scale
        grouped = q.reshape(len(x), self._shape.kv_heads, -1, self._shape.head_size)
        for sequence in sequences:
            kv.write(index, sequence.slots[sequence.positions], k[sequence.rows], v[sequence.rows])
        window = self._shape.window(index)
        mixed = [attend_in_order(grouped[s.rows], *kv.read(index, s.slots), s.positions, window) for s in sequences]
        return self._linear(np.concatenate(mixed).reshape(len(x), -1), layer.output)[0]

    def _queries_keys_values(self, layer: _Layer, x: F32) -> tuple[F32, F32, F32]:
        """Return (T, heads or key heads, D) each: products, then biases, then the norms of heads; not yet turned."""
        products = self._linear(rms_norm(x, layer.attention_norm, self._epsilon), layer.q, layer.k, layer.v)
        for product, bias in zip(products, (layer.q_bias, layer.k_bias, layer.v_bias), strict=True):
            if bias is not None:
                np.add(product, bias, out=product)
        q, k, v = (product.reshape(len(x), -1, self._shape.head_size) for product in products)
        return self._head_norm(q, layer.query_norm), self._head_norm(k, layer.key_norm), v

    def _head_norm(self, heads: F32, weight: F32 | None) -> F32:
        """Return the RMS norm of every head of every row, or `heads` where there is no weight. (T, H, D) -> (T, H, D)."""
        if weight is None:
            return heads
        return rms_norm(heads.reshape(-1, heads.shape[2]), weight, self._epsilon).reshape(heads.shape)

    def _feed_forward(self, layer: _Layer, x: F32) -> F32:
        """Return what the gated feed-forward block adds to the residual. (T, F) -> (T, F)."""
        gate, up = self._linear(rms_norm(x, layer.ffn_norm, self._epsilon), layer.gate, layer.up)
        silu_times(gate, up, out=gate)
        return self._linear(gate, layer.down)[0]

    def _linear(self, x: F32, *weights: Matrix) -> list[F32]:
        """Return the products of `x` with each weight; quantised weights take quantised rows where activations are int8."""
        int8 = self._numerics.activations == "int8"
        rows = quantise_rows(x) if int8 and any(isinstance(w, BlockMatrix) for w in weights) else None
        return [
            linear_int8(rows, w) if rows is not None and isinstance(w, BlockMatrix) else linear_f32(x, w)
            for w in weights
        ]


def _unpack(stored: StoredMatrix, activations: str) -> Matrix:
    """Return a matrix in the form that its products need."""
    matrix = unpack(stored.kind, np.array(stored.rows))
    return as_floats(matrix) if activations == "f32" else matrix


def _layer(layer: LayerTensors, activations: str) -> _Layer:
    """Return a layer with its matrices unpacked."""
    parts: dict[str, Any] = attrs.asdict(layer, recurse=False)
    return _Layer(**{name: _unpack(p, activations) if isinstance(p, StoredMatrix) else p for name, p in parts.items()})


def _sequences(batch: StepBatch, block_size: int) -> list[_Sequence]:
    """Find the rows and the slots of every sequence."""
    found = []
    for index, table in enumerate(batch.block_tables):
        rows = slice(int(batch.row_starts[index]), int(batch.row_starts[index + 1]))
        positions = batch.positions[rows]
        keys = np.arange(positions[-1] + 1)
        found.append(
            _Sequence(rows, positions, table[keys // block_size].astype(np.int64) * block_size + keys % block_size)
        )
    return found
