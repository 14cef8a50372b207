"""Nested iteration: solutions on coarser grids give the edges of the residual system, and where its iteration starts.

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
fine. Each starts from the one before it, and so does the solve of the image itself, which needs fewer iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float32Array, Float64Array, IndexArray
from leadline.base.jit import STENCIL, parallel_loop
from leadline.core.adaptive import MAX_WEIGHT, edge_weights, squared_gradients
from leadline.core.options import ReconstructionOptions
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.system import System

COARSEST = 20_000
"""Most pixels of the coarsest grid; with 5,000 single errors are up to 30 % larger."""
COARSE_SOLVES = 3
"""Solves on the coarsest grid: one with the edges of t, and the others with those of the depth before as well. Up to
nine, until the residual settles, lower the mean error of a weak prior by up to 1 %, and raise it by 12 % in a room with
50 points, where slopes between distant measurements become steps at wrong places. Two, where the second changes little,
leave outliers an influence that the third takes away."""
TOLERANCE = 3e-3
"""Relative residual of the solves on coarser grids; with 3e-4 no error changes by more than 0.5 %."""
SLOPE_WINDOW = 0.05
"""Side of the square whose mean gradient is no edge, relative to the diagonal; 0.035 and 0.08 give similar errors."""
MIN_SLOPE_WINDOW = 5  # pixels: in a smaller square the mean gradient is the gradient itself
NOT_EDGES = 0.75
"""Share of the pixels that have no edge. Without it errors with noise are 2 % larger; exact ones change by 0.3 %."""
EVERYTHING = np.float32(1e6)  # squared gradient: no depth map is as steep


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the solves before the last one give."""

    residual: Float32Array  # (H, W): log residual; finite where t is valid
    slope: Float32Array  # (H, W): squared gradient of log depth, per pixel, up to which there is no edge

    def depth(self, calibrated: Float32Array) -> Float32Array:
        """t exp(r)."""
        depth: Float32Array = np.exp(self.residual)
        depth *= calibrated
        return depth

    def refined(self, shape: tuple[int, ...]) -> Estimate:
        """The estimate on the grid of twice the resolution."""
        residual, slope = np.empty(shape, np.float32), np.empty(shape, np.float32)
        _interpolate[len(residual)](self.residual, residual)
        _interpolate[len(slope)](self.slope, slope)
        slope *= np.float32(0.25)  # gradients per pixel
        return Estimate(residual, slope)


@dataclass(frozen=True, eq=False)
class Grid:
    """The residual problem of an image at one resolution.

    `where` are the flat indices of the measured pixels, and `targets` and `weights` (finite, in units of the gradient
    weight) belong to them. `options` have the weights of the system.
    """

    calibrated: Float32Array
    where: IndexArray
    targets: Float64Array
    weights: Float64Array
    options: ReconstructionOptions

    def halved(self) -> Grid:
        """The problem at half the resolution; measurements that fall into the same pixel are averaged.

        The gradient term does not depend on the resolution in two dimensions; the others do, by the area of a pixel.
        """
        height, width = ((side + 1) // 2 for side in self.calibrated.shape)
        calibrated = np.empty((height, width), np.float32)
        _halve[len(calibrated)](self.calibrated, calibrated)
        row, column = np.divmod(self.where, self.calibrated.shape[1])
        place = row // 2 * width + column // 2
        total = np.bincount(place, self.weights, height * width)
        moments = np.bincount(place, self.weights * self.targets, height * width)
        where = np.flatnonzero(total)
        options = replace(
            self.options,
            weight_data=4.0 * self.options.weight_data,
            weight_laplacian=self.options.weight_laplacian / 4.0,
        )
        weights = np.minimum(total[where], MAX_WEIGHT)
        return Grid(calibrated, where, moments[where] / total[where], weights, options)

    def solve(self, before: Estimate | None = None) -> Estimate | None:
        """Solve with the edges of t or, after an earlier estimate on this grid, with those of its depth as well.

        None if the solve broke down. The slope is that of the earlier estimate if there is one.
        """
        edges, _ = edge_weights(self.calibrated)
        if before is not None:
            edge_weights(before.depth(self.calibrated), before.slope, edges)
        valid = np.isfinite(self.calibrated)
        system = System(valid, self.where, self.options, edges=edges, weights=self.weights)
        solution = system.solve(self.targets, start=None if before is None else system.padded_field(before.residual))
        if solution.status is SolveStatus.BROKE_DOWN:
            return None
        residual = np.where(valid, solution.interior, np.nan).astype(np.float32)
        return Estimate(residual, np.empty(0, np.float32) if before is None else before.slope)

    def with_slope(self, estimate: Estimate | None) -> Estimate | None:
        """The estimate on this grid with the squared gradients of its depth that are no edges."""
        if estimate is None:
            return None
        depth = estimate.depth(self.calibrated)
        side = SLOPE_WINDOW * math.hypot(*depth.shape)
        slope = mean_slope(depth, _odd(max(MIN_SLOPE_WINDOW, side)))
        beyond = (squared_gradients(depth)[0] - slope)[np.isfinite(depth)]
        slope += max(np.float32(0.0), np.quantile(beyond, NOT_EDGES))
        around = _odd(max(2.0 * side, 3.0 * math.sqrt(depth.size / self.where.size)))
        slope[_counts(self.where, depth.shape, around) < 2] = EVERYTHING
        return Estimate(estimate.residual, slope)


def estimate_residual(grid: Grid) -> Estimate | None:
    """The residual of an image from solves on coarser grids, interpolated to its own; None if one of them broke down.

    An image of at most COARSEST pixels is the only grid, and is solved once.
    """
    grids = [replace(grid, options=replace(grid.options, tolerance=max(TOLERANCE, grid.options.tolerance)))]
    while grids[-1].calibrated.size > COARSEST:
        grids.append(grids[-1].halved())
    coarsest = grids[-1]
    estimate = coarsest.with_slope(coarsest.solve())
    for _ in range(COARSE_SOLVES - 1 if len(grids) > 1 else 0):
        if estimate is not None:
            estimate = coarsest.with_slope(coarsest.solve(estimate))
    for finer in grids[-2::-1]:
        if estimate is None:
            return None
        estimate = estimate.refined(finer.calibrated.shape)
        if finer is not grids[0]:
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


@parallel_loop(fastmath=STENCIL)
def _halve(i, fine, coarse):  # type: ignore[no-untyped-def]
    """Mean of the valid depths of each two by two pixels; NaN if none is valid."""
    height, width = fine.shape
    for j in range(coarse.shape[1]):
        total, count = np.float32(0.0), np.float32(0.0)
        for k in range(2 * i, min(2 * i + 2, height)):
            for m in range(2 * j, min(2 * j + 2, width)):
                if fine[k, m] == fine[k, m]:
                    total += fine[k, m]
                    count += np.float32(1.0)
        coarse[i, j] = total / count


@parallel_loop(fastmath=STENCIL)
def _interpolate(i, coarse, fine):  # type: ignore[no-untyped-def]
    """Bilinear interpolation to pixels of half the side, from the valid ones of the four nearest pixels.

    The nearest of them, the pixel that contains the fine one, has the weight 9/16. Where it is NaN the result is NaN.
    """
    height, width = coarse.shape
    near, far = np.float32(0.75), np.float32(0.25)
    here = coarse[i // 2]
    beside = coarse[min(max(i // 2 + (1 if i % 2 else -1), 0), height - 1)]
    for j in range(fine.shape[1]):
        k = j // 2
        m = min(max(k + (1 if j % 2 else -1), 0), width - 1)
        total = near * near * here[k]
        weight = near * near
        for value, share in ((here[m], near * far), (beside[k], near * far), (beside[m], far * far)):
            if value == value:
                total += share * value
                weight += share
        fine[i, j] = total / weight
