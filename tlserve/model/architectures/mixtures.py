"""Mixtures of experts: qwen 2 and 3, mixtral, olmoe, granite, gpt-oss, ernie 4.5, hunyuan, glm 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
from tlserve.model.architectures.multipliers import HUNYUAN_NORMS, HUNYUAN_ROPE
from tlserve.model.architectures.windows import gguf_one_window, optional_window
from tlserve.model.decoder.record import (
    Activation,
    Attention,
    Decoder,
    ExpertRouter,
    Experts,
    FeedForward,
    Layer,
    Score,
    sequential,
)
from tlserve.model.decoder.storage import Stack


def _router(facts: ModelFacts, of: str, chosen: str = "num_experts_per_tok", **changes: Any) -> ExpertRouter:
    """Return a router; `of` (how many experts there are) and `chosen` are names in config.json."""
    given: dict[str, Any] = {"chosen": facts.count(chosen, "expert_used_count")}
    if "count" not in changes:
        given["count"] = facts.count(of, "expert_count")
    return ExpertRouter(**given | changes)


def _width(facts: ModelFacts, hf: str = "moe_intermediate_size") -> int:
    return facts.count(hf, "expert_feed_forward_length", facts.sizes.width)


def _layers(facts: ModelFacts, attentions: Sequence[Attention], experts: Experts, dense: Sequence[int]) -> list[Layer]:
    """Return sequential layers; those of the numbers `dense` have an ordinary feed-forward part."""
    norm, usual = facts.norm(), facts.feed_forward()
    return [sequential(a, usual if i in dense else experts, norm) for i, a in enumerate(attentions)]


def _sparse(facts: ModelFacts) -> tuple[int, ...]:
    """Return the layers of Qwen's mixtures without experts."""
    step = max(1, facts.count("decoder_sparse_step", "interleave_moe_layer_step", 1))
    named = facts.numbers("mlp_only_layers")
    return tuple(layer for layer in facts.layers if (layer + 1) % step or layer in named)


def qwen2_moe(facts: ModelFacts) -> Decoder:
    """Qwen 2 whose experts are weighed by the softmax of all, with a shared one behind a gate."""
    facts.refuse("use_sliding_window", (False,), "false")
    shared = facts.count("shared_expert_intermediate_size", "expert_shared_feed_forward_length")
    experts = Experts(
        router=_router(
            facts,
            "num_experts",
            divided=facts.switch("norm_topk_prob", "expert_weights_norm", default=False, in_gguf=False),
        ),
        expert=FeedForward(width=_width(facts)),
        shared=FeedForward(width=shared),
        shared_gate=True,
    )
    bias = facts.switch("qkv_bias", "", default=True, in_gguf=True)
    return facts.decoder(_layers(facts, facts.attentions(qkv_bias=bias), experts, _sparse(facts)), facts.norm())


def qwen3_moe(facts: ModelFacts) -> Decoder:
    """Qwen 3 with experts; GGUF does not say whether weights are divided by their sum, and those of the releases are."""
    facts.refuse("use_sliding_window", (False,), "false")
    norm = facts.norm()
    divided = facts.switch("norm_topk_prob", "expert_weights_norm", default=False, in_gguf=True)
    count = facts.count("num_local_experts", "expert_count", facts.count("num_experts", "expert_count", 0))
    router = _router(facts, "num_experts", count=count, divided=divided)
    experts = Experts(router=router, expert=FeedForward(width=_width(facts)))
    attentions = facts.attentions(q_norm=norm, k_norm=norm, **facts.biased_attention())
    return facts.decoder(_layers(facts, attentions, experts, _sparse(facts)), norm)


def mixtral(facts: ModelFacts) -> Decoder:
    """Mistral with experts as wide as its feed-forward part."""
    experts = Experts(router=_router(facts, "num_local_experts"), expert=facts.feed_forward())
    attentions = facts.attentions(facts.windows(optional_window, gguf_one_window), **facts.biased_attention())
    return facts.decoder(_layers(facts, attentions, experts, ()), facts.norm())


def olmoe(facts: ModelFacts) -> Decoder:
    """Llama with queries and keys normed as whole rows; experts are weighed by the softmax of all."""
    facts.refuse("clip_qkv", (), "null")
    whole_row = attrs.evolve(facts.norm(), whole_row=True)
    divided = facts.switch("norm_topk_prob", "expert_weights_norm", default=False, in_gguf=False)
    experts = Experts(router=_router(facts, "num_experts", divided=divided), expert=facts.feed_forward())
    attentions = facts.attentions(q_norm=whole_row, k_norm=whole_row, **facts.biased_attention())
    return facts.decoder(_layers(facts, attentions, experts, ()), facts.norm())


def granite_moe(facts: ModelFacts) -> Decoder:
    """Granite with experts, in some sizes with a shared one."""
    shared = facts.count("shared_intermediate_size", "expert_shared_feed_forward_length", 0)
    experts = Experts(
        router=_router(facts, "num_local_experts"),
        expert=facts.feed_forward(),
        shared=FeedForward(width=shared) if shared else None,
    )
    attention = facts.attentions(
        scale=facts.number("attention_multiplier", "attention.scale", 1.0), **facts.biased_attention()
    )
    scale, norm = facts.number("residual_multiplier", "residual_scale", 1.0), facts.norm()
    return facts.decoder(
        [sequential(a, experts, norm, scale) for a in attention],
        norm,
        embed_scale=facts.number("embedding_multiplier", "embedding_scale", 1.0),
        logit_scale=1 / facts.number("logits_scaling", "logit_scale", 1.0),
    )


def gpt_oss(facts: ModelFacts) -> Decoder:
    """Sinks, windows in every second layer, biases everywhere, experts with a clamped activation."""
    facts.refuse("swiglu_limit", (7.0, 7), "7")
    facts.refuse("swiglu_alpha", (1.702,), "1.702")
    facts.quantised_by("mxfp4")
    facts.require_one("rope_scaling", "rope_parameters")
    windows, _ = facts.local(2, 128)
    bias = facts.biased_attention(default=True)
    expert = FeedForward(width=_width(facts, "intermediate_size"), activation=Activation.CLAMPED_SWIGLU, bias=True)
    experts = Experts(router=_router(facts, "num_local_experts", bias=True), expert=expert)
    return facts.decoder(_layers(facts, facts.attentions(windows, sinks=True, **bias), experts, ()), facts.norm())


def ernie4_5_moe(facts: ModelFacts) -> Decoder:
    """Ernie with experts after the first layers, chosen with a bias, and shared ones without a gate."""
    facts.refuse("moe_norm_min", (1e-12,), "1e-12")
    facts.refuse("use_bias", (False,), "false")
    width, of_shared = _width(facts), facts.count("moe_num_shared_experts", "expert_shared_count", 2)
    experts = Experts(
        router=_router(facts, "moe_num_experts", "moe_k", choice_bias=True),
        expert=FeedForward(width=width),
        shared=FeedForward(width=width * of_shared) if of_shared else None,
    )
    first = facts.count("moe_layer_start_index", "leading_dense_block_count", 1)
    step = max(1, facts.count("moe_layer_interval", "interleave_moe_layer_step", 1))
    last = facts.count("moe_layer_end_index", "", -1, low=-1) % facts.sizes.layers
    dense = tuple(i for i in facts.layers if not (first <= i <= last and (i + 1) % step == 0))
    return facts.decoder(_layers(facts, facts.attentions(), experts, dense), facts.norm())


def hunyuan_moe(facts: ModelFacts) -> Decoder:
    """Hunyuan with experts and a shared one, all as wide as its feed-forward part."""
    norm, usual = facts.norm(), facts.feed_forward()
    if _width(facts) != usual.width:
        raise ModelRefused(f"experts of width {_width(facts)} beside a width of {usual.width} are not served")
    experts = Experts(router=_router(facts, "num_experts", "moe_topk"), expert=usual, shared=usual)
    attentions = facts.attentions(q_norm=norm, k_norm=norm, norm_after_rope=True, **facts.biased_attention())
    return facts.decoder(_layers(facts, attentions, experts, ()), norm)


def glm4_moe(facts: ModelFacts) -> Decoder:
    """Half of each head turns; experts after the first layers, chosen by sigmoids with a bias, and a shared one."""
    if facts.count("", "expert_gating_func", _SIGMOID) != _SIGMOID:
        raise ModelRefused("experts whose scores are not sigmoids are not served for this architecture")
    norm, width = facts.norm(), _width(facts)
    router = _router(
        facts,
        "n_routed_experts",
        score=Score.SIGMOID,
        choice_bias=True,
        groups=facts.count("n_group", "expert_group_count", 1),
        kept_groups=facts.count("topk_group", "expert_group_used_count", 1),
        divided=facts.switch("norm_topk_prob", "expert_weights_norm", default=True, in_gguf=False),
        scale=facts.number("routed_scaling_factor", "expert_weights_scale", 1.0),
    )
    shared = FeedForward(width=width * facts.count("n_shared_experts", "expert_shared_count", 1))
    experts = Experts(router=router, expert=FeedForward(width=width), shared=shared)
    normed = norm if facts.flag("use_qk_norm", default=False, tensor="attn_q_norm.weight") else None
    attentions = facts.attentions(
        qkv_bias=facts.flag("attention_bias", default=False, tensor="attn_q.bias"), q_norm=normed, k_norm=normed
    )
    dense = range(facts.count("first_k_dense_replace", "leading_dense_block_count", 1))
    return facts.decoder(_layers(facts, attentions, experts, dense), norm)


_SIGMOID = 2  # of GGUF
_NO_WINDOWS = "Windows (`use_sliding_window`) are refused."
_GRANITE_STACKS = {
    "block_sparse_moe.input_linear.weight": Stack(parts=("ffn.experts.gate", "ffn.experts.up")),
    "block_sparse_moe.output_linear.weight": Stack(parts=("ffn.experts.down",)),
}
_GPT_OSS_PARTS = (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",)))


def _gpt_oss_stacks() -> dict[str, Stack]:
    """Return the tensors of experts: by columns, or in blocks of 4 bits by rows, as `hugging_face.mxfp4` has them."""
    stacks = {}
    for name, parts in _GPT_OSS_PARTS:
        slots = tuple(f"ffn.experts.{part}" for part in parts)
        biases = tuple(f"{slot}.bias" for slot in slots)
        alternate = len(parts) > 1
        stacks[f"mlp.experts.{name}"] = Stack(parts=slots, alternate=alternate, transposed=True)
        stacks[f"mlp.experts.{name}_blocks"] = Stack(parts=slots, alternate=alternate)
        stacks[f"mlp.experts.{name}_bias"] = Stack(parts=biases, alternate=alternate)
    return stacks


MIXTURES = (
    Architecture(
        describe=qwen2_moe,
        hf=HfForm(
            model_type="qwen2_moe",
            model_class="Qwen2MoeForCausalLM",
            names={
                "ffn.shared.gate": "mlp.shared_expert.gate_proj",
                "ffn.shared.up": "mlp.shared_expert.up_proj",
                "ffn.shared.down": "mlp.shared_expert.down_proj",
                "ffn.shared_gate": "mlp.shared_expert_gate",
            },
        ),
        gguf=GgufForm(name="qwen2moe", half_split=True, experts=True),
        models="Qwen 1.5 MoE (14B, 2.7B active), Qwen 2 (57B, 14B active)",
        note=_NO_WINDOWS,
    ),
    Architecture(
        describe=qwen3_moe,
        hf=HfForm(model_type="qwen3_moe", model_class="Qwen3MoeForCausalLM"),
        gguf=GgufForm(name="qwen3moe", half_split=True, experts=True),
        models="Qwen 3 (30B, 3B active; 235B, 22B active), Qwen 3 Coder",
        note=f"{_NO_WINDOWS} From GGUF, as in llama.cpp, the weights of experts are divided by their sum; config.json says "
        "whether they are (`norm_topk_prob`).",
    ),
    Architecture(
        describe=mixtral,
        hf=HfForm(
            model_type="mixtral",
            model_class="MixtralForCausalLM",
            names={
                "ffn.router": "block_sparse_moe.gate",
                "ffn.experts.gate": "block_sparse_moe.experts.{}.w1",
                "ffn.experts.up": "block_sparse_moe.experts.{}.w3",
                "ffn.experts.down": "block_sparse_moe.experts.{}.w2",
            },
            rope_base=1_000_000.0,
            epsilon=1e-5,
        ),
        models="Mixtral (8x7B, 8x22B); from GGUF they are `llama`",
    ),
    Architecture(
        describe=olmoe,
        hf=HfForm(model_type="olmoe", model_class="OlmoeForCausalLM", epsilon=1e-5),
        gguf=GgufForm(name="olmoe", half_split=True, experts=True),
        models="OLMoE (7B, 1B active)",
        note="`clip_qkv` is refused.",
    ),
    Architecture(
        describe=granite_moe,
        hf=HfForm(
            model_type="granitemoe",
            model_class="GraniteMoeForCausalLM",
            names={"ffn.router": "block_sparse_moe.router.layer"},
            stacks=_GRANITE_STACKS,
        ),
        gguf=GgufForm(name="granitemoe", experts=True),
        models="Granite 3.0 and 3.1 (1B, 400M active; 3B, 800M active)",
    ),
    Architecture(
        describe=gpt_oss,
        hf=HfForm(
            model_type="gpt_oss",
            model_class="GptOssForCausalLM",
            names={"ffn.router": "mlp.router"},
            stacks=_gpt_oss_stacks(),
            head_size=64,
            rope_base=150_000.0,
            epsilon=1e-5,
        ),
        gguf=GgufForm(
            name="gpt-oss",
            half_split=True,
            experts=True,
            local_windows=True,
            whole_yarn=True,
            names={"ffn.pre": "post_attention_norm"},
        ),
        models="gpt-oss (21B, 3.6B active; 117B, 5.1B active)",
        note="The range of yarn is not rounded to whole pairs, as in transformers; llama.cpp rounds it.",
    ),
    Architecture(
        describe=ernie4_5_moe,
        hf=HfForm(
            model_type="ernie4_5_moe",
            model_class="Ernie4_5_MoeForCausalLM",
            exact={"ffn.choice": "mlp.moe_statics.e_score_correction_bias"},
            drafts=("model.mtp_",),
            half_split=False,
            tied=True,
            rope_base=500_000.0,
            epsilon=1e-5,
        ),
        gguf=GgufForm(name="ernie4_5-moe", experts=True),
        models="ERNIE 4.5 (21B, 3B active)",
    ),
    Architecture(
        describe=hunyuan_moe,
        hf=HfForm(
            model_type="hunyuan_v1_moe",
            model_class="HunYuanMoEV1ForCausalLM",
            names=HUNYUAN_NORMS
            | {
                "ffn.router": "mlp.gate.wg",
                "ffn.shared.gate": "mlp.shared_mlp.gate_proj",
                "ffn.shared.up": "mlp.shared_mlp.up_proj",
                "ffn.shared.down": "mlp.shared_mlp.down_proj",
            },
            epsilon=1e-5,
            rope_fields=HUNYUAN_ROPE,
        ),
        gguf=GgufForm(name="hunyuan-moe", half_split=True, experts=True),
        models="Hunyuan A13B (80B, 13B active)",
    ),
    Architecture(
        describe=glm4_moe,
        hf=HfForm(
            model_type="glm4_moe",
            model_class="Glm4MoeForCausalLM",
            further_layers=True,
            partial=0.5,
            epsilon=1e-5,
        ),
        gguf=GgufForm(name="glm4moe", half_split=True, experts=True, names={"ffn.pre": "post_attention_norm"}),
        models="GLM 4.5 Air (106B, 12B active), GLM 4.5 to 4.7 (355B, 32B active)",
        note="The layers for drafts (nextn) are not used.",
    ),
)
