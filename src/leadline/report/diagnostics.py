"""How predicted depth relates to the reference: the paper's linearity diagnostics (Appendix A), as numbers.

At most 6,000 held-out pixels are drawn with seed 0. Those inside a depth window, the same for every prediction that is
compared, fall into bins of 0.05 m of *predicted* depth. Where a bin holds 30 or more, its median is a point of the
local-median path and its own spread (median and MAD) decides which of its pixels are displayed; where it does not, the
path has a gap. Pearson's r is that of the displayed pixels. The trend error is the mean distance of the path from
metric identity, each bin counting the same. MAE is over all held-out pixels: the three have different supports.

The paper leaves open how far from a bin's median a displayed pixel may lie, what the window is, and where in its bin
the path is: here 3 robust standard deviations, percentiles 1 to 99 of the held-out reference, and the bin's median of
predicted depth, so that a perfect prediction has a trend error of exactly zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map, as_mask
from leadline.base.errors import InputError
from leadline.bench.metrics import depth_scores
from leadline.core.fit.response import Response

Vector = NDArray[np.float64]
Window = tuple[float, float]  # m

SAMPLES, SEED = 6000, 0
BIN = 0.05  # m of predicted depth
SUPPORT = 30  # samples that a bin needs
SPREADS = 3.0  # robust standard deviations that a displayed point may lie from its bin's median
NORMAL = 1.4826  # of a normal distribution: standard deviation over MAD
WINDOW = (1.0, 99.0)  # percentiles of the held-out reference
GROUPS = 16  # of equal size, for what is shown along depth or distance


@dataclass(frozen=True, eq=False)
class Relation:
    """Predicted against reference depth at the held-out pixels of one image.

    Attributes
    ----------
    predicted, reference : (n,) float64, metres
        The displayed pixels.
    path_predicted, path_reference : (m,) float64, metres
        The local-median path, bin by bin from the nearest supported one to the farthest; NaN in its gaps.
    window : (lowest, highest), metres
    pearson : float
        Of the displayed pixels; NaN if there are fewer than two or either is constant.
    trend_cm : float
        Mean distance of the path from identity, in centimetres; NaN without a supported bin.
    mae : float
        Metres, over all held-out pixels.
    sampled, bins : int
        Pixels drawn that have a prediction, and supported bins.
    """

    predicted: Vector
    reference: Vector
    path_predicted: Vector
    path_reference: Vector
    window: Window
    pearson: float
    trend_cm: float
    mae: float
    sampled: int
    bins: int

    @property
    def sparse(self) -> bool:
        """Whether less than half of the pixels could be displayed, so that trend and r speak for few of them."""
        return 2 * self.predicted.size < self.sampled

    def to_dict(self) -> dict[str, Any]:
        """The numbers, without the displayed pixels."""
        return {
            "pearson": self.pearson,
            "trend_cm": self.trend_cm,
            "mae": self.mae,
            "sampled": self.sampled,
            "displayed": int(self.predicted.size),
            "bins": self.bins,
            "window": list(self.window),
            "path": {"predicted": self.path_predicted.tolist(), "reference": self.path_reference.tolist()},
        }


@dataclass(frozen=True, eq=False)
class Band:
    """How a quantity is distributed along another: per group the median of both, and percentiles 16 and 84."""

    at: Vector
    low: Vector
    median: Vector
    high: Vector
    counts: NDArray[np.int64]

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("at", "low", "median", "high", "counts")}


@dataclass(frozen=True, eq=False)
class GainCurve:
    """The slope that a response gives to depth, along depth (eq:gain).

    Attributes
    ----------
    depth : (n,) float64, metres
        Metric depth S, increasing.
    slope : (n,) float64
        dS/dH with the prior H in units in which its geometric mean over the pairs is that of the measurements: its own
        units mean nothing.
    log_slope : (n,) float64
        d log S / d log H.
    """

    depth: Vector
    slope: Vector
    log_slope: Vector

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("depth", "slope", "log_slope")}


def held_out_sample(reference: FloatArray, scored: BoolArray, *, size: int = SAMPLES) -> NDArray[np.intp]:
    """At most `size` flat indices, in order, of the pixels of `scored` that have a reference; drawn with seed 0.

    They do not depend on any prediction, so that all of them are compared at the same pixels.

    Examples
    --------
    >>> held_out_sample(np.array([[1.0, np.nan, 2.0]]), np.array([[True, True, True]]))
    array([0, 2])
    """
    reference = as_map(reference, "reference")
    places = np.flatnonzero(as_mask(scored, "scored", reference.shape) & np.isfinite(reference) & (reference > 0))
    if places.size > size:
        places = np.sort(np.random.default_rng(SEED).choice(places, size, replace=False))
    return places


def window_of(reference: FloatArray, scored: BoolArray) -> Window:
    """The depth window to display: percentiles 1 to 99 of the held-out reference, in metres.

    Raises
    ------
    InputError
        No pixel is held out, so there is nothing to compare with.
    """
    places = held_out_sample(reference, scored, size=reference.size)
    if not places.size:
        raise InputError("there is no held-out pixel: no pixel with a reference is left unmeasured.")
    low, high = np.percentile(reference.flat[places], WINDOW)
    return float(low), float(high)


def relation(
    prediction: FloatArray,
    reference: FloatArray,
    scored: BoolArray,
    *,
    window: Window | None = None,
    bin_width: float = BIN,
) -> Relation:
    """The relation of a prediction to the reference at held-out pixels; see the module's text for each step.

    Parameters
    ----------
    prediction, reference : (H, W) arrays
        Metres; NaN, inf and values <= 0 are unknown.
    scored : (H, W) bool array
        The held-out pixels.
    window : (lowest, highest), optional
        Metres. Default: `window_of` the reference, which is the same for all predictions of an image.
    bin_width : float
        Metres; the paper's 0.05 suits rooms. Where depth spans 50 m no such bin would hold 30 of 6,000 pixels.

    Raises
    ------
    InputError
        If shapes differ, nothing is held out, or the bin width is not positive.
    """
    if not (bin_width > 0 and math.isfinite(bin_width)):
        raise InputError(f"`bin_width` must be a positive number of metres, got {bin_width!r}.")
    scores = depth_scores(prediction, reference, scored)
    low, high = window or window_of(reference, scored)
    places = held_out_sample(reference, scored)
    p, r = (np.asarray(values).flat[places].astype(np.float64) for values in (prediction, reference))
    known = np.isfinite(p) & (p > 0)
    p, r = p[known], r[known]
    inside = (p >= low) & (p <= high) & (r >= low) & (r <= high)
    p, r = p[inside], r[inside]

    cells = np.floor(p / bin_width).astype(np.int64)
    first = int(cells.min()) if cells.size else 0
    count = int(cells.max()) - first + 1 if cells.size else 0
    path_p, path_r = np.full(count, np.nan), np.full(count, np.nan)
    shown = np.zeros(p.size, dtype=bool)
    for cell in range(count):
        members = np.flatnonzero(cells == first + cell)
        if members.size < SUPPORT:
            continue
        path_p[cell], path_r[cell] = np.median(p[members]), np.median(r[members])
        off = np.abs(r[members] - path_r[cell])
        shown[members[off <= SPREADS * NORMAL * np.median(off)]] = True
    supported = np.flatnonzero(np.isfinite(path_p))
    ends = slice(supported[0], supported[-1] + 1) if supported.size else slice(0)
    path_p, path_r = path_p[ends], path_r[ends]
    trend = float(np.nanmean(np.abs(path_r - path_p))) * 100 if supported.size else math.nan
    p, r = p[shown], r[shown]
    sampled = int(np.count_nonzero(known))
    return Relation(p, r, path_p, path_r, (low, high), pearson(p, r), trend, scores.mae, sampled, supported.size)


def pearson(a: Vector, b: Vector) -> float:
    """Pearson's correlation; NaN for fewer than two values or a constant.

    Examples
    --------
    >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])), 4)
    0.982
    """
    if a.size < 2:
        return math.nan
    x, y = a - a.mean(), b - b.mean()
    size = math.sqrt(float((x * x).sum()) * float((y * y).sum()))
    return float((x * y).sum()) / size if size > 0 else math.nan


def band(along: FloatArray, values: FloatArray, *, groups: int = GROUPS) -> Band:
    """The distribution of `values` in groups of neighbouring `along`, each of about the same size.

    Groups below 30 members are left out, and equal values of `along` are never in two groups, so that there may be
    fewer than asked for.

    Parameters
    ----------
    along, values : (n,) arrays
        Pairs in which either is not finite are left out.
    """
    x, y = np.asarray(along, np.float64), np.asarray(values, np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    rows = []
    if x.size:
        edges = np.unique(np.quantile(x, np.linspace(0, 1, max(1, min(groups, x.size // SUPPORT)) + 1)))
        group = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, edges.size - 2))
        for g in range(max(1, edges.size - 1)):
            members = group == g
            size = int(np.count_nonzero(members))
            if size >= SUPPORT:
                rows.append((np.median(x[members]), *np.percentile(y[members], (16, 50, 84)), size))
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 5).T
    return Band(table[0], table[1], table[2], table[3], table[4].astype(np.int64))


def anchor_distance(measured: BoolArray, places: NDArray[np.intp]) -> Vector:
    """Distance in pixels from each of `places` (flat indices) to the nearest measured pixel; inf if there is none.

    Exact, and in a time that does not depend on the number of measurements: along each column the nearest
    measurement above and below, then the least over the columns.

    Examples
    --------
    >>> measured = np.zeros((4, 5), dtype=bool)
    >>> measured[0, 0] = True
    >>> anchor_distance(measured, np.array([0, 4, 19]))
    array([0., 4., 5.])
    """
    height, width = measured.shape
    rows = np.where(measured, np.arange(height, dtype=np.float64)[:, np.newaxis], -np.inf)
    above = np.arange(height)[:, np.newaxis] - np.maximum.accumulate(rows, axis=0)
    rows = np.where(measured, rows, np.inf)
    below = np.minimum.accumulate(rows[::-1], axis=0)[::-1] - np.arange(height)[:, np.newaxis]
    vertical = np.minimum(above, below) ** 2
    columns = np.arange(width)
    found = np.empty(places.size)
    for start in range(0, places.size, 512):  # a block at a time: places x width numbers
        block = places[start : start + 512]
        across = (block[:, np.newaxis] % width - columns) ** 2
        found[start : start + 512] = np.sqrt((across + vertical[block // width]).min(axis=1))
    return found


def gain_curve(response: Response, prior: FloatArray, *, points: int = 200) -> GainCurve:
    """The slope of a response along depth, over the range of the prior.

    Parameters
    ----------
    response : Response
    prior : (n,) array
        The prior at the measurements, positive and finite: their range is covered, and their geometric mean sets the
        unit of the slope.

    Raises
    ------
    InputError
        There is no prior value.

    Examples
    --------
    >>> curve = gain_curve(Response(exponent=1.0, gain=3.0, offset=2.0, scale=6.0), np.array([1.0, 4.0]))
    >>> curve.slope[[0, -1]].round(6).tolist()  # S = 3 H; geometric means 2 and 6 m
    [1.0, 1.0]
    """
    h = np.asarray(prior, np.float64)
    if not h.size:
        raise InputError("`prior` must have at least one value, got none: no measurement has a prior.")
    centre = math.exp(float(np.log(h).mean()))
    grid = np.geomspace(h.min(), h.max(), points)
    depth, log_slope = np.asarray(response(grid), np.float64), response.log_slope(grid)
    known = np.isfinite(depth) & (depth > 0)
    slope = log_slope[known] * depth[known] / grid[known] * centre / response.scale
    return GainCurve(depth[known], slope, log_slope[known])
