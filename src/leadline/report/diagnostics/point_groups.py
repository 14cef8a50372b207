"""The point groups of Figure 1: bands of pixels that follow different straight lines of depth over the prior.

This is a diagnostic; the method does not use it.

1. Three groups start as ranks of the true depth: percentiles 0-1, 1-50 and 50-100.
2. RANSAC fits a line to each group, with a vertical threshold of 0.01 m.
3. The first two groups grow along their lines, over their depth range and 0.10 m beyond either end. In each slice of
   the prior a group extends from its line in both directions, in steps of 0.01 m, as long as the steps are dense. All
   other points belong to the third group.

The paper states what grows, by how much, and that residual density decides, but not the rule. Here a step is dense if
it has at least three points and a quarter of those of the densest step at the line. The paper moved one patch by
hand; here none is moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import linregress

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError

Vector = NDArray[np.float64]

RANKS = (0.0, 1.0, 50.0, 100.0)  # percentiles of the true depth between the first groups
THRESHOLD = 0.01  # m of depth: RANSAC inliers, and the step by which groups grow
MARGIN = 0.10  # m beyond either end of a group's depth range
SLICES = 100  # equal parts of the prior's range
DENSE, FEWEST = 0.25, 3  # points of a dense step: share of those of the densest step, and least number
TRIALS, CANDIDATES = 400, 4000  # lines that RANSAC tries, and points that it counts inliers among
SEED = 0


@dataclass(frozen=True)
class Line:
    """The line depth = slope * prior + intercept, with depth in metres."""

    slope: float
    intercept: float
    inliers: int

    def __call__(self, prior: FloatArray) -> Vector:
        return np.asarray(self.slope * np.asarray(prior, np.float64) + self.intercept)


@dataclass(frozen=True, eq=False)
class PointGroups:
    """The group of each pair, and the lines that the groups were grown along."""

    labels: NDArray[np.int8]  # (n,): 0 for the near group, 1 for the middle group, 2 for all others
    lines: tuple[Line, ...]
    ranges: tuple[tuple[float, float], ...]  # true depth of the groups before they grew, in metres

    def to_dict(self) -> dict[str, Any]:
        """Sizes, lines and ranges, ready for JSON."""
        return {
            "sizes": np.bincount(self.labels, minlength=len(self.lines)).tolist(),
            "lines": [vars(line) for line in self.lines],
            "ranges": [list(ends) for ends in self.ranges],
        }


def ransac_line(x: FloatArray, y: FloatArray) -> Line:
    """The line through (n,) points with the most points within 0.01 m of it, by RANSAC; then least squares over these.

    Examples
    --------
    >>> x = np.arange(10.0)
    >>> line = ransac_line(x, np.where(x == 4, 100.0, 2 * x + 1))
    >>> round(line.slope, 6), round(line.intercept, 6), line.inliers
    (2.0, 1.0, 9)
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.size < 2 or np.ptp(x) == 0:
        raise InputError("a line needs at least two different prior values; a group of points has fewer.")
    rng = np.random.default_rng(SEED)
    few = np.arange(x.size) if x.size <= CANDIDATES else rng.choice(x.size, CANDIDATES, replace=False)
    first, second = rng.integers(0, few.size, (2, TRIALS))
    first, second = few[first], few[second]
    apart = x[first] != x[second]
    first, second = (first[apart], second[apart]) if apart.any() else (np.array([x.argmin()]), np.array([x.argmax()]))
    slopes = (y[second] - y[first]) / (x[second] - x[first])
    misses = np.abs(y[few] - y[first, np.newaxis] - slopes[:, np.newaxis] * (x[few] - x[first, np.newaxis]))
    best = int((misses <= THRESHOLD).sum(axis=1).argmax())
    inliers = np.abs(y - y[first[best]] - slopes[best] * (x - x[first[best]])) <= THRESHOLD
    slope, intercept = float(slopes[best]), float(y[first[best]] - slopes[best] * x[first[best]])
    if np.ptp(x[inliers]) > 0:
        line = linregress(x[inliers], y[inliers])
        slope, intercept = float(line.slope), float(line.intercept)
    return Line(slope, intercept, int(np.count_nonzero(inliers)))


def point_groups(prior: FloatArray, reference: FloatArray) -> PointGroups:
    """The groups of all pairs of an image: (n,) arrays of the prior in any unit and of the true depth in metres.

    Raises
    ------
    InputError
        A group has fewer than two pairs, or its prior is constant.
    """
    x, y = np.asarray(prior, np.float64), np.asarray(reference, np.float64)
    if y.size < 2:
        raise InputError(f"point groups need at least two pixels with a prior and a ground truth, got {y.size}.")
    edges = np.percentile(y, RANKS)
    seeds = np.clip(np.searchsorted(edges, y, side="right") - 1, 0, len(RANKS) - 2)
    lines = tuple(ransac_line(x[seeds == group], y[seeds == group]) for group in range(len(RANKS) - 1))
    ranges = tuple((float(low), float(high)) for low, high in pairwise(edges))
    labels = np.full(y.size, len(lines) - 1, dtype=np.int8)
    distance = np.full(y.size, np.inf)
    for group in (0, 1):
        residual = y - lines[group](x)
        members = _grow_group(x, y, residual, ranges[group])
        nearer = members & (np.abs(residual) < distance)  # where groups overlap, the nearer line decides
        labels[nearer], distance[nearer] = group, np.abs(residual[nearer])
    return PointGroups(labels, lines, ranges)


def _grow_group(prior: Vector, depth: Vector, residual: Vector, ends: tuple[float, float]) -> NDArray[np.bool_]:
    """Which points lie in the dense band around a line, computed in each slice of the prior."""
    inside = np.zeros(depth.size, dtype=bool)
    near = np.flatnonzero((depth >= ends[0] - MARGIN) & (depth <= ends[1] + MARGIN))
    low, high = float(prior.min()), float(prior.max())
    slices = np.minimum((prior[near] - low) * (SLICES / (high - low)), SLICES - 1).astype(np.int64)
    for part in range(SLICES):
        members = near[slices == part]
        steps = np.rint(residual[members] / THRESHOLD).astype(np.int64)
        reach = int(np.abs(steps).max(initial=0)) + 1
        counts = np.bincount(steps + reach, minlength=2 * reach + 1)
        peak = counts[reach - 1 : reach + 2].max()
        if peak < FEWEST:
            continue  # the line passes through no points of this slice
        dense = counts >= max(FEWEST, DENSE * peak)
        dense[reach] = True
        up = np.logical_and.accumulate(dense[reach:])
        down = np.logical_and.accumulate(dense[reach::-1])
        band = np.concatenate((down[:0:-1], up))
        inside[members] = band[steps + reach]
    return inside
