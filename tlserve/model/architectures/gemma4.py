"""Gemma 4: layers with windows and heads of their own size, shared keys, inputs of layers, and a mixture beside a dense part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
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
)
from tlserve.model.decoder.storage import Stack

_ACTIVATION = Activation.GELU_TANH


def gemma4(facts: ModelFacts) -> Decoder:
    """Norms on both sides of each part and of heads, also of values; what layers take of the tokens besides the rows."""
    facts.refuse("use_bidirectional_attention", ("vision",), "null or vision")
    facts.refuse("attention_bias", (False,), "false")
    windows, local = facts.local(6, 512)
    if not any(local) or local[-1]:
        raise ModelRefused("gemma4 is served with windows in some layers, and none in the last one")
    facts.require_one("rope_parameters")
    shared = facts.count("num_kv_shared_layers", "attention.shared_kv_layers", 0)
    attentions = _attentions(facts, windows, local, _sources(local, shared))
    width = facts.count("hidden_size_per_layer_input", "embedding_length_per_layer_input", 0)
    widths = _widths(facts, shared)
    layers = [_layer(facts, attention, w, width) for attention, w in zip(attentions, widths, strict=True)]
    return facts.decoder(
        layers,
        facts.norm(),
        embed_scale=math.sqrt(facts.sizes.hidden),
        logit_cap=facts.optional("final_logit_softcapping", "final_logit_softcapping", 0.0),
        layer_inputs=LayerInputs(width=width, norm=facts.norm()) if width else None,
    )


def _sources(local: Sequence[bool], shared: int) -> list[int | None]:
    """Return for every layer the one whose keys it uses: the last of its kind that has some, None for its own."""
    own = list(local[: len(local) - shared])
    if shared and {True, False} - set(own):
        raise ModelRefused(
            f"the last {shared} layers cannot use the keys of earlier ones, of which some kind is missing"
        )
    last = {kind: max(i for i, has_window in enumerate(own) if has_window is kind) for kind in set(own)}
    return [None if layer < len(own) else last[kind] for layer, kind in enumerate(local)]


def _attentions(
    facts: ModelFacts, windows: Sequence[int], local: Sequence[bool], sources: Sequence[int | None]
) -> list[Attention]:
    norm, heads = facts.norm(), facts.layer_heads(local)
    values_norm = attrs.evolve(norm, weightless=True)
    ropes = {
        kind: facts.rope("sliding_attention" if kind else "full_attention", size)
        for kind, (_, size) in zip(local, heads, strict=True)
    }
    same = facts.switch("attention_k_eq_v", "", default=False, in_gguf=False)
    return [
        Attention(
            heads=facts.sizes.heads,
            kv_heads=kv_heads,
            head_size=size,
            scale=1.0,
            q_norm=norm,
            k_norm=norm,
            v_norm=values_norm,
            rope=ropes[local[i]],
            window=windows[i],
            v_from_k=sources[i] is None and not local[i] and (same or facts.lacks_tensor("attn_v.weight", i)),
            kv_from=sources[i],
        )
        for i, (kv_heads, size) in enumerate(heads)
    ]


def _widths(facts: ModelFacts, shared: int) -> Sequence[int]:
    widths = facts.layer_widths()
    if not facts.switch("use_double_wide_mlp", "", default=False, in_gguf=False):
        return widths
    own = facts.sizes.layers - shared
    return [width if layer < own else 2 * width for layer, width in enumerate(widths)]


def _layer(facts: ModelFacts, attention: Attention, width: int, input_width: int) -> Layer:
    norm = facts.norm()
    blocks = [
        Block(mixers=(attention,), pre=norm, post=norm),
        Block(mixers=(_feed_forward(facts, width),), pre=norm, post=norm),
    ]
    if input_width:
        blocks.append(Block(mixers=(LayerInput(width=input_width, activation=_ACTIVATION),), post=norm))
    blocks[-1] = attrs.evolve(blocks[-1], out_scaled=True)
    return Layer(blocks=tuple(blocks))


def _feed_forward(facts: ModelFacts, width: int) -> FeedForward | Experts:
    """Return the dense part, or both sides of a mixture: there the dense part is the shared expert."""
    dense = FeedForward(width=width, activation=_ACTIVATION)
    if not facts.switch("enable_moe_block", "", default=False, in_gguf=facts.has_tensor("ffn_gate_inp.weight")):
        return dense
    norm = facts.norm()
    expert = FeedForward(
        width=facts.count("moe_intermediate_size", "expert_feed_forward_length", low=1), activation=_ACTIVATION
    )
    router = ExpertRouter(
        count=facts.count("num_experts", "expert_count", low=1),
        chosen=facts.count("top_k_experts", "expert_used_count", low=1),
        own_scales=True,
    )
    norms = ExpertNorms(router=norm, pre=norm, post=norm, shared=norm)
    return Experts(router=router, expert=expert, shared=dense, norms=norms)


_HF_NAMES = {
    "attention.post": "post_attention_layernorm",
    "ffn.pre": "pre_feedforward_layernorm",
    "ffn.post": "post_feedforward_layernorm",
    "ffn.router": "router.proj",
    "ffn.experts_pre": "pre_feedforward_layernorm_2",
    "ffn.experts_post": "post_feedforward_layernorm_2",
    "ffn.shared_post": "post_feedforward_layernorm_1",
    "ffn.shared.gate": "mlp.gate_proj",
    "ffn.shared.up": "mlp.up_proj",
    "ffn.shared.down": "mlp.down_proj",
    "input.gate": "per_layer_input_gate",
    "input.down": "per_layer_projection",
    "input.post": "post_per_layer_input_norm",
    "input_table": "model.embed_tokens_per_layer",
    "input_projection": "model.per_layer_model_projection",
    "input_norm": "model.per_layer_projection_norm",
}
_HF_EXACT = {
    "ffn.out_scale": "layer_scalar",
    "input.out_scale": "layer_scalar",
    "ffn.router_norm": "router.scale",
    "ffn.own_scales": "router.per_expert_scale",
}
_GGUF_NAMES = {
    "ffn.experts_pre": "pre_ffw_norm_2",
    "ffn.experts_post": "post_ffw_norm_2",
    "ffn.shared_post": "post_ffw_norm_1",
    "ffn.shared.gate": "ffn_gate",
    "ffn.shared.up": "ffn_up",
    "ffn.shared.down": "ffn_down",
    "input.gate": "inp_gate",
    "input.down": "proj",
    "input.post": "post_norm",
    "input_table": "per_layer_token_embd",
    "input_projection": "per_layer_model_proj",
    "input_norm": "per_layer_proj_norm",
}
_GGUF_EXACT = {
    "ffn.out_scale": "layer_output_scale.weight",
    "input.out_scale": "layer_output_scale.weight",
    "ffn.router_norm": "ffn_gate_inp.scale",
    "ffn.own_scales": "ffn_down_exps.scale",
}

GEMMAS_4 = (
    Architecture(
        describe=gemma4,
        hf=HfForm(
            model_type="gemma4_text",
            model_class="Gemma4ForCausalLM",
            names=_HF_NAMES,
            exact=_HF_EXACT,
            stacks={
                "experts.gate_up_proj": Stack(parts=("ffn.experts.gate", "ffn.experts.up")),
                "experts.down_proj": Stack(parts=("ffn.experts.down",)),
            },
            tied=True,
            head_size=256,
            rope_base=1_000_000.0,
            local_rope_base=10_000.0,
            rope_fields=("proportional",),
            activations=("gelu_pytorch_tanh",),
        ),
        gguf=GgufForm(
            name="gemma4",
            names=_GGUF_NAMES,
            exact=_GGUF_EXACT,
            half_split=True,
            local_windows=True,
            varied=True,
            experts=True,
            local_rope_base=10_000.0,
        ),
        models="Gemma 4 (E2B, E4B, 26B-A4B, 31B: the text part, from GGUF)",
        note="Embeddings are multiplied by the exact root of the hidden size; transformers in bf16 rounds it to bf16. "
        "llama.cpp takes gelu from a table in half precision: with that table the difference is below 0.0005.",
    ),
)
