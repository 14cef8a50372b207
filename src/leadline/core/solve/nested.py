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

**Half the resolution.** The residual is smooth but for its edges, and what the measurements determine of it, a grid of a
quarter of their spacing resolves. The last solve is then one more of the image at half its resolution, at a quarter of
the time and memory, and its solution is interpolated (`Half`). Two things make it as accurate as a solve of the image:

- The edges of t are at full resolution. The weights on the half grid come from those of the image (`Grid.halved`), and
  the interpolation to a pixel uses, of the four nearest values, those of pixels where t is similar (joint bilateral
  upsampling: Kopf, Cohen, Lischinski and Uyttendaele 2007).
- A measurement is not at the centre of its pixel of the half grid. What the interpolation of the solution before adds
  at the measured pixel to the value of the half grid's pixel is subtracted from the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float32Array, Float64Array, FloatArray, IndexArray
from leadline.base.jit import STENCIL, compiled, inlined, parallel_loop
from leadline.core.adaptive import MAX_WEIGHT, edge_weights, squared_gradients
from leadline.core.options import ReconstructionOptions
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.kernels import FIXED_ROLE
from leadline.core.solve.system import System, pixel_roles

COARSEST = 20_000
"""Most pixels of the coarsest grid; with 5,000 single errors are up to 30 % larger."""
COARSE_SOLVES = 3
"""Solves on the coarsest grid: one with the edges of t, and the others with those of the depth before as well. Two more
lower the errors by another 0.5 % with 50 points or corners, and cost 6 % of the time at 640 x 480."""
TOLERANCE = 3e-3
"""Relative residual of the solves on coarser grids; with 3e-4 no error changes by more than 0.5 %."""
SLOPE_WINDOW = 0.05
"""Side of the square whose mean gradient is no edge, relative to the diagonal; 0.035 and 0.08 give similar errors."""
MIN_SLOPE_WINDOW = 5  # pixels: in a smaller square the mean gradient is the gradient itself
NOT_EDGES = 0.75
"""Share of the pixels that have no edge. Without it errors with noise are 2 % larger; exact ones change by 0.3 %."""
EVERYTHING = np.float32(1e6)  # squared gradient: no depth map is as steep
HALF_FROM = 6
"""Smallest spacing in pixels with which the last grid has half the image's resolution. Errors with the weak prior are
1 % larger than on the image itself with measurements 11 pixels apart, 2 % with 8, 3 % with 5 and 5 % with 4."""
SIMILAR = 2.0
"""Difference of t, in units of its mean difference between neighbours, at which the share of a pixel in the
interpolation has decreased to a quarter. With 1 normals of a strong prior are 1 % better, depth of a weak one 1 % worse."""


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
        Two edges in a row act as one of their harmonic mean, two side by side as one of their mean.
        """
        height, width = half_shape(self.calibrated.shape)
        calibrated = np.empty((height, width), np.float32)
        edges = np.empty((height, width - 1), np.float32), np.empty((height - 1, width), np.float32)
        _halve[height](self.calibrated, calibrated)
        _halve_edges[height](*self.edges, *edges)
        options = replace(
            self.options,
            weight_data=4.0 * self.options.weight_data,
            weight_laplacian=self.options.weight_laplacian / 4.0,
        )
        place = half_indices(self.where, self.calibrated.shape)
        averaged = average(place, self.targets, self.weights, height * width)
        return Grid(calibrated, *averaged, options, edges, 2.0 * self.contrast)

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
        return Estimate(residual, np.empty(0, np.float32) if before is None else before.slope)

    def lowered_edges(self, estimate: Estimate) -> tuple[Float32Array, Float32Array]:
        """The edge weights, lowered where the depth of an estimate has an edge."""
        across, down = self.edges
        return edge_weights(estimate.depth(self.calibrated), estimate.slope, (across.copy(), down.copy()))[0]

    def interpolate(self, field: Float32Array, finer: Float32Array, out: Float32Array) -> Float32Array:
        """A field of this grid on that of twice the resolution, whose map t is `finer`."""
        _interpolate[len(out)](field, self.calibrated, finer, self._similarity, out)
        return out

    def interpolate_at(self, where: IndexArray, field: Float32Array, finer: Float32Array) -> Float64Array:
        """What `interpolate` gives at the flat indices `where`."""
        out = np.empty(where.size)
        _interpolate_at(where, field, self.calibrated, finer, self._similarity, out)
        return out

    @property
    def _similarity(self) -> np.float32:
        """The factor of a squared difference of t, from that of the finer grid, in the weight of a pixel."""
        scale = SIMILAR * self.contrast / 2.0
        return np.float32(4.0 / scale**2 if scale > 0.0 else 0.0)

    def refine(self, estimate: Estimate, finer: Grid) -> Estimate:
        """An estimate on this grid, on that of twice the resolution."""
        t = finer.calibrated
        residual, slope = (
            self.interpolate(part, t, np.empty(t.shape, np.float32)) for part in (estimate.residual, estimate.slope)
        )
        slope *= np.float32(0.25)  # gradients per pixel
        return Estimate(residual, slope)

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


@dataclass(frozen=True, eq=False)
class Half:
    """How an image follows from a solution at half its resolution, and its measurements there.

    Attributes
    ----------
    grid : Grid
        The half grid. Its targets are those of the last solve.
    place : (n,) intp
        Flat index of the pixel of the half grid that contains each measurement of the image.
    shift : (n,) float64
        What interpolation adds to the value of that pixel at the measured pixel, in the estimate before the last solve.
    """

    grid: Grid
    place: IndexArray
    shift: Float64Array

    def interpolate(self, solution: FloatArray, calibrated: Float32Array, where: IndexArray) -> Float32Array:
        """The residual of the image, with the map t and measurements at `where`, from the solution on the half grid.

        It is zero in components of the image without a measurement. On the half grid, which knows no gap of one pixel,
        they may be connected with others.
        """
        field = np.ascontiguousarray(solution, np.float32)
        residual = self.grid.interpolate(field, calibrated, np.empty(calibrated.shape, np.float32))
        valid = np.isfinite(calibrated)
        if not valid.all():
            residual[pixel_roles(valid, where)[1:-1, 1:-1] == FIXED_ROLE] = 0.0
        return residual


def prepare_solve(image: Grid, *, halve: bool) -> tuple[Estimate | None, Half | None]:
    """The estimate from which the last solve starts, and the half grid, if that is where the last solve is.

    With `halve` the last solve is at half the resolution, unless this has at most COARSEST pixels; otherwise it is on
    the image itself. An image of at most COARSEST pixels is the only grid, and is solved once before. There is no
    estimate if a solve broke down.
    """
    tolerance = max(TOLERANCE, image.options.tolerance)
    grids = [replace(image, options=replace(image.options, tolerance=tolerance))]
    while grids[-1].calibrated.size > COARSEST:
        grids.append(grids[-1].halved())
    coarsest = grids[-1]
    estimate = coarsest.with_slope(coarsest.solve())
    for _ in range(COARSE_SOLVES - 1 if len(grids) > 1 else 0):
        if estimate is not None:
            estimate = coarsest.with_slope(coarsest.solve(estimate))
    for coarse, finer in zip(grids[:1:-1], grids[-2:0:-1], strict=True):
        if estimate is not None:
            estimate = finer.solve(coarse.refine(estimate, finer))
    if len(grids) == 1 or estimate is None:
        return estimate, None
    half = grids[1]
    if not halve or half is coarsest:
        return half.refine(estimate, image), None
    place = half_indices(image.where, image.calibrated.shape)
    shift = half.interpolate_at(image.where, estimate.residual, image.calibrated)
    shift -= estimate.residual.ravel()[place]
    _, targets, weights = average(place, image.targets - shift, image.weights, half.calibrated.size)
    options = replace(half.options, tolerance=image.options.tolerance)
    half = replace(half, targets=targets, weights=weights, options=options)
    return estimate, Half(half, place, shift)


def half_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of the grid of half the resolution."""
    height, width = shape
    return (height + 1) // 2, (width + 1) // 2


def half_indices(where: IndexArray, shape: tuple[int, ...]) -> IndexArray:
    """Flat indices of the pixels of the half grid that contain those at `where` on a grid of this shape."""
    row, column = np.divmod(where, shape[1])
    place: IndexArray = row // 2 * half_shape(shape)[1] + column // 2
    return place


def average(
    place: IndexArray, targets: Float64Array, weights: Float64Array, size: int
) -> tuple[IndexArray, Float64Array, Float64Array]:
    """Flat indices, mean target and summed weight, at most MAX_WEIGHT, of the measured ones of `size` pixels."""
    total = np.bincount(place, weights, size)
    moments = np.bincount(place, weights * targets, size)
    where = np.flatnonzero(total)
    return where, moments[where] / total[where], np.minimum(total[where], MAX_WEIGHT)


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


@inlined
def _in_series(a, b, c):  # type: ignore[no-untyped-def]
    """The edge from centre to centre of two pixels of the half grid: half of an edge, a whole one, and half of one."""
    four, two = np.float32(4.0), np.float32(2.0)
    return min(four * a * b * c / (b * c + two * a * c + a * b), np.float32(1.0))


@parallel_loop(fastmath=STENCIL)
def _halve_edges(i, across, down, coarse_across, coarse_down):  # type: ignore[no-untyped-def]
    """Compute row i of the edge weights of the half grid. An edge beyond the border has the weight 1."""
    one, half = np.float32(1.0), np.float32(0.5)
    height, width = across.shape[0], down.shape[1]
    k, below = 2 * i, min(2 * i + 1, height - 1)
    for j in range(coarse_across.shape[1]):
        m = 2 * j
        last = m + 2 < across.shape[1]
        upper = _in_series(across[k, m], across[k, m + 1], across[k, m + 2] if last else one)
        lower = _in_series(across[below, m], across[below, m + 1], across[below, m + 2] if last else one)
        coarse_across[i, j] = half * (upper + lower)
    if i < coarse_down.shape[0]:
        last = k + 2 < down.shape[0]
        for j in range(coarse_down.shape[1]):
            m, beside = 2 * j, min(2 * j + 1, width - 1)
            left = _in_series(down[k, m], down[k + 1, m], down[k + 2, m] if last else one)
            right = _in_series(down[k, beside], down[k + 1, beside], down[k + 2, beside] if last else one)
            coarse_down[i, j] = half * (left + right)


@inlined
def _share(guide, t, similarity):  # type: ignore[no-untyped-def]
    """Weight of a coarse value by the similarity of t, 1 / (1 + (difference / scale)^2)^2; 0 if its pixel is invalid."""
    ratio = (t - guide) / (t + guide)
    share = np.float32(1.0) / (np.float32(1.0) + similarity * ratio * ratio)
    return np.float32(1e-6) + share * share if guide == guide else np.float32(0.0)


@inlined
def _mean_of_four(coarse, guide, t, similarity, k, m, beside_k, beside_m):  # type: ignore[no-untyped-def]
    """Interpolate at a fine pixel in the coarse pixel (k, m) from it and its neighbours towards (beside_k, beside_m)."""
    zero = np.float32(0.0)
    a, b, c, d = coarse[k, m], coarse[k, beside_m], coarse[beside_k, m], coarse[beside_k, beside_m]
    share_a = np.float32(9.0) * _share(guide[k, m], t, similarity)
    share_b = np.float32(3.0) * _share(guide[k, beside_m], t, similarity)
    share_c = np.float32(3.0) * _share(guide[beside_k, m], t, similarity)
    share_d = _share(guide[beside_k, beside_m], t, similarity)
    # The field may be NaN at invalid pixels, whose share is zero.
    total = (share_a * a if share_a > zero else zero) + (share_b * b if share_b > zero else zero)
    total += (share_c * c if share_c > zero else zero) + (share_d * d if share_d > zero else zero)
    return total / ((share_a + share_b) + (share_c + share_d))


@inlined
def _beside(j, size):  # type: ignore[no-untyped-def]
    """The coarse row or column next to that of the fine one j, on the side where j is; itself at the border."""
    return min(max(j // 2 + (1 if j % 2 else -1), 0), size - 1)


@parallel_loop(fastmath=STENCIL)
def _interpolate(i, coarse, guide, t, similarity, fine):  # type: ignore[no-untyped-def]
    """Row i of a field at twice the resolution, from the valid ones of the four nearest pixels of the coarse grid.

    Their weights are those of bilinear interpolation times the similarity of t and its coarse map `guide`. Where t is
    NaN, so is the result.
    """
    height, width = coarse.shape
    k, beside = i // 2, _beside(i, height)
    for m in range(1, width - 1):
        fine[i, 2 * m] = _mean_of_four(coarse, guide, t[i, 2 * m], similarity, k, m, beside, m - 1)
        fine[i, 2 * m + 1] = _mean_of_four(coarse, guide, t[i, 2 * m + 1], similarity, k, m, beside, m + 1)
    for j in (0, 1, 2 * width - 2, 2 * width - 1):
        if j < fine.shape[1]:
            fine[i, j] = _mean_of_four(coarse, guide, t[i, j], similarity, k, j // 2, beside, _beside(j, width))


@compiled(fastmath=STENCIL)
def _interpolate_at(where, coarse, guide, t, similarity, out):  # type: ignore[no-untyped-def]
    """The same at single pixels, given as flat indices."""
    height, width = coarse.shape
    for n in range(where.size):
        i, j = where[n] // t.shape[1], where[n] % t.shape[1]
        k, m = _beside(i, height), _beside(j, width)
        out[n] = _mean_of_four(coarse, guide, t[i, j], similarity, i // 2, j // 2, k, m)
