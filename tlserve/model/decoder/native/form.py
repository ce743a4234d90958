"""What the native kernels can run: a record as they take it, or the mechanism that they do not have.

They take a list of equal layers: a block of attention, then one of a gated feed-forward part. Knows no architecture's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs

from tlserve.model.decoder.record import Activation, Attention, Block, Decoder, FeedForward, Layer, Norm, NormKind, Rope


@attrs.frozen(kw_only=True)
class NativeForm:
    """`attention` and `feed_forward` are those of every layer but for `windows` and `unrotated`, by layer."""

    attention: Attention
    feed_forward: FeedForward
    rope: Rope | None
    windows: tuple[int, ...]
    unrotated: tuple[bool, ...]

    def sizes(self, decoder: Decoder) -> dict[str, Any]:
        """Return the sizes and constants by the names that the native model takes."""
        a = self.attention
        return {
            "hidden": decoder.hidden,
            "intermediate": self.feed_forward.width,
            "heads": a.heads,
            "kv_heads": a.kv_heads,
            "head_size": a.head_size,
            "rotated": self.rope.turned if self.rope else 0,
            "vocabulary": decoder.vocabulary,
            "context": decoder.context_tokens,
            "epsilon": decoder.norm.epsilon,
            "query_scale": math.log2(math.e) * a.scale,
        }


def native_form(decoder: Decoder) -> NativeForm | str:
    """Return the form, or what of the record the native kernels do not have."""
    missing = next(_missing(decoder), "")
    if missing:
        return missing
    attentions = decoder.attentions()
    first, rope = attentions[0], next(iter(decoder.ropes()), None)
    feed_forward = decoder.layers[0].blocks[1].mixers[0]
    assert isinstance(feed_forward, FeedForward)
    return NativeForm(
        attention=first,
        feed_forward=feed_forward,
        rope=rope,
        windows=tuple(a.window for a in attentions),
        unrotated=tuple(a.rope is None for a in attentions),
    )


def _missing(decoder: Decoder) -> Iterator[str]:
    """Yield every mechanism that is missing; empty where all of the record can run."""
    if decoder.embed_scale != 1.0 or decoder.logit_scale != 1.0:
        yield "scaled embeddings or logits"
    if decoder.logit_cap:
        yield "capped logits"
    if decoder.head_bias:
        yield "a bias of the logits"
    if len(decoder.ropes()) > 1:
        yield "different rotations in one model"
    for layer in decoder.layers:
        yield from _missing_in_layer(layer)
    if not all(_norm_runs(norm, decoder) for norm in _norms(decoder)):
        yield "other norms than one kind of RMS norm"
    if len({attrs.evolve(a, window=0, rope=None) for a in decoder.attentions()}) > 1:
        yield "attention that differs between layers"
    if len({block.mixers for layer in decoder.layers for block in layer.blocks[1:]}) > 1:
        yield "feed-forward parts that differ between layers"


def _missing_in_layer(layer: Layer) -> Iterator[str]:
    kinds = [tuple(type(mixer) for mixer in block.mixers) for block in layer.blocks]
    if kinds != [(Attention,), (FeedForward,)]:
        yield "layers that are not attention and then a feed-forward part"
    for block in layer.blocks:
        yield from _missing_in_block(block)


def _missing_in_block(block: Block) -> Iterator[str]:
    if block.pre is None or not block.is_plain():
        yield "scaled or normed results of a block"
    for mixer in block.mixers:
        if isinstance(mixer, Attention):
            yield from _missing_in_attention(mixer)
        elif not mixer.gated or mixer.bias or mixer.activation is not Activation.SILU:
            yield "another feed-forward part than the gated silu without biases"


def _missing_in_attention(a: Attention) -> Iterator[str]:
    if a.cap:
        yield "capped scores of attention"
    if a.temperature is not None:
        yield "a temperature of attention"
    if a.norm_after_rope:
        yield "norms of heads after their rotation"


def _norms(decoder: Decoder) -> Iterator[Norm | None]:
    yield decoder.norm
    for layer in decoder.layers:
        yield from (block.pre for block in layer.blocks)
    for attention in decoder.attentions():
        yield from (attention.q_norm, attention.k_norm)


def _norm_runs(norm: Norm | None, decoder: Decoder) -> bool:
    return norm is None or norm == Norm(kind=NormKind.RMS, epsilon=decoder.norm.epsilon)
