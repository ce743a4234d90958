"""The forward pass of a decoder in numpy: the readable reference, whose bits the native kernels must have.

To read it, begin at `ReferenceModel.forward`; it follows the record block by block, and `mixers` has what a block computes.
Every array is float32 and has a row for each token of the step; T rows, F features. Where a sum has a stated order,
`kernels.reference` states it, and C repeats it (`kernels/native/forward.c`). It serves models that the native kernels cannot run.
Knows nothing of files and of architectures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput, own_store
from tlserve.kernels.reference import blas
from tlserve.kernels.reference.elementwise import soft_cap
from tlserve.model.decoder.experts import ExpertsMixer
from tlserve.model.decoder.kv_precision import PositionStore
from tlserve.model.decoder.mixers import AttentionMixer, FeedForwardMixer, LayerInputMixer, Step, apply_norm
from tlserve.model.decoder.numerics import Numerics, decoder_spec, rotation_tables
from tlserve.model.decoder.parts import Parts
from tlserve.model.decoder.record import (
    Attention,
    Block,
    Decoder,
    Experts,
    LayerInput,
    Mixer,
    kept_attentions,
)
from tlserve.model.decoder.slots import mixer_name
from tlserve.model.decoder.weights import Weights

F32 = NDArray[np.float32]
BoundMixer = AttentionMixer | FeedForwardMixer | LayerInputMixer | ExpertsMixer


class ReferenceModel:
    """A `kernels.interface.Model` of any record."""

    def __init__(self, decoder: Decoder, weights: Weights, numerics: Numerics) -> None:
        blas.pin_to_one_thread()
        self._decoder = decoder
        self._numerics = numerics
        self._parts = Parts(weights, numerics.activations)
        self._ropes = rotation_tables(decoder)
        self._blocks = self._bind_blocks()
        kernels = f"reference (numpy, {numerics.activations} activations)"
        self._spec = decoder_spec(decoder, weights.identity, self._ropes, numerics, kernels)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    @property
    def weights_bytes(self) -> int:
        """Return the memory of the weights."""
        return self._parts.nbytes

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve memory for `blocks` blocks of keys and values."""
        heads = [(a.kv_heads, a.head_size) for a in kept_attentions(self._decoder.stored_attentions())]
        return PositionStore(heads, blocks=blocks, block_size=block_size, precision=self._numerics.kv_precision)

    def forward(self, batch: StepBatch, kv: KvStore, inputs: F32 | None = None) -> StepOutput:
        """Run all rows of `batch` through all layers; see `kernels.interface.Model.forward`.

        `inputs` (T, F): rows instead of the embeddings of the tokens.
        """
        store = own_store(kv, PositionStore)
        with np.errstate(all="ignore"):  # an overflow is part of a row's answer, not a warning
            return self._forward(batch, store, inputs)

    def _forward(self, batch: StepBatch, kv: PositionStore, inputs: F32 | None) -> StepOutput:
        entering = self._embedded(batch) if inputs is None else inputs
        step = Step.of(batch, kv, self._ropes, self._layer_inputs(batch, entering))
        x = apply_norm(entering, self._decoder.embed_norm, "embedding_norm", self._parts)
        x = x.copy() if x is inputs else x
        for prefix, block, mixers in self._blocks:
            self._add_block(prefix, block, mixers, x, step)
        last, hidden = (
            apply_norm(x[rows], self._decoder.norm, "norm", self._parts)
            for rows in (batch.logit_rows, batch.hidden_rows)
        )
        return StepOutput(logits=self._logits(last), hidden=hidden)

    def _embedded(self, batch: StepBatch) -> F32:
        x = self._parts.matrix("embedding").rows(batch.tokens)
        return x * np.float32(self._decoder.embed_scale) if self._decoder.embed_scale != 1.0 else x

    def _layer_inputs(self, batch: StepBatch, x: F32) -> F32:
        """Return what every layer takes of the tokens besides the rows `x`; see `record.LayerInputs`."""
        inputs = self._decoder.layer_inputs
        if inputs is None:
            return np.empty((len(x), 0, 0), np.float32)
        of_rows = self._parts.linear(x, "input_projection")[0] * np.float32(self._decoder.hidden**-0.5)
        normed = apply_norm(of_rows.reshape(-1, inputs.width), inputs.norm, "input_norm", self._parts)
        of_tokens = self._parts.matrix("input_table").rows(batch.tokens) * np.float32(inputs.width**0.5)
        total = (normed.reshape(len(x), -1) + of_tokens) * np.float32(0.5**0.5)
        return total.reshape(len(x), -1, inputs.width)

    def _add_block(self, prefix: str, block: Block, mixers: tuple[BoundMixer, ...], x: F32, step: Step) -> None:
        """Add to the residual `x` (T, F) what a block computes from it.

        In a plain block each product is added to the residual and its bias after it; else they are added together first.
        """
        normed = apply_norm(x, block.pre, f"{prefix}.pre", self._parts)
        total: F32 | None = x if block.is_plain() else None
        for mixer in mixers:
            result = mixer.run(normed, step, x) if isinstance(mixer, ExpertsMixer) else mixer.run(normed, step)
            total = result if total is None else np.add(total, result, out=total)
            bias = mixer.output_bias()
            if bias is not None:
                total += bias
        if not block.is_plain():
            assert total is not None
            total = apply_norm(total, block.post, f"{prefix}.post", self._parts)
            if block.scale != 1.0:
                total *= np.float32(block.scale)
            x += total
            if block.after is not None:
                x[:] = apply_norm(x, block.after, f"{prefix}.after", self._parts)
            out_scale = self._parts.vector(f"{prefix}.out_scale") if block.out_scaled else None
            if out_scale is not None:
                x *= out_scale

    def _logits(self, rows: F32) -> F32:
        """Return the logits of normed rows."""
        if not len(rows):
            return np.empty((0, self._decoder.vocabulary), np.float32)
        logits = self._parts.linear(rows, "head")[0]
        bias = self._parts.vector("head.bias")
        if bias is not None:
            logits += bias
        if self._decoder.logit_scale != 1.0:
            logits *= np.float32(self._decoder.logit_scale)
        return soft_cap(logits, np.float32(self._decoder.logit_cap)) if self._decoder.logit_cap else logits

    def _bind_blocks(self) -> list[tuple[str, Block, tuple[BoundMixer, ...]]]:
        """Return every block with the prefix of its norms and its mixers, each with its own place in the weights."""
        bound, stored = [], 0
        for index, layer in enumerate(self._decoder.layers):
            for block in layer.blocks:
                mixers: list[BoundMixer] = []
                for mixer in block.mixers:
                    mixers.append(self._bound(mixer, index, stored))
                    stored += isinstance(mixer, Attention) and mixer.kv_from is None
                bound.append((f"{index}.{mixer_name(block.mixers[0])}", block, tuple(mixers)))
        return bound

    def _bound(self, mixer: Mixer, layer: int, stored: int) -> BoundMixer:
        prefix = f"{layer}.{mixer_name(mixer)}"
        if isinstance(mixer, Attention):
            number = stored if mixer.kv_from is None else mixer.kv_from
            return AttentionMixer(mixer, prefix, self._parts, 0 if mixer.both_sides else number)
        if isinstance(mixer, LayerInput):
            return LayerInputMixer(mixer, prefix, self._parts, layer)
        if isinstance(mixer, Experts):
            return ExpertsMixer(mixer, prefix, self._parts)
        return FeedForwardMixer(mixer, prefix, self._parts)
