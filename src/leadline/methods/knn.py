"""A line in disparity at every pixel, through its five nearest measurements (KNN, the coarse stage of PriorDA).

At a pixel whose prior disparity is x, with x_i and y_i the prior's and the measured disparity of neighbour i and d_i
its distance in pixels,

    min over a, b of  sum_i (w_i (a x_i + b - y_i))^2,    w_i = (1/d_i) / sum_j (1/d_j),    depth = 1 / (a x + b).

The weights multiply both sides of the least squares in PriorDA's code, so they act squared; a common factor cancels,
and w_i^2 may as well be 1 / d_i^2. The paper's "inverse-distance weights" can also mean that 1 / d_i multiplies the
squared residual. `distance_power` chooses between the two. Measured depths are restored at the end.

Of several neighbours at the same distance, which are common on a regular grid, the first in row-major order is taken.
Where the prior is the same at all neighbours, or there is only one, the line is not determined and its offset is 0.

The search is exact. It finds candidates for square tiles of pixels with a k-d tree: if the fifth nearest measurement of
a tile's centre c is at distance r, the five nearest of a pixel p are within r + |p - c| of p, and so within
r + 2 |p - c| of c. Compiled code then selects the nearest five of each pixel.
"""

from __future__ import annotations

import math

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.base.jit import called_by_kernels, parallel_loop
from leadline.core.prior import Prior
from leadline.methods import MethodResult, measured_pixels, pixel_status, relative_depth

NEIGHBOURS = 5
SMALLEST_TILE = 4  # pixels; smaller tiles cost more to set up than they save
SPREAD = 1e-6  # relative spread of the prior below which its differences are the rounding of a float32
_UNSET = np.iinfo(np.int64).max

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]


def knn(prior: Prior, sparse: FloatArray, *, distance_power: int = 2) -> MethodResult:
    """Depth from an affine map of disparity through the five nearest measurements of each pixel.

    A pixel whose disparity comes out non-positive is NaN and counted. With fewer than five measurements all are used.
    Measurements where the prior is not usable are restored but not used in any fit. The `parameters` of the result
    count the pixels whose line had no offset (`scale_only`) and the unusable ones (`failed`).

    Parameters
    ----------
    distance_power : {2, 1}
        Power of the inverse distance that multiplies a squared residual: 2 as in PriorDA's code, or 1.
    """
    if distance_power not in (1, 2):
        raise InputError(f"{param('distance_power')} must be 1 or 2, got {distance_power!r} instead.")
    disparity = 1.0 / relative_depth(prior)
    measured = measured_pixels(prior, sparse)
    depth = np.full(prior.shape, np.nan, np.float32)
    anchors = np.flatnonzero(measured & np.isfinite(disparity))
    if not anchors.size:
        depth[measured] = np.asarray(sparse)[measured]
        return MethodResult(depth, "failed: no usable measurement", failed=True)
    x = disparity.ravel()[anchors]
    y = 1.0 / np.asarray(sparse).ravel()[anchors].astype(np.float64)
    tile, ends, candidates = _find_candidates(anchors, prior.shape)
    counts = np.zeros((-(-prior.shape[0] // tile), 2), np.int64)
    _fill_tiles[len(counts)](disparity, anchors, x, y, tile, ends, candidates, distance_power / 2, depth, counts)
    scale_only, failed = (int(total) for total in counts.sum(axis=0))
    depth[measured] = np.asarray(sparse)[measured]
    parameters = {"scale_only": float(scale_only), "failed": float(failed)}
    return MethodResult(depth, pixel_status(failed, depth.size), parameters=parameters)


def _find_candidates(anchors: NDArray[np.intp], shape: tuple[int, int]) -> tuple[int, _Integers, _Integers]:
    """The side of a tile in pixels, the end of each tile's candidates, and the candidates as indices into `anchors`.

    Tiles are numbered row by row. A tile covers about one measurement, which balances the number of tiles against the
    number of candidates.
    """
    from scipy.spatial import cKDTree

    tile = max(SMALLEST_TILE, math.isqrt(shape[0] * shape[1] // anchors.size))
    centres = np.stack(np.meshgrid(*(np.arange(0, side, tile) + (tile - 1) / 2 for side in shape), indexing="ij"), -1)
    centres = centres.reshape(-1, 2)
    tree, threads = cKDTree(np.stack(np.divmod(anchors, shape[1]), axis=1)), get_num_threads()
    reach = tree.query(centres, k=[min(NEIGHBOURS, anchors.size)], workers=threads)[0][:, 0]
    radius = (reach + math.sqrt(2.0) * (tile - 1)) * (1 + 1e-12)  # with a margin for rounding
    found = tree.query_ball_point(centres, radius, workers=threads)
    return tile, np.cumsum([len(part) for part in found]), np.concatenate(found).astype(np.int64)


@parallel_loop()
def _fill_tiles(i, disparity, anchors, x, y, tile, ends, candidates, power, depth, counts):  # type: ignore[no-untyped-def]
    """Fill `depth`; `counts` receives the scale-only and the failed pixels of each row of tiles."""
    columns = (disparity.shape[1] + tile - 1) // tile
    for j in range(columns):
        k = i * columns + j
        chosen = candidates[(ends[k - 1] if k else 0) : ends[k]]
        scale_only, failed = _fill_tile(disparity, anchors, x, y, chosen, i * tile, j * tile, tile, power, depth)
        counts[i, 0] += scale_only
        counts[i, 1] += failed


@called_by_kernels()
def _fill_tile(disparity, anchors, x, y, candidates, top, left, tile, power, depth):  # type: ignore[no-untyped-def]
    height, width = disparity.shape
    rows, columns = anchors[candidates] // width, anchors[candidates] % width
    nearest = np.empty(min(NEIGHBOURS, x.size), np.int64)
    scale_only, failed = 0, 0
    for v in range(top, min(top + tile, height)):
        for u in range(left, min(left + tile, width)):
            here = disparity[v, u]
            if not np.isfinite(here):
                continue
            nearest[:] = _UNSET
            for k in range(candidates.size):
                # Distance and index in one number: one comparison orders by distance first, then in row-major order.
                _insert(nearest, ((rows[k] - v) ** 2 + (columns[k] - u) ** 2) * x.size + candidates[k])
            value, without_offset = _predict(nearest, x, y, here, power)
            metric = np.float32(1.0 / value)
            scale_only += without_offset
            if value > 0 and metric > 0 and np.isfinite(metric):
                depth[v, u] = metric
            else:
                failed += 1
    return scale_only, failed


@called_by_kernels()
def _insert(nearest: _Integers, key: int) -> None:
    """Insert `key` into the ascending `nearest` and drop its largest entry."""
    k = nearest.size - 1
    if key >= nearest[k]:
        return
    while k > 0 and nearest[k - 1] > key:
        nearest[k] = nearest[k - 1]
        k -= 1
    nearest[k] = key


@called_by_kernels()
def _weight(squared_distance: int, power: float) -> float:
    return 1.0 / squared_distance if power == 1.0 else 1.0 / math.sqrt(squared_distance)


@called_by_kernels()
def _predict(nearest: _Integers, x: _Floats, y: _Floats, here: float, power: float) -> tuple[float, bool]:
    """Disparity at a pixel whose prior disparity is `here`, and whether its line has no offset.

    `power` is that of the inverse *squared* distance, 1 or 1/2.
    """
    if nearest[0] < x.size:  # distance 0: the pixel is measured
        return y[nearest[0]], False
    total, x_mean, y_mean = 0.0, 0.0, 0.0
    for key in nearest:
        weight = _weight(key // x.size, power)
        total += weight
        x_mean += weight * x[key % x.size]
        y_mean += weight * y[key % x.size]
    x_mean /= total
    y_mean /= total
    # Neighbours differ by little, and normal equations without the means subtracted would lose that difference.
    variance, covariance = 0.0, 0.0
    for key in nearest:
        weight = _weight(key // x.size, power)
        x_off = x[key % x.size] - x_mean
        variance += weight * x_off * x_off
        covariance += weight * x_off * (y[key % x.size] - y_mean)
    if variance > total * (SPREAD * x_mean) ** 2:
        return covariance / variance * (here - x_mean) + y_mean, False
    # For x that are all x_mean, sum w x y / sum w x^2 is y_mean / x_mean.
    return y_mean / x_mean * here, True
