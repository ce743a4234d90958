"""The forward pass of a llama in numpy: the readable reference, whose bits the native kernels must have.

To read it, begin at `ReferenceLlamaModel.forward`; it follows the paper, layer by layer. Every array is float32 and has a row for
each token of the step; T rows, F features, H query heads, h key heads, D components of a head. Where a sum has a stated order,
`kernels.reference` states it, and C repeats it (`kernels/native/forward.c`). It serves models where the native kernels were not
built. Knows nothing of files.
Source: Touvron et al., "LLaMA" (2023); the layout of the query and key rows is GGUF's (see `kernels.reference.rope`).
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput, own_store
from tlserve.kernels.reference import blas
from tlserve.kernels.reference.attention import attend_in_order
from tlserve.kernels.reference.blocks import BlockMatrix, Matrix, as_floats, unpack
from tlserve.kernels.reference.elementwise import rms_norm, silu_times
from tlserve.kernels.reference.linear import LINEAR, QUANTISE, linear_f32
from tlserve.kernels.reference.rope import RopeTables, rotate
from tlserve.model.llama.kv_precision import PositionStore
from tlserve.model.llama.numerics import Numerics, llama_spec, rotation_tables
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.llama.tensors import LayerTensors, LlamaTensors, StoredMatrix

F32 = NDArray[np.float32]


@attrs.frozen(kw_only=True, eq=False)
class _Layer:
    """The weights of one layer, as `LayerTensors` with its matrices unpacked; each matrix is (outputs, inputs)."""

    attention_norm: F32  # (F,)
    q: Matrix  # (H * D, F)
    k: Matrix  # (h * D, F)
    v: Matrix
    output: Matrix  # (F, H * D)
    ffn_norm: F32
    gate: Matrix  # (intermediate, F)
    up: Matrix
    down: Matrix  # (F, intermediate)
    q_bias: F32 | None
    k_bias: F32 | None
    v_bias: F32 | None
    output_bias: F32 | None
    query_norm: F32 | None  # (D,)
    key_norm: F32 | None


@attrs.frozen(eq=False)
class _SequenceRows:
    """Where one sequence of a step has its rows and its keys."""

    rows: slice
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]  # of the positions 0 .. the last


class ReferenceLlamaModel:
    """A `kernels.interface.Model` of the llama family."""

    def __init__(self, shape: LlamaShape, tensors: LlamaTensors, numerics: Numerics) -> None:
        blas.pin_to_one_thread()
        self._shape = shape
        self._numerics = numerics
        self._embedding = self._unpack(tensors.embedding)
        self._head = self._embedding if tensors.head is tensors.embedding else self._unpack(tensors.head)
        self._layers = tuple(self._unpack_layer(layer) for layer in tensors.layers)
        self._norm = tensors.norm
        self._rope = rotation_tables(shape, tensors.rope_factors)
        self._epsilon = np.float32(shape.epsilon)
        self._query_scale = np.float32(math.log2(math.e) / math.sqrt(shape.head_size))
        kernels = f"reference (numpy, {numerics.activations} activations)"
        self._spec = llama_spec(shape, tensors.identity, self._rope, numerics, kernels)

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
        """Reserve memory for `blocks` blocks of keys and values."""
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
        store = own_store(kv, PositionStore)
        with np.errstate(all="ignore"):  # an overflow is part of a row's answer, not a warning
            return self._forward(batch, store)

    def _forward(self, batch: StepBatch, kv: PositionStore) -> StepOutput:
        sequences = _sequences(batch, kv.block_size)
        rope = RopeTables(self._rope.cos[batch.positions], self._rope.sin[batch.positions])
        x = self._embedding.rows(batch.tokens)
        for index, layer in enumerate(self._layers):
            x += self._attention(index, layer, x, sequences, rope, kv)
            if layer.output_bias is not None:
                x += layer.output_bias
            x += self._feed_forward(layer, x)
        last = rms_norm(x[batch.logit_rows], self._norm, self._epsilon)
        hidden = rms_norm(x[batch.hidden_rows], self._norm, self._epsilon)
        return StepOutput(logits=self._linear(last, self._head)[0], hidden=hidden)

    def _attention(
        self, index: int, layer: _Layer, x: F32, sequences: list[_SequenceRows], rope: RopeTables, kv: PositionStore
    ) -> F32:
        """Return what the attention of layer `index` adds to `x`; stores the rows' keys and values. (T, F) -> (T, F)."""
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
        """Return (T, H or h, D) each: products, then biases, then the norms of heads; not yet rotated."""
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
        """Return what the gated feed-forward block adds to `x`. (T, F) -> (T, F)."""
        gate, up = self._linear(rms_norm(x, layer.ffn_norm, self._epsilon), layer.gate, layer.up)
        silu_times(gate, up, out=gate)
        return self._linear(gate, layer.down)[0]

    def _linear(self, x: F32, *weights: Matrix) -> list[F32]:
        """Return the products of `x` with each weight; quantised weights take quantised rows."""
        if not any(isinstance(weight, BlockMatrix) for weight in weights):
            return [linear_f32(x, weight) for weight in weights]
        rows, product = QUANTISE[self._numerics.activations](x), LINEAR[self._numerics.activations]
        return [
            product(rows, weight) if isinstance(weight, BlockMatrix) else linear_f32(x, weight) for weight in weights
        ]

    def _unpack_layer(self, layer: LayerTensors) -> _Layer:
        """Return a layer with its matrices unpacked."""
        parts: dict[str, Any] = attrs.asdict(layer, recurse=False)
        matrices = {name: self._unpack(part) for name, part in parts.items() if isinstance(part, StoredMatrix)}
        return _Layer(**parts | matrices)

    def _unpack(self, stored: StoredMatrix) -> Matrix:
        """Return a matrix in the form that its products take: with f32 activations, no matrix stays quantised."""
        matrix = unpack(stored.kind, np.array(stored.rows))
        return as_floats(matrix) if self._numerics.activations == "f32" else matrix


def _sequences(batch: StepBatch, block_size: int) -> list[_SequenceRows]:
    """Find the rows and the slots of every sequence."""
    found = []
    for index, table in enumerate(batch.block_tables):
        rows = slice(int(batch.row_starts[index]), int(batch.row_starts[index + 1]))
        positions = batch.positions[rows]
        keys = np.arange(positions[-1] + 1)
        slots = table[keys // block_size].astype(np.int64) * block_size + keys % block_size
        found.append(_SequenceRows(rows, positions, slots))
    return found
