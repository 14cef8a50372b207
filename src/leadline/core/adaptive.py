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
- **edge weights** 1 / (1 + (g / g_mean)^2), g the relative gradient of t, the mean square of both pixels'. They do not
  ask which way an edge runs: the multigrid needs less than half of the iterations then, and AbsRel rises by 1 to 3 %.
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

from leadline.base.arrays import FloatArray
from leadline.base.jit import STENCIL, compiled, inlined
from leadline.core.neighbours import FEWEST, Neighbours

PULL = 1000.0
"""Precision of a measurement in a cell of one depth, in units of the gradient weight: close to exact, since a surface
that is held at its other measurements gives way by some hundredths under a unit force, whatever the spacing."""
CLEAR = 300.0
"""Signal from which on residuals are followed as closely as that; with 100 a strong prior's normals are 10 % worse."""
ODD = 8.0
"""Roughnesses by which a measurement may differ from neighbours that agree before it loses its influence."""
TRIM = 0.1
"""Share of the measurements that may be gross outliers without setting the scale of what is odd."""
STIFFEST = 100.0
"""Largest stiffness: scores hardly change between 16 and 150, and the stiffer, the more iterations the solver needs."""
FAINTEST = 1e-3
"""Smallest edge weight: below it two surfaces are independent for any purpose, and the system only gets harder."""
_SMALLEST = 1e-6  # log depth: what float32 can tell apart
_FAINTEST_PULL = 1e-3  # share of PULL that measurements without a signal keep: still far more than the screening


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
        Mean relative gradient of t, per pixel.
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


def adapt(
    calibrated: NDArray[np.float32],
    where: NDArray[np.intp],
    measured: FloatArray,
    neighbours: Neighbours | None = None,
) -> Adapted:
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
    neighbours : Neighbours, optional
        Of these measurements, if they are known already.

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
    if where.size > FEWEST:
        neighbours = neighbours or Neighbours(where, (height, width))
        spacing = neighbours.spacing
        side = 2 * ((spacing - 1) // 2) + 1  # an odd number, so that the measured pixel is in the middle
        mean, spread = np.empty(where.size), np.empty(where.size)
        _cells(calibrated, where, side // 2, mean, spread)
        averaged = np.log(depth / mean)
        (errors, around), of_cells = neighbours.compare(targets), neighbours.compare(averaged)
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


def _edges(calibrated: NDArray[np.float32]) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], float]:
    """Weights across and down, and the mean relative gradient that they are measured by."""
    height, width = calibrated.shape
    squares = np.empty((height, width), np.float32)
    sums = np.empty((height, 2))
    _gradients(calibrated, squares, sums)
    total, count = sums.sum(axis=0)
    contrast = float(total / count) if count else 0.0
    across, down = np.empty((height, width - 1), np.float32), np.empty((height - 1, width), np.float32)
    _weigh(squares, contrast, across, down)
    return (across, down), contrast


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


@inlined
def _square(a, b):  # type: ignore[no-untyped-def]
    """((a - b) / ((a + b) / 2))^2, which is (log a - log b)^2 for all that is small; 0 beside an invalid pixel."""
    ratio = np.float32(2.0) * (a - b) / (a + b)
    return ratio * ratio if ratio == ratio else np.float32(0.0)


@compiled(parallel=True, fastmath=STENCIL)
def _gradients(depth, squares, sums):  # type: ignore[no-untyped-def]
    """|grad log depth|^2 of each pixel, the mean of both sides in each direction; per row the sum and number of |.|."""
    height, width = depth.shape
    half = np.float32(0.5)
    for i in prange(height):
        # Beyond the image's border a row is its own neighbour: no difference.
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


@compiled(parallel=True, fastmath=STENCIL)
def _weigh(squares, contrast, across, down):  # type: ignore[no-untyped-def]
    """Weight of each pair from both its pixels: one that depends on the direction of an edge is hard to solve with."""
    one, least = np.float32(1.0), np.float32(FAINTEST)
    inverse = np.float32(0.5 / contrast**2) if contrast > 0.0 else np.float32(0.0)
    height, width = squares.shape
    for i in prange(height):
        row, below = squares[i], squares[min(i + 1, height - 1)]
        for j in range(width - 1):
            across[i, j] = max(one / (one + (row[j] + row[j + 1]) * inverse), least)
        if i + 1 < height:
            for j in range(width):
                down[i, j] = max(one / (one + (row[j] + below[j]) * inverse), least)
