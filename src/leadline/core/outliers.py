"""Detection of outliers among the measurements, from the log residuals of neighbouring measurements.

Let g = log s - log t be the log residual of a measurement s, with t the prior calibrated by a robust fit. Where t is
wrong it is wrong over a whole surface, so the residuals of neighbouring measurements agree. A return from behind the
foreground, a reflection or a mismatched feature disagrees with all its neighbours. Four mechanisms use this. Each
answers a different question, and only the last one discards measurements:

====================================  ======================================================================
``FitOptions.loss``                   How much may a large residual influence the fit? (`fit.robust`)
``FitOptions.screen_outliers``        Which pairs are excluded from the fit? `find_disagreeing`, a cheap test; the
                                      reconstruction still uses them.
adaptive system                       How closely does the solution follow a measurement? (`adaptive`)
``CompletionOptions.outliers``        Which measurements are discarded? ``single``: `find_isolated`, the thorough test.
                                      ``regions``: `regions.find_regions`, for those that are wrong together.
====================================  ======================================================================

**The thorough test.** A measurement is an outlier if both of the following hold.

1. It deviates: |g - m| > T sqrt(spread^2 + typical^2 + sigma^2), where m is the median of its nearest neighbours'
   residuals, *spread* is 1.48 times their median absolute deviation, *typical* is the same statistic of g - m over the
   image, and sigma is the measurement's own standard deviation if it is known. Residuals scatter beside a depth edge
   that the prior blurs, and the threshold grows with them.
2. It is isolated: fewer than `MIN_SUPPORT` of the neighbours lie within two typical deviations of g. Measurements just
   behind a depth edge deviate, but they support each other.

The test is repeated with fewer and closer neighbours, each time among the measurements that passed the last pass,
because at first up to half of the neighbours may be outliers themselves. A blurred prior leaves residuals with a slope,
and errors smaller than the slope between neighbours are hidden by it. In the last passes m is therefore the value of a
plane that is fitted to the neighbours' residuals by iteratively reweighted least squares (Geman-McClure weights), and
*spread* comes from the deviations from that plane. A whole region of wrong measurements, such as a table seen through a
glass, agrees with itself and is not detected; `regions.find_regions` looks for these.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, Float64Array, FloatArray, IndexArray
from leadline.base.jit import called_by_kernels, parallel_loop
from leadline.core.neighbours import Neighbours, nearest_others
from leadline.core.options import FitOptions

ROBUST_FIT = FitOptions.paper(residual="log", loss="cauchy", tolerance=1e-6)
"""The fit whose residuals the tests use: outliers have little influence on it."""

SCREENING_PASSES = 2
SCREENING_THRESHOLD = 24.0
"""A pair is excluded from the fit beyond this multiple of the median deviation. It is large because a few unusual
measurements may be the only ones at one end of the depth range."""

MEDIAN_PASSES = (24, 12, 8)
"""Neighbours in each pass that compares with the median. With 30 % of outliers the median of 24 neighbours is not
affected in 98 % of neighbourhoods."""
PLANE_PASSES = (12, 12)
"""Neighbours in each of the last passes, which compare with a plane."""
MEDIAN_THRESHOLD = 4.0
"""Standard deviations from the median beyond which a measurement deviates: one in 16,000 of normal ones."""
PLANE_THRESHOLD = 5.0
"""The same for the plane, which fits its few neighbours closely, so that all others deviate more from it."""
MIN_SUPPORT = 0.2
"""Share of the neighbours that must agree with a measurement for it to be kept: twice the share that 10 % of coherent
outliers could reach."""
MAX_PRIOR_ERROR = 0.08
"""A prior with a larger error on an image, in log depth, judges no region of measurements. On real scenes, with exact
measurements, the error of a small network is 0.12 to 1.5 (once 0.05), that of a prior nine tenths of the way to the
ground truth 0.01 to 0.08."""
MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal variable in units of its median absolute deviation."""
_MIN_FOR_PLANE = 6  # neighbours; twice the number of the plane's parameters
_PLANE_ITERATIONS = 6
_SLOPE_PENALTY = 0.05  # relative to the neighbours' weight; keeps a slope determined if they lie in one line
_ROUNDING = 1e-6  # log depth: the resolution of float32


class RegionReason(Enum):
    """Why the measurements of a region were left out; the value says it to a person."""

    PRIOR_CONTINUES = "they jump back where no edge of the prior explains it"
    FAR_BEHIND = "they lie farther behind the prior than its errors on this image can explain"


@dataclass(frozen=True)
class Region:
    """A connected region whose measurements were left out together."""

    count: int  # measurements
    deviation: float  # mean of their deviations in log depth
    rows: tuple[int, int]  # the first and the last that it reaches
    columns: tuple[int, int]
    reason: RegionReason

    def describe(self) -> str:
        place = "rows {}-{}, columns {}-{}".format(*self.rows, *self.columns)
        return f"{self.count} measurements, on average {100 * np.expm1(self.deviation):.3g} % too far, in {place}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "reason": self.reason.name.lower()}


@dataclass(frozen=True, eq=False)
class Outliers:
    """The measurements that were left out: (k,) arrays, and the regions if there are any."""

    where: IndexArray  # flat indices of their pixels
    deviation: Float64Array  # from what was expected, in log depth; positive if it is too far away
    threshold: Float64Array  # the deviation up to which it would have been kept; -inf for the rest of a surface
    region: NDArray[np.int32]  # 1 for those of the first of the regions, and so on; 0 for single ones
    regions: tuple[Region, ...] = ()
    prior_error: float | None = None  # log depth; of the prior on this image, where regions were looked for

    @classmethod
    def none(cls, prior_error: float | None = None) -> Outliers:
        """No outlier."""
        nothing = np.empty(0)
        return cls(np.empty(0, np.int64), nothing, nothing, np.empty(0, np.int32), prior_error=prior_error)

    def describe_regions(self) -> list[str]:
        """A line for each region, or one that says why there is none; empty if regions were not looked for."""
        if self.prior_error is None:
            return []
        if self.regions:
            return [f"region {region.describe()}, left out: {region.reason.value}" for region in self.regions]
        error = f"the prior's own error is {100 * self.prior_error:.3g} %"
        if self.prior_error > MAX_PRIOR_ERROR:
            return [f"region none left out: {error}, above {100 * MAX_PRIOR_ERROR:.3g} % it cannot judge measurements"]
        return [f"region none found; {error}"]

    def to_dict(self) -> dict[str, Any]:
        """Counts, the pixels of single outliers, and the regions, whose pixels are too many for JSON."""
        single = self.where[self.region == 0]
        values: dict[str, Any] = {"count": int(self.where.size), "where": single.tolist()}
        if self.prior_error is not None:
            values |= {"prior_error": self.prior_error, "regions": [region.to_dict() for region in self.regions]}
        return values


def find_disagreeing(residuals: Float64Array, neighbours: Neighbours) -> BoolArray:
    """Which residuals are far from the median of their neighbours', unless these differ themselves or are far away.

    In the second pass only neighbours that passed the first one count, because outliers hide each other.
    """
    agreeing = np.ones(residuals.size, np.bool_)
    for _ in range(SCREENING_PASSES):
        distance, spread = neighbours.compare(residuals, agreeing)
        agreeing = distance <= SCREENING_THRESHOLD * np.median(distance) * neighbours.isolation + 2.0 * spread
    return ~agreeing


def find_isolated(
    residuals: FloatArray, where: IndexArray, shape: tuple[int, int], sigma: Float64Array | None = None
) -> Outliers:
    """The measurements that deviate from their neighbours and are isolated; see the module's description.

    With fewer than three times as many measurements as the smallest neighbourhood has, none is an outlier. `residuals`
    are log(s / t) with t from a robust fit, and `sigma`, by default 0, their standard deviations.

    >>> where = np.arange(0, 6400, 64)
    >>> residuals = np.where(np.arange(100) == 40, 0.5, 0.01 * np.sin(np.arange(100)))
    >>> outliers = find_isolated(residuals, where, (80, 80))
    >>> outliers.where // 64, outliers.deviation.round(1)
    (array([40]), array([0.5]))
    """
    g = np.asarray(residuals, np.float64)
    keep = np.ones(g.size, np.bool_)
    deviation, threshold = np.zeros(g.size), np.full(g.size, np.inf)
    if g.size >= 3 * MEDIAN_PASSES[-1]:
        nearest = nearest_others(where, shape, MEDIAN_PASSES[0])
        own = np.zeros(g.size) if sigma is None else sigma
        centre, spread, support = np.empty(g.size), np.empty(g.size), np.empty(g.size)
        rows, columns = (axis.astype(np.float64) for axis in np.divmod(where, shape[1]))
        passes = [(count, MEDIAN_THRESHOLD, False) for count in MEDIAN_PASSES]
        passes += [(count, PLANE_THRESHOLD, True) for count in PLANE_PASSES]
        for count, factor, with_plane in passes:
            _medians[g.size](nearest, g, keep, count, centre, spread)
            if with_plane:
                _planes[g.size](nearest, rows, columns, g, keep, count, centre, spread)
            deviation = g - centre
            typical = max(MAD_TO_SIGMA * float(np.median(np.abs(deviation[keep]))), _ROUNDING)
            threshold = factor * np.sqrt((MAD_TO_SIGMA * spread) ** 2 + typical**2 + own**2)
            _supports[g.size](nearest, g, keep, count, 2.0 * typical, support)
            keep = (np.abs(deviation) <= threshold) | (support >= MIN_SUPPORT)
    out = ~keep
    return Outliers(where[out], deviation[out], threshold[out], np.zeros(int(out.sum()), np.int32))


@called_by_kernels()
def _kept_values(others, values, keep, count, found):  # type: ignore[no-untyped-def]
    """Write the values of the first `count` neighbours that are kept to `found`, and return their number."""
    n = 0
    for other in others:
        if keep[other] and n < count:
            found[n] = values[other]
            n += 1
    return n


@parallel_loop()
def _medians(k, nearest, values, keep, count, centre, spread):  # type: ignore[no-untyped-def]
    """Median and median absolute deviation of each measurement's neighbours; its own value and 0 if none is kept."""
    found = np.empty(nearest.shape[1])
    n = _kept_values(nearest[k], values, keep, count, found)
    centre[k] = np.median(found[:n]) if n else values[k]
    spread[k] = np.median(np.abs(found[:n] - centre[k])) if n else 0.0


@parallel_loop()
def _planes(k, nearest, rows, columns, values, keep, count, centre, spread):  # type: ignore[no-untyped-def]
    """Replace centre and spread by those of a robust plane, where there are enough neighbours for one.

    The plane is fitted by iteratively reweighted least squares that starts from the median. A small penalty on its
    slopes keeps the one across determined where all neighbours lie in one line.
    """
    found, down, across = np.empty(count), np.empty(count), np.empty(count)
    n, reach = 0, 1.0
    for other in nearest[k]:
        if keep[other] and n < count:
            found[n], down[n], across[n] = values[other], rows[other] - rows[k], columns[other] - columns[k]
            reach = max(reach, abs(down[n]), abs(across[n]))
            n += 1
    level, deviation = centre[k], spread[k]
    slope_down, slope_across = 0.0, 0.0
    for _ in range(_PLANE_ITERATIONS if n >= _MIN_FOR_PLANE else 0):
        width = 2.0 * max(MAD_TO_SIGMA * deviation, _ROUNDING)
        w0, wx, wy, wxx, wxy, wyy, wv, wxv, wyv = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for m in range(n):
            x, y = down[m] / reach, across[m] / reach
            off = (found[m] - level - slope_down * x - slope_across * y) / width
            weight = 1.0 / (1.0 + off * off) ** 2
            w0 += weight
            wx += weight * x
            wy += weight * y
            wxx += weight * x * x
            wxy += weight * x * y
            wyy += weight * y * y
            wv += weight * found[m]
            wxv += weight * x * found[m]
            wyv += weight * y * found[m]
        # With the level eliminated, two equations for the slopes about the weighted means remain.
        a = wxx - wx * wx / w0 + _SLOPE_PENALTY * w0
        b = wxy - wx * wy / w0
        c = wyy - wy * wy / w0 + _SLOPE_PENALTY * w0
        p, q = wxv - wx * wv / w0, wyv - wy * wv / w0
        determinant = a * c - b * b
        slope_down, slope_across = (c * p - b * q) / determinant, (a * q - b * p) / determinant
        level = (wv - slope_down * wx - slope_across * wy) / w0
        off_plane = np.empty(n)
        for m in range(n):
            plane = level + slope_down * down[m] / reach + slope_across * across[m] / reach
            off_plane[m] = abs(found[m] - plane)
        deviation = np.median(off_plane)
    centre[k], spread[k] = level, deviation


@parallel_loop()
def _supports(k, nearest, values, keep, count, reach, support):  # type: ignore[no-untyped-def]
    """Share of a measurement's neighbours within `reach` of its value; 1 if no neighbour is kept."""
    found = np.empty(nearest.shape[1])
    n = _kept_values(nearest[k], values, keep, count, found)
    near = 0
    for m in range(n):
        near += abs(found[m] - values[k]) <= reach
    support[k] = near / n if n else 1.0
