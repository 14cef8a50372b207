"""Levenberg-Marquardt over (exponent, log gain, offset), and the fixed-coordinate fits it starts from (eq:lm)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np

from leadline.base.arrays import Float64Array, IndexArray
from leadline.core.fit.calibration import TINY
from leadline.core.fit.normal_equations import CHUNK, normal_equations
from leadline.core.fit.response import in_domain, remainder

Theta = Float64Array  # (exponent, log gain, offset), about the prior's geometric mean
Sums = tuple[float, Theta, Float64Array]  # cost, J^T r, J^T J

SUBSET = 1024
"""Pairs used by the runs from each start; only the best run continues with all pairs."""
INITIAL_DAMPING = 1e-4
"""Initial damping relative to the largest diagonal entry of J^T J. The exponent's entry is smaller by orders of
magnitude, so that the usual 1e-3 would hold the exponent in place for many iterations. A step that is too long is
rejected, at the cost of one evaluation."""
START_TOLERANCE = 1e-3
"""Relative decrease of the cost at which the run from a start ends."""
UPPER_TRIANGLE = np.array([[4, 5, 6], [5, 7, 8], [6, 8, 9]])  # position of each entry of J^T J in a row of sums
_IDENTITY = np.eye(3)
_GOLDEN = 0.6180339887498949
LINE_ITERATIONS = 6  # reweightings of a least-absolute-deviations line, which is only a starting point


class StopReason(Enum):
    """Why a run of Levenberg-Marquardt ended."""

    EXACT_FIT = "exact fit"
    SMALL_STEP = "small step"
    SMALL_DECREASE = "small decrease"
    NO_DECREASE = "no decrease"
    DOMAIN_EDGE = "edge of the domain"
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
    """A cost with its gradient and Gauss-Newton matrix."""

    @property
    def floor(self) -> float:
        """The cost at which residuals are rounding errors."""

    def __call__(self, theta: Theta) -> Sums: ...


class Problem:
    """Cost and normal equations at a parameter, for x = log(h / centre) and depths in units of the scale."""

    def __init__(self, x: Float64Array, depth: Float64Array, domain: tuple[float, float]) -> None:
        self.x, self.depth, self.domain = x, depth, domain
        self.floor = x.size * (8 * np.finfo(float).eps) ** 2  # relative to depths of order one
        self._sums = np.zeros((-(-x.size // CHUNK), 10))

    def __call__(self, theta: Theta) -> Sums:
        """Sum of squared residuals, J^T r and J^T J; the cost is infinite where the map is undefined."""
        numbers = self.parameters(theta)
        if numbers is None:
            return math.inf, theta, np.eye(3)
        normal_equations(self.x, self.depth, *numbers, self._sums)
        return sum_chunks(self._sums)

    def parameters(self, theta: Theta) -> tuple[float, float, float, float] | None:
        """Exponent, gain, offset and remainder, or None where the map is not defined over the whole prior."""
        exponent, log_gain, offset = map(float, theta)
        if not (
            math.isfinite(exponent + offset)
            and abs(log_gain) < 700
            and in_domain(exponent, math.exp(log_gain), offset, *self.domain)
        ):
            return None
        gain = math.exp(log_gain)
        return exponent, gain, offset, remainder(exponent, gain, offset)

    def rmse(self, theta: Theta) -> float:
        return math.sqrt(self(theta)[0] / self.x.size)

    def subset(self) -> Problem:
        chosen = strided_subset(self.x.size)
        return self if chosen is None else Problem(self.x[chosen], self.depth[chosen], self.domain)


def sum_chunks(sums: Float64Array) -> Sums:
    """Cost, J^T r and J^T J from the sums of all chunks; the cost is infinite if any sum is not finite."""
    total = sums.sum(axis=0)
    cost = float(total[0])
    usable = bool(np.isfinite(total).all())
    return cost if usable else math.inf, total[1:4], total[UPPER_TRIANGLE]


def strided_subset(count: int) -> IndexArray | None:
    """Indices of at most SUBSET of the pairs, or None for all of them."""
    step = -(-count // SUBSET)
    if step == 1:
        return None
    # One pair of every `step`, at a position that varies: pairs are ordered by row and often lie on a grid, of which a
    # regular stride would select whole columns.
    first = np.arange(0, count - step + 1, step)
    return first + (step * (np.arange(first.size) * _GOLDEN % 1.0)).astype(np.intp)


def levenberg_marquardt(
    problem: Objective, theta: Theta, max_iterations: int, tolerance: float
) -> tuple[Theta, list[float], int, StopReason]:
    """Minimise from `theta`: (J^T J + mu I) delta = -J^T r, eq:lm, with Nielsen's rule for mu.

    A step is accepted only if it lowers the cost, and the cost is infinite outside the domain, so every iterate maps
    the whole prior. One pass over the pairs computes the cost and the Jacobian together. Returns theta, the cost at the
    start and after each accepted step, the number of iterations, and why it stopped.
    """
    cost, gradient, matrix = problem(theta)
    damping, growth = INITIAL_DAMPING * float(matrix.diagonal().max()), 2.0
    costs = [cost]
    blocked = False  # whether the last step tried left the domain
    settled = False  # whether the last damped step decreased the cost by less than the tolerance
    floor = problem.floor
    for iteration in range(1, max_iterations + 1):
        if cost <= floor:
            return theta, costs, iteration - 1, StopReason.EXACT_FIT
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # extreme magnitudes give a step that is rejected
                step = -np.linalg.solve(matrix + damping * _IDENTITY, gradient)
        except np.linalg.LinAlgError:
            step = np.full(3, np.nan)
        if np.abs(step).max() < 1e-14 * (1.0 + np.abs(theta).max()):
            return theta, costs, iteration, StopReason.DOMAIN_EDGE if blocked else StopReason.SMALL_STEP
        new_cost, new_gradient, new_matrix = problem(theta + step)
        blocked = not math.isfinite(new_cost)
        if new_cost < cost:
            expected = -float(step @ (2 * gradient + matrix @ step))
            quality = (cost - new_cost) / expected if expected > 0 else 0.0
            decrease = (cost - new_cost) / cost
            theta, cost, gradient, matrix = theta + step, new_cost, new_gradient, new_matrix
            costs.append(cost)
            damping *= max(1 / 3, 1 - (2 * quality - 1) ** 3)
            growth = 2.0
            # A small decrease under damping does not yet indicate a minimum, because the curvature in the exponent is
            # by far the smallest. The iteration ends only if an undamped step decreases the cost as little.
            if decrease >= tolerance:
                settled = False
            elif settled or tolerance >= START_TOLERANCE:
                return theta, costs, iteration, StopReason.SMALL_DECREASE
            else:
                settled = True
                damping = 1e-10 * float(matrix.diagonal().max())
        elif settled and not blocked:
            return theta, costs, iteration, StopReason.SMALL_DECREASE
        else:
            damping *= growth
            growth *= 2.0
            if damping > 1e16 * float(matrix.diagonal().max()):
                return theta, costs, iteration, StopReason.DOMAIN_EDGE if blocked else StopReason.NO_DECREASE
    return theta, costs, max_iterations, StopReason.ITERATION_LIMIT


def fixed_coordinate(
    x: Float64Array, y: Float64Array, exponent: float, domain: tuple[float, float], *, absolute: bool = False
) -> Theta | None:
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
