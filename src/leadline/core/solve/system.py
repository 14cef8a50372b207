"""The residual system of an image and its solution by preconditioned conjugate gradients.

The field r, zero at invalid pixels, minimises

    sum_pq w_pq (r_p - r_q)^2  +  sum_p c_p (r_p - g_p)^2  +  data |r|^2  +  laplacian |A r|^2

over neighbours pq and measured pixels p, with A the Laplacian of the weighted graph, subject to r = g at the hard
measurements (infinite c). All weights are divided by the gradient weight. With F the fixed and U the free pixels, the
normal equations are Q_UU r_U = (C g)_U - Q_UF r_F, with Q = A + C + data I + laplacian A^2 (Appendix A).

The paper's system, with all w = 1 and all measurements hard, is stored in one byte per pixel, and its preconditioner
ignores the small bending term (membrane.py). Every other system uses thin_plate.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import BoolArray, Float32Array, Float64Array, FloatArray, IndexArray
from leadline.base.errors import InputError, param
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels
from leadline.core.solve.cg import Jacobi, Operator, RightHandSide, Solution, SolveStatus, conjugate_gradients
from leadline.core.solve.membrane import MembraneCycle, MembraneHierarchy, build_membrane
from leadline.core.solve.multigrid import Planes, VCycle, edge_planes
from leadline.core.solve.thin_plate import ThinPlateHierarchy, build_thin_plate
from leadline.core.solve.thin_plate_cycle import ThinPlateCycle

# From this bending weight on, in units of the gradient weight, the membrane preconditioner needs more iterations.
THIN_PLATE_FROM = 0.03
# From this tolerance on, the field of the general system is float32.
_FLOAT32_FROM = 1e-4


class System:
    """The residual system of an image, without the measured values.

    The costly set-up happens once, at the first solve, and serves any number of right-hand sides. A system must not be
    shared between threads, because a solve uses its work vectors.

    `valid`, (H, W) bool, are the pixels between which differences count, and `where` the flat indices of the measured
    ones among them, each once. `edges` are the weights w from each pixel to its right, (H, W - 1), and to its lower
    neighbour, (H - 1, W), in (0, 1]; by default all 1. `weights` are the weights c > 0 of the measurements in units of
    the gradient weight. An infinite weight, the default, is a hard constraint: it fixes the residual there.

    >>> where = np.array([0, 24])
    >>> system = System(np.ones((5, 5), bool), where, ReconstructionOptions.paper(), weights=np.array([np.inf, 2.0]))
    >>> solution = system.solve(np.array([0.1, 0.2]))
    >>> float(solution.interior[0, 0]), bool(0.0 < solution.interior[4, 4] < 0.2)
    (0.1, True)
    """

    def __init__(
        self,
        valid: BoolArray,
        where: IndexArray,
        options: ReconstructionOptions,
        *,
        edges: tuple[ArrayLike, ArrayLike] | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        self.options = options
        self.where = _padded_indices(where, valid.shape)  # flat indices into the padded field
        checked = np.full(where.size, np.inf) if weights is None else _check_weights(weights, where.size)
        hard = np.isinf(checked)
        role = pixel_roles(valid, where, hard)
        code = np.zeros_like(role)
        kernels.encode(role, code)
        data = options.weight_data / options.weight_gradient
        laplacian = options.weight_laplacian / options.weight_gradient
        self.operator = Operator(code, data, laplacian)
        if self.operator.representable and not (edges is None and hard.all() and laplacian < THIN_PLATE_FROM):
            mass = np.where(code > 0, np.float32(data), np.float32(0))
            self._soft_weights = np.where(hard, 0.0, checked)
            mass.put(self.where, mass.take(self.where) + self._soft_weights)
            self.operator = Operator(code, data, laplacian, _edge_planes(edges, valid), mass)
        rough = self.operator.edges is not None and options.tolerance >= _FLOAT32_FROM
        self.number = np.float32 if rough else np.float64  # type of the fields
        # The initial guess without a warm start, whose residual the tolerance is relative to: the measured values at
        # hard measurements and, at soft ones, the fraction c / Q_pp that minimises the energy while all other pixels
        # are zero. The residual of a field of zeros would grow without bound with c.
        if self.operator.edges is not None:
            self._initial_fraction = np.ones(where.size)
            np.divide(self._soft_weights, self.operator.diagonal(self.where), out=self._initial_fraction, where=~hard)
        self._hierarchy: MembraneHierarchy | ThinPlateHierarchy | None = None
        self._membrane_cycle: MembraneCycle | None = None
        self._work: tuple[Float32Array, Float32Array] | None = None

    def solve(self, values: FloatArray, *, start: FloatArray | None = None) -> Solution:
        """Return the field that minimises the energy for the measured residuals g = `values`, in the order of `where`.

        `start`, (H + 2, W + 2) and of the type `number`, is a warm start, such as the field of the previous frame; it
        is overwritten and becomes the solution's `field`. The tolerance is relative to the same residual with or
        without it, so a good start saves iterations.
        """
        if start is None and values.any():
            self._set_up()  # before there are fields, because it needs memory of its own
        rhs = None if self.operator.edges is None else RightHandSide(self.where, self._soft_weights * values)
        return self._solve(self._initial_guess(values), rhs, start)

    def solve_rhs(self, rhs: FloatArray) -> Solution:
        """Return the field with Q r = rhs on the free pixels and zeros elsewhere, as derivatives of a solution need it.

        `rhs` is (H, W).
        """
        return self._solve(np.zeros(self.operator.code.shape, self.number), RightHandSide(None, rhs), None)

    def padded_field(self, interior: FloatArray) -> FloatArray:
        """Return a field with these values inside its padding of zeros, to start a solve from."""
        field = np.zeros(self.operator.code.shape, self.number)
        field[1:-1, 1:-1] = interior
        return field

    def _initial_guess(self, values: FloatArray) -> FloatArray:
        field = np.zeros(self.operator.code.shape, self.number)
        rounded: FloatArray = np.asarray(values, self.number)
        field.put(self.where, rounded if self.operator.edges is None else rounded * self._initial_fraction)
        return field

    def _solve(self, field: FloatArray, rhs: RightHandSide | None, start: FloatArray | None) -> Solution:
        operator = self.operator
        residual = np.empty(field.shape, np.float32) if self._work is None else self._work[0]
        residual.fill(0.0)
        b = None if rhs is None else rhs.fill(np.empty(field.shape, np.float32))
        norm = reference_norm = operator.residual(field, b, residual)
        if reference_norm == 0.0:
            return Solution(field, SolveStatus.NOTHING_TO_SOLVE, 0, 0.0, ())
        if not (np.isfinite(reference_norm) and operator.representable):
            return Solution(field, SolveStatus.BROKE_DOWN, 0, float("nan"), ())
        if start is not None:
            np.copyto(start, field, where=operator.code < kernels.FREE)
            field = start  # and with it the initial guess is freed
            norm = operator.residual(field, b, residual)
            relative = norm / reference_norm
            if relative <= self.options.tolerance:  # no preconditioner has to be set up
                return Solution(field, SolveStatus.CONVERGED, 0, relative, (relative,))
        del b  # `conjugate_gradients` forms it again where it needs it
        precondition = self._preconditioner()
        if self._work is None:  # not before the set-up, which has work space of its own
            self._work = residual, np.empty(field.shape, np.float32)
        return conjugate_gradients(
            operator, precondition, field, rhs, self._work, self.options,
            reference_norm=reference_norm, residual_norm=norm,
        )  # fmt: skip

    def build_hierarchy(self) -> MembraneHierarchy | ThinPlateHierarchy:
        """Return the multigrid hierarchy of this system, newly built."""
        operator = self.operator
        if operator.edges is None or operator.mass is None:
            return build_membrane(operator.code, operator.data)
        return build_thin_plate(operator.code, operator.edges, operator.mass, operator.laplacian)

    def _set_up(self) -> None:
        if self._hierarchy is None and self.options.solver == "multigrid" and self.operator.representable:
            self._hierarchy = self.build_hierarchy()

    def _preconditioner(self) -> Jacobi | VCycle:
        self._set_up()
        if self._hierarchy is None:
            return Jacobi(self.operator)
        if isinstance(self._hierarchy, ThinPlateHierarchy):
            return ThinPlateCycle(self._hierarchy)  # a new one for each solve, which may increase its damping
        self._membrane_cycle = self._membrane_cycle or MembraneCycle(self._hierarchy)
        return self._membrane_cycle


def pixel_roles(valid: BoolArray, where: IndexArray, hard: BoolArray | bool = False) -> NDArray[np.uint8]:
    """The padded roles of kernels.py, with hard or soft measurements; components without one are fixed."""
    role = np.zeros((valid.shape[0] + 2, valid.shape[1] + 2), np.uint8)
    role[1:-1, 1:-1] = valid  # True is FREE_ROLE
    measured = np.where(hard, np.uint8(kernels.FIXED_ROLE), np.uint8(kernels.SOFT_ROLE))
    role.put(_padded_indices(where, valid.shape), measured)
    if not valid.all():  # otherwise there is only one component
        kernels.fix_unobserved(role)
    return role


def _padded_indices(where: IndexArray, shape: tuple[int, ...]) -> IndexArray:
    """Flat indices into a padded map of the pixels with the flat indices `where` in the image."""
    width = shape[1]
    indices: IndexArray = where + 2 * (where // width) + (width + 3)
    return indices


def unobserved(valid: BoolArray, where: IndexArray) -> BoolArray:
    """Valid pixels, (H, W), that no path of valid pixels connects to a measurement; their residual is zero."""
    found: BoolArray = pixel_roles(valid, where)[1:-1, 1:-1] == kernels.FIXED_ROLE
    return found


def _check_weights(weights: ArrayLike, count: int) -> Float64Array:
    array = np.asarray(weights, np.float64)
    if array.shape != (count,) or not (array > 0).all():
        raise InputError(
            f"{param('weights')} must hold a positive number for each of the {count} measurements, got shape "
            f"{array.shape} with {np.count_nonzero(~(array > 0))} other values. Leave out measurements without weight."
        )
    return array


def _edge_planes(edges: tuple[ArrayLike, ArrayLike] | None, valid: BoolArray) -> Planes:
    """Return the edge weights in the layout of the kernels, zero beside an invalid pixel."""
    result = edge_planes(2, valid.shape)
    inside = result[kernels.EAST, 1:-1, 1:-3], result[kernels.SOUTH, 1:-2, 1:-2]
    pairs: tuple[Any, Any] = (..., ...)  # pixels whose weight counts
    if not valid.all():
        pairs = valid[:, :-1] & valid[:, 1:], valid[:-1] & valid[1:]
    for target, pair, weight, name in zip(inside, pairs, edges or (1.0, 1.0), ("right", "lower"), strict=True):
        array = np.asarray(weight, np.float32)
        if edges is not None and array.shape != target.shape:
            raise InputError(
                f"{param('edges')} must have shape {target.shape} for the {name} neighbours, got {array.shape} instead."
            )
        np.copyto(target, array, where=True if pair is ... else pair)
        used = target[pair]
        if not (used.min(initial=1.0) > 0 and used.max(initial=0.0) <= 1):  # False for NaN
            raise InputError(
                f"{param('edges')} must be above 0 and at most 1 between each valid pixel and its {name} neighbour."
            )
    return result
