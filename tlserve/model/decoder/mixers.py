"""What the mixers of a record compute, in numpy: attention and the feed-forward part.

Every array is float32 and has a row for each token of the step; T rows, F features, H query heads, h key heads, D components of
a head. `reference` adds the results to the residual.
Sources: Touvron et al., "LLaMA" (2023); Gemma Team, "Gemma 2" (2024) for capped scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import StepBatch
from tlserve.kernels.reference.attention import attend_in_order
from tlserve.kernels.reference.elementwise import activate, clamped_swiglu, layer_norm, rms_norm, silu_times
from tlserve.kernels.reference.rope import RopeTables, rotate
from tlserve.model.decoder.kv_precision import PositionStore
from tlserve.model.decoder.parts import Parts
from tlserve.model.decoder.record import Activation, Attention, FeedForward, LayerInput, Norm, NormKind, Rope

F32 = NDArray[np.float32]


@attrs.frozen(eq=False)
class SequencePlaces:
    """Where one sequence of a step has its rows and its keys."""

    rows: slice
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]  # of the positions 0 .. the last


@attrs.frozen(eq=False)
class Step:
    """One step, as its mixers need it. `ropes`: the rows of the tables at the positions of the step.

    `inputs`: what every layer takes of the tokens besides the rows, (T, layers, width); of a model that has none, empty.
    """

    positions: NDArray[np.int32]
    sequences: tuple[SequencePlaces, ...]
    ropes: Mapping[Rope, RopeTables]
    kv: PositionStore
    inputs: F32

    @classmethod
    def of(cls, batch: StepBatch, kv: PositionStore, tables: Mapping[Rope, RopeTables], inputs: F32) -> Step:
        """Find the rows and the slots of every sequence."""
        found = []
        for index, table in enumerate(batch.block_tables):
            rows = slice(int(batch.row_starts[index]), int(batch.row_starts[index + 1]))
            positions = batch.positions[rows]
            keys = np.arange(positions[-1] + 1)
            slots = table[keys // kv.block_size].astype(np.int64) * kv.block_size + keys % kv.block_size
            found.append(SequencePlaces(rows, positions, slots))
        ropes = {rope: RopeTables(t.cos[batch.positions], t.sin[batch.positions]) for rope, t in tables.items()}
        return cls(batch.positions, tuple(found), ropes, kv, inputs)


def apply_norm(x: F32, norm: Norm | None, slot: str, parts: Parts) -> F32:
    """Return the norm of every row, or `x` where there is none. (T, F) -> (T, F)."""
    if norm is None:
        return x
    weight, epsilon = parts.vector(slot), np.float32(norm.epsilon)
    if norm.weightless:
        return rms_norm(x, np.float32(1), epsilon)
    assert weight is not None
    if norm.kind is NormKind.RMS:
        return rms_norm(x, weight, epsilon)
    return layer_norm(x, weight, parts.vector(f"{slot}.bias"), epsilon)


def _head_norm(heads: F32, norm: Norm | None, slot: str, parts: Parts) -> F32:
    """Return the norm of every head of every row, or `heads` where there is none. (T, H, D) -> (T, H, D)."""
    if norm is None:
        return heads
    if norm.whole_row:
        return apply_norm(heads.reshape(len(heads), -1), norm, slot, parts).reshape(heads.shape)
    if not norm.per_head:
        return apply_norm(heads.reshape(-1, heads.shape[2]), norm, slot, parts).reshape(heads.shape)
    weight = parts.vector(slot)
    assert weight is not None
    own = weight.reshape(heads.shape[1:])
    if norm.kind is NormKind.RMS:
        return (
            rms_norm(heads.reshape(-1, heads.shape[2]), np.float32(1), np.float32(norm.epsilon)).reshape(heads.shape)
            * own
        )
    return layer_norm(heads, own, None, np.float32(norm.epsilon))


@attrs.frozen(eq=False)
class AttentionMixer:
    """`record.Attention` with its weights; `number` names its keys in a store, its own or those of earlier attention."""

    record: Attention
    prefix: str
    parts: Parts
    number: int

    def run(self, x: F32, step: Step) -> F32:
        """Return the attention of normed rows; stores their keys and values. (T, F) -> (T, F)."""
        a = self.record
        q, *own = self._products(x)
        q = self._finished(q, a.q_norm, "q_norm", step)
        q *= query_scale(a, step.positions)
        grouped = q.reshape(len(x), a.kv_heads, -1, a.head_size)
        if own:
            self._store(own[0], in_halves(own[0], a.turned) if a.v_from_k else own[1], step)
        cap, sinks = np.float32(a.cap * math.log2(math.e)), self.sinks()
        mixed = [
            attend_in_order(
                grouped[s.rows],
                *step.kv.read(self.number, s.slots),
                s.positions,
                a.window,
                cap,
                sinks,
                both_sides=a.both_sides,
            )
            for s in step.sequences
        ]
        return self.parts.linear(np.concatenate(mixed).reshape(len(x), -1), f"{self.prefix}.output")[0]

    def output_bias(self) -> F32 | None:
        """Return what is added to the result."""
        return self.parts.vector(f"{self.prefix}.output.bias")

    def sinks(self) -> F32 | None:
        """Return log2(e) times the further score of every head, (kv_heads, group), None where there is none."""
        sinks = self.parts.vector(f"{self.prefix}.sinks") if self.record.sinks else None
        return None if sinks is None else scaled_sinks(sinks).reshape(self.record.kv_heads, -1)

    def _products(self, x: F32) -> list[F32]:
        """Return the products of queries, of keys and of values, as far as there are any, (T, H or h, D) each."""
        a = self.record
        parts = "q" if a.kv_from is not None else "qk" if a.v_from_k else "qkv"
        products = self.parts.biased(x, *(f"{self.prefix}.{part}" for part in parts))
        return [product.reshape(len(x), -1, a.head_size) for product in products]

    def _store(self, k: F32, v: F32, step: Step) -> None:
        """Finish and store keys and values, (T, h, D) each."""
        a = self.record
        v = _head_norm(v, a.v_norm, f"{self.prefix}.v_norm", self.parts)
        k = self._finished(k, a.k_norm, "k_norm", step)
        for sequence in step.sequences:
            step.kv.write(self.number, sequence.slots[sequence.positions], k[sequence.rows], v[sequence.rows])

    def _finished(self, heads: F32, norm: Norm | None, slot: str, step: Step) -> F32:
        """Return queries or keys after their norm and rotation, in their order."""
        a = self.record
        if not a.norm_after_rope:
            heads = _head_norm(heads, norm, f"{self.prefix}.{slot}", self.parts)
        if a.rope is not None:
            tables = step.ropes[a.rope]
            rotate(heads, tables.cos, tables.sin)
        return _head_norm(heads, norm, f"{self.prefix}.{slot}", self.parts) if a.norm_after_rope else heads


def in_halves(heads: F32, turned: int) -> F32:
    """Return heads with the first components of all pairs that turn before the second ones; a copy. (T, h, D)."""
    return np.concatenate([heads[..., 0:turned:2], heads[..., 1:turned:2], heads[..., turned:]], axis=-1)


def query_scale(attention: Attention, positions: NDArray[np.int32]) -> F32 | np.float32:
    """Return log2(e) * scale, or that times the temperature of every position, (T, 1, 1): scores are powers of 2 then."""
    scale = math.log2(math.e) * attention.scale
    if attention.temperature is None:
        return np.float32(scale)
    factors = [scale * attention.temperature.factor(int(p)) for p in positions]
    return np.array(factors, np.float32)[:, None, None]


def scaled_sinks(sinks: F32) -> F32:
    """Return log2(e) times the sinks of heads, (H,)."""
    return sinks * np.float32(math.log2(math.e))


@attrs.frozen(eq=False)
class FeedForwardMixer:
    """`record.FeedForward` with its weights."""

    record: FeedForward
    prefix: str
    parts: Parts

    def run(self, x: F32, step: Step) -> F32:  # noqa: ARG002 - every mixer's
        """Return the feed-forward part of normed rows. (T, F) -> (T, F)."""
        middle = self._gated(x) if self.record.gated else self._plain(x)
        return self.parts.linear(middle, f"{self.prefix}.down")[0]

    def output_bias(self) -> F32 | None:
        """Return what is added to the result."""
        return self.parts.vector(f"{self.prefix}.down.bias")

    def _gated(self, x: F32) -> F32:
        gate, up = self._products(x, "gate", "up")
        if self.record.activation is Activation.SILU:
            silu_times(gate, up, out=gate)
            return gate
        if self.record.activation is Activation.CLAMPED_SWIGLU:
            clamped_swiglu(gate, up)
            return gate
        activate(gate, self.record.activation.value)
        gate *= up
        return gate

    def _plain(self, x: F32) -> F32:
        up = self._products(x, "up")[0]
        activate(up, self.record.activation.value)
        return up

    def _products(self, x: F32, *names: str) -> list[F32]:
        return self.parts.biased(x, *(f"{self.prefix}.{name}" for name in names))


@attrs.frozen(eq=False)
class LayerInputMixer:
    """`record.LayerInput` with its weights, in layer `layer`."""

    record: LayerInput
    prefix: str
    parts: Parts
    layer: int

    def run(self, x: F32, step: Step) -> F32:
        """Return what the layer's input adds to the rows. (T, F) -> (T, F)."""
        gate = self.parts.linear(x, f"{self.prefix}.gate")[0]
        activate(gate, self.record.activation.value)
        gate *= step.inputs[:, self.layer]
        return self.parts.linear(gate, f"{self.prefix}.down")[0]

    def output_bias(self) -> F32 | None:
        """Return what is added to the result: nothing."""
        return None
