"""The forward pass of an encoder in numpy, for records that `ordered` cannot run: it follows the record block by block.

Arrays are float32 in the layout of `kernels.reference.lanes`: (tiles, features, lanes), a row per token of the step. The bits of
a sequence depend on nothing else in the step. Knows nothing of files and of architectures.
Sources: Devlin et al., "BERT" (2018); Press et al., "Train Short, Test Long" (2021) for ALiBi; Song et al., "MPNet" (2020).
"""

from __future__ import annotations

import hashlib
import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, NoKvStore, Pooling, StepBatch, StepOutput
from tlserve.kernels.reference import blas
from tlserve.kernels.reference.elementwise import activate, layer_norm, rms_norm
from tlserve.kernels.reference.lanes import (
    Lanes,
    choose_lane_count,
    from_lanes,
    linear_lanes,
    map_tiles,
    to_lanes,
    weight_shapes,
)
from tlserve.kernels.reference.rope import rope_tables, rotate
from tlserve.kernels.reference.whole_attention import LengthGroup, attend_whole, plan_whole
from tlserve.kernels.thread_pool import ThreadPool
from tlserve.model.decoder.record import Norm, NormKind
from tlserve.model.encoder.distances import score_bias
from tlserve.model.encoder.embeddings import Embeddings
from tlserve.model.encoder.record import Encoder, EncoderFeedForward, WholeAttention
from tlserve.model.encoder.slots import block_prefix
from tlserve.model.encoder.weights import EncoderWeights

F32 = NDArray[np.float32]

KERNELS_VERSION = "described-encoder-1"


class EncoderModel:
    """A bidirectional `kernels.interface.Model` of any record. `threads` 0: one per core; `lanes` 0: as many as are exact."""

    def __init__(
        self, encoder: Encoder, weights: EncoderWeights, pooling: Pooling, threads: int = 0, *, lanes: int = 0
    ) -> None:
        blas.pin_to_one_thread()
        self._encoder = encoder
        self._arrays = _joined(encoder, weights)
        matrices = [array for name, array in self._arrays.items() if array.ndim == 2 and name[0].isdigit()]
        shapes = [shape for matrix in matrices for shape in weight_shapes(matrix)]
        self._lanes = Lanes(lanes or choose_lane_count(shapes), ThreadPool(threads))
        self._ropes = {
            rope: rope_tables(
                encoder.context_tokens,
                rope.turned,
                rope.base,
                linear_factor=rope.linear_factor,
                frequency_factors=np.array(rope.divisors, np.float64),
                amplitude=rope.amplitude,
            )
            for rope in encoder.ropes()
        }
        self._embeddings = Embeddings(encoder, weights)
        self._spec = _spec(encoder, weights, pooling, self._lanes.count)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    @property
    def weights_bytes(self) -> int:
        """Return the memory of the weights."""
        return sum(array.nbytes for array in self._arrays.values())

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Return a store that holds no memory: nothing is kept between steps."""
        return NoKvStore(blocks=blocks, block_size=block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:  # noqa: ARG002 - the interface's; nothing is stored
        """Run all sequences of `batch`, each of them whole; raises ValueError where one is not, or logits are requested."""
        if len(batch.logit_rows) or batch.positions[batch.row_starts[:-1]].any():
            raise ValueError("an encoder takes whole sequences and has no logits")
        with np.errstate(all="ignore"):  # an overflow is part of a row's answer, not a warning
            hidden = self._hidden(batch)[batch.hidden_rows]
        return StepOutput(logits=np.empty((0, self._encoder.vocabulary), np.float32), hidden=hidden)

    def _hidden(self, batch: StepBatch) -> F32:
        """Return the hidden states of all rows, (R, F)."""
        encoder, groups = self._encoder, plan_whole(batch.row_starts)
        x = self._norm(to_lanes(self._embeddings.rows(batch), self._lanes.count), encoder.embed_norm, "embedding_norm")
        for index, block in enumerate(encoder.blocks):
            prefix = block_prefix(index, block)
            normed = self._norm(x, block.pre, f"{prefix}.pre")
            if isinstance(block.mixer, WholeAttention):
                mixed = self._attention(block.mixer, normed, prefix, batch, groups)
            else:
                mixed = self._feed_forward(block.mixer, normed, prefix)
            y = self._norm(x + self._norm(mixed, block.post, f"{prefix}.post"), block.after, f"{prefix}.after")
            x = y if block.again is None else self._norm(y + x, block.again, f"{prefix}.again")
        return from_lanes(self._norm(x, encoder.norm, "norm"), len(batch.tokens))

    def _attention(
        self, a: WholeAttention, x: F32, prefix: str, batch: StepBatch, groups: tuple[LengthGroup, ...]
    ) -> F32:
        rows, size = len(batch.tokens), a.head_size
        qkv = from_lanes(self._linear(x, f"{prefix}.qkv"), rows)
        parts = np.split(qkv, [a.heads * size, (a.heads + a.kv_heads) * size], axis=1)
        q, k, v = (part.reshape(rows, -1, size) for part in parts)
        q, k = (
            self._head_norm(heads, norm, f"{prefix}.{name}")
            for heads, norm, name in ((q, a.q_norm, "q_norm"), (k, a.k_norm, "k_norm"))
        )
        if a.rope is not None:
            tables = self._ropes[a.rope]
            q, k = np.array(q), np.array(k)
            for heads in (q, k):
                rotate(heads, tables.cos[batch.positions], tables.sin[batch.positions])
        shared = a.heads // a.kv_heads
        each = [q * np.float32(math.log2(math.e) * a.scale), np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)]
        whole = np.concatenate([part.reshape(rows, -1) for part in each], axis=1)
        bias = score_bias(a, self._arrays.get("distances"))
        mixed = attend_whole(whole, groups, a.heads, self._lanes.pool, bias)
        return self._linear(to_lanes(mixed, self._lanes.count), f"{prefix}.output")

    def _feed_forward(self, f: EncoderFeedForward, x: F32, prefix: str) -> F32:
        act = partial(activate, activation=f.activation.value)
        first = self._linear(x, f"{prefix}.{'gate' if f.gated else 'up'}", act)
        if f.gated:
            first *= self._linear(x, f"{prefix}.up")
        return self._linear(first, f"{prefix}.down")

    def _linear(self, x: F32, slot: str, act: partial[None] | None = None) -> F32:
        return linear_lanes(x, self._arrays[slot], self._arrays[f"{slot}.bias"], self._lanes, act)

    def _head_norm(self, heads: F32, norm: Norm | None, slot: str) -> F32:
        """Return the norm of each head, or of all heads of a row together. (R, H, D) -> the same."""
        if norm is None:
            return heads
        rows = heads.reshape(len(heads), -1) if norm.whole_row else heads.reshape(-1, heads.shape[2])
        return self._norm_rows(rows, norm, slot).reshape(heads.shape)

    def _norm(self, x: F32, norm: Norm | None, slot: str) -> F32:
        if norm is None:
            return x

        def of_tiles(tiles: F32) -> F32:
            rows = tiles.transpose(0, 2, 1)
            flat = self._norm_rows(rows.reshape(-1, rows.shape[2]), norm, slot)
            return flat.reshape(rows.shape).transpose(0, 2, 1)

        return map_tiles(x, of_tiles, self._lanes)

    def _norm_rows(self, rows: F32, norm: Norm, slot: str) -> F32:
        weight, epsilon = self._arrays[slot], np.float32(norm.epsilon)
        if norm.kind is NormKind.RMS:
            return rms_norm(rows, weight, epsilon)
        return layer_norm(rows, weight, self._arrays.get(f"{slot}.bias"), epsilon)


def _joined(encoder: Encoder, weights: EncoderWeights) -> dict[str, F32]:
    """Return the arrays with queries, keys and values joined, and zeros for the biases that a product does not have."""
    arrays = dict(weights.arrays)
    for index, block in enumerate(encoder.blocks):
        prefix = block_prefix(index, block)
        if isinstance(block.mixer, WholeAttention):
            for ending in ("", ".bias"):
                if f"{prefix}.q{ending}" in arrays:
                    arrays[f"{prefix}.qkv{ending}"] = np.concatenate(
                        [arrays.pop(f"{prefix}.{p}{ending}") for p in "qkv"]
                    )
        for part in ("qkv", "output", "gate", "up", "down"):
            if f"{prefix}.{part}" in arrays:
                arrays.setdefault(f"{prefix}.{part}.bias", np.zeros(len(arrays[f"{prefix}.{part}"]), np.float32))
    return arrays


def _spec(encoder: Encoder, weights: EncoderWeights, pooling: Pooling, lanes: int) -> ModelSpec:
    """Describe the model; `numerics` hashes the weights, the record, and everything that can decide how numpy rounds."""
    kernels = f"reference (numpy, {f'{lanes} rows side by side' if lanes > 1 else 'single rows'})"
    decides = (weights.identity, str(encoder), str(pooling), "float32", KERNELS_VERSION, kernels, blas.describe())
    return ModelSpec(
        architecture=encoder.architecture,
        vocabulary_size=encoder.vocabulary,
        hidden_size=encoder.hidden,
        context_tokens=encoder.context_tokens,
        kv_bytes_per_token=0,
        kernels=kernels,
        numerics=hashlib.blake2b("\0".join(decides).encode(), digest_size=8).hexdigest(),
        bidirectional=True,
        pooling=pooling,
    )
