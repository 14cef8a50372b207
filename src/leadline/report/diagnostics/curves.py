"""Curves of the diagnostics: percentiles of errors, the gain of a response, and the profile of the fit.

The profile is the error of the best response at each exponent, and shows how well the measurements determine the
exponent. At a fixed exponent the gain and the offset are fitted to residuals in metres, the paper's objective
(eq:estimator).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param
from leadline.bench.metrics import DepthScores, depth_scores
from leadline.core.fit.curve import from_centred, response_of
from leadline.core.fit.descent import Problem, fixed_coordinate, levenberg_marquardt
from leadline.core.fit.response import Response, forward

Vector = NDArray[np.float64]

GROUPS = 16  # groups of equal size along an axis
SMALLEST_GROUP = 30  # pixels: percentiles 16 and 84 of fewer are mostly noise
FIXED_EXPONENTS = {"disparity": -1.0, "log depth": 0.0, "depth": 1.0}
"""The fixed coordinates and their exponents."""
REACH = 4.0  # exponents from -4 to 4, or to 2 beyond the estimated one
POINTS = 65
MOST_PAIRS = 20_000  # most pairs that are used, evenly spaced, since a fit is computed for each exponent
_STEPS, _TOLERANCE = 60, 1e-10


class _Curve:
    """A curve whose attributes are arrays."""

    def to_dict(self) -> dict[str, Any]:
        """The arrays as lists."""
        return {name: values.tolist() for name, values in vars(self).items()}


@dataclass(frozen=True, eq=False)
class BinnedPercentiles(_Curve):
    """Percentiles of a quantity in groups along an axis; all arrays are (n,), one entry per group."""

    at: Vector  # median of the axis's values in each group, increasing
    low: Vector  # percentile 16 of the quantity
    median: Vector
    high: Vector  # percentile 84
    counts: NDArray[np.int64]  # members of each group


@dataclass(frozen=True, eq=False)
class GainCurve(_Curve):
    """The slope of a response along depth (eq:gain); all arrays are (n,).

    The prior's own unit is arbitrary, so the prior H is scaled such that its geometric mean over the pairs equals that
    of the measurements.
    """

    depth: Vector  # metric depth S in metres, increasing
    slope: Vector  # dS/dH
    log_slope: Vector  # d log S / d log H


def binned_percentiles(along: FloatArray, values: FloatArray) -> BinnedPercentiles:
    """Percentiles of `values` in up to 16 groups of neighbouring `along`, each group of about the same size.

    Both are (n,) arrays, of which pairs that are not finite are ignored. Groups with fewer than 30 members are omitted,
    and equal values of `along` always belong to one group, so there may be fewer than 16.
    """
    x, y = np.asarray(along, np.float64), np.asarray(values, np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    rows = []
    if x.size:
        edges = np.unique(np.quantile(x, np.linspace(0, 1, max(1, min(GROUPS, x.size // SMALLEST_GROUP)) + 1)))
        group = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, edges.size - 2))
        for g in range(max(1, edges.size - 1)):
            members = group == g
            if members.sum() >= SMALLEST_GROUP:
                rows.append((np.median(x[members]), *np.percentile(y[members], (16, 50, 84)), members.sum()))
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 5).T
    return BinnedPercentiles(table[0], table[1], table[2], table[3], table[4].astype(np.int64))


def distance_to_measurement(measured: BoolArray) -> NDArray[np.float64]:
    """Distance in pixels from every pixel to the nearest measured one, (H, W); inf if there is no measurement."""
    if not measured.any():  # the transform would measure distances to a pixel outside the image
        return np.full(measured.shape, np.inf)
    return np.asarray(distance_transform_edt(~measured), np.float64)


def gain_curve(response: Response, prior: FloatArray, *, points: int = 200) -> GainCurve:
    """The slope of a response along depth, over the range of the prior.

    `prior` is the relative depth at the n measurements, (n,), positive and finite; its geometric mean sets the unit of
    the slope.

    Examples
    --------
    >>> curve = gain_curve(Response(exponent=1.0, gain=3.0, offset=2.0, scale=6.0), np.array([1.0, 4.0]))
    >>> curve.slope[[0, -1]].round(6).tolist()  # S = 3 H; geometric means 2 and 6 m
    [1.0, 1.0]
    """
    h = np.asarray(prior, np.float64)
    centre = math.exp(float(np.log(h).mean()))
    grid = np.geomspace(h.min(), h.max(), points)
    depth, log_slope = np.asarray(response(grid), np.float64), response.log_slope(grid)
    known = np.isfinite(depth) & (depth > 0)
    slope = log_slope[known] * depth[known] / grid[known] * centre / response.scale
    return GainCurve(depth[known], slope, log_slope[known])


@dataclass(frozen=True, eq=False)
class ExponentProfile:
    """Errors along the exponent, with gain and offset fitted at each; all arrays are (n,)."""

    exponents: Vector  # increasing; `chosen` and those of `FIXED_EXPONENTS` are among them
    rmse: Vector  # metres at the measurements, which the fit minimises; NaN where no response exists
    held_out: Vector  # mean absolute error in metres at held-out pixels, which the fit does not use; NaN without any
    chosen: float  # the exponent that was estimated

    def at(self, exponent: float) -> tuple[float, float]:
        """RMSE and held-out error at one of the exponents."""
        place = int(np.argmin(np.abs(self.exponents - exponent)))
        return float(self.rmse[place]), float(self.held_out[place])

    def to_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        fixed = {}
        for name, exponent in FIXED_EXPONENTS.items():
            rmse, held_out = self.at(exponent)
            fixed[name] = {"exponent": exponent, "rmse": rmse, "held_out_mae": held_out}
        return {
            "chosen": self.chosen,
            "exponents": self.exponents.tolist(),
            "rmse": self.rmse.tolist(),
            "held_out_mae": self.held_out.tolist(),
            "fixed_coordinates": fixed,
        }


def fit_at_exponent(
    exponent: float, prior: FloatArray, measured: FloatArray, prior_range: tuple[float, float] | None = None
) -> Response:
    """The response of this exponent with the least squared error in metres at the pairs.

    The response is defined over all of `prior_range`. If least squares in the coordinate itself is not, the descent
    starts from the prior times a constant, which a response of every exponent can express.
    `prior` and `measured` are the relative prior depth and the metric depth (m) of n pairs, positive and finite;
    `prior_range` is by default that of the pairs. An `InputError` says if it is too wide for the exponent, or if the
    prior is the same at all pairs.
    """
    h, s = np.asarray(prior, np.float64), np.asarray(measured, np.float64)
    if not h.size:
        raise InputError(f"{param('prior')} and {param('measured')} must have at least one pair, got none.")
    if not np.ptp(h):
        raise InputError("the prior is the same at all measurements, so that they determine no response but a scale.")
    low, high = prior_range or (float(h.min()), float(h.max()))
    x, y = np.log(h), np.log(s)
    centre, scale = math.exp(float(x.mean())), math.exp(float(y.mean()))
    x, y = x - math.log(centre), y - math.log(scale)
    domain = (math.log(low) - math.log(centre), math.log(high) - math.log(centre))
    problem = Problem(x, s / scale, domain)
    line = fixed_coordinate(x, y, exponent, domain)
    if line is None:
        # Gain 1 and the offset of the best constant factor: t = k h, which every exponent and prior admits.
        factor = math.log(float((s * h).sum() / (h * h).sum()) * centre / scale)
        line = np.array([exponent, exponent * factor, float(forward(math.exp(factor), exponent, 1.0))])
    theta = from_centred(line, problem.ends)
    if not math.isfinite(problem(theta)[0]):
        raise InputError(f"the prior spans too wide a range for the exponent {exponent:g}.")
    theta = levenberg_marquardt(problem, theta, _STEPS, _TOLERANCE, fixed_exponent=True)[0]
    return response_of(theta, problem.ends, centre, scale)


def exponent_profile(
    prior: FloatArray,
    measured: FloatArray,
    chosen: float,
    *,
    prior_range: tuple[float, float] | None = None,
    held_out: Sequence[FloatArray] = (),
) -> ExponentProfile:
    """The profile of the fit over exponents from -4 to 4, or to 2 beyond `chosen`, the estimated one.

    `prior`, `measured` and `prior_range` are those of `fit_at_exponent`; `held_out` has the relative prior depth and
    the true depth (m) at pixels that are scored.
    """
    prior_range = prior_range or (float(np.min(prior)), float(np.max(prior)))
    subset = even_subset(len(prior), MOST_PAIRS)
    h, s = np.asarray(prior, np.float64)[subset], np.asarray(measured, np.float64)[subset]
    exponents = np.linspace(min(-REACH, chosen - 2), max(REACH, chosen + 2), POINTS)
    grid = np.unique([*exponents, chosen, *FIXED_EXPONENTS.values()])
    rmse, mae = np.full(grid.size, np.nan), np.full(grid.size, np.nan)
    for place, exponent in enumerate(grid):
        try:
            response = fit_at_exponent(float(exponent), h, s, prior_range)
        except InputError:  # the prior's range is too wide for this exponent, which leaves a gap in the profile
            continue
        rmse[place] = _scores(response, h, s).rmse
        if held_out and held_out[0].size:
            mae[place] = _scores(response, *held_out).mae
    return ExponentProfile(grid, rmse, mae, chosen)


def even_subset(count: int, most: int) -> NDArray[np.intp]:
    """At most `most` indices, evenly spread over `count`.

    Examples
    --------
    >>> even_subset(5, 3).tolist(), even_subset(2, 3).tolist()
    ([0, 2, 4], [0, 1])
    """
    return np.linspace(0, count - 1, most).astype(np.intp) if count > most else np.arange(count)


def _scores(response: Response, prior: FloatArray, depth: FloatArray) -> DepthScores:
    """The benchmark's depth scores of a response at n pairs, taken as an image of one row."""
    predicted = np.atleast_2d(np.asarray(response(prior), np.float64))
    return depth_scores(predicted, np.atleast_2d(np.asarray(depth, np.float64)), np.ones(predicted.shape, dtype=bool))
