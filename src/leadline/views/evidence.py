"""What the neighbours of a view say about its depth, as soft measurements.

Two kinds of evidence are carried into a view. *Measurements* of the neighbours are moved into the view as points. They
are first-hand: they contain no error of any completion, and nothing of the view itself. *Completed depth* of the
neighbours is moved as points as well, a coarse grid of pixels of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import BoolArray, Float64Array, FloatArray, IndexArray, is_measured
from leadline.core.noise import Noise, sigma_at
from leadline.core.uncertainty import distance_to
from leadline.geometry.cameras import CameraModel
from leadline.geometry.poses import Transform, invert_transform, transform_points

NEARER, FARTHER = 0.5, 0.25
"""Log depth by which carried evidence may be nearer or farther than the view's own depth, far from the view's own
measurements. Evidence that is farther is hidden behind a surface of the view. Evidence that is nearer contradicts the
view more seldom: a network misses small objects in front more often than it invents them."""
SPARSE = 0.04
"""Spacing of the measurements relative to the diagonal of the image beyond which the view's own depth is less certain,
and the second limit grows in proportion to the spacing, up to the first."""
AT_MEASUREMENT = 0.4
"""Share of the limits that is left at a measurement of the view. There the view knows its depth, and other evidence is
of a surface that has moved, or that is hidden. The share grows to 1 over a spacing of the measurements."""
POINT_NOISE = 0.06
"""Relative standard deviation that carrying adds to a measurement: poses, pixels and time."""
DEPTH_NOISE = 0.075
POINT_CELL = 8
GRID_PIXELS = 19200
"""Number of cells of a view in which the carried depth is combined."""
MIN_VOTES = 2
KNOWN = 0.015
"""Distance from a measurement, relative to the diagonal of the image, up to which the completed depth follows from the
measurement more than from the network: 12 pixels at 640 x 480."""
Trust = Callable[[IndexArray, IndexArray], BoolArray]
"""Whether evidence at these pixels from the neighbours with these numbers may be used, (n,)."""


@dataclass(frozen=True, eq=False)
class Points:
    """Measurements of a view as points in the world."""

    points: Float64Array  # (n, 3)
    relative: Float64Array  # (n,): standard deviation relative to the depth
    where: IndexArray  # (n,): flat indices of their pixels in the view

    def subset(self, chosen: BoolArray) -> Points:
        return Points(self.points[chosen], self.relative[chosen], self.where[chosen])


@dataclass(frozen=True, eq=False)
class DepthMap:
    """A completed depth map with its camera."""

    depth: FloatArray
    camera: CameraModel
    camera_to_world: Transform
    tolerance: Tolerance | None = None


@dataclass(frozen=True, eq=False)
class Tolerance:
    """How far evidence may deviate from the depth of a view."""

    share: FloatArray  # (H, W): of the two limits
    farther: float  # the second limit

    @classmethod
    def around(cls, sparse: FloatArray) -> Tolerance:
        """For a depth that was completed from these measurements."""
        shape, where = (sparse.shape[0], sparse.shape[1]), np.flatnonzero(is_measured(sparse))
        if not where.size:
            return cls(np.ones(shape, np.float32), NEARER)
        spacing = math.sqrt(sparse.size / where.size)
        share = np.minimum(AT_MEASUREMENT + distance_to(where, shape) / spacing, 1.0)
        return cls(share, min(FARTHER * max(1.0, spacing / (SPARSE * math.hypot(*shape))), NEARER))

    def at(self, where: IndexArray) -> tuple[FloatArray, float]:
        return self.share.flat[where], self.farther


@dataclass(frozen=True, eq=False)
class Evidence:
    """Soft measurements for a view: (n,) arrays."""

    where: IndexArray  # flat indices of pixels
    depth: Float64Array  # metres
    sigma: Float64Array  # metres

    def distance(self, depth: FloatArray) -> float:
        """Median distance of a depth map from the evidence in log depth; NaN without evidence."""
        if not self.where.size:
            return math.nan
        return float(np.median(np.abs(np.log(depth.flat[self.where] / self.depth))))


def measured_points(sparse: FloatArray, sigma: FloatArray, camera: CameraModel, camera_to_world: Transform) -> Points:
    """The measurements of a view in the world; `sigma`, (H, W), is their standard deviation in metres.

    Of dense measurements only a coarse grid is used: a view combines what it receives in cells anyway.
    """
    measured = is_measured(sparse)
    if np.count_nonzero(measured) > GRID_PIXELS:
        side = cell_side(sparse.shape)
        grid = np.zeros(sparse.shape, np.bool_)
        grid[side // 2 :: side, side // 2 :: side] = True
        measured &= grid
    points = camera.points(np.where(measured, sparse, np.nan))[measured]
    relative = (sigma[measured] / sparse[measured]).astype(np.float64)
    there = np.asarray(np.isfinite(points).all(axis=1))
    return Points(transform_points(points, camera_to_world), relative, np.flatnonzero(measured)).subset(there)


def cell_side(shape: tuple[int, ...]) -> int:
    """Side in pixels of the cells in which carried depth is combined, and distance of the pixels that are carried."""
    return max(1, round(math.sqrt(shape[0] * shape[1] / GRID_PIXELS)))


def depth_points(own: DepthMap, measured: IndexArray) -> tuple[Float64Array, BoolArray]:
    """The points of a coarse grid of pixels in the world, (n, 3), and which are close to a measurement of the view."""
    side, shape = cell_side(own.depth.shape), (own.depth.shape[0], own.depth.shape[1])
    coarse = np.s_[side // 2 :: side, side // 2 :: side]
    grid = np.full(shape, np.nan)
    grid[coarse] = own.depth[coarse]
    points = own.camera.points(grid)[coarse].reshape(-1, 3)
    known = np.zeros(len(points), np.bool_)
    if measured.size:
        known = (distance_to(measured, shape)[coarse] <= KNOWN * math.hypot(*shape)).ravel()
    there = np.isfinite(points).all(axis=1)
    return transform_points(points[there], own.camera_to_world), known[there]


def carry(own: DepthMap, points: Float64Array) -> tuple[IndexArray, Float64Array, IndexArray]:
    """Pixel, log of depth relative to the view's own depth, and index of the points that the view sees."""
    height, width = own.depth.shape
    seen = transform_points(points, invert_transform(own.camera_to_world))
    with np.errstate(invalid="ignore", divide="ignore"):
        columns, rows = np.floor(own.camera.project(seen) + 0.5).T
        inside = np.flatnonzero((columns >= 0) & (columns < width) & (rows >= 0) & (rows < height))
        where = (rows[inside] * width + columns[inside]).astype(np.intp)
        ratio = np.log(seen[inside, 2] / own.depth.flat[where])
        share, farther = (1.0, FARTHER) if own.tolerance is None else own.tolerance.at(where)
        visible = (ratio > -NEARER * share) & (ratio < farther * share)
    return where[visible], ratio[visible], inside[visible]


def from_measurements(own: DepthMap, neighbours: Sequence[Points], trust: Trust | None = None) -> Evidence:
    """The measurements of the neighbours at the pixels of the view: of those in a cell, the one in the middle."""
    where, ratio, index = _carry_trusted(own, {k: part.points for k, part in enumerate(neighbours)}, trust)
    relative = np.concatenate([part.relative for part in neighbours])[index]
    cells = Cells(own.depth.shape, where, ratio, POINT_CELL)
    middle = cells.first + (cells.count - 1) // 2
    where, relative = where[cells.order][middle], relative[cells.order][middle]
    depth = own.depth.flat[where] * np.exp(cells.ratio[middle])
    return Evidence(where, depth, np.hypot(relative, POINT_NOISE) * depth)


def from_depth(own: DepthMap, surfaces: Mapping[int, Float64Array], trust: Trust | None = None) -> Evidence:
    """The median over the depth of neighbours, by their numbers, in each cell of the view."""
    where, ratio, _ = _carry_trusted(own, surfaces, trust)
    height, width = own.depth.shape
    side = cell_side(own.depth.shape)
    cells = Cells(own.depth.shape, where, ratio, side)
    spread = (cells.quantile(0.75) - cells.quantile(0.25)) / 1.349
    rows = np.minimum(cells.rows * side + side // 2, height - 1)
    columns = np.minimum(cells.columns * side + side // 2, width - 1)
    where = rows * width + columns
    depth = own.depth.flat[where] * np.exp(cells.quantile(0.5))
    usable = (cells.count >= MIN_VOTES) & np.isfinite(depth)
    sigma = np.hypot(spread, DEPTH_NOISE) * depth
    return Evidence(where[usable], depth[usable], sigma[usable])


def _carry_trusted(
    own: DepthMap, parts: Mapping[int, Float64Array], trust: Trust | None
) -> tuple[IndexArray, Float64Array, IndexArray]:
    """As `carry`, without the points that are not trusted, from neighbours with these numbers."""
    where, ratio, index = carry(own, np.concatenate(list(parts.values())))
    if trust is None:
        return where, ratio, index
    trusted = trust(where, sources(parts)[index])
    return where[trusted], ratio[trusted], index[trusted]


def sources(parts: Mapping[int, Float64Array]) -> IndexArray:
    """The number of the neighbour that each point of all parts belongs to."""
    return np.repeat(np.array([*parts], np.intp), [len(part) for part in parts.values()])


class Cells:
    """Values at pixels, sorted within square cells of the image."""

    def __init__(self, shape: tuple[int, ...], where: IndexArray, ratio: Float64Array, side: int) -> None:
        rows, columns = np.divmod(where, shape[1])
        across = -(-shape[1] // side)
        cell = rows // side * across + columns // side
        self.order = np.lexsort((ratio, cell))
        self.ratio = ratio[self.order]
        cells, self.first, self.count = np.unique(cell[self.order], return_index=True, return_counts=True)
        self.rows, self.columns = np.divmod(cells, across)

    def quantile(self, share: float) -> Float64Array:
        """A quantile of the values of each cell, interpolated linearly."""
        place = self.first + share * (self.count - 1)
        low = place.astype(np.intp)
        high = np.minimum(low + 1, self.first + self.count - 1)
        result: Float64Array = self.ratio[low] + (place - low) * (self.ratio[high] - self.ratio[low])
        return result


def noise_map(noise: Noise | ArrayLike | None, sparse: FloatArray) -> FloatArray:
    """Standard deviation in metres of each measurement, (H, W); 0 for exact ones and where nothing is measured."""
    result = np.zeros(sparse.shape)
    if noise is not None:
        where = np.flatnonzero(is_measured(sparse))
        result.flat[where] = sigma_at(noise, sparse.flat[where], where, (sparse.shape[0], sparse.shape[1]))
    return result


def merge(
    sparse: FloatArray, noise: Noise | ArrayLike | None, evidence: Sequence[Evidence]
) -> tuple[FloatArray, FloatArray]:
    """The view's own measurements, evidence at the other pixels, and the standard deviation of both, (H, W)."""
    merged, sigma = np.where(is_measured(sparse), sparse, sparse.dtype.type(np.nan)), noise_map(noise, sparse)
    for part in evidence:
        free = ~is_measured(merged.flat[part.where])
        merged.flat[part.where[free]] = part.depth[free]
        sigma.flat[part.where[free]] = part.sigma[free]
    return merged, sigma
