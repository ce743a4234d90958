"""Unquantised weights served in 8 bits: a source that stores every matrix of another one as Q8_0.

The matrices of F16, BF16 and F32 whose rows are whole blocks of 32 change. Vectors, quantised matrices, and those that choose
experts stay as they are.
Both views agree: `rows` returns the values of the stored blocks, so that every kernel runs the same model. The rounding is that
of the `gguf` package's Q8_0: scale amax / 127 in half precision.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.blocks import FLOAT_KINDS
from tlserve.model.decoder.slots import KEPT_WIDE
from tlserve.model.decoder.weights import TensorSource

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

Q8_0_KIND = 8
BLOCK = 32


@attrs.frozen
class Q8Source:
    """A `TensorSource` over `source`, its wide matrices in 8 bits."""

    source: TensorSource

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the source."""
        return self.source.shapes()

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows as the blocks have them; for a vector, the elements."""
        rows = self.source.rows(name, start, end)
        return _dequantised(q8_0_rows(rows)) if self._changes(name) else rows

    def stored(self, name: str) -> tuple[int, U8]:
        """Return Q8_0's type number and its blocks, or what the source has."""
        if not self._changes(name):
            return self.source.stored(name)
        return Q8_0_KIND, q8_0_rows(self.source.rows(name, 0, self.source.shapes()[name][0]))

    def _changes(self, name: str) -> bool:
        if name.endswith(KEPT_WIDE):
            return False
        shape = self.source.shapes()[name]
        return len(shape) == 2 and shape[1] % BLOCK == 0 and self.source.stored(name)[0] in FLOAT_KINDS


def q8_0_rows(rows: F32) -> U8:
    """Return rows of float32 as blocks: (N, K) -> (N, K / 32 * 34)."""
    from gguf import GGMLQuantizationType  # 0.05 s
    from gguf.quants import quantize

    return np.asarray(quantize(np.ascontiguousarray(rows, np.float32), GGMLQuantizationType.Q8_0), np.uint8)


def _dequantised(blocks: U8) -> F32:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    return np.asarray(dequantize(blocks, GGMLQuantizationType.Q8_0), np.float32)
