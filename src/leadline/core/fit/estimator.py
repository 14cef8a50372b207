"""Estimate the response from measured pairs: Levenberg-Marquardt on residuals in metres (eq:estimator to eq:lm).

Inside, the prior is divided by its own geometric mean over the pairs and the depth by that of the
measurements, so that neither the prior's scale nor the unit matters to the iteration. It is an exact
reparametrisation: the gain and the offset absorb it. Other losses, residuals and noise are in `robust`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError, Status
from leadline.core.fit.descent import (
    START_TOLERANCE,
    Descent,
    Problem,
    Theta,
    dot,
    fixed_coordinate,
    fixed_coordinates,
    levenberg_marquardt,
    spread_out,
)
from leadline.core.fit.response import Response, exponent_slope, forward
from leadline.core.fit.robust import Reweighted, RobustEnd, robust_descent
from leadline.core.options import FitOptions

# A prior or depth that varies by less than this (in log) is constant: its slope would be rounding error.
SPREAD = 1e-9
OUTLIER = 0.1  # a pair whose weight is below this is reported as one: beyond three times where cauchy bends


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
class Fit:
    """The estimated response and how far to trust it.

    Attributes
    ----------
    response : Response
        The map; its `exponent`, `gain`, `offset` and `scale` are the paper's parameters.
    rmse : float
        Root mean square residual at the pairs, in metres; of all pairs, outliers too.
    covariance : (3, 3) float64
        Of (exponent, log gain, offset), from the residual variance and the Jacobian; NaN where they were not
        all estimated. Least squares in metres take residuals as independent, which neighbouring pixels' are not;
        any other fit takes them as `effective` independent ones.
    count : int
        Number of pairs.
    weights : (n,) float64
        What the loss left of each pair: 1 where it was taken as it is, towards 0 for an outlier.
    effective : float
        How many independent pairs would know as much as these: `count` unless the fit looked at groups of them.
    descents : tuple of Descent
        Every start, and last the one that was carried to the tolerance on all pairs.
    history : tuple of float
        Root mean loss after each accepted step of the last descent: for least squares in metres the RMSE in metres,
        otherwise in standard deviations.
    information : (3, 3) float64 or None
        Inverse covariance of (exponent, log a, b) of ``response.centred``: what `covariance` comes from, in
        coordinates that do not cancel.
    """

    response: Response
    status: FitStatus
    rmse: float
    covariance: NDArray[np.float64]
    count: int
    weights: NDArray[np.float64]
    effective: float
    descents: tuple[Descent, ...] = ()
    history: tuple[float, ...] = ()
    information: NDArray[np.float64] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status.name.lower(),
            "advice": self.status.value,
            "response": self.response.to_dict(),
            "rmse": self.rmse,
            "covariance": self.covariance.tolist(),
            "pairs": self.count,
            "effective_pairs": self.effective,
            "outliers": int(np.count_nonzero(self.weights < OUTLIER)),
            "descents": [vars(descent) for descent in self.descents],
        }


def fit_response(
    prior: NDArray[Any],
    measured: NDArray[Any],
    prior_range: tuple[float, float] | None = None,
    options: FitOptions | None = None,
    *,
    sigma: NDArray[Any] | None = None,
    groups: NDArray[np.intp] | None = None,
    near: Response | None = None,
) -> Fit:
    """The response whose calibrated prior is nearest to the measurements: in metres, unless the options say otherwise.

    Falls back in steps when the pairs cannot carry three parameters: with two distinct pairs gain and
    offset in log depth, with one, or with equal or anti-correlated values, the scale alone. The status
    says which.

    Parameters
    ----------
    prior, measured : (n,) arrays
        Relative prior depth and metric depth (m) of the pairs, positive and finite.
    prior_range : (lowest, highest), optional
        Valid range of the dense prior; the map must be defined all over it. Default: that of the pairs.
    options : FitOptions, optional
        `vetted` asks for neighbours in the image, of which pairs alone know nothing: `complete` sees to it beforehand.
    sigma : (n,) array, optional
        Standard deviation of each measurement in metres, at least 0 and finite. What the prior adds to it is
        estimated. Default: all alike.
    groups : (n,) array of int, optional
        Pairs with the same number, from 0 on, may share their errors, e.g. those of one part of the image. It matters
        for `Fit.effective`, and through it where the exponent is shrunk. Default: errors are independent.
    near : Response, optional
        That of nearly the same pairs, such as those of the frame before: the descent starts from it and nowhere else.
        It is taken about the pairs' own means, so that neither may have changed its unit. Default: `options.starts`.

    Raises
    ------
    InputError
        If an array has the wrong shape or values.

    Examples
    --------
    >>> h = np.linspace(1.0, 3.0, 50)
    >>> fit = fit_response(h, 1 / (0.2 + 0.1 / h))  # affine in disparity
    >>> round(fit.response.exponent, 6), fit.status.name
    (-1.0, 'CONVERGED')

    Every fifth measurement wrong by a factor of three:

    >>> wrong = np.where(np.arange(50) % 5, 1.0, 3.0) / (0.2 + 0.1 / h)
    >>> fit = fit_response(h, wrong, options=FitOptions(loss="cauchy", residual="log"))
    >>> round(fit.response.exponent, 4), int((fit.weights < 0.1).sum())
    (-1.0, 10)
    """
    options = options or FitOptions()
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    if h.shape != s.shape or h.ndim != 1:
        raise InputError(f"`prior` and `measured` must be two (n,) arrays of pairs, got {h.shape} and {s.shape}.")
    if not (np.isfinite(h).all() and np.isfinite(s).all() and (h > 0).all() and (s > 0).all()):
        raise InputError("`prior` and `measured` must be positive and finite; leave other pairs out.")
    if h.size == 0:
        nothing = np.full((3, 3), np.nan)
        return Fit(Response(0.0, 1.0, 0.0, 1.0), FitStatus.NO_MEASUREMENTS, math.nan, nothing, 0, np.empty(0), 0.0)
    sigma, groups = _checked(h.size, sigma, groups)

    low, high = prior_range or (float(h.min()), float(h.max()))
    if not 0 < low <= high < math.inf:
        raise InputError(f"`prior_range` must be (lowest, highest), positive and finite, got {prior_range}.")

    x, y = np.log(h), np.log(s)
    centre, scale = math.exp(x.mean()), math.exp(y.mean())
    x -= math.log(centre)
    y -= math.log(scale)
    domain = (min(math.log(low) - math.log(centre), x.min()), max(math.log(high) - math.log(centre), x.max()))
    problem = Problem(x, s / scale, domain)

    squared = options.loss == "squared"
    if np.ptp(x) < SPREAD or np.ptp(y) < SPREAD:
        return _scale_only(problem, FitStatus.SCALE_ONLY, centre, scale, squared)
    warm = [] if near is None else _beside(near, problem)
    # Log depth maps any prior, so that it can begin where no coordinate asked for can.
    starts = warm or _starts(x, y, options.starts, domain, squared) or _starts(x, y, (0.0,), domain, squared)
    if not starts:
        return _scale_only(problem, FitStatus.ANTI_CORRELATED, centre, scale, squared)
    if _distinct_pairs(x, y) < 3:
        theta = fixed_coordinate(x, y, 0.0, domain, absolute=not squared)
        if theta is None:
            return _scale_only(problem, FitStatus.ANTI_CORRELATED, centre, scale, squared)
        return _finish(problem, theta, FitStatus.FIXED_COORDINATE, centre, scale)
    if options.least_squares and sigma is None:
        return _descend_all(problem, starts, options, centre, scale, bool(warm))
    reweighted = Reweighted.of(problem, y, None if sigma is None else sigma / scale, options)
    end = robust_descent(reweighted, starts, options, groups, scale)
    return _finish_robust(problem, end, centre, scale)


def _checked(
    count: int, sigma: NDArray[Any] | None, groups: NDArray[np.intp] | None
) -> tuple[NDArray[np.float64] | None, NDArray[np.intp] | None]:
    if sigma is not None:
        sigma = np.asarray(sigma, np.float64)
        if sigma.shape != (count,) or not (np.isfinite(sigma).all() and (sigma >= 0).all()):
            raise InputError(f"`sigma` must be {count} numbers in metres, at least 0 and finite: one a measurement.")
    if groups is not None:
        groups = np.asarray(groups)
        if groups.shape != (count,) or groups.dtype.kind not in "iu" or groups.min() < 0:
            raise InputError(f"`groups` must be {count} integers, 0 or more: the group of each pair.")
    return sigma, groups


def _starts(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    exponents: tuple[float, ...],
    domain: tuple[float, float],
    squared: bool,
) -> list[tuple[float, Theta]]:
    """The fixed coordinates to start from: of least squares, or of least absolute errors on some of the pairs."""
    chosen = None if squared else spread_out(x.size)
    if chosen is not None:
        x, y = x[chosen], y[chosen]
    return fixed_coordinates(x, y, exponents, domain, absolute=not squared)


def _beside(near: Response, problem: Problem) -> list[tuple[float, Theta]]:
    """The one start beside a known response, or none if that cannot map the whole prior."""
    _, gain, offset = near.centred  # type: ignore[misc]
    theta = np.array([near.exponent, math.log(gain), offset])
    return [] if problem.parameters(theta) is None else [(near.exponent, theta)]


def _descend_all(
    problem: Problem,
    starts: list[tuple[float, Theta]],
    options: FitOptions,
    centre: float,
    scale: float,
    warm: bool,
) -> Fit:
    tolerance = max(START_TOLERANCE, options.tolerance)
    descents: list[Descent] = []
    ends: list[tuple[float, Theta]] = []
    if not warm:  # a warm start is near enough to go on with all pairs at once
        coarse = problem.subset()
    for start, theta in [] if warm else starts:
        theta, costs, iterations, stopped = levenberg_marquardt(coarse, theta, options.max_iterations, tolerance)
        rmse = scale * math.sqrt(costs[-1] / coarse.x.size)
        descents.append(Descent(start, float(theta[0]), rmse, iterations, stopped))
        ends.append((start, theta))
    # Compared on all pairs, and with the fixed coordinates themselves: a subset can mislead, and the result is
    # never to be worse than a fixed coordinate.
    start, theta = starts[0] if warm else min(ends + starts, key=lambda candidate: problem(candidate[1])[0])
    theta, costs, iterations, stopped = levenberg_marquardt(problem, theta, options.max_iterations, options.tolerance)
    history = tuple(scale * math.sqrt(cost / problem.x.size) for cost in costs)
    descents.append(Descent(start, float(theta[0]), history[-1], iterations, stopped))
    status = FitStatus.ITERATION_LIMIT if stopped == "iteration limit" else FitStatus.CONVERGED
    return _finish(problem, theta, status, centre, scale, tuple(descents), history)


def _distinct_pairs(x: NDArray[np.float64], y: NDArray[np.float64]) -> int:
    """Number of different values of x or y, whichever has fewer, counted up to three."""
    counts = []
    for values in (x, y):
        others = values[values != values[0]]
        counts.append(1 + int(others.size > 0) + int((others != others[:1]).any()))
    return min(counts)


def _scale_only(problem: Problem, status: FitStatus, centre: float, scale: float, squared: bool) -> Fit:
    """t = k h, the k of least squares in metres, or the median of s / h: gain one in log depth."""
    if not squared:
        theta = np.array([0.0, 0.0, float(np.median(np.log(problem.depth) - problem.x))])
        return _finish(problem, theta, status, centre, scale)
    largest = float(problem.x.max())
    h = np.exp(problem.x - largest)  # at most one: neither the sum of squares nor its quotient overflows
    theta = np.array([0.0, 0.0, math.log(dot(problem.depth, h) / dot(h, h)) - largest])
    return _finish(problem, theta, status, centre, scale)


def _finish(
    problem: Problem,
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
    covariance, information = np.full((3, 3), np.nan), None
    if status in (FitStatus.CONVERGED, FitStatus.ITERATION_LIMIT) and count > 3:
        variance = cost / (count - 3)
        covariance = _paper_covariance(matrix, variance, response)
        information = matrix / variance if variance > 0 and np.isfinite(matrix).all() and variance < math.inf else None
    rmse = scale * math.sqrt(cost / count)
    return Fit(response, status, rmse, covariance, count, np.ones(count), float(count), descents, history, information)


def _finish_robust(problem: Problem, end: RobustEnd, centre: float, scale: float) -> Fit:
    exponent, log_gain, offset = map(float, end.theta)
    response = Response.about(centre, exponent, math.exp(log_gain), offset, scale)
    limit = end.descents[-1].stopped == "iteration limit"
    covariance = np.full((3, 3), np.nan)
    if end.information is not None:
        covariance = _paper_covariance(end.information, 1.0, response)
    count = problem.x.size
    return Fit(
        response,
        FitStatus.ITERATION_LIMIT if limit else FitStatus.CONVERGED,
        end.descents[-1].rmse,
        covariance,
        count,
        end.weights,
        end.effective,
        end.descents,
        tuple(math.sqrt(cost / count) for cost in end.costs),
        end.information,
    )


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
