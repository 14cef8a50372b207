"""Levenberg-Marquardt over (exponent, log gain, offset), and the fixed coordinates it starts from (eq:lm).

The prior is in units of its own geometric mean over the pairs and the depth in units of that of the measurements, so
that neither the prior's scale nor the unit matters here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.core.fit.calibration import TINY
from leadline.core.fit.normal_equations import CHUNK, normal_equations
from leadline.core.fit.response import in_domain, remainder

Theta = NDArray[np.float64]  # (exponent, log gain, offset), about the prior's geometric mean
Sums = tuple[float, Theta, NDArray[np.float64]]  # cost, J^T r, J^T J

SUBSET = 1024  # starts descend on at most this many pairs; only the best goes on with all of them
# First damping, as a share of the largest curvature. That of the exponent is smaller by orders of magnitude, so that
# a textbook's 1e-3 would hold it in place for many steps; a step that is too bold is refused and costs one pass.
DAMPING = 1e-4
START_TOLERANCE = 1e-3  # relative decrease of the cost at which a start's descent ends
UPPER_TRIANGLE = np.array([[4, 5, 6], [5, 7, 8], [6, 8, 9]])  # where J^T J lies among the sums
_IDENTITY = np.eye(3)
_GOLDEN = 0.6180339887498949
LINE_ROUNDS = 6  # of reweighting a line of least absolute errors: a start, so that its last digits do not matter


@dataclass(frozen=True)
class Descent:
    """One run of Levenberg-Marquardt: where it began, where it ended, which test stopped it."""

    start: float  # exponent of the fixed coordinate it started from
    exponent: float
    rmse: float  # m
    iterations: int
    stopped: str


class Objective(Protocol):
    """What can be minimised."""

    @property
    def floor(self) -> float:
        """The cost of residuals at rounding level."""

    def __call__(self, theta: Theta) -> Sums: ...


class Problem:
    """Cost and normal equations at a parameter, for x = log(h / centre) and depths in units of the scale."""

    def __init__(self, x: NDArray[np.float64], depth: NDArray[np.float64], domain: tuple[float, float]) -> None:
        self.x, self.depth, self.domain = x, depth, domain
        self.floor = x.size * (8 * np.finfo(float).eps) ** 2  # relative to depths of order one
        self._sums = np.zeros((-(-x.size // CHUNK), 10))

    def __call__(self, theta: Theta) -> Sums:
        """Sum of squared residuals, J^T r and J^T J; the cost is infinite where the map is undefined."""
        numbers = self.parameters(theta)
        if numbers is None:
            return math.inf, theta, np.eye(3)
        normal_equations(self.x, self.depth, *numbers, self._sums)
        return added(self._sums)

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
        chosen = spread_out(self.x.size)
        return self if chosen is None else Problem(self.x[chosen], self.depth[chosen], self.domain)


def added(sums: NDArray[np.float64]) -> Sums:
    """The chunks' sums together; the cost is infinite if any of them is not a number."""
    total = sums.sum(axis=0)
    cost = float(total[0])
    usable = bool(np.isfinite(total).all())
    return cost if usable else math.inf, total[1:4], total[UPPER_TRIANGLE]


def spread_out(count: int) -> NDArray[np.intp] | None:
    """Indices of at most SUBSET of the pairs, or None for all of them."""
    step = -(-count // SUBSET)
    if step == 1:
        return None
    # One pair of every `step`, but not always the same one: pairs come row by row, often from a grid, and a
    # regular stride would pick whole columns of it.
    first = np.arange(0, count - step + 1, step)
    return first + (step * (np.arange(first.size) * _GOLDEN % 1.0)).astype(np.intp)


def levenberg_marquardt(
    problem: Objective, theta: Theta, max_iterations: int, tolerance: float
) -> tuple[Theta, list[float], int, str]:
    """Minimise from `theta`: (J^T J + mu I) delta = -J^T r, eq:lm, with Nielsen's rule for mu.

    A step is taken only if it lowers the cost, and the cost is infinite outside the domain, so every
    iterate maps the whole prior. The Jacobian comes with the cost, in one pass.
    """
    cost, gradient, matrix = problem(theta)
    damping, growth = DAMPING * float(matrix.diagonal().max()), 2.0
    costs = [cost]
    blocked = False  # whether the step tried last left the domain
    settled = False  # whether the last step under damping gained next to nothing
    floor = problem.floor
    for iteration in range(1, max_iterations + 1):
        if cost <= floor:
            return theta, costs, iteration - 1, "exact fit"
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # of extreme magnitudes; the step is then refused
                step = -np.linalg.solve(matrix + damping * _IDENTITY, gradient)
        except np.linalg.LinAlgError:
            step = np.full(3, np.nan)
        if np.abs(step).max() < 1e-14 * (1.0 + np.abs(theta).max()):
            return theta, costs, iteration, "edge of the domain" if blocked else "small step"
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
            # A short step under damping is not yet a minimum, since the exponent's curvature is the smallest by far:
            # only when a step without damping gains nothing either is it one.
            if decrease >= tolerance:
                settled = False
            elif settled or tolerance >= START_TOLERANCE:
                return theta, costs, iteration, "small decrease"
            else:
                settled = True
                damping = 1e-10 * float(matrix.diagonal().max())
        elif settled and not blocked:
            return theta, costs, iteration, "small decrease"
        else:
            damping *= growth
            growth *= 2.0
            if damping > 1e16 * float(matrix.diagonal().max()):
                return theta, costs, iteration, "edge of the domain" if blocked else "no decrease"
    return theta, costs, max_iterations, "iteration limit"


def fixed_coordinates(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    exponents: tuple[float, ...],
    domain: tuple[float, float],
    *,
    absolute: bool = False,
) -> list[tuple[float, Theta]]:
    fits = [(exponent, fixed_coordinate(x, y, exponent, domain, absolute=absolute)) for exponent in exponents]
    return [(exponent, theta) for exponent, theta in fits if theta is not None]


def fixed_coordinate(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    exponent: float,
    domain: tuple[float, float],
    *,
    absolute: bool = False,
) -> Theta | None:
    """Least squares in the coordinate itself, or None if it falls or cannot map the whole prior.

    With `absolute`, least absolute errors: a minority of wrong depths hardly moves that line.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        u = x if abs(exponent) < TINY else np.expm1(exponent * x) / exponent
        v = y if abs(exponent) < TINY else np.expm1(exponent * y) / exponent
        centred = u - u.mean()
        gain = dot(centred, v) / dot(centred, centred)
        offset = float(v.mean() - gain * u.mean())
        for _ in range(LINE_ROUNDS if absolute else 0):
            off = np.abs(v - gain * u - offset)
            # Errors far below the median count alike: the line must not hang on the first pairs that it meets.
            weight = 1.0 / np.maximum(off, max(0.1 * median(off), 1e-12))
            weight /= weight.sum()
            u_mean, v_mean = dot(weight, u), dot(weight, v)
            centred = u - u_mean
            gain = dot(weight * centred, v) / dot(weight * centred, centred)
            offset = v_mean - gain * u_mean
    usable = math.isfinite(gain) and gain > 0 and math.isfinite(offset) and in_domain(exponent, gain, offset, *domain)
    return np.array([exponent, math.log(gain), offset]) if usable else None


def median(values: NDArray[np.float64]) -> float:
    """The upper one of an even number; np.median, which looks for NaN too, would take twice as long."""
    middle = values.size // 2
    return float(np.partition(values, middle)[middle])


def dot(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    # Not a @ b: that wakes the threads of the BLAS, which then compete with those of the kernels.
    return float((a * b).sum())
