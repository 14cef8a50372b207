"""Preconditioned conjugate gradients on the residual system, with the reason it stopped.

The system is Q_UU r_U = b_U - Q_UF r_F with F the fixed and U the free pixels; system.py derives it. For the whole
field r, zero at invalid pixels, its residual is simply (b - Q r)_U. So Q_UF r_F is never formed, and the *true*
residual takes one pass over the image in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import Status, param
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels
from leadline.core.solve.operators import Operator

DEFAULT_MAX_ITERATIONS = {"multigrid": 200, "jacobi": 500}  # 500 is the paper's limit
# The recursive residual becomes smaller than the true one, in float32 by some 1e-7 of its first value. After a fall by
# this factor it is replaced by the true residual. If that one misses the tolerance, the iteration restarts from it, as
# long as each restart reduces the true residual at least by the second factor.
_TRUSTED_REDUCTION = 1e-6
_RESTART_REDUCTION = 0.5


class SolveStatus(Status):
    CONVERGED = "the residual is below the tolerance"
    NOTHING_TO_SOLVE = "no measurement differs from the calibrated prior next to a pixel that has to be filled"
    ITERATION_LIMIT = (
        f"stopped at the iteration limit: raise {param('reconstruction.max_iterations')} or "
        f"{param('reconstruction.tolerance')}, or use {param('reconstruction.solver', 'multigrid')}"
    )
    STAGNATED = f"float32 work vectors allow no smaller residual: raise {param('reconstruction.tolerance')}"
    BROKE_DOWN = "the iteration met a non-finite number: look for extreme values in prior, measurements or weights"


@dataclass(frozen=True)
class Solution:
    """The solved field and how it was reached.

    `residual` is the true relative residual of the field, and `history` holds the relative residual before each step
    and after the last. `field` is padded by one pixel on every side; `interior` is the image.
    """

    field: NDArray[np.float64]
    status: SolveStatus
    iterations: int
    residual: float
    history: tuple[float, ...]

    @property
    def interior(self) -> NDArray[np.float64]:
        return self.field[1:-1, 1:-1]


class Preconditioner(Protocol):
    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        """Return z = B r, with B symmetric positive definite, and r . z."""
        ...

    @property
    def scratch(self) -> NDArray[np.float32]:
        """An array of the padded image's shape that the caller may overwrite between two calls."""
        ...

    def increase_damping(self) -> bool:
        """Make B more cautious after it has turned out not to be definite; returns False if this is not possible."""
        ...


def conjugate_gradients(
    operator: Operator,
    precondition: Preconditioner,
    x: NDArray[np.float64],
    rhs: NDArray[np.float64] | None,
    work: tuple[NDArray[np.float32], NDArray[np.float32]],
    options: ReconstructionOptions,
    *,
    reference_norm: float,
    residual_norm: float,
) -> Solution:
    """Solve for the free pixels of `x`, which is overwritten and returned as the solution's field.

    Parameters
    ----------
    x : (H + 2, W + 2) float64
        The values of the fixed pixels and the initial guess at the free ones.
    rhs : (H + 2, W + 2) float64 or None
        b at free pixels; None is zero.
    work : pair of (H + 2, W + 2) float32
        The residual of `x`, and room for the search direction. Both are overwritten.
    reference_norm : float
        Norm of the residual that the tolerance is relative to.
    residual_norm : float
        Norm of the residual of `x`.
    """
    max_iterations = options.max_iterations or DEFAULT_MAX_ITERATIONS[options.solver]
    r, p = work
    p.fill(0.0)
    q = precondition.scratch
    squares = np.zeros(kernels.block_count(x.shape[0] - 2))
    history = [residual_norm / reference_norm]
    started_at = history[0]  # relative residual at the start or the last restart
    rz = 0.0  # r . z of the previous step; 0 restarts with the direction of steepest descent
    status = SolveStatus.ITERATION_LIMIT
    while True:
        # The recursive residual is trusted neither to stop nor after a large fall: compute r = b - Q x.
        if history[-1] <= max(options.tolerance, _TRUSTED_REDUCTION * started_at):
            history[-1] = operator.residual(x, rhs, r) / reference_norm
            if history[-1] <= options.tolerance:
                status = SolveStatus.CONVERGED
                break
            if history[-1] > _RESTART_REDUCTION * started_at:  # restarts no longer help
                status = SolveStatus.STAGNATED
                break
            started_at, rz = history[-1], 0.0
        if len(history) > max_iterations:
            break
        z, new_rz = precondition(r)  # step 1: z = B r
        beta = new_rz / rz if rz else 0.0  # step 2: beta = r.z / (r.z of the previous iteration)
        kernels.update_direction(p, z, np.float32(beta))  # step 3: p = z + beta p
        rz = new_rz
        pq = operator.apply(p, q)  # step 4: q = Q p
        if not (pq > 0.0 and rz > 0.0):
            # Q and B are positive definite, so both products are positive unless a number is not finite or the smoother
            # in B overshoots. In the second case the iteration restarts, without a step, with more damping.
            if np.isfinite(pq + rz) and precondition.increase_damping():
                rz = 0.0
                continue
            status = SolveStatus.BROKE_DOWN
            break
        alpha = rz / pq  # step 5: alpha = r.z / p.q
        kernels.update_solution(x, r, p, q, alpha, squares)  # step 6: x += alpha p, r -= alpha q
        history.append(float(np.sqrt(squares.sum())) / reference_norm)
    if status is not SolveStatus.CONVERGED:  # report the true residual in any case
        history[-1] = operator.residual(x, rhs, r) / reference_norm
    return Solution(x, status, len(history) - 1, history[-1], tuple(history))
