"""The residual system of an image and its solution by preconditioned conjugate gradients, with the reason it stopped.

What is minimised over the field r, zero at invalid pixels, is

    sum_pq w_pq (r_p - r_q)^2  +  sum_p c_p (r_p - g_p)^2  +  data |r|^2  +  laplacian |A r|^2

over neighbours pq and measured pixels p, with A the Laplacian of the weighted graph, subject to r = g at the hard
measurements (c infinite); everything is divided by the gradient weight. With F the fixed and U the free pixels, its
equations are Q_UU r_U = -Q_UF r_F + (C g)_U with Q = A + C + data I + laplacian A^2 (Appendix A).

The paper's system, all w = 1 and all measurements hard, fits into a byte per pixel and is preconditioned without its
small bending term (multigrid.py); every other one takes the general path (plate.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels
from leadline.core.solve.cg import Jacobi, Operator, Preconditioner, Solution, SolveStatus, conjugate_gradients
from leadline.core.solve.multigrid.membrane import Hierarchy, Planes, build, planes
from leadline.core.solve.multigrid.membrane_cycle import VCycle
from leadline.core.solve.multigrid.thin_plate import Plate, build_plate
from leadline.core.solve.multigrid.thin_plate_cycle import PlateCycle

STIFF = 0.03  # bending weight, in units of the gradient's, from which on the preconditioner has to know of it
_FIXED, _SOFT = 2, 5  # roles of measured pixels, see kernels.encode


class System:
    """The residual system of an image: everything but the measured values.

    What is costly is made once, at the first solve, and serves any number of right-hand sides. Not to be shared between
    threads, since the work vectors are its own.

    Parameters
    ----------
    valid : (H, W) bool
        The pixels between which there are differences.
    where : (n,) int
        Flat indices of the measured pixels, each once; they must be valid.
    edges : pair of arrays, (H, W - 1) and (H - 1, W), optional
        w of each pixel and its right, and its lower, neighbour, in (0, 1]. Default: 1 everywhere.
    precision : (n,) array, optional
        c of each measurement, > 0, in units of the gradient weight; infinite: the residual is fixed there. Default:
        all infinite.

    Examples
    --------
    >>> where = np.array([0, 24])
    >>> system = System(np.ones((5, 5), bool), where, ReconstructionOptions(), precision=np.array([np.inf, 2.0]))
    >>> solution = system.solve(np.array([0.1, 0.2]))
    >>> float(solution.interior[0, 0]), bool(0.0 < solution.interior[4, 4] < 0.2)
    (0.1, True)
    """

    def __init__(
        self,
        valid: BoolArray,
        where: NDArray[np.intp],
        options: ReconstructionOptions,
        *,
        edges: tuple[ArrayLike, ArrayLike] | None = None,
        precision: ArrayLike | None = None,
    ) -> None:
        self.options = options
        self._valid, self._points, self._edges = valid, where, edges
        row, column = np.divmod(where, valid.shape[1])
        self.where = row + 1, column + 1  # of the padded field
        given = np.full(where.size, np.inf) if precision is None else _checked(precision, where.size)
        hard = np.isinf(given)
        self._soft = np.where(hard, 0.0, given)
        role = np.zeros((valid.shape[0] + 2, valid.shape[1] + 2), np.uint8)
        role[1:-1, 1:-1] = valid
        role[self.where] = np.where(hard, np.uint8(_FIXED), np.uint8(_SOFT))
        if not valid.all():  # otherwise there is one component
            kernels.fix_unobserved(role)
        code = np.zeros_like(role)
        kernels.encode(role, code)
        data = options.weight_data / options.weight_gradient
        laplacian = options.weight_laplacian / options.weight_gradient
        self.operator = Operator(code, data, laplacian)
        if self.operator.representable and not (edges is None and hard.all() and laplacian < STIFF):
            mass = np.where(code > 0, np.float32(data), np.float32(0))
            mass[self.where] += self._soft
            self.operator = Operator(code, data, laplacian, _planes(edges, valid), mass)
        # The field to start from, and whose residual the tolerance is relative to, has the measured values at hard
        # measurements and, at soft ones, the share that balances their pull against a surrounding of zeros: that of a
        # field of zeros grows without bound with the precision.
        self._share = np.ones(where.size)
        np.divide(self._soft, self.operator.diagonal(*self.where), out=self._share, where=~hard)
        self._levels: Hierarchy | Plate | None = None
        self._cycle: VCycle | None = None
        self._work: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def solve(
        self, values: FloatArray, *, start: FloatArray | None = None, out: NDArray[np.float64] | None = None
    ) -> Solution:
        """The field that minimises the energy for these measured residuals.

        Parameters
        ----------
        values : (n,) float
            g, in the order of `where`.
        start : (H, W) float, optional
            A field to start from, such as that of the frame before. The tolerance is relative to the same residual
            with or without it, so a good start saves iterations.
        out : (H + 2, W + 2) float64, optional
            An array to become the solution's `field`; not the one that `start` lies in. Default: a new one.
        """
        operator = self.operator
        field = np.empty(operator.code.shape) if out is None else out
        field.fill(0.0)
        field[self.where] = values
        pull = None
        if operator.edges is not None:
            pull = np.zeros(operator.code.shape)
            pull[self.where] = self._soft * values
            field[self.where] *= self._share
        if self._work is None:
            self._work = np.empty(field.shape, np.float32), np.empty(field.shape, np.float32)
        r = self._work[0]
        r.fill(0.0)
        at = size = operator.residual(field, pull, r)
        if size == 0.0:
            return Solution(field, SolveStatus.NOTHING_TO_SOLVE, 0, 0.0, ())
        if not (np.isfinite(size) and operator.representable):
            return Solution(field, SolveStatus.BROKE_DOWN, 0, float("nan"), ())
        if start is not None:
            np.copyto(field[1:-1, 1:-1], start, where=operator.code[1:-1, 1:-1] >= kernels.FREE)
            at = operator.residual(field, pull, r)
        return conjugate_gradients(operator, self._preconditioner(), field, pull, size, self.options, self._work, at)

    def reweighted(self, precision: ArrayLike) -> System:
        """The same system with other precisions, as iterative reweighting needs it."""
        return System(self._valid, self._points, self.options, edges=self._edges, precision=precision)

    def _preconditioner(self) -> Preconditioner:
        """Of the levels, made once; that of the general system anew, since it may become more cautious in a solve."""
        operator = self.operator
        if self.options.solver == "jacobi":
            return Jacobi(operator)
        if operator.edges is None or operator.mass is None:
            self._levels = self._levels or build(operator.code, operator.data)
        else:
            self._levels = self._levels or build_plate(operator.code, operator.edges, operator.mass, operator.laplacian)
        if isinstance(self._levels, Plate):
            return PlateCycle(self._levels)
        self._cycle = self._cycle or VCycle(self._levels)
        return self._cycle


def _checked(precision: ArrayLike, count: int) -> NDArray[np.float64]:
    array = np.asarray(precision, np.float64)
    if array.shape != (count,) or not (array > 0).all():
        raise InputError(
            f"`precision` must hold a positive number for each of the {count} measurements, "
            f"got shape {array.shape} with {np.count_nonzero(~(array > 0))} others. Leave out what does not count."
        )
    return array


def _planes(edges: tuple[ArrayLike, ArrayLike] | None, valid: BoolArray) -> Planes:
    """The weights of the image's edges as the kernels read them, zero beside an invalid pixel."""
    result = planes(3, valid.shape)
    pairs = valid[:, :-1] & valid[:, 1:], valid[:-1] & valid[1:]
    inside = result[kernels.EAST, 1:-1, 1:-3], result[kernels.SOUTH, 1:-2, 1:-2]
    for target, pair, weight, name in zip(inside, pairs, edges or (1.0, 1.0), ("right", "lower"), strict=True):
        array = np.asarray(weight, np.float32)
        if edges is not None and array.shape != pair.shape:
            raise InputError(f"`edges` must have shape {pair.shape} towards the {name} neighbour, got {array.shape}.")
        np.copyto(target, array, where=pair)
        counted = target if pair.all() else target[pair]
        if not (counted.min(initial=1.0) > 0 and counted.max(initial=0.0) <= 1):  # False for NaN
            raise InputError(
                f"`edges` must be above 0 and at most 1 between valid pixels, towards the {name} neighbour."
            )
    return result
