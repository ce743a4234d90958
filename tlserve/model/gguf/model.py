"""A GGUF file becomes a loaded model, or only its front.

Has the order of the steps: header, sizes, weights, the files next to it. Does not know what the tokenizer's keys mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tlserve.errors import ModelRefused
from tlserve.model.gguf.end_tokens import end_tokens, named_token
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.llama.build import build_llama
from tlserve.model.llama.expected_tensors import expected_shapes
from tlserve.model.llama.hyperparameters import gguf_family, llama_shape
from tlserve.model.llama.interleaved import InterleavedSource
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront
from tlserve.model.sidecar_files import read_sidecar

EMBEDDING = "token_embd.weight"


def read_gguf_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the file at `path` and the files next to it; raises `ModelRefused`."""
    with GgufFile(path) as file:
        metadata, shape = file.header.metadata, _shape(file, options)
        source = InterleavedSource(file, shape.head_size) if gguf_family(metadata).half_split else file
        model = build_llama(shape, source, file.digest(), options)
    return LoadedModel.of(_front(path, metadata, shape), model, model.weights_bytes)


def read_gguf_front(path: Path, options: LoadOptions) -> ModelFront:
    """Read the header of the file at `path` and the files next to it; raises `ModelRefused`."""
    with GgufFile(path) as file:
        return _front(path, file.header.metadata, _shape(file, options))


def _shape(file: GgufFile, options: LoadOptions) -> LlamaShape:
    embedding = file.shapes().get(EMBEDDING, ())
    gguf_family(file.header.metadata)  # an unknown architecture is a better reason than a missing tensor
    if len(embedding) != 2:
        raise ModelRefused(f"the tensor {EMBEDDING} is missing or is not a matrix")
    return llama_shape(file.header.metadata, embedding[0], options.context_tokens, file.shapes().keys())


def _front(path: Path, metadata: Mapping[str, object], shape: LlamaShape) -> ModelFront:
    sidecar = read_sidecar(path.parent, shape.vocabulary)
    return ModelFront(
        metadata={key: value for key, value in metadata.items() if key.startswith("tokenizer.")},
        chat_template=sidecar.chat_template or _text(metadata, "tokenizer.chat_template") or None,
        eos_ids=sidecar.eos_ids | end_tokens(metadata, shape.vocabulary),
        bos_id=named_token(metadata, "tokenizer.ggml.bos_token_id", shape.vocabulary),
        context_tokens=shape.context_tokens,
        name=_text(metadata, "general.name") or path.stem,
        description=_describe(metadata, shape, path),
        default_sampling=sidecar.sampling,
        notes=sidecar.notes,
    )


def _text(metadata: Mapping[str, object], key: str) -> str:
    """Return the string under `key`, "" where there is none."""
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise ModelRefused(f"{key} must be a string")
    return value


def _describe(metadata: Mapping[str, object], shape: LlamaShape, path: Path) -> str:
    """Return one line: name, parameters, file."""
    tensors = expected_shapes(shape, tied=True).values()
    millions = sum(rows * (rest[0] if rest else 1) for rows, *rest in tensors) / 1e6
    return f"{_text(metadata, 'general.name') or path.stem} ({shape.architecture}, {millions:.0f}M parameters, {path.name})"
