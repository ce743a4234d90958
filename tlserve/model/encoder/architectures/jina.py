"""Jina v2: BERT without positions, whose scores fall with the distance, and with a gated gelu."""

from __future__ import annotations

import attrs

from tlserve.model.decoder.storage import Storage
from tlserve.model.encoder.architectures.berts import BERT_NAMES, NOT_OF_VECTORS
from tlserve.model.encoder.architectures.facts import EncoderFacts, EncoderForm
from tlserve.model.encoder.record import Distance, Encoder, normed_sums


def jina_bert(facts: EncoderFacts) -> Encoder:
    """ALiBi to both sides, gated gelu with a bias only at its end.

    In some models queries and keys are normed as rows, and the rows before attention are added twice.
    """
    for name, served in (("position_embedding_type", "alibi"), ("feed_forward_type", "geglu")):
        if facts.config.get(name) != served:
            raise facts.config.refusal(name, f"{facts.config.get(name)!r:.60} is not served; served: {served}")
    facts.only(is_decoder=False, add_cross_attention=False, quantization_config=())
    norm = facts.layer_norm()
    normed = facts.config.flag("normed_twice", default=False)
    row = attrs.evolve(norm, whole_row=True) if normed else None
    attention = facts.attention(distance=Distance.ALIBI, q_norm=row, k_norm=row)
    first, second = normed_sums(attention, facts.feed_forward(gated=True, up_bias=False), norm)
    blocks = (attrs.evolve(first, again=norm if normed else None), second) * facts.layers
    types = facts.config.integer("type_vocab_size", 1, 1 << 16, default=2)
    return facts.encoder(blocks, embed_norm=norm, types=types)


_NAMES = BERT_NAMES | {
    "ffn.down": "encoder.layer.{}.mlp.wo",
    "ffn.after": "encoder.layer.{}.mlp.layernorm",
}

JINA = (
    EncoderForm(
        model_type="bert",
        classes=("JinaBertModel", "JinaBertForMaskedLM"),
        describe=jina_bert,
        storages=(
            Storage(
                names=_NAMES,
                fused={"encoder.layer.{}.mlp.gated_layers": ("ffn.gate", "ffn.up")},
                ignored=NOT_OF_VECTORS,
            ),
        ),
        gguf="jina-bert-v2",
        models="jina-embeddings-v2 (small-en, base-en; from GGUF also base-code, de, es and zh)",
        note="Compared with llama.cpp. Models with norms of queries and keys are served from GGUF alone.",
    ),
)
