"""The weights of a decoder as numpy multiplies by them: matrices unpacked, vectors as they are, each by its slot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.blocks import BlockMatrix, Matrix, as_floats, unpack
from tlserve.kernels.reference.linear import LINEAR, QUANTISE, linear_f32
from tlserve.model.decoder.weights import StoredMatrix, Weights

F32 = NDArray[np.float32]


class Parts:
    """The unpacked weights and the products with them. With f32 activations, no matrix stays quantised."""

    def __init__(self, weights: Weights, activations: str) -> None:
        self._activations = activations
        self._matrices = {name: self._unpack(stored) for name, stored in weights.matrices.items()}
        self._vectors = weights.vectors

    @property
    def nbytes(self) -> int:
        """Return the memory of the weights."""
        return sum(part.nbytes for part in (*self._matrices.values(), *self._vectors.values()))

    def matrix(self, slot: str) -> Matrix:
        """Return a matrix, (outputs, inputs); without one of its own, the head is the embedding."""
        return self._matrices["embedding" if slot == "head" and slot not in self._matrices else slot]

    def vector(self, slot: str) -> F32 | None:
        """Return a vector, None where the decoder has none."""
        return self._vectors.get(slot)

    def linear(self, x: F32, *names: str) -> list[F32]:
        """Return the products of `x` with each weight; quantised weights take quantised rows. (T, K) -> (T, N) each."""
        weights = [self.matrix(name) for name in names]
        if not any(isinstance(weight, BlockMatrix) for weight in weights):
            return [linear_f32(x, weight) for weight in weights]
        rows, product = QUANTISE[self._activations](x), LINEAR[self._activations]
        return [
            product(rows, weight) if isinstance(weight, BlockMatrix) else linear_f32(x, weight) for weight in weights
        ]

    def biased(self, x: F32, *names: str) -> list[F32]:
        """Return the products of `x` with each weight, and add the bias that each has."""
        products = self.linear(x, *names)
        for product, name in zip(products, names, strict=True):
            bias = self.vector(f"{name}.bias")
            if bias is not None:
                np.add(product, bias, out=product)
        return products

    def _unpack(self, stored: StoredMatrix) -> Matrix:
        matrix = unpack(stored.kind, np.array(stored.rows))
        return as_floats(matrix) if self._activations == "f32" else matrix
