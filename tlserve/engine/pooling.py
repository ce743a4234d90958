"""From hidden states to one embedding: the mean over the tokens, or the first one, scaled to length 1 if the model says so.

Owns the order of the sums: float64, token after token, then component after component, so that the bits do not depend on
how the tokens were split into chunks. Knows nothing of sequences and chunks.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import PooledRows, Pooling


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
        self.rows += len(hidden)
        rows = hidden.astype(np.float64)
        if self.total is not None:
            rows = np.concatenate([self.total[None], rows])
        with np.errstate(invalid="ignore"):  # the caller checks for infinities; no warning
            self.total = np.add.accumulate(rows, axis=0)[-1] if len(rows) else None

    def embedding(self) -> NDArray[np.float32]:
        """Return the mean, normalised if the model says so: (hidden_size,) float32; all zero if the mean is.

        At least one row must have been added. The result is finite wherever the hidden states were.
        """
        assert self.total is not None
        mean = self.total / self.rows
        if not self.pooling.normalised:
            return mean.astype(np.float32)
        with np.errstate(invalid="ignore"):
            norm = math.sqrt(np.add.accumulate(mean * mean)[-1])
            return (mean / norm if norm else mean).astype(np.float32)
