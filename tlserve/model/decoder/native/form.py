"""A record as the native kernels take it: residual blocks as dicts, or the mechanism that the kernels do not have.

Knows the names and the order of what crosses into C (`kernels/native/model_parts.c`), and no architecture's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.rope import RopeTables
from tlserve.model.decoder.experts import router_weight
from tlserve.model.decoder.mixers import query_scale, scaled_sinks
from tlserve.model.decoder.record import (
    Activation,
    Attention,
    Block,
    Decoder,
    ExpertNorms,
    Experts,
    FeedForward,
    LayerInput,
    Mixer,
    Norm,
    NormKind,
    Rope,
    Score,
)
from tlserve.model.decoder.slots import mixer_name

F32 = NDArray[np.float32]

_MOST_HEAD_SIZE = 1024
_KINDS = ((Attention,), (FeedForward,), (Attention, FeedForward), (LayerInput,), (Experts,))
_ACTIVATIONS = (
    Activation.SILU,
    Activation.GELU_TANH,
    Activation.GELU_ERF,
    Activation.RELU2,
    Activation.CLAMPED_SWIGLU,
)
"""In the order of `enum activation` in kernels.h."""


def missing_mechanism(decoder: Decoder) -> str:
    """Return what of the record the native kernels do not have, "" where all of it can run."""
    return next(_missing(decoder), "")


def _missing(decoder: Decoder) -> Iterator[str]:
    if not decoder.attentions():
        yield "models without attention"
    for layer in decoder.layers:
        for block in layer.blocks:
            if tuple(type(mixer) for mixer in block.mixers) not in _KINDS:
                yield "blocks that are not attention, a feed-forward part, or both in this order, or a layer's input, or experts"
    if decoder.layer_inputs is not None and decoder.embed_norm is not None:
        yield "inputs of layers beside a norm of embeddings"
    for attention in decoder.attentions():
        yield from _missing_in_attention(attention)


def _missing_in_attention(a: Attention) -> Iterator[str]:
    if a.head_size > _MOST_HEAD_SIZE:
        yield f"heads of more than {_MOST_HEAD_SIZE} components"
    norms = [norm for norm in (a.q_norm, a.k_norm) if norm is not None]
    if len({(norm.whole_row, norm.per_head) for norm in norms}) > 1:
        yield "norms of different kinds for queries and keys"
    if a.norm_after_rope and any(norm.whole_row for norm in norms):
        yield "norms of whole rows after their rotation"
    if a.v_norm is not None and not (a.v_norm.weightless and a.v_norm.kind is NormKind.RMS):
        yield "norms of values with a weight"
    if a.v_from_k and a.k_norm is not None and a.k_norm.whole_row:
        yield "values from keys that are normed as whole rows"
    if a.kv_from is not None and a.both_sides:
        yield "attention to both sides with the keys of another layer"


@attrs.frozen(kw_only=True, eq=False)
class NativeParts:
    """What a block takes: packed matrices and vectors by slot, and the tables of rotations."""

    decoder: Decoder
    matrices: Mapping[str, Any]
    vectors: Mapping[str, F32]
    tables: Mapping[Rope, RopeTables]

    def model(self) -> dict[str, Any]:
        """Return the arguments of the native model that a record decides."""
        d, matrices = self.decoder, self.matrices
        return {
            "hidden": d.hidden,
            "vocabulary": d.vocabulary,
            "context": d.context_tokens,
            "embed_scale": d.embed_scale,
            "logit_scale": d.logit_scale,
            "logit_cap": d.logit_cap,
            "embedding": matrices.get("embedding"),
            "head": matrices.get("head", matrices.get("embedding")),
            "head_bias": self.vectors.get("head.bias"),
            "embedding_norm": self._norm("embedding_norm", d.embed_norm),
            "norm": self._norm("norm", d.norm),
            "inputs": self._layer_inputs(),
            "blocks": self.blocks(),
        }

    def blocks(self) -> tuple[dict[str, Any], ...]:
        """Return all residual blocks in order."""
        layers = enumerate(self.decoder.layers)
        return tuple(self._block(index, block) for index, layer in layers for block in layer.blocks)

    def _layer_inputs(self) -> dict[str, Any] | None:
        inputs, matrices = self.decoder.layer_inputs, self.matrices
        if inputs is None:
            return None
        return {
            "width": inputs.width,
            "layers": len(self.decoder.layers),
            "table": matrices["input_table"],
            "projection": matrices["input_projection"],
            "norm": self._norm("input_norm", inputs.norm),
            "of_rows": self.decoder.hidden**-0.5,
            "of_tokens": inputs.width**0.5,
            "of_sum": 0.5**0.5,
        }

    def _stores(self) -> list[int]:
        """Return the numbers of the blocks that store keys and values."""
        blocks = [block for layer in self.decoder.layers for block in layer.blocks]
        return [
            number
            for number, block in enumerate(blocks)
            if any(isinstance(mixer, Attention) and mixer.kv_from is None for mixer in block.mixers)
        ]

    def _block(self, index: int, block: Block) -> dict[str, Any]:
        first = f"{index}.{mixer_name(block.mixers[0])}"
        mixers = {type(mixer): mixer for mixer in block.mixers}
        attention, experts = mixers.get(Attention), mixers.get(Experts)
        feed_forward = mixers.get(FeedForward) or mixers.get(LayerInput)
        return {
            "pre": self._norm(f"{first}.pre", block.pre),
            "post": self._norm(f"{first}.post", block.post),
            "after": self._norm(f"{first}.after", block.after),
            "scale": block.scale,
            "out_scale": self.vectors.get(f"{first}.out_scale"),
            "attention": self._attention(f"{index}.attention", attention) if isinstance(attention, Attention) else None,
            "feed_forward": self._feed_forward(index, feed_forward),
            "experts": self._experts(f"{index}.ffn", experts) if isinstance(experts, Experts) else None,
        }

    def _attention(self, prefix: str, a: Attention) -> dict[str, Any]:
        table = self.tables[a.rope] if a.rope else None
        norm = a.q_norm or a.k_norm
        sinks = self.vectors.get(f"{prefix}.sinks")
        return self._linear(prefix, "q", "k", "v", "output") | {
            "heads": a.heads,
            "kv_heads": a.kv_heads,
            "head_size": a.head_size,
            "kv_from": -1 if a.kv_from is None else self._stores()[a.kv_from],
            "window": a.window,
            "query_scale": math.log2(math.e) * a.scale,
            "query_scales": self._query_scales(a),
            "cap": a.cap * math.log2(math.e),
            "norm_after_rope": a.norm_after_rope,
            "per_head": bool(norm and norm.per_head),
            "whole_row": bool(norm and norm.whole_row),
            "both_sides": a.both_sides,
            "q_norm": self._norm(f"{prefix}.q_norm", a.q_norm),
            "k_norm": self._norm(f"{prefix}.k_norm", a.k_norm if a.kv_from is None else None),
            "v_norm": self._norm(f"{prefix}.v_norm", a.v_norm if a.kv_from is None else None, a.head_size),
            "cos": table.cos if table else None,
            "sin": table.sin if table else None,
            "sinks": None if sinks is None else scaled_sinks(sinks),
        }

    def _query_scales(self, a: Attention) -> F32 | None:
        """Return the scale of queries at every position, None where it is the same at all of them."""
        if a.temperature is None:
            return None
        starts = np.arange(0, self.decoder.context_tokens, a.temperature.original, dtype=np.int32)
        scales = np.asarray(query_scale(a, starts), np.float32).reshape(-1)
        return np.repeat(scales, a.temperature.original)[: self.decoder.context_tokens]

    def _feed_forward(self, index: int, mixer: Mixer | None) -> dict[str, Any] | None:
        if isinstance(mixer, LayerInput):
            return self._ffn(f"{index}.input", mixer, input_from=index * mixer.width)
        return self._ffn(f"{index}.ffn", mixer) if isinstance(mixer, FeedForward) else None

    def _ffn(self, prefix: str, f: FeedForward | LayerInput, input_from: int = -1) -> dict[str, Any]:
        """Return a feed-forward part. `input_from`: where in a row's layer inputs the numbers are that replace a product."""
        return self._linear(prefix, "gate", "up", "down") | {
            "width": f.width,
            "activation": _ACTIVATIONS.index(f.activation),
            "input_from": input_from,
        }

    def _experts(self, prefix: str, e: Experts) -> dict[str, Any]:
        """Return the matrices of each part as a tuple, and the biases of a part in one vector."""
        router = e.router
        each = [self._linear(f"{prefix}.experts.{number}", "gate", "up", "down") for number in range(router.count)]
        return {
            "count": router.count,
            "chosen": router.chosen,
            "groups": router.groups,
            "kept_groups": router.kept_groups,
            "sigmoid": router.score is Score.SIGMOID,
            "divided": router.divided,
            "scale": router.scale,
            "width": e.expert.width,
            "activation": _ACTIVATIONS.index(e.expert.activation),
            "router": self.matrices[f"{prefix}.router"],
            "router_bias": self.vectors.get(f"{prefix}.router.bias"),
            "choice_bias": self.vectors.get(f"{prefix}.choice"),
            "own_scales": self.vectors.get(f"{prefix}.own_scales"),
            "gate": tuple(one["gate"] for one in each) if e.expert.gated else (),
            "up": tuple(one["up"] for one in each),
            "down": tuple(one["down"] for one in each),
            **{name: self._of_all(each, name) for name in ("gate_bias", "up_bias", "down_bias")},
            "shared": None if e.shared is None else self._ffn(f"{prefix}.shared", e.shared),
            "shared_gate": self.matrices.get(f"{prefix}.shared_gate"),
            **self._expert_norms(prefix, e.norms),
        }

    def _expert_norms(self, prefix: str, norms: ExpertNorms | None) -> dict[str, Any]:
        if norms is None:
            return dict.fromkeys(("router_norm", "pre", "post", "shared_post"))
        return {
            "router_norm": (False, norms.router.epsilon, router_weight(self.vectors[f"{prefix}.router_norm"]), None),
            "pre": self._norm(f"{prefix}.experts_pre", norms.pre),
            "post": self._norm(f"{prefix}.experts_post", norms.post),
            "shared_post": self._norm(f"{prefix}.shared_post", norms.shared),
        }

    def _of_all(self, each: Sequence[Mapping[str, Any]], name: str) -> F32 | None:
        """Return the vectors `name` of all experts, one after the other; None where there are none."""
        return None if each[0][name] is None else np.concatenate([one[name] for one in each])

    def _linear(self, prefix: str, *names: str) -> dict[str, Any]:
        """Return matrices and biases by their names; None where there is none."""
        matrices = {name: self.matrices.get(f"{prefix}.{name}") for name in names}
        return matrices | {f"{name}_bias": self.vectors.get(f"{prefix}.{name}.bias") for name in names}

    def _norm(self, slot: str, norm: Norm | None, size: int = 0) -> tuple[bool, float, F32, F32 | None] | None:
        """Return a norm; one without a weight gets one of `size` ones."""
        if norm is None:
            return None
        if norm.weightless:
            return False, norm.epsilon, np.ones(size, np.float32), None
        return norm.kind is NormKind.LAYER, norm.epsilon, self.vectors[slot], self.vectors.get(f"{slot}.bias")
