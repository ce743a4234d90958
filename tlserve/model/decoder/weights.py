"""A decoder's tensors in the precision of their file, by the names of their slots.

Decides which types keep their stored form: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, Q3_K to Q6_K, F16, BF16 and F32. Any other type
becomes float32: its values need more bits than half precision has, and to quantise them a second time would change the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.blocks import F32_KIND, FLOAT_KINDS, KINDS, MXFP4_KIND, mxfp4_fits
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.slots import TensorRole, slots

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class TensorSource(Protocol):
    """Named tensors of (outputs, inputs) or (n,), in the types of their files.

    A tensor of more dimensions is several matrices, whose rows are one after the other.
    """

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end of a tensor as float32; for a vector, the elements."""

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's type number and the bytes of each row, (rows, row bytes)."""


@attrs.frozen(eq=False)
class StoredMatrix:
    """An (outputs, inputs) matrix in the form of its file."""

    kind: int
    outputs: int
    inputs: int
    rows: U8  # (outputs, row bytes)


@attrs.frozen(kw_only=True, eq=False)
class Weights:
    """All tensors by slot. With a tied embedding there is no matrix `head`.

    `hashed` returns a hash of the files they came from; it can have to wait for it, so it is called last.
    """

    matrices: Mapping[str, StoredMatrix]
    vectors: Mapping[str, F32]
    hashed: Callable[[], str]

    @property
    def identity(self) -> str:
        """Return the hash."""
        return self.hashed()

    @property
    def head(self) -> StoredMatrix:
        """Return the output matrix."""
        return self.matrices.get("head", self.matrices["embedding"])

    def vector_bytes(self) -> int:
        """Return the memory of norms and biases."""
        return sum(vector.nbytes for vector in self.vectors.values())

    def is_quantised(self) -> bool:
        """Return whether some matrix is stored in blocks."""
        return any(matrix.kind not in FLOAT_KINDS for matrix in self.matrices.values())


def read_weights(decoder: Decoder, source: TensorSource, hashed: Callable[[], str]) -> Weights:
    """Collect the tensors of a decoder from a source of its slots; `hashed` as in `Weights`.

    The bytes of matrices are views of the source where their type is kept.
    """
    matrices: dict[str, StoredMatrix] = {}
    vectors: dict[str, F32] = {}
    for name, slot in slots(decoder).items():
        if slot.role is TensorRole.MATRIX:
            matrices[name] = _matrix(source, name)
        else:
            vectors[name] = np.array(source.rows(name, 0, math.prod(slot.shape)), np.float32)
    return Weights(matrices=matrices, vectors=vectors, hashed=hashed)


def _matrix(source: TensorSource, name: str) -> StoredMatrix:
    """Return a matrix in its stored type, or in float32 where that type is not kept."""
    outputs, inputs = source.shapes()[name]
    kind, rows = source.stored(name)
    if kind not in KINDS or (kind == MXFP4_KIND and not mxfp4_fits(rows)):
        kind, rows = F32_KIND, np.ascontiguousarray(source.rows(name, 0, outputs), np.float32).view(np.uint8)
    return StoredMatrix(kind, outputs, inputs, rows)
