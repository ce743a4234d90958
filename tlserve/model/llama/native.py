"""The llama on the native kernels: weights packed once, then one native call for each step.

Has what crosses into C: the names of matrices and vectors, and the layout of the store. Knows nothing of the arithmetic:
`kernels/native` states the order of every sum, and `reference` is the same in numpy.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput, own_store
from tlserve.kernels.thread_pool import ThreadPool, Unit
from tlserve.model.llama.kv_precision import PRECISIONS, Stored
from tlserve.model.llama.numerics import Numerics, llama_spec, rotation_tables
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.llama.tensors import LayerTensors, LlamaTensors, StoredMatrix

Ints = NDArray[np.int32]
_KEY_TILE = 16


class NativeKvStore:
    """A `kernels.interface.KvStore`: for each block and layer, keys (kv_heads, D, block_size), values (kv_heads, block_size, D).

    D of the values is padded to a multiple of 16. The memory is touched only where something was written. All layers of a
    block are adjacent, because the system gives memory in pages of up to 2 MB.
    """

    def __init__(self, shape: LlamaShape, blocks: int, block_size: int, precision: str) -> None:
        self._blocks = blocks
        self._block_size = block_size
        padded = -(-shape.head_size // _KEY_TILE) * _KEY_TILE
        paged = (blocks, shape.layers, shape.kv_heads)
        self.keys: Stored = np.zeros((*paged, shape.head_size, block_size), PRECISIONS[precision])
        self.values: Stored = np.zeros((*paged, block_size, padded), PRECISIONS[precision])

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self._blocks

    @property
    def block_size(self) -> int:
        """Positions per block."""
        return self._block_size


class _ReusedRows:
    """Rows of float32 that every step writes, in memory that is used again once the caller has released the last rows.

    New memory for the logits of 32 rows costs 1500 page faults, a tenth of a step. Every view of the memory holds a reference
    to it, so the number of references says whether the caller still has one.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._memory = np.empty(0, np.float32)

    def take(self, rows: int) -> NDArray[np.float32]:
        """Return (rows, width) with any content. Memory of which a view is still held is not used again."""
        size = rows * self._width
        if self._memory.size < size or sys.getrefcount(self._memory) > _OWN_REFERENCES:
            self._memory = np.empty(size, np.float32)
        return self._memory[:size].reshape(rows, self._width)


_OWN_REFERENCES = 2  # of the memory without any view: the attribute, and the argument of getrefcount


class NativeLlamaModel:
    """A `kernels.interface.Model` of the llama family, on the instruction set `isa` of the extension module `native`."""

    def __init__(
        self,
        native: ModuleType,
        shape: LlamaShape,
        tensors: LlamaTensors,
        numerics: Numerics,
        *,
        isa: str,
        threads: int = 0,
    ) -> None:
        pool = ThreadPool(threads)
        tables = rotation_tables(shape, tensors.rope_factors)
        matrices = _pack(native, tensors, pool)
        self._shape = shape
        self._numerics = numerics
        self.weights_bytes = tensors.vector_bytes() + sum(packed.nbytes for packed in matrices.values())
        self._logits = _ReusedRows(shape.vocabulary)
        self._native = native.Model(
            **_sizes(shape),
            activations=numerics.activations,
            isa=isa,
            threads=pool.threads,
            embedding=matrices[id(tensors.embedding)],
            head=matrices[id(tensors.head)],
            norm=tensors.norm,
            cos=tables.cos,
            sin=tables.sin,
            layers=_layers(shape, tensors, matrices),
        )
        threads_named = "1 thread" if pool.threads == 1 else f"{pool.threads} threads"
        kernels = f"native ({isa}, {numerics.activations} activations, {threads_named})"
        self._spec = llama_spec(shape, tensors.identity, tables, numerics, kernels)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve memory for `blocks` blocks of keys and values."""
        return NativeKvStore(self._shape, blocks, block_size, self._numerics.kv_precision)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        """Run all rows of `batch` in one native call; see `kernels.interface.Model.forward`.

        Raises TypeError or ValueError for arrays of a wrong type, shape or content, before anything is written.
        """
        store = own_store(kv, NativeKvStore)
        logits = self._logits.take(len(batch.logit_rows))
        hidden = np.empty((len(batch.hidden_rows), self._shape.hidden), np.float32)
        tables = np.concatenate(batch.block_tables)
        table_starts = np.cumsum([0, *map(len, batch.block_tables)], dtype=np.int32)
        half = self._numerics.kv_precision == "f16"
        self._native.forward(
            store.blocks,
            store.block_size,
            half,
            batch.tokens,
            batch.positions,
            batch.row_starts,
            tables,
            table_starts,
            batch.logit_rows,
            batch.hidden_rows,
            store.keys.view(np.uint16) if half else store.keys,
            store.values.view(np.uint16) if half else store.values,
            logits,
            hidden,
        )
        return StepOutput(logits=logits, hidden=hidden)


def _sizes(shape: LlamaShape) -> dict[str, Any]:
    """Return the sizes and constants by the names that the native model takes."""
    return {
        "hidden": shape.hidden,
        "intermediate": shape.intermediate,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_size": shape.head_size,
        "rotated": shape.rotated,
        "vocabulary": shape.vocabulary,
        "context": shape.context_tokens,
        "epsilon": shape.epsilon,
        "query_scale": math.log2(math.e) / math.sqrt(shape.head_size),
    }


def _pack(native: ModuleType, tensors: LlamaTensors, pool: ThreadPool) -> dict[int, Any]:
    """Pack all matrices, several at once; by the identity of the stored matrix (a tied embedding is packed once)."""
    matrices = [tensors.embedding, tensors.head, *(m for layer in tensors.layers for m in layer.matrices())]
    packed: dict[int, Any] = {}

    def unit(matrix: StoredMatrix) -> Unit:
        def pack() -> None:
            packed[id(matrix)] = native.Matrix(matrix.kind, matrix.outputs, matrix.inputs, matrix.rows)

        return pack

    pool.run([unit(matrix) for matrix in {id(m): m for m in matrices}.values()])
    return packed


def _layers(shape: LlamaShape, tensors: LlamaTensors, packed: dict[int, Any]) -> tuple[dict[str, Any], ...]:
    """Return each layer as the native model takes it: its parts by the names of `LayerTensors`, `window` and `unrotated`."""

    def parts(layer: LayerTensors) -> dict[str, Any]:
        given = attrs.asdict(layer, recurse=False)
        return {name: packed[id(part)] if isinstance(part, StoredMatrix) else part for name, part in given.items()}

    return tuple(
        parts(layer) | {"window": shape.window(index), "unrotated": index in shape.unrotated_layers}
        for index, layer in enumerate(tensors.layers)
    )
