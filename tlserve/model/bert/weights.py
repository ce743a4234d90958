"""The tensors of a BERT's safetensors files as the arrays of `bert`.

Has their names and shapes. A tensor that is missing, unknown or of a wrong shape refuses the model. Two kinds are known and not
read: the numbers of the positions, and the pooler, which sentence encoders do not use. Source: `modeling_bert` of transformers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.bert.encoder import Affine, BertLayer, BertShape, BertWeights
from tlserve.model.hugging_face.safetensors_file import SafetensorsFile
from tlserve.model.hugging_face.weights import weight_files
from tlserve.model.tensor_shapes import Shapes, check_shapes

F32 = NDArray[np.float32]
_WORDS, _POSITIONS, _TYPES = (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
_NORM = "embeddings.LayerNorm"
_NOT_READ = re.compile(r"embeddings\.position_ids|pooler\.dense\.(weight|bias)")


def expected_shapes(shape: BertShape) -> Shapes:
    """Return the tensors that a BERT of `shape` has, by their names."""
    hidden, intermediate = shape.hidden, shape.intermediate
    shapes: dict[str, tuple[int, ...]] = {
        _WORDS: (shape.vocabulary, hidden),
        _POSITIONS: (shape.positions, hidden),
        _TYPES: (shape.token_types, hidden),
    }
    affine: dict[str, tuple[int, ...]] = {_NORM: (hidden,)}
    for layer in range(shape.layers):
        home = f"encoder.layer.{layer}"
        affine |= {f"{home}.attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        affine |= {
            f"{home}.attention.output.dense": (hidden, hidden),
            f"{home}.attention.output.LayerNorm": (hidden,),
            f"{home}.intermediate.dense": (intermediate, hidden),
            f"{home}.output.dense": (hidden, intermediate),
            f"{home}.output.LayerNorm": (hidden,),
        }
    for name, size in affine.items():
        shapes |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    return shapes


def bert_weights(shape: BertShape, tensors: Mapping[str, F32], identity: str) -> BertWeights:
    """Arrange tensors that have the expected shapes; they are used unchanged, except queries, keys and values."""

    def affine(*names: str) -> Affine:
        parts = [[tensors[f"{name}.{kind}"] for name in names] for kind in ("weight", "bias")]
        weight, bias = (part[0] if len(part) == 1 else np.concatenate(part) for part in parts)
        return Affine(weight, bias)

    def layer(home: str) -> BertLayer:
        return BertLayer(
            qkv=affine(*(f"{home}.attention.self.{part}" for part in ("query", "key", "value"))),
            output=affine(f"{home}.attention.output.dense"),
            attention_norm=affine(f"{home}.attention.output.LayerNorm"),
            up=affine(f"{home}.intermediate.dense"),
            down=affine(f"{home}.output.dense"),
            norm=affine(f"{home}.output.LayerNorm"),
        )

    return BertWeights(
        embedding=tensors[_WORDS],
        positions=tensors[_POSITIONS] + tensors[_TYPES][0],
        norm=affine(_NORM),
        layers=tuple(layer(f"encoder.layer.{index}") for index in range(shape.layers)),
        identity=identity,
    )


@attrs.frozen(eq=False)
class ReadTensors:
    """What the files hold: the tensors as float32, how many numbers those are, and a hash of every byte."""

    tensors: Mapping[str, F32]
    parameters: int
    digest: str


def read_tensors(directory: Path, shape: BertShape) -> ReadTensors:
    """Read the tensors of a BERT of `shape`; raises `ModelRefused`. The files are closed again."""
    expected, tensors, digest = expected_shapes(shape), dict[str, F32](), hashlib.blake2b(digest_size=16)
    with ExitStack() as stack:
        files = [stack.enter_context(SafetensorsFile(path)) for path in weight_files(directory)]
        home = {name: file for file in files for name in file.tensors}
        _check(expected, {name: file.tensors[name].shape for name, file in home.items()})
        for name, size in expected.items():
            tensors[name] = home[name].rows(name, 0, size[0])
        for file in files:
            digest.update(file.data)
    return ReadTensors(tensors, sum(tensor.size for tensor in tensors.values()), digest.hexdigest())


def _check(expected: Shapes, found: Shapes) -> None:
    """Refuse a missing tensor, a wrong shape, and a tensor that the encoder would leave out."""
    check_shapes(expected, found)
    for name in found.keys() - expected.keys():
        if not _NOT_READ.fullmatch(name):
            raise ModelRefused(f"the tensor {name[:100]} is not part of a BERT like this one")
