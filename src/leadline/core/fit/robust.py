"""The fit beyond least squares in metres: losses that bound an outlier's pull, noise that differs from measurement to
measurement, residuals in log depth, and an exponent that is moved only as far as the measurements can carry it.

A residual r has the variance sigma^2 + tau^2: what the sensor says of this measurement, and one number for everything
else, first of all the prior's own error. tau is chosen so that the standardised residuals z have the median magnitude
of a normal variable (a robust counterpart of Paule and Mandel's estimator, 1982), and fit and tau take turns. Given
tau, sum rho(z) is minimised by the same Levenberg-Marquardt as the paper's cost, with J^T W J for J^T J.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leadline.core.fit.descent import (
    START_TOLERANCE,
    Descent,
    Problem,
    Sums,
    Theta,
    added,
    levenberg_marquardt,
    median,
    spread_out,
)
from leadline.core.fit.normal_equations import (
    CAUCHY,
    CHUNK,
    GEMAN_MCCLURE,
    HUBER,
    SQUARED,
    robust_equations,
    robust_residuals,
)
from leadline.core.options import FitOptions

# Loss and the width at which it bends, in standard deviations. Where the noise is normal each does as well as squares
# would with 95 % of the measurements (Holland and Welsch, 1977, for the first two; gnc's by the same integral).
LOSSES = {
    "squared": (SQUARED, 1.0),
    "huber": (HUBER, 1.345),
    "cauchy": (CAUCHY, 2.385),
    "gnc": (GEMAN_MCCLURE, 3.787),
}
NORMAL_MEDIAN = 0.6744897501960817  # of |z| for a normal variable of variance one
# The same where each z counts by its weight under a loss of the width above.
WEIGHTED_MEDIANS = {SQUARED: NORMAL_MEDIAN, HUBER: 0.6432644472, CAUCHY: 0.5935665965, GEMAN_MCCLURE: 0.6018717535}
CONTAMINATED = 1.58  # the median of |z| where three in ten are far out, over NORMAL_MEDIAN: the quantile 0.5 / 0.7
BISECTIONS = 12  # of tau^2: to a four-thousandth of the residuals' own square
SMALLEST_SPREAD = 1e-7  # of the residuals, relative to the depth: below it they are exact, and tau must not be zero
SCALE_TOLERANCE = 0.01  # relative change at which fit and tau stop taking turns; tau is known to 1/sqrt(n) only
EDGE = 0.02  # share of the pairs beyond either edge of what counts as measured: a single one may be anything
GROWTH = 0.5  # standard deviation of how much the logarithm of the local gain grows beyond the measured range
ROUNDS = 30  # at most, of taking turns; a handful is usual


@dataclass(frozen=True)
class Shrinkage:
    """What is believed of a response before anything is measured, as terms whose weighted squares join the cost.

    The exponent is near 0, within `spread`. And the local gain d log t / d log h does not go on growing where nothing
    was measured: from the `edges` of the pairs to the ends of the prior's `domain`, its logarithm grows by GROWTH at
    most, or so. A pole just beyond the pairs fits them as well as anything, and sends all that is farther to infinity.
    """

    weight: float  # of one squared standard deviation, in units of the cost
    spread: float
    edges: tuple[float, float]
    domain: tuple[float, float]

    @classmethod
    def of(cls, problem: Reweighted, theta: Theta, effective: float, spread: float) -> Shrinkage:
        x = problem.plain.x
        few = int(EDGE * x.size)
        ordered = np.partition(x, (few, x.size - 1 - few))
        edges = (float(ordered[few]), float(ordered[x.size - 1 - few]))
        return cls(problem(theta)[0] / effective, spread, edges, problem.plain.domain)

    def terms(self, theta: Theta) -> list[tuple[float, Theta]]:
        """Value, in standard deviations, and derivatives of each term."""
        terms = [(float(theta[0]) / self.spread, np.array([1.0 / self.spread, 0.0, 0.0]))]
        for edge, end in zip(self.edges, self.domain, strict=True):
            (inner, inner_slope), (outer, outer_slope) = log_gain(theta, edge), log_gain(theta, end)
            if outer > inner:
                terms.append(((outer - inner) / GROWTH, (outer_slope - inner_slope) / GROWTH))
        return terms


def log_gain(theta: Theta, x: float) -> tuple[float, Theta]:
    """log(d log t / d log h) at x = log(h / centre), eq:gain, and its derivatives in theta.

    With u = gain e^(exponent x) it is log(u / (u + c)) = -log(1 + v), v = (c / gain) e^(-exponent x).
    """
    exponent, log_alpha, offset = map(float, theta)
    shrink = math.exp(min(max(-log_alpha, -700.0), 700.0))
    decay = math.exp(min(max(-exponent * x, -700.0), 700.0))
    excess = (1.0 + exponent * offset) * shrink - 1.0  # c / gain
    v = max(excess * decay, -1.0 + 1e-15)
    slope = np.array([offset * shrink * decay - x * v, -(excess + 1.0) * decay, exponent * shrink * decay])
    return -math.log1p(v), -slope / (1.0 + v)


@dataclass(frozen=True)
class Reweighted:
    """Cost, J^T W r and J^T W J at a parameter, for one loss and one precision per pair.

    `plain` is the paper's problem on the same pairs; `variance` is sigma^2 in the residual's own unit; `prior` is what
    was believed of the parameters before.
    """

    plain: Problem
    target: NDArray[np.float64]  # depth in units of the scale, or its logarithm
    variance: NDArray[np.float64] | None
    precision: NDArray[np.float64]
    in_logs: bool
    loss: int
    width: float
    prior: Shrinkage | None = None

    @classmethod
    def of(
        cls,
        plain: Problem,
        log_depth: NDArray[np.float64],
        sigma: NDArray[np.float64] | None,
        options: FitOptions,
    ) -> Reweighted:
        """With precision one; `sigma` is in units of the scale."""
        in_logs = options.residual == "log"
        if sigma is not None and in_logs:
            sigma = sigma / plain.depth
        variance = None if sigma is None else sigma * sigma
        target = log_depth if in_logs else plain.depth
        return cls(plain, target, variance, np.ones(target.size), in_logs, *LOSSES[options.loss])

    def __call__(self, theta: Theta) -> Sums:
        numbers = self.plain.parameters(theta)
        if numbers is None:
            return math.inf, theta, np.eye(3)
        sums = np.empty((-(-self.target.size // CHUNK), 10))
        robust_equations(self.plain.x, self.target, self.precision, *numbers, self.in_logs, self.loss, self.width, sums)
        cost, gradient, matrix = added(sums)
        if self.prior is not None:
            for value, slope in self.prior.terms(theta):
                cost += self.prior.weight * value * value
                gradient += self.prior.weight * value * slope
                matrix += self.prior.weight * slope[:, np.newaxis] * slope
        return cost, gradient, matrix

    @property
    def floor(self) -> float:
        return float(((8 * np.finfo(float).eps * self.precision) ** 2).sum())

    def subset(self) -> Reweighted:
        chosen = spread_out(self.target.size)
        if chosen is None:
            return self
        variance = None if self.variance is None else self.variance[chosen]
        plain = self.plain.subset()
        return replace(
            self, plain=plain, target=self.target[chosen], variance=variance, precision=self.precision[chosen]
        )

    def residuals(self, theta: Theta) -> NDArray[np.float64]:
        numbers = self.plain.parameters(theta)
        residual = np.full(self.target.size, np.inf)
        if numbers is not None:
            robust_residuals(self.plain.x, self.target, *numbers, self.in_logs, residual)
        return residual

    def rescaled(self, theta: Theta, weights: NDArray[np.float64] | None = None) -> Reweighted:
        """The same with the precision that the residuals at `theta` speak for, those of low weight less than others.

        Unweighted, three outliers in ten pass for noise of CONTAMINATED times its size; weights undo that. They are
        not followed further down than that, or the fit would settle on one large surface and take all else for wrong.
        """
        squares = self.residuals(theta) ** 2
        tau2 = self._tau2(squares, None, NORMAL_MEDIAN)
        if weights is not None:
            tau2 = max(self._tau2(squares, weights, WEIGHTED_MEDIANS[self.loss]), tau2 / CONTAMINATED**2)
        variance = tau2 if self.variance is None else self.variance + tau2
        return replace(self, precision=np.broadcast_to(1.0 / np.sqrt(variance), squares.shape).copy())

    def _tau2(self, squares: NDArray[np.float64], weights: NDArray[np.float64] | None, expected: float) -> float:
        """tau^2 with which the median of |z| is the expected one."""
        highest = max(_median(squares, weights) / expected**2, SMALLEST_SPREAD**2)
        if self.variance is None:
            return highest
        # The median of r^2 / (sigma^2 + tau^2) falls with tau: bisection between none and all of the residuals.
        low, high = SMALLEST_SPREAD**2, highest
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            too_small = _median(squares / (self.variance + middle), weights) > expected**2
            low, high = (middle, high) if too_small else (low, middle)
        return high

    def weights(self, theta: Theta) -> NDArray[np.float64]:
        """d rho / d z^2 of each pair: one where it is taken as it is, towards zero for an outlier."""
        z = self.residuals(theta) * self.precision
        u = (z / self.width) ** 2
        if self.loss == HUBER:
            return 1.0 / np.maximum(np.sqrt(u), 1.0)
        if self.loss == CAUCHY:
            return 1.0 / (1.0 + u)
        return 1.0 / (1.0 + u) ** 2 if self.loss == GEMAN_MCCLURE else np.ones_like(u)

    def information(self, theta: Theta, weights: NDArray[np.float64], effective: float) -> NDArray[np.float64] | None:
        """Inverse covariance of `theta` from the pairs alone, by Huber's formula for M-estimators (1981, section 7.6).

        None with too few pairs, or where so many are far out that the loss no longer curves upwards.
        """
        count = self.target.size
        z = self.residuals(theta) * self.precision
        u = (z / self.width) ** 2
        curvature = {  # d(z w) / dz
            HUBER: (u <= 1.0).astype(np.float64),
            CAUCHY: weights * weights * (1.0 - u),
            GEMAN_MCCLURE: weights**1.5 * (1.0 - 3.0 * u),
        }.get(self.loss, weights)
        bend = float(curvature.mean())
        if count <= 3 or not bend > 0:
            return None
        variance = float(((weights * z) ** 2).sum()) / (count - 3) / bend**2 * (count / effective)
        squares = replace(self, loss=SQUARED, prior=None)(theta)[2]
        return squares / variance if variance > 0 else None


def settle(problem: Reweighted, theta: Theta, max_iterations: int) -> tuple[Reweighted, Theta, int, str]:
    """Let fit and tau take turns until tau stays.

    The first tau holds whatever the start gets wrong, so that every loss begins wide, nearly as squares, and narrows as
    the fit improves: for the ones that fade, this is graduated non-convexity (Blake and Zisserman, 1987; Yang et al.,
    2020). A schedule of its own, from the largest residual down, was tried and lost good starts to no gain.
    """
    problem = problem.rescaled(theta)
    iterations, stopped = 0, ""
    for _ in range(ROUNDS):
        theta, _, more, stopped = levenberg_marquardt(problem, theta, max_iterations, START_TOLERANCE)
        iterations += more
        before, problem = problem, problem.rescaled(theta, problem.weights(theta))
        if abs(problem.precision.max() / before.precision.max() - 1) < SCALE_TOLERANCE:
            break
    return problem, theta, iterations, stopped


def effective_count(influence: NDArray[np.float64], groups: NDArray[np.intp] | None) -> float:
    """How many independent pairs would know as much as these, whose errors are alike within a group.

    The variance of a sum of `influence` (w z) is that of its groups' sums; with independent errors it would be that of
    its terms. Their ratio is the design effect of cluster sampling (Kish, 1965).
    """
    count = influence.size
    if groups is None:
        return float(count)
    apart = float((influence**2).sum())
    together = float((np.bincount(groups, influence) ** 2).sum())
    return count * min(1.0, apart / together) if apart > 0 and together > 0 else float(count)


@dataclass(frozen=True)
class RobustEnd:
    """Where a robust fit ended."""

    theta: Theta
    weights: NDArray[np.float64]
    effective: float
    information: NDArray[np.float64] | None  # the inverse covariance of theta
    descents: tuple[Descent, ...]
    costs: list[float]


def robust_descent(
    problem: Reweighted,
    starts: list[tuple[float, Theta]],
    options: FitOptions,
    groups: NDArray[np.intp] | None,
    scale: float,
) -> RobustEnd:
    """The best of all starts under the loss, carried on with all pairs; then the exponent shrunk, if asked for.

    Shrinking adds `Shrinkage` to minus twice the logarithm of the likelihood, which is the cost, taken as that of
    `effective` independent pairs instead of all (a composite likelihood with its magnitude adjusted: Pauli et al.,
    2011). Where the measurements know the response well it changes nothing to speak of.
    """
    coarse = problem.subset()
    descents: list[Descent] = []
    ends: list[tuple[float, Theta]] = []
    for start, theta in starts:
        _, theta, iterations, stopped = settle(coarse, theta, options.max_iterations)
        descents.append(Descent(start, float(theta[0]), scale * coarse.plain.rmse(theta), iterations, stopped))
        ends.append((start, theta))
    # Costs compare at one precision only: that of the smallest residuals.
    problem = max((problem.rescaled(theta) for _, theta in ends), key=lambda at: float(at.precision.max()))
    start, theta = min(ends, key=lambda end: problem(end[1])[0])
    problem, theta, _, _ = settle(problem, theta, options.max_iterations)
    if options.exponent_spread is not None:
        _, effective = _judge(problem, theta, groups)
        problem = replace(problem, prior=Shrinkage.of(problem, theta, effective, options.exponent_spread))
    theta, costs, iterations, stopped = levenberg_marquardt(problem, theta, options.max_iterations, options.tolerance)
    weights, effective = _judge(problem, theta, groups)
    descents.append(Descent(start, float(theta[0]), scale * problem.plain.rmse(theta), iterations, stopped))
    information = problem.information(theta, weights, effective)
    if information is not None and options.exponent_spread is not None:
        information[0, 0] += options.exponent_spread**-2
    return RobustEnd(theta, weights, effective, information, tuple(descents), costs)


def _judge(problem: Reweighted, theta: Theta, groups: NDArray[np.intp] | None) -> tuple[NDArray[np.float64], float]:
    weights = problem.weights(theta)
    return weights, effective_count(weights * problem.residuals(theta) * problem.precision, groups)


def _median(values: NDArray[np.float64], weights: NDArray[np.float64] | None) -> float:
    if weights is None:
        return median(values)
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, 0.5 * below[-1])]])
