"""A GGUF file becomes a loaded model, or only its front.

Has the order of the steps: header, sizes, weights, the files next to it. Does not know what the tokenizer's keys mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.architectures.forms import ROPE_FACTORS
from tlserve.model.decoder.build import build_decoder
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.slots import slots
from tlserve.model.decoder.stored_slots import StoredSlots
from tlserve.model.encoder.kinds import GGUF_ENCODER_TYPES
from tlserve.model.gguf.end_tokens import end_tokens, named_token
from tlserve.model.gguf.facts import gguf_architecture, gguf_decoder
from tlserve.model.gguf.shard_names import without_number
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront
from tlserve.model.sidecar_files import TOOL_USE, Sidecar, read_sidecar

EMBEDDING = "token_embd.weight"


def read_gguf_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the file at `path` and the files next to it; raises `ModelRefused`."""
    with GgufFile(path, hashed=True) as file:
        if file.header.metadata.get("general.architecture") in GGUF_ENCODER_TYPES:
            from tlserve.model.gguf.encoders import read_gguf_encoder

            return read_gguf_encoder(file, path, options)
        metadata, decoder = file.header.metadata, _decoder(file, options)
        _, form = gguf_architecture(metadata)
        model = build_decoder(decoder, StoredSlots(file, decoder, form.storage()), file.digest, options)
    return LoadedModel.of(_front(path, metadata, decoder), model, model.weights_bytes)


def read_gguf_front(path: Path, options: LoadOptions) -> ModelFront:
    """Read the header of the file at `path` and the files next to it; raises `ModelRefused`."""
    with GgufFile(path) as file:
        if file.header.metadata.get("general.architecture") in GGUF_ENCODER_TYPES:
            from tlserve.model.gguf.encoders import read_gguf_encoder_front

            return read_gguf_encoder_front(file, path, options)
        return _front(path, file.header.metadata, _decoder(file, options))


def _decoder(file: GgufFile, options: LoadOptions) -> Decoder:
    embedding = file.shapes().get(EMBEDDING, ())
    gguf_architecture(file.header.metadata)  # an unknown architecture is a better reason than a missing tensor
    if len(embedding) != 2:
        raise ModelRefused(f"the tensor {EMBEDDING} is missing or is not a matrix")
    return gguf_decoder(
        file.header.metadata, embedding[0], options.context_tokens, file.shapes().keys(), _rope_factors(file)
    )


def _rope_factors(file: GgufFile) -> NDArray[np.float64] | None:
    """Return what the frequencies of the rotation are divided by, None where the file does not say."""
    shape = file.shapes().get(ROPE_FACTORS)
    return None if shape is None else file.rows(ROPE_FACTORS, 0, shape[0]).astype(np.float64)


def _front(path: Path, metadata: Mapping[str, object], decoder: Decoder) -> ModelFront:
    sidecar = read_sidecar(path.parent, decoder.vocabulary)
    return ModelFront(
        metadata={key: value for key, value in metadata.items() if key.startswith("tokenizer.")},
        chat_template=sidecar.chat_template or _text(metadata, "tokenizer.chat_template") or None,
        tool_template=_tool_template(sidecar, metadata),
        eos_ids=sidecar.eos_ids | end_tokens(metadata, decoder.vocabulary),
        bos_id=named_token(metadata, "tokenizer.ggml.bos_token_id", decoder.vocabulary),
        context_tokens=decoder.context_tokens,
        name=_text(metadata, "general.name") or without_number(path.name),
        description=_describe(metadata, decoder, path),
        default_sampling=sidecar.sampling,
        notes=sidecar.notes,
    )


def _tool_template(sidecar: Sidecar, metadata: Mapping[str, object]) -> str | None:
    """Return the template for requests with tools; files next to the weights that have a template replace both."""
    if sidecar.chat_template or sidecar.tool_template:
        return sidecar.tool_template
    return _text(metadata, f"tokenizer.chat_template.{TOOL_USE}") or None


def _text(metadata: Mapping[str, object], key: str) -> str:
    """Return the string under `key`, "" where there is none."""
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise ModelRefused(f"{key} must be a string")
    return value


def _describe(metadata: Mapping[str, object], decoder: Decoder, path: Path) -> str:
    """Return one line: name, parameters, file."""
    millions = sum(math.prod(slot.shape) for slot_name, slot in slots(decoder).items() if slot_name != "head") / 1e6
    name = _text(metadata, "general.name") or without_number(path.name)
    return f"{name} ({decoder.architecture}, {millions:.0f}M parameters, {path.name})"
