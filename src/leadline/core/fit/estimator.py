"""Estimate the response from measured pairs: Levenberg-Marquardt on residuals in metres (eq:estimator to eq:lm).

The prior is divided by its geometric mean over the pairs and the depth by that of the measurements, so that neither
the prior's scale nor the unit of depth affects the iteration. This is an exact reparametrisation: gain and offset
absorb both factors. The iteration is in `descent`; other losses, log residuals and measurement noise are in `robust`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float64Array, IndexArray
from leadline.base.errors import InputError, Status, param
from leadline.core.fit import descent
from leadline.core.fit.curve import Centred, Theta, from_centred, response_of, to_centred
from leadline.core.fit.descent import Descent, Problem, StopReason, descend, dot, fixed_coordinate, levenberg_marquardt
from leadline.core.fit.response import Response, in_domain
from leadline.core.fit.robust import Reweighted, RobustEnd, robust_descent
from leadline.core.options import FitOptions

MIN_LOG_RANGE = 1e-9
"""A prior or depth whose logarithm varies by less is treated as constant, because its slope would be rounding error."""
MAX_OUTLIER_WEIGHT = 0.1
"""Pairs with a smaller weight are reported as outliers. With the Cauchy loss they deviate by three times its width."""


class FitStatus(Status):
    """How the fit ended, with advice where it could not estimate all parameters."""

    CONVERGED = "exponent, gain and offset were estimated"
    ITERATION_LIMIT = (
        f"stopped at the iteration limit, with the best parameters so far: raise {param('fit.max_iterations')}"
    )
    UNBOUNDED_EXPONENT = (
        "the measurements do not determine the exponent: the fit improves towards infinite ones, where the response is "
        "two straight pieces, and was stopped there"
    )
    FIXED_COORDINATE = "fewer than 3 distinct pairs: only gain and offset were fitted, in log depth; add measurements"
    SCALE_ONLY = (
        "only the scale was fitted: the prior, or the depth, is the same at all measurements (without a network it is)"
    )
    ANTI_CORRELATED = (
        "the prior decreases where the measured depth increases, so only the scale was fitted: is a disparity taken as "
        f"depth, or depth as disparity ({param('prior.kind', 'auto')} finds out), or do prior and measurements belong "
        "to different images?"
    )
    NO_MEASUREMENTS = (
        "no measured pixel has a valid prior, so the scale is unknown: check the measurements, their unit and the mask"
    )


@dataclass(frozen=True)
class Fit:
    """The estimated response and its uncertainty.

    Attributes
    ----------
    response : Response
        The map; its `exponent`, `gain`, `offset` and `scale` are the paper's parameters.
    status : FitStatus
    rmse : float
        Root mean square residual in metres over all pairs that were used, outliers included.
    covariance : (3, 3) float64
        Covariance of (exponent, log gain, offset) from the residual variance and the Jacobian; NaN if they were not
        all estimated. The paper's least squares treat residuals as independent, which those of neighbouring pixels
        are not; all other fits treat them as `effective` independent ones.
    count : int
        Number of pairs.
    weights : (n,) float64
        Weight of each pair under the loss: 1 for squared residuals, near 0 for an outlier, and 0 if it was excluded.
        NaN if only others of very many pairs were used.
    effective : float
        Effective number of independent pairs; equal to `count` for the paper's least squares.
    descents : tuple of Descent
        The run from each start, and last the run on all pairs to the tolerance.
    history : tuple of float
        Root mean loss after each accepted step of the last run: for least squares in metres the RMSE in metres,
        otherwise in standard deviations.
    information : (3, 3) float64 or None
        Inverse covariance of (exponent, log a, b) with a and b from ``response.centred``, in which no digits cancel.
    objective : Reweighted or None
        What was minimised over the pairs of positive weight, for derivatives; None for the paper's least squares.
    """

    response: Response
    status: FitStatus
    rmse: float
    covariance: Float64Array
    count: int
    weights: Float64Array
    effective: float
    descents: tuple[Descent, ...] = ()
    history: tuple[float, ...] = ()
    information: Float64Array | None = None
    objective: Reweighted | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status.name.lower(),
            "advice": self.status.advice(),
            "response": self.response.to_dict(),
            "rmse": self.rmse,
            "covariance": self.covariance.tolist(),
            "pairs": self.count,
            "effective_pairs": self.effective,
            "outliers": int(np.count_nonzero(self.weights < MAX_OUTLIER_WEIGHT)),
            "descents": [run.to_dict() for run in self.descents],
        }


def fit_response(
    prior: NDArray[Any],
    measured: NDArray[Any],
    prior_range: tuple[float, float] | None = None,
    options: FitOptions | None = None,
    *,
    sigma: NDArray[Any] | None = None,
    groups: IndexArray | None = None,
    start: Response | None = None,
    briefly: bool = False,
) -> Fit:
    """The response whose calibrated prior is closest to the measurements under the chosen residual and loss.

    If the pairs do not determine three parameters, fewer are fitted: gain and offset in log depth with two distinct
    pairs; the scale alone with one pair or with equal or anti-correlated values. The status states which.

    Parameters
    ----------
    prior, measured : (n,) arrays
        Relative prior depth and metric depth (m) of the pairs, positive and finite.
    prior_range : (lowest, highest), optional
        Valid range of the dense prior, over which the map must be defined. Default: the range of the pairs.
    options : FitOptions, optional
        Default: the paper's. `screen_outliers` has no effect here, because it needs positions in the image.
    sigma : (n,) array, optional
        Standard deviation of each measurement in metres; the variance that the prior adds is estimated.
    groups : (n,) array of int, optional
        Group of each pair, e.g. its part of the image, numbered from 0. Errors within a group may be correlated, which
        determines `Fit.effective` and with it how strongly the exponent is shrunk.
    start : Response, optional
        Response of similar pairs as the only start, about the geometric means of these pairs, so that a change of the
        prior's scale does not matter.
    briefly : bool
        Continue a robust fit only from the start that leads to the lowest cost in a few iterations, and estimate no
        covariance.

    Examples
    --------
    >>> h = np.linspace(1.0, 3.0, 50)
    >>> fit = fit_response(h, 1 / (0.2 + 0.1 / h))  # affine in disparity
    >>> round(fit.response.exponent, 6), fit.status.name
    (-1.0, 'CONVERGED')
    """
    options = options or FitOptions.paper()
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    if h.shape != s.shape or h.ndim != 1:
        raise InputError(
            f"{param('prior')} and {param('measured')} must be two (n,) arrays of pairs, got {h.shape} and {s.shape}."
        )
    if not (np.isfinite(h).all() and np.isfinite(s).all() and (h > 0).all() and (s > 0).all()):
        raise InputError(
            f"{param('prior')} and {param('measured')} must be positive and finite; leave other pairs out."
        )
    if h.size == 0:
        nothing = np.full((3, 3), np.nan)
        return Fit(Response(0.0, 1.0, 0.0, 1.0), FitStatus.NO_MEASUREMENTS, math.nan, nothing, 0, np.empty(0), 0.0)
    sigma, groups = _checked(h.size, sigma, groups)

    low, high = prior_range or (float(h.min()), float(h.max()))
    if not 0 < low <= high < math.inf:
        raise InputError(f"{param('prior_range')} must be (lowest, highest), positive and finite, got {prior_range}.")

    x, y = np.log(h), np.log(s)
    centre, scale = math.exp(x.mean()), math.exp(y.mean())
    x -= math.log(centre)
    y -= math.log(scale)
    domain = (min(math.log(low) - math.log(centre), x.min()), max(math.log(high) - math.log(centre), x.max()))
    problem = Problem(x, s / scale, domain)

    squared = options.loss == "squared"
    if np.ptp(x) < MIN_LOG_RANGE or np.ptp(y) < MIN_LOG_RANGE:
        return _scale_only(problem, FitStatus.SCALE_ONLY, centre, scale, squared)
    warm = [] if start is None else _warm_start(start, problem)
    # Log depth maps any prior, so it can serve as the start where none of the given exponents can.
    starts = warm or _starts(problem, y, options.starts, squared) or _starts(problem, y, (0.0,), squared)
    if not starts:
        return _scale_only(problem, FitStatus.ANTI_CORRELATED, centre, scale, squared)
    if _distinct_pairs(x, y) < 3:
        theta = fixed_coordinate(x, y, 0.0, domain, absolute=not squared)
        if theta is None:
            return _scale_only(problem, FitStatus.ANTI_CORRELATED, centre, scale, squared)
        return _log_line(problem, theta, FitStatus.FIXED_COORDINATE, centre, scale)
    if options.least_squares and sigma is None:
        return _least_squares(problem, starts, options, centre, scale, bool(warm))
    reweighted = Reweighted.of(problem, y, None if sigma is None else sigma / scale, options)
    end = robust_descent(reweighted, starts, options, groups, scale, briefly=briefly)
    return _finish_robust(problem, end, centre, scale)


def _checked(
    count: int, sigma: NDArray[Any] | None, groups: IndexArray | None
) -> tuple[Float64Array | None, IndexArray | None]:
    if sigma is not None:
        sigma = np.asarray(sigma, np.float64)
        if sigma.shape != (count,) or not (np.isfinite(sigma).all() and (sigma >= 0).all()):
            raise InputError(
                f"{param('sigma')} must be {count} numbers in metres, at least 0 and finite: one per measurement."
            )
    if groups is not None:
        groups = np.asarray(groups)
        if groups.shape != (count,) or groups.dtype.kind not in "iu" or groups.min() < 0:
            raise InputError(f"{param('groups')} must be {count} integers, 0 or more: the group of each pair.")
    return sigma, groups


def _starts(
    problem: Problem, y: Float64Array, exponents: tuple[float, ...], squared: bool
) -> list[tuple[float, Theta]]:
    """The fixed-coordinate fits to start from: least squares, or least absolute deviations on a subset of the pairs."""
    x, chosen = problem.x, None if squared else descent.strided_subset(y.size)
    if chosen is not None:
        x, y = x[chosen], y[chosen]
    lines = [
        (exponent, fixed_coordinate(x, y, exponent, problem.domain, absolute=not squared)) for exponent in exponents
    ]
    thetas = [(exponent, from_centred(line, problem.ends)) for exponent, line in lines if line is not None]
    return [(exponent, theta) for exponent, theta in thetas if problem.numbers(theta) is not None]


def _warm_start(response: Response, problem: Problem) -> list[tuple[float, Theta]]:
    """The parameters of a known response as the only start, or no start if it cannot map the whole prior."""
    _, gain, offset = response.centred
    # A gain of exactly 1 is about a centre that is not the geometric mean of the pairs; see `response_of`.
    if gain == 1.0 or not in_domain(response.exponent, gain, offset, *problem.domain):
        return []
    theta = from_centred(np.array([response.exponent, math.log(gain), offset]), problem.ends)
    return [] if problem.numbers(theta) is None else [(response.exponent, theta)]


def _least_squares(
    problem: Problem, starts: list[tuple[float, Theta]], options: FitOptions, centre: float, scale: float, warm: bool
) -> Fit:
    tolerance = max(descent.START_TOLERANCE, options.tolerance)
    descents: list[Descent] = []
    ends: list[tuple[float, Theta]] = []
    if not warm:  # a warm start is close enough to use all pairs at once
        coarse = problem.subset()
    for start, theta in [] if warm else starts:
        theta, costs, iterations, stopped = levenberg_marquardt(coarse, theta, options.max_iterations, tolerance)
        rmse = scale * math.sqrt(costs[-1] / coarse.x.size)
        descents.append(Descent(start, float(theta[0]), rmse, iterations, stopped))
        ends.append((start, theta))
    # All ends and starts are compared on all pairs: a subset can mislead, and the result must not be worse than a
    # fixed-coordinate fit.
    start, theta = starts[0] if warm else min(ends + starts, key=lambda candidate: problem(candidate[1])[0])
    theta, costs, iterations, stopped = descend(problem, theta, options.max_iterations, options.tolerance)
    history = tuple(scale * math.sqrt(cost / problem.x.size) for cost in costs)
    descents.append(Descent(start, float(theta[0]), history[-1], iterations, stopped))
    count, cost, matrix = problem.x.size, costs[-1], problem(theta)[2]
    variance = cost / (count - 3) if count > 3 else math.nan
    response = response_of(theta, problem.ends, centre, scale)
    uncertainty = _uncertainty(problem, theta, matrix / variance if variance > 0 else None, centre, response, stopped)
    effective = np.ones(count), float(count)
    return Fit(
        response,
        _status(stopped),
        history[-1],
        uncertainty[0],
        count,
        *effective,
        tuple(descents),
        history,
        uncertainty[1],
    )


def _status(stopped: StopReason) -> FitStatus:
    unfinished = {
        StopReason.ITERATION_LIMIT: FitStatus.ITERATION_LIMIT,
        StopReason.UNBOUNDED_EXPONENT: FitStatus.UNBOUNDED_EXPONENT,
    }
    return unfinished.get(stopped, FitStatus.CONVERGED)


def _distinct_pairs(x: Float64Array, y: Float64Array) -> int:
    """Number of distinct values of x or of y, whichever is smaller, counted up to three."""
    counts = []
    for values in (x, y):
        others = values[values != values[0]]
        counts.append(1 + int(others.size > 0) + int((others != others[:1]).any()))
    return min(counts)


def _scale_only(problem: Problem, status: FitStatus, centre: float, scale: float, squared: bool) -> Fit:
    """t = k h with k from least squares in metres, or else the median of s / h: gain one in log depth."""
    if not squared:
        offset = float(np.median(np.log(problem.depth) - problem.x))
    else:
        largest = float(problem.x.max())
        h = np.exp(problem.x - largest)  # at most one, so that neither the sum of squares nor the quotient overflows
        offset = math.log(dot(problem.depth, h) / dot(h, h)) - largest
    return _log_line(problem, np.array([0.0, 0.0, offset]), status, centre, scale)


def _log_line(problem: Problem, line: Centred, status: FitStatus, centre: float, scale: float) -> Fit:
    """A fit of gain and offset in log depth, or of the offset alone."""
    gain, offset, count = math.exp(line[1]), float(line[2]), problem.x.size
    off = problem.depth - np.exp(gain * problem.x + offset)
    response = Response.from_centred(centre, 0.0, gain, offset, scale)
    unknown = np.full((3, 3), np.nan)
    return Fit(response, status, scale * math.sqrt(dot(off, off) / count), unknown, count, np.ones(count), float(count))


def _finish_robust(problem: Problem, end: RobustEnd, centre: float, scale: float) -> Fit:
    response = response_of(end.theta, problem.ends, centre, scale)
    last, count = end.descents[-1], problem.x.size
    covariance, information = _uncertainty(problem, end.theta, end.information, centre, response, last.stopped)
    history = tuple(math.sqrt(cost / count) for cost in end.costs)
    statistics = last.rmse, covariance, count, end.weights, end.effective, end.descents, history, information
    return Fit(response, _status(last.stopped), *statistics, end.objective)


def _uncertainty(
    problem: Problem, theta: Theta, inverse: Float64Array | None, centre: float, response: Response, stopped: StopReason
) -> tuple[Float64Array, Float64Array | None]:
    """The covariance of the paper's parameters and the inverse covariance of the centred ones.

    `inverse` is the inverse covariance of theta. The parameters about any centre are those of a curve whose x is
    shifted: for the paper's, the centre is the scale itself.
    """
    if stopped is StopReason.UNBOUNDED_EXPONENT:
        return np.full((3, 3), np.inf), None
    unknown = np.full((3, 3), np.nan)
    if inverse is None or not np.isfinite(inverse).all():
        return unknown, None
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            root = np.sqrt(inverse.diagonal())
            # Inverted with a unit diagonal, because the curvature in the exponent is smaller by orders of magnitude.
            covariance = np.linalg.inv(inverse / np.outer(root, root)) / np.outer(root, root)
            unknown[0, 0] = covariance[0, 0]
            _, slopes = to_centred(theta, _shifted(problem, math.log(centre) - math.log(response.scale)))
            paper = slopes @ covariance @ slopes.T
            _, slopes = to_centred(theta, _shifted(problem, math.log(centre) - math.log(response.centred.centre)))
            back = np.linalg.inv(slopes)
            information = back.T @ inverse @ back
    except (np.linalg.LinAlgError, OverflowError, ZeroDivisionError, ValueError):
        return unknown, None
    return paper, information if np.isfinite(information).all() else None


def _shifted(problem: Problem, shift: float) -> tuple[float, float]:
    return problem.ends[0] + shift, problem.ends[1] + shift
