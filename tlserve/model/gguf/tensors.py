"""The tensors of a GGUF file as rows of float32.

Maps the file and checks that every tensor is inside it. `block_types` turns the quantised types into float32. Does not know which
tensors a model needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.gguf.block_types import BlockType, block_type, type_name
from tlserve.model.gguf.header import GgufHeader, TensorInfo, read_header

F32 = NDArray[np.float32]

MAX_TENSOR_VALUES = 1 << 36


class GgufFile:
    """An open GGUF file: a `llama.tensors.TensorSource`. Close it when the weights are read; a context manager."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise ModelRefused(f"cannot read {path.name}: {error}") from error
        try:
            self.header: GgufHeader = read_header(self._data)
            self._kinds = {name: _checked_kind(info, len(self._data)) for name, info in self.header.tensors.items()}
        except BaseException:
            self._data.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(
            BufferError
        ):  # an error that is being raised still holds a view: the mapping ends with it
            self._data.close()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor, outputs first."""
        return {name: info.shape for name, info in self.header.tensors.items()}

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end of a matrix as (end - start, inputs) float32, or all of a vector as (n,)."""
        info, kind = self.header.tensors[name], self._kinds[name]
        row_bytes = _row_bytes(info.shape[-1], kind)
        first, count = (start, end - start) if len(info.shape) > 1 else (0, 1)
        raw = np.frombuffer(self._data, np.uint8, count * row_bytes, info.start + first * row_bytes)
        rows = kind.dequantized(raw.reshape(count, row_bytes))
        return rows if len(info.shape) > 1 else rows[0].copy()

    def stored(self, name: str) -> tuple[int, NDArray[np.uint8]]:
        """Return GGML's type number of a matrix and the bytes of its rows, (outputs, row bytes): a view of the file."""
        info, kind = self.header.tensors[name], self._kinds[name]
        row_bytes = _row_bytes(info.shape[-1], kind)
        raw = np.frombuffer(self._data, np.uint8, info.shape[0] * row_bytes, info.start)
        return info.kind, raw.reshape(info.shape[0], row_bytes)

    def size_bytes(self) -> int:
        """Return the size of the file."""
        return len(self._data)

    def digest(self) -> str:
        """Return a hash of every byte of the file (blake2b; 0.07 s for 100 MB)."""
        return hashlib.blake2b(self._data, digest_size=16).hexdigest()


def _row_bytes(values: int, kind: BlockType) -> int:
    """Return the bytes of one row."""
    return values // kind.values * kind.size


def _checked_kind(info: TensorInfo, file_bytes: int) -> BlockType:
    """Return the type of a tensor; refuses unknown types, empty or huge shapes, and data that is not in the file."""
    kind = block_type(info.kind)
    if kind is None:
        raise ModelRefused(f"the tensor {info.name!r} holds {type_name(info.kind)}")
    values = math.prod(info.shape)
    if not 0 < values <= MAX_TENSOR_VALUES:
        raise ModelRefused(f"the tensor {info.name!r} has the shape {info.shape}, which is not served")
    if info.shape[-1] % kind.values:
        raise ModelRefused(f"the tensor {info.name!r}: rows of {info.shape[-1]} are not whole blocks of {kind.name}")
    end = info.start + values // info.shape[-1] * _row_bytes(info.shape[-1], kind)
    if end > file_bytes:
        raise ModelRefused(f"the tensor {info.name!r} ends at byte {end}, the file at {file_bytes}: it is truncated")
    return kind
