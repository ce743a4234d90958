"""The weights of a Hugging Face directory: its safetensors files, under GGUF's names for a llama.

Knows which files belong to a model and the names of its tensors, but no sizes. Weights that exist only as a pickle are refused,
because reading one can run code.
Source: `modeling_llama` and its kin in transformers; the index format of `save_pretrained`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
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

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = re.compile(r"model\.layers\.(?P<layer>0|[1-9][0-9]{0,3})\.(?P<part>.+)\.(?P<kind>weight|bias)")
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TABLES = re.compile(r".*\.rotary_emb\.inv_freq")  # old checkpoints hold a copy of what the config says


@attrs.frozen(eq=False)
class HfWeights:
    """An open `llama.tensors.TensorSource`: GGUF's names -> (file, its own name). The stack that opened it closes it."""

    home: Mapping[str, tuple[SafetensorsFile, str]]
    files: tuple[SafetensorsFile, ...]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""
        return {name: file.tensors[own].shape for name, (file, own) in self.home.items()}

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end of a tensor as float32."""
        file, own = self.home[name]
        return file.rows(own, start, end)

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's number of a tensor's type and the bytes of its rows."""
        file, own = self.home[name]
        return file.stored(own)

    def own_name(self, name: str) -> str:
        """Return what the files call the tensor that GGUF calls `name`."""
        return self.home[name][1]

    def parameters(self) -> int:
        """Return how many numbers all tensors hold."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    def digest(self) -> str:
        """Return a hash of every byte of every file."""
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            digest.update(file.data)
        return digest.hexdigest()


def open_weights(directory: Path, stack: ExitStack, *, tied: bool) -> HfWeights:
    """Open the files of a model; they are closed with `stack`. Raises `ModelRefused`.

    `tied`: the output matrix is the embedding, whatever else a file holds.
    """
    files = tuple(stack.enter_context(SafetensorsFile(path)) for path in weight_files(directory))
    home: dict[str, tuple[SafetensorsFile, str]] = {}
    for file in files:
        for own, name in _known_names(file, tied):
            if name in home:
                raise ModelRefused(f"the tensor {own[:100]!r} is in both {home[name][0].name} and {file.name}")
            home[name] = (file, own)
    return HfWeights(home, files)


def hf_name(name: str) -> str:
    """Return the name in a Hugging Face checkpoint of the tensor that GGUF calls `name`."""
    whole = {ours: theirs for theirs, ours in _NAMES.items()}
    if name in whole:
        return whole[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{next(theirs for theirs, ours in _PARTS.items() if ours == part)}.{kind}"


def _known_names(file: SafetensorsFile, tied: bool) -> Iterator[tuple[str, str]]:
    """Yield (name in the file, GGUF's name); refuses a tensor that no part of the forward pass would read."""
    for own in file.tensors:
        if _TABLES.fullmatch(own) or (tied and own == "lm_head.weight"):
            continue
        found = _LAYER.fullmatch(own)
        if own in _NAMES:
            yield own, _NAMES[own]
        elif found and found["part"] in _PARTS:
            yield own, f"blk.{found['layer']}.{_PARTS[found['part']]}.{found['kind']}"
        else:
            raise ModelRefused(
                f"{file.name} has the tensor {own[:100]!r}, which is not part of any architecture served here"
            )


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
