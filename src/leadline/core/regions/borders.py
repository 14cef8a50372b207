"""Which measurements belong to a region: its border is not that of the cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, sparse
from scipy.sparse.linalg import spsolve

from leadline.base.arrays import BoolArray, Float64Array, IndexArray
from leadline.base.jit import compiled
from leadline.core.regions.candidates import neighbours

MARGIN = 2
"""Cells around a region in which measurements are judged one by one."""
CLOSER = 0.4
"""A measurement belongs to a region if its distance from the level outside is larger than this share of that from the
level inside. A wrong measurement that is not left out costs more than a right one that is."""
SLACK = 0.25
"""Added to the distance from the level outside, in units of the prior's error: where the two levels meet, as those of a
plane behind a window may, measurements belong to the region."""
SAME_SURFACE = 0.02
"""Step of log t at which the weight of the connection between two cells of the outer membrane is halved."""
SMOOTH = 0.005
"""Neighbouring pixels are on one measured surface if log s changes by less, or by less more or less than log t."""
NARROW = 4
"""Pixels: two surfaces that meet along less than twice this length are not one. A plane behind a window comes as close
to the surface around it somewhere along the border."""
MOST = 0.5
"""Share of a measured surface above which all of it belongs to the region."""
_ROUNDS = 2  # of judging measurements; the second one starts from the border that the first one found
_EIGHT = np.ones((3, 3), np.bool_)


def label_measurements(
    labels: NDArray[np.int32],
    g: Float64Array,
    cell: IndexArray,
    values: Float64Array,
    log_t: Float64Array,
    slack: float,
) -> tuple[IndexArray, Float64Array, Float64Array]:
    """The region of each measurement, its deviation from the level outside, and that up to which it is kept."""
    region = labels > 0
    first, second = neighbours(region.shape)
    same_surface = 1.0 / (1.0 + ((log_t.flat[first] - log_t.flat[second]) / SAME_SURFACE) ** 2) + 1e-4
    count = np.bincount(cell, minlength=region.size)
    for _ in range(_ROUNDS):
        around = ndimage.binary_dilation(region, _EIGHT, MARGIN)
        core = ndimage.binary_erosion(region, _EIGHT, border_value=1)
        parts = ndimage.label(region, _EIGHT)[0]
        source = core | region & ~np.isin(parts, parts[core])  # a part that is too thin for a core is its own source
        outside = _membrane(values, same_surface, ~around, around).flat[cell]
        inside = _membrane(values, np.ones(first.size), source, around & ~source).flat[cell]
        closer = np.abs(g - outside) + slack > CLOSER * np.abs(g - inside)
        left_out = core.flat[cell] | around.flat[cell] & closer
        share = np.bincount(cell, left_out, region.size) / np.maximum(count, 1)
        region = np.where(count > 0, share > 0.5, region.ravel()).reshape(region.shape)
    label = ndimage.maximum_filter(labels, 4 * MARGIN + 1).flat[cell]
    return np.where(left_out, label, 0), g - outside, CLOSER / (1.0 + CLOSER) * (inside - outside)


def follow_surfaces(
    label: IndexArray, g: Float64Array, log_t: Float64Array, where: IndexArray, shape: tuple[int, int]
) -> IndexArray:
    """The region of each measurement, after whole surfaces were added of which most belongs to a region.

    A surface consists of neighbouring pixels that are all measured, so sparse measurements form none.
    """
    if np.count_nonzero(np.diff(where) == 1) < MOST * where.size:
        return label
    maps = np.full((2, shape[0] * shape[1]), np.nan)
    maps[:, where] = g + log_t, log_t
    surface = measured_surfaces(*maps.reshape(2, *shape)).flat[where]
    size, count = (np.bincount(surface[which], minlength=surface.max() + 1) for which in (..., label > 0))
    owner = np.zeros(size.size, label.dtype)
    owner[surface[label > 0]] = label[label > 0]
    whole = count > MOST * size
    whole[0] = False  # measurements that belong to no surface
    return np.where(whole[surface], owner[surface], label)


def measured_surfaces(log_s: Float64Array, log_t: Float64Array) -> NDArray[np.int32]:
    """The number of the measured surface of each pixel, from 1; 0 without a measurement, and on thin pieces."""
    near_step = np.zeros(log_s.shape, np.bool_)
    for axis in (0, 1):
        step, expected = np.diff(log_s, axis=axis), np.diff(log_t, axis=axis)
        broken = (np.abs(step) >= SMOOTH) & (np.abs(step - expected) >= SMOOTH)
        near_step[(slice(1, None), slice(None))[:: 1 - 2 * axis]] |= broken
        near_step[(slice(None, -1), slice(None))[:: 1 - 2 * axis]] |= broken
    near_step = ndimage.maximum_filter(near_step, 2 * NARROW + 1)
    surfaces: NDArray[np.int32] = ndimage.label(np.isfinite(log_s) & ~near_step)[0]
    _widen(surfaces, log_s, log_t)
    return surfaces


def _membrane(values: Float64Array, weights: Float64Array, known: BoolArray, free: BoolArray) -> Float64Array:
    """The values, and in the free cells those that minimise the weighted squared differences between neighbours."""
    first, second = neighbours(values.shape)
    used = (known | free).flat[first] & (known | free).flat[second] & (free.flat[first] | free.flat[second])
    first, second, weights = first[used], second[used], weights[used]
    ends = np.concatenate([first, second]), np.concatenate([second, first])
    graph = sparse.csr_array((np.concatenate([weights, weights]), ends), shape=(values.size, values.size))
    cells = np.flatnonzero(free)
    rows = graph[cells]
    right_side = rows @ np.where(known, values, 0.0).ravel()
    # The tiny term keeps a part that is connected with nothing at its own values.
    matrix = sparse.diags_array(rows.sum(axis=1) + 1e-9) - rows[:, cells]
    result = values.copy()
    if cells.size:
        result.flat[cells] = spsolve(matrix.tocsc(), right_side + 1e-9 * values.flat[cells])
    return result


@compiled()
def _widen(labels, log_s, log_t):  # type: ignore[no-untyped-def]
    """Give pixels without a label that of the nearest labelled one from which a path without a step leads to them."""
    height, width = labels.shape
    queue, last = np.empty(labels.size, np.int64), 0
    for pixel in range(labels.size):
        if labels.flat[pixel] > 0:
            queue[last] = pixel
            last += 1
    first = 0
    while first < last:
        row, column = queue[first] // width, queue[first] % width
        first += 1
        for i, j in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if i < 0 or i >= height or j < 0 or j >= width or labels[i, j] > 0:
                continue
            step = log_s[i, j] - log_s[row, column]
            if abs(step) < SMOOTH or abs(step - log_t[i, j] + log_t[row, column]) < SMOOTH:
                labels[i, j] = labels[row, column]
                queue[last] = i * width + j
                last += 1
