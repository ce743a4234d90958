"""How GGUF files have encoders: for each architecture what its metadata say, by the names of config.json, and its tensors.

`encoder.architectures` describes what is computed. Source: llama.cpp, `src/models` and its converter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tlserve.model.architectures.windows import gguf_local_windows
from tlserve.model.decoder.storage import Storage
from tlserve.model.encoder.architectures.berts import bert
from tlserve.model.encoder.architectures.facts import EncoderFacts
from tlserve.model.encoder.architectures.jina import jina_bert
from tlserve.model.encoder.architectures.rotated import gemma_encoder, modernbert, nomic_bert
from tlserve.model.encoder.record import Encoder
from tlserve.model.fields import Fields

Shapes = Mapping[str, tuple[int, ...]]
Config = dict[str, Any]

_NAMES = {
    "embedding": "token_embd",
    "types": "token_types",
    "embedding_norm": "token_embd_norm",
    "attention.q": "blk.{}.attn_q",
    "attention.k": "blk.{}.attn_k",
    "attention.v": "blk.{}.attn_v",
    "attention.output": "blk.{}.attn_output",
    "attention.after": "blk.{}.attn_output_norm",
    "ffn.gate": "blk.{}.ffn_gate",
    "ffn.up": "blk.{}.ffn_up",
    "ffn.down": "blk.{}.ffn_down",
    "ffn.after": "blk.{}.layer_output_norm",
}
_NORMED = {
    "attention.pre": "blk.{}.attn_norm",
    "attention.post": "blk.{}.post_attention_norm",
    "attention.q_norm": "blk.{}.attn_q_norm",
    "attention.k_norm": "blk.{}.attn_k_norm",
    "ffn.pre": "blk.{}.ffn_norm",
    "ffn.post": "blk.{}.post_ffw_norm",
    "norm": "output_norm",
}
_JINA = {
    "attention.q_norm": "blk.{}.attn_q_norm",
    "attention.k_norm": "blk.{}.attn_k_norm",
    "attention.again": "blk.{}.attn_norm_2",
}
_QKV: dict[str, tuple[str, ...]] = {"blk.{}.attn_qkv": ("attention.q", "attention.k", "attention.v")}
_GATED: dict[str, tuple[str, ...]] = {"blk.{}.ffn_up": ("ffn.gate", "ffn.up")}


@attrs.frozen(kw_only=True)
class HeadForm:
    """The head of a model that makes scores.

    `activation`, `norm`: after its first layer. `rows`: which rows it takes where a file does not say it, as `pooling_type` has
    them. `between`: how many tokens that end a text are between two.
    """

    activation: str
    norm: bool = False
    rows: int = 2
    between: int = 1


@attrs.frozen(kw_only=True)
class GgufEncoder:
    """One `general.architecture`. `config`: what a file says, by the names of config.json.

    `apart`: how it stores the tensors where gate and up are not in one. `epsilon`: the key of that of its norms.
    """

    describe: Callable[[EncoderFacts], Encoder]
    config: Callable[[Fields, Shapes], Config]
    storage: Storage
    apart: Storage | None = None
    head: HeadForm | None = None
    epsilon: str = "attention.layer_norm_epsilon"

    def storage_of(self, shapes: Shapes) -> Storage:
        """Return how a file with these tensors stores them."""
        return self.apart if self.apart is not None and "blk.0.ffn_gate.weight" in shapes else self.storage


def _bert(fields: Fields, shapes: Shapes) -> Config:  # noqa: ARG001 - every reader's
    return {"max_position_embeddings": shapes["position_embd.weight"][0]}


def _nomic(fields: Fields, shapes: Shapes) -> Config:  # noqa: ARG001
    _refuse_scaled(fields)
    return {"rope_theta": fields.positive("rope.freq_base", 10_000.0)}


def _modern(fields: Fields, shapes: Shapes) -> Config:  # noqa: ARG001
    _refuse_scaled(fields)
    layers = fields.integer("block_count", 1, 1024)
    window = fields.integer("attention.sliding_window", 0, 1 << 20, default=0)
    every = fields.get("attention.sliding_window_pattern")
    if isinstance(every, list):
        local = gguf_local_windows(fields, layers, 1)[1]
    else:
        every = fields.integer("attention.sliding_window_pattern", 1, 1024, default=3)
        local = tuple(bool(window and layer % every) for layer in range(layers))
    base = fields.positive("rope.freq_base", 10_000.0)
    return {
        "norm_eps": fields.positive("attention.layer_norm_epsilon"),
        "local_attention": window or None,
        "layer_types": _kinds(local),
        "global_rope_theta": base,
        "local_rope_theta": fields.positive("rope.freq_base_swa", base),
        "hidden_activation": fields.get("hidden_activation") or "gelu",
    }


def _gemma(fields: Fields, shapes: Shapes) -> Config:  # noqa: ARG001
    _refuse_scaled(fields)
    head_size = fields.integer("attention.key_length", 2, 1024)
    fields.refuse_unless("attention.value_length", (head_size,), f"attention.key_length ({head_size})")
    _, local = gguf_local_windows(fields, fields.integer("block_count", 1, 1024), 6)
    base = fields.positive("rope.freq_base", 10_000.0)
    return {
        "use_bidirectional_attention": True,
        "rms_norm_eps": fields.positive("attention.layer_norm_rms_epsilon"),
        "head_dim": head_size,
        "query_pre_attn_scalar": head_size,
        "num_key_value_heads": fields.integer("attention.head_count_kv", 1, 1024),
        "sliding_window": fields.integer("attention.sliding_window", 1, 1 << 20),
        "layer_types": _kinds(local),
        "rope_theta": base,
        "rope_local_base_freq": fields.positive("rope.freq_base_swa", base),
    }


def _jina(fields: Fields, shapes: Shapes) -> Config:  # noqa: ARG001
    return {
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "normed_twice": "blk.0.attn_norm_2.weight" in shapes,
    }


def _kinds(local: tuple[bool, ...]) -> list[str]:
    return ["sliding_attention" if has_window else "full_attention" for has_window in local]


def _refuse_scaled(fields: Fields) -> None:
    fields.refuse_unless("rope.scaling.type", ("none",), "none")
    fields.refuse_unless("rope.scale_linear", (1, 1.0), "1")


GGUF_ENCODERS: Mapping[str, GgufEncoder] = {
    "bert": GgufEncoder(
        describe=bert,
        config=_bert,
        storage=Storage(names=_NAMES | {"positions": "position_embd"}),
        head=HeadForm(activation="tanh", between=2),
    ),
    "nomic-bert": GgufEncoder(
        describe=nomic_bert,
        config=_nomic,
        storage=Storage(names=_NAMES, fused=_QKV, half_split=True),
    ),
    "modern-bert": GgufEncoder(
        describe=modernbert,
        config=_modern,
        storage=Storage(names=_NAMES | _NORMED, fused=_QKV | _GATED, half_split=True),
        head=HeadForm(activation="gelu", norm=True, rows=1),
    ),
    "gemma-embedding": GgufEncoder(
        describe=gemma_encoder,
        config=_gemma,
        storage=Storage(names=_NAMES | _NORMED, half_split=True),
        epsilon="attention.layer_norm_rms_epsilon",
    ),
    "jina-bert-v2": GgufEncoder(
        describe=jina_bert,
        config=_jina,
        storage=Storage(names=_NAMES | _JINA, fused=_GATED),
        apart=Storage(names=_NAMES | _JINA),
    ),
}
