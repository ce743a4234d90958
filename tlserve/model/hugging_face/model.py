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
from tlserve.model.hugging_face.facts import CONFIG, hf_decoder
from tlserve.model.hugging_face.tokenizer import read_tokenizer
from tlserve.model.hugging_face.weights import open_weights
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront
from tlserve.model.sidecar_files import read_json, read_sidecar, token_ids


def read_hf_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory `path`; raises `ModelRefused`."""
    config = read_json(path / CONFIG)
    decoder = hf_decoder(config, options.context_tokens)
    front = _front(path, config, decoder)  # a model that is refused is refused before its weights are read
    model, parameters = _build(path, decoder, options)
    description = _describe(front.name, decoder, f", {parameters / 1e6:.3g}M parameters")
    return LoadedModel.of(attrs.evolve(front, description=description), model, model.weights_bytes)


def read_hf_front(path: Path, options: LoadOptions) -> ModelFront:
    """Read all of the directory `path` but the weights; raises `ModelRefused`."""
    config = read_json(path / CONFIG)
    return _front(path, config, hf_decoder(config, options.context_tokens))


def _describe(name: str, decoder: Decoder, size: str = "") -> str:
    return f"{name} ({decoder.architecture}{size}, safetensors)"


def _front(path: Path, config: Mapping[str, object], decoder: Decoder) -> ModelFront:
    tokenizer = read_tokenizer(path, config, decoder.vocabulary)
    sidecar = read_sidecar(path, decoder.vocabulary)
    named = token_ids(config.get("eos_token_id"), decoder.vocabulary, f"{CONFIG}: eos_token_id")
    own = frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id})
    return ModelFront(
        metadata=tokenizer.metadata,
        chat_template=sidecar.chat_template,
        eos_ids=(sidecar.eos_ids or named) | own,
        bos_id=tokenizer.bos_id,
        context_tokens=decoder.context_tokens,
        name=path.resolve().name,
        description=_describe(path.resolve().name, decoder),
        default_sampling=sidecar.sampling,
        notes=sidecar.notes,
    )


def _build(path: Path, decoder: Decoder, options: LoadOptions) -> tuple[DecoderModel, int]:
    """Return the model and its number of parameters; the files are closed again."""
    _, form = HF[decoder.architecture]
    with ExitStack() as stack:
        weights = open_weights(path, stack)
        source = StoredSlots(weights, decoder, form.storage(tied=decoder.tied))
        parameters = sum(math.prod(shape) for shape in source.shapes().values())
        return build_decoder(decoder, source, weights.digest(), options), parameters
