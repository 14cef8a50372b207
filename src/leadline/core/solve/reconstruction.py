"""Reconstruction of dense depth from the calibrated prior t and the measurements s (eq:completion).

With x = log D and l = log t, the unknown is the residual r = x - l. It minimises

    grad |G r|^2 + data |r|^2 + lap |L r|^2    subject to    r = log s - log t where measured,

where G and L are the gradient and the Laplacian on the four-neighbour graph of the valid pixels. The unit of depth
cancels from r. `System` solves the general problem, with weighted edges and soft measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import BoolArray, Float32Array, Float64Array, FloatArray, IndexArray
from leadline.core.adaptive import Adapted, adapt, edge_weights
from leadline.core.neighbours import Neighbours
from leadline.core.noise import measurement_weights
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels
from leadline.core.solve.cg import Solution, SolveStatus
from leadline.core.solve.nested import Estimate, Grid, Half, estimate_residual, is_resolved_by_half
from leadline.core.solve.system import System, unobserved


@dataclass(frozen=True)
class Reconstruction:
    """Statistics of the residual solve.

    Attributes
    ----------
    status : SolveStatus
    iterations : int
    residual : float
        Relative residual |b - Q r| / |b| after the last step. With a tolerance below 1e-4, and with the paper's system,
        it is computed from the field; otherwise it is the one that the iteration updates, without the rounding errors
        of a float32 field.
    history : tuple of float
        Relative residual before each step, as the iteration updates it, and after the last.
    adapted : Adapted or None
        The system that was chosen from the measurements, with ``system="adaptive"``, without its edge weights.
    """

    status: SolveStatus
    iterations: int
    residual: float
    history: tuple[float, ...]
    adapted: Adapted | None = None

    @property
    def converged(self) -> bool:
        return self.status in (SolveStatus.CONVERGED, SolveStatus.NOTHING_TO_SOLVE)

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status.name.lower(),
            "advice": self.status.advice(),
            "converged": self.converged,
            "iterations": self.iterations,
            "residual": self.residual,
            "adapted": None if self.adapted is None else self.adapted.to_dict(),
        }


class SolverCache:
    """What the next image of a sequence reuses: the system, if it is unchanged, and the last field as a warm start.

    A cache must not be shared between threads. `system_reused` says whether the last image had the system of the image
    before it.
    """

    def __init__(self) -> None:
        self.system_reused = False
        self._system: System | None = None
        self._system_inputs: tuple[Any, ...] = ()
        self._field: FloatArray | None = None  # padded field of the last solution
        self._spare: FloatArray | None = None  # the field before it, which the next solve overwrites

    def system(
        self,
        valid: BoolArray,
        where: IndexArray,
        options: ReconstructionOptions,
        edges: tuple[ArrayLike, ArrayLike] | None,
        weights: ArrayLike | None,
    ) -> System:
        """Return the last system if it was made from equal inputs, and a new one otherwise."""
        inputs = (valid, where, options, *(edges or (None, None)), weights)
        self.system_reused = self._system is not None and all(map(_equal, inputs, self._system_inputs))
        if self._system is None or not self.system_reused:
            self._system = System(valid, where, options, edges=edges, weights=weights)
            self._system_inputs = inputs
        return self._system

    def solve(self, system: System, targets: FloatArray, start: FloatArray | None = None) -> Solution:
        """Solve with a warm start from the last field; the next but one solve overwrites the solution's field.

        The last field is not used if `start`, (H + 2, W + 2) and zeros by default, is closer to the targets, as it is
        after a cut in the video. `start` may be overwritten.
        """
        shape = system.operator.code.shape
        if self._field is not None and (self._field.shape != shape or self._field.dtype != system.number):
            self._field = self._spare = None
        if self._field is not None:
            others = targets if start is None else targets - start.take(system.where)
            difference = targets - self._field.take(system.where)
            if float((difference * difference).sum()) < float((others * others).sum()):
                start = np.empty_like(self._field) if self._spare is None else self._spare
                np.copyto(start, self._field)
        solution = system.solve(targets, start=start)
        self._spare = self._field
        self._field = None if solution.status is SolveStatus.BROKE_DOWN else solution.field
        return solution


def _equal(new: Any, old: Any) -> bool:
    if isinstance(new, np.ndarray) and isinstance(old, np.ndarray):
        return np.array_equal(new, old)
    return type(new) is type(old) and bool(new == old)


@dataclass(frozen=True, eq=False)
class ResidualProblem:
    """The residual system of one image, as the options choose it, and the values that its measurements prescribe.

    Its grid is the image or, with `half`, that of half the resolution.

    Attributes
    ----------
    base : (H, W) float32
        The map that the residual corrects: the calibrated prior, or what is used of its contrast.
    valid : (H, W) bool
        Pixels between which differences count.
    where : (n,) intp
        Flat indices of the measured pixels.
    targets : (n,) float64
        Log residual of each measurement.
    weights : (n,) float64 or None
        Weight of each measurement in units of the gradient weight, infinite for a hard one; None if all are hard.
    exact : bool array
        Measurements of the image that are returned bit for bit.
    edges : two float32 arrays or None
        Weights towards the right and the lower neighbour; None if all are 1.
    options : ReconstructionOptions
        Weights of the terms of the energy.
    adapted : Adapted or None
        How the weights were chosen, with ``system="adaptive"``.
    estimate : Estimate or None
        The residual from coarser grids, where the iteration starts; the edge weights follow from it and from t.
    half : Half or None
        How the image follows from the solution, if that has half the image's resolution.
    """

    base: Float32Array
    valid: BoolArray
    where: IndexArray
    targets: Float64Array
    weights: Float64Array | None
    exact: BoolArray
    edges: tuple[Float32Array, Float32Array] | None
    options: ReconstructionOptions
    adapted: Adapted | None = None
    estimate: Estimate | None = None
    half: Half | None = None


def residual_problem(
    calibrated: Float32Array,
    where: IndexArray,
    measured: FloatArray,
    options: ReconstructionOptions,
    *,
    weights: Float64Array | None = None,
    neighbours: Neighbours | None = None,
    halve: bool = True,
) -> ResidualProblem:
    """The system that `reconstruct` solves; the arguments are its own.

    Without `halve` the grid is always the image.
    """
    valid = np.isfinite(calibrated)
    exact = np.ones(where.size, np.bool_) if weights is None else np.isinf(weights)
    if options.system != "adaptive":
        targets = np.log(measured.astype(np.float64) / calibrated.ravel()[where].astype(np.float64))
        return ResidualProblem(calibrated, valid, where, targets, weights, exact, None, options)
    adapted = adapt(calibrated, where, measured, neighbours, flatten=weights is None)
    if weights is None and adapted.noise > 0.0:
        screening = options.weight_data / options.weight_gradient
        noise = np.full(where.size, adapted.noise)
        limit = measurement_weights(adapted.targets, noise, where, calibrated.shape, screening).min()
        adapted = replace(adapted, limit=float(limit))
    weights = np.minimum(adapted.weights, adapted.limit if weights is None else weights)
    options = replace(options, system="fixed", weight_data=adapted.screening, weight_laplacian=adapted.stiffness)
    assert adapted.edges is not None  # of the image; from here on only the grid has them
    base = calibrated
    if adapted.share < 1.0:
        base = np.exp(adapted.flattened(np.log(calibrated)))
        if not valid.all():  # what no measurement reaches keeps t
            np.copyto(base, calibrated, where=unobserved(valid, where))
    measurements, half = (where, adapted.targets, weights), None
    grid = Grid(base, *measurements, options, adapted.edges, adapted.share * adapted.contrast)
    adapted = replace(adapted, edges=None)
    if halve and is_resolved_by_half(adapted.spacing, calibrated.size):
        grid = grid.halved()
        estimate = estimate_residual(grid, solve=True)
        half = Half.of(grid, estimate, base, *measurements)
        grid, valid = half.grid, np.isfinite(grid.calibrated)
    else:
        estimate = estimate_residual(grid)
    if estimate is not None:
        edge_weights(estimate.depth(grid.calibrated), estimate.slope, grid.edges)
    system = grid.where, grid.targets, grid.weights, exact, grid.edges, grid.options
    return ResidualProblem(base, valid, *system, adapted, estimate, half)


def reconstruct(
    calibrated: Float32Array,
    where: IndexArray,
    measured: FloatArray,
    options: ReconstructionOptions,
    *,
    weights: Float64Array | None = None,
    neighbours: Neighbours | None = None,
    cache: SolverCache | None = None,
) -> tuple[FloatArray, Reconstruction]:
    """Return depth that equals `measured` at the pixels `where` and follows the gradients of log t elsewhere.

    A connected component of valid pixels without a measurement keeps t. A measurement of infinite weight, the default,
    is returned bit for bit; at one of finite weight (in units of the gradient weight) the solution may differ from it.
    Only the adaptive system uses `neighbours`, if they have been computed already. The images of a sequence
    share a `cache`.

    >>> t = np.full((4, 4), 2.0, np.float32)
    >>> depth, reconstruction = reconstruct(t, np.array([5]), np.array([2.5]), ReconstructionOptions.paper())
    >>> float(depth[1, 1]), bool(2.0 < depth[3, 3] < 2.5), reconstruction.converged
    (2.5, True, True)
    """
    problem = residual_problem(calibrated, where, measured, options, weights=weights, neighbours=neighbours)
    base, targets, exact, adapted, half = problem.base, problem.targets, problem.exact, problem.adapted, problem.half
    inputs = problem.valid, problem.where, problem.options
    if cache is None:
        system = System(*inputs, edges=problem.edges, weights=problem.weights)
    else:
        system = cache.system(*inputs, problem.edges, problem.weights)
    start = None if problem.estimate is None else system.padded_field(problem.estimate.residual)
    del problem, inputs  # the system has copied the edge weights, and `start` the estimate
    solution = system.solve(targets, start=start) if cache is None else cache.solve(system, targets, start)
    del system  # and with it the levels of the preconditioner, before the result needs memory
    if half is None:
        depth = np.empty(calibrated.shape, measured.dtype)
        kernels.correct_depth(base, solution.field, depth)
    else:
        residual = half.interpolate(solution.interior, base, where)
        np.exp(residual, out=residual)
        depth = np.multiply(residual, base, out=residual).astype(measured.dtype, copy=False)
    depth.ravel()[where[exact]] = measured[exact]
    statistics = solution.status, solution.iterations, solution.residual, solution.history
    return depth, Reconstruction(*statistics, adapted)
