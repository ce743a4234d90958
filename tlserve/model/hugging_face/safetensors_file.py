"""The tensors of safetensors files as rows of float32, with every size and offset checked before it is used.

Reads the format: the length of the header, its JSON, the placement of data. Floats of 16 and 32 bits are read. A file can have
other types; they are refused when their rows are requested. Does not know which tensors a model needs. Reads no other kind of
file: a pickle can run code. Source: the format section of the safetensors project's README.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.sidecar_files import parse_json

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 65_536
MAX_HEADER_MEMBERS = 24 * MAX_TENSORS  # a tensor of 8 dimensions has 21, as they are counted
MAX_DIMENSIONS = 8

_BITS = {
    kind: bits
    for bits, kinds in (
        (8, "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0"),
        (16, "U16 I16 F16 BF16"),
        (32, "U32 I32 F32"),
        (64, "U64 I64 F64"),
    )
    for kind in kinds.split()
}
_GGML_KINDS = {"F32": 0, "F16": 1, "BF16": 30}
"""The types that can be read, and GGML's numbers of them."""


@attrs.frozen
class StoredTensor:
    """One entry of a header: its data is bytes `start` to `end` of the file."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """An open file: names to rows. A context manager."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise ModelRefused(f"cannot read {path.name}: {error}") from error
        try:
            self.tensors: Mapping[str, StoredTensor] = read_header(self.data, path.name)
        except BaseException:
            self.data.close()
            raise

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BufferError):  # a view that is still held keeps the mapping until it is released
            self.data.close()

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end of a tensor as float32, a copy; raises `ModelRefused` for a type that is not read.

        A row of a vector is a number; the rows of several matrices are one after the other.
        """
        kind, raw = self.stored(name)
        shape = self.tensors[name].shape
        return _to_float32(kind, raw[start:end]).reshape(-1, *shape[max(1, len(shape) - 1) :])

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's number of a tensor's type and the bytes of its rows, (rows, row bytes): a view of the file."""
        info = self.tensors[name]
        if info.kind not in _GGML_KINDS:
            raise ModelRefused(f"the tensor {name[:100]!r} has the type {info.kind}; served: {', '.join(_GGML_KINDS)}")
        if not info.shape or info.start == info.end:
            raise ModelRefused(f"the tensor {name[:100]!r} is a single number or empty, not a vector or a matrix")
        raw = np.frombuffer(self.data, np.uint8, info.end - info.start, info.start)
        return _GGML_KINDS[info.kind], raw.reshape(math.prod(info.shape[:-1]) if info.shape[1:] else info.shape[0], -1)

    def raw(self, name: str) -> U8:
        """Return the elements of a tensor of type U8, in one row: a view of the file; raises `ModelRefused` for another type."""
        info = self.tensors[name]
        if info.kind != "U8":
            raise ModelRefused(f"the tensor {name[:100]!r} has the type {info.kind}, not U8")
        return np.frombuffer(self.data, np.uint8, info.end - info.start, info.start)


def _to_float32(kind: int, raw: U8) -> F32:
    """Return the numbers in `raw` (rows, bytes), little-endian."""
    if kind == _GGML_KINDS["BF16"]:  # the upper half of a float32
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return np.array(raw.view("<f2" if kind == _GGML_KINDS["F16"] else "<f4"), np.float32)


# --- the header ----------------------------------------------------------------------------------------------------------


def read_header(data: mmap.mmap | bytes, file: str) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name; raises `ModelRefused` where it is damaged or wrong."""
    if len(data) < 8:
        raise ModelRefused(f"{file} is not a safetensors file: it has {len(data)} bytes")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ModelRefused(
            f"{file} is truncated or its header is wrong: it claims {size} bytes of {len(data)}; "
            f"at most {MAX_HEADER_BYTES} are read"
        )
    document = _read_json(bytes(data[8 : 8 + size]), file)
    document.pop("__metadata__", None)
    if len(document) > MAX_TENSORS:
        raise ModelRefused(f"{file} has {len(document)} tensors; at most {MAX_TENSORS} are read")
    tensors = {name: _entry(name, entry, 8 + size, file) for name, entry in document.items()}
    _check_placement(tensors, 8 + size, len(data), file)
    return tensors


def _read_json(raw: bytes, file: str) -> dict[str, Any]:
    try:
        document = parse_json(raw, MAX_HEADER_MEMBERS, _without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"the header of {file} cannot be read: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise ModelRefused(f"the header of {file} is not a JSON object")
    return document


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that occurs twice: readers differ in which one they use."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name occurs twice")
    return document


def _entry(name: str, entry: Any, data_start: int, file: str) -> StoredTensor:
    """Return one checked entry; its size must be what its type and shape say."""
    what = f"{file}: the tensor {name[:100]!r}"
    if not isinstance(entry, dict):
        raise ModelRefused(f"{what} is not described by an object")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in _BITS:
        raise ModelRefused(f"{what} has the unknown type {str(kind)[:40]!r}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ModelRefused(f"{what} has no usable shape")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelRefused(f"{what} has no usable data_offsets")
    size = math.prod(shape) * _BITS[kind] // 8
    if offsets[1] - offsets[0] != size:
        raise ModelRefused(f"{what} takes {offsets[1] - offsets[0]} bytes, but its shape and type need {size}")
    return StoredTensor(kind, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    """Return whether `values` is a list of whole numbers from 0 up."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _check_placement(tensors: Mapping[str, StoredTensor], start: int, end: int, file: str) -> None:
    """Refuse data that overlaps, leaves holes, or ends elsewhere than the file."""
    place = start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != place:
            fault = "overlaps another" if info.start < place else "leaves a hole before it"
            raise ModelRefused(f"{file}: the data of the tensor {name[:100]!r} {fault}")
        place = info.end
    if place != end:
        raise ModelRefused(
            f"{file} has {end} bytes, but its tensors end at byte {place}: it is truncated or its header is wrong"
        )
