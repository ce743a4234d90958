"""A decoder on the native kernels: weights packed once, then one native call for each step.

Has what crosses into C: the names of matrices and vectors, and the layout of the store. Knows nothing of the arithmetic:
`kernels/native` states the order of every sum, and `reference` is the same in numpy. `form` says what can run.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput, own_store
from tlserve.kernels.reference.rope import RopeTables
from tlserve.kernels.thread_pool import ThreadPool, Unit
from tlserve.model.decoder.kv_precision import PRECISIONS, Stored
from tlserve.model.decoder.native.form import NativeForm, native_form
from tlserve.model.decoder.numerics import Numerics, decoder_spec, rotation_tables
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.weights import StoredMatrix, Weights

Ints = NDArray[np.int32]
_KEY_TILE = 16

_MATRICES = {
    "q": "attention.q",
    "k": "attention.k",
    "v": "attention.v",
    "output": "attention.output",
    "gate": "ffn.gate",
    "up": "ffn.up",
    "down": "ffn.down",
}
"""The name of a layer's matrix in the kernels -> its slot."""

_VECTORS = {
    "attention_norm": "attention.pre",
    "ffn_norm": "ffn.pre",
    "q_bias": "attention.q.bias",
    "k_bias": "attention.k.bias",
    "v_bias": "attention.v.bias",
    "output_bias": "attention.output.bias",
    "query_norm": "attention.q_norm",
    "key_norm": "attention.k_norm",
}


class NativeKvStore:
    """A `kernels.interface.KvStore`: for each block and layer, keys (kv_heads, D, block_size), values (kv_heads, block_size, D).

    D of the values is padded to a multiple of 16. The memory is touched only where something was written. All layers of a
    block are adjacent, because the system gives memory in pages of up to 2 MB.
    """

    def __init__(self, form: NativeForm, blocks: int, block_size: int, precision: str) -> None:
        self._blocks = blocks
        self._block_size = block_size
        head_size = form.attention.head_size
        padded = -(-head_size // _KEY_TILE) * _KEY_TILE
        paged = (blocks, len(form.windows), form.attention.kv_heads)
        self.keys: Stored = np.zeros((*paged, head_size, block_size), PRECISIONS[precision])
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


class NativeModel:
    """A `kernels.interface.Model` of a record that has a `NativeForm`, on the instruction set `isa` of the module `native`."""

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
        form = native_form(decoder)
        if isinstance(form, str):
            raise TypeError(f"the native kernels do not have: {form}")
        pool = ThreadPool(threads)
        tables = rotation_tables(decoder)
        matrices = _pack(native, weights, pool)
        rotation = tables[form.rope] if form.rope else _NO_ROTATION
        self._hidden = decoder.hidden
        self._form = form
        self._numerics = numerics
        self.weights_bytes = weights.vector_bytes() + sum(packed.nbytes for packed in matrices.values())
        self._logits = _ReusedRows(decoder.vocabulary)
        self._native = native.Model(
            **form.sizes(decoder),
            activations=numerics.activations,
            isa=isa,
            threads=pool.threads,
            embedding=matrices["embedding"],
            head=matrices.get("head", matrices["embedding"]),
            norm=weights.vectors["norm"],
            cos=rotation.cos,
            sin=rotation.sin,
            layers=_layers(form, weights, matrices),
        )
        threads_named = "1 thread" if pool.threads == 1 else f"{pool.threads} threads"
        kernels = f"native ({isa}, {numerics.activations} activations, {threads_named})"
        self._spec = decoder_spec(decoder, weights.identity, tables, numerics, kernels)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve memory for `blocks` blocks of keys and values."""
        return NativeKvStore(self._form, blocks, block_size, self._numerics.kv_precision)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        """Run all rows of `batch` in one native call; see `kernels.interface.Model.forward`.

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
        )
        return StepOutput(logits=logits, hidden=hidden)


_NO_ROTATION = RopeTables(np.empty(0, np.float32), np.empty(0, np.float32))


def _pack(native: ModuleType, weights: Weights, pool: ThreadPool) -> dict[str, Any]:
    """Pack all matrices, several at once; by their slots."""
    packed: dict[str, Any] = {}

    def unit(slot: str, matrix: StoredMatrix) -> Unit:
        def pack() -> None:
            packed[slot] = native.Matrix(matrix.kind, matrix.outputs, matrix.inputs, matrix.rows)

        return pack

    pool.run([unit(slot, matrix) for slot, matrix in weights.matrices.items()])
    return packed


def _layers(form: NativeForm, weights: Weights, packed: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return each layer as the native model takes it: matrices, vectors, `window` and `unrotated`."""
    return tuple(
        {name: packed[f"{index}.{slot}"] for name, slot in _MATRICES.items()}
        | {name: weights.vectors.get(f"{index}.{slot}") for name, slot in _VECTORS.items()}
        | {"window": window, "unrotated": unrotated}
        for index, (window, unrotated) in enumerate(zip(form.windows, form.unrotated, strict=True))
    )
