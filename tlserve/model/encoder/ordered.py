"""An encoder on the kernels of decoders, native or in numpy: the bits of a sequence depend on its own tokens and nothing else.

Has the keys and values of a step, which no later one reads. Knows nothing of files; `as_decoder` has the record.
"""

from __future__ import annotations

import hashlib

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, NoKvStore, Pooling, StepBatch, StepOutput
from tlserve.kernels.reference.blocks import BLOCK, F32_KIND
from tlserve.model.decoder.build import DecoderModel, choose_model
from tlserve.model.decoder.quantised_source import Q8_0_KIND, q8_0_rows
from tlserve.model.decoder.weights import StoredMatrix, Weights
from tlserve.model.encoder.as_decoder import as_decoder
from tlserve.model.encoder.embeddings import SLOTS, Embeddings
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.weights import EncoderWeights
from tlserve.model.loaded_model import LoadOptions

F32 = NDArray[np.float32]
_BLOCK_SIZE = 16
_KV_PRECISION = "f32"  # of keys and values that are read once and not kept: half precision would save nothing


class OrderedEncoder:
    """A bidirectional `kernels.interface.Model` of a record that `has_decoder`."""

    def __init__(self, encoder: Encoder, weights: EncoderWeights, pooling: Pooling, options: LoadOptions) -> None:
        self._embeddings = Embeddings(encoder, weights)
        stored = _stored(weights, in_8_bits=options.kernels.weights == "q8_0")
        self._inner = choose_model(as_decoder(encoder), stored, _KV_PRECISION, options)
        self._store = self._inner.new_kv_store(1, _BLOCK_SIZE)
        self._spec = _spec(encoder, self._inner, pooling)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    @property
    def weights_bytes(self) -> int:
        """Return the memory of the weights."""
        return self._embeddings.nbytes + self._inner.weights_bytes

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Return a store that holds no memory: nothing is kept between steps."""
        return NoKvStore(blocks=blocks, block_size=block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:  # noqa: ARG002 - the interface's; nothing is kept
        """Run all sequences of `batch`, each of them whole; raises ValueError where one is not, or logits are requested."""
        if len(batch.logit_rows) or batch.positions[batch.row_starts[:-1]].any():
            raise ValueError("an encoder takes whole sequences and has no logits")
        ends = np.cumsum(-(-np.diff(batch.row_starts) // _BLOCK_SIZE))
        tables = tuple(np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1]))
        if self._store.blocks < ends[-1]:
            self._store = self._inner.new_kv_store(int(ends[-1]), _BLOCK_SIZE)
        placed = attrs.evolve(batch, block_tables=tables)
        return self._inner.forward(placed, self._store, self._embeddings.rows(batch))


def _stored(weights: EncoderWeights, *, in_8_bits: bool) -> Weights:
    """Return the weights of the layers; `in_8_bits`: the matrices whose rows are whole blocks as Q8_0."""
    matrices: dict[str, StoredMatrix] = {}
    vectors: dict[str, F32] = {}
    for slot, array in weights.arrays.items():
        if slot in SLOTS:
            continue
        if array.ndim == 1:
            vectors[slot] = array
            continue
        outputs, inputs = array.shape
        if in_8_bits and inputs % BLOCK == 0:
            matrices[slot] = StoredMatrix(Q8_0_KIND, outputs, inputs, q8_0_rows(array))
        else:
            matrices[slot] = StoredMatrix(F32_KIND, outputs, inputs, array.view(np.uint8))
    identity = f"{weights.identity}/q8_0" if in_8_bits else weights.identity
    return Weights(matrices=matrices, vectors=vectors, hashed=lambda: identity)


def _spec(encoder: Encoder, inner: DecoderModel, pooling: Pooling) -> ModelSpec:
    """Describe the model; `numerics` hashes those of the layers, the record and the pooling."""
    decides = "\0".join((inner.spec.numerics, str(encoder), str(pooling)))
    return attrs.evolve(
        inner.spec,
        kv_bytes_per_token=0,
        numerics=hashlib.blake2b(decides.encode(), digest_size=8).hexdigest(),
        bidirectional=True,
        pooling=pooling,
    )
