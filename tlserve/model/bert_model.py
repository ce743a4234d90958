"""The directory of a BERT sentence encoder becomes a loaded model.

Owns the order of the steps: config, tokenizer, the sentence encoder's own files, weights. Refuses to know their formats.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from tlserve.config.model_id import served_model_id
from tlserve.errors import ModelRefused, SettingsError
from tlserve.model.bert import BertModel
from tlserve.model.bert_config import CONFIG, bert_shape
from tlserve.model.bert_weights import bert_weights, read_tensors
from tlserve.model.hf_tokenizer import read_tokenizer
from tlserve.model.load_options import LoadOptions
from tlserve.model.loaded_model import LoadedModel
from tlserve.model.sentence_files import read_sentence_files
from tlserve.model.sidecar_files import read_json


def read_bert_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory `path`; raises `ModelRefused`, and `SettingsError` for native kernels, which have no encoder."""
    if options.kernels.kernels == "native":
        raise SettingsError(('engine.kernels = "native": the native kernels have no encoder; give this model "auto"',))
    config, files = read_json(path / CONFIG), read_sentence_files(path)
    shape = bert_shape(config, files.longest)
    if options.context_tokens > shape.context_tokens:
        raise ModelRefused(f"context_tokens {options.context_tokens} is more than the model's {shape.context_tokens}")
    shape = attrs.evolve(shape, context_tokens=options.context_tokens or shape.context_tokens)
    tokenizer = read_tokenizer(path, config, shape.vocabulary, begin="cls", end="sep")
    read = read_tensors(path, shape)
    name = served_model_id(str(path.resolve()))  # a folder of the cache is called v1, and its parent as the model
    return LoadedModel(
        model=BertModel(shape, bert_weights(shape, read.tensors, read.digest), files.pooling, options.threads),
        metadata=tokenizer.metadata,
        chat_template=None,
        eos_ids=frozenset(),
        bos_id=tokenizer.bos_id,
        name=name,
        description=f"{name} (bert sentence encoder, {read.parameters / 1e6:.3g}M parameters, safetensors)",
        weights_bytes=4 * read.parameters,
        notes=files.notes,
        generates=False,
    )
