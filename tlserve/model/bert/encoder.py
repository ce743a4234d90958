"""The BERT encoder's forward pass in numpy: every row of a sequence sees all of it, and there are no logits.

Has the order of the layers. Arrays are float32 in the layout of `kernels.reference.lanes`: (tiles, features, lanes), a row per
token of the step. Knows nothing of files (`weights` makes the arrays) or of the use of the hidden states (`engine.pooling`).
Source: Devlin et al., "BERT" (2018), and `modeling_bert` of transformers.
"""

from __future__ import annotations

import hashlib
import math

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, NoKvStore, Pooling, StepBatch, StepOutput
from tlserve.kernels.reference import blas
from tlserve.kernels.reference.elementwise import gelu, layer_norm
from tlserve.kernels.reference.lanes import (
    Lanes,
    ProductShape,
    choose_lane_count,
    from_lanes,
    linear_lanes,
    map_tiles,
    to_lanes,
    weight_shapes,
)
from tlserve.kernels.reference.whole_attention import LengthGroup, attend_whole, plan_whole
from tlserve.kernels.thread_pool import ThreadPool

F32 = NDArray[np.float32]

KERNELS_VERSION = "encoder-1"


@attrs.frozen(kw_only=True)
class BertShape:
    """The sizes and constants of a BERT. `positions` have a vector; `context_tokens` are served, [CLS] and [SEP] included."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    positions: int
    token_types: int
    context_tokens: int
    epsilon: float


@attrs.frozen(eq=False)
class Affine:
    """`weight` (N, K) and `bias` (N,); of a norm (F,) both."""

    weight: F32
    bias: F32


@attrs.frozen(kw_only=True, eq=False)
class BertLayer:
    """One layer. F features, I of the intermediate ones."""

    qkv: Affine  # (3 F, F): queries, keys, values
    output: Affine  # (F, F)
    attention_norm: Affine
    up: Affine  # (I, F)
    down: Affine  # (F, I)
    norm: Affine


@attrs.frozen(kw_only=True, eq=False)
class BertWeights:
    """All weights. `positions` hold the vector of the first token type as well. `identity`: a hash of what they came from."""

    embedding: F32  # (vocabulary, F)
    positions: F32  # (positions, F)
    norm: Affine
    layers: tuple[BertLayer, ...]
    identity: str


class BertModel:
    """A bidirectional `kernels.interface.Model`. `threads` 0: one per core; `lanes` 0: as many as a test finds exact."""

    def __init__(
        self, shape: BertShape, weights: BertWeights, pooling: Pooling, threads: int = 0, *, lanes: int = 0
    ) -> None:
        blas.pin_to_one_thread()
        self._shape = shape
        self._weights = weights
        self._lanes = Lanes(lanes or choose_lane_count(_product_shapes(weights)), ThreadPool(threads))
        self._epsilon = np.float32(shape.epsilon)
        self._query_scale = np.float32(math.log2(math.e) / math.sqrt(shape.hidden // shape.heads))
        self._spec = _spec(shape, weights, pooling, self._lanes.count)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Return a store that holds no memory: nothing is kept between steps."""
        return NoKvStore(blocks=blocks, block_size=block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:  # noqa: ARG002 - the interface's; nothing is stored
        """Run all sequences of `batch`, each of them whole; raises ValueError where one is not, or logits are requested."""
        if len(batch.logit_rows) or batch.positions[batch.row_starts[:-1]].any():
            raise ValueError("an encoder takes whole sequences and has no logits")
        with np.errstate(all="ignore"):  # an overflow is part of a row's answer, not a warning
            hidden = self._hidden(batch)[batch.hidden_rows]
        return StepOutput(logits=np.empty((0, self._shape.vocabulary), np.float32), hidden=hidden)

    def _hidden(self, batch: StepBatch) -> F32:
        """Return the hidden states of all rows, (R, F)."""
        rows, weights = len(batch.tokens), self._weights
        groups = plan_whole(batch.row_starts)
        embedded = weights.embedding[batch.tokens] + weights.positions[batch.positions]
        x = self._norm(to_lanes(embedded, self._lanes.count), weights.norm)
        for layer in weights.layers:
            x = self._norm(x + self._attention(layer, x, groups, rows), layer.attention_norm)
            x = self._norm(x + self._feed_forward(layer, x), layer.norm)
        return from_lanes(x, rows)

    def _attention(self, layer: BertLayer, x: F32, groups: tuple[LengthGroup, ...], rows: int) -> F32:
        qkv = from_lanes(self._linear(x, layer.qkv), rows)
        qkv[:, : self._shape.hidden] *= self._query_scale
        mixed = attend_whole(qkv, groups, self._shape.heads, self._lanes.pool)
        return self._linear(to_lanes(mixed, self._lanes.count), layer.output)

    def _feed_forward(self, layer: BertLayer, x: F32) -> F32:
        up = linear_lanes(x, layer.up.weight, layer.up.bias, self._lanes, gelu)
        return self._linear(up, layer.down)

    def _linear(self, x: F32, affine: Affine) -> F32:
        return linear_lanes(x, affine.weight, affine.bias, self._lanes)

    def _norm(self, x: F32, norm: Affine) -> F32:
        def of_tiles(tiles: F32) -> F32:
            normed = layer_norm(tiles.transpose(0, 2, 1), norm.weight, norm.bias, self._epsilon)
            return normed.transpose(0, 2, 1)

        return map_tiles(x, of_tiles, self._lanes)


def _product_shapes(weights: BertWeights) -> list[ProductShape]:
    """Return the shapes of all products of rows with weights."""
    layer = weights.layers[0]
    return [
        shape for affine in (layer.qkv, layer.output, layer.up, layer.down) for shape in weight_shapes(affine.weight)
    ]


def _spec(shape: BertShape, weights: BertWeights, pooling: Pooling, lanes: int) -> ModelSpec:
    """Describe the model; `numerics` hashes the weights, the sizes, and everything that can decide how numpy rounds."""
    kernels = f"reference (numpy, {f'{lanes} rows side by side' if lanes > 1 else 'single rows'})"
    decides = (weights.identity, str(shape), str(pooling), "float32", KERNELS_VERSION, kernels, blas.describe())
    return ModelSpec(
        architecture="bert",
        vocabulary_size=shape.vocabulary,
        hidden_size=shape.hidden,
        context_tokens=shape.context_tokens,
        kv_bytes_per_token=0,
        kernels=kernels,
        numerics=hashlib.blake2b("\0".join(decides).encode(), digest_size=8).hexdigest(),
        bidirectional=True,
        pooling=pooling,
    )
