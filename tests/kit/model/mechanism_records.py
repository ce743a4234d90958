"""Small decoders with random weights that have, together, every mechanism of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from tests.kit.model.native_models import MIXED, block_shape
from tlserve.model.decoder.native.probe import random_weights
from tlserve.model.decoder.record import (
    Activation,
    Attention,
    Block,
    Decoder,
    ExpertNorms,
    ExpertRouter,
    Experts,
    FeedForward,
    Layer,
    LayerInput,
    LayerInputs,
    Norm,
    NormKind,
    Score,
    Temperature,
    parallel,
    post_normed,
    sandwich,
    sequential,
)
from tlserve.model.decoder.rope_scaling import scaled_rope
from tlserve.model.decoder.weights import Weights

_RMS = Norm(epsilon=1e-5)
_LAYER = Norm(kind=NormKind.LAYER, epsilon=1e-5, bias=True)
_ATTENTION = attrs.evolve(block_shape().record().attentions()[0], heads=4, kv_heads=2)
_FEED_FORWARD = FeedForward(width=96)


def _decoder(*layers: Layer, norm: Norm = _RMS, **changes: Any) -> Decoder:
    base = block_shape(vocabulary=101).record()
    return attrs.evolve(base, layers=layers, norm=norm, **changes)


def _attention(**changes: Any) -> Attention:
    return attrs.evolve(_ATTENTION, **changes)


def _caps_and_two_ropes() -> Decoder:
    """Norms on both sides, norms of heads, a local rope, windows, caps, scaled embeddings; scores that reach the caps."""
    local = _attention(q_norm=_RMS, k_norm=_RMS, cap=2.0, scale=0.5, window=9, rope=scaled_rope(100.0, 16, 64))
    ffn = attrs.evolve(_FEED_FORWARD, activation=Activation.GELU_TANH)
    layers = [
        sandwich(attention, ffn, _RMS) for attention in (local, attrs.evolve(local, window=0, rope=_ATTENTION.rope))
    ]
    return _decoder(*layers, embed_scale=8.0, logit_cap=1.5)


def _whole_rows() -> Decoder:
    """Norms after each part and none before, queries and keys normed as rows, half of each head turns, gated relu2."""
    row = attrs.evolve(_RMS, whole_row=True)
    attention = _attention(q_norm=row, k_norm=row, rope=scaled_rope(100.0, 8, 64), qkv_bias=True)
    ffn = attrs.evolve(_FEED_FORWARD, activation=Activation.RELU2)
    return _decoder(*[post_normed(attention, ffn, _RMS)] * 2)


def _parallel() -> Decoder:
    """Both parts on the same rows of a LayerNorm, norms of each head, biases everywhere, ungated gelu, scaled logits."""
    own = Norm(kind=NormKind.LAYER, epsilon=1e-5, per_head=True)
    attention = _attention(q_norm=own, k_norm=own, qkv_bias=True, output_bias=True)
    ffn = attrs.evolve(_FEED_FORWARD, activation=Activation.GELU_ERF, gated=False, bias=True)
    layer = parallel(attention, ffn, _LAYER)
    return _decoder(layer, layer, norm=_LAYER, head_bias=True, logit_scale=0.25)


def _after_the_rotation() -> Decoder:
    """Norms of heads after the rotation, a temperature, scaled blocks of either order, other head sizes in the last layer."""
    attention = _attention(
        q_norm=_RMS, k_norm=_RMS, norm_after_rope=True, temperature=Temperature(beta=0.3, original=8)
    )
    other = attrs.evolve(attention, heads=2, kv_heads=1, head_size=24, rope=None, temperature=None)
    ffns = [
        attrs.evolve(_FEED_FORWARD, activation=a, gated=g, bias=True)
        for a, g in ((Activation.SILU, False), (Activation.GELU_ERF, True), (Activation.RELU2, False))
    ]
    attending = [sequential(a, f, _RMS, 0.5) for a, f in zip((attention, other), ffns, strict=False)]
    reversed_layer = Layer(blocks=attending[0].blocks[::-1])
    return _decoder(attending[0], reversed_layer, attending[1], parallel(other, attrs.evolve(ffns[2], width=64), _RMS))


def _both_sides() -> Decoder:
    """Attention to later rows, in a window and to all, norms of sums, also before a part, and of embeddings; no last norm."""
    attentions = [_attention(both_sides=True, window=window, qkv_bias=True, output_bias=True) for window in (3, 0)]
    ffn = attrs.evolve(_FEED_FORWARD, activation=Activation.GELU_ERF, gated=False, bias=True)
    layers = [
        Layer(blocks=(Block(mixers=(a,), after=_LAYER), Block(mixers=(ffn,), pre=_RMS, after=_LAYER)))
        for a in attentions
    ]
    return attrs.evolve(_decoder(*layers, embed_norm=_LAYER), norm=None)


def _experts() -> Decoder:
    """Experts chosen by a biased softmax, clamped, with biases, beside sinks, a shared one behind a gate; scaled and normed."""
    expert = FeedForward(width=64, activation=Activation.CLAMPED_SWIGLU, bias=True)
    router = ExpertRouter(count=6, chosen=2, bias=True, divided=False)
    mixtures = Experts(router=router, expert=expert, shared=FeedForward(width=96), shared_gate=True)
    attention = _attention(sinks=True, window=9)
    return _decoder(
        sequential(attention, mixtures, _RMS, 0.5), sandwich(attrs.evolve(attention, window=0), mixtures, _RMS)
    )


def _grouped_experts() -> Decoder:
    """Experts in groups, chosen by sigmoids with a bias, scaled, ungated, with a shared one, after a layer without experts."""
    router = ExpertRouter(
        count=8, chosen=3, score=Score.SIGMOID, bias=True, choice_bias=True, groups=4, kept_groups=2, scale=1.7
    )
    expert = FeedForward(width=32, activation=Activation.RELU2, gated=False)
    mixtures = Experts(router=router, expert=expert, shared=FeedForward(width=64, bias=True))
    layer = sequential(_attention(), mixtures, _RMS)
    return _decoder(sequential(_attention(), _FEED_FORWARD, _RMS), layer, layer)


def _shared_keys() -> Decoder:
    """Values from keys and normed, keys of earlier layers in windows and not, inputs of layers, scaled layers."""
    values_norm = attrs.evolve(_RMS, weightless=True)
    local = _attention(q_norm=_RMS, k_norm=_RMS, v_norm=values_norm, window=9, scale=1.0)
    full = attrs.evolve(
        local, window=0, heads=2, kv_heads=1, head_size=24, rope=scaled_rope(1e4, 24, 64), v_from_k=True
    )
    gelu = attrs.evolve(_FEED_FORWARD, activation=Activation.GELU_TANH)
    own_input = Block(mixers=(LayerInput(width=32, activation=Activation.GELU_TANH),), post=_RMS, out_scaled=True)
    layers = [
        Layer(blocks=(*sandwich(attrs.evolve(a, kv_from=source), gelu, _RMS).blocks, own_input))
        for a, source in ((local, None), (full, None), (local, None), (local, 2), (full, 1))
    ]
    return _decoder(*layers, embed_scale=8.0, layer_inputs=LayerInputs(width=32, norm=_RMS))


def _experts_beside() -> Decoder:
    """Experts with norms and scales of their own beside a dense part, the last layer with the keys of the first."""
    norms = ExpertNorms(router=_RMS, pre=_RMS, post=_RMS, shared=_RMS)
    expert = FeedForward(width=64, activation=Activation.GELU_TANH)
    router = ExpertRouter(count=6, chosen=2, own_scales=True)
    mixture = Experts(router=router, expert=expert, shared=FeedForward(width=96), norms=norms)
    layers = [
        sandwich(_attention(kv_from=source), mixer, _RMS)
        for source, mixer in ((None, mixture), (None, _FEED_FORWARD), (0, mixture))
    ]
    return _decoder(*layers)


MECHANISMS: dict[str, Decoder] = {
    "caps, two ropes": _caps_and_two_ropes(),
    "norms of whole rows after parts": _whole_rows(),
    "parallel parts, LayerNorms, biases": _parallel(),
    "norms after the rotation, temperature": _after_the_rotation(),
    "both sides": _both_sides(),
    "experts, sinks": _experts(),
    "experts in groups": _grouped_experts(),
    "keys of other layers, inputs of layers": _shared_keys(),
    "experts beside a dense part": _experts_beside(),
}


def mechanism_weights(decoder: Decoder, kinds: Sequence[int] = MIXED, seed: int = 0) -> Weights:
    """Return random weights of a record; `kinds` of a layer's matrices in order."""
    return random_weights(decoder, list(kinds), np.random.default_rng(seed))
