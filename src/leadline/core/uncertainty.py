"""How far the completed depth may be off: one standard deviation per pixel, learnt from measurements left out.

No formula says how wrong a network is. But the measurements can be asked: leave some out, complete without them, and
see by how much they are missed. Neighbours err alike, so they are left out in blocks, twice:

- a checkerboard of small blocks, which says how the error grows just beyond a measurement, and where in the image;
- two opposite quarters around the middle of the measurements, which says how it grows far from any, the response
  being fitted without them too.

Every measurement left out gives an error e in log depth at a distance d from the nearest one that was left in, in a
surrounding whose errors are m on average (those of the first kind, weighted by a Gaussian over two spacings; the point
itself and the part of the image left out with it do not count), and at a relief c, the standard deviation of the
completed log depth among the nine pixels there: at depth edges errors are largest. From all of them comes, by least
squares on log |e|,

    log sigma = b0 + b1 log(d / spacing) + b2 log m + b3 log(c + 0.003),

slightly drawn to b1 = 1/2, the growth of a random walk, b2 = 1 and b3 = 0, and then scaled so that COVERED of the |e|
/ sigma are below 1.96. Not their mean square: errors have heavy tails, and a few would set it alone. Far from all
measurements it is the response that errs, and how much it depends on what was measured is seen there too: by how much
the depth moves when the two quarters are left out, times d over the distance that is then the nearest, so that it
counts where they were far away in any case. The two are added in the square. The whole cost is two more completions
with half of the measurements each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.core.jit import compiled
from leadline.core.rejection import nearest_others
from leadline.core.types import BoolArray, FloatArray

FEWEST = 8
"""Measurements below which nothing can be learnt by leaving some out, and all standard deviations are NaN."""
BLOCK = 2.0
"""Side of the small blocks, and reach of what counts as surrounding, in spacings: wide enough to leave gaps."""
LARGEST = 2.0
"""Largest standard deviation in log depth: a factor of seven, beyond which one knows nothing anyway."""
COVERED = 0.96
"""Share of the measurements left out that lie within 1.96 sigma: a little above 95 %, because pixels err more than
measurements show. The mean over a sensor's cell hides what varies within it."""
_FLAT = 0.003  # log depth: relief below which a surface counts as even
_SMALLEST = 1e-4  # log depth: errors below it are those of float32 and of the solver's tolerance
_EXPECTED = (0.0, 0.5, 1.0, 0.0)  # b where errors say nothing,
_TRUST = (0.0, 20.0, 20.0, 20.0)  # and for how many errors of unit leverage that counts

Without = Callable[[BoolArray], FloatArray]


def log_deviation(
    without: Without,
    depth: FloatArray,
    where: NDArray[np.intp],
    measured: FloatArray,
    sigma: NDArray[np.float64] | None = None,
) -> NDArray[np.float32]:
    """Standard deviation of log depth per pixel, (H, W): relative error for all that is small. NaN with too few pairs.

    At a measured pixel it is the measurement's own.

    Parameters
    ----------
    without : callable
        From a boolean (n,) array, the depth completed without these measurements; called twice.
    depth : (H, W) array
        The depth completed from all of them, in metres.
    where : (n,) int
        Flat indices of the measured pixels, each once.
    measured : (n,) float
        Their depth in metres, > 0.
    sigma : (n,) float, optional
        Standard deviation of each in log depth. Default: 0.
    """
    shape = depth.shape
    if where.size < FEWEST:
        return np.full(shape, np.nan, np.float32)
    own = np.zeros(where.size) if sigma is None else sigma
    spacing = _spacing(where, (shape[0], shape[1]))
    folds = _folds(where, shape[1], spacing)
    near = distance_to(where, shape)
    errors, distances, reliefs = [], [], []
    for out in folds:
        predicted, distance = without(out), distance_to(where[~out], shape)
        errors.append(_errors(predicted.flat[where[out]], measured[out], own[out]))
        distances.append(distance.flat[where[out]])
        reliefs.append(_relief(predicted, where[out]))
    with np.errstate(invalid="ignore", divide="ignore"):  # of the second fold: its quarters
        shift = np.log(predicted.astype(np.float64) / depth) * near / distance

    small, large = folds
    mean = float(errors[0].mean())
    around = _Surrounding(where[small], errors[0], shape, spacing, mean)
    apart = ~large[small]
    elsewhere = _Surrounding(where[small][apart], errors[0][apart], shape, spacing, mean)
    means = around.at_its_points(), elsewhere.map().flat[where[large]]
    features = _features(np.concatenate(distances), np.concatenate(means), np.concatenate(reliefs), spacing)
    size = np.concatenate(errors)
    coefficients = _regression(features, np.log(size))
    scale = float(np.quantile(size / np.exp(features @ coefficients), COVERED)) / 1.96

    relief = _relief(depth, np.arange(depth.size)).reshape(shape)
    dense = scale * np.exp(_features(near, around.map(), relief, spacing) @ coefficients)
    result = np.minimum(np.sqrt(dense**2 + shift**2), LARGEST).astype(np.float32)
    result.flat[where] = own
    return result


def _errors(predicted: FloatArray, measured: FloatArray, own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors in log depth, without what the measurement itself is wrong by, which is not the prediction's fault."""
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.log(measured.astype(np.float64) / predicted)
    error = np.sqrt(np.maximum(error**2 - own**2, (0.1 * error) ** 2))
    return np.where(np.isfinite(error), np.minimum(error, LARGEST), LARGEST) + _SMALLEST


def _spacing(where: NDArray[np.intp], shape: tuple[int, int]) -> float:
    """Distance to the fourth nearest measurement, the median: on a square grid, its mesh."""
    fourth = nearest_others(where, shape, 4)[:, -1]
    rows, columns = np.divmod(where, shape[1])
    return float(np.median(np.hypot(rows - rows[fourth], columns - columns[fourth])))


def _folds(where: NDArray[np.intp], width: int, spacing: float) -> tuple[BoolArray, BoolArray]:
    """The measurements in every other small block, and those in two opposite quarters."""
    rows, columns = np.divmod(where, width)
    side = BLOCK * spacing
    small = ((rows // side).astype(np.intp) + (columns // side).astype(np.intp)) % 2 == 0
    if small.all() or not small.any():  # they lie in one block
        small = np.arange(where.size) % 2 == 0
    large = (rows > np.median(rows)) == (columns > np.median(columns))
    if large.all() or not large.any():  # in one row or column
        large = np.arange(where.size) < where.size // 2
    return small, large


def _features(
    distance: NDArray[np.float64], mean: NDArray[np.float64], relief: NDArray[np.float64], spacing: float
) -> NDArray[np.float64]:
    # A measured pixel, at distance zero, is not asked for.
    away = np.log(np.maximum(distance, 1.0) / spacing)
    return np.stack((np.ones_like(mean), away, np.log(mean), np.log(relief + _FLAT)), axis=-1)


def _relief(depth: FloatArray, where: NDArray[np.intp]) -> NDArray[np.float64]:
    """Standard deviation of log depth in the square of nine pixels around each of `where`, of those that are valid."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(depth.astype(np.float64))
    relief = np.empty(where.size)
    _deviations(logs, where, relief)
    return relief


def _regression(features: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients by least squares, drawn to what is expected; the error never falls with a feature."""
    trust = np.array(_TRUST)
    fixed: dict[int, float] = {}
    coefficients = np.zeros(trust.size)
    while True:
        free = [i for i in range(trust.size) if i not in fixed]
        rest = values - sum((features[:, i] * value for i, value in fixed.items()), np.zeros_like(values))
        x = features[:, free]
        normal = x.T @ x + np.diag(trust[free])
        coefficients[free] = np.linalg.solve(normal, x.T @ rest + trust[free] * np.array(_EXPECTED)[free])
        negative = [i for i in range(1, trust.size) if i in free and coefficients[i] < 0]
        if not negative:
            return coefficients
        for i in negative:
            fixed[i] = coefficients[i] = 0.0


class _Surrounding:
    """Mean of values at points, weighted by a Gaussian of their distance; far from all of them, `mean`."""

    def __init__(
        self,
        where: NDArray[np.intp],
        values: NDArray[np.float64],
        shape: tuple[int, ...],
        spacing: float,
        mean: float,
    ) -> None:
        self._where, self._values, self._mean = where, values, mean
        # Points are gathered in cells of half a spacing, so that the sums are two products of small matrices.
        side = max(1.0, spacing / 2)
        rows, columns = np.divmod(where, shape[1])
        self._cells = (rows / side).astype(np.intp), (columns / side).astype(np.intp)
        self._weights = [_gaussian(size, side, BLOCK * spacing) for size in shape]
        totals, counts = (np.zeros([weights.shape[1] for weights in self._weights]) for _ in range(2))
        np.add.at(totals, self._cells, values)
        np.add.at(counts, self._cells, 1.0)
        down, across = self._weights
        self._total, self._count = (down @ sums @ across.T for sums in (totals, counts))

    def map(self) -> NDArray[np.float64]:
        """At every pixel."""
        result: NDArray[np.float64] = (self._total + self._mean) / (self._count + 1.0)
        return result

    def at_its_points(self) -> NDArray[np.float64]:
        """At each of the points, without it."""
        rows, columns = np.divmod(self._where, self._total.shape[1])
        down, across = self._weights
        own = down[rows, self._cells[0]] * across[columns, self._cells[1]]
        total = np.maximum(self._total[rows, columns] - own * self._values, 0.0)
        count = np.maximum(self._count[rows, columns] - own, 0.0)
        result: NDArray[np.float64] = (total + self._mean) / (count + 1.0)
        return result


def _gaussian(size: int, side: float, width: float) -> NDArray[np.float64]:
    """Weight of each cell's middle at each pixel of an axis."""
    middles = (np.arange(math.ceil(size / side)) + 0.5) * side - 0.5
    weights: NDArray[np.float64] = np.exp(-0.5 * ((np.arange(size)[:, None] - middles) / width) ** 2)
    return weights


def distance_to(where: NDArray[np.intp], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Distance in pixels to the nearest of the points: Felzenszwalb and Huttenlocher's two passes."""
    squares = np.full(shape, float(shape[0] ** 2 + shape[1] ** 2) * 4.0)
    squares.flat[where] = 0.0
    for _ in range(2):
        squares = np.ascontiguousarray(squares.T)
        _envelope(squares)
    distance: NDArray[np.float64] = np.sqrt(squares)
    return distance


@compiled(parallel=True)
def _deviations(values, where, deviation):  # type: ignore[no-untyped-def]
    height, width = values.shape
    for n in prange(where.size):
        i, j = where[n] // width, where[n] % width
        total, square, count = 0.0, 0.0, 0
        for k in range(max(i - 1, 0), min(i + 2, height)):
            for m in range(max(j - 1, 0), min(j + 2, width)):
                off = values[k, m] - values[i, j]  # NaN, and left out, if either is invalid
                if off == off:
                    total += off
                    square += off * off
                    count += 1
        deviation[n] = math.sqrt(max(0.0, square / count - (total / count) ** 2)) if count else 0.0


@compiled(parallel=True)
def _envelope(squares):  # type: ignore[no-untyped-def]
    """Replace each row f by the lower envelope of the parabolas f_q + (p - q)^2."""
    for i in prange(squares.shape[0]):
        row = squares[i].copy()
        size = row.size
        apex = np.zeros(size, np.int64)
        start = np.empty(size + 1)
        last = 0
        start[0], start[1] = -np.inf, np.inf
        for q in range(1, size):
            cross = -np.inf
            while True:
                p = apex[last]
                cross = ((row[q] + q * q) - (row[p] + p * p)) / (2.0 * (q - p))
                if cross > start[last]:
                    break
                last -= 1
            last += 1
            apex[last], start[last], start[last + 1] = q, cross, np.inf
        last = 0
        for q in range(size):
            while start[last + 1] < q:
                last += 1
            squares[i, q] = row[apex[last]] + (q - apex[last]) ** 2
