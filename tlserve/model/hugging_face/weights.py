"""The weights of a Hugging Face directory: its safetensors files as one source of tensors.

Knows which files belong to a model, but not which tensors. Weights that exist only as a pickle are refused, because reading one
can run code. Source: the index format of `save_pretrained` in transformers.
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
from tlserve.model.hugging_face.safetensors_file import SafetensorsFile
from tlserve.model.sidecar_files import read_json

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARDS = 1024


@attrs.frozen(eq=False)
class HfWeights:
    """An open `decoder.weights.TensorSource`: the file of every tensor. The stack that opened it closes it."""

    home: Mapping[str, SafetensorsFile]
    files: tuple[SafetensorsFile, ...]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""
        return {name: file.tensors[name].shape for name, file in self.home.items()}

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end of a tensor as float32."""
        return self.home[name].rows(name, start, end)

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's number of a tensor's type and the bytes of its rows."""
        return self.home[name].stored(name)

    def raw(self, name: str) -> U8:
        """Return the bytes of a tensor of bytes; raises `ModelRefused` for another type."""
        return self.home[name].raw(name)

    def digest(self) -> str:
        """Return a hash of every byte of every file."""
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            digest.update(file.data)
        return digest.hexdigest()


def open_weights(directory: Path, stack: ExitStack) -> HfWeights:
    """Open the files of a model; they are closed with `stack`. Raises `ModelRefused`."""
    files = tuple(stack.enter_context(SafetensorsFile(path)) for path in weight_files(directory))
    home: dict[str, SafetensorsFile] = {}
    for file in files:
        for name in file.tensors:
            if name in home:
                raise ModelRefused(f"the tensor {name[:100]!r} is in both {home[name].name} and {file.name}")
            home[name] = file
    return HfWeights(home, files)


def weight_files(directory: Path) -> list[Path]:
    """Return the files of a model: the one, or the shards that its index names; raises `ModelRefused`."""
    if (directory / WHOLE).is_file():
        return [directory / WHOLE]
    if (directory / INDEX).is_file():
        return [directory / name for name in _shards(read_json(directory / INDEX))]
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    also = (
        f"; {pickles[0]} is a pickle, which can run code, so it is not read: convert it to safetensors"
        if pickles
        else ""
    )
    raise ModelRefused(f"it has neither {WHOLE} nor {INDEX}{also}")


def _shards(index: Mapping[str, object]) -> list[str]:
    """Return the file names of an index; each must be the name of a file next to it."""
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ModelRefused(f"{INDEX}: weight_map must be an object of file names")
    names = sorted(set(places.values()))
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors", name):
            raise ModelRefused(f"{INDEX} names the file {name[:100]!r}; a shard is a .safetensors file next to it")
    if len(names) > MAX_SHARDS:
        raise ModelRefused(f"{INDEX} names {len(names)} files; at most {MAX_SHARDS} are read")
    return names
