"""Curves along depth or distance: percentiles of errors in groups of pixels, and the gain of a response."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param
from leadline.core.fit.response import Response

Vector = NDArray[np.float64]

GROUPS = 16  # groups of equal size along an axis
SMALLEST_GROUP = 30  # pixels: percentiles 16 and 84 of fewer are mostly noise


@dataclass(frozen=True, eq=False)
class BinnedPercentiles:
    """Percentiles of a quantity in groups along another: per group the median of both, and percentiles 16 and 84.

    Attributes
    ----------
    at : (n,) float64
        Median of the axis's values in each group, increasing.
    low, median, high : (n,) float64
        Percentiles 16, 50 and 84 of the quantity.
    counts : (n,) int64
        Members of each group.
    """

    at: Vector
    low: Vector
    median: Vector
    high: Vector
    counts: NDArray[np.int64]

    def to_dict(self) -> dict[str, Any]:
        """The arrays as lists."""
        return {name: values.tolist() for name, values in asdict(self).items()}


@dataclass(frozen=True, eq=False)
class GainCurve:
    """The slope of a response along depth (eq:gain).

    Attributes
    ----------
    depth : (n,) float64, metres
        Metric depth S, increasing.
    slope : (n,) float64
        dS/dH. The prior's own unit is arbitrary, so H is scaled such that its geometric mean over the pairs equals that
        of the measurements.
    log_slope : (n,) float64
        d log S / d log H.
    """

    depth: Vector
    slope: Vector
    log_slope: Vector

    def to_dict(self) -> dict[str, Any]:
        """The arrays as lists."""
        return {name: values.tolist() for name, values in asdict(self).items()}


def binned_percentiles(along: FloatArray, values: FloatArray, *, groups: int = GROUPS) -> BinnedPercentiles:
    """Percentiles of `values` in groups of neighbouring `along`, each group of about the same size.

    Groups with fewer than 30 members are omitted, and equal values of `along` always belong to one group, so the result
    may have fewer than `groups` entries.

    Parameters
    ----------
    along, values : (n,) arrays
        Pairs in which either is not finite are ignored.
    groups : int
        Largest number of groups.

    Examples
    --------
    >>> binned_percentiles(np.repeat([1.0, 2.0], 50), np.repeat([0.1, 0.3], 50), groups=2).median
    array([0.1, 0.3])
    """
    x, y = np.asarray(along, np.float64), np.asarray(values, np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    rows = []
    if x.size:
        edges = np.unique(np.quantile(x, np.linspace(0, 1, max(1, min(groups, x.size // SMALLEST_GROUP)) + 1)))
        group = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, edges.size - 2))
        for g in range(max(1, edges.size - 1)):
            members = group == g
            size = int(np.count_nonzero(members))
            if size >= SMALLEST_GROUP:
                rows.append((np.median(x[members]), *np.percentile(y[members], (16, 50, 84)), size))
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 5).T
    return BinnedPercentiles(table[0], table[1], table[2], table[3], table[4].astype(np.int64))


def distance_to_measurement(measured: BoolArray) -> NDArray[np.float64]:
    """Distance in pixels from every pixel to the nearest measured one, (H, W); inf if there is no measurement.

    Examples
    --------
    >>> distance_to_measurement(np.array([[True, False, False]]))
    array([[0., 1., 2.]])
    """
    if not measured.any():  # the transform would measure distances to a pixel outside the image
        return np.full(measured.shape, np.inf)
    return np.asarray(distance_transform_edt(~measured), np.float64)


def gain_curve(response: Response, prior: FloatArray, *, points: int = 200) -> GainCurve:
    """The slope of a response along depth, over the range of the prior.

    Parameters
    ----------
    response : Response
    prior : (n,) array
        The prior at the measurements, positive and finite. The curve covers its range, and its geometric mean sets the
        unit of the slope.
    points : int
        Number of points of the curve.

    Raises
    ------
    InputError
        `prior` is empty.

    Examples
    --------
    >>> curve = gain_curve(Response(exponent=1.0, gain=3.0, offset=2.0, scale=6.0), np.array([1.0, 4.0]))
    >>> curve.slope[[0, -1]].round(6).tolist()  # S = 3 H; geometric means 2 and 6 m
    [1.0, 1.0]
    """
    h = np.asarray(prior, np.float64)
    if not h.size:
        raise InputError(f"{param('prior')} must have at least one value, got none: no measurement has a prior.")
    centre = math.exp(float(np.log(h).mean()))
    grid = np.geomspace(h.min(), h.max(), points)
    depth, log_slope = np.asarray(response(grid), np.float64), response.log_slope(grid)
    known = np.isfinite(depth) & (depth > 0)
    slope = log_slope[known] * depth[known] / grid[known] * centre / response.scale
    return GainCurve(depth[known], slope, log_slope[known])
