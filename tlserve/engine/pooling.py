"""From hidden states to one embedding: the mean over the tokens, or the first or last one, the model's layers, and length 1.

Owns the order of the sums: float64, token after token, then component after component, so that the bits do not depend on
how the tokens were split into chunks. A product of a layer is summed by halves, which no library decides. Knows nothing of
sequences and chunks.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import PooledActivation, PooledLayer, PooledRows, Pooling

F64 = NDArray[np.float64]


@attrs.define(eq=False)
class HiddenSum:
    """The running sum of the pooled hidden states, `rows` of them so far.

    `total` is (hidden_size,) float64 after the first one.
    """

    pooling: Pooling = attrs.field(factory=Pooling)
    rows: int = 0
    total: NDArray[np.float64] | None = None

    def add(self, hidden: NDArray[np.float32]) -> None:
        """Add the rows of `hidden`: (P, hidden_size) float32, in order, one after the other."""
        if self.pooling.rows is PooledRows.FIRST:
            hidden = hidden[: 1 - self.rows]
        if self.pooling.rows is PooledRows.LAST:
            self.rows, self.total = 0, None
            hidden = hidden[-1:]
        self.rows += len(hidden)
        rows = hidden.astype(np.float64)
        if self.total is not None:
            rows = np.concatenate([self.total[None], rows])
        with np.errstate(invalid="ignore"):  # the caller checks for infinities; no warning
            self.total = np.add.accumulate(rows, axis=0)[-1] if len(rows) else None

    def embedding(self) -> NDArray[np.float32]:
        """Return the vector, normalised if the model says so: (Pooling.size,) float32; all zero if what it is made of is.

        At least one row must have been added. The result is finite wherever the hidden states were.
        """
        assert self.total is not None
        with np.errstate(all="ignore"):
            vector = self.total / self.rows
            for layer in self.pooling.layers:
                vector = passed(layer, vector)
            if self.pooling.normalised:
                norm = math.sqrt(np.add.accumulate(vector * vector)[-1])
                vector = vector / norm if norm else vector
            return vector.astype(np.float32)


def passed(layer: PooledLayer, vector: F64) -> F64:
    """Return the vector after `layer`: (inputs,) -> (outputs,) float64."""
    out = _sum_in_halves(layer.weight * vector)
    if layer.bias is not None:
        out = out + layer.bias
    if layer.activation is PooledActivation.TANH:
        out = np.array([math.tanh(value) for value in out])
    elif layer.activation is PooledActivation.GELU:
        out = np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in out])
    if layer.norm_weight is not None:
        centred = out - _sum_in_halves(out) / len(out)
        variance = _sum_in_halves(centred * centred) / len(out)
        out = centred / np.sqrt(variance + layer.norm_epsilon) * layer.norm_weight
    return out


def _sum_in_halves(terms: F64) -> F64:
    """Sum over the last axis: add the upper half to the lower one, until one term is left."""
    while (count := terms.shape[-1]) > 1:
        half = count // 2
        folded = terms[..., :half] + terms[..., count - half :]
        terms = np.concatenate([folded, terms[..., half : half + 1]], axis=-1) if count % 2 else folded
    return terms[..., 0]
