"""A line in disparity for every pixel, through its five nearest measurements (KNN, PriorDA's coarse stage).

At a pixel whose prior disparity is x, with x_i and y_i the prior's and the measured disparity of neighbour i and d_i
its distance in pixels,

    min over a, b of  sum_i (w_i (a x_i + b - y_i))^2,    w_i = (1/d_i) / sum_j (1/d_j),    depth = 1 / (a x + b).

The weights multiply both sides of the least squares, so they act squared; their common factor cancels, and w_i^2 may
as well be 1 / d_i^2, a reciprocal integer. Measured depths are restored at the end.

Of neighbours at the same distance, of which a regular grid has many, the first in row-major order is taken. Where the
prior is the same at all neighbours (or there is one only) the line is not determined and its offset is dropped.

The search is exact. Pixels go by tiles: anything that can be among the nearest five of a pixel in a tile lies no
farther from the tile than the fifth smallest of the measurements' *largest* distances from it.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.jit import compiled
from leadline.core.prior import Prior
from leadline.methods import MethodResult
from leadline.methods.global_fits import measured_pixels, relative_depth

NEIGHBOURS = 5
SMALLEST_TILE = 4  # pixels; below that, setting up a tile costs more than it spares
SPREAD = 1e-6  # relative spread of the prior below which its differences are the rounding of a float32
UNSET = np.iinfo(np.int64).max

_Integers = NDArray[np.int64]


def knn(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Depth from an affine map of disparity through the five nearest measurements of each pixel; those are restored.

    A pixel whose disparity comes out non-positive has failed: it is NaN and counted. With fewer than five
    measurements all are used; with none at a usable pixel of the prior, nothing but the measurements comes back.

    Parameters
    ----------
    prior : Prior
        Relative depth, (H, W).
    sparse : (H, W) array
        Metres; 0, NaN and inf mean "not measured". Measurements where the prior is not usable are restored but take
        no part in any fit.

    Returns
    -------
    MethodResult
        Its `parameters` count the pixels whose line had no offset (`scale_only`) and the `failed` ones.

    Examples
    --------
    >>> prior = Prior(np.array([[1.0, 2.0, 4.0, 5.0]]))
    >>> knn(prior, np.array([[2.0, 4.0, 8.0, 0.0]])).depth
    array([[ 2.,  4.,  8., 10.]], dtype=float32)
    """
    begun = time.perf_counter()
    relative = relative_depth(prior)
    measured = measured_pixels(prior, sparse)
    at = np.flatnonzero(measured & np.isfinite(relative))
    depth = np.full(prior.shape, np.nan, np.float32)
    status, parameters = "failed: no usable measurement", {}
    if at.size:
        disparity = 1.0 / relative
        targets = 1.0 / np.asarray(sparse).ravel()[at].astype(np.float64)
        tile, starts, order = _bins(at, prior.shape)
        counts = np.zeros((len(range(0, prior.shape[0], tile)), 2), np.int64)
        _fill(disparity, at[order], order, disparity.ravel()[at], targets, starts, tile, depth, counts)
        scale_only, failed = (int(total) for total in counts.sum(axis=0))
        status = f"ok, but {failed} of {depth.size} pixels came out non-positive or infinite" if failed else "ok"
        parameters = {"scale_only": float(scale_only), "failed": float(failed)}
    depth[measured] = np.asarray(sparse)[measured]
    return MethodResult(depth, status, time.perf_counter() - begun, parameters)


def _bins(at: NDArray[np.intp], shape: tuple[int, int]) -> tuple[int, _Integers, _Integers]:
    """Tile size, first entry of each tile (row by row, and one past the last), and anchors in order of their tiles.

    About one measurement a tile: then neither empty tiles nor full ones dominate the search.
    """
    height, width = shape
    tile = max(SMALLEST_TILE, math.isqrt(height * width // at.size))
    columns = -(-width // tile)
    row, column = np.divmod(at, width)
    cell = row // tile * columns + column // tile
    order = np.argsort(cell, kind="stable").astype(np.int64)
    starts = np.searchsorted(cell[order], np.arange(-(-height // tile) * columns + 1)).astype(np.int64)
    return tile, starts, order


@compiled(parallel=True)
def _fill(
    disparity: NDArray[np.float64],
    places: _Integers,
    order: _Integers,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    starts: _Integers,
    tile: int,
    depth: NDArray[np.float32],
    counts: _Integers,
) -> None:
    """Fill `depth`; per row of tiles, `counts` receives the scale-only and the failed pixels."""
    columns = (disparity.shape[1] + tile - 1) // tile
    for i in prange(counts.shape[0]):
        for j in range(columns):
            scale_only, failed = _fill_tile(disparity, places, order, x, y, starts, tile, i, j, depth)
            counts[i, 0] += scale_only
            counts[i, 1] += failed


@compiled()
def _fill_tile(
    disparity: NDArray[np.float64],
    places: _Integers,
    order: _Integers,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    starts: _Integers,
    tile: int,
    i: int,
    j: int,
    depth: NDArray[np.float32],
) -> tuple[int, int]:
    height, width = disparity.shape
    near = np.empty(min(NEIGHBOURS, x.size), np.int64)
    rows, columns, ranks = _candidates(places, order, starts, tile, i, j, height, width, near)
    scale_only = 0
    failed = 0
    for v in range(i * tile, min((i + 1) * tile, height)):
        for u in range(j * tile, min((j + 1) * tile, width)):
            here = disparity[v, u]
            if not np.isfinite(here):
                continue
            near[:] = UNSET
            for k in range(rows.size):
                # Distance and rank in one number: one comparison decides both, in whatever order the candidates come.
                _insert(near, ((rows[k] - v) ** 2 + (columns[k] - u) ** 2) * x.size + ranks[k])
            value, simple = _predict(near, x, y, here)
            metric = np.float32(1.0 / value)
            scale_only += simple
            if value > 0 and metric > 0 and np.isfinite(metric):
                depth[v, u] = metric
            else:
                failed += 1
    return scale_only, failed


@compiled()
def _insert(near: _Integers, key: int) -> None:
    """Put `key` into the ascending `near`, whose largest entry falls out."""
    k = near.size - 1
    if key >= near[k]:
        return
    while k > 0 and near[k - 1] > key:
        near[k] = near[k - 1]
        k -= 1
    near[k] = key


@compiled()
def _predict(near: _Integers, x: NDArray[np.float64], y: NDArray[np.float64], here: float) -> tuple[float, bool]:
    """Disparity at a pixel whose prior disparity is `here`, and whether it came from a scale alone."""
    if near[0] < x.size:  # at distance zero: the pixel is a measurement
        return y[near[0]], False
    weights = 0.0
    x_mean = 0.0
    y_mean = 0.0
    for key in near:
        weight = 1.0 / (key // x.size)
        weights += weight
        x_mean += weight * x[key % x.size]
        y_mean += weight * y[key % x.size]
    x_mean /= weights
    y_mean /= weights
    # Around the means: neighbours differ by little, and raw normal equations would lose that difference.
    variance = 0.0
    covariance = 0.0
    for key in near:
        weight = 1.0 / (key // x.size)
        x_off = x[key % x.size] - x_mean
        variance += weight * x_off * x_off
        covariance += weight * x_off * (y[key % x.size] - y_mean)
    if variance > weights * (SPREAD * x_mean) ** 2:
        return covariance / variance * (here - x_mean) + y_mean, False
    # sum w x y / sum w x^2 for x that are all x_mean
    return y_mean / x_mean * here, True


@compiled()
def _candidates(
    places: _Integers,
    order: _Integers,
    starts: _Integers,
    tile: int,
    i: int,
    j: int,
    height: int,
    width: int,
    near: _Integers,
) -> tuple[_Integers, _Integers, _Integers]:
    """Row, column and rank of every measurement that may be among the nearest of a pixel in tile (i, j).

    `near` is scratch, as long as the number of neighbours.
    """
    tiles_down = (height + tile - 1) // tile
    tiles_across = (width + tile - 1) // tile
    top, left = i * tile, j * tile
    bottom, right = min(top + tile, height) - 1, min(left + tile, width) - 1

    # Squares of tiles around this one, until one holds enough. Tiles of a row are neighbours in `starts`.
    radius = -1
    found = 0
    while found < near.size:
        radius += 1
        found = 0
        first, last = max(j - radius, 0), min(j + radius, tiles_across - 1)
        for row in range(max(i - radius, 0), min(i + radius, tiles_down - 1) + 1):
            found += starts[row * tiles_across + last + 1] - starts[row * tiles_across + first]

    near[:] = UNSET
    first, last = max(j - radius, 0), min(j + radius, tiles_across - 1)
    for row in range(max(i - radius, 0), min(i + radius, tiles_down - 1) + 1):
        for k in range(starts[row * tiles_across + first], starts[row * tiles_across + last + 1]):
            v, u = places[k] // width, places[k] % width
            _insert(near, max(abs(v - top), abs(v - bottom)) ** 2 + max(abs(u - left), abs(u - right)) ** 2)
    bound = near[-1]

    # A tile `radius` away begins (radius - 1) tile + 1 pixels beyond this one; one more guards the square root.
    radius = (int(math.sqrt(bound)) + 1) // tile + 1
    first, last = max(j - radius, 0), min(j + radius, tiles_across - 1)
    kept = 0
    for row in range(max(i - radius, 0), min(i + radius, tiles_down - 1) + 1):
        kept += starts[row * tiles_across + last + 1] - starts[row * tiles_across + first]
    rows, columns, ranks = np.empty(kept, np.int64), np.empty(kept, np.int64), np.empty(kept, np.int64)
    kept = 0
    for row in range(max(i - radius, 0), min(i + radius, tiles_down - 1) + 1):
        for k in range(starts[row * tiles_across + first], starts[row * tiles_across + last + 1]):
            v, u = places[k] // width, places[k] % width
            if max(top - v, v - bottom, 0) ** 2 + max(left - u, u - right, 0) ** 2 <= bound:
                rows[kept], columns[kept], ranks[kept] = v, u, order[k]
                kept += 1
    return rows[:kept], columns[:kept], ranks[:kept]
