"""From hidden states to one embedding: the mean over the tokens, scaled to length 1.

Owns the order of the sums: float64, token after token, then component after component, so that the bits do not depend on
how the tokens were cut into chunks. Refuses to know sequences and chunks.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray


@attrs.define(eq=False)
class HiddenSum:
    """The running sum of hidden states; `total` is (hidden_size,) float64 once a row has come."""

    rows: int = 0
    total: NDArray[np.float64] | None = None

    def add(self, hidden: NDArray[np.float32]) -> None:
        """Add the rows of `hidden`: (P, hidden_size) float32, in order, one after the other."""
        with np.errstate(invalid="ignore"):  # infinities that meet are the caller's finding, not a warning
            for row in hidden:
                self.total = row.astype(np.float64) if self.total is None else self.total + row
        self.rows += len(hidden)

    def embedding(self) -> NDArray[np.float32]:
        """Return the normalised mean: (hidden_size,) float32; all zero if the mean is. At least one row was added.

        It is finite wherever the hidden states were.
        """
        assert self.total is not None
        mean = self.total / self.rows
        with np.errstate(invalid="ignore"):
            norm = math.sqrt(np.add.accumulate(mean * mean)[-1])
            return (mean / norm if norm else mean).astype(np.float32)
