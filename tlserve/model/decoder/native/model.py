"""A decoder on the native kernels: weights packed once, then one native call for each step.

Has the layout of the store and the native call. Knows nothing of the arithmetic: `kernels/native` states the order of every sum,
and `reference` is the same in numpy. `form` says what can run, and has the names of what crosses into C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput, own_store
from tlserve.kernels.thread_pool import ThreadPool, Unit
from tlserve.model.decoder.kv_precision import PRECISIONS, Stored
from tlserve.model.decoder.native.form import NativeParts, missing_mechanism
from tlserve.model.decoder.numerics import Numerics, decoder_spec, rotation_tables
from tlserve.model.decoder.record import Attention, Decoder, kept_attentions
from tlserve.model.decoder.weights import StoredMatrix, Weights

Ints = NDArray[np.int32]
_KEY_TILE = 16
_NO_ROWS = np.zeros(0, np.float32)


class NativeKvStore:
    """A `kernels.interface.KvStore`: in each block, for each attention mixer, its keys and its values.

    Keys are (kv_heads, D, block_size), values (kv_heads, block_size, D) with D padded to a multiple of 16. The memory is
    touched only where something was written. All layers of a block are adjacent, because the system gives memory in pages
    of up to 2 MB.
    """

    def __init__(self, attentions: Sequence[Attention], blocks: int, block_size: int, precision: str) -> None:
        self._blocks = blocks
        self._block_size = block_size
        kept = kept_attentions(attentions)
        key_width = sum(a.kv_heads * a.head_size for a in kept)
        value_width = sum(a.kv_heads * -(-a.head_size // _KEY_TILE) * _KEY_TILE for a in kept)
        self.keys: Stored = np.zeros((blocks, key_width * block_size), PRECISIONS[precision])
        self.values: Stored = np.zeros((blocks, value_width * block_size), PRECISIONS[precision])

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


class NativeModel:
    """A `kernels.interface.Model` of a record that the kernels can run, on the instruction set `isa` of the module `native`."""

    def __init__(
        self,
        native: ModuleType,
        decoder: Decoder,
        weights: Weights,
        numerics: Numerics,
        *,
        isa: str,
        threads: int = 0,
    ) -> None:
        missing = missing_mechanism(decoder)
        if missing:
            raise TypeError(f"the native kernels do not have: {missing}")
        pool = ThreadPool(threads)
        tables = rotation_tables(decoder)
        matrices = _pack(native, weights, pool)
        parts = NativeParts(decoder=decoder, matrices=matrices, vectors=weights.vectors, tables=tables)
        self._hidden = decoder.hidden
        self._attentions = decoder.stored_attentions()
        self._numerics = numerics
        self.weights_bytes = weights.vector_bytes() + sum(packed.nbytes for packed in matrices.values())
        self._logits = _ReusedRows(decoder.vocabulary)
        self._native = native.Model(**parts.model(), activations=numerics.activations, isa=isa, threads=pool.threads)
        threads_named = "1 thread" if pool.threads == 1 else f"{pool.threads} threads"
        kernels = f"native ({isa}, {numerics.activations} activations, {threads_named})"
        self._spec = decoder_spec(decoder, weights.identity, tables, numerics, kernels)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve memory for `blocks` blocks of keys and values."""
        return NativeKvStore(self._attentions, blocks, block_size, self._numerics.kv_precision)

    def forward(self, batch: StepBatch, kv: KvStore, inputs: NDArray[np.float32] = _NO_ROWS) -> StepOutput:
        """Run all rows of `batch` in one native call; see `kernels.interface.Model.forward`.

        `inputs` (T, hidden): rows instead of the embeddings of the tokens.
        Raises TypeError or ValueError for arrays of a wrong type, shape or content, before anything is written.
        """
        store = own_store(kv, NativeKvStore)
        logits = self._logits.take(len(batch.logit_rows))
        hidden = np.empty((len(batch.hidden_rows), self._hidden), np.float32)
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
            inputs,
        )
        return StepOutput(logits=logits, hidden=hidden)


def _pack(native: ModuleType, weights: Weights, pool: ThreadPool) -> dict[str, Any]:
    """Pack all matrices, several at once; by their slots."""
    packed: dict[str, Any] = {}

    def unit(slot: str, matrix: StoredMatrix) -> Unit:
        def pack() -> None:
            packed[slot] = native.Matrix(matrix.kind, matrix.outputs, matrix.inputs, matrix.rows)

        return pack

    pool.run([unit(slot, matrix) for slot, matrix in weights.matrices.items()])
    return packed
