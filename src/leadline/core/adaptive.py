"""A residual system whose weights are estimated from the measurements of each image.

The paper uses the same weights for every image. Which weights interpolate the residual best depends on the prior. A
blurred prior leaves a large, smooth residual, and a stiff surface that follows the measurements closely interpolates it
well. With a sharp prior, most of the residual is due to the measurements: a sensor cell that straddles a depth edge
reports a depth on neither side of it. All quantities below are ratios of quantities of one image; no prior is treated
specially. Let t be the calibrated prior, s a measurement, and g its log residual.

**Spacing.** The distance between measurements in pixels: the median half-width of the smallest square around a
measurement that contains four others.

**Pixel or cell.** A measurement may be the depth of its pixel or the mean depth of a sensor cell. The residual is
either log(s / t) with t at the pixel, or log(s / mean of t) over a square cell whose side is the spacing. For each
choice, the residuals are predicted by the median of their neighbours'. The choice with the smaller mean prediction
error is used. Cells lie side by side, so measurements that do not form a grid (`Neighbours.on_grid`) are of pixels: the
mean of a weak prior over a square often predicts them better, and is wrong at the measured pixel itself.

**Contrast.** Of the contrast of t only the share that the measurements confirm is used (contrast.py): t is replaced by
t^c s^(1 - c), with s the geometric mean of the measurements. Where the noise of measurements is given, they may be few,
or depths of other views that followed a prior themselves; all contrast is used then.

**Weight of a measurement**, in units of the gradient weight. It is the product of up to three factors with MAX_WEIGHT:

- *signal*: min(1, signal / full) with signal = (size / roughness)^2 - 1, where size is the mean magnitude
  of the residuals and roughness their mean prediction error. Residuals without a common trend are noise and get little
  weight. The full signal is FULL_WEIGHT_SIGNAL, and less for sparse measurements (`full_weight_signal`).
- *outlier*: 1 / (1 + (e / (OUTLIER_SCALE isolation roughness + 2 spread))^2)^2 for a measurement whose prediction error
  is e. The spread is the third largest deviation of its neighbours from their median; it is large beside an object that
  the prior misses, and small around a single outlier. The isolation is above 1 if its neighbours are unusually far away
  (`Neighbours.isolation`): the only measurement of a wall is no outlier because it differs from the table beside it.
- *cell*: 1 / (1 + (v / roughness)^2), for measurements of cells, with v the relative standard deviation of t in the
  cell. Where t varies within the cell by more than residuals do between measurements, the position within the cell
  matters more than the measured value.

If neither the caller nor the outlier policy says anything about noise, the weights are at most those that follow from
the noise that the residuals show (noise.py): measurements that differ by as much at any distance are noise.

**Edge weights** 1 / (1 + (c / c_mean)^2), where c is the relative gradient of t, from the mean of its squares at both
pixels. The weights are isotropic: with weights that depend on the direction of an edge the solver needs more than twice
the iterations, and the mean absolute relative error decreases by 1 to 3 %. Before the solve they are lowered where the
depth of solutions on coarser grids has an edge that t does not have (solve/nested.py).

**Stiffness** d^2, the weight of the Laplacian, where d is the spacing or, if larger, the mean distance
sqrt(pixels / measurements): measurements that are clustered leave gaps that are wider than their spacing. The solution
is a thin plate near each measurement, which avoids sharp peaks, and a membrane at larger distances. **Screening**
1 / diagonal^2, the weight of the residual itself: the residual decays over the size of the image. Both make the result
independent of the image's resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from leadline.base.arrays import Float32Array, Float64Array, FloatArray, IndexArray
from leadline.base.jit import STENCIL, compiled, inlined, parallel_loop
from leadline.core.contrast import confirmed_share
from leadline.core.neighbours import MIN_NEIGHBOURS, Neighbours
from leadline.core.noise import estimated_noise

MAX_WEIGHT = 1000.0
"""Largest weight of a measurement in units of the gradient weight. It makes the measurement almost exact: the
compliance of the solution at a pixel, given the other measurements, is a few hundredths for any spacing."""
FULL_WEIGHT_SIGNAL = 300.0
"""Signal at which measurements at most DENSE_SPACING apart get their full weight; with 100 the normals of a strong
prior are 10 % worse."""
DENSE_SPACING = 8.0
"""Spacing in pixels beyond which less signal is enough, in proportion to the density of the measurements. Residuals
differ more between measurements that are far apart, without being noise: with this and MAX_STIFFNESS the error with 50
random points in an image is 0.86 of that with constant bounds with a weak prior, and 0.79 with a strong one."""
OUTLIER_SCALE = 8.0
"""Prediction error in units of the roughness at which the weight of a measurement has decreased to a quarter, if its
neighbours agree."""
TRIMMED_SHARE = 0.1
"""Share of the largest values that a trimmed mean leaves out, because they may be outliers."""
MAX_STIFFNESS = 1000.0
"""The number of iterations grows with the stiffness: from 16 to 27 with 50 measurements and a strong prior, compared to
a bound of 100."""
MIN_EDGE_WEIGHT = 1e-3
"""With smaller weights the two sides of an edge are independent in practice, and the system is harder to solve."""
ROUNDING = 1e-6  # log depth: the resolution of float32
MIN_SIGNAL_FACTOR = 1e-3  # factor for measurements without signal; their weight is still far above the screening


@dataclass(frozen=True, eq=False)
class Adapted:
    """The weights of the residual system of one image."""

    targets: Float64Array  # (n,): log residual of each measurement
    weights: Float64Array  # (n,): weight of each measurement
    edges: tuple[Float32Array, Float32Array] | None  # (H, W - 1) to the right, (H - 1, W) to the lower neighbour
    stiffness: float  # weight of the residual's Laplacian; the weight of its gradient is 1
    screening: float  # weight of the residual itself
    spacing: int  # distance between measurements in pixels
    cell: int  # side in pixels of the square over which measurements are taken to average; 1 for single pixels
    roughness: float  # mean error in log depth when neighbours predict a residual; NaN with too few measurements
    contrast: float  # mean relative gradient of t, per pixel
    noise: float  # standard deviation of log depth by which measurements differ even from the nearest; 0 for none
    share: float  # of the contrast of log t that is used
    level: float  # mean logarithm of the measured depths
    limit: float = MAX_WEIGHT  # of the weight of a measurement, from the estimated noise

    def to_dict(self) -> dict[str, Any]:
        """The scalar values, and the mean weight of a measurement relative to MAX_WEIGHT."""
        names = ("stiffness", "screening", "spacing", "cell", "roughness", "contrast", "noise", "share")
        mean_weight = float(np.mean(self.weights)) / MAX_WEIGHT if self.weights.size else math.nan
        return {**{name: getattr(self, name) for name in names}, "mean_weight": mean_weight}

    def flattened(self, log_t: Any) -> Any:
        """log t with the share of its contrast that is used, for arrays and tensors."""
        return log_t if self.share == 1.0 else self.share * log_t + (1.0 - self.share) * self.level


def adapt(
    calibrated: Float32Array,
    where: IndexArray,
    measured: FloatArray,
    neighbours: Neighbours | None = None,
    *,
    flatten: bool = True,
) -> Adapted:
    """The residual system estimated from the depths `measured` at the flat indices `where` and the calibrated prior t.

    With fewer than five measurements there are no statistics over neighbours: all get the full weight at their pixels.
    `neighbours` are the neighbours of these measurements, if already computed. Without `flatten` all contrast
    of t is used.
    """
    height, width = calibrated.shape
    log_s = np.log(measured.astype(np.float64))
    log_t = np.log(calibrated.take(where).astype(np.float64))
    mean_distance = math.sqrt(calibrated.size / max(1, where.size))
    spacing, cell, roughness = math.ceil(mean_distance), 1, math.nan
    noise, share, level = 0.0, 1.0, float(np.mean(log_s)) if where.size else 0.0
    weights = np.full(where.size, MAX_WEIGHT)
    if where.size > MIN_NEIGHBOURS:
        neighbours = neighbours or Neighbours(where, (height, width))
        spacing = int(neighbours.spacing)
        side = 2 * ((spacing - 1) // 2) + 1  # of a cell: odd, so that the measured pixel is the centre
        if neighbours.on_grid and side > 1:
            mean, variation = np.empty(where.size), np.empty(where.size)
            _cell_statistics(calibrated, where, side // 2, mean, variation)
            averaged = np.log(mean)
            of_pixels, of_cells = (neighbours.compare(log_s - prior)[0] for prior in (log_t, averaged))
            if np.mean(of_cells) < np.mean(of_pixels):  # not trimmed: the few measurements on depth edges decide
                log_t, cell = averaged, side
        share = confirmed_share(calibrated, where, log_t, log_s) if flatten else 1.0
        log_t = share * log_t + (1.0 - share) * level
        targets = log_s - log_t
        errors, spreads = neighbours.compare(targets)
        noise = estimated_noise(targets, where, (height, width), neighbours)
        roughness = _trimmed_mean(errors)
        scale = max(roughness, ROUNDING)
        signal = (_trimmed_mean(np.abs(targets)) / scale) ** 2 - 1.0
        weights *= min(1.0, max(signal / full_weight_signal(spacing), MIN_SIGNAL_FACTOR))
        weights /= (1.0 + (errors / (OUTLIER_SCALE * neighbours.isolation * scale + 2.0 * spreads)) ** 2) ** 2
        if cell > 1:
            weights /= 1.0 + (share * variation / scale) ** 2
    edges, contrast = edge_weights(calibrated)
    stiffness = min(max(spacing, mean_distance) ** 2, MAX_STIFFNESS)
    screening = 1.0 / (height**2 + width**2)
    numbers = stiffness, screening, spacing, cell, roughness, contrast, noise, share, level
    return Adapted(log_s - log_t, weights, edges, *numbers)


def full_weight_signal(spacing: float) -> float:
    """The signal at which measurements `spacing` pixels apart get their full weight."""
    return FULL_WEIGHT_SIGNAL * min(1.0, DENSE_SPACING / spacing) ** 2


def _trimmed_mean(errors: Float64Array) -> float:
    """Mean without the largest TRIMMED_SHARE, but at least a tenth of the mean of all.

    The bound matters for measurements without noise, where all errors that are not tiny may be among the largest.
    """
    kept = errors.size - int(TRIMMED_SHARE * errors.size)
    return float(max(np.mean(np.partition(errors, kept - 1)[:kept]), 0.1 * np.mean(errors)))


def edge_weights(
    depth: Float32Array, slope: Float32Array | None = None, edges: tuple[Float32Array, Float32Array] | None = None
) -> tuple[tuple[Float32Array, Float32Array], float]:
    """Weights towards the right and the lower neighbour, and the mean relative gradient that they refer to.

    From the squared gradients the squares of a `slope` that is no edge are subtracted. Weights in `edges` are lowered
    in place to those of this map, where these are lower.
    """
    squares, contrast = squared_gradients(depth)
    if slope is not None:
        squares -= slope
        np.maximum(squares, np.float32(0.0), out=squares)
    if edges is None:
        height, width = depth.shape
        edges = np.ones((height, width - 1), np.float32), np.ones((height - 1, width), np.float32)
    _lower_weights[len(squares)](squares, contrast, *edges)
    return edges, contrast


def squared_gradients(depth: Float32Array) -> tuple[Float32Array, float]:
    """Squared relative gradient at each pixel, averaged over both sides, and the mean relative gradient."""
    squares = np.empty(depth.shape, np.float32)
    sums = np.empty((depth.shape[0], 2))
    _gradients[len(depth)](depth, squares, sums)
    total, count = sums.sum(axis=0)
    return squares, float(total / count) if count else 0.0


@compiled()
def _cell_statistics(depth, where, half, mean, variation):  # type: ignore[no-untyped-def]
    """Mean and relative standard deviation of the valid depths in the square around each measurement."""
    height, width = depth.shape
    for k in range(where.size):
        row, column = where[k] // width, where[k] % width
        middle = np.float64(depth[row, column])  # deviations from it are small, so that their squares lose no digits
        total, square, count = 0.0, 0.0, 0
        for i in range(max(row - half, 0), min(row + half + 1, height)):
            for j in range(max(column - half, 0), min(column + half + 1, width)):
                off = np.float64(depth[i, j]) - middle
                if off == off:
                    total += off
                    square += off * off
                    count += 1
        mean[k] = middle + total / count
        variation[k] = math.sqrt(max(0.0, square / count - (total / count) ** 2)) / mean[k]


@inlined
def _square(a, b):  # type: ignore[no-untyped-def]
    """((a - b) / ((a + b) / 2))^2, which approximates (log a - log b)^2; 0 if one of the pixels is invalid."""
    ratio = np.float32(2.0) * (a - b) / (a + b)
    return ratio * ratio if ratio == ratio else np.float32(0.0)


@parallel_loop(fastmath=STENCIL)
def _gradients(i, depth, squares, sums):  # type: ignore[no-untyped-def]
    """|grad log depth|^2 of each pixel, averaged over both sides; per row the sum of |grad| and the number of
    pixels."""
    height, width = depth.shape
    half = np.float32(0.5)
    # At the border of the image a row is its own neighbour, with difference zero.
    above, here, below = depth[max(i - 1, 0)], depth[i], depth[min(i + 1, height - 1)]
    row = squares[i]
    for j in range(width):
        row[j] = half * (_square(here[j], above[j]) + _square(here[j], below[j]))
    for j in range(1, width):
        row[j] += half * _square(here[j], here[j - 1])
    for j in range(width - 1):
        row[j] += half * _square(here[j], here[j + 1])
    total, count = 0.0, 0
    for j in range(width):
        total += np.float64(math.sqrt(row[j]))
        count += here[j] == here[j]
    sums[i, 0], sums[i, 1] = total, count


@parallel_loop(fastmath=STENCIL)
def _lower_weights(i, squares, contrast, across, down):  # type: ignore[no-untyped-def]
    """Lower the weight of each pair of neighbours to that of the squared gradients at both pixels."""
    one, least = np.float32(1.0), np.float32(MIN_EDGE_WEIGHT)
    inverse = np.float32(0.5 / contrast**2) if contrast > 0.0 else np.float32(0.0)
    height, width = squares.shape
    row, below = squares[i], squares[min(i + 1, height - 1)]
    for j in range(width - 1):
        across[i, j] = min(across[i, j], max(one / (one + (row[j] + row[j + 1]) * inverse), least))
    if i + 1 < height:
        for j in range(width):
            down[i, j] = min(down[i, j], max(one / (one + (row[j] + below[j]) * inverse), least))
