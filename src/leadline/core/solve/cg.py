"""Preconditioned conjugate gradients on the residual system: the operator, the iteration, and why it stopped.

The system is Q_UU r_U = b_U - Q_UF r_F with F the fixed and U the free pixels; system.py derives it. For the whole
field r, zero at invalid pixels, its residual is simply (b - Q r)_U. So Q_UF r_F is never formed, and the *true*
residual takes one pass over the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float32Array, Float64Array, FloatArray, IndexArray
from leadline.base.errors import Status, param
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels
from leadline.core.solve.multigrid import VCycle

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
        f"{param('reconstruction.tolerance')}; fewest are needed with {param('reconstruction.solver', 'multigrid')}"
    )
    STAGNATED = f"float32 work vectors allow no smaller residual: raise {param('reconstruction.tolerance')}"
    BROKE_DOWN = "the iteration met a non-finite number: look for extreme values in prior, measurements or weights"


@dataclass(frozen=True)
class Solution:
    """The solved field and how it was reached.

    `residual` is the relative residual of the field, the true one if the field is float64, and `history` holds the
    relative residual before each step and after the last. `field` is padded by one pixel on every side; `interior` is
    the image.
    """

    field: FloatArray
    status: SolveStatus
    iterations: int
    residual: float
    history: tuple[float, ...]

    @property
    def interior(self) -> FloatArray:
        return self.field[1:-1, 1:-1]


@dataclass(frozen=True)
class Operator:
    """Q = A + data I + laplacian A^2 on the free pixels, on padded arrays; see kernels.py for their layout.

    With `edges`, A is the Laplacian of the weighted graph, and `mass` replaces the data weight: it is the data weight
    plus, at soft measurements, the measurement weight.
    """

    code: NDArray[np.uint8]
    data: float
    laplacian: float
    edges: Float32Array | None = None
    mass: Float32Array | None = None

    @property
    def representable(self) -> bool:
        """Whether the weights are finite in float32."""
        return max(self.data, self.laplacian) < float(np.finfo(np.float32).max)

    def apply(self, p: Float32Array, out: Float32Array) -> float:
        """Compute out = Q p; returns p . Q p."""
        return float(self._run(p, None, out, 1.0)[0].sum())

    def residual(self, field: FloatArray, rhs: Float32Array | None, out: Float32Array) -> float:
        """Compute out = rhs - Q field, in the type of the field until the result is stored; returns its norm."""
        squares = self._run(field, rhs, out, -1.0)[1]
        if self.edges is None and rhs is not None:  # the kernel for unit edges takes no right-hand side
            np.add(out, rhs, out=out, where=self.code >= kernels.FREE, casting="same_kind")
            squares = np.einsum("ij,ij->i", out, out, dtype=np.float64)
        return float(np.sqrt(squares.sum()))

    def _run(
        self, p: FloatArray, rhs: Float32Array | None, out: Float32Array, sign: float
    ) -> tuple[Float64Array, Float64Array]:
        """Compute out = sign (Q p - rhs); returns the sums of p out and of out^2 over blocks of rows."""
        count = kernels.block_count(self.code.shape[0] - 2)
        sums = np.zeros(count), np.zeros(count)
        number = p.dtype.type  # the kernels compute in the type of p
        data, laplacian = number(self.data), number(self.laplacian)
        if self.edges is None or self.mass is None:
            kernels.apply_operator[count](p, self.code, out, data, laplacian, number(sign), *sums)
        else:
            # A row of zeros instead of None, for which the kernel would be compiled once more.
            terms = self.edges, self.mass, np.zeros((1, p.shape[1]), np.float32) if rhs is None else rhs
            kernels.apply_weighted_operator[count](p, self.code, *terms, out, laplacian, number(sign), *sums)
        return sums

    def diagonal(self, where: IndexArray) -> Float64Array:
        """Return Q_pp = data + a + laplacian (a^2 + sum of w^2) at flat padded indices, with a the sum of edges w."""
        width = self.code.shape[1]
        if self.edges is None or self.mass is None:  # all w = 1
            degree = (self.code.take(where) & kernels.DEGREE).astype(np.float64)
            squares = degree
            mass: FloatArray | float = self.data
        else:
            east, south = self.edges[kernels.EAST], self.edges[kernels.SOUTH]
            here = where + where // width  # the planes have one column more
            degree, squares, mass = np.zeros(where.size), np.zeros(where.size), self.mass.take(where)
            for plane, shift in ((east, 0), (east, 1), (south, 0), (south, width + 1)):
                weight = plane.take(here - shift).astype(np.float64)
                degree += weight
                weight *= weight
                squares += weight
        diagonal: Float64Array = mass + degree + self.laplacian * (degree**2 + squares)
        return diagonal


@dataclass(frozen=True)
class RightHandSide:
    """b, as its values at some pixels; it is zero elsewhere. Only the true residual needs it as a map."""

    where: IndexArray | None  # flat indices into a padded map; None for everything inside its padding
    values: FloatArray

    def fill(self, out: Float32Array) -> Float32Array:
        out.fill(0.0)
        if self.where is None:
            out[1:-1, 1:-1] = self.values
        else:
            out.put(self.where, self.values)
        return out


class Jacobi:
    """The paper's preconditioner, z = r / diag(Q)."""

    def __init__(self, operator: Operator) -> None:
        free = np.flatnonzero(operator.code >= kernels.FREE)
        self._inverse = np.zeros(operator.code.shape, np.float32)
        self._inverse.put(free, 1.0 / operator.diagonal(free))
        self.solution = np.zeros_like(self._inverse)

    def __call__(self, r: Float32Array) -> tuple[Float32Array, float]:
        np.multiply(self._inverse, r, out=self.solution)
        return self.solution, float(np.einsum("ij,ij->i", self.solution, r, dtype=np.float64).sum())

    def increase_damping(self) -> bool:
        return False  # diag(Q) is positive, so there is nothing to damp


def conjugate_gradients(
    operator: Operator,
    precondition: Jacobi | VCycle,
    x: FloatArray,
    rhs: RightHandSide | None,
    work: tuple[Float32Array, Float32Array],
    options: ReconstructionOptions,
    *,
    reference_norm: float,
    residual_norm: float,
) -> Solution:
    """Solve for the free pixels of `x`, which is overwritten and returned as the solution's field.

    All arrays have the padded shape (H + 2, W + 2). `x` holds the values of the fixed pixels and the initial guess at
    the free ones, `rhs` is b (None is zero), and `work` the residual of `x`, of norm `residual_norm`, and room for the
    search direction. The tolerance is relative to `reference_norm`.
    """
    max_iterations = options.max_iterations or DEFAULT_MAX_ITERATIONS[options.solver]
    r, p = work
    p.fill(0.0)
    q = precondition.solution  # z, which is not needed any more where q is computed
    squares = np.zeros(kernels.block_count(x.shape[0] - 2))

    def true_residual() -> float:  # q, which holds Q p within a step only, is room for b
        return operator.residual(x, None if rhs is None else rhs.fill(q), r)

    # Each step rounds a field in float32. A stiff operator makes a residual of some 1e-4 of these errors, which are too
    # small to matter and which no further step reduces. Such a field stops by the recursive residual.
    rounded = x.dtype == np.float32
    history = [residual_norm / reference_norm]
    started_at = history[0]  # relative residual at the start or the last restart
    rz = 0.0  # r . z of the previous step; 0 restarts with the direction of steepest descent
    status = SolveStatus.ITERATION_LIMIT
    while True:
        # The recursive residual is too inaccurate to stop by or to use after a large fall: compute r = b - Q x.
        if history[-1] <= max(options.tolerance, _TRUSTED_REDUCTION * started_at):
            if not (rounded and history[-1] <= options.tolerance):
                history[-1] = true_residual() / reference_norm
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
        kernels.update_direction[squares.size](p, z, np.float32(beta))  # step 3: p = z + beta p
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
        kernels.update_solution[squares.size](x, r, p, q, alpha, squares)  # step 6: x += alpha p, r -= alpha q
        history.append(float(np.sqrt(squares.sum())) / reference_norm)
    if status is not SolveStatus.CONVERGED:  # report the true residual in any case
        history[-1] = true_residual() / reference_norm
    return Solution(x, status, len(history) - 1, history[-1], tuple(history))
