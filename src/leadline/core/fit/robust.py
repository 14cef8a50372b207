"""The fit with a robust loss, measurement noise, log residuals and a penalty on the parameters.

**Objective.** Let r_i be the residual of pair i, in metres or in log depth. Its variance is modelled as
sigma_i^2 + tau^2: the known noise of the measurement, and a common variance for everything else, above all the error of
the prior. With the standardised residuals z_i = r_i / sqrt(sigma_i^2 + tau^2) the fit minimises

    sum_i rho(z_i) + penalty(exponent, log gain, offset).

**Loss.** rho is z^2 (squared), Huber's loss, or one of two that are not convex and let the influence of a large
residual decrease to zero: Cauchy's loss and that of Geman and McClure (gnc). The weight of a pair is w = d rho / d z^2.

**Scale.** tau is chosen so that the median of |z| is that of a standard normal variable, a robust counterpart of the
estimator of Paule and Mandel (1982). Fit and tau are updated alternately until tau changes by less than 1 %. The first
tau is large, because the residuals at a start are, so that every loss begins close to squares and becomes more
selective as the fit improves. For the losses that are not convex this is graduated non-convexity (Blake and Zisserman,
1987; Yang et al., 2020).

**Iteration.** For given tau the minimiser is found by the Levenberg-Marquardt iteration of `descent` with the weighted
matrix J^T W J in place of J^T J.

**Covariance.** Huber's formula for M-estimators (1981, section 7.6), for an effective number of independent pairs that
accounts for correlated errors within image tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from leadline.base.arrays import Float64Array, IndexArray
from leadline.core.fit import descent, normal_equations
from leadline.core.fit.curve import Centred, Range, Theta, to_centred
from leadline.core.fit.descent import Descent, Problem, StopReason, Sums, descend, levenberg_marquardt
from leadline.core.fit.normal_equations import CAUCHY, CHUNK, GEMAN_MCCLURE, HUBER, SQUARED
from leadline.core.options import FitOptions

# Loss and its width in standard deviations. Each width gives 95 % efficiency for normal errors: Holland and Welsch
# (1977) for Huber and Cauchy, and the same integral for Geman and McClure.
LOSSES = {"squared": (SQUARED, 1.0), "huber": (HUBER, 1.345), "cauchy": (CAUCHY, 2.385), "gnc": (GEMAN_MCCLURE, 3.787)}
NORMAL_MEDIAN = 0.6744897501960817  # median of |z| for a standard normal variable
# The same median, weighted by the weights under a loss of the width above.
WEIGHTED_MEDIANS = {SQUARED: NORMAL_MEDIAN, HUBER: 0.6432644472, CAUCHY: 0.5935665965, GEMAN_MCCLURE: 0.6018717535}
CONTAMINATED = 1.58
"""The median of |z| in units of NORMAL_MEDIAN if 30 % of the pairs are outliers: the quantile 0.5 / 0.7 of |z|."""
BISECTIONS = 12
"""Bisections for tau^2, which give it to 1 / 4096 of the largest candidate."""
MIN_TAU = 1e-7
"""Smallest tau relative to the depth; it keeps 1 / tau finite for exact pairs."""
SCALE_TOLERANCE = 0.01
"""Relative change of tau at which the alternation stops; the statistical error of tau is of order 1 / sqrt(n)."""
MAX_SCALE_UPDATES = 30
"""Largest number of alternations; a handful is usual."""
MAX_START = 5.0
"""Largest |exponent| at the start of a fit with a penalty; the curve's ends stay where they are."""
BRIEF_ITERATIONS = 4
"""Iterations after which the better start of a brief fit is chosen. With none, the screening's fit ends in another
minimum in one of 52 cases with a hole, whose error grows by a quarter."""
EDGE_SHARE = 0.02
"""Share of the pairs beyond each edge of the measured range, so that a single outlier does not extend it."""
GAIN_SPREAD = 0.5
"""Standard deviation of the gain about 1. It is that of fits to grids of measurements with two networks in 15 scenes
(0.50), in which the gain is well determined."""
GAIN_GROWTH = 0.5
"""Standard deviation of the growth of the log of the local gain from the edge of the measured range to the end of the
prior's range."""


@dataclass(frozen=True)
class Shrinkage:
    """A Gaussian penalty on the parameters: a sum of squared terms that is added to the cost.

    One term shrinks the exponent to 0, with standard deviation `spread`, and one the gain at the centre of the pairs
    to 1, with GAIN_SPREAD: the response of least assumptions is one scale. Both matter where the prior varies little
    between the pairs, whose errors then determine the slope, and much in the rest of the image, to which that slope
    would be continued. The other terms limit the growth of the local gain d log t / d log h outside of the measured
    range: from the `edges` of the pairs to the ends of the prior's `domain` its logarithm may grow with standard
    deviation GAIN_GROWTH. Without them a pole just beyond the measured range can fit the pairs equally well, and maps
    everything farther to infinity.
    """

    weight: float  # factor from squared standard deviations to the cost
    spread: float
    edges: tuple[float, float]
    domain: tuple[float, float]

    @classmethod
    def of(cls, problem: Reweighted, theta: Theta, effective: float, spread: float) -> Shrinkage:
        x = problem.plain.x
        few = int(EDGE_SHARE * x.size)
        ordered = np.partition(x, (few, x.size - 1 - few))
        edges = (float(ordered[few]), float(ordered[x.size - 1 - few]))
        return cls(problem(theta)[0] / effective, spread, edges, problem.plain.domain)

    def terms(self, theta: Centred) -> list[tuple[float, Centred]]:
        """Value of each term in standard deviations, and its derivatives in (exponent, log gain, offset)."""
        gain = math.exp(min(float(theta[1]), 100.0)) / GAIN_SPREAD  # its square must stay finite
        terms = [
            (float(theta[0]) / self.spread, np.array([1.0 / self.spread, 0.0, 0.0])),
            (gain - 1.0 / GAIN_SPREAD, np.array([0.0, gain, 0.0])),
        ]
        for edge, end in zip(self.edges, self.domain, strict=True):
            (inner, inner_slope), (outer, outer_slope) = log_gain(theta, edge), log_gain(theta, end)
            if outer > inner:
                terms.append(((outer - inner) / GAIN_GROWTH, (outer_slope - inner_slope) / GAIN_GROWTH))
        return terms

    def information(self, theta: Theta, ends: Range) -> Float64Array:
        """What the penalty adds to the inverse covariance of theta, (3, 3)."""
        centred, slopes = to_centred(theta, ends)
        rows = np.array([slope for _, slope in self.terms(centred)]) @ slopes
        added: Float64Array = rows.T @ rows
        return added


def log_gain(theta: Centred, x: float) -> tuple[float, Centred]:
    """log(d log t / d log h) at x = log(h / centre), eq:gain, and its derivatives in (exponent, log gain, offset).

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
    """Cost, J^T W r and J^T W J as functions of theta, for a given loss and a given standard deviation of each pair.

    `plain` is the paper's problem on the same pairs, and `variance` is sigma^2 in the unit of the residual.
    """

    plain: Problem
    target: Float64Array  # depth in units of the scale, or its logarithm
    variance: Float64Array | None
    inverse_sigma: Float64Array  # 1 / sqrt(sigma^2 + tau^2)
    in_logs: bool
    loss: int
    width: float
    penalty: Shrinkage | None = None

    @classmethod
    def of(cls, plain: Problem, log_depth: Float64Array, sigma: Float64Array | None, options: FitOptions) -> Reweighted:
        """The problem with unit standard deviations; `sigma` is in units of the scale."""
        in_logs = options.residual == "log"
        if sigma is not None and in_logs:
            sigma = sigma / plain.depth
        variance = None if sigma is None else sigma * sigma
        target = log_depth if in_logs else plain.depth
        return cls(plain, target, variance, np.ones(target.size), in_logs, *LOSSES[options.loss])

    def __call__(self, theta: Theta) -> Sums:
        numbers = self.plain.numbers(theta)
        if numbers is None:
            return math.inf, theta, np.eye(3)
        sums = np.empty((-(-self.target.size // CHUNK), 10))
        normal_equations.curve_equations(
            self.plain.x, self.target, self.inverse_sigma, self.in_logs, self.loss, self.width, numbers, sums
        )
        cost, gradient, matrix = descent.sum_chunks(sums)
        if self.penalty is not None:
            try:
                centred, slopes = to_centred(theta, self.ends)
            except (OverflowError, ZeroDivisionError, ValueError):  # the exponent is far too large for the penalty
                return math.inf, theta, np.eye(3)
            for value, of_centred in self.penalty.terms(centred):
                slope = of_centred @ slopes
                cost += self.penalty.weight * value * value
                gradient += self.penalty.weight * value * slope
                matrix += self.penalty.weight * slope[:, np.newaxis] * slope
        return cost, gradient, matrix

    @property
    def ends(self) -> Range:
        return self.plain.ends

    @property
    def domain(self) -> Range:
        return self.plain.domain

    @property
    def floor(self) -> float:
        return float(((8 * np.finfo(float).eps * self.inverse_sigma) ** 2).sum())

    def subset(self) -> Reweighted:
        chosen = descent.strided_subset(self.target.size)
        if chosen is None:
            return self
        variance = None if self.variance is None else self.variance[chosen]
        plain = self.plain.subset()
        return replace(
            self, plain=plain, target=self.target[chosen], variance=variance, inverse_sigma=self.inverse_sigma[chosen]
        )

    def residuals(self, theta: Theta) -> Float64Array:
        numbers = self.plain.numbers(theta)
        rows = np.full((4, self.target.size), np.inf)
        if numbers is not None:
            normal_equations.curve_rows(self.plain.x, self.target, self.in_logs, numbers, rows)
        residuals: Float64Array = rows[0]
        return residuals

    def rescaled(self, theta: Theta, weights: Float64Array | None = None) -> Reweighted:
        """The same problem with tau estimated from the residuals at `theta`, optionally weighted.

        Without weights, 30 % of outliers enlarge tau by the factor CONTAMINATED; weights correct for that. The
        correction is limited to this factor, or the fit could concentrate on one large surface and treat all other
        pairs as outliers.
        """
        squares = self.residuals(theta) ** 2
        tau2 = self._tau2(squares, None, NORMAL_MEDIAN)
        if weights is not None:
            tau2 = max(self._tau2(squares, weights, WEIGHTED_MEDIANS[self.loss]), tau2 / CONTAMINATED**2)
        variance = tau2 if self.variance is None else self.variance + tau2
        return replace(self, inverse_sigma=np.broadcast_to(1.0 / np.sqrt(variance), squares.shape).copy())

    def _tau2(self, squares: Float64Array, weights: Float64Array | None, expected: float) -> float:
        """tau^2 for which the median of |z| is `expected`."""
        highest = max(_median(squares, weights) / expected**2, MIN_TAU**2)
        if self.variance is None:
            return highest
        # The median of r^2 / (sigma^2 + tau^2) decreases with tau, so that bisection finds it.
        low, high = MIN_TAU**2, highest
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            too_small = _median(squares / (self.variance + middle), weights) > expected**2
            low, high = (middle, high) if too_small else (low, middle)
        return high

    def weights(self, theta: Theta) -> Float64Array:
        """w = d rho / d z^2 of each pair: one for the squared loss, near zero for an outlier."""
        with np.errstate(over="ignore"):  # the weight of a residual whose square overflows is zero
            u = (self.residuals(theta) * self.inverse_sigma / self.width) ** 2
            if self.loss == HUBER:
                return 1.0 / np.maximum(np.sqrt(u), 1.0)
            if self.loss == CAUCHY:
                return 1.0 / (1.0 + u)
            return 1.0 / (1.0 + u) ** 2 if self.loss == GEMAN_MCCLURE else np.ones_like(u)

    def information(self, theta: Theta, weights: Float64Array, effective: float) -> Float64Array | None:
        """Inverse covariance of `theta` without the penalty, by Huber's formula for M-estimators.

        None with too few pairs, or if so many are outliers that the mean curvature of the loss is not positive.
        """
        count = self.target.size
        z = self.residuals(theta) * self.inverse_sigma
        u = (z / self.width) ** 2
        curvature = {  # d(z w) / dz
            HUBER: (u <= 1.0).astype(np.float64),
            CAUCHY: weights * weights * (1.0 - u),
            GEMAN_MCCLURE: weights**1.5 * (1.0 - 3.0 * u),
        }.get(self.loss, weights)
        mean_curvature = float(curvature.mean())
        if count <= 3 or not mean_curvature > 0:
            return None
        variance = float(((weights * z) ** 2).sum()) / (count - 3) / mean_curvature**2 * (count / effective)
        squares = replace(self, loss=SQUARED, penalty=None)(theta)[2]
        return squares / variance if variance > 0 else None


def fit_with_scale(problem: Reweighted, theta: Theta, max_iterations: int) -> tuple[Reweighted, Theta, int, StopReason]:
    """Update the fit and tau alternately until tau converges; see the module's description.

    An explicit schedule of graduated non-convexity, starting from the largest residual, lost good starts and
    improved nothing.
    """
    problem = problem.rescaled(theta)
    iterations, stopped = 0, StopReason.ITERATION_LIMIT
    for _ in range(MAX_SCALE_UPDATES):
        theta, _, more, stopped = levenberg_marquardt(problem, theta, max_iterations, descent.START_TOLERANCE)
        iterations += more
        if problem.loss == SQUARED and problem.variance is None:  # then tau has no influence on the minimum
            return problem.rescaled(theta), theta, iterations, stopped
        before, problem = problem, problem.rescaled(theta, problem.weights(theta))
        if abs(problem.inverse_sigma.max() / before.inverse_sigma.max() - 1) < SCALE_TOLERANCE:
            break
    return problem, theta, iterations, stopped


def effective_count(influence: Float64Array, groups: IndexArray | None) -> float:
    """Number of independent pairs with the same information as these, whose errors are correlated within groups.

    With `influence` = w z, the ratio of the variance of the sum of independent terms to that of the sum of the groups'
    sums is the inverse of the design effect of cluster sampling (Kish, 1965).
    """
    count = influence.size
    if groups is None:
        return float(count)
    independent = float((influence**2).sum())
    grouped = float((np.bincount(groups, influence) ** 2).sum())
    return count * min(1.0, independent / grouped) if independent > 0 and grouped > 0 else float(count)


@dataclass(frozen=True)
class RobustEnd:
    """The result of a robust fit; `information` is the inverse covariance of theta, `objective` what was minimised."""

    theta: Theta
    weights: Float64Array
    effective: float
    information: Float64Array | None
    descents: tuple[Descent, ...]
    costs: list[float]
    objective: Reweighted


def robust_descent(
    problem: Reweighted,
    starts: list[tuple[float, Theta]],
    options: FitOptions,
    groups: IndexArray | None,
    scale: float,
    *,
    briefly: bool = False,
) -> RobustEnd:
    """The best fit of all starts, continued with all pairs, and with the penalty if ``options.exponent_spread`` is set.

    With `briefly` only the run of lowest cost after BRIEF_ITERATIONS is continued, and there is no covariance.

    The cost is minus twice a log-likelihood. For the penalty it is scaled to `effective` independent pairs instead of
    all (a composite likelihood with adjusted magnitude: Pauli et al., 2011). Where the measurements determine the
    response well, the penalty has little influence.
    """
    if briefly and len(starts) > 1:
        common = _with_common_scale(problem, [theta for _, theta in starts])
        limits = BRIEF_ITERATIONS, descent.START_TOLERANCE
        runs = [(start, *levenberg_marquardt(common, theta, *limits)) for start, theta in starts]
        start, theta, *_ = min(runs, key=lambda run: run[2][-1])
        starts = [(start, theta)]
    # A subset of the pairs is enough to choose among starts; a single one needs no choice.
    chosen = problem.subset() if len(starts) > 1 else problem
    descents: list[Descent] = []
    ends: list[tuple[float, Theta, Reweighted]] = []
    for start, theta in starts:
        scaled, theta, iterations, stopped = fit_with_scale(chosen, theta, options.max_iterations)
        descents.append(Descent(start, float(theta[0]), scale * chosen.plain.rmse(theta), iterations, stopped))
        ends.append((start, theta, scaled))
    start, theta, scaled = ends[0]
    if len(ends) > 1:
        common = _with_common_scale(problem, [theta for _, theta, _ in ends])
        start, theta, scaled = min(ends, key=lambda end: common(end[1])[0])
    if chosen is problem:
        problem = scaled
    else:
        problem, theta, _, _ = fit_with_scale(problem, theta, options.max_iterations)
    if options.exponent_spread is not None:
        _, effective = effective_weights(problem, theta, groups)
        problem = replace(problem, penalty=Shrinkage.of(problem, theta, effective, options.exponent_spread))
        # The penalty is huge at large exponents and next to a pole, where the run without it may have ended. The curve
        # with the same ends and exponent 0 has neither.
        largest = min(max(theta[0], -MAX_START), MAX_START)
        bent = [np.array([share * largest, theta[1], theta[2]]) for share in (1.0, 0.9, 0.5, 0.0)]
        theta = min((*bent, *(theta for _, theta in starts)), key=lambda at: problem(at)[0])
    theta, costs, iterations, stopped = descend(problem, theta, options.max_iterations, options.tolerance)
    weights, effective = effective_weights(problem, theta, groups)
    descents.append(Descent(start, float(theta[0]), scale * problem.plain.rmse(theta), iterations, stopped))
    # A brief fit is a starting point, whose uncertainty nobody needs.
    information = None if briefly else problem.information(theta, weights, effective)
    if information is not None and problem.penalty is not None:
        information += problem.penalty.information(theta, problem.ends)
    return RobustEnd(theta, weights, effective, information, tuple(descents), costs, problem)


def _with_common_scale(problem: Reweighted, thetas: list[Theta]) -> Reweighted:
    """The problem with the smallest tau of all parameters: costs are comparable only for one tau."""
    return max((problem.rescaled(theta) for theta in thetas), key=lambda at: float(at.inverse_sigma.max()))


def effective_weights(problem: Reweighted, theta: Theta, groups: IndexArray | None) -> tuple[Float64Array, float]:
    """Weight of each pair under the loss, and the effective number of independent pairs."""
    weights = problem.weights(theta)
    return weights, effective_count(weights * problem.residuals(theta) * problem.inverse_sigma, groups)


def _median(values: Float64Array, weights: Float64Array | None) -> float:
    if weights is None:
        return descent.median(values)
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, 0.5 * below[-1])]])
