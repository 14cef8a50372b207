"""Preconditioned conjugate gradients on a residual system, with the reason it stopped.

The system is Q_UU r_U = -Q_UF r_F + b_U with F the fixed and U the free pixels; system.py says where it comes from.
Written for the whole field r, zero at invalid pixels, its residual is simply (b - Q r)_U: no right-hand side is formed,
and the *true* residual at the end takes one more pass in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import Status
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels

DEFAULT_LIMIT = {"multigrid": 200, "jacobi": 500}  # 500 is the paper's
# The recursive residual may run ahead of the true one, in float32 by some 1e-7 of where it started. Once it has
# fallen this far it is replaced by the true one; if that misses the tolerance the iteration starts again from it,
# as long as that gains at least the second factor.
_TRUSTED_FALL = 1e-6
_RESTART_GAIN = 0.5


class SolveStatus(Status):
    CONVERGED = "the residual is below the tolerance"
    NOTHING_TO_SOLVE = "no measurement disagrees with the calibrated prior beside a pixel left to fill"
    ITERATION_LIMIT = "stopped at the iteration limit: raise max_iterations or the tolerance, or use solver='multigrid'"
    STAGNATED = "float32 work vectors allow no smaller residual: raise the tolerance"
    BROKE_DOWN = "the iteration met a non-finite number: look for extreme values in prior, measurements or weights"


@dataclass(frozen=True)
class Solution:
    """The field and how it was reached; `history` holds the relative residual before each step.

    `field` is padded by a pixel on every side, as the kernels want it; `interior` is the image.
    """

    field: NDArray[np.float64]
    status: SolveStatus
    iterations: int
    residual: float
    history: tuple[float, ...]

    @property
    def interior(self) -> NDArray[np.float64]:
        return self.field[1:-1, 1:-1]


@dataclass(frozen=True)
class Operator:
    """Q = A + data I + laplacian A^2 on the free pixels, padded.

    Of a weighted graph if `edges` is given; `mass` then stands for the data weight and holds the precision of soft
    measurements too. See kernels.py for the layout.
    """

    code: NDArray[np.uint8]
    data: float
    laplacian: float
    edges: NDArray[np.float32] | None = None
    mass: NDArray[np.float32] | None = None

    @property
    def representable(self) -> bool:
        """Whether the weights are numbers in float32, too."""
        return max(self.data, self.laplacian) < float(np.finfo(np.float32).max)

    def apply(self, p: NDArray[np.float32], out: NDArray[np.float32]) -> float:
        """out = Q p; returns p . Q p."""
        dots, squares = self._sums()
        weights = np.float32(self.data), np.float32(self.laplacian), np.float32(1)
        kernels.apply_operator(p, self.code, self.edges, self.mass, None, out, *weights, dots, squares)
        return float(dots.sum())

    def residual(self, field: NDArray[np.float64], pull: NDArray[np.float64] | None, out: NDArray[np.float32]) -> float:
        """out = pull - Q field, in float64 until it is stored; returns its norm."""
        dots, squares = self._sums()
        weights = self.data, self.laplacian, -1.0
        kernels.apply_operator(field, self.code, self.edges, self.mass, pull, out, *weights, dots, squares)
        return float(np.sqrt(squares.sum()))

    def diagonal(self, row: NDArray[np.intp], column: NDArray[np.intp]) -> NDArray[np.float64]:
        """Q_pp = data + a + laplacian (a^2 + sum of w^2) at padded indices, a the sum of a pixel's edges w."""
        if self.edges is None or self.mass is None:  # w = 1
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

    def _sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        count = kernels.blocks(self.code.shape[0] - 2)
        return np.zeros(count), np.zeros(count)


class Preconditioner(Protocol):
    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        """z = B r, with B symmetric positive definite, and r . z."""
        ...

    @property
    def scratch(self) -> NDArray[np.float32]:
        """An array of the image's padded shape that is free between two calls."""
        ...

    def relax(self) -> bool:
        """Become more cautious, having turned out not to be definite; False if there is no way to."""
        ...


class Jacobi:
    """z = r / diag(Q): the paper's preconditioner."""

    def __init__(self, operator: Operator) -> None:
        free = np.nonzero(operator.code >= kernels.FREE)
        self._inverse = np.zeros(operator.code.shape, np.float32)
        self._inverse[free] = 1.0 / operator.diagonal(*free)
        self._result = np.empty_like(self._inverse)
        self.scratch = np.zeros_like(self._inverse)

    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        np.multiply(self._inverse, r, out=self._result)
        return self._result, float(np.einsum("ij,ij->i", self._result, r, dtype=np.float64).sum())

    def relax(self) -> bool:
        return False


def conjugate_gradients(
    operator: Operator,
    precondition: Preconditioner,
    field: NDArray[np.float64],
    pull: NDArray[np.float64] | None,
    size: float,
    options: ReconstructionOptions,
    work: tuple[NDArray[np.float32], NDArray[np.float32]],
    at: float,
) -> Solution:
    """Solve for the free pixels of `field`, which is overwritten and returned.

    Parameters
    ----------
    field : (H + 2, W + 2) float64
        The fixed values, and where to start from at free pixels.
    pull : (H + 2, W + 2) float64, optional
        Right-hand side b at free pixels, beside what the fixed ones give.
    size : float
        The norm of the residual that the tolerance is relative to.
    work : pair of (H + 2, W + 2) float32
        The residual of `field`, and room for the directions, with zeros on the border. Both are overwritten.
    at : float
        The norm of that residual.
    """
    limit = options.max_iterations or DEFAULT_LIMIT[options.solver]
    r, p = work
    p.fill(0.0)
    q = precondition.scratch
    history = [at / size]
    started_at = history[0]  # relative residual at the last (re)start
    status = SolveStatus.ITERATION_LIMIT
    squares = np.zeros(kernels.blocks(field.shape[0] - 2))
    alignment = 0.0  # r . z of the previous step; zero (re)starts the directions
    while True:
        if history[-1] <= max(options.tolerance, _TRUSTED_FALL * started_at):
            history[-1] = operator.residual(field, pull, r) / size
            if history[-1] <= options.tolerance:
                status = SolveStatus.CONVERGED
                break
            if history[-1] > _RESTART_GAIN * started_at:
                status = SolveStatus.STAGNATED
                break
            started_at, alignment = history[-1], 0.0
        if len(history) > limit:
            break
        z, new_alignment = precondition(r)
        kernels.redirect(p, z, np.float32(new_alignment / alignment if alignment else 0.0))
        alignment = new_alignment
        curvature = operator.apply(p, q)
        if not (curvature > 0.0 and alignment > 0.0):
            if np.isfinite(curvature + alignment) and precondition.relax():
                alignment = 0.0
                continue
            status = SolveStatus.BROKE_DOWN
            break
        kernels.advance(field, r, p, q, alignment / curvature, squares)
        history.append(float(np.sqrt(squares.sum())) / size)
    if status is not SolveStatus.CONVERGED:
        history[-1] = operator.residual(field, pull, r) / size
    return Solution(field, status, len(history) - 1, history[-1], tuple(history))
