"""Gemma 1 to 3: embeddings times sqrt(hidden), norms stored less one, gelu; from 2 on norms on both sides and windows."""

from __future__ import annotations

import math

import attrs

from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
from tlserve.model.decoder.record import Activation, Attention, Decoder, FeedForward, sandwich

_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")  # the second is an old name for the same in these files
_NORMS = {
    "attention.post": "post_attention_layernorm",
    "ffn.pre": "pre_feedforward_layernorm",
    "ffn.post": "post_feedforward_layernorm",
}


def _gated_gelu(facts: ModelFacts) -> FeedForward:
    facts.refuse("use_bidirectional_attention", (False,), "false")
    return facts.feed_forward(activation=Activation.GELU_TANH)


def _query_scale(facts: ModelFacts, layers_of_the_largest: int) -> float:
    """Return the scale of scores: config.json has it; in GGUF only the largest model has another than head_size**-0.5."""
    sizes = facts.sizes
    largest = sizes.layers == layers_of_the_largest
    usual = float(sizes.hidden // sizes.heads if largest else sizes.head_size)
    return 1 / math.sqrt(facts.number("query_pre_attn_scalar", "", usual))


def gemma(facts: ModelFacts) -> Decoder:
    """Sequential layers, gated gelu."""
    attentions = facts.attentions(**facts.biased_attention())
    return facts.llama(attentions, _gated_gelu(facts), embed_scale=math.sqrt(facts.sizes.hidden))


def _sandwiched(facts: ModelFacts, attentions: list[Attention], logit_cap: float) -> Decoder:
    norm, feed_forward = facts.norm(), _gated_gelu(facts)
    layers = [sandwich(attention, feed_forward, norm) for attention in attentions]
    return facts.decoder(layers, norm, embed_scale=math.sqrt(facts.sizes.hidden), logit_cap=logit_cap)


def gemma2(facts: ModelFacts) -> Decoder:
    """Norms before and after each part, windows in every second layer, capped scores and logits."""
    windows, _ = facts.local(2)
    attentions = facts.attentions(
        windows,
        scale=_query_scale(facts, 46),
        cap=facts.optional("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
        **facts.biased_attention(),
    )
    return _sandwiched(facts, attentions, facts.optional("final_logit_softcapping", "final_logit_softcapping", 30.0))


def gemma3(facts: ModelFacts) -> Decoder:
    """Norms of heads, five layers with windows and a rotation of their own for each one without."""
    windows, local = facts.local(6)
    norm, local_rope = facts.norm(), facts.rope("sliding_attention")
    attentions = facts.attentions(
        windows,
        scale=_query_scale(facts, 62),
        q_norm=norm,
        k_norm=norm,
        cap=facts.optional("attn_logit_softcapping", "attn_logit_softcapping", 0.0),
        **facts.biased_attention(),
    )
    turned = [
        attrs.evolve(attention, rope=local_rope) if has_window else attention
        for attention, has_window in zip(attentions, local, strict=True)
    ]
    return _sandwiched(facts, turned, facts.optional("final_logit_softcapping", "final_logit_softcapping", 0.0))


_EXACT_ROOT = "Embeddings are multiplied by the exact root of the hidden size; transformers in bf16 rounds it to bf16."

GEMMAS = (
    Architecture(
        describe=gemma,
        hf=HfForm(
            model_type="gemma",
            model_class="GemmaForCausalLM",
            less_one=True,
            tied=True,
            head_size=256,
            activations=_ACTIVATIONS,
        ),
        gguf=GgufForm(name="gemma", half_split=True),
        models="Gemma (2B, 7B)",
        note=_EXACT_ROOT,
    ),
    Architecture(
        describe=gemma2,
        hf=HfForm(
            model_type="gemma2",
            model_class="Gemma2ForCausalLM",
            names=_NORMS,
            less_one=True,
            tied=True,
            head_size=256,
            activations=_ACTIVATIONS,
        ),
        gguf=GgufForm(name="gemma2", half_split=True, local_windows=True),
        models="Gemma 2 (2B, 9B, 27B)",
        note=_EXACT_ROOT,
    ),
    Architecture(
        describe=gemma3,
        hf=HfForm(
            model_type="gemma3_text",
            model_class="Gemma3ForCausalLM",
            names=_NORMS,
            less_one=True,
            tied=True,
            head_size=256,
            rope_base=1_000_000.0,
            local_rope_base=10_000.0,
            activations=_ACTIVATIONS,
        ),
        gguf=GgufForm(name="gemma3", half_split=True, local_windows=True, local_rope_base=10_000.0),
        models="Gemma 3 (270M, 1B; the text part of 4B to 27B from GGUF)",
        note=_EXACT_ROOT,
    ),
)
