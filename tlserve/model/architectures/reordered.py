"""Decoders with norms in other places, or with rows that share a tensor: phi 3, olmo 2 and 3, exaone 4, glm4."""

from __future__ import annotations

import attrs

from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
from tlserve.model.architectures.windows import gguf_one_window, optional_window
from tlserve.model.decoder.record import Attention, Decoder, post_normed, sandwich

_POST = {"attention.post": "post_attention_layernorm", "ffn.post": "post_feedforward_layernorm"}
_QKV = ("attention.q", "attention.k", "attention.v")
_GATE_UP = ("ffn.gate", "ffn.up")


def phi3(facts: ModelFacts) -> Decoder:
    """Llama with queries, keys and values in one tensor, gate and up in another; LongRoPE in the long models."""
    windows = facts.windows(optional_window, gguf_one_window)
    return facts.llama(facts.attentions(windows), facts.feed_forward())


def _post_normed(facts: ModelFacts, attentions: list[Attention]) -> Decoder:
    norm, feed_forward = facts.norm(), facts.feed_forward()
    return facts.decoder([post_normed(a, feed_forward, norm) for a in attentions], norm)


def olmo2(facts: ModelFacts) -> Decoder:
    """Norms after each part and none before; queries and keys are normed as whole rows."""
    whole_row = attrs.evolve(facts.norm(), whole_row=True)
    return _post_normed(facts, facts.attentions(q_norm=whole_row, k_norm=whole_row, **facts.biased_attention()))


def olmo3(facts: ModelFacts) -> Decoder:
    """Olmo 2 with three layers with windows for each one without; only the latter have a scaled rotation."""
    whole_row, local_rope = attrs.evolve(facts.norm(), whole_row=True), facts.rope("sliding_attention")
    windows, local = facts.local(4)
    attentions = facts.attentions(windows, q_norm=whole_row, k_norm=whole_row, **facts.biased_attention())
    return _post_normed(
        facts,
        [attrs.evolve(a, rope=local_rope) if has else a for a, has in zip(attentions, local, strict=True)],
    )


def exaone4(facts: ModelFacts) -> Decoder:
    """Norms after each part and of heads; where some layers have windows, only they turn."""
    windows, local = facts.local(4)
    unrotated = tuple(layer for layer in facts.layers if any(local) and not local[layer])
    norm = facts.norm()
    return _post_normed(facts, facts.attentions(windows, unrotated, q_norm=norm, k_norm=norm))


def glm4(facts: ModelFacts) -> Decoder:
    """Norms before and after each part, half of each head turns, gate and up in one tensor."""
    norm, feed_forward = facts.norm(), facts.feed_forward()
    attentions = facts.attentions(qkv_bias=facts.flag("attention_bias", default=True, tensor="attn_q.bias"))
    return facts.decoder([sandwich(a, feed_forward, norm) for a in attentions], norm)


REORDERED = (
    Architecture(
        describe=phi3,
        hf=HfForm(
            model_type="phi3",
            model_class="Phi3ForCausalLM",
            fused={"self_attn.qkv_proj": _QKV, "mlp.gate_up_proj": _GATE_UP},
            partial=1.0,
            epsilon=1e-5,
        ),
        gguf=GgufForm(name="phi3", half_split=True, fused={"attn_qkv": _QKV, "ffn_up": _GATE_UP}),
        models="Phi 3 and 3.5 mini, Phi 3 medium, Phi 4 (14B), Phi 4 mini",
        note="LongRoPE takes its long factors where the served context is longer than the original one, for every sequence; "
        "transformers takes them once a sequence is longer. From GGUF, models with LongRoPE are refused.",
    ),
    Architecture(
        describe=olmo2,
        hf=HfForm(model_type="olmo2", model_class="Olmo2ForCausalLM", names=_POST, epsilon=1e-5),
        models="OLMo 2 (1B to 32B)",
    ),
    Architecture(
        describe=olmo3,
        hf=HfForm(
            model_type="olmo3",
            model_class="Olmo3ForCausalLM",
            names=_POST,
            epsilon=1e-5,
            rope_base=500_000.0,
            local_rope_base=500_000.0,
        ),
        gguf=GgufForm(name="olmo2", half_split=True, local_windows=True),
        models="OLMo 3 (7B, 32B); from GGUF also OLMo 2",
    ),
    Architecture(
        describe=exaone4,
        hf=HfForm(model_type="exaone4", model_class="Exaone4ForCausalLM", names=_POST, epsilon=1e-5),
        gguf=GgufForm(name="exaone4", half_split=True, local_windows=True),
        models="EXAONE 4.0 (1.2B, 32B)",
    ),
    Architecture(
        describe=glm4,
        hf=HfForm(
            model_type="glm4",
            model_class="Glm4ForCausalLM",
            names={"attention.post": "post_self_attn_layernorm", "ffn.post": "post_mlp_layernorm"},
            fused={"mlp.gate_up_proj": _GATE_UP},
            half_split=False,
            head_size=128,
            partial=0.5,
            epsilon=1.5625e-07,
        ),
        gguf=GgufForm(name="glm4", fused={"ffn_up": _GATE_UP}),
        models="GLM-4-0414 (9B, 32B)",
    ),
)
