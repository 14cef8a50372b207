"""Spread what the calibrated prior gets wrong at the measurements over the rest of the image (eq:completion).

With x = log D and l = log t the unknown is the residual r = x - l. It minimises

    grad |G r|^2 + data |r|^2 + lap |L r|^2    subject to    r = log s - log t where measured,

G and L living on the four-neighbour graph of the valid pixels. The unit of depth cancels from r. `System` has the
general form: weighted edges, and measurements that draw instead of fixing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.core.adaptive import Adapted, adapt
from leadline.core.neighbours import Neighbours
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels
from leadline.core.solve.cg import Solution, SolveStatus
from leadline.core.solve.system import System


@dataclass(frozen=True)
class Reconstruction:
    """How the residual solve went.

    `residual` is the true relative residual |b - Q r| / |b|, computed in float64 after the last step, and
    `history` the recursive one before each step. `adapted` is the system that the measurements chose, if they did.
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
            "advice": self.status.value,
            "converged": self.converged,
            "iterations": self.iterations,
            "residual": self.residual,
            "adapted": None if self.adapted is None else self.adapted.to_dict(),
        }


class Kept:
    """What the next image of a sequence can use again: the system where nothing in it has changed, and the last field.

    Not to be shared between threads, as a `System` is not.
    """

    def __init__(self) -> None:
        self.reused = False  # whether the last system was that of the image before
        self._system: System | None = None
        self._made_of: tuple[Any, ...] = ()
        self._field: NDArray[np.float64] | None = None  # padded, as `Solution.field`
        self._spare: NDArray[np.float64] | None = None  # the one before, to be written over

    def system(
        self,
        valid: BoolArray,
        where: NDArray[np.intp],
        options: ReconstructionOptions,
        edges: tuple[ArrayLike, ArrayLike] | None,
        precision: ArrayLike | None,
    ) -> System:
        """The last one if it is made of the same; a new one otherwise."""
        made_of = (valid, where, options, *(edges or (None, None)), precision)
        self.reused = self._system is not None and all(map(_same, made_of, self._made_of))
        if self._system is None or not self.reused:
            self._system = System(valid, where, options, edges=edges, precision=precision)
            self._made_of = made_of
        return self._system

    def solve(self, system: System, targets: FloatArray) -> Solution:
        """From the last field; the solution's own is to be read before the next but one is solved for.

        Not if zeros are nearer to what is now measured: after a cut the last field is another picture's.
        """
        shape = system.operator.code.shape
        if self._field is not None and self._field.shape != shape:
            self._field = self._spare = None
        start = None
        if self._field is not None:
            gap = targets - self._field[system.where]
            if float((gap * gap).sum()) < float((targets * targets).sum()):
                start = self._field[1:-1, 1:-1]
        solution = system.solve(targets, start=start, out=self._spare)
        self._spare = self._field
        self._field = None if solution.status is SolveStatus.BROKE_DOWN else solution.field
        return solution


def _same(new: Any, old: Any) -> bool:
    if isinstance(new, np.ndarray) and isinstance(old, np.ndarray):
        return np.array_equal(new, old)
    return type(new) is type(old) and bool(new == old)


def reconstruct(
    calibrated: NDArray[np.float32],
    where: NDArray[np.intp],
    measured: FloatArray,
    options: ReconstructionOptions,
    *,
    edges: tuple[ArrayLike, ArrayLike] | None = None,
    precision: ArrayLike | None = None,
    targets: FloatArray | None = None,
    exact: BoolArray | None = None,
    neighbours: Neighbours | None = None,
    kept: Kept | None = None,
) -> tuple[FloatArray, Reconstruction]:
    """Depth that equals `measured` at the pixels `where` and follows the gradients of log t elsewhere.

    A connected component of valid pixels without a measurement keeps t.

    Parameters
    ----------
    calibrated : (H, W) float32, C-contiguous
        t in metres, NaN at invalid pixels.
    where : (n,) int
        Flat indices of the measured pixels; t must be valid there.
    measured : (n,) float32 or float64
        Their depth in metres, > 0. The result has this dtype and these very values.
    edges, precision
        Weights of the edges and of the measurements, see `System`. A soft measurement draws its surroundings only as
        far as its precision goes.
    targets : (n,) float64, optional
        Log residual that the field is drawn to at each measurement. Default: that of the measured depth.
    exact : (n,) bool, optional
        False where the result is to have the field's own depth and not the measured one. Default: nowhere.
    neighbours : Neighbours, optional
        Of the measurements, if they are known already.
    kept : Kept, optional
        What is left of the image before, and will be of this one. Default: every image stands alone.
    """
    height, width = calibrated.shape
    adapted = None
    if options.system == "adaptive":
        adapted = adapt(calibrated, where, measured, neighbours)
        edges, targets = adapted.edges, adapted.targets
        precision = adapted.precision if precision is None else np.minimum(precision, adapted.precision)
        options = replace(options, system="fixed", weight_data=adapted.screening, weight_laplacian=adapted.stiffness)
    kept = kept or Kept()
    system = kept.system(np.isfinite(calibrated), where, options, edges, precision)
    if targets is None:
        targets = np.log(measured.astype(np.float64) / calibrated.ravel()[where].astype(np.float64))
    solution = kept.solve(system, targets)
    depth = np.empty((height, width), measured.dtype)
    kernels.restore(calibrated, solution.field, depth)
    depth.ravel()[where if exact is None else where[exact]] = measured if exact is None else measured[exact]
    return depth, Reconstruction(solution.status, solution.iterations, solution.residual, solution.history, adapted)
