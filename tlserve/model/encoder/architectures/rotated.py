"""Encoders whose heads turn: Nomic's BERT, GTE, ModernBERT, and Gemma as an encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.architectures.windows import local_windows
from tlserve.model.decoder.record import Activation, Norm, Rope
from tlserve.model.decoder.storage import Storage
from tlserve.model.encoder.architectures.berts import BERT_HEAD, BERT_NAMES, NOT_OF_VECTORS
from tlserve.model.encoder.architectures.facts import EncoderFacts, EncoderForm, HeadPart
from tlserve.model.encoder.record import Encoder, EncoderBlock, normed_sums
from tlserve.model.fields import Fields
from tlserve.model.hugging_face.rope import read_rope

_NOMIC_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "emb_ln",
    "attention.output": "encoder.layers.{}.attn.out_proj",
    "attention.after": "encoder.layers.{}.norm1",
    "ffn.gate": "encoder.layers.{}.mlp.fc12",
    "ffn.up": "encoder.layers.{}.mlp.fc11",
    "ffn.down": "encoder.layers.{}.mlp.fc2",
    "ffn.after": "encoder.layers.{}.norm2",
}
_GTE_NAMES = BERT_NAMES | {
    "attention.output": "encoder.layer.{}.attention.o_proj",
    "attention.after": "encoder.layer.{}.attn_ln",
    "ffn.down": "encoder.layer.{}.mlp.down_proj",
    "ffn.after": "encoder.layer.{}.mlp_ln",
}
_MODERN_NAMES = {
    "embedding": "embeddings.tok_embeddings",
    "embedding_norm": "embeddings.norm",
    "attention.pre": "layers.{}.attn_norm",
    "attention.output": "layers.{}.attn.Wo",
    "ffn.pre": "layers.{}.mlp_norm",
    "ffn.down": "layers.{}.mlp.Wo",
    "norm": "final_norm",
}
_GEMMA_NAMES = {
    "embedding": "embed_tokens",
    "attention.pre": "layers.{}.input_layernorm",
    "attention.q": "layers.{}.self_attn.q_proj",
    "attention.k": "layers.{}.self_attn.k_proj",
    "attention.v": "layers.{}.self_attn.v_proj",
    "attention.output": "layers.{}.self_attn.o_proj",
    "attention.q_norm": "layers.{}.self_attn.q_norm",
    "attention.k_norm": "layers.{}.self_attn.k_norm",
    "attention.post": "layers.{}.post_attention_layernorm",
    "ffn.pre": "layers.{}.pre_feedforward_layernorm",
    "ffn.gate": "layers.{}.mlp.gate_proj",
    "ffn.up": "layers.{}.mlp.up_proj",
    "ffn.down": "layers.{}.mlp.down_proj",
    "ffn.post": "layers.{}.post_feedforward_layernorm",
    "norm": "norm",
}
_QKV = ("attention.q", "attention.k", "attention.v")
_GATED = ("ffn.gate", "ffn.up")


def nomic_bert(facts: EncoderFacts) -> Encoder:
    """No positions but heads that turn, no biases, gated silu; a norm of each sum."""
    facts.only(
        prenorm=False,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        rotary_scaling_factor=(),
        rotary_emb_scale_base=(),
        use_rms_norm=False,
        causal=False,
        parallel_block=False,
        moe_every_n_layers=0,
        quantization_config=(),
    )
    norm = facts.layer_norm()
    attention = facts.attention(qkv_bias=False, output_bias=False, rope=facts.rope(1000.0))
    act = facts.activation(default="silu")
    feed_forward = facts.feed_forward(activation=act, gated=True, up_bias=False, down_bias=False)
    types = facts.config.integer("type_vocab_size", 1, 1 << 16, default=2)
    return facts.encoder(normed_sums(attention, feed_forward, norm) * facts.layers, embed_norm=norm, types=types)


def gte(facts: EncoderFacts) -> Encoder:
    """BERT whose heads turn, with a gated gelu that has a bias only at its end."""
    facts.only(
        position_embedding_type="rope",
        layer_norm_type="layer_norm",
        logn_attention_scale=False,
        pack_qkv=True,
        quantization_config=(),
    )
    norm = facts.layer_norm()
    attention = facts.attention(rope=facts.rope(160_000.0))
    feed_forward = facts.feed_forward(gated=True, up_bias=False)
    types = facts.config.integer("type_vocab_size", 0, 1 << 16, default=1)
    return facts.encoder(normed_sums(attention, feed_forward, norm) * facts.layers, embed_norm=norm, types=types)


def modernbert(facts: EncoderFacts) -> Encoder:
    """Norms before parts (the first layer has none), windows to both sides with a rotation of their own, gated gelu."""
    config = facts.config
    facts.only(quantization_config=())
    bias, mlp_bias = config.flag("attention_bias", default=False), config.flag("mlp_bias", default=False)
    norm = facts.layer_norm(bias=config.flag("norm_bias", default=False), name="norm_eps", default=1e-5)
    window = config.integer("local_attention", 2, 1 << 20, default=128) // 2
    ropes = {kind: _rope_of_kind(facts, *base) for kind, base in _MODERN_ROPES.items()}
    feed_forward = facts.feed_forward(
        activation=facts.activation("hidden_activation"), gated=True, up_bias=mlp_bias, down_bias=mlp_bias
    )
    blocks: list[EncoderBlock] = []
    for layer, kind in enumerate(_modern_kinds(facts)):
        attention = facts.attention(
            qkv_bias=bias, output_bias=bias, rope=ropes[kind], window=window if kind == "sliding_attention" else 0
        )
        blocks.append(EncoderBlock(mixer=attention, pre=norm if layer else None))
        blocks.append(EncoderBlock(mixer=feed_forward, pre=norm))
    return facts.encoder(tuple(blocks), embed_norm=norm, norm=norm)


_MODERN_ROPES = {
    "full_attention": ("full_attention", "global_rope_theta", 160_000.0),
    "sliding_attention": ("sliding_attention", "local_rope_theta", 10_000.0),
}


def _modern_kinds(facts: EncoderFacts) -> list[str]:
    """Return the kind of every layer: as listed, else every n-th has no window, the first one among them."""
    every = facts.config.integer("global_attn_every_n_layers", 1, 1024, default=3)
    usual = ["sliding_attention" if i % every else "full_attention" for i in range(facts.layers)]
    kinds = facts.config.get("layer_types") or usual
    if not isinstance(kinds, list) or len(kinds) != facts.layers or not set(kinds) <= _MODERN_ROPES.keys():
        raise facts.config.refusal("layer_types", f"must name the kind of each of {facts.layers} layers")
    return kinds


def _rope_of_kind(facts: EncoderFacts, kind: str, older: str, base: float) -> Rope:
    """Return the rotation of a kind of layers: `rope_parameters` has an object for each, older files a base."""
    nested = facts.config.get("rope_parameters")
    own = nested.get(kind) if isinstance(nested, Mapping) else None
    given = facts.config.get(older)
    values = {
        "max_position_embeddings": facts.positions,
        "rope_parameters": own,
        "rope_scaling": None,
        "rope_theta": given if isinstance(given, (int, float)) else None,
    }
    return read_rope(Fields(values, facts.config.prefix), base).record(facts.head_size, facts.context(facts.positions))


def gemma_encoder(facts: EncoderFacts) -> Encoder:
    """Gemma 3 whose rows see both sides; windows count half of their size on each side."""
    config = facts.config
    if not config.flag("use_bidirectional_attention", default=False):
        raise ModelRefused(f"{config.prefix}use_bidirectional_attention is not true: this is not an encoder")
    facts.only(attn_logit_softcapping=(), final_logit_softcapping=(), attention_bias=False, quantization_config=())
    norm = Norm(epsilon=config.positive("rms_norm_eps", 1e-6))
    windows, local = local_windows(config, facts.layers, 6, 4096)
    ropes = {
        True: _rope_of_kind(facts, "sliding_attention", "rope_local_base_freq", 10_000.0),
        False: _rope_of_kind(facts, "full_attention", "rope_theta", 1_000_000.0),
    }
    scale = 1 / math.sqrt(config.positive("query_pre_attn_scalar", 256.0))
    config.refuse_unless("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    feed_forward = facts.feed_forward(activation=Activation.GELU_TANH, gated=True, up_bias=False, down_bias=False)
    blocks: list[EncoderBlock] = []
    for layer in range(facts.layers):
        attention = facts.attention(
            kv_heads=config.integer("num_key_value_heads", 1, facts.heads, default=facts.heads),
            scale=scale,
            qkv_bias=False,
            output_bias=False,
            q_norm=norm,
            k_norm=norm,
            rope=ropes[local[layer]],
            window=windows[layer] // 2,
        )
        blocks += [EncoderBlock(mixer=mixer, pre=norm, post=norm) for mixer in (attention, feed_forward)]
    return facts.encoder(tuple(blocks), embed_scale=math.sqrt(facts.hidden), norm=norm)


_GTE = EncoderForm(
    model_type="gte",
    classes=("GteModel", "GteForMaskedLM"),
    scores="GteForSequenceClassification",
    describe=gte,
    storages=(
        Storage(
            names=_GTE_NAMES,
            fused={
                "encoder.layer.{}.attention.qkv_proj": _QKV,
                "encoder.layer.{}.mlp.up_gate_proj": ("ffn.up", "ffn.gate"),
            },
            half_split=True,
            ignored=NOT_OF_VECTORS,
        ),
    ),
    head=BERT_HEAD,
    models="gte-multilingual-base, gte-multilingual-reranker-base",
    note="NTK scaling of the rotation (gte-large-en-v1.5) and unpadded variants are refused by field.",
)

ROTATED = (
    EncoderForm(
        model_type="nomic_bert",
        classes=("NomicBertModel", "NomicBertForMaskedLM"),
        scores="NomicBertForSequenceClassification",
        describe=nomic_bert,
        storages=(
            Storage(
                names=_NOMIC_NAMES,
                fused={"encoder.layers.{}.attn.Wqkv": _QKV},
                half_split=True,
                ignored=NOT_OF_VECTORS,
            ),
        ),
        head=BERT_HEAD,
        gguf="nomic-bert",
        models="nomic-embed-text v1 and v1.5",
        note="Mixtures of experts (nomic-embed-text v2) are refused.",
    ),
    _GTE,
    attrs.evolve(
        _GTE,
        model_type="new",
        classes=("NewModel", "NewForMaskedLM"),
        scores="NewForSequenceClassification",
        models="the same models in their first form",
    ),
    EncoderForm(
        model_type="modernbert",
        classes=("ModernBertModel", "ModernBertForMaskedLM"),
        scores="ModernBertForSequenceClassification",
        describe=modernbert,
        storages=(
            Storage(
                names=_MODERN_NAMES,
                fused={"layers.{}.attn.Wqkv": _QKV, "layers.{}.mlp.Wi": _GATED},
                half_split=True,
                ignored=(
                    *NOT_OF_VECTORS,
                    "head.dense.weight",
                    "head.dense.bias",
                    "head.norm.weight",
                    "head.norm.bias",
                    "decoder.weight",
                    "decoder.bias",
                ),
            ),
        ),
        head=(HeadPart(stem="head.dense", activation="gelu", norm="head.norm"), HeadPart(stem="classifier")),
        gguf="modern-bert",
        models="modernbert-embed, gte-modernbert, granite-embedding-english-r2, gte-reranker-modernbert",
    ),
    EncoderForm(
        model_type="gemma3_text",
        classes=("Gemma3TextModel", "Gemma3ForCausalLM"),
        describe=gemma_encoder,
        storages=(Storage(names=_GEMMA_NAMES, half_split=True, less_one=True, ignored=("lm_head.weight",)),),
        gguf="gemma-embedding",
        models="EmbeddingGemma (300M)",
        note="Embeddings are multiplied by the exact root of the hidden size.",
    ),
)
