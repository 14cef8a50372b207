"""Detection of regions whose measurements are wrong together: what lies behind glass, or what a mirror shows.

Such measurements agree with one another, so that `outliers.find_isolated` keeps them. They contradict the prior: it
continues a surface where they jump to what lies behind it. A prior errs over whole surfaces too, so two questions come
first: how large are this prior's own errors on this image, and does an edge of the prior explain the deviation?

1. *Cells.* The log residuals g = log s - log t, with t from a robust fit, are reduced to their medians in square cells
   about as wide as the measurements are apart. There are at most `MAX_CELLS` cells, which bounds the cost.
2. *Background.* A smooth surface b of few nodes, fitted with Geman and McClure's weights, is what the response and a
   slowly varying error of the prior leave. The deviation is d = g - b.
3. *Error of the prior.* Light that passes a surface, is reflected or takes a detour is measured too far away, hardly
   ever too near. Negative deviations are therefore the prior's: the quantile `ERROR_QUANTILE` of -d is its error e on
   this image. With e above `MAX_PRIOR_ERROR` the prior cannot be used to judge measurements, and none is left out.
4. *Response.* Surfaces at a depth that occurs once in the image deviate together if the response is wrong there. The
   running median of d over cells with nearly the same t, where positive, is this trend. Regions are looked for in d and
   in d without the trend; those of the first kind are taken where both are found.
5. *Candidates.* Cells with d > `SEED` e are joined with their neighbours of the same kind, and then with neighbours
   above `GROWTH` e to which t is continuous, unless d differs by much. Seeds whose d differs are joined if the measured
   depth is continuous: the plane behind a window is one region, also where the prior has an edge in front of it. A
   candidate has at least `MIN_SEEDS` seeds and at most `MAX_SHARE` of the cells.
6. *Confirmation.* A prior errs beside and behind its own edges, by a share of the step of log t that is measured on the
   rest of the image. Along most of a region's border d must have a larger step: the prior says that the surface goes
   on where the measurements jump. Regions whose median of d exceeds `UNMISTAKABLE` e need no confirmation. A region
   that the image border cuts off is not seen from all sides, and priors err there over whole surfaces. It needs both,
   or a median above `CLEAR` e and a border as long as two sides at which the measurements jump and not the prior.
7. *Measurements.* The border of a region is not that of the cells. Two membranes continue the residuals: one from
   outside into the region, along what the prior says is one surface, the other from the interior of the region
   outwards. Near the border each measurement belongs to the region if it is closer to the second one. A region whose
   measurements deviate from the first membrane by e or less on average is explained by what surrounds it.

Measurements that are too near together (rain, dust, a fence in front of the scene) are not looked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, sparse
from scipy.sparse.linalg import spsolve

from leadline.base.arrays import BoolArray, Float64Array, FloatArray, IndexArray
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
MAX_JUMP = 0.5
"""Two cells are not joined if their deviations differ by more than this share of the larger one, unless both are seeds
and the measured depth is continuous: of a wrong region and an error of the prior beside it, only the former is
confirmed."""
MIN_SEEDS = 3
MAX_SHARE = 0.3
EDGE, EDGE_QUANTILE, MIN_EDGES = 0.1, 0.9, 20
"""Neighbouring cells whose log t differs by more than `EDGE` lie on both sides of an edge of the prior. Twice the
quantile of the step of d relative to that of log t, over such pairs outside the candidates, is what edges explain."""
EXPLAINED = (0.2, 0.8)
"""Bounds of the share that edges explain. The upper one is taken if there are fewer than `MIN_EDGES` pairs."""
CLEAR, MIN_STEP = 3.5, 0.1
"""In units of the prior's error: a region whose median deviation is at most the first must have a sharper border, with
steps larger than the second and than the upper bound of what edges explain."""
MIN_UNEXPLAINED = 0.6
"""Share of a region's border at which d must have a step that no edge explains."""
JUMP, TWO_SIDES = 0.75, 2.0
"""Of a region that the image border cuts off: the share of a step of d that must be a step of the measurements, and the
number of such steps in units of the side of a square with as many cells, which has two sides in a corner."""
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
_ITERATIONS, _WIDE_ITERATIONS = 12, 4  # of the background's fit; the first ones with a wider loss
_ROUNDS = 2  # of judging measurements; the second one starts from the border that the first one found
_EIGHT = np.ones((3, 3), np.bool_)


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
    cells, maps = np.unique(cell), np.full((4, grid[0] * grid[1]), np.nan)
    _cell_medians(cell, np.stack([g, log_t]), maps[:2])
    value, depth = maps[:2, cells]
    deviation = value - _background(value, cells, grid)
    error = float(np.quantile(-deviation, ERROR_QUANTILE))
    if error > MAX_PRIOR_ERROR:
        return Outliers.none(prior_error=error)
    unit = max(error, MIN_PRIOR_ERROR)
    maps[2:, cells] = deviation, deviation - np.maximum(_trend(deviation, depth), 0.0)
    measured = np.isfinite(maps[0]).reshape(grid)
    # A cell without a measurement takes the values of the nearest one with some, so that it does not split a region.
    nearest = ndimage.distance_transform_edt(~measured, return_distances=False, return_indices=True)
    values, depths, deviations, detrended = (values.reshape(grid)[tuple(nearest)] for values in maps)
    # Where both find a region, that without the trend is taken: of a wrong region, the trend is a part.
    labels, reasons = _label_regions(deviations, deviations, depths, measured, unit, np.inf)
    others, more = _label_regions(detrended, deviations, depths, measured, unit, UNMISTAKABLE)
    others[np.isin(others, others[labels > 0])] = 0
    labels, reasons = np.where(others > 0, others + len(reasons), labels), reasons + more
    if not reasons:
        return Outliers.none(prior_error=error)
    label, own, threshold = _label_measurements(labels, g, cell, values, depths, SLACK * unit)
    # The surroundings explain a region that deviates from their level by no more than the prior's error.
    numbers = np.array([n for n in np.unique(label[label > 0]) if own[label == n].mean() > error], label.dtype)
    left_out = np.isin(label, numbers)
    label, own = label[left_out], own[left_out]
    regions = tuple(Region(int((label == n).sum()), float(own[label == n].mean()), reasons[n - 1]) for n in numbers)
    region = (np.searchsorted(numbers, label) + 1).astype(np.int32)
    return Outliers(where[left_out], own, threshold[left_out], region, regions, error)


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
    d: Float64Array, levels: Float64Array, log_t: Float64Array, measured: BoolArray, unit: float, unmistakable: float
) -> tuple[NDArray[np.int32], list[RegionReason]]:
    """The number of the region of each cell of the grid, from 1, and 0 outside; and the reason for each region.

    Steps at the borders are those of `levels`, because a trend that was subtracted from d has steps of its own.
    """
    found = np.zeros(measured.shape, np.int32)
    count = _grow(d, log_t, SEED * unit, GROWTH * unit, found)
    seeds = np.bincount(found[measured & (d > SEED * unit)], minlength=count + 1)
    sizes = np.bincount(found[measured], minlength=count + 1)
    first, second = _neighbours(measured.shape)
    both = measured.flat[first] & measured.flat[second]
    first, second = first[both], second[both]
    step, edge = (np.abs(values.flat[first] - values.flat[second]) for values in (levels, log_t))
    a, b = found.flat[first], found.flat[second]
    elsewhere = (a == 0) & (b == 0) & (edge > EDGE)
    explained = EXPLAINED[1]
    if elsewhere.sum() >= MIN_EDGES:
        explained = np.clip(2.0 * np.quantile(step[elsewhere] / edge[elsewhere], EDGE_QUANTILE), *EXPLAINED)
    typical = np.nan_to_num(ndimage.median(d, np.where(measured, found, 0), np.arange(count + 1))) / unit
    higher = np.where(d.flat[first] > d.flat[second], a, b)
    clear = typical[higher] > CLEAR
    unexplained = step > np.where(clear, explained * edge, EXPLAINED[1] * edge + MIN_STEP * unit)
    log_s = (levels + log_t).ravel()
    jump = unexplained & (np.abs(log_s[first] - log_s[second]) > JUMP * step)
    higher, unexplained, jump = higher[a != b], unexplained[a != b], jump[a != b]
    borders = np.bincount(higher, minlength=count + 1)
    continuous = np.bincount(higher[unexplained], minlength=count + 1)
    jumps = np.bincount(higher[jump], minlength=count + 1)
    frame = np.concatenate([found[0], found[-1], found[:, 0], found[:, -1]])
    cut_off = np.bincount(frame, minlength=count + 1) > 0
    new_label, reasons = np.zeros(count + 1, np.int32), []
    for n in range(1, count + 1):
        if seeds[n] < MIN_SEEDS or sizes[n] > MAX_SHARE * measured.sum():
            continue
        confirmed = continuous[n] >= max(MIN_UNEXPLAINED * borders[n], np.sqrt(sizes[n]))
        if cut_off[n] and typical[n] <= UNMISTAKABLE:
            enough = max(MIN_UNEXPLAINED * borders[n], TWO_SIDES * np.sqrt(sizes[n]))
            confirmed = confirmed and typical[n] > CLEAR and jumps[n] >= enough
        if confirmed:
            reasons.append(RegionReason.PRIOR_CONTINUES)
        elif typical[n] > unmistakable and not cut_off[n]:
            reasons.append(RegionReason.FAR_BEHIND)
        else:
            continue
        new_label[n] = len(reasons)
    return new_label[found], reasons


def _label_measurements(
    labels: NDArray[np.int32],
    g: Float64Array,
    cell: IndexArray,
    values: Float64Array,
    log_t: Float64Array,
    slack: float,
) -> tuple[IndexArray, Float64Array, Float64Array]:
    """The region of each measurement, its deviation from the level outside, and that up to which it is kept."""
    region = labels > 0
    first, second = _neighbours(region.shape)
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


def _membrane(values: Float64Array, weights: Float64Array, known: BoolArray, free: BoolArray) -> Float64Array:
    """The values, and in the free cells those that minimise the weighted squared differences between neighbours."""
    first, second = _neighbours(values.shape)
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


def _neighbours(shape: tuple[int, int]) -> tuple[IndexArray, IndexArray]:
    """The flat indices of all pairs of cells with a common side."""
    index = np.arange(shape[0] * shape[1]).reshape(shape)
    first = np.concatenate([index[1:].ravel(), index[:, 1:].ravel()])
    return first, np.concatenate([index[:-1].ravel(), index[:, :-1].ravel()])


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

    Neighbouring cells (of eight neighbours) are joined if d is similar, and unless both are seeds only where log t is
    continuous. Two seeds are also joined where the measured depth is continuous.
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
                    if labels[i, j] != 0 or d[i, j] <= growth:
                        continue
                    low, high = min(d[i, j], d[row, column]), max(d[i, j], d[row, column])
                    step = log_t[i, j] - log_t[row, column]
                    similar = low >= (1.0 - MAX_JUMP) * high
                    one_plane = low > seed and abs(d[i, j] - d[row, column] + step) < growth
                    if one_plane or (similar and (low > seed or abs(step) < seed)):
                        labels[i, j] = count
                        stack[n] = i * width + j
                        n += 1
    return count
