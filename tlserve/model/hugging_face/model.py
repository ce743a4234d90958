"""A Hugging Face directory becomes a loaded model, or only its front.

Has the order of the steps: config, tokenizer, the files next to it, weights. Decides which file says what ends an answer. Does
not know their formats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import attrs

from tlserve.model.architectures.registry import HF
from tlserve.model.decoder.build import DecoderModel, build_decoder
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.stored_slots import StoredSlots
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.encoder.heads import least_dimensions
from tlserve.model.fields import Fields
from tlserve.model.hugging_face.facts import CONFIG, hf_decoder
from tlserve.model.hugging_face.mxfp4 import with_mxfp4
from tlserve.model.hugging_face.pooled import (
    PooledModel,
    PooledUse,
    WithoutNames,
    WithPrefix,
    as_decoder,
    read_pooled_use,
    read_pooling,
)
from tlserve.model.hugging_face.tokenizer import read_ids, read_text_frame, read_tokenizer
from tlserve.model.hugging_face.weights import open_weights
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront, Prompts
from tlserve.model.sidecar_files import read_json, read_sidecar, token_ids


def read_hf_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory `path`; raises `ModelRefused`."""
    config = read_json(path / CONFIG)
    decoder = hf_decoder(as_decoder(config), options.context_tokens)
    use = read_pooled_use(path, config, lambda: read_ids(path, decoder.vocabulary))
    front = _front(path, config, decoder, use)  # a model that is refused is refused before its weights are read
    model, parameters, weights_bytes = _build(path, decoder, options, use)
    description = _describe(front.name, decoder, f", {parameters / 1e6:.3g}M parameters")
    return LoadedModel.of(attrs.evolve(front, description=description), model, weights_bytes)


def read_hf_front(path: Path, options: LoadOptions) -> ModelFront:
    """Read all of the directory `path` but the weights; raises `ModelRefused`."""
    config = read_json(path / CONFIG)
    decoder = hf_decoder(as_decoder(config), options.context_tokens)
    return _front(path, config, decoder, read_pooled_use(path, config, lambda: read_ids(path, decoder.vocabulary)))


def _describe(name: str, decoder: Decoder, size: str = "") -> str:
    return f"{name} ({decoder.architecture}{size}, safetensors)"


def _front(path: Path, config: Mapping[str, object], decoder: Decoder, use: PooledUse | None) -> ModelFront:
    frame = None if use is None else read_text_frame(path)
    tokenizer = read_tokenizer(path, config, decoder.vocabulary, frame=frame)
    sidecar = read_sidecar(path, decoder.vocabulary)
    named = token_ids(config.get("eos_token_id"), decoder.vocabulary, f"{CONFIG}: eos_token_id")
    own = frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id})
    return ModelFront(
        metadata=tokenizer.metadata,
        chat_template=sidecar.chat_template,
        tool_template=sidecar.tool_template,
        eos_ids=(sidecar.eos_ids or named) | own,
        bos_id=tokenizer.bos_id,
        context_tokens=decoder.context_tokens,
        name=path.resolve().name,
        description=_describe(path.resolve().name, decoder),
        default_sampling=sidecar.sampling,
        notes=sidecar.notes,
        generates=use is None,
        scores=None if use is None else use.scores,
        prompts=Prompts() if use is None or use.files is None else use.files.prompts,
        min_dimensions=least_dimensions(Fields(config, f"{CONFIG}: "), decoder.hidden),
    )


def _build(
    path: Path, decoder: Decoder, options: LoadOptions, use: PooledUse | None
) -> tuple[DecoderModel | PooledModel, int, int]:
    """Return the model, its number of parameters and the memory of its weights; the files are closed again."""
    _, form = HF[decoder.architecture]
    with ExitStack() as stack:
        weights = open_weights(path, stack)
        file: TensorSource = with_mxfp4(weights)
        if use is not None:
            decoder = attrs.evolve(decoder, tied=True)  # nothing is predicted, so the head is not needed
            file = WithPrefix(file) if "embed_tokens.weight" in file.shapes() else file
            pooling, identity = read_pooling(path, use, file, decoder.hidden)
            file = WithoutNames(file, frozenset({"score.weight", "model.score.weight"}))
        source = StoredSlots(file, decoder, form.storage(tied=decoder.tied))
        parameters = sum(math.prod(shape) for shape in source.shapes().values())
        model = build_decoder(decoder, source, weights.digest, options)
        if use is None:
            return model, parameters, model.weights_bytes
        return PooledModel(model, pooling, identity), parameters, model.weights_bytes
