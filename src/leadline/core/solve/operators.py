"""The system matrix Q as a matrix-free operator, and the Jacobi preconditioner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.core.solve import kernels


@dataclass(frozen=True)
class Operator:
    """Q = A + data I + laplacian A^2 on the free pixels, on padded arrays; see kernels.py for their layout.

    With `edges`, A is the Laplacian of the weighted graph, and `mass` replaces the data weight: it is the data weight
    plus, at soft measurements, the measurement weight.
    """

    code: NDArray[np.uint8]
    data: float
    laplacian: float
    edges: NDArray[np.float32] | None = None
    mass: NDArray[np.float32] | None = None

    @property
    def representable(self) -> bool:
        """Whether the weights are finite in float32."""
        return max(self.data, self.laplacian) < float(np.finfo(np.float32).max)

    def apply(self, p: NDArray[np.float32], out: NDArray[np.float32]) -> float:
        """Compute out = Q p; returns p . Q p."""
        dots, squares = self._partial_sums()
        factors = np.float32(self.data), np.float32(self.laplacian), np.float32(1)
        kernels.apply_operator(p, self.code, self.edges, self.mass, None, out, *factors, dots, squares)
        return float(dots.sum())

    def residual(self, field: NDArray[np.float64], rhs: NDArray[np.float64] | None, out: NDArray[np.float32]) -> float:
        """Compute out = rhs - Q field, in float64 until the result is stored; returns its norm."""
        dots, squares = self._partial_sums()
        factors = self.data, self.laplacian, -1.0
        kernels.apply_operator(field, self.code, self.edges, self.mass, rhs, out, *factors, dots, squares)
        return float(np.sqrt(squares.sum()))

    def diagonal(self, row: NDArray[np.intp], column: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return Q_pp = data + a + laplacian (a^2 + sum of w^2) at padded indices, with a the sum of the edges w."""
        if self.edges is None or self.mass is None:  # all w = 1
            degree = (self.code[row, column] & kernels.DEGREE).astype(np.float64)
            squares = degree
            mass: FloatArray | float = self.data
        else:
            east, south = self.edges[kernels.EAST], self.edges[kernels.SOUTH]
            around = [east[row, column], east[row, column - 1], south[row, column], south[row - 1, column]]
            weights = np.array(around, np.float64)
            degree, squares, mass = weights.sum(axis=0), (weights**2).sum(axis=0), self.mass[row, column]
        diagonal: NDArray[np.float64] = mass + degree + self.laplacian * (degree**2 + squares)
        return diagonal

    def _partial_sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        count = kernels.block_count(self.code.shape[0] - 2)
        return np.zeros(count), np.zeros(count)


class Jacobi:
    """The paper's preconditioner, z = r / diag(Q)."""

    def __init__(self, operator: Operator) -> None:
        free = np.nonzero(operator.code >= kernels.FREE)
        self._inverse = np.zeros(operator.code.shape, np.float32)
        self._inverse[free] = 1.0 / operator.diagonal(*free)
        self._result = np.empty_like(self._inverse)
        self.scratch = np.zeros_like(self._inverse)

    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        np.multiply(self._inverse, r, out=self._result)
        return self._result, float(np.einsum("ij,ij->i", self._result, r, dtype=np.float64).sum())

    def increase_damping(self) -> bool:
        return False  # diag(Q) is positive, so there is nothing to damp
