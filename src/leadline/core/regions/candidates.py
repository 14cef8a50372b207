"""Candidates for regions among the cells, and which of them are confirmed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from leadline.base.arrays import BoolArray, Float64Array, IndexArray
from leadline.base.jit import compiled
from leadline.core.outliers import RegionReason

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
MIN_UNEXPLAINED, MIN_OF_CLEAR = 0.6, 0.4
"""Share of a region's border at which d must have a step that no edge explains; the second if its deviation is clear
and the image border does not cut it off."""
JUMP, TWO_SIDES = 0.75, 2.0
"""Of a region that the image border cuts off: the share of a step of d that must be a step of the measurements, and the
number of such steps in units of the side of a square with as many cells, which has two sides in a corner."""
NEARLY_ALL, LESS_CLEAR = 0.9, 3.0
"""If this share of the border of such a region jumps, the second number is enough in place of `CLEAR`."""


def label_regions(
    d: Float64Array,
    levels: Float64Array,
    log_t: Float64Array,
    measured: BoolArray,
    unit: float,
    unmistakable: float,
    *,
    only_seeds: bool = False,
) -> tuple[NDArray[np.int32], list[RegionReason]]:
    """The number of the region of each cell of the grid, from 1, and 0 outside; and the reason for each region.

    Steps at the borders are those of `levels`, because a trend that was subtracted from d has steps of its own. With
    `only_seeds` regions do not grow, and d must fall at their borders to where they would have ended.
    """
    found = np.zeros(measured.shape, np.int32)
    count = grow(d, log_t, SEED * unit, (SEED if only_seeds else GROWTH) * unit, found)
    seeds = np.bincount(found[measured & (d > SEED * unit)], minlength=count + 1)
    sizes = np.bincount(found[measured], minlength=count + 1)
    first, second = neighbours(measured.shape)
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
    clear = (typical[higher] > CLEAR) & (not only_seeds)
    least = (SEED - GROWTH if only_seeds else MIN_STEP) * unit
    unexplained = step > np.where(clear, explained * edge, EXPLAINED[1] * edge + least)
    log_s = (levels + log_t).ravel()
    jump = unexplained & (np.abs(log_s[first] - log_s[second]) > JUMP * step)
    higher, unexplained, jump = higher[a != b], unexplained[a != b], jump[a != b]
    borders = np.bincount(higher, minlength=count + 1)
    continuous = np.bincount(higher[unexplained], minlength=count + 1)
    jumps = np.bincount(higher[jump], minlength=count + 1)
    cut_off = np.isin(np.arange(count + 1), labels_at_image_border(found))
    new_label, reasons = np.zeros(count + 1, np.int32), []
    for n in range(1, count + 1):
        if seeds[n] < MIN_SEEDS or sizes[n] > MAX_SHARE * measured.sum():
            continue
        share = MIN_OF_CLEAR if typical[n] > CLEAR and not cut_off[n] else MIN_UNEXPLAINED
        confirmed = continuous[n] >= max(share * borders[n], np.sqrt(sizes[n]))
        if cut_off[n] and typical[n] <= UNMISTAKABLE:
            deviates = typical[n] > (LESS_CLEAR if jumps[n] >= NEARLY_ALL * borders[n] else CLEAR)
            enough = max(MIN_UNEXPLAINED * borders[n], TWO_SIDES * np.sqrt(sizes[n]))
            confirmed = confirmed and deviates and jumps[n] >= enough
        elif cut_off[n]:
            confirmed = confirmed or jumps[n] >= max(NEARLY_ALL * borders[n], MIN_SEEDS)
        if confirmed:
            reasons.append(RegionReason.PRIOR_CONTINUES)
        elif typical[n] > unmistakable and not cut_off[n]:
            reasons.append(RegionReason.FAR_BEHIND)
        else:
            continue
        new_label[n] = len(reasons)
    return new_label[found], reasons


def labels_at_image_border(labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """The labels of the cells along the four sides of the image."""
    return np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))


def neighbours(shape: tuple[int, int]) -> tuple[IndexArray, IndexArray]:
    """The flat indices of all pairs of cells with a common side."""
    index = np.arange(shape[0] * shape[1]).reshape(shape)
    first = np.concatenate([index[1:].ravel(), index[:, 1:].ravel()])
    return first, np.concatenate([index[:-1].ravel(), index[:, :-1].ravel()])


@compiled()
def grow(d, log_t, seed, growth, labels):  # type: ignore[no-untyped-def]
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
