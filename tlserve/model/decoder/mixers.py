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
from tlserve.model.decoder.record import Activation, Attention, FeedForward, Norm, NormKind, Rope

F32 = NDArray[np.float32]


@attrs.frozen(eq=False)
class SequencePlaces:
    """Where one sequence of a step has its rows and its keys."""

    rows: slice
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]  # of the positions 0 .. the last


@attrs.frozen(eq=False)
class Step:
    """One step, as its mixers need it. `ropes`: the rows of the tables at the positions of the step."""

    positions: NDArray[np.int32]
    sequences: tuple[SequencePlaces, ...]
    ropes: Mapping[Rope, RopeTables]
    kv: PositionStore

    @classmethod
    def of(cls, batch: StepBatch, kv: PositionStore, tables: Mapping[Rope, RopeTables]) -> Step:
        """Find the rows and the slots of every sequence."""
        found = []
        for index, table in enumerate(batch.block_tables):
            rows = slice(int(batch.row_starts[index]), int(batch.row_starts[index + 1]))
            positions = batch.positions[rows]
            keys = np.arange(positions[-1] + 1)
            slots = table[keys // kv.block_size].astype(np.int64) * kv.block_size + keys % kv.block_size
            found.append(SequencePlaces(rows, positions, slots))
        ropes = {rope: RopeTables(t.cos[batch.positions], t.sin[batch.positions]) for rope, t in tables.items()}
        return cls(batch.positions, tuple(found), ropes, kv)


def apply_norm(x: F32, norm: Norm | None, slot: str, parts: Parts) -> F32:
    """Return the norm of every row, or `x` where there is none. (T, F) -> (T, F)."""
    if norm is None:
        return x
    weight, epsilon = parts.vector(slot), np.float32(norm.epsilon)
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
    """`record.Attention` with its weights; `number` names its keys in a store."""

    record: Attention
    prefix: str
    parts: Parts
    number: int

    def run(self, x: F32, step: Step) -> F32:
        """Return the attention of normed rows; stores their keys and values. (T, F) -> (T, F)."""
        a = self.record
        q, k, v = self._turned(x, step)
        q *= query_scale(a, step.positions)
        grouped = q.reshape(len(x), a.kv_heads, -1, a.head_size)
        for sequence in step.sequences:
            step.kv.write(self.number, sequence.slots[sequence.positions], k[sequence.rows], v[sequence.rows])
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

    def _turned(self, x: F32, step: Step) -> tuple[F32, F32, F32]:
        """Return (T, H or h, D) each: products, biases, then norms and rotation of queries and keys in their order."""
        q, k, v = self._products(x)
        if not self.record.norm_after_rope:
            q, k = self._normed(q, k)
        if self.record.rope is not None:
            tables = step.ropes[self.record.rope]
            rotate(q, tables.cos, tables.sin)
            rotate(k, tables.cos, tables.sin)
        return (*self._normed(q, k), v) if self.record.norm_after_rope else (q, k, v)

    def _products(self, x: F32) -> tuple[F32, F32, F32]:
        products = self.parts.biased(x, *(f"{self.prefix}.{part}" for part in "qkv"))
        q, k, v = (product.reshape(len(x), -1, self.record.head_size) for product in products)
        return q, k, v

    def _normed(self, q: F32, k: F32) -> tuple[F32, F32]:
        return (
            _head_norm(q, self.record.q_norm, f"{self.prefix}.q_norm", self.parts),
            _head_norm(k, self.record.k_norm, f"{self.prefix}.k_norm", self.parts),
        )


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
