"""Standard deviation of the completed depth, estimated by leaving measurements out.

The error of a network cannot be derived from its prediction, but it can be observed: measurements are left out, the
depth is completed without them, and the errors at their pixels are recorded. Errors of neighbouring pixels are
correlated, so the measurements are left out in blocks, in two different ways:

- *small blocks*, every other one of a checkerboard: they show how the error grows close to a measurement, and in which
  parts of the image it is large;
- *two opposite quadrants* around the median position of the measurements: they show how the error grows far from all
  measurements. The response is fitted without them too.

**Regression.** Each measurement left out gives an error e in log depth with three features: the distance d from the
nearest measurement that was used; the mean error m around it, a Gaussian-weighted mean over two spacings of the errors
in the first experiment, without the measurement itself and without the part of the image that was left out with it; and
the relief c, the standard deviation of log depth over the 3 x 3 pixels, because errors are largest at depth edges.
Least squares on log |e| give the coefficients of

    log sigma = b0 + b1 log(d / spacing) + b2 log m + b3 log(c + 0.003),

with a weak penalty that shrinks them to b1 = 1/2 (the growth of a random walk), b2 = 1 and b3 = 0, and with none
negative.

**Scale.** b0 is then adjusted so that TARGET_COVERAGE of the |e| / sigma are below 1.96. The mean square is not used
for this, because errors have heavy tails and a few of them would determine it.

**Sensitivity of the response.** Far from all measurements the error is mostly that of the response. It is estimated by
the change of depth when the two quadrants are left out, multiplied by d and divided by the distance to the nearest
measurement outside of them, a factor that is small near the left-out measurements, where the change overestimates the
error. Its square is added to that of sigma.

The cost is that of two more completions with about half of the measurements each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from leadline.base.arrays import BoolArray, Float32Array, Float64Array, FloatArray, IndexArray
from leadline.base.jit import STENCIL, called_by_kernels, parallel_loop
from leadline.core.fit.elementary import exp, log
from leadline.core.neighbours import nearest_others

MIN_MEASUREMENTS = 8
"""With fewer measurements all standard deviations are NaN."""
BLOCK = 2.0
"""Side of the small blocks, and standard deviation of the Gaussian for mean errors, in spacings."""
MAX_SIGMA = 2.0
"""Largest standard deviation in log depth, which is a factor of seven."""
TARGET_COVERAGE = 0.96
"""Share of the left-out measurements within 1.96 sigma. It is above 95 %, because errors of pixels are larger than
those of measurements: the mean over a sensor cell hides the variation within it."""
_MIN_RELIEF = 0.003  # log depth; added to the relief, so that its logarithm is bounded on even surfaces
_MIN_ERROR = 1e-4  # log depth; smaller errors are due to float32 and the solver's tolerance
_EXPECTED = (0.0, 0.5, 1.0, 0.0)  # values to which b is shrunk
_PENALTY = (0.0, 20.0, 20.0, 20.0)  # weights of the penalty, in numbers of errors with unit features

CompleteWithout = Callable[[BoolArray], FloatArray]


def log_deviation(
    complete_without: CompleteWithout,
    depth: FloatArray,
    where: IndexArray,
    measured: FloatArray,
    sigma: Float64Array | None = None,
) -> Float32Array:
    """Standard deviation of log depth for each pixel, (H, W), which is about the relative error of depth.

    `complete_without` is called twice with an (n,) bool array and returns the depth completed without these
    measurements; `depth` was completed from all. At a measured pixel the result is the measurement's own `sigma` in log
    depth (default: 0). With fewer than `MIN_MEASUREMENTS` it is NaN.
    """
    shape = (depth.shape[0], depth.shape[1])
    if where.size < MIN_MEASUREMENTS:
        return np.full(shape, np.nan, np.float32)
    own = np.zeros(where.size) if sigma is None else sigma
    spacing = _spacing(where, shape)
    distance = distance_to(where, shape)
    blocks, quadrants = _experiments(where, shape[1], spacing)
    errors, distances, reliefs = [], [], []
    for left_out in (blocks, quadrants):
        predicted = complete_without(left_out)
        log_predicted, distance_without = _log_with_border(predicted), distance_to(where[~left_out], shape)
        relief = np.empty(np.count_nonzero(left_out), np.float32)
        _reliefs[relief.size](log_predicted, where[left_out], relief)
        reliefs.append(relief)
        errors.append(_errors(predicted.flat[where[left_out]], measured[left_out], own[left_out]))
        distances.append(distance_without.flat[where[left_out]])

    mean = float(errors[0].mean())
    around = _LocalMean(where[blocks], errors[0], shape, spacing, mean)
    outside = ~quadrants[blocks]
    outside_quadrants = _LocalMean(where[blocks][outside], errors[0][outside], shape, spacing, mean)
    means = around.leave_one_out(), outside_quadrants.at(where[quadrants])
    features = _features(np.concatenate(distances), np.concatenate(means), np.concatenate(reliefs), spacing)
    log_errors = np.log(np.concatenate(errors))
    coefficients = _regression(features, log_errors)
    coefficients[0] += np.quantile(log_errors - features @ coefficients, TARGET_COVERAGE) - math.log(1.96)

    result = np.empty(shape, np.float32)
    log_depth = _log_with_border(depth)
    # log_predicted and distance_without are now those without the quadrants
    maps = log_depth, log_predicted, distance, distance_without
    _deviations[len(result)](*maps, around.log_nodes, spacing, coefficients, result)
    result.flat[where] = own
    return result


def _errors(predicted: FloatArray, measured: FloatArray, own: Float64Array) -> Float64Array:
    """Magnitudes of the errors in log depth, with the variance of the measurement itself subtracted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.log(measured.astype(np.float64) / predicted)
    error = np.sqrt(np.maximum(error**2 - own**2, (0.1 * error) ** 2))
    return np.where(np.isfinite(error), np.minimum(error, MAX_SIGMA), MAX_SIGMA) + _MIN_ERROR


def _spacing(where: IndexArray, shape: tuple[int, int]) -> float:
    """Median distance to the fourth nearest measurement in pixels; on a square grid the mesh width."""
    fourth = nearest_others(where, shape, 4)[:, -1]
    rows, columns = np.divmod(where, shape[1])
    return float(np.median(np.hypot(rows - rows[fourth], columns - columns[fourth])))


def _experiments(where: IndexArray, width: int, spacing: float) -> tuple[BoolArray, BoolArray]:
    """Which measurements are left out: those in every other small block, and those in two opposite quadrants."""
    rows, columns = np.divmod(where, width)
    side = BLOCK * spacing
    small = ((rows // side).astype(np.intp) + (columns // side).astype(np.intp)) % 2 == 0
    if small.all() or not small.any():  # all lie in one block
        small = np.arange(where.size) % 2 == 0
    large = (rows > np.median(rows)) == (columns > np.median(columns))
    if large.all() or not large.any():  # all lie in one row or column
        large = np.arange(where.size) < where.size // 2
    return small, large


def _features(distance: Float32Array, mean: Float64Array, relief: Float32Array, spacing: float) -> Float64Array:
    # Distance zero occurs at measured pixels only, whose sigma is known.
    log_distance = np.log(np.maximum(distance, 1.0) / spacing)
    return np.stack((np.ones_like(mean), log_distance, np.log(mean), np.log(relief + _MIN_RELIEF)), axis=-1)


def _log_with_border(depth: FloatArray) -> Float32Array:
    """Log depth, with a border of NaN."""
    logs = np.full((depth.shape[0] + 2, depth.shape[1] + 2), np.nan, np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        np.log(depth, out=logs[1:-1, 1:-1], casting="same_kind")
    return logs


def _regression(features: Float64Array, values: Float64Array) -> Float64Array:
    """Coefficients by penalised least squares; all but the constant are at least 0."""
    penalty = np.array(_PENALTY)
    fixed: dict[int, float] = {}
    coefficients = np.zeros(penalty.size)
    while True:
        free = [i for i in range(penalty.size) if i not in fixed]
        rest = values - sum((features[:, i] * value for i, value in fixed.items()), np.zeros_like(values))
        x = features[:, free]
        normal = x.T @ x + np.diag(penalty[free])
        coefficients[free] = np.linalg.solve(normal, x.T @ rest + penalty[free] * np.array(_EXPECTED)[free])
        negative = [i for i in range(1, penalty.size) if i in free and coefficients[i] < 0]
        if not negative:
            return coefficients
        for i in negative:
            fixed[i] = coefficients[i] = 0.0


class _LocalMean:
    """Gaussian-weighted mean of values at points; far from all points it tends to `mean`.

    The sums are formed at nodes that are one spacing apart: values are distributed to the four nodes around a point,
    and interpolated bilinearly from the four nodes around a pixel. Each of these steps widens the Gaussian by a sixth
    of a squared spacing on average, which is subtracted from its variance.
    """

    def __init__(
        self, where: IndexArray, values: Float64Array, shape: tuple[int, int], spacing: float, mean: float
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
    def log_nodes(self) -> Float32Array:
        """Logarithms of the means at the nodes."""
        return np.log(self._means(self._total, self._count)).astype(np.float32)

    def at(self, where: IndexArray) -> Float64Array:
        """The means at these pixels."""
        return self._means(*self._sums(where))

    def leave_one_out(self) -> Float64Array:
        """The mean at each of the points, without the point itself."""
        total, count = self._sums(self._where)
        row, column = (1.0 - 2.0 * (1.0 - _gaussian(1.0)) * f * (1.0 - f) for _, f in self._places(self._where))
        own = row * column  # weight of a point in its own mean, from fractions f and 1 - f at two nodes
        return self._means(np.maximum(total - own * self._values, 0.0), np.maximum(count - own, 0.0))

    def _means(self, total: Float64Array, count: Float64Array) -> Float64Array:
        return (total + self._mean) / (count + 1.0)

    def _sums(self, where: IndexArray) -> list[Float64Array]:
        corners, shares = self._corners(where)
        return [(shares * sums[corners]).sum(axis=0) for sums in (self._total, self._count)]

    def _places(self, where: IndexArray) -> Iterator[tuple[IndexArray, Float64Array]]:
        """For rows, then columns: the last node before each pixel, and the pixel's distance from it in spacings."""
        for place in np.divmod(where, self._width):
            node = (place / self._spacing).astype(np.intp)
            yield node, place / self._spacing - node

    def _corners(self, where: IndexArray) -> tuple[tuple[IndexArray, IndexArray], Float64Array]:
        """Rows and columns of the four nodes around each pixel, and their bilinear weights, (4, n)."""
        (row, f), (column, g) = self._places(where)
        corners = np.stack((row, row, row + 1, row + 1)), np.stack((column, column + 1, column, column + 1))
        return corners, np.stack(((1 - f) * (1 - g), (1 - f) * g, f * (1 - g), f * g))


def _gaussian(spacings: IndexArray | float) -> Float64Array:
    weight: Float64Array = np.exp(-0.5 * np.square(spacings) / (BLOCK**2 - 1 / 3))
    return weight


def distance_to(where: IndexArray, shape: tuple[int, int]) -> Float32Array:
    """Euclidean distance of each pixel to the nearest of the points, (H, W), in pixels."""
    from scipy.ndimage import distance_transform_edt

    elsewhere = np.ones(shape, np.bool_)
    elsewhere.flat[where] = False
    return distance_transform_edt(elsewhere).astype(np.float32)  # type: ignore[no-any-return]


@called_by_kernels(fastmath=STENCIL)
def _relief_row(above, here, below, relief):  # type: ignore[no-untyped-def]
    """Relief of a row of pixels from three rows of log depth, which have one more pixel at each end."""
    none, one = np.float32(0.0), np.float32(1.0)
    for j in range(relief.size):
        total, square, count = none, none, none
        middle = here[j + 1]
        for log_depth in (
            above[j], above[j + 1], above[j + 2], here[j], middle, here[j + 2], below[j], below[j + 1], below[j + 2]
        ):  # fmt: skip
            off = log_depth - middle  # NaN if one of the pixels is invalid
            valid = off == off
            total += off if valid else none
            square += off * off if valid else none
            count += one if valid else none
        share = one / max(count, one)
        relief[j] = math.sqrt(max(none, share * square - (share * total) * (share * total)))


@parallel_loop()
def _reliefs(n, logs, where, relief):  # type: ignore[no-untyped-def]
    """Standard deviation of log depth in the square of nine pixels around each of `where`, of those that are valid."""
    width = logs.shape[1] - 2
    i, j = where[n] // width, where[n] % width
    square = logs[i : i + 3, j : j + 3]
    _relief_row(square[0], square[1], square[2], relief[n : n + 1])


@parallel_loop(fastmath=STENCIL)
def _deviations(  # type: ignore[no-untyped-def]
    i, logs, logs_without, distance, distance_without, nodes, spacing, coefficients, deviation
):
    """Sigma of every pixel; `nodes` are the logarithms of the local mean errors."""
    width = deviation.shape[1]
    constant, by_distance, by_mean, by_relief = coefficients
    constant -= by_distance * math.log(spacing)
    k = int(i / spacing)
    f = i / spacing - k
    row = by_mean * ((1.0 - f) * nodes[k] + f * nodes[k + 1]) + constant
    power, relief = np.empty(width, np.float32), np.empty(width, np.float32)
    for j in range(width):
        m = int(j / spacing)
        power[j] = row[m] + (j / spacing - m) * (row[m + 1] - row[m])
    _relief_row(logs[i], logs[i + 1], logs[i + 2], relief)
    _sigma_row(
        power, relief, logs[i + 1], logs_without[i + 1], distance[i], distance_without[i], by_distance, by_relief,
        deviation[i],
    )  # fmt: skip


@called_by_kernels(fastmath=STENCIL)
def _sigma_row(  # type: ignore[no-untyped-def]
    power, relief, logs, logs_without, distance, distance_without, by_distance, by_relief, deviation
):
    for j in range(power.size):
        x = power[j] + by_distance * log(max(distance[j], 1.0)) + by_relief * log(relief[j] + _MIN_RELIEF)
        shift = np.float64(logs_without[j + 1] - logs[j + 1]) * distance[j] / distance_without[j]
        square = exp(2.0 * x) + shift * shift
        deviation[j] = MAX_SIGMA if square > MAX_SIGMA * MAX_SIGMA else math.sqrt(square)  # NaN stays NaN
