"""The vectors with which an encoder's rows begin: those of tokens, positions and token types.

Owns the order of their sums. Knows nothing of the layers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import StepBatch
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.weights import EncoderWeights

F32 = NDArray[np.float32]
SLOTS = ("embedding", "positions", "types")


class Embeddings:
    """The tables of one encoder."""

    def __init__(self, encoder: Encoder, weights: EncoderWeights) -> None:
        self._encoder = encoder
        self._tokens = weights.arrays["embedding"]
        self._placed = _placed_vectors(encoder, weights)

    @property
    def nbytes(self) -> int:
        """Return the memory of the tables."""
        return self._tokens.nbytes + sum(vectors.nbytes for vectors in self._placed)

    def rows(self, batch: StepBatch) -> F32:
        """Return the vectors of all rows of a step, (R, F)."""
        rows: F32 = self._tokens[batch.tokens]
        if self._encoder.embed_scale != 1.0:
            rows = rows * np.float32(self._encoder.embed_scale)
        if not self._placed:
            return rows
        places = batch.positions if self._encoder.positions else np.zeros_like(batch.positions)
        rows = rows + self._placed[0][places]
        if self._encoder.second_after is not None and len(self._placed) > 1:
            second = _second_rows(batch, self._encoder.second_after)
            rows[second] = self._tokens[batch.tokens[second]] + self._placed[1][places[second]]
        return rows


def _placed_vectors(encoder: Encoder, weights: EncoderWeights) -> list[F32]:
    """Return what is added to embeddings by position (one row where there are none), for each token type that is used."""
    arrays = weights.arrays
    positions = arrays["positions"][encoder.first_position :] if encoder.positions else None
    types = arrays.get("types")
    if types is None:
        return [] if positions is None else [positions]
    return [row[None] if positions is None else positions + row for row in types[:2]]


def _second_rows(batch: StepBatch, separator: int) -> NDArray[np.intp]:
    """Return the rows that come after the first `separator` of their sequence."""
    found = []
    for start, end in zip(batch.row_starts[:-1], batch.row_starts[1:], strict=True):
        places = np.flatnonzero(batch.tokens[start:end] == separator)
        if len(places):
            found.append(np.arange(start + places[0] + 1, end))
    return np.concatenate(found) if found else np.zeros(0, np.intp)
