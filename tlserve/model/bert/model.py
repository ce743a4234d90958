"""The directory of a BERT sentence encoder becomes a loaded model, or only its front.

Has the order of the steps: config, tokenizer, the sentence encoder's own files, weights. Does not know their formats.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from tlserve.config.model_id import served_model_id
from tlserve.errors import ModelRefused, SettingsError
from tlserve.model.bert.config import CONFIG, bert_shape
from tlserve.model.bert.encoder import BertModel, BertShape
from tlserve.model.bert.sentence_files import SentenceFiles, read_sentence_files, with_dense_layers
from tlserve.model.bert.weights import bert_weights, read_tensors
from tlserve.model.hugging_face.tokenizer import read_tokenizer
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront
from tlserve.model.sidecar_files import read_json


def read_bert_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory `path`; raises `ModelRefused`, and `SettingsError` for native kernels, which have no encoder."""
    if options.kernels.kernels == "native":
        reason = (
            f'engine.kernels = "{options.kernels.named}": the native kernels have no encoder; give this model "auto"'
        )
        raise SettingsError((reason,))
    shape, files = _shape(path, options)
    front = _front(path, shape, files)  # a model that is refused is refused before its weights are read
    read = read_tensors(path, shape)
    description = _describe(front.name, f", {read.parameters / 1e6:.3g}M parameters")
    pooling, dense = with_dense_layers(path, files, shape.hidden)
    model = BertModel(shape, bert_weights(shape, read.tensors, read.digest + dense), pooling, options.threads)
    return LoadedModel.of(attrs.evolve(front, description=description), model, 4 * read.parameters)


def read_bert_front(path: Path, options: LoadOptions) -> ModelFront:
    """Read all of the directory `path` but the weights; raises `ModelRefused`."""
    return _front(path, *_shape(path, options))


def _shape(path: Path, options: LoadOptions) -> tuple[BertShape, SentenceFiles]:
    files = read_sentence_files(path)
    shape = bert_shape(read_json(path / CONFIG), files.longest)
    if options.context_tokens > shape.context_tokens:
        raise ModelRefused(f"context_tokens {options.context_tokens} is more than the model's {shape.context_tokens}")
    return attrs.evolve(shape, context_tokens=options.context_tokens or shape.context_tokens), files


def _describe(name: str, size: str = "") -> str:
    return f"{name} (bert sentence encoder{size}, safetensors)"


def _front(path: Path, shape: BertShape, files: SentenceFiles) -> ModelFront:
    tokenizer = read_tokenizer(path, read_json(path / CONFIG), shape.vocabulary, begin="cls", end="sep")
    name = served_model_id(
        str(path.resolve())
    )  # a folder of the cache is called v1, and its parent has the name of the model
    return ModelFront(
        metadata=tokenizer.metadata,
        chat_template=None,
        eos_ids=frozenset(),
        bos_id=tokenizer.bos_id,
        context_tokens=shape.context_tokens,
        name=name,
        description=_describe(name),
        generates=False,
        prompts=files.prompts,
    )
