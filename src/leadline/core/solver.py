"""Preconditioned conjugate gradients on the masked residual system, with the reason it stopped.

The system is Q_UU r_U = -Q_UF r_F with Q = A + data I + laplacian A^2 (Appendix A, everything divided
by the gradient weight). Written for the whole field x, zero at invalid pixels and fixed at measured
ones, its residual on the free pixels is simply -(Q x)_U: the right-hand side is the residual of the
field that is zero on all free pixels, and the *true* residual at the end takes one more pass in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.core import kernels
from leadline.core.multigrid import build
from leadline.core.types import ReconstructionOptions, Status
from leadline.core.vcycle import VCycle

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
    """The padded field and how it was reached; `history` holds the relative residual before each step."""

    field: NDArray[np.float64]
    status: SolveStatus
    iterations: int
    residual: float
    history: tuple[float, ...]


class Preconditioner(Protocol):
    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        """z = B r, with B symmetric positive definite, and r . z."""
        ...

    @property
    def scratch(self) -> NDArray[np.float32]:
        """An array of the image's padded shape that is free between two calls."""
        ...


class Jacobi:
    """z = r / diag(Q), Q_pp = data + d_p + laplacian (d_p^2 + d_p): the paper's preconditioner."""

    def __init__(self, code: NDArray[np.uint8], data: float, laplacian: float) -> None:
        degree = np.arange(kernels.DEGREE + 1, dtype=np.float64)
        degree[0] = 1.0  # a free pixel has neighbours; with a vanishing data weight its inverse would be infinite
        inverse = 1.0 / (data + degree + laplacian * (degree**2 + degree))
        free = code >= kernels.FREE
        self._inverse = np.where(free, inverse.astype(np.float32)[code & kernels.DEGREE], np.float32(0))
        self._result = np.empty_like(self._inverse)
        self.scratch = np.zeros_like(self._inverse)

    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        np.multiply(self._inverse, r, out=self._result)
        return self._result, float(np.einsum("ij,ij->i", self._result, r, dtype=np.float64).sum())


def solve(code: NDArray[np.uint8], field: NDArray[np.float64], options: ReconstructionOptions) -> Solution:
    """Minimise the residual energy over the free pixels of `field`, which is overwritten and returned.

    Parameters
    ----------
    code : (H + 2, W + 2) uint8
        Roles of the pixels, see kernels.py.
    field : (H + 2, W + 2) float64
        Log residuals at measured pixels, zero elsewhere.
    """
    data = options.weight_data / options.weight_gradient
    laplacian = options.weight_laplacian / options.weight_gradient
    limit = options.max_iterations or DEFAULT_LIMIT[options.solver]
    count = kernels.blocks(code.shape[0] - 2)
    dots, squares = np.zeros(count), np.zeros(count)

    r = np.zeros(field.shape, np.float32)
    kernels.apply_operator(field, code, r, data, laplacian, -1.0, dots, squares)
    size = float(np.sqrt(squares.sum()))
    if size == 0.0:
        return Solution(field, SolveStatus.NOTHING_TO_SOLVE, 0, 0.0, ())
    if not (np.isfinite(size) and max(data, laplacian) < float(np.finfo(np.float32).max)):
        return Solution(field, SolveStatus.BROKE_DOWN, 0, float("nan"), ())

    multigrid = options.solver == "multigrid"
    precondition: Preconditioner = VCycle(build(code, data)) if multigrid else Jacobi(code, data, laplacian)
    q = precondition.scratch
    p = np.zeros(field.shape, np.float32)
    data32, laplacian32 = np.float32(data), np.float32(laplacian)

    history = [1.0]
    started_at = 1.0  # relative residual at the last (re)start
    status = SolveStatus.ITERATION_LIMIT
    alignment = 0.0  # r . z of the previous step; zero (re)starts the directions
    while True:
        if history[-1] <= max(options.tolerance, _TRUSTED_FALL * started_at):
            kernels.apply_operator(field, code, r, data, laplacian, -1.0, dots, squares)
            history[-1] = float(np.sqrt(squares.sum())) / size
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
        kernels.apply_operator(p, code, q, data32, laplacian32, np.float32(1), dots, squares)
        curvature = float(dots.sum())
        if not (curvature > 0.0 and alignment > 0.0):
            status = SolveStatus.BROKE_DOWN
            break
        kernels.advance(field, r, p, q, alignment / curvature, squares)
        history.append(float(np.sqrt(squares.sum())) / size)
    if status is not SolveStatus.CONVERGED:
        kernels.apply_operator(field, code, r, data, laplacian, -1.0, dots, squares)
        history[-1] = float(np.sqrt(squares.sum())) / size
    return Solution(field, status, len(history) - 1, history[-1], tuple(history))
