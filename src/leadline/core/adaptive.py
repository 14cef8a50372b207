"""Which residual system suits an image, read off its own measurements.

The paper's system is the same for every image. What an image wants depends on how good its prior is: a blurred prior
leaves a large, smooth residual that a stiff, closely fitted surface interpolates well; with a sharp one most of what is
left is the *measurements'* fault, because a sensor's cell that straddles a depth edge reports a depth on neither side.
Nothing here asks which prior it is. Every choice is a ratio of two quantities of this image:

- **spacing**, the distance between measurements in pixels: the smallest square around a measurement that holds four
  others, its half-width, the median over the measurements.
- **cell or pixel.** A measurement s may be the depth of its pixel or the mean depth of a cell. Both residuals,
  log(s / t) at the pixel and log(s / mean of t over a square of that spacing), are compared with the median of
  their neighbours'; the one that its neighbours predict better is what the surface is drawn through.
- **precision.** Residuals without a common trend are noise and draw nothing: c is PULL min(1, signal / CLEAR), with
  roughness the mean error of that prediction and signal the variance (size / roughness)^2 - 1 of what is left above it.
  A measurement that its neighbours contradict, by an error e, keeps 1 / (1 + (e / (ODD roughness + 2 around))^2)^2 of
  that, with around the third largest distance of a neighbour from the neighbours' median: an outlier is alone, a thing
  that the prior misses is not. One that averages a cell keeps 1 / (1 + (spread / roughness)^2), spread being the
  relative standard deviation of t in the cell: where t varies within the cell by more than residuals do from one
  measurement to the next, where in the cell was measured matters more than what was measured.
- **edge weights** 1 / (1 + (g / g_mean)^2), g the relative difference of t between neighbouring pixels.
- **stiffness** (spacing / 2)^2, so that the surface is a thin plate around each measurement, which makes no tents, and
  a membrane beyond; and **screening** 1 / diagonal^2: the residual fades over the size of the image. Both make the
  result independent of resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.core.jit import STENCIL, SUM, compiled
from leadline.core.types import FloatArray

PULL = 100.0
"""Precision of a measurement in a cell of one depth, in units of the gradient weight: close to exact, since a surface
that is held at its other measurements gives way by some hundredths under a unit force, whatever the spacing."""
CLEAR = 10.0
"""Signal from which on residuals are followed as closely as that; between 3 and 10 scores hardly change."""
ODD = 8.0
"""Roughnesses by which a measurement may differ from neighbours that agree before it loses its influence."""
TRIM = 0.1
"""Share of the measurements that may be gross outliers without setting the scale of what is odd."""
STIFFEST = 100.0
"""Largest stiffness: scores hardly change between 16 and 150, and the stiffer, the more iterations the solver needs."""
FAINTEST = 1e-3
"""Smallest edge weight: below it two surfaces are independent for any purpose, and the system only gets harder."""
_NEIGHBOURS = 4  # a square with fewer others in it is widened
_SMALLEST = 1e-6  # log depth: what float32 can tell apart
_FAINTEST_PULL = 1e-2  # share of PULL that measurements without a signal keep: still far more than the screening


@dataclass(frozen=True, eq=False)
class Adapted:
    """The system chosen for an image; `to_dict` says in numbers what was chosen.

    Attributes
    ----------
    targets, precision : (n,) float64
        Log residual that the surface is drawn to at each measurement, and how strongly.
    edges : pair of float32 arrays, (H, W - 1) and (H - 1, W)
        Weight of the difference to the right, and to the lower, neighbour.
    stiffness, screening : float
        Weights of the residual's curvature and of its size, that of its gradient being 1.
    spacing : int
        Distance between measurements in pixels.
    cell : int
        Side, in pixels, of the square that a measurement was found to average over; 1: its pixel alone.
    roughness : float
        Mean error, in log depth, of a residual that is predicted by its neighbours'; NaN with too few measurements.
    contrast : float
        Mean relative difference of t between neighbouring pixels.
    """

    targets: NDArray[np.float64]
    precision: NDArray[np.float64]
    edges: tuple[NDArray[np.float32], NDArray[np.float32]]
    stiffness: float
    screening: float
    spacing: int
    cell: int
    roughness: float
    contrast: float

    def to_dict(self) -> dict[str, Any]:
        """What was chosen, without the arrays; `held` is the mean share of the precision that measurements kept."""
        names = ("stiffness", "screening", "spacing", "cell", "roughness", "contrast")
        held = float(np.mean(self.precision)) / PULL if self.precision.size else math.nan
        return {**{name: getattr(self, name) for name in names}, "held": held}


def adapt(calibrated: NDArray[np.float32], where: NDArray[np.intp], measured: FloatArray) -> Adapted:
    """The residual system that suits these measurements and this calibrated prior.

    With fewer than five measurements nothing can be learnt from neighbours: each is then taken for its pixel's depth.

    Parameters
    ----------
    calibrated : (H, W) float32
        t in metres, NaN at invalid pixels.
    where : (n,) int
        Flat indices of the measured pixels, each once; t must be valid there.
    measured : (n,) float
        Their depth in metres, > 0.

    Examples
    --------
    >>> t = np.ones((64, 64), np.float32)
    >>> where = np.flatnonzero(np.indices((64, 64)).max(axis=0) % 8 == 3)[::8]
    >>> adapt(t, where, np.full(where.size, 2.0)).targets.round(3).max()
    np.float64(0.693)
    """
    height, width = calibrated.shape
    depth = measured.astype(np.float64)
    targets = np.log(depth / calibrated.flat[where].astype(np.float64))
    spacing, cell, roughness = math.ceil(math.sqrt(calibrated.size / max(1, where.size))), 1, math.nan
    precision = np.full(where.size, PULL)
    if where.size > _NEIGHBOURS:
        index = np.full((height, width), -1, np.int32)
        index.flat[where] = np.arange(where.size, dtype=np.int32)
        reach = np.empty(where.size, np.int32)
        _reach(index, where, reach)
        spacing = int(np.median(reach))
        side = 2 * ((spacing - 1) // 2) + 1  # an odd number, so that the measured pixel is in the middle
        mean, spread = np.empty(where.size), np.empty(where.size)
        _cells(calibrated, where, side // 2, mean, spread)
        averaged = np.log(depth / mean)
        (errors, around), of_cells = (_compared(index, where, reach, values) for values in (targets, averaged))
        if np.mean(of_cells[0]) < np.mean(errors):  # of all of them: it is the few on depth edges that tell
            targets, cell, (errors, around) = averaged, side, of_cells
        roughness = _size(errors)
        noise = max(roughness, _SMALLEST)
        signal = (_size(np.abs(targets)) / noise) ** 2 - 1.0
        precision *= min(1.0, max(signal / CLEAR, _FAINTEST_PULL))
        precision /= (1.0 + (errors / (ODD * noise + 2.0 * around)) ** 2) ** 2
        if cell > 1:
            precision /= 1.0 + (spread / noise) ** 2
    edges, contrast = _edges(calibrated)
    return Adapted(
        targets,
        precision,
        edges,
        min((spacing / 2) ** 2, STIFFEST),
        1.0 / (height**2 + width**2),
        spacing,
        cell,
        roughness,
        contrast,
    )


def _size(errors: NDArray[np.float64]) -> float:
    """Mean of all but the largest TRIM: gross outliers must not set the scale.

    At least a tenth of the mean of all: without any noise, all that is interesting is among the largest.
    """
    kept = errors.size - int(TRIM * errors.size)
    return float(max(np.mean(np.partition(errors, kept - 1)[:kept]), 0.1 * np.mean(errors)))


def _compared(
    index: NDArray[np.int32], where: NDArray[np.intp], reach: NDArray[np.int32], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distance of each value from the median of those within its reach, and the third largest distance of these."""
    errors, around = np.empty(where.size), np.empty(where.size)
    _compare(index, where, reach, values, errors, around)
    return errors, around


def _edges(calibrated: NDArray[np.float32]) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], float]:
    """Weights across and down, and the mean relative difference that they are measured by."""
    height, width = calibrated.shape
    across, down = np.empty((height, width - 1), np.float32), np.empty((height - 1, width), np.float32)
    sums = np.empty((height, 2))
    _differences(calibrated, across, down, sums)
    total, count = sums.sum(axis=0)
    contrast = float(total / count) if count else 0.0
    for weights in (across, down):
        _weigh(weights, contrast)
    return (across, down), contrast


@compiled()
def _reach(index, where, reach):  # type: ignore[no-untyped-def]
    """Half-width of the smallest square around each that holds _NEIGHBOURS others; there are as many in the image."""
    height, width = index.shape
    for k in range(where.size):
        row, column = where[k] // width, where[k] % width
        found, radius = 0, 0
        while found < _NEIGHBOURS:
            radius += 1
            for i in range(max(row - radius, 0), min(row + radius + 1, height)):
                step = 1 if abs(i - row) == radius else 2 * radius  # whole rows at top and bottom, else the two ends
                for j in range(column - radius, column + radius + 1, step):
                    if 0 <= j < width and index[i, j] >= 0:
                        found += 1
        reach[k] = radius


@compiled()
def _compare(index, where, reach, values, errors, around):  # type: ignore[no-untyped-def]
    height, width = index.shape
    found = np.empty(_NEIGHBOURS + 8 * reach.max())  # fewer inside the largest square, and its border
    for k in range(where.size):
        row, column, radius = where[k] // width, where[k] % width, reach[k]
        count = 0
        for i in range(max(row - radius, 0), min(row + radius + 1, height)):
            for j in range(max(column - radius, 0), min(column + radius + 1, width)):
                if index[i, j] >= 0 and not (i == row and j == column):
                    place, value = count, values[index[i, j]]
                    while place > 0 and found[place - 1] > value:  # by insertion: they are a handful
                        found[place] = found[place - 1]
                        place -= 1
                    found[place] = value
                    count += 1
        median = (found[(count - 1) // 2] + found[count // 2]) / 2
        errors[k] = abs(values[k] - median)
        first, last = 0, count - 1
        for _ in range(3):  # sorted, so that the largest distances are at the ends
            below, above = median - found[first], found[last] - median
            around[k] = max(below, above)
            first, last = (first + 1, last) if below > above else (first, last - 1)


@compiled()
def _cells(depth, where, half, mean, spread):  # type: ignore[no-untyped-def]
    """Mean and relative standard deviation of the valid depths in the square around each measurement."""
    height, width = depth.shape
    for k in range(where.size):
        row, column = where[k] // width, where[k] % width
        middle = np.float64(depth[row, column])  # deviations from it are small: no digits are lost in their squares
        total, square, count = 0.0, 0.0, 0
        for i in range(max(row - half, 0), min(row + half + 1, height)):
            for j in range(max(column - half, 0), min(column + half + 1, width)):
                off = np.float64(depth[i, j]) - middle
                if off == off:
                    total += off
                    square += off * off
                    count += 1
        mean[k] = middle + total / count
        spread[k] = math.sqrt(max(0.0, square / count - (total / count) ** 2)) / mean[k]


@compiled(parallel=True, fastmath=SUM)
def _differences(depth, across, down, sums):  # type: ignore[no-untyped-def]
    """|a - b| / ((a + b) / 2), which is |log a - log b| for all that is small; per row their sum and number."""
    height, width = depth.shape
    for i in prange(height):
        total, count = 0.0, 0.0
        for j in range(width - 1):
            g = np.float32(2.0) * abs(depth[i, j + 1] - depth[i, j]) / (depth[i, j + 1] + depth[i, j])
            across[i, j] = g
            total += np.float64(g) if g == g else 0.0
            count += 1.0 if g == g else 0.0
        if i + 1 < height:
            for j in range(width):
                g = np.float32(2.0) * abs(depth[i + 1, j] - depth[i, j]) / (depth[i + 1, j] + depth[i, j])
                down[i, j] = g
                total += np.float64(g) if g == g else 0.0
                count += 1.0 if g == g else 0.0
        sums[i, 0], sums[i, 1] = total, count


@compiled(parallel=True, fastmath=STENCIL)
def _weigh(weights, contrast):  # type: ignore[no-untyped-def]
    """Relative differences into weights; 1 where a pixel is invalid, since there is no edge."""
    inverse = np.float32(1.0 / contrast) if contrast > 0.0 else np.float32(0.0)
    for i in prange(weights.shape[0]):
        for j in range(weights.shape[1]):
            share = weights[i, j] * inverse
            weight = np.float32(1.0) / (np.float32(1.0) + share * share)
            weights[i, j] = max(weight, np.float32(FAINTEST)) if weight == weight else np.float32(1.0)
