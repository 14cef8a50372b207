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
from collections.abc import Callable, Iterator

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.jit import STENCIL, compiled, one_caller
from leadline.core.fit.elementary import exp, log
from leadline.core.outliers import nearest_others

FEWEST = 8
"""Measurements below which nothing can be learnt by leaving some out, and all standard deviations are NaN."""
BLOCK = 2.0
"""Side of the small blocks, and reach of what counts as surrounding, in spacings: wide enough to leave gaps."""
LARGEST = 2.0
"""Largest standard deviation in log depth: a factor of seven, beyond which one knows nothing anyway."""
COVERED = 0.96
"""Share of the measurements left out that lie within 1.96 sigma: a little above 95 %, because pixels err more than
measurements show. The mean over a sensor's cell hides what varies within it."""
_STRIP = 64  # columns: some cache lines
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
    shape = (depth.shape[0], depth.shape[1])
    if where.size < FEWEST:
        return np.full(shape, np.nan, np.float32)
    own = np.zeros(where.size) if sigma is None else sigma
    with one_caller():
        spacing, near = _spacing(where, shape), distance_to(where, shape)
    small, large = _folds(where, shape[1], spacing)
    errors, distances, reliefs = [], [], []
    for out in (small, large):
        predicted = without(out)
        with one_caller():
            left, far = _logs(predicted), distance_to(where[~out], shape)
            reliefs.append(_relief(left, where[out]))
        errors.append(_errors(predicted.flat[where[out]], measured[out], own[out]))
        distances.append(far.flat[where[out]])

    mean = float(errors[0].mean())
    around = _Surrounding(where[small], errors[0], shape, spacing, mean)
    apart = ~large[small]
    elsewhere = _Surrounding(where[small][apart], errors[0][apart], shape, spacing, mean)
    means = around.at_its_points(), elsewhere.at(where[large])
    features = _features(np.concatenate(distances), np.concatenate(means), np.concatenate(reliefs), spacing)
    sizes = np.log(np.concatenate(errors))
    coefficients = _regression(features, sizes)
    coefficients[0] += np.quantile(sizes - features @ coefficients, COVERED) - math.log(1.96)

    result = np.empty(shape, np.float32)
    with one_caller():  # what was left out last are the quarters
        _deviations(_logs(depth), left, near, far, around.logs, spacing, coefficients, result)
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
    distance: NDArray[np.float32], mean: NDArray[np.float64], relief: NDArray[np.float32], spacing: float
) -> NDArray[np.float64]:
    # A measured pixel, at distance zero, is not asked for.
    away = np.log(np.maximum(distance, 1.0) / spacing)
    return np.stack((np.ones_like(mean), away, np.log(mean), np.log(relief + _FLAT)), axis=-1)


def _logs(depth: FloatArray) -> NDArray[np.float32]:
    """Log depth, with a border of NaN."""
    logs = np.full((depth.shape[0] + 2, depth.shape[1] + 2), np.nan, np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        np.log(depth, out=logs[1:-1, 1:-1], casting="same_kind")
    return logs


def _relief(logs: NDArray[np.float32], where: NDArray[np.intp]) -> NDArray[np.float32]:
    """Standard deviation of log depth in the square of nine pixels around each of `where`, of those that are valid."""
    relief = np.empty(where.size, np.float32)
    _reliefs(logs, where, relief)
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
    """Mean of values at points, weighted by a Gaussian of their distance; far from all of them, `mean`.

    The sums are formed at nodes a spacing apart: a point is shared out between the four around it, and a pixel asks
    the four around it. Either widens the Gaussian, by a sixth of a squared spacing on the average; it is made as much
    narrower.
    """

    def __init__(
        self,
        where: NDArray[np.intp],
        values: NDArray[np.float64],
        shape: tuple[int, int],
        spacing: float,
        mean: float,
    ) -> None:
        self._where, self._values, self._mean = where, values, mean
        self._width, self._spacing = shape[1], spacing
        nodes = [int((size - 1) / self._spacing) + 2 for size in shape]
        down, across = (_gaussian(np.subtract.outer(np.arange(n), np.arange(n))) for n in nodes)
        corners, shares = self._corners(where)
        self._total, self._count = (np.zeros(nodes) for _ in range(2))
        for sums, of_each in ((self._total, values), (self._count, 1.0)):
            np.add.at(sums, corners, shares * of_each)
            sums[:] = down @ sums @ across

    @property
    def logs(self) -> NDArray[np.float32]:
        """Logarithms of the means at the nodes."""
        return np.log(self._means(self._total, self._count)).astype(np.float32)

    def at(self, where: NDArray[np.intp]) -> NDArray[np.float64]:
        """The means at some pixels."""
        return self._means(*self._sums(where))

    def at_its_points(self) -> NDArray[np.float64]:
        """At each of the points, without it."""
        total, count = self._sums(self._where)
        row, column = (1.0 - 2.0 * (1.0 - _gaussian(1.0)) * f * (1.0 - f) for _, f in self._places(self._where))
        own = row * column  # with f of it at one node and 1 - f at the next, to either of which it speaks from both
        return self._means(np.maximum(total - own * self._values, 0.0), np.maximum(count - own, 0.0))

    def _means(self, total: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
        return (total + self._mean) / (count + 1.0)

    def _sums(self, where: NDArray[np.intp]) -> list[NDArray[np.float64]]:
        corners, shares = self._corners(where)
        return [(shares * sums[corners]).sum(axis=0) for sums in (self._total, self._count)]

    def _places(self, where: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
        """The last node above, and to the left of, each pixel, and how far beyond it the pixel is, in spacings."""
        for place in np.divmod(where, self._width):
            node = (place / self._spacing).astype(np.intp)
            yield node, place / self._spacing - node

    def _corners(
        self, where: NDArray[np.intp]
    ) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]]:
        """Rows and columns of the four nodes around each pixel, and the share of each, (4, n)."""
        (row, f), (column, g) = self._places(where)
        corners = np.stack((row, row, row + 1, row + 1)), np.stack((column, column + 1, column, column + 1))
        return corners, np.stack(((1 - f) * (1 - g), (1 - f) * g, f * (1 - g), f * g))


def _gaussian(spacings: NDArray[np.intp] | float) -> NDArray[np.float64]:
    weight: NDArray[np.float64] = np.exp(-0.5 * np.square(spacings) / (BLOCK**2 - 1 / 3))
    return weight


def distance_to(where: NDArray[np.intp], shape: tuple[int, int]) -> NDArray[np.float32]:
    """Distance in pixels to the nearest of the points: Felzenszwalb and Huttenlocher's two passes."""
    distance = np.full(shape, np.inf, np.float32)
    distance.flat[where] = 0.0
    _down(distance)
    _across(distance)
    return distance


@compiled(fastmath=STENCIL)
def _relief_row(above, here, below, relief):  # type: ignore[no-untyped-def]
    """Of three rows of log depth, each longer than `relief` by a pixel at both ends."""
    none, one = np.float32(0.0), np.float32(1.0)
    for j in range(relief.size):
        total, square, count = none, none, none
        middle = here[j + 1]
        for log_depth in (
            above[j],
            above[j + 1],
            above[j + 2],
            here[j],
            middle,
            here[j + 2],
            below[j],
            below[j + 1],
            below[j + 2],
        ):
            off = log_depth - middle  # NaN, and left out, if either is invalid
            valid = off == off
            total += off if valid else none
            square += off * off if valid else none
            count += one if valid else none
        share = one / max(count, one)
        relief[j] = math.sqrt(max(none, share * square - (share * total) * (share * total)))


@compiled(parallel=True)
def _reliefs(logs, where, relief):  # type: ignore[no-untyped-def]
    width = logs.shape[1] - 2
    for n in prange(where.size):
        i, j = where[n] // width, where[n] % width
        square = logs[i : i + 3, j : j + 3]
        _relief_row(square[0], square[1], square[2], relief[n : n + 1])


@compiled(parallel=True, fastmath=STENCIL)
def _deviations(logs, left, near, far, nodes, spacing, coefficients, deviation):  # type: ignore[no-untyped-def]
    """Sigma of every pixel; `nodes` are the log means of the surroundings."""
    height, width = deviation.shape
    constant, by_distance, by_mean, by_relief = coefficients
    constant -= by_distance * math.log(spacing)
    for i in prange(height):
        k = int(i / spacing)
        f = i / spacing - k
        row = by_mean * ((1.0 - f) * nodes[k] + f * nodes[k + 1]) + constant
        power, relief = np.empty(width, np.float32), np.empty(width, np.float32)
        for j in range(width):
            m = int(j / spacing)
            power[j] = row[m] + (j / spacing - m) * (row[m + 1] - row[m])
        _relief_row(logs[i], logs[i + 1], logs[i + 2], relief)
        _sigma_row(power, relief, logs[i + 1], left[i + 1], near[i], far[i], by_distance, by_relief, deviation[i])


@compiled(fastmath=STENCIL)
def _sigma_row(power, relief, logs, left, near, far, by_distance, by_relief, deviation):  # type: ignore[no-untyped-def]
    for j in range(power.size):
        x = power[j] + by_distance * log(max(near[j], 1.0)) + by_relief * log(relief[j] + _FLAT)
        shift = np.float64(left[j + 1] - logs[j + 1]) * near[j] / far[j]
        square = exp(2.0 * x) + shift * shift
        deviation[j] = LARGEST if square > LARGEST * LARGEST else math.sqrt(square)  # NaN stays


@compiled(parallel=True)
def _down(distance):  # type: ignore[no-untyped-def]
    """To the nearest zero of the same column, in strips of columns; infinite if there is none."""
    height, width = distance.shape
    one = np.float32(1.0)
    for strip in prange((width + _STRIP - 1) // _STRIP):
        columns = distance[:, strip * _STRIP : (strip + 1) * _STRIP]
        for i in range(1, height):
            for j in range(columns.shape[1]):
                columns[i, j] = min(columns[i, j], columns[i - 1, j] + one)
        for i in range(height - 2, -1, -1):
            for j in range(columns.shape[1]):
                columns[i, j] = min(columns[i, j], columns[i + 1, j] + one)


@compiled(parallel=True)
def _across(distance):  # type: ignore[no-untyped-def]
    """From distances d within columns to those in the plane: the lower envelope of each row's d_q^2 + (p - q)^2."""
    height, width = distance.shape
    for i in prange(height):
        row = distance[i]
        apex, level, start = np.empty(width, np.int32), np.empty(width), np.empty(width)
        count = 0
        for q in range(width):
            if row[q] == np.inf:
                continue
            here, cross = np.float64(row[q]) ** 2 + np.float64(q) ** 2, -np.inf
            while count > 0:
                cross = (here - level[count - 1]) / (2.0 * (q - apex[count - 1]))
                if cross > start[count - 1]:
                    break
                count, cross = count - 1, -np.inf
            apex[count], level[count], start[count] = q, here, cross
            count += 1
        first = 0
        for k in range(count):
            last = min(width, max(first, math.ceil(start[k + 1]))) if k < count - 1 else width
            middle = np.float32(apex[k])
            rest = np.float32(level[k] - np.float64(apex[k]) ** 2)
            for p in range(first, last):
                row[p] = math.sqrt(rest + (np.float32(p) - middle) * (np.float32(p) - middle))
            first = last
