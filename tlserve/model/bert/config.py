"""The sizes of a BERT from its config.json; what is not served is refused by field and value.

Knows nothing of weights; `sentence_files` has the longest text and the pooling of hidden states.
Source: `configuration_bert` of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping

from tlserve.model.bert.encoder import BertShape
from tlserve.model.fields import Fields

CONFIG = "config.json"

_ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "quantization_config": (),
}
"""Fields with the values that are served; left out and null are served too."""


def bert_shape(document: Mapping[str, object], longest: int = 0) -> BertShape:
    """Return the shape that a config.json describes; raises `ModelRefused`. `longest` above 0 shortens the context."""
    config = Fields(document, f"{CONFIG}: ")
    if document.get("architectures") not in (None, ["BertModel"]):
        raise config.refusal("architectures", f"{document['architectures']!r:.80} is not served; served: BertModel")
    for name, served in _ONLY.items():
        config.refuse_unless(name, served, " or ".join(str(value).lower() for value in served) or "null")
    hidden = config.integer("hidden_size", 1, 1 << 16, default=768)
    heads = config.integer("num_attention_heads", 1, 1024, default=12)
    if hidden % heads:
        raise config.refusal("hidden_size", f"{hidden} cannot be shared by {heads} heads evenly")
    positions = config.integer("max_position_embeddings", 1, 1 << 20, default=512)
    return BertShape(
        layers=config.integer("num_hidden_layers", 1, 1024, default=12),
        hidden=hidden,
        intermediate=config.integer("intermediate_size", 1, 1 << 18, default=3072),
        heads=heads,
        vocabulary=config.integer("vocab_size", 2, 1 << 24, default=30522),
        positions=positions,
        token_types=config.integer("type_vocab_size", 1, 1 << 16, default=2),
        context_tokens=min(longest or positions, positions),
        epsilon=config.positive("layer_norm_eps", 1e-12),
    )
