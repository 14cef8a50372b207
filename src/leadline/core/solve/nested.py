"""Nested iteration: solutions on coarser grids give the edges of the residual system, and where its iteration starts.

The last grid is the image or, if its measurements are far enough apart, the image at half its resolution.

Where is the residual discontinuous? The edges of the calibrated prior t are one answer, the only one before a solve. A
weak prior misses edges that the measurements show: of two neighbouring measurements one is on an object and one behind
it, and a smooth solution has a slope between them. The depth t exp(r) of that solution is therefore steep where t is
not. Weights from its gradients make the steep places steeper in the next solve, until the slope is a step: the
iteratively reweighted minimisation of a nonconvex energy (Geman and Reynolds 1992, *Constrained Restoration and the
Recovery of Discontinuities*; Black, Sapiro, Marimont and Heeger 1998, *Robust Anisotropic Diffusion*). For the mean
absolute error a step is the better guess: if the edge is anywhere between the two measurements with equal probability,
a step halfway has three quarters of the expected error of a line.

Not everything that is steep is an edge. Three squared gradients are subtracted from that of depth at a pixel:

- A wall that is seen at an angle is steep: the square of the *mean* gradient in a square around the pixel, whose side
  is SLOPE_WINDOW of the image's diagonal. Without it, slopes in parts of the image without measurements become steps
  at arbitrary places.
- Noise of the measurements is steep everywhere: what three quarters of the image do not exceed (NOT_EDGES).
- A single measurement far from all others is a peak, whose slopes would become an edge all around it: everything, where
  fewer than two measurements lie in a square of twice that side, or three times their mean distance if that is larger.

The solves that give the edges are those of the same image at halves, quarters, ... of its resolution, from coarse to
fine. Each starts from the one before it, and so does the last solve, which needs fewer iterations.

**Half the resolution.** The residual is smooth but for its edges. What measurements determine of it is resolved by a
grid of a quarter of their spacing. If that is not finer than half the image's resolution, the last solve is one more at
that resolution, with a quarter of the time and memory, and its solution is interpolated (`Half`). It is as accurate
because the edges of t keep their full resolution: the weights on the half grid are those of the image, averaged, and
the interpolation prefers pixels where t is similar (resolution.py). And a measurement is not at the centre of its pixel
of the half grid: what interpolation adds there to the value of that pixel, in the solution before, is subtracted from
the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, Float32Array, Float64Array, FloatArray, IndexArray
from leadline.core.adaptive import edge_weights, squared_gradients
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import resolution
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.resolution import average, half_indices, half_shape
from leadline.core.solve.system import System, unobserved

COARSEST = 20_000
"""Most pixels of the coarsest grid of large images; with 5,000 single errors are up to 40 % larger. Smaller images have
one more grid if the last one is half the image: errors are then 1.004 of those on the image itself, at half the time,
and without it 1.02 (12 scenes, at most 320 x 240, six patterns, two priors)."""
COARSE_SOLVES = 3
"""Solves on the coarsest grid: one with the edges of t, and the others with those of the depth before as well. Up to
nine, until the residual settles, lower the mean error of a weak prior by up to 1 %, and raise it by 12 % in a room with
50 points, where slopes between distant measurements become steps at wrong places. Two, where the second changes little,
leave outliers an influence that the third takes away."""
TOLERANCE = 3e-3
"""Relative residual of the solves before the last one, but for the first. With 1e-3 errors are up to 1 % larger."""
FIRST_TOLERANCE = 1e-3
"""That of the first solve, which starts from zero. With 3e-3 gaps between measurements are far from solved."""
SLOPE_WINDOW = 0.05
"""Side of the square whose mean gradient is no edge, relative to the diagonal; 0.035 and 0.08 give similar errors."""
MIN_SLOPE_WINDOW = 5  # pixels: in a smaller square the mean gradient is the gradient itself
NOT_EDGES = 0.75
"""Share of the pixels that have no edge. Without it errors with noise are 2 % larger; exact ones change by 0.3 %."""
EVERYTHING = np.float32(1e6)  # squared gradient: no depth map is as steep
HALF_FROM = 6
"""Smallest spacing in pixels with which the last grid has half the image's resolution. Errors with the weak prior are
1 % larger than on the image itself with measurements 11 pixels apart, 2 % with 8, 3 % with 5 and 5 % with 4."""
SIMILAR = 3.0
"""Difference of t, in units of its mean difference between neighbours, at which the share of a pixel in the
interpolation has decreased to a quarter. With 1 the normals of a strong prior are 1 % better, and the depth of a weak
one is 1 % worse."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the solves before the last one give."""

    residual: Float32Array  # (H, W): log residual; finite where t is valid
    slope: Float32Array  # (H, W): squared gradient of log depth, per pixel, up to which there is no edge
    settled: bool = False  # whether it is that from which its solve started, which a solve more would not change

    def depth(self, calibrated: Float32Array) -> Float32Array:
        """t exp(r)."""
        depth: Float32Array = np.exp(self.residual)
        depth *= calibrated
        return depth


@dataclass(frozen=True, eq=False)
class Grid:
    """The residual problem of an image at one resolution.

    `where` are the flat indices of the measured pixels, and `targets` and `weights` (finite, in units of the gradient
    weight) belong to them. `options` have the weights of the system. `edges` are the weights of t alone, and `contrast`
    its mean relative difference between neighbours.
    """

    calibrated: Float32Array
    where: IndexArray
    targets: Float64Array
    weights: Float64Array
    options: ReconstructionOptions
    edges: tuple[Float32Array, Float32Array]
    contrast: float

    def halved(self) -> Grid:
        """The problem at half the resolution; measurements that fall into the same pixel are averaged.

        The gradient term does not depend on the resolution in two dimensions; the others do, by the area of a pixel.
        Two edges in a row act as one of their harmonic mean, two side by side as one of their mean, or of
        MAX_STRENGTHENING times the weaker one if that is less.
        """
        height, width = half_shape(self.calibrated.shape)
        calibrated = np.empty((height, width), np.float32)
        edges = np.empty((height, width - 1), np.float32), np.empty((height - 1, width), np.float32)
        resolution.halve[height](self.calibrated, calibrated)
        resolution.halve_edges[height](*self.edges, *edges)
        options = replace(
            self.options,
            weight_data=4.0 * self.options.weight_data,
            weight_laplacian=self.options.weight_laplacian / 4.0,
        )
        place = half_indices(self.where, self.calibrated.shape)
        averaged = average(place, self.targets, self.weights, height * width)
        return Grid(calibrated, *averaged, options, edges, 2.0 * self.contrast)

    def with_tolerance(self, least: float) -> Grid:
        """The same problem with at least this tolerance."""
        return replace(self, options=replace(self.options, tolerance=max(least, self.options.tolerance)))

    def solve(self, before: Estimate | None = None) -> Estimate | None:
        """Solve with the edges of t or, after an earlier estimate on this grid, with those of its depth as well.

        None if the solve broke down. The slope is that of the earlier estimate if there is one.
        """
        valid = np.isfinite(self.calibrated)
        edges = self.edges if before is None else self.lowered_edges(before)
        system = System(valid, self.where, self.options, edges=edges, weights=self.weights)
        solution = system.solve(self.targets, start=None if before is None else system.padded_field(before.residual))
        if solution.status is SolveStatus.BROKE_DOWN:
            return None
        residual = np.where(valid, solution.interior, np.nan).astype(np.float32)
        slope = np.empty(0, np.float32) if before is None else before.slope
        return Estimate(residual, slope, settled=before is not None and solution.iterations == 0)

    def lowered_edges(self, estimate: Estimate) -> tuple[Float32Array, Float32Array]:
        """The edge weights, lowered where the depth of an estimate has an edge."""
        across, down = self.edges
        return edge_weights(estimate.depth(self.calibrated), estimate.slope, (across.copy(), down.copy()))[0]

    def interpolate(self, field: Float32Array, finer: Float32Array, *, by_similarity: bool = True) -> Float32Array:
        """A field of this grid on that of twice the resolution, whose map t is `finer`."""
        out = np.empty(finer.shape, np.float32)
        similarity = self.similarity if by_similarity else np.float32(0.0)
        resolution.interpolate(field, self.calibrated, finer, similarity, out)
        return out

    def interpolate_at(self, where: IndexArray, field: Float32Array, finer: Float32Array) -> Float64Array:
        """What `interpolate` gives at the flat indices `where`."""
        out = np.empty(where.size)
        resolution.interpolate_at(where, field, self.calibrated, finer, self.similarity, out)
        return out

    @property
    def similarity(self) -> np.float32:
        """s of the factor 1 / (1 + s d^2)^2 in the interpolation, d = (t - u) / (t + u), with u of this grid."""
        scale = SIMILAR * self.contrast / 2.0  # of the finer grid
        return np.float32(4.0 / scale**2 if scale > 0.0 else 0.0)

    def refine(self, estimate: Estimate, finer: Grid) -> Estimate:
        """An estimate on this grid, on that of twice the resolution.

        It is interpolated whatever t is there: by similarity of t the edges of a weak prior would become edges of the
        depth, and errors 1 % larger.
        """
        parts = estimate.residual, estimate.slope
        residual, slope = (self.interpolate(part, finer.calibrated, by_similarity=False) for part in parts)
        slope *= np.float32(0.25)  # gradients per pixel
        return Estimate(residual, slope)

    def with_slope(self, estimate: Estimate | None) -> Estimate | None:
        """The estimate on this grid with the squared gradients of its depth that are no edges."""
        if estimate is None:
            return None
        depth = estimate.depth(self.calibrated)
        slope = mean_slope(depth, _odd(max(MIN_SLOPE_WINDOW, self._slope_side)))
        beyond = (squared_gradients(depth)[0] - slope)[np.isfinite(depth)]
        slope += max(np.float32(0.0), np.quantile(beyond, NOT_EDGES))
        slope[self._lone] = EVERYTHING
        return Estimate(estimate.residual, slope)

    @property
    def _slope_side(self) -> float:
        return SLOPE_WINDOW * math.hypot(*self.calibrated.shape)

    @cached_property
    def _lone(self) -> BoolArray:
        """Pixels around which there is at most one measurement."""
        side = _odd(max(2.0 * self._slope_side, 3.0 * math.sqrt(self.calibrated.size / self.where.size)))
        return _counts(self.where, self.calibrated.shape, side) < 2


@dataclass(frozen=True, eq=False)
class Half:
    """How an image follows from a solution at half its resolution.

    Attributes
    ----------
    grid : Grid
        The problem of the last solve.
    place : (n,) intp
        Flat index of the pixel of the half grid that contains each measurement of the image.
    shift : (n,) float64
        What interpolation adds to the value of that pixel at the measured pixel, in the estimate before the last solve.
    weights : (n,) float64
        Weight of each measurement of the image.
    """

    grid: Grid
    place: IndexArray
    shift: Float64Array
    weights: Float64Array

    @classmethod
    def of(
        cls,
        grid: Grid,
        estimate: Estimate | None,
        calibrated: Float32Array,
        where: IndexArray,
        targets: Float64Array,
        weights: Float64Array,
    ) -> Half:
        """The last solve on the half grid of the image with this map t and these measurements, after an estimate."""
        place, shift = half_indices(where, calibrated.shape), np.zeros(where.size)
        if estimate is not None:
            shift = grid.interpolate_at(where, estimate.residual, calibrated) - estimate.residual.ravel()[place]
        averaged = average(place, targets - shift, weights, grid.calibrated.size)
        return cls(replace(grid, targets=averaged[1]), place, shift, weights)

    def interpolate(self, solution: FloatArray, calibrated: Float32Array, where: IndexArray) -> Float32Array:
        """The residual of the image, with the map t and measurements at `where`, from the solution on the half grid.

        It is zero in components of the image without a measurement. On the half grid, which knows no gap of one pixel,
        they may be connected with others.
        """
        field = np.ascontiguousarray(solution, np.float32)
        residual = self.grid.interpolate(field, calibrated)
        valid = np.isfinite(calibrated)
        if not valid.all():
            residual[unobserved(valid, where)] = 0.0
        return residual


def is_resolved_by_half(spacing: float, pixels: int) -> bool:
    """Whether the last solve of an image has half its resolution, with measurements `spacing` pixels apart."""
    return spacing >= HALF_FROM and pixels > COARSEST


def estimate_residual(grid: Grid, *, solve: bool = False) -> Estimate | None:
    """The residual on a grid from solves on coarser ones, interpolated to it; None if one of them broke down.

    With `solve` the grid itself is solved, too, and there is always a coarser one. Without it a grid of at most
    COARSEST pixels is the only one, and is solved once.
    """
    grids = [grid]
    while grids[-1].calibrated.size > COARSEST or (solve and len(grids) == 1):
        grids.append(grids[-1].halved())
    first = grids[-1].with_tolerance(FIRST_TOLERANCE)
    grids = [grid.with_tolerance(TOLERANCE) for grid in grids]
    coarsest = grids[-1]
    estimate = coarsest.with_slope(first.solve())
    for _ in range(COARSE_SOLVES - 1 if len(grids) > 1 else 0):
        if estimate is not None and not estimate.settled:
            estimate = coarsest.solve(estimate)
            if estimate is not None and not estimate.settled:  # else its slope is that of the same residual
                estimate = coarsest.with_slope(estimate)
    for coarse, finer in zip(grids[:0:-1], grids[-2::-1], strict=True):
        if estimate is None:
            return None
        estimate = coarse.refine(estimate, finer)
        if solve or finer is not grids[0]:
            estimate = finer.solve(estimate)
    return estimate


def _odd(side: float) -> int:
    return 2 * round((side - 1.0) / 2.0) + 1


def _counts(where: IndexArray, shape: tuple[int, int], side: int) -> NDArray[np.int64]:
    """Number of the flat indices `where` in the square of `side` pixels around each pixel of an (H, W) grid."""
    sums = np.zeros((shape[0] + 1, shape[1] + 1), np.int64)  # of all pixels above and to the left
    sums[1:, 1:].flat[where] = 1
    sums = sums.cumsum(axis=0).cumsum(axis=1)
    for axis, length in enumerate(shape):
        middle = np.arange(length)
        ends = (np.clip(middle + shift, 0, length) for shift in (side // 2 + 1, -(side // 2)))
        above, below = (sums.take(end, axis=axis) for end in ends)
        sums = above - below
    return sums


def mean_slope(depth: Float32Array, window: int) -> Float32Array:
    """Square of the mean gradient of log depth over a square of `window` pixels, an odd number, around each pixel."""
    from scipy.ndimage import uniform_filter

    log = np.log(depth)
    total = np.zeros_like(log)
    for axis in (0, 1):
        ahead = np.diff(log, axis=axis)
        ahead[np.isnan(ahead)] = 0.0
        both = np.zeros_like(log)  # the mean of the differences to both sides
        sides = (slice(None, -1), slice(1, None)) if axis == 0 else (np.s_[:, :-1], np.s_[:, 1:])
        for side in sides:
            both[side] += np.float32(0.5) * ahead
        total += uniform_filter(both, window, mode="nearest") ** 2
    return total
