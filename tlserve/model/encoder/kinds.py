"""Which models are encoders, by config.json and in GGUF; imported before anything is loaded, so it needs no numpy."""

ENCODER_TYPES = frozenset({"bert", "gte", "modernbert", "mpnet", "new", "nomic_bert", "roberta", "xlm-roberta"})

GGUF_ENCODER_TYPES = frozenset({"bert", "gemma-embedding", "jina-bert-v2", "modern-bert", "nomic-bert"})
"""The encoders in GGUF, by their `general.architecture`."""


def is_encoder(model_type: str, *, both_sides: bool) -> bool:
    """Return whether a config.json is that of an encoder; Gemma is one if its rows attend to `both_sides`."""
    return model_type in ENCODER_TYPES or (model_type == "gemma3_text" and both_sides)
