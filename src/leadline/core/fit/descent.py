"""Levenberg-Marquardt in the coordinates of `curve`, and the fixed-coordinate fits it starts from (eq:lm)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np

from leadline.base.arrays import Float64Array, IndexArray
from leadline.core.fit.calibration import TINY
from leadline.core.fit.curve import Centred, CurveNumbers, Range, Theta, edge_coordinates, from_edge
from leadline.core.fit.normal_equations import CHUNK, SQUARED, curve_equations
from leadline.core.fit.response import in_domain

Sums = tuple[float, Theta, Float64Array]  # cost, J^T r, J^T J

SUBSET = 1024
"""Pairs used by the runs from each start; only the best run continues with all pairs."""
INITIAL_DAMPING = 1e-4
"""Initial damping relative to the diagonal of J^T J. A step that is too long is rejected, at the cost of one
evaluation."""
START_TOLERANCE = 1e-3
"""Predicted relative decrease of the cost at which the run from a start ends."""
MAX_STEP = 2.0
"""Largest change of asinh(exponent) in a step: where the cost hardly depends on the exponent, the model's step is far
too long."""
MAX_POWER = 600.0
"""Largest |exponent| times log depth or range: beyond it t^exponent leaves the range of float64. The curve then differs
from its limit by at most log(2) / |exponent|."""
LARGE_EXPONENT = 10.0
"""|exponent| beyond which the limit of the family is compared."""
FLAT = 1e-6
"""Relative difference of costs below which the measurements do not distinguish an exponent from the limit."""
MAX_FLAT_STEPS = 4
"""Successive steps with a relative decrease below FLAT / 10 after which a run at a large exponent ends. There the cost
as a function of the exponent is rough at this level: it changes whenever the corner passes a pair."""
MIN_DISTANCE = 1e-10
"""Smallest distance from the edge of the domain; see `CurveNumbers.distance`."""
MIN_RISE = 1e-9
"""Smallest rise of the curve's log depth over the measured range: the gain must be positive."""
FAR_FROM_EDGE = 0.5
"""Distance from the edge beyond which the coordinates that refer to it are left."""
MIN_CURVATURE = 1e-3
"""Smallest curvature of the corrected matrix, relative to that of J^T J, for which the correction is used."""
MIN_EDGE_EXPONENT = 0.05
"""Closer to exponent 0 the edge of the domain is far away, and the coordinates that refer to it are singular."""
UPPER_TRIANGLE = np.array([[4, 5, 6], [5, 7, 8], [6, 8, 9]])  # position of each entry of J^T J in a row of sums
_EVERY_PAIR_ALIKE = np.empty(0)  # in place of standard deviations
_GOLDEN = 0.6180339887498949
LINE_ITERATIONS = 6  # reweightings of a least-absolute-deviations line, which is only a starting point


class StopReason(Enum):
    """Why a run of Levenberg-Marquardt ended."""

    EXACT_FIT = "exact fit"
    SMALL_DECREASE = "small decrease"
    NO_DECREASE = "no decrease"
    DOMAIN_EDGE = "edge of the domain"
    UNBOUNDED_EXPONENT = "unbounded exponent"
    ITERATION_LIMIT = "iteration limit"


@dataclass(frozen=True)
class Descent:
    """One run of Levenberg-Marquardt.

    `start` is the exponent of the fixed-coordinate fit that it started from, `exponent` the final one, and `rmse` the
    root mean square residual at its end in metres.
    """

    start: float
    exponent: float
    rmse: float
    iterations: int
    stopped: StopReason

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "stopped": self.stopped.value}


class Objective(Protocol):
    """A cost with its gradient and Gauss-Newton matrix, as functions of theta."""

    @property
    def floor(self) -> float:
        """The cost at which residuals are rounding errors."""

    @property
    def ends(self) -> Range:
        """The range of the pairs, to which theta refers."""

    @property
    def domain(self) -> Range:
        """The range of the dense prior, over which the map must be defined."""

    def __call__(self, theta: Theta) -> Sums: ...


class Problem:
    """Cost and normal equations at a parameter, for x = log(h / centre) and depths in units of the scale."""

    def __init__(self, x: Float64Array, depth: Float64Array, domain: Range, ends: Range | None = None) -> None:
        self.x, self.depth, self.domain = x, depth, domain
        self.ends = ends or (float(x.min()), float(x.max()))
        self.floor = x.size * (8 * np.finfo(float).eps) ** 2  # relative to depths of order one
        self._sums = np.zeros((-(-x.size // CHUNK), 10))

    def __call__(self, theta: Theta) -> Sums:
        """Sum of squared residuals, J^T r and J^T J; the cost is infinite where the map is undefined."""
        numbers = self.numbers(theta)
        if numbers is None:
            return math.inf, theta, np.eye(3)
        curve_equations(self.x, self.depth, _EVERY_PAIR_ALIKE, False, SQUARED, 1.0, numbers, self._sums)
        return sum_chunks(self._sums)

    def numbers(self, theta: Theta) -> CurveNumbers | None:
        """What the kernels need, or None where the map is not defined over the whole prior."""
        numbers = CurveNumbers.of(theta, self.ends)
        return None if numbers is None or numbers.distance(self.domain) < 0.99 * MIN_DISTANCE else numbers

    def rmse(self, theta: Theta) -> float:
        return math.sqrt(self(theta)[0] / self.x.size)

    def subset(self) -> Problem:
        chosen = strided_subset(self.x.size)
        return self if chosen is None else Problem(self.x[chosen], self.depth[chosen], self.domain, self.ends)


def sum_chunks(sums: Float64Array) -> Sums:
    """Cost, J^T r and J^T J from the sums of all chunks; the cost is infinite if any sum is not finite."""
    total = sums.sum(axis=0)
    return float(total[0]) if math.isfinite(total.sum()) else math.inf, total[1:4], total[UPPER_TRIANGLE]


def strided_subset(count: int) -> IndexArray | None:
    """Indices of at most SUBSET of the pairs, or None for all of them."""
    step = -(-count // SUBSET)
    if step == 1:
        return None
    # One pair of every `step`, at a position that varies: pairs are ordered by row and often lie on a grid, of which a
    # regular stride would select whole columns.
    first = np.arange(0, count - step + 1, step)
    return first + (step * (np.arange(first.size) * _GOLDEN % 1.0)).astype(np.intp)


class _Position:
    """A point of the descent: asinh(exponent) and two more coordinates, with the cost and its derivatives in them.

    The two are q_1 and q_2 - q_1, or near the edge of the domain q_m and the distance d from the edge. The edge is
    curved in q_1 and q_2, so that steps along it leave the domain unless they are short; it is the plane d = 0 in the
    latter. The last coordinate has a lower bound in both cases.
    """

    def __init__(self, problem: Objective, at: Float64Array, edge: bool) -> None:
        self.at, self.edge, self.cost = at, edge, math.inf
        self.lowest = MIN_DISTANCE if edge else MIN_RISE
        theta, slopes = np.array([math.sinh(at[0]), at[1], at[2]]), np.eye(3)
        if edge:
            converted = from_edge(theta, problem.ends, problem.domain)
            if converted is None:
                return
            theta, slopes = converted
        else:
            theta[2] += theta[1]
            slopes[2, 1] = 1.0
        self.theta = theta
        slopes[:, 0] *= math.cosh(at[0])
        cost, gradient, matrix = problem(theta)
        self.gradient, self.matrix = slopes.T @ gradient, slopes.T @ matrix @ slopes
        if math.isfinite(self.gradient.sum() + self.matrix.sum()):
            self.cost = cost

    def is_beyond_edge(self, problem: Objective) -> bool:
        numbers = CurveNumbers.of(self.theta, problem.ends)
        return numbers is not None and numbers.distance(problem.domain) < MIN_DISTANCE

    @classmethod
    def of(cls, problem: Objective, theta: Theta, *, edge: bool = False) -> _Position:
        at = edge_coordinates(theta, problem.ends, problem.domain) if edge else theta - [0.0, 0.0, theta[1]]
        at[0] = math.asinh(at[0])
        return cls(problem, at, edge)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # extreme magnitudes give a step that is rejected
def levenberg_marquardt(
    problem: Objective, theta: Theta, max_iterations: int, tolerance: float, *, fixed_exponent: bool = False
) -> tuple[Theta, list[float], int, StopReason]:
    """Minimise from `theta`: (J^T J + S + mu D) delta = -J^T r, eq:lm, D the diagonal of J^T J.

    S approximates the second derivatives that J^T J leaves out, by the symmetric rank-one secant update: residuals of
    a prior's errors are large, and with S = 0 the iteration oscillates about the minimum. It is used where J^T J + S is
    positive definite. mu follows Nielsen's rule. A step is accepted only if it lowers the cost, and the cost is
    infinite outside the domain, so every iterate maps the whole prior.

    Two bounds have a limit of the family behind them. |exponent| is bounded by the range of float64: where the cost
    decreases towards infinite exponents, the bound is reached in a few steps, and the reason is UNBOUNDED_EXPONENT.
    The distance from the edge of the domain, and that of the gain from zero, are bounded by rounding. A coordinate
    stays at its bound while the gradient points outwards.

    The iteration ends when the undamped step predicts a relative decrease below the tolerance. Returns theta, the cost
    at the start and after each accepted step, the number of iterations, and why it stopped.
    """
    here = _Position.of(problem, theta)
    costs, floor, flat = [here.cost], problem.floor, 0
    damping, growth, secant = INITIAL_DAMPING, 2.0, np.zeros((3, 3))
    for iteration in range(max_iterations):
        if here.cost <= floor:
            return here.theta, costs, iteration, StopReason.EXACT_FIT
        bound = math.asinh(MAX_POWER / _extent(problem, here.theta))
        outwards = abs(here.at[0]) >= bound - 1e-9 and here.gradient[0] * here.at[0] < 0
        at_edge = here.at[2] <= 1.001 * here.lowest and here.gradient[2] > 0
        step, predicted = _step(here, secant, damping, [not (outwards or fixed_exponent), True, not at_edge])
        if predicted <= tolerance * here.cost or flat > MAX_FLAT_STEPS:
            reason = StopReason.DOMAIN_EDGE if at_edge else StopReason.SMALL_DECREASE
            return here.theta, costs, iteration, StopReason.UNBOUNDED_EXPONENT if outwards else reason
        trial = here.at + step * min(1.0, MAX_STEP / max(abs(step[0]), TINY))
        trial[0] = min(max(trial[0], -bound), bound)
        trial[2] = max(trial[2], here.lowest)
        there = _Position(problem, trial, here.edge)
        is_flat = abs(here.theta[0]) > LARGE_EXPONENT and there.cost > (1 - 0.1 * FLAT) * here.cost
        flat = flat + 1 if is_flat else 0
        step = trial - here.at
        if there.cost < math.inf:
            missed = there.gradient - here.gradient - (here.matrix + secant) @ step
            product = float(missed @ step)
            update = missed * missed[:, np.newaxis] / product
            if abs(product) > 1e-8 * math.hypot(*missed) * math.hypot(*step) and math.isfinite(update.sum()):
                secant = secant + update
        if there.cost < here.cost:
            expected = -float(step @ (2 * here.gradient + here.matrix @ step))
            quality = (here.cost - there.cost) / expected if expected > 0 else 0.0
            damping = max(damping * max(1 / 3, 1 - (2 * min(quality, 1.0) - 1) ** 3), 1e-12)
            growth = 2.0
            here = there
            costs.append(here.cost)
            if here.edge and here.at[2] > FAR_FROM_EDGE:
                here, secant = _Position.of(problem, here.theta), np.zeros((3, 3))
            continue
        if not here.edge and there.is_beyond_edge(problem) and abs(here.theta[0]) > MIN_EDGE_EXPONENT:
            near = _Position.of(problem, here.theta, edge=True)
            if near.cost <= (1 + tolerance) * here.cost:  # not if the pole is too far away for the coordinates
                here, secant = near, np.zeros((3, 3))
                continue
        damping *= growth
        growth *= 2.0
        if damping > 1e16:
            return here.theta, costs, iteration + 1, StopReason.NO_DECREASE
    return here.theta, costs, max_iterations, StopReason.ITERATION_LIMIT


def descend(
    problem: Objective, theta: Theta, max_iterations: int, tolerance: float
) -> tuple[Theta, list[float], int, StopReason]:
    """Levenberg-Marquardt, and at a large exponent a comparison of its end with the limit of infinite exponents.

    If the cost at the bound of the exponent is lower, or higher by a relative difference of less than FLAT, then the
    measurements do not determine the exponent, and the curve at the bound is returned as UNBOUNDED_EXPONENT. It has a
    lower cost than a minimum in between if the run ended in one of the many shallow minima that lie there.
    """
    theta, costs, iterations, stopped = levenberg_marquardt(problem, theta, max_iterations, tolerance)
    if abs(theta[0]) < LARGE_EXPONENT or stopped is StopReason.UNBOUNDED_EXPONENT or iterations >= max_iterations:
        return theta, costs, iterations, stopped
    limit = np.array([math.copysign(MAX_POWER / _extent(problem, theta), theta[0]), theta[1], theta[2]])
    if math.isfinite(problem(limit)[0]):
        rest = max_iterations - iterations
        limit, ends, more, _ = levenberg_marquardt(problem, limit, rest, 0.1 * FLAT, fixed_exponent=True)
        iterations += more
        if ends[-1] <= (1 + FLAT) * costs[-1]:
            return limit, [*costs, ends[-1]], iterations, StopReason.UNBOUNDED_EXPONENT
    return theta, costs, iterations, stopped


def _step(here: _Position, secant: Float64Array, damping: float, free: list[bool]) -> tuple[Float64Array, float]:
    """The damped step in the free coordinates, and the decrease of the cost that the undamped one predicts."""
    matrix, gradient = here.matrix, here.gradient
    everything = all(free)
    if not everything:
        chosen = np.flatnonzero(free)
        block = np.ix_(chosen, chosen)
        matrix, gradient, secant = matrix[block], gradient[chosen], secant[block]
    size = np.sqrt(np.maximum(matrix.diagonal(), 1e-300))
    scaled = matrix / size / size[:, np.newaxis]
    corrected = scaled + secant / (size * size[:, np.newaxis])
    usable = math.isfinite(corrected.sum())
    # Both decompositions in one call, because a call takes longer than the decomposition.
    values, vectors = np.linalg.eigh(np.stack((scaled, corrected if usable else scaled)))
    used = int(usable and values[1, 0] > MIN_CURVATURE * max(values[0, 0], 0.0))
    curvatures, axes = np.maximum(values[used], 1e-14), vectors[used]
    along = axes.T @ (gradient / size)
    step = -(axes @ (along / (curvatures + damping))) / size
    predicted = float((along * along / curvatures).sum())
    if everything:
        return step, predicted
    whole = np.zeros(3)
    whole[chosen] = step
    return whole, predicted


def _extent(problem: Objective, theta: Theta) -> float:
    """The largest log depth or range that a curve raises to its exponent."""
    return float(max(problem.ends[1] - problem.ends[0], theta[2] - theta[1], abs(theta[1]), abs(theta[2])))


def fixed_coordinate(
    x: Float64Array, y: Float64Array, exponent: float, domain: Range, *, absolute: bool = False
) -> Centred | None:
    """The affine fit in the coordinate of this exponent; None if its gain is negative or it cannot map the whole prior.

    It is a least-squares fit, or with `absolute` one of least absolute deviations, on which outliers have little
    influence.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        u = x if abs(exponent) < TINY else np.expm1(exponent * x) / exponent
        v = y if abs(exponent) < TINY else np.expm1(exponent * y) / exponent
        centred = u - u.mean()
        gain = dot(centred, v) / dot(centred, centred)
        offset = float(v.mean() - gain * u.mean())
        for _ in range(LINE_ITERATIONS if absolute else 0):
            off = np.abs(v - gain * u - offset)
            # Residuals far below the median get equal weights, or pairs that are fitted exactly would fix the line.
            weight = 1.0 / np.maximum(off, max(0.1 * median(off), 1e-12))
            weight /= weight.sum()
            u_mean, v_mean = dot(weight, u), dot(weight, v)
            centred = u - u_mean
            gain = dot(weight * centred, v) / dot(weight * centred, centred)
            offset = v_mean - gain * u_mean
    usable = math.isfinite(gain) and gain > 0 and math.isfinite(offset) and in_domain(exponent, gain, offset, *domain)
    return np.array([exponent, math.log(gain), offset]) if usable else None


def median(values: Float64Array) -> float:
    """The upper median. `np.median` also checks for NaN and takes twice as long."""
    middle = values.size // 2
    return float(np.partition(values, middle)[middle])


def dot(a: Float64Array, b: Float64Array) -> float:
    # Not a @ b, which would start BLAS threads that compete with those of the kernels.
    return float((a * b).sum())
