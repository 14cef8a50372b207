"""Ordinary kriging of the residual: a Gaussian process with an unknown constant mean, from the nearest measurements.

Matheron 1963, *Principles of Geostatistics*; Rasmussen and Williams 2006, *Gaussian Processes for Machine Learning*.
The covariance of two residuals log(s / t) at distance d is sill exp(-d / length), and a measurement has the
additional variance `nugget`. The three numbers are fitted to the image's own variogram, half the mean squared
difference of pairs of measurements as a function of their distance. At each pixel the best linear unbiased prediction
from its nearest measurements is computed. Written from the textbooks; SciPy's tree finds the neighbours.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import require_count
from leadline.base.jit import parallel_loop
from leadline.core.prior import Prior
from leadline.methods import MethodResult
from leadline.methods.classical.fields import Interpolated, Quantity, interpolate, pixel_places

BINS = 15  # of the distance in the variogram, equally spaced in its logarithm
MOST_IN_VARIOGRAM = 1500  # measurements, equally spaced in row-major order, whose pairs form the variogram
LENGTHS = 40  # candidates for the correlation length
LEAST_NUGGET = 1e-6  # relative to the sill; it keeps the small systems solvable
ROWS = 64  # rows of the image whose neighbours are found at once
_Floats = NDArray[np.float64]


def kriging(prior: Prior, sparse: FloatArray, *, quantity: Quantity = "residual", neighbours: int = 16) -> MethodResult:
    """The aligned prior, corrected by kriging of its log residual at the measurements, which are restored.

    Some 2 s at 640 x 480. The `parameters` of the result are the fitted `sill`, `nugget` and `length` in pixels.

    Parameters
    ----------
    quantity : {"residual", "depth"}
        What is predicted: the log ratio of depth to the aligned prior, or the depth, without the prior.
    neighbours : int
        Number of measurements from which a pixel is predicted.
    """
    require_count(neighbours=neighbours)

    def fill(values: _Floats, known: BoolArray) -> Interpolated:
        from scipy.spatial import cKDTree

        points = np.argwhere(known).astype(np.float64)
        found = values[known]
        nugget, sill, length = fit_variogram(points, found, math.hypot(*known.shape))
        parameters = {"sill": sill, "nugget": nugget, "length": length}
        if not sill > 0:  # no structure: the mean is the best prediction
            return Interpolated(np.full(known.shape, float(found.mean())), parameters)
        tree, used = cKDTree(points), min(neighbours, len(points))
        out = np.empty(known.shape)
        for top in range(0, known.shape[0], ROWS):
            strip = np.s_[top : top + ROWS]
            places = pixel_places(top, out[strip].shape)
            _, at = tree.query(places, k=list(range(1, used + 1)))
            ratio = max(nugget / sill, LEAST_NUGGET)
            _predict[len(places)](places, points, found, at, ratio, length, out[strip].reshape(-1))
        return Interpolated(out, parameters)

    return interpolate(prior, sparse, quantity, fill, restore=True)


def fit_variogram(points: _Floats, values: _Floats, diagonal: float) -> tuple[float, float, float]:
    """Nugget, sill and length of nugget + sill (1 - exp(-d / length)), by least squares over bins of the distance.

    Each bin counts with its number of pairs over the square of its value, which is the inverse of its variance. The
    length is chosen from a list between one pixel and the image's diagonal, the other two follow linearly.
    """
    from scipy.optimize import nnls

    step = -(-values.size // MOST_IN_VARIOGRAM)
    points, values = points[::step], values[::step]
    first, second = np.triu_indices(values.size, 1)
    if not first.size:
        return 0.0, 0.0, 1.0
    distances = np.hypot(*(points[first] - points[second]).T)
    halves = 0.5 * (values[first] - values[second]) ** 2
    # Pairs farther apart than half the diagonal are few and on opposite sides of the image.
    edges = np.geomspace(distances.min(), max(diagonal / 2, distances.min() * 1.01), BINS + 1)
    bins = np.digitize(distances, edges[1:-1])
    near = distances <= edges[-1]
    counts = np.bincount(bins[near], minlength=BINS)
    used = counts > 0
    centres = np.bincount(bins[near], distances[near], BINS)[used] / counts[used]
    levels = np.bincount(bins[near], halves[near], BINS)[used] / counts[used]
    if not levels.max() > 0:
        return 0.0, 0.0, 1.0
    roots = np.sqrt(counts[used]) / np.maximum(levels, 1e-6 * levels.max())
    best = (math.inf, 0.0, 0.0, 1.0)
    for length in np.geomspace(1.0, diagonal, LENGTHS):
        design = np.stack((np.ones_like(centres), -np.expm1(-centres / length)), axis=1)
        (nugget, sill), misfit = nnls(design * roots[:, None], levels * roots)
        if misfit < best[0]:
            best = (misfit, float(nugget), float(sill), float(length))
    return best[1:]


@parallel_loop()
def _predict(p, places, points, values, at, ratio, length, out):  # type: ignore[no-untyped-def]
    """Ordinary kriging at place p from the points `at`, with the nugget relative to the sill.

    With C the covariance of the measurements, c that with the place and mu the mean by generalised least squares, the
    prediction is mu + c' C^-1 (v - mu), from one Cholesky factorisation of C.
    """
    count = at.shape[1]
    factor = np.empty((count, count))
    ones, data, cross = np.empty(count), np.empty(count), np.empty(count)
    for i in range(count):
        y, x = points[at[p, i], 0], points[at[p, i], 1]
        for j in range(i):
            distance = math.sqrt((points[at[p, j], 0] - y) ** 2 + (points[at[p, j], 1] - x) ** 2)
            factor[i, j] = math.exp(-distance / length)
        factor[i, i] = 1.0 + ratio
        ones[i], data[i] = 1.0, values[at[p, i]]
        cross[i] = math.exp(-math.sqrt((places[p, 0] - y) ** 2 + (places[p, 1] - x) ** 2) / length)
    for i in range(count):
        for j in range(i + 1):
            total = factor[i, j]
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            factor[i, j] = math.sqrt(total) if i == j else total / factor[j, j]
        for k in range(i):
            ones[i] -= factor[i, k] * ones[k]
            data[i] -= factor[i, k] * data[k]
            cross[i] -= factor[i, k] * cross[k]
        ones[i] /= factor[i, i]
        data[i] /= factor[i, i]
        cross[i] /= factor[i, i]
    mean = np.sum(ones * data) / np.sum(ones * ones)
    out[p] = mean + np.sum(cross * (data - mean * ones))
