"""The llama family's forward pass in numpy: the readable truth that faster kernels are tested against.

Owns the order of the layers, and what mistral, qwen2, qwen3 and smollm3 add to it. Every array is float32 and has a row per
token of the step: (R, ...), R rows, of which the last few may be zero rows that fill a tile. Refuses to know files
(`llama_weights` makes the arrays) and sequences (the plan knows them).
Source: Touvron et al., "LLaMA" (2023); the layout of the query and key rows is GGUF's (see `kernels.reference.rope`).
"""

from __future__ import annotations

import hashlib
import math

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput
from tlserve.kernels.reference import blas
from tlserve.kernels.reference.attention import attend, attention_shapes
from tlserve.kernels.reference.attention_plan import KEY_TILE, AttentionPlan, plan_attention
from tlserve.kernels.reference.elementwise import rms_norm, silu_times
from tlserve.kernels.reference.linear import RowTiles, gated_linear, gated_panel_shapes, linear, panel_shapes
from tlserve.kernels.reference.rope import RopeTables, rope_tables, rotate
from tlserve.kernels.thread_pool import ThreadPool
from tlserve.model.llama.kv_store import PagedKvStore
from tlserve.model.llama.shape import LlamaShape

F32 = NDArray[np.float32]

KERNELS_VERSION = "reference-1"
_NORM_CHUNK_ROWS = 32


@attrs.frozen(kw_only=True, eq=False)
class LlamaLayer:
    """One layer's weights, (inputs, outputs) each. H query heads, h key heads, D components of a head."""

    attention_norm: F32  # (hidden,)
    qkv: F32  # (hidden, (H + 2 h) * D): queries, keys, values
    output: F32  # (H * D, hidden)
    ffn_norm: F32  # (hidden,)
    gate_up: F32  # (hidden, 2 * intermediate), columns as `linear.gate_columns` says
    down: F32  # (intermediate, hidden)
    qkv_bias: F32 | None = None  # ((H + 2 h) * D,)
    output_bias: F32 | None = None  # (hidden,)
    query_norm: F32 | None = None  # (D,)
    key_norm: F32 | None = None  # (D,)


@attrs.frozen(kw_only=True, eq=False)
class LlamaWeights:
    """All weights. With tied embeddings `embedding` is a view of `head`. `identity`: a hash of the file they came from."""

    embedding: F32  # (vocabulary, hidden)
    layers: tuple[LlamaLayer, ...]
    norm: F32  # (hidden,)
    head: F32  # (hidden, vocabulary)
    rope_factors: NDArray[np.float64]  # (rotated / 2,)
    identity: str


class LlamaModel:
    """A `kernels.interface.Model` of the llama family. `threads` 0: one per core; `tile_rows` 0: as the probe finds exact."""

    def __init__(self, shape: LlamaShape, weights: LlamaWeights, threads: int = 0, *, tile_rows: int = 0) -> None:
        blas.pin_to_one_thread()
        self._shape = shape
        self._weights = weights
        self._tiles = RowTiles(tile_rows or blas.choose_tile_rows(_product_shapes(shape, weights)), ThreadPool(threads))
        self._rope = rotation_tables(shape, weights.rope_factors)
        self._epsilon = np.float32(shape.epsilon)
        self._query_scale = np.float32(math.log2(math.e) / math.sqrt(shape.head_size))
        self._spec = _spec(shape, weights, self._tiles.rows)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve room for `blocks` blocks of keys and values."""
        return PagedKvStore(
            layers=self._shape.layers,
            kv_heads=self._shape.kv_heads,
            head_size=self._shape.head_size,
            blocks=blocks,
            block_size=block_size,
            spare_slots=KEY_TILE,
        )

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        """Run all rows of `batch` through all layers; see `kernels.interface.Model.forward`."""
        if not isinstance(kv, PagedKvStore):
            raise TypeError("a llama's forward pass takes a store made by its own new_kv_store")
        with np.errstate(all="ignore"):  # an overflow is part of a row's answer, not a warning
            return self._forward(batch, kv)

    def _forward(self, batch: StepBatch, kv: PagedKvStore) -> StepOutput:
        plans = self._plans(batch, kv.block_size)
        rope = RopeTables(self._rope.cos[batch.positions], self._rope.sin[batch.positions])
        x = blas.pad_rows(self._weights.embedding[batch.tokens], self._tiles.rows)
        for index, layer in enumerate(self._weights.layers):
            x += self._attention(index, layer, x, plans[self._shape.window(index)], rope, kv)
            x += self._feed_forward(layer, x)
        return StepOutput(logits=self._logits(x[batch.logit_rows]), hidden=self._final_norm(x[batch.hidden_rows]))

    def _plans(self, batch: StepBatch, block_size: int) -> dict[int, AttentionPlan]:
        """Return the plan of the step for each window that some layer has."""
        group, threads = self._shape.heads // self._shape.kv_heads, self._tiles.pool.threads
        windows = set(self._shape.windows) or {0}
        return {window: plan_attention(batch, block_size, group, threads, window) for window in windows}

    def _attention(
        self, index: int, layer: LlamaLayer, x: F32, plan: AttentionPlan, rope: RopeTables, kv: PagedKvStore
    ) -> F32:
        """Return what layer `index` adds to the residual by attention; stores the rows' keys and values. (R, F) -> (R, F)."""
        shape = self._shape
        rows = len(plan.slots)
        queries, keys, values = self._queries_keys_values(layer, x, rows)
        if index not in shape.unrotated_layers:
            rotate(queries, rope.cos, rope.sin)
            rotate(keys, rope.cos, rope.sin)
        kv.write(index, plan.slots, keys, values)
        grouped = (queries * self._query_scale).reshape(rows, shape.kv_heads, -1, shape.head_size)
        mixed = np.zeros((len(x), *grouped.shape[1:]), np.float32)
        attend(
            grouped,
            kv.keys[index],
            kv.values[index],
            plan,
            mixed,
            tile_lanes=self._tiles.rows,
            pool=self._tiles.pool,
        )
        added = linear(mixed.reshape(len(x), -1), layer.output, self._tiles)
        return added if layer.output_bias is None else np.add(added, layer.output_bias, out=added)

    def _queries_keys_values(self, layer: LlamaLayer, x: F32, rows: int) -> tuple[F32, F32, F32]:
        """Return (rows, heads or key heads, D) each, not yet turned; views of one array where nothing is normed."""
        shape = self._shape
        qkv = linear(self._norm(x, layer.attention_norm), layer.qkv, self._tiles)[:rows]
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        heads = qkv.reshape(rows, shape.heads + 2 * shape.kv_heads, shape.head_size)
        queries, keys, values = np.split(heads, [shape.heads, shape.heads + shape.kv_heads], axis=1)
        return self._head_norm(queries, layer.query_norm), self._head_norm(keys, layer.key_norm), values

    def _head_norm(self, heads: F32, weight: F32 | None) -> F32:
        """Return the RMS norm of every head of every row, or `heads` where there is no weight. (T, H, D) -> (T, H, D)."""
        if weight is None:
            return heads
        return rms_norm(heads.reshape(-1, heads.shape[2]), weight, self._epsilon).reshape(heads.shape)

    def _feed_forward(self, layer: LlamaLayer, x: F32) -> F32:
        """Return what the gated feed-forward block adds to the residual. (R, F) -> (R, F)."""
        gated = gated_linear(self._norm(x, layer.ffn_norm), layer.gate_up, silu_times, self._tiles)
        return linear(gated, layer.down, self._tiles)

    def _norm(self, x: F32, weight: F32) -> F32:
        """Return the RMS norm of every row. (R, F) -> (R, F)."""
        if len(x) <= _NORM_CHUNK_ROWS:
            return rms_norm(x, weight, self._epsilon)
        out = np.empty_like(x)

        def chunk(start: int, end: int) -> None:
            out[start:end] = rms_norm(x[start:end], weight, self._epsilon)

        self._tiles.pool.run_row_chunks(chunk, len(x), _NORM_CHUNK_ROWS)
        return out

    def _final_norm(self, x: F32) -> F32:
        """Return the final norm of rows. (N, F) -> (N, F)."""
        return self._norm(x, self._weights.norm)

    def _logits(self, x: F32) -> F32:
        """Return the logits of rows. (N, F) -> (N, vocabulary)."""
        return linear(blas.pad_rows(self._final_norm(x), self._tiles.rows), self._weights.head, self._tiles)[: len(x)]


def _product_shapes(shape: LlamaShape, weights: LlamaWeights) -> list[blas.ProductShape]:
    """Return the shapes of all products of a forward pass."""
    layer = weights.layers[0]
    plain = [layer.qkv, layer.output, layer.down, weights.head]
    products = [product for weight in plain for product in panel_shapes(weight)]
    return products + gated_panel_shapes(layer.gate_up) + attention_shapes(shape.head_size)


def rotation_tables(shape: LlamaShape, rope_factors: NDArray[np.float64]) -> RopeTables:
    """Make the rotation tables of the whole context. rope_factors: (rotated / 2,), what each frequency is divided by."""
    factors, scaling = rope_factors, shape.rope_scaling
    if scaling is not None:
        factors = factors * scaling.frequency_factors(shape.rope_base, shape.rotated, shape.context_tokens)
    return rope_tables(
        shape.context_tokens,
        shape.rotated,
        shape.rope_base,
        linear_factor=shape.rope_linear_factor,
        frequency_factors=factors,
        amplitude=1.0 if scaling is None else scaling.amplitude,
    )


def _spec(shape: LlamaShape, weights: LlamaWeights, tile_rows: int) -> ModelSpec:
    """Describe the model; `numerics` hashes the weights, the sizes, and all that may decide how numpy rounds."""
    kernels = f"reference (numpy, {f'{tile_rows}-row tiles' if tile_rows > 1 else 'single rows'})"
    decides = (weights.identity, str(shape), "float32", KERNELS_VERSION, kernels, blas.describe())
    return ModelSpec(
        architecture=shape.architecture,
        vocabulary_size=shape.vocabulary,
        hidden_size=shape.hidden,
        context_tokens=shape.context_tokens,
        kv_bytes_per_token=2 * 4 * shape.layers * shape.kv_heads * shape.head_size,
        kernels=kernels,
        numerics=hashlib.blake2b("\0".join(decides).encode(), digest_size=8).hexdigest(),
    )
