"""A Hugging Face directory becomes a loaded model, or only its front.

Has the order of the steps: config, tokenizer, the files next to it, weights. Decides which file says what ends an answer. Does
not know their formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.hugging_face.config import CONFIG, hf_shape, is_tied
from tlserve.model.hugging_face.tokenizer import read_tokenizer
from tlserve.model.hugging_face.weights import HfWeights, hf_name, open_weights
from tlserve.model.llama.build import LlamaModel, build_llama
from tlserve.model.llama.expected_tensors import expected_shapes
from tlserve.model.llama.interleaved import InterleavedSource
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront
from tlserve.model.sidecar_files import read_json, read_sidecar, token_ids
from tlserve.model.tensor_shapes import check_shapes


def read_hf_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory `path`; raises `ModelRefused`."""
    config = read_json(path / CONFIG)
    shape = hf_shape(config, options.context_tokens)
    front = _front(path, config, shape)  # a model that is refused is refused before its weights are read
    model, parameters = _build(path, config, shape, options)
    description = _describe(front.name, shape, f", {parameters / 1e6:.3g}M parameters")
    return LoadedModel.of(attrs.evolve(front, description=description), model, model.weights_bytes)


def read_hf_front(path: Path, options: LoadOptions) -> ModelFront:
    """Read all of the directory `path` but the weights; raises `ModelRefused`."""
    config = read_json(path / CONFIG)
    return _front(path, config, hf_shape(config, options.context_tokens))


def _describe(name: str, shape: LlamaShape, size: str = "") -> str:
    return f"{name} ({shape.architecture}{size}, safetensors)"


def _front(path: Path, config: Mapping[str, object], shape: LlamaShape) -> ModelFront:
    tokenizer = read_tokenizer(path, config, shape.vocabulary)
    sidecar = read_sidecar(path, shape.vocabulary)
    named = token_ids(config.get("eos_token_id"), shape.vocabulary, f"{CONFIG}: eos_token_id")
    own = frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id})
    return ModelFront(
        metadata=tokenizer.metadata,
        chat_template=sidecar.chat_template,
        eos_ids=(sidecar.eos_ids or named) | own,
        bos_id=tokenizer.bos_id,
        context_tokens=shape.context_tokens,
        name=path.resolve().name,
        description=_describe(path.resolve().name, shape),
        default_sampling=sidecar.sampling,
        notes=sidecar.notes,
    )


def _build(path: Path, config: Mapping[str, object], shape: LlamaShape, options: LoadOptions) -> tuple[LlamaModel, int]:
    """Return the model and its number of parameters; the files are closed again."""
    with ExitStack() as stack:
        tied = is_tied(config)
        weights = open_weights(path, stack, tied=tied)
        _check_tensors(weights, shape, tied=tied)
        source = InterleavedSource(weights, shape.head_size)
        return build_llama(shape, source, weights.digest(), options), weights.parameters()


def _check_tensors(weights: HfWeights, shape: LlamaShape, *, tied: bool) -> None:
    """Refuse a tensor that is missing, has a wrong shape, or would be ignored, by the name in its file."""
    expected, found = expected_shapes(shape, tied=tied), weights.shapes()
    check_shapes(expected, found, hf_name)
    for name in found.keys() - expected.keys():
        raise ModelRefused(
            f"the tensor {weights.own_name(name)[:100]} is not part of a {shape.architecture} like this one"
        )
