"""Llama with constants or small parts of its own: granite, seed-oss, arcee, ernie 4.5, hunyuan, ministral 3."""

from __future__ import annotations

from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
from tlserve.model.architectures.windows import gguf_no_windows, no_windows
from tlserve.model.decoder.record import Activation, Decoder


def granite(facts: ModelFacts) -> Decoder:
    """Llama with multipliers of embeddings, scores, blocks and logits."""
    attention = facts.attentions(
        scale=facts.number("attention_multiplier", "attention.scale", 1.0), **facts.biased_attention()
    )
    return facts.llama(
        attention,
        facts.feed_forward(bias=facts.flag("mlp_bias", default=False, tensor="ffn_up.bias")),
        scale=facts.number("residual_multiplier", "residual_scale", 1.0),
        embed_scale=facts.number("embedding_multiplier", "embedding_scale", 1.0),
        logit_scale=1 / facts.number("logits_scaling", "logit_scale", 1.0),
    )


def seed_oss(facts: ModelFacts) -> Decoder:
    """Llama with biases of queries, keys and values."""
    attentions = facts.attentions(
        qkv_bias=facts.flag("attention_bias", default=True, tensor="attn_q.bias"),
        output_bias=facts.flag("attention_out_bias", default=False, tensor="attn_output.bias"),
    )
    return facts.llama(attentions, facts.feed_forward())


def arcee(facts: ModelFacts) -> Decoder:
    """Llama whose feed-forward part squares what is positive, without a gate."""
    feed_forward = facts.feed_forward(gated=False, activation=Activation.RELU2)
    return facts.llama(facts.attentions(**facts.biased_attention()), feed_forward)


def ernie4_5(facts: ModelFacts) -> Decoder:
    """Llama with biases everywhere or nowhere."""
    feed_forward = facts.feed_forward(bias=facts.flag("use_bias", default=False, tensor="ffn_up.bias"))
    return facts.llama(facts.attentions(**facts.biased_attention("use_bias")), feed_forward)


def hunyuan_dense(facts: ModelFacts) -> Decoder:
    """Llama with norms of heads after they have turned."""
    norm = facts.norm()
    attentions = facts.attentions(q_norm=norm, k_norm=norm, norm_after_rope=True, **facts.biased_attention())
    return facts.llama(attentions, facts.feed_forward())


def ministral3(facts: ModelFacts) -> Decoder:
    """Llama whose queries grow with the position beyond the original context."""
    windows = facts.windows(no_windows, gguf_no_windows)
    return facts.llama(facts.attentions(windows, temperature=facts.temperature()), facts.feed_forward())


HUNYUAN_ROPE = ("alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
HUNYUAN_NORMS = {"attention.q_norm": "self_attn.query_layernorm", "attention.k_norm": "self_attn.key_layernorm"}

MULTIPLIERS = (
    Architecture(
        describe=granite,
        hf=HfForm(model_type="granite", model_class="GraniteForCausalLM"),
        gguf=GgufForm(name="granite"),
        models="Granite 3.0 to 3.3 (2B, 8B), 4.0 micro",
    ),
    Architecture(
        describe=seed_oss,
        hf=HfForm(model_type="seed_oss", model_class="SeedOssForCausalLM", head_size=128),
        gguf=GgufForm(name="seed_oss", half_split=True, names={"ffn.pre": "post_attention_norm"}),
        models="Seed-OSS (36B)",
    ),
    Architecture(
        describe=arcee,
        hf=HfForm(model_type="arcee", model_class="ArceeForCausalLM", epsilon=1e-5, activations=("relu2",)),
        gguf=GgufForm(name="arcee"),
        models="Arcee AFM (4.5B)",
    ),
    Architecture(
        describe=ernie4_5,
        hf=HfForm(
            model_type="ernie4_5",
            model_class="Ernie4_5ForCausalLM",
            half_split=False,
            tied=True,
            head_size=128,
            rope_base=500000.0,
            epsilon=1e-5,
        ),
        gguf=GgufForm(name="ernie4_5"),
        models="ERNIE 4.5 (0.3B)",
    ),
    Architecture(
        describe=hunyuan_dense,
        hf=HfForm(
            model_type="hunyuan_v1_dense",
            model_class="HunYuanDenseV1ForCausalLM",
            names=HUNYUAN_NORMS,
            epsilon=1e-5,
            rope_fields=HUNYUAN_ROPE,
        ),
        gguf=GgufForm(name="hunyuan-dense", half_split=True),
        models="Hunyuan (0.5B to 7B)",
    ),
    Architecture(
        describe=ministral3,
        hf=HfForm(
            model_type="ministral3",
            model_class="Ministral3ForCausalLM",
            head_size=128,
            epsilon=1e-5,
            rope_fields=("llama_4_scaling_beta", "max_position_embeddings"),
        ),
        models="Ministral 3 (3B, 8B, 14B), text part",
    ),
)
