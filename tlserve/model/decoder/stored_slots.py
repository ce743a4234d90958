"""The slots of a decoder as a source of tensors, read from a file that stores them in its own way.

`storage` has the table of one kind of file, and where each slot is. Knows no architecture.

In Hugging Face checkpoints, and in GGUF files of some architectures, components i and i + n / 2 of the n that turn in a head
are rotated together; here 2 i and 2 i + 1 are (see `kernels.reference.rope`). Scores stay the same, because queries and keys
change in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.kernels.reference.blocks import FLOAT_KINDS
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.slots import TensorRole, TensorSlot
from tlserve.model.decoder.storage import Home, Shape, Storage, homes, unused_keys
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.tensor_shapes import check_shapes

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Rows = TypeVar("Rows", F32, U8)


class StoredSlots:
    """A `weights.TensorSource` of the slots of `decoder`, in the order of the record."""

    def __init__(self, file: TensorSource, decoder: Decoder, storage: Storage) -> None:
        self._file = file
        self._storage = storage
        found = file.shapes()
        self._homes = homes(decoder, storage, found.keys())
        self._shapes = {name: _own_shape(home.slot) for name, home in self._homes.items()}
        expected = {home.name: _as_found(home.shape, found.get(home.name)) for home in self._homes.values()}
        check_shapes(expected, found)
        unused = unused_keys(decoder, storage)
        for name in sorted(found.keys() - expected.keys() - unused):
            if not storage.is_ignored(name, len(decoder.layers)):  # a forward pass without it would be another model
                raise ModelRefused(
                    f"the tensor {name[:100]!r} is not part of the architecture {decoder.architecture} as served here"
                )

    def shapes(self) -> Mapping[str, Shape]:
        """Return the shape of every slot; one weight for each head is a vector, as the other norms."""
        return self._shapes

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows of a slot as float32, in order; for a vector, the elements."""
        home = self._homes[name]
        part = self._floats(home)
        if self._storage.less_one and home.slot.role is TensorRole.NORM and not name.endswith(".bias"):
            part = part + np.float32(1)
        ordered = self._in_order(part, home.slot)
        return ordered.reshape(-1)[start:end] if home.slot.role is TensorRole.NORM else ordered[start:end]

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's type number of a matrix and the bytes of its rows, in order."""
        home = self._homes[name]
        kind, rows = self._file.stored(home.name)
        rows = rows.reshape(math.prod(home.shape[:-1]), -1)[home.rows]
        if home.columns is not None:
            rows = _transposed(kind, rows, home)
        return kind, np.ascontiguousarray(self._in_order(rows, home.slot))

    def _floats(self, home: Home) -> F32:
        """Return the part of a tensor that a slot has."""
        if len(home.shape) == 1:
            return self._file.rows(home.name, 0, home.shape[0]).reshape(-1)[home.rows].reshape(home.slot.shape)
        part = self._file.rows(home.name, home.rows.start, home.rows.stop)[:: home.rows.step]
        return (part if home.columns is None else part[:, home.columns].T).reshape(home.slot.shape)

    def _in_order(self, rows: Rows, slot: TensorSlot) -> Rows:
        if not (self._storage.half_split and slot.turned):
            return rows
        if rows.ndim == 2 and slot.role is TensorRole.NORM:  # one row for each head
            return interleaved(rows.T, slot.head, slot.turned).T
        return interleaved(rows, slot.head, slot.turned)


def interleaved(heads: Rows, head_size: int, turned: int) -> Rows:
    """Return whole heads of rows, with rows i and i + turned / 2 of each head at 2 i and 2 i + 1; a copy."""
    order = np.arange(head_size)
    order[0:turned:2], order[1:turned:2] = range(turned // 2), range(turned // 2, turned)
    return heads.reshape(-1, head_size, *heads.shape[1:])[:, order].reshape(heads.shape)


def _own_shape(slot: TensorSlot) -> Shape:
    return (math.prod(slot.shape),) if slot.role is TensorRole.NORM else slot.shape


def _as_found(shape: Shape, found: Shape | None) -> Shape:
    """Return `shape`, with the leading ones of the file: a vector can be stored as a matrix of one row, and the reverse."""
    if found is None:
        return shape
    bare, ones = [n for n in shape if n != 1], [n for n in found if n != 1]
    return found if bare == ones else shape


def _transposed(kind: int, rows: U8, home: Home) -> U8:
    """Return the rows of a slot from a block of (inputs, bytes of the rows of all slots)."""
    if kind not in FLOAT_KINDS:
        raise ModelRefused(f"the tensor {home.name[:100]!r} is stored by columns, and in blocks")
    values = rows.reshape(len(rows), home.shape[-1], -1)[:, home.columns]
    return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(values.shape[1], -1)
