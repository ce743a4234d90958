"""BERT and its nearest kin: RoBERTa, XLM-RoBERTa and MPNet."""

from __future__ import annotations

import attrs

from tlserve.model.decoder.storage import Storage
from tlserve.model.encoder.architectures.facts import EncoderFacts, EncoderForm, HeadPart
from tlserve.model.encoder.record import BUCKETS, Distance, Encoder, normed_sums

NOT_OF_VECTORS = (
    "position_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
    "lm_head.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
    "lm_head.dense.weight",
    "lm_head.dense.bias",
    "lm_head.layer_norm.weight",
    "lm_head.layer_norm.bias",
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
)
"""How the names of tensors end that no vector needs: numbers of positions, a pooler, a head that predicts tokens."""

BERT_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "attention.q": "encoder.layer.{}.attention.self.query",
    "attention.k": "encoder.layer.{}.attention.self.key",
    "attention.v": "encoder.layer.{}.attention.self.value",
    "attention.output": "encoder.layer.{}.attention.output.dense",
    "attention.after": "encoder.layer.{}.attention.output.LayerNorm",
    "ffn.up": "encoder.layer.{}.intermediate.dense",
    "ffn.down": "encoder.layer.{}.output.dense",
    "ffn.after": "encoder.layer.{}.output.LayerNorm",
}
_MPNET_NAMES = {
    "attention.q": "encoder.layer.{}.attention.attn.q",
    "attention.k": "encoder.layer.{}.attention.attn.k",
    "attention.v": "encoder.layer.{}.attention.attn.v",
    "attention.output": "encoder.layer.{}.attention.attn.o",
    "attention.after": "encoder.layer.{}.attention.LayerNorm",
    "distances": "encoder.relative_attention_bias",
}


def bert(facts: EncoderFacts) -> Encoder:
    """Learned positions from the first row on, two token types, a norm of each sum."""
    return _learned_positions(facts, 0)


def roberta(facts: EncoderFacts) -> Encoder:
    """BERT whose first position has the row after that of the padding token."""
    return _learned_positions(facts, 1 + facts.config.integer("pad_token_id", 0, 1 << 20, default=1))


def _learned_positions(facts: EncoderFacts, first: int) -> Encoder:
    facts.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, quantization_config=())
    norm = facts.layer_norm()
    blocks = normed_sums(facts.attention(), facts.feed_forward(), norm) * facts.layers
    types = facts.config.integer("type_vocab_size", 1, 1 << 16, default=2)
    return facts.encoder(blocks, embed_norm=norm, positions=facts.positions, first_position=first, types=types)


def mpnet(facts: EncoderFacts) -> Encoder:
    """BERT without token types, with a stored number for each head and bucket of distances."""
    facts.only(relative_attention_num_buckets=BUCKETS, quantization_config=())
    norm = facts.layer_norm()
    attention = facts.attention(distance=Distance.BUCKETS)
    blocks = normed_sums(attention, facts.feed_forward(), norm) * facts.layers
    return facts.encoder(blocks, embed_norm=norm, positions=facts.positions, first_position=2)


_BERT_STORAGE = Storage(names=BERT_NAMES, ignored=NOT_OF_VECTORS)
_TANH = "tanh"
ROBERTA_HEAD = (HeadPart(stem="classifier.dense", activation=_TANH), HeadPart(stem="classifier.out_proj"))
BERT_HEAD = (HeadPart(stem="{}pooler.dense", activation=_TANH), HeadPart(stem="classifier"))

BERT = EncoderForm(
    model_type="bert",
    classes=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    scores="BertForSequenceClassification",
    describe=bert,
    storages=(_BERT_STORAGE,),
    head=BERT_HEAD,
    gguf="bert",
    models="all-MiniLM, BGE v1.5, E5, GTE v1, Snowflake Arctic Embed, ms-marco-MiniLM cross-encoders",
)
XLM_ROBERTA = EncoderForm(
    model_type="xlm-roberta",
    classes=("XLMRobertaModel", "XLMRobertaForMaskedLM"),
    scores="XLMRobertaForSequenceClassification",
    describe=roberta,
    storages=(_BERT_STORAGE,),
    head=ROBERTA_HEAD,
    gguf="bert",
    models="BGE-M3 (dense vectors), multilingual-e5, bge-reranker-v2-m3",
)
BERTS = (
    BERT,
    XLM_ROBERTA,
    attrs.evolve(
        XLM_ROBERTA,
        model_type="roberta",
        classes=("RobertaModel", "RobertaForMaskedLM"),
        scores="RobertaForSequenceClassification",
        models="all-distilroberta-v1, all-roberta-large-v1, RoBERTa cross-encoders and classifiers",
    ),
    EncoderForm(
        model_type="mpnet",
        classes=("MPNetModel", "MPNetForMaskedLM"),
        scores="MPNetForSequenceClassification",
        describe=mpnet,
        storages=(Storage(names=BERT_NAMES | _MPNET_NAMES, ignored=NOT_OF_VECTORS),),
        head=ROBERTA_HEAD,
        models="all-mpnet-base-v2, multi-qa-mpnet-base",
    ),
)
