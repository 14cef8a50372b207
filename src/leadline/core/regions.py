"""Detection of regions whose measurements are wrong together: what lies behind glass, or what a mirror shows.

Such measurements agree with one another, so that `outliers.find_isolated` keeps them. They contradict the prior: it
continues a surface where they jump to what lies behind it. A prior errs over whole surfaces too, so two questions come
first: how large are this prior's own errors on this image, and does an edge of the prior explain the deviation?

1. *Cells.* The log residuals g = log s - log t, with t from a robust fit, are reduced to their medians in square cells
   about as wide as the measurements are apart. There are at most `MAX_CELLS` cells, which bounds the cost.
2. *Background.* A smooth surface b of few nodes, fitted with Geman and McClure's weights, is what the response and a
   slowly varying error of the prior leave. The deviation is d = g - b.
3. *Response.* Surfaces at a depth that occurs once in the image deviate together if the response is wrong there. The
   running median of d over cells with nearly the same t, where positive, is this trend. Regions are looked for in d and
   in d without the trend; those of the first kind are taken where both are found.
4. *Error of the prior.* Light that passes a surface, is reflected or takes a detour is measured too far away, hardly
   ever too near. Negative deviations are therefore the prior's: the quantile `ERROR_QUANTILE` of -d is its error e on
   this image. With e above `MAX_PRIOR_ERROR` the prior cannot be used to judge measurements, and none is left out.
5. *Regions.* Cells with d > `SEED` e are joined with their neighbours of the same kind, and then with neighbours above
   `GROWTH` e, or above `RELATIVE_GROWTH` times the deviation of the region if that is more, to which t is continuous
   (it changes by less than `SEED` e). Errors of a prior beside its own depth edges are thereby not included. A region
   has at least `MIN_SEEDS` seeds and at most `MAX_SHARE` of the cells.
6. *Confirmation.* Along most of a region's border the step of d must be larger than that of log t: the prior says that
   the surface goes on where the measurements jump. If both have their step in the same place, it is more likely the
   prior that misplaces the depth of what lies behind an edge. Regions whose median deviation from the trend exceeds
   `UNMISTAKABLE` e need no confirmation.
7. *Measurements.* All of a region are left out, except in the cells at its border: there each measurement is judged by
   its own deviation.

Measurements that are too near together (rain, dust, a fence in front of the scene) are not looked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from leadline.base.arrays import Float64Array, FloatArray, IndexArray
from leadline.base.jit import compiled
from leadline.core.outliers import MAD_TO_SIGMA, MAX_PRIOR_ERROR, Outliers, Region, RegionReason

MIN_MEASUREMENTS = 100
"""With fewer measurements a region would consist of too few to be distinguished from the errors of a prior."""
MAX_FITTED = 10_000
"""Pairs that are enough for the robust fit, which only has to leave residuals that a smooth background can explain."""
MAX_CELLS = 12_000
"""Largest number of cells, which bounds the cost: at 640 x 480 pixels they are 6 pixels wide."""
NODES = 6
"""Nodes of the background along each side of the image. With more of them it would follow large regions."""
STIFFNESS = 0.02
"""Weight of the background's second differences, relative to the number of cells per node."""
TREND_WINDOWS = (0.02, 0.05, 0.1)
"""Shares of the cells that the running medians over t cover; the largest of the medians is subtracted."""
ERROR_QUANTILE = 0.99
MIN_PRIOR_ERROR = 0.02
"""Errors of a prior are taken to be at least this large, in log depth: sensors' own errors are about as large."""
SEED, GROWTH, UNMISTAKABLE = 2.0, 0.5, 6.0
"""Deviations in units of the prior's error: of a region's seeds, of its other cells, and of one beyond doubt."""
RELATIVE_GROWTH = 0.15
"""Deviation of a region's other cells in units of the median deviation of its seeds, if that is larger."""
MIN_SEEDS = 4
MAX_SHARE = 0.3
STEP_RATIO = 1.25
"""The border is continuous between two cells if log t has a step of less than this multiple of the step of d."""
MIN_CONTINUOUS = 0.6
"""Share of a region's border that must be continuous. On the scenes with which it was chosen, with every eighth pixel
measured, it is about 0.7 or more for glass and most regions that were made too far, and 0.56 or less for errors of
priors."""
_ITERATIONS, _WIDE_ITERATIONS = 12, 4  # of the background's fit; the first ones with a wider loss


def find_regions(residuals: FloatArray, log_depth: FloatArray, where: IndexArray, shape: tuple[int, int]) -> Outliers:
    """The measurements that are too far away together; see the module's description.

    Parameters
    ----------
    residuals, log_depth : (n,) arrays
        g = log(s / t), with t from a robust fit, and log t, at the measured pixels.
    where : (n,) array
        Flat indices of the measured pixels.
    shape : (H, W) of the image

    Examples
    --------
    >>> rows, columns = np.mgrid[2:160:4, 2:160:4]
    >>> behind = (abs(rows - 80) < 20) & (abs(columns - 60) < 30)
    >>> residuals = np.where(behind, 0.2, 0.005 * np.sin(rows + columns))
    >>> log_depth = np.log(2 + rows / 80)
    >>> found = find_regions(*(a.ravel() for a in (residuals, log_depth, rows * 160 + columns)), (160, 160))
    >>> bool(found.where.size == behind.sum()), found.regions[0].reason.name
    (True, 'PRIOR_CONTINUES')
    """
    g, log_t = np.asarray(residuals, np.float64), np.asarray(log_depth, np.float64)
    if g.size < MIN_MEASUREMENTS:
        return Outliers.none()
    side = int(np.ceil(np.sqrt(shape[0] * shape[1] / min(g.size, MAX_CELLS))))
    rows, columns = np.divmod(where, shape[1])
    grid = -(-shape[0] // side), -(-shape[1] // side)
    cell = rows // side * grid[1] + columns // side
    cells, medians = np.unique(cell), np.full((2, grid[0] * grid[1]), np.nan)
    _cell_medians(cell, np.stack([g, log_t]), medians)
    value, depth = medians[:, cells]
    smooth = _background(value, cells, grid)
    deviation = value - smooth
    error = float(np.quantile(-deviation, ERROR_QUANTILE))
    if error > MAX_PRIOR_ERROR:
        return Outliers.none(prior_error=error)
    unit = max(error, MIN_PRIOR_ERROR)
    trend = np.maximum(_trend(deviation, depth), 0.0)
    labels, reasons = _label_regions(cells, deviation, np.zeros_like(trend), depth, grid, unit)
    others, more = _label_regions(cells, deviation, trend, depth, grid, unit, unconfirmed=True)
    others[np.isin(others, others[labels > 0])] = 0
    near_confirmed = ndimage.maximum_filter(labels, 3) > 0
    labels = np.where(others > 0, others + len(reasons), labels)
    reasons += more

    level = np.zeros(labels.size)
    level[cells] = smooth + np.where(near_confirmed.flat[cells], 0.0, trend)
    own = g - level[cell]
    label = _label_measurements(labels, cell, own, unit)
    left_out = label > 0
    label, numbers = label[left_out], np.unique(label[left_out])
    regions = tuple(
        Region(int((label == n).sum()), float(own[left_out][label == n].mean()), reasons[n - 1]) for n in numbers
    )
    region = (np.searchsorted(numbers, label) + 1).astype(np.int32)
    threshold = np.full(region.size, GROWTH * unit)
    return Outliers(where[left_out], own[left_out], threshold, region, regions, error)


def _background(values: Float64Array, cells: IndexArray, grid: tuple[int, int]) -> Float64Array:
    """A smooth surface through the cells' values, bilinear between few nodes; regions have little influence on it."""
    rows, columns = np.divmod(cells, grid[1])
    down = (rows + 0.5) / grid[0] * (NODES - 1)
    across = (columns + 0.5) / grid[1] * (NODES - 1)
    second = np.diff(np.eye(NODES), 2, axis=0)
    bends = np.vstack([np.kron(second, np.eye(NODES)), np.kron(np.eye(NODES), second)])
    stiffness = STIFFNESS * values.size / NODES**2 * bends.T @ bends + 1e-9 * np.eye(NODES**2)
    surface = np.full(values.size, np.median(values))
    for k in range(_ITERATIONS):
        residual = values - surface
        sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(residual - np.median(residual)))), 1e-4)
        width = (3.0 if k < _WIDE_ITERATIONS else 2.0) * sigma
        weights = (1.0 + (residual / width) ** 2) ** -2
        matrix, right_side = stiffness.copy(), np.zeros(NODES**2)
        _add_normal_equations(down, across, weights, values, matrix, right_side)
        _evaluate(down, across, np.linalg.solve(matrix, right_side), surface)
    return surface


def _trend(deviation: Float64Array, depth: Float64Array) -> Float64Array:
    """The largest of the running medians of the deviations over windows of cells with similar depth."""
    order, n = np.argsort(depth, kind="stable"), deviation.size
    ordered, largest = deviation[order], np.full(n, -np.inf)
    for share in TREND_WINDOWS:
        width = min(max(int(share * n), 9), n)
        starts = np.unique(np.append(np.arange(0, n - width + 1, max(width // 8, 1)), n - width))
        medians = [np.median(ordered[start : start + width]) for start in starts]
        np.maximum(largest, np.interp(np.arange(n), starts + width // 2, medians), out=largest)
    trend = np.empty(n)
    trend[order] = largest
    return trend


def _label_regions(
    cells: IndexArray,
    deviation: Float64Array,
    trend: Float64Array,
    depth: Float64Array,
    grid: tuple[int, int],
    unit: float,
    *,
    unconfirmed: bool = False,
) -> tuple[NDArray[np.int32], list[RegionReason]]:
    """The number of the region of each cell of the grid, from 1, and 0 outside; and the reason for each region.

    With `unconfirmed`, large deviations from the trend are enough.
    """
    measured = np.zeros(grid, np.bool_)
    measured.flat[cells] = True
    d, expected, log_t = np.zeros((3, *grid))
    d.flat[cells], expected.flat[cells], log_t.flat[cells] = deviation, trend, depth
    # A cell without a measurement takes the values of the nearest one with some, so that it does not split a region.
    nearest = ndimage.distance_transform_edt(~measured, return_distances=False, return_indices=True)
    d, expected, log_t = (values[tuple(nearest)] for values in (d, expected, log_t))
    steps, d = d, d - expected  # the trend's own steps are no steps of the measurements
    is_seed = measured & (d > SEED * unit)
    found = np.zeros(grid, np.int32)
    count = _grow(d, log_t, SEED * unit, np.full(grid, GROWTH * unit), found)
    # Around a region that deviates by much, small deviations are not part of it.
    typical = ndimage.median(d, np.where(is_seed, found, 0), np.arange(count + 1))
    growth = np.clip(RELATIVE_GROWTH * np.nan_to_num(typical), GROWTH * unit, SEED * unit)[found]
    found = np.zeros(grid, np.int32)
    count = _grow(d, log_t, SEED * unit, growth, found)
    seeds = np.bincount(found[is_seed], minlength=count + 1)
    sizes = np.bincount(found[measured], minlength=count + 1)
    borders, continuous = np.zeros(count + 1), np.zeros(count + 1)
    _borders(found, measured, steps, log_t, borders, continuous)
    new_label, reasons = np.zeros(count + 1, np.int32), []
    for n in range(1, count + 1):
        if seeds[n] < MIN_SEEDS or sizes[n] > MAX_SHARE * cells.size:
            continue
        if continuous[n] >= MIN_CONTINUOUS * max(borders[n], 1):
            reasons.append(RegionReason.PRIOR_CONTINUES)
        elif unconfirmed and np.median(d[measured & (found == n)]) > UNMISTAKABLE * unit:
            reasons.append(RegionReason.FAR_BEHIND)
        else:
            continue
        new_label[n] = len(reasons)
    return new_label[found], reasons


def _label_measurements(labels: NDArray[np.int32], cell: IndexArray, own: Float64Array, unit: float) -> IndexArray:
    """The region of each measurement. Beside the border of a region its own deviation decides."""
    if not labels.any():
        return np.zeros(cell.size, np.int64)
    around = ndimage.maximum_filter(labels, 3)
    inside = ndimage.minimum_filter(labels, 3, mode="nearest") > 0
    limit = np.where(inside, -np.inf, np.where(labels > 0, GROWTH, SEED) * unit).ravel()
    label = np.where(labels > 0, labels, around).ravel()[cell]
    return np.where(own > limit[cell], label, 0)


@compiled()
def _cell_medians(cell, values, medians):  # type: ignore[no-untyped-def]
    """Write the medians of each row of `values` in each cell; cells without a value are left as they are."""
    ends = np.zeros(medians.shape[1] + 1, np.int64)
    for k in cell:
        ends[k + 1] += 1
    for k in range(medians.shape[1]):
        ends[k + 1] += ends[k]
    place, order = ends[:-1].copy(), np.empty(cell.size, np.int64)
    for m in range(cell.size):
        order[place[cell[m]]] = m
        place[cell[m]] += 1
    for k in range(medians.shape[1]):
        if ends[k + 1] > ends[k]:
            members = order[ends[k] : ends[k + 1]]
            for i in range(values.shape[0]):
                medians[i, k] = np.median(values[i][members])


@compiled()
def _corners(down, across):  # type: ignore[no-untyped-def]
    """The four nodes around a point of the grid of nodes, and their bilinear weights."""
    i, j = min(int(down), NODES - 2), min(int(across), NODES - 2)
    y, x = down - i, across - j
    first = i * NODES + j
    nodes = (first, first + 1, first + NODES, first + NODES + 1)
    return nodes, ((1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x)


@compiled()
def _add_normal_equations(down, across, weights, values, matrix, right_side):  # type: ignore[no-untyped-def]
    for k in range(values.size):
        nodes, shares = _corners(down[k], across[k])
        for a in range(4):
            share = weights[k] * shares[a]
            right_side[nodes[a]] += share * values[k]
            for b in range(4):
                matrix[nodes[a], nodes[b]] += share * shares[b]


@compiled()
def _evaluate(down, across, nodal, surface):  # type: ignore[no-untyped-def]
    for k in range(surface.size):
        nodes, shares = _corners(down[k], across[k])
        surface[k] = 0.0
        for a in range(4):
            surface[k] += shares[a] * nodal[nodes[a]]


@compiled()
def _grow(d, log_t, seed, growth, labels):  # type: ignore[no-untyped-def]
    """Label the regions that grow from seeds, and return their number.

    Two neighbouring seeds (of eight neighbours) are always joined, all other cells only where log t is continuous.
    """
    height, width = d.shape
    stack = np.empty(d.size, np.int64)
    count = 0
    for first in range(d.size):
        if d.flat[first] <= seed or labels.flat[first] != 0:
            continue
        count += 1
        labels.flat[first] = count
        stack[0], n = first, 1
        while n > 0:
            n -= 1
            row, column = stack[n] // width, stack[n] % width
            for i in range(max(row - 1, 0), min(row + 2, height)):
                for j in range(max(column - 1, 0), min(column + 2, width)):
                    if labels[i, j] != 0 or d[i, j] <= growth[i, j]:
                        continue
                    seeds = d[i, j] > seed and d[row, column] > seed
                    if seeds or abs(log_t[i, j] - log_t[row, column]) < seed:
                        labels[i, j] = count
                        stack[n] = i * width + j
                        n += 1
    return count


@compiled()
def _borders(labels, measured, d, log_t, borders, continuous):  # type: ignore[no-untyped-def]
    """Count the pairs of measured cells across each region's border, and those at which log t has the smaller step."""
    height, width = labels.shape
    for i in range(height):
        for j in range(width):
            for k in range(2):
                p, q = (i + 1, j) if k == 0 else (i, j + 1)
                if p >= height or q >= width or labels[i, j] == labels[p, q] or not (measured[i, j] and measured[p, q]):
                    continue
                smaller = abs(log_t[i, j] - log_t[p, q]) < STEP_RATIO * abs(d[i, j] - d[p, q])
                for label in (labels[i, j], labels[p, q]):
                    borders[label] += 1
                    continuous[label] += smaller
