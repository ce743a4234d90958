"""The tensors of a GGUF model as rows of float32.

Maps its files and checks that every tensor is inside its file. `block_types` turns the quantised types into float32, `shards`
knows which files belong together. Does not know which tensors a model needs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import mmap
from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.kernels.thread_pool import HelperThread
from tlserve.model.gguf.block_types import BlockType, block_type, type_name
from tlserve.model.gguf.header import GgufHeader, TensorInfo, read_header
from tlserve.model.gguf.shards import check_count, check_shard, other_shards

F32 = NDArray[np.float32]

MAX_TENSOR_VALUES = 1 << 36


@attrs.frozen
class _Stored:
    """Where a tensor is: the mapped file that it is in, its entry there, and its type."""

    data: mmap.mmap
    file: str
    info: TensorInfo
    kind: BlockType


class GgufFile:
    """An open model: a `llama.tensors.TensorSource`. Close it when the weights are read; a context manager.

    A model can be split over several files, of which the first has the metadata. With `hashed`, a thread hashes their
    bytes at once, and the caller reads them meanwhile.
    """

    def __init__(self, path: Path, *, hashed: bool = False) -> None:
        self._files: list[mmap.mmap] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._hasher = HelperThread("tlserve-hash") if hashed else None
        self._tensors: dict[str, _Stored] = {}
        try:
            self.header = self._opened(path)
            for number, name in enumerate(other_shards(path, self.header.metadata), 1):
                other = self._opened(path.with_name(name))
                check_shard(name, other.metadata, number, self.header.metadata)
            check_count(self.header.metadata, len(self._tensors))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        if self._hasher is not None:
            self._hasher.close()
        for data in self._files:
            with contextlib.suppress(
                BufferError
            ):  # an error that is being raised still holds a view: the mapping ends with it
                data.close()

    def _opened(self, path: Path) -> GgufHeader:
        """Map one file and note its tensors; return its header."""
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise ModelRefused(f"cannot read {path.name}: {error}") from error
        self._files.append(data)
        if self._hasher is not None:
            self._hasher.start(functools.partial(self._hash.update, data))
        header = read_header(data)
        for name, info in header.tensors.items():
            if name in self._tensors:
                raise ModelRefused(f"the tensor {name!r} is in {self._tensors[name].file} and in {path.name}")
            self._tensors[name] = _Stored(data, path.name, info, _checked_kind(info, len(data)))
        return header

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor, outputs first."""
        return {name: stored.info.shape for name, stored in self._tensors.items()}

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end as (end - start, inputs) float32, or all of a vector as (n,).

        The rows of several matrices are one after the other.
        """
        stored = self._tensors[name]
        shape, kind = stored.info.shape, stored.kind
        row_bytes = _row_bytes(shape[-1], kind)
        first, count = (start, end - start) if len(shape) > 1 else (0, 1)
        raw = np.frombuffer(stored.data, np.uint8, count * row_bytes, stored.info.start + first * row_bytes)
        rows = kind.dequantized(raw.reshape(count, row_bytes))
        return rows if len(shape) > 1 else rows[0].copy()

    def stored(self, name: str) -> tuple[int, NDArray[np.uint8]]:
        """Return GGML's type number of a tensor and the bytes of its rows, (rows, row bytes): a view of the file."""
        stored = self._tensors[name]
        info = stored.info
        rows, row_bytes = math.prod(info.shape[:-1]), _row_bytes(info.shape[-1], stored.kind)
        raw = np.frombuffer(stored.data, np.uint8, rows * row_bytes, info.start)
        return info.kind, raw.reshape(rows, row_bytes)

    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(map(len, self._files))

    def digest(self) -> str:
        """Return a hash of every byte of the files (blake2b); raises ValueError where the file was not opened for it."""
        if self._hasher is None:
            raise ValueError("the file was opened without a hash")
        self._hasher.wait()
        return self._hash.hexdigest()


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
