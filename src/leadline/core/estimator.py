"""Estimate the response from measured pairs: Levenberg-Marquardt on residuals in metres (eq:estimator to eq:lm).

Inside, the prior is divided by its own geometric mean over the pairs and the depth by that of the
measurements, so that neither the prior's scale nor the unit matters to the iteration. It is an exact
reparametrisation: the gain and the offset absorb it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.core.calibration import TINY
from leadline.core.normal_equations import CHUNK, normal_equations
from leadline.core.response import Response, exponent_slope, forward, in_domain, remainder
from leadline.core.types import FitOptions, InputError, Status

Theta = NDArray[np.float64]  # (exponent, log gain, offset), about the prior's geometric mean

SUBSET = 1024  # starts descend on at most this many pairs; only the best goes on with all of them
# First damping, as a share of the largest curvature. That of the exponent is smaller by orders of magnitude, so that
# a textbook's 1e-3 would hold it in place for many steps; a step that is too bold is refused and costs one pass.
DAMPING = 1e-4
START_TOLERANCE = 1e-3  # relative decrease of the cost at which a start's descent ends
_IDENTITY = np.eye(3)
_GOLDEN = 0.6180339887498949
# A prior or depth that varies by less than this (in log) is constant: its slope would be rounding error.
SPREAD = 1e-9
_UPPER_TRIANGLE = np.array([[4, 5, 6], [5, 7, 8], [6, 8, 9]])  # where J^T J lies among the sums


class FitStatus(Status):
    CONVERGED = "exponent, gain and offset were estimated"
    ITERATION_LIMIT = "stopped at the iteration limit, with the best parameters so far: raise max_iterations"
    FIXED_COORDINATE = (
        "fewer than 3 distinct pairs: gain and offset were fitted in log depth; give more measurements for the exponent"
    )
    SCALE_ONLY = "one pair, or equal depths or priors at all pairs: only the scale was fitted"
    ANTI_CORRELATED = (
        "the prior falls where the measured depth grows, so only the scale was fitted: "
        "is the prior a disparity (kind='disparity'), or are prior and measurements of different images?"
    )
    NO_MEASUREMENTS = (
        "no measured pixel has a valid prior, so nothing metric can be said: check the measurements, unit and mask"
    )


@dataclass(frozen=True)
class Descent:
    """One run of Levenberg-Marquardt: where it began, where it ended, which test stopped it."""

    start: float  # exponent of the fixed coordinate it started from
    exponent: float
    rmse: float  # m
    iterations: int
    stopped: str


@dataclass(frozen=True)
class Fit:
    """The estimated response and how far to trust it.

    Attributes
    ----------
    response : Response
        The map; its `exponent`, `gain`, `offset` and `scale` are the paper's parameters.
    rmse : float
        Root mean square residual at the pairs, in metres.
    covariance : (3, 3) float64
        Of (exponent, log gain, offset), from the residual variance and the Jacobian; NaN where they were not
        all estimated. It takes residuals as independent, which neighbouring pixels' are not.
    count : int
        Number of pairs.
    descents : tuple of Descent
        Every start, and last the one that was carried to the tolerance on all pairs.
    history : tuple of float
        RMSE in metres after each accepted step of the last descent.
    """

    response: Response
    status: FitStatus
    rmse: float
    covariance: NDArray[np.float64]
    count: int
    descents: tuple[Descent, ...] = ()
    history: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status.name.lower(),
            "advice": self.status.value,
            "response": self.response.to_dict(),
            "rmse": self.rmse,
            "covariance": self.covariance.tolist(),
            "pairs": self.count,
            "descents": [vars(descent) for descent in self.descents],
        }


def fit_response(
    prior: NDArray[Any],
    measured: NDArray[Any],
    prior_range: tuple[float, float] | None = None,
    options: FitOptions | None = None,
) -> Fit:
    """The response whose calibrated prior is nearest to the measurements, in metres.

    Falls back in steps when the pairs cannot carry three parameters: with two distinct pairs gain and
    offset in log depth, with one, or with equal or anti-correlated values, the scale alone. The status
    says which.

    Parameters
    ----------
    prior, measured : (n,) arrays
        Relative prior depth and metric depth (m) of the pairs, positive and finite.
    prior_range : (lowest, highest), optional
        Valid range of the dense prior; the map must be defined all over it. Default: that of the pairs.

    Examples
    --------
    >>> h = np.linspace(1.0, 3.0, 50)
    >>> fit = fit_response(h, 1 / (0.2 + 0.1 / h))  # affine in disparity
    >>> round(fit.response.exponent, 6), fit.status.name
    (-1.0, 'CONVERGED')
    """
    options = options or FitOptions()
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    if h.shape != s.shape or h.ndim != 1:
        raise InputError(f"`prior` and `measured` must be two (n,) arrays of pairs, got {h.shape} and {s.shape}.")
    if not (np.isfinite(h).all() and np.isfinite(s).all() and (h > 0).all() and (s > 0).all()):
        raise InputError("`prior` and `measured` must be positive and finite; leave other pairs out.")
    if h.size == 0:
        nothing = np.full((3, 3), np.nan)
        return Fit(Response(0.0, 1.0, 0.0, 1.0), FitStatus.NO_MEASUREMENTS, math.nan, nothing, 0)

    low, high = prior_range or (float(h.min()), float(h.max()))
    if not 0 < low <= high < math.inf:
        raise InputError(f"`prior_range` must be (lowest, highest), positive and finite, got {prior_range}.")

    x, y = np.log(h), np.log(s)
    centre, scale = math.exp(x.mean()), math.exp(y.mean())
    x -= math.log(centre)
    y -= math.log(scale)
    domain = (min(math.log(low) - math.log(centre), x.min()), max(math.log(high) - math.log(centre), x.max()))
    problem = _Problem(x, s / scale, domain)

    if np.ptp(x) < SPREAD or np.ptp(y) < SPREAD:
        return _scale_only(problem, FitStatus.SCALE_ONLY, centre, scale)
    # Log depth maps any prior, so that it can begin where no coordinate asked for can.
    starts = _fixed_coordinates(x, y, options.starts, domain) or _fixed_coordinates(x, y, (0.0,), domain)
    if not starts:
        return _scale_only(problem, FitStatus.ANTI_CORRELATED, centre, scale)
    if _distinct_pairs(x, y) < 3:
        theta = _fixed_coordinate(x, y, 0.0, domain)
        if theta is None:
            return _scale_only(problem, FitStatus.ANTI_CORRELATED, centre, scale)
        return _finish(problem, theta, FitStatus.FIXED_COORDINATE, centre, scale)
    return _descend_all(problem, starts, options, centre, scale)


class _Problem:
    """Cost and normal equations at a parameter, for x = log(h / centre) and depths in units of the scale."""

    def __init__(self, x: NDArray[np.float64], depth: NDArray[np.float64], domain: tuple[float, float]) -> None:
        self.x, self.depth, self.domain = x, depth, domain
        self._sums = np.zeros((-(-x.size // CHUNK), 10))

    def __call__(self, theta: Theta) -> tuple[float, Theta, NDArray[np.float64]]:
        """Sum of squared residuals, J^T r and J^T J; the cost is infinite where the map is undefined."""
        exponent, log_gain, offset = map(float, theta)
        if not (
            math.isfinite(exponent + offset)
            and abs(log_gain) < 700
            and in_domain(exponent, math.exp(log_gain), offset, *self.domain)
        ):
            return math.inf, theta, np.eye(3)
        gain = math.exp(log_gain)
        rest = remainder(exponent, gain, offset)
        normal_equations(self.x, self.depth, exponent, gain, offset, rest, self._sums)
        total = self._sums.sum(axis=0)
        cost = float(total[0])
        usable = bool(np.isfinite(total).all())
        return cost if usable else math.inf, total[1:4], total[_UPPER_TRIANGLE]

    def subset(self) -> _Problem:
        step = -(-self.x.size // SUBSET)
        if step == 1:
            return self
        # One pair of every `step`, but not always the same one: pairs come row by row, often from a grid, and a
        # regular stride would pick whole columns of it.
        first = np.arange(0, self.x.size - step + 1, step)
        chosen = first + (step * (np.arange(first.size) * _GOLDEN % 1.0)).astype(np.intp)
        return _Problem(self.x[chosen], self.depth[chosen], self.domain)


def _descend_all(
    problem: _Problem, starts: list[tuple[float, Theta]], options: FitOptions, centre: float, scale: float
) -> Fit:
    coarse = problem.subset()
    tolerance = max(START_TOLERANCE, options.tolerance)
    descents: list[Descent] = []
    ends: list[tuple[float, Theta]] = []
    for start, theta in starts:
        theta, costs, iterations, stopped = _levenberg_marquardt(coarse, theta, options.max_iterations, tolerance)
        rmse = scale * math.sqrt(costs[-1] / coarse.x.size)
        descents.append(Descent(start, float(theta[0]), rmse, iterations, stopped))
        ends.append((start, theta))
    # Compared on all pairs, and with the fixed coordinates themselves: a subset can mislead, and the result is
    # never to be worse than a fixed coordinate.
    start, theta = min(ends + starts, key=lambda candidate: problem(candidate[1])[0])
    theta, costs, iterations, stopped = _levenberg_marquardt(problem, theta, options.max_iterations, options.tolerance)
    history = tuple(scale * math.sqrt(cost / problem.x.size) for cost in costs)
    descents.append(Descent(start, float(theta[0]), history[-1], iterations, stopped))
    status = FitStatus.ITERATION_LIMIT if stopped == "iteration limit" else FitStatus.CONVERGED
    return _finish(problem, theta, status, centre, scale, tuple(descents), history)


def _levenberg_marquardt(
    problem: _Problem, theta: Theta, max_iterations: int, tolerance: float
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
    # Residuals at rounding level: relative to depths of order one.
    floor = problem.x.size * (8 * np.finfo(float).eps) ** 2
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


def _fixed_coordinates(
    x: NDArray[np.float64], y: NDArray[np.float64], exponents: tuple[float, ...], domain: tuple[float, float]
) -> list[tuple[float, Theta]]:
    fits = [(exponent, _fixed_coordinate(x, y, exponent, domain)) for exponent in exponents]
    return [(exponent, theta) for exponent, theta in fits if theta is not None]


def _fixed_coordinate(
    x: NDArray[np.float64], y: NDArray[np.float64], exponent: float, domain: tuple[float, float]
) -> Theta | None:
    """Least squares in the coordinate itself, or None if it falls or cannot map the whole prior."""
    with np.errstate(over="ignore", invalid="ignore"):
        u = x if abs(exponent) < TINY else np.expm1(exponent * x) / exponent
        v = y if abs(exponent) < TINY else np.expm1(exponent * y) / exponent
        centred = u - u.mean()
        gain = _dot(centred, v) / _dot(centred, centred)
        offset = float(v.mean() - gain * u.mean())
    usable = math.isfinite(gain) and gain > 0 and math.isfinite(offset) and in_domain(exponent, gain, offset, *domain)
    return np.array([exponent, math.log(gain), offset]) if usable else None


def _dot(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    # Not a @ b: that wakes the threads of the BLAS, which then compete with those of the kernels.
    return float((a * b).sum())


def _distinct_pairs(x: NDArray[np.float64], y: NDArray[np.float64]) -> int:
    """Number of different values of x or y, whichever has fewer, counted up to three."""
    counts = []
    for values in (x, y):
        others = values[values != values[0]]
        counts.append(1 + int(others.size > 0) + int((others != others[:1]).any()))
    return min(counts)


def _scale_only(problem: _Problem, status: FitStatus, centre: float, scale: float) -> Fit:
    """t = k h, the k of least squares in metres: gain one in log depth."""
    largest = float(problem.x.max())
    h = np.exp(problem.x - largest)  # at most one: neither the sum of squares nor its quotient overflows
    theta = np.array([0.0, 0.0, math.log(_dot(problem.depth, h) / _dot(h, h)) - largest])
    return _finish(problem, theta, status, centre, scale)


def _finish(
    problem: _Problem,
    theta: Theta,
    status: FitStatus,
    centre: float,
    scale: float,
    descents: tuple[Descent, ...] = (),
    history: tuple[float, ...] = (),
) -> Fit:
    cost, _, matrix = problem(theta)
    count = problem.x.size
    exponent, log_gain, offset = map(float, theta)
    response = Response.about(centre, exponent, math.exp(log_gain), offset, scale)
    covariance = np.full((3, 3), np.nan)
    if status in (FitStatus.CONVERGED, FitStatus.ITERATION_LIMIT) and count > 3:
        covariance = _paper_covariance(matrix, cost / (count - 3), response)
    return Fit(response, status, scale * math.sqrt(cost / count), covariance, count, descents, history)


def _paper_covariance(matrix: NDArray[np.float64], variance: float, response: Response) -> NDArray[np.float64]:
    """Carry the covariance from the form about the prior's mean to the paper's.

    log gain = log a - exponent log rho and offset = b - a phi(rho), with rho = centre / scale and phi at the
    opposite exponent.
    """
    exponent = response.exponent
    centre, gain, _ = response.centred  # type: ignore[misc]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        shift = float(forward(centre, -exponent, response.scale))
        shift_slope = float(exponent_slope(centre, -exponent, response.scale))
        log_rho = math.log(centre) - math.log(response.scale)
        transform = np.array([[1.0, 0.0, 0.0], [-log_rho, 1.0, 0.0], [gain * shift_slope, -gain * shift, 1.0]])
        root = np.sqrt(matrix.diagonal())
        try:  # scaled to a unit diagonal first: the three parameters differ by orders of magnitude
            inner = np.linalg.inv(matrix / np.outer(root, root)) / np.outer(root, root)
        except np.linalg.LinAlgError:
            return np.full((3, 3), np.nan)
        return np.asarray(variance * transform @ inner @ transform.T)
