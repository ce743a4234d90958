"""The directory of an encoder becomes a loaded model, or only its front.

Has the order of the steps: config, tokenizer, the sentence encoder's own files, weights, head. Does not know their formats.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import attrs

from tlserve.config.model_id import served_model_id
from tlserve.errors import ModelRefused
from tlserve.kernels.interface import Pooling
from tlserve.model.decoder.storage import Storage
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.encoder.architectures.facts import EncoderFacts, EncoderForm
from tlserve.model.encoder.architectures.registry import encoder_form
from tlserve.model.encoder.build import build_encoder
from tlserve.model.encoder.heads import head_names, least_dimensions, read_head, read_scores
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.sentence_files import SentenceFiles, longest_text, read_sentence_files, with_dense_layers
from tlserve.model.encoder.weights import name_prefix, read_encoder_weights
from tlserve.model.fields import Fields
from tlserve.model.hugging_face.facts import CONFIG
from tlserve.model.hugging_face.tokenizer import read_text_frame, read_tokenizer
from tlserve.model.hugging_face.weights import open_weights
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront, Prompts, Scores
from tlserve.model.sidecar_files import read_json


@attrs.frozen(kw_only=True, eq=False)
class _Described:
    """What the files of a directory say before the weights are read. `files` None: the model makes scores."""

    config: Fields
    form: EncoderForm
    encoder: Encoder
    files: SentenceFiles | None
    scores: Scores | None
    front: ModelFront


def read_encoder_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory `path`; raises `ModelRefused`, and `SettingsError` for native kernels that cannot run."""
    found = _describe(path, options)
    with ExitStack() as stack:
        source = open_weights(path, stack)
        storage = _storage(found.form, source)
        prefix = name_prefix(source.shapes(), storage.names["embedding"])
        others = head_names(found.form, prefix) if found.scores else frozenset[str]()
        weights = read_encoder_weights(found.encoder, source, storage, source.digest(), others)
        if found.files is None:
            assert found.scores is not None
            labels = len(found.scores.labels)
            pooling = read_head(found.config, found.form, source, prefix, found.encoder.hidden, labels)
        else:
            pooling, dense = with_dense_layers(path, found.files, found.encoder.hidden)
            weights = attrs.evolve(weights, identity=weights.identity + dense)
    parameters = weights.parameters + _pooled_parameters(pooling)
    model = build_encoder(found.encoder, weights, pooling, options)
    front = attrs.evolve(found.front, description=_about(found, f", {parameters / 1e6:.3g}M parameters"))
    return LoadedModel.of(front, model, model.weights_bytes)


def read_encoder_front(path: Path, options: LoadOptions) -> ModelFront:
    """Read all of the directory `path` but the weights; raises `ModelRefused`."""
    return _describe(path, options).front


def _describe(path: Path, options: LoadOptions) -> _Described:
    document = read_json(path / CONFIG)
    config = Fields(document, f"{CONFIG}: ")
    form, makes_scores = encoder_form(config)
    files = None if makes_scores else read_sentence_files(path)
    encoder = form.describe(EncoderFacts(config, longest_text(path) if files is None else files.longest))
    if options.context_tokens > encoder.context_tokens:
        raise ModelRefused(f"context_tokens {options.context_tokens} is more than the model's {encoder.context_tokens}")
    frame = read_text_frame(path)
    encoder = attrs.evolve(
        encoder,
        architecture=form.model_type,
        context_tokens=options.context_tokens or encoder.context_tokens,
        second_after=frame.second_after if makes_scores and encoder.types > 1 else None,
    )
    tokenizer = read_tokenizer(path, document, encoder.vocabulary, begin="cls", end="sep", frame=frame)
    scores = attrs.evolve(read_scores(config), pair=frame.pair) if makes_scores else None
    name = served_model_id(str(path.resolve()))
    front = ModelFront(
        metadata=tokenizer.metadata,
        chat_template=None,
        eos_ids=frozenset(),
        bos_id=tokenizer.bos_id,
        context_tokens=encoder.context_tokens,
        name=name,
        description="",
        generates=False,
        scores=scores,
        min_dimensions=least_dimensions(config, encoder.hidden),
        prompts=Prompts() if files is None else files.prompts,
    )
    found = _Described(config=config, form=form, encoder=encoder, files=files, scores=scores, front=front)
    return attrs.evolve(found, front=attrs.evolve(front, description=_about(found)))


def _storage(form: EncoderForm, source: TensorSource) -> Storage:
    """Return how the files store the tensors: the first way whose embedding they have, else the usual one."""
    found = source.shapes()
    for storage in form.storages:
        if f"{name_prefix(found, storage.names['embedding'])}{storage.names['embedding']}.weight" in found:
            return storage
    return form.storages[0]


def _pooled_parameters(pooling: Pooling) -> int:
    return sum(layer.weight.size + (0 if layer.bias is None else layer.bias.size) for layer in pooling.layers)


def _about(found: _Described, size: str = "") -> str:
    what = "sentence encoder" if found.scores is None else f"scores of {len(found.scores.labels)} labels"
    return f"{found.front.name} ({found.form.model_type} {what}{size}, safetensors)"
