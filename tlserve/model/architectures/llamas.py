"""Llama and its nearest kin: mistral, qwen2, qwen3, smollm3."""

from __future__ import annotations

from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
from tlserve.model.architectures.windows import (
    gguf_no_windows,
    gguf_one_window,
    late_windows,
    no_windows,
    uniform_windows,
    unrotated_windows,
)
from tlserve.model.decoder.record import Decoder, ExpertRouter, Experts, FeedForward


def _feed_forward(facts: ModelFacts) -> FeedForward | Experts:
    """Return the feed-forward part, or, in a GGUF file with experts, those of Mixtral."""
    count = facts.count("", "expert_count", 0)
    if not count:
        return facts.feed_forward()
    router = ExpertRouter(count=count, chosen=facts.count("", "expert_used_count"))
    return Experts(router=router, expert=facts.feed_forward())


def llama(facts: ModelFacts) -> Decoder:
    """Sequential layers with RMS norms, grouped heads that turn, gated silu."""
    attentions = facts.attentions(
        facts.windows(no_windows, gguf_one_window),
        qkv_bias=facts.flag("attention_bias", default=False, tensor="attn_q.bias"),
        output_bias=facts.flag("attention_bias", default=False, tensor="attn_output.bias"),
    )
    return facts.llama(attentions, _feed_forward(facts))


def mistral(facts: ModelFacts) -> Decoder:
    """Llama with a window and without biases."""
    return facts.llama(facts.attentions(facts.windows(uniform_windows, gguf_one_window)), facts.feed_forward())


def qwen2(facts: ModelFacts) -> Decoder:
    """Llama with biases of queries, keys and values, and windows of the late layers if they are switched on."""
    output_bias = facts.has_tensor("attn_output.bias")
    windows = facts.windows(late_windows, gguf_no_windows)
    return facts.llama(facts.attentions(windows, qkv_bias=True, output_bias=output_bias), facts.feed_forward())


def qwen3(facts: ModelFacts) -> Decoder:
    """Llama with norms of queries and keys."""
    attentions = facts.attentions(
        facts.windows(late_windows, gguf_no_windows),
        qkv_bias=facts.flag("attention_bias", default=False, tensor="attn_q.bias"),
        output_bias=facts.flag("attention_bias", default=False, tensor="attn_output.bias"),
        q_norm=facts.norm(),
        k_norm=facts.norm(),
    )
    return facts.llama(attentions, facts.feed_forward())


def smollm3(facts: ModelFacts) -> Decoder:
    """Llama in which some layers do not turn, and can have windows instead."""
    unrotated = facts.unrotated()
    attentions = facts.attentions(
        facts.windows(unrotated_windows, gguf_no_windows, unrotated),
        unrotated,
        qkv_bias=facts.flag("attention_bias", default=False, tensor="attn_q.bias"),
        output_bias=facts.flag("attention_bias", default=False, tensor="attn_output.bias"),
    )
    return facts.llama(attentions, facts.feed_forward())


LLAMAS = (
    Architecture(
        describe=llama,
        hf=HfForm(model_type="llama", model_class="LlamaForCausalLM"),
        gguf=GgufForm(name="llama", experts=True),
        models="Llama 2 and 3, SmolLM 1 and 2, TinyLlama; from GGUF also Mistral 7B and Mixtral",
    ),
    Architecture(
        describe=mistral,
        hf=HfForm(model_type="mistral", model_class="MistralForCausalLM"),
        models="Mistral 7B, Mistral Nemo (12B), Mistral Small (24B)",
    ),
    Architecture(
        describe=qwen2,
        hf=HfForm(model_type="qwen2", model_class="Qwen2ForCausalLM"),
        gguf=GgufForm(name="qwen2", half_split=True),
        models="Qwen 2 and 2.5 (0.5B to 72B)",
        note="llama.cpp ignores windows (use_sliding_window); tlserve follows transformers.",
    ),
    Architecture(
        describe=qwen3,
        hf=HfForm(model_type="qwen3", model_class="Qwen3ForCausalLM", head_size=128),
        gguf=GgufForm(name="qwen3", half_split=True),
        models="Qwen 3 (0.6B to 32B)",
    ),
    Architecture(
        describe=smollm3,
        hf=HfForm(model_type="smollm3", model_class="SmolLM3ForCausalLM", tied=True, rope_base=2_000_000.0),
        gguf=GgufForm(name="smollm3", unrotated_every=4),
        models="SmolLM3 (3B)",
    ),
)
