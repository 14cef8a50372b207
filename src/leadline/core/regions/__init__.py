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
   in d without the trend. Where both are found, the first is taken, because the trend is a part of a wrong region; but
   if the image border cuts it off, the second, unless little is left of it.
5. *Candidates.* Cells with d > `SEED` e are joined with their neighbours of the same kind, and then with neighbours
   above `GROWTH` e to which t is continuous, unless d differs by much. Seeds whose d differs are joined if the measured
   depth is continuous: the plane behind a window is one region, also where the prior has an edge in front of it. A
   candidate has at least `MIN_SEEDS` seeds and at most `MAX_SHARE` of the cells.
6. *Confirmation.* A prior errs beside and behind its own edges, by a share of the step of log t that is measured on the
   rest of the image. Along most of a region's border d must have a larger step: the prior says that the surface goes
   on where the measurements jump. Regions whose median of d exceeds `UNMISTAKABLE` e need no confirmation. A region
   that the image border cuts off is not seen from all sides, and priors err there over whole surfaces. It needs both,
   with a border that is long enough or jumps wherever it is seen; or a median above `CLEAR` e, and a border as long as
   two sides at which the measurements jump and not the prior. A region that is not confirmed may have grown over a
   surface on which the prior errs a little. Its seeds are then judged alone; d must fall steeply at their border.
7. *Measurements.* The border of a region is not that of the cells. Two membranes continue the residuals: one from
   outside into the region, along what the prior says is one surface, the other from the interior of the region
   outwards. Near the border each measurement belongs to the region if it is closer to the second one. A region whose
   measurements deviate from the first membrane by e or less on average is explained by what surrounds it.
8. *Surfaces.* Where neighbouring pixels are measured, they form surfaces that end where the measured depth jumps. One
   of which most belongs to a region belongs to it as a whole, also where it deviates little: a plane behind a window
   may pass just behind an object of the room, or in front of its far wall.

Measurements that are too near together (rain, dust, a fence in front of the scene) are not looked for.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from leadline.base.arrays import Float64Array, FloatArray, IndexArray
from leadline.core.outliers import MAX_PRIOR_ERROR, Outliers, Region, RegionReason
from leadline.core.regions.borders import MOST, SLACK, follow_surfaces, label_measurements
from leadline.core.regions.candidates import UNMISTAKABLE, label_regions, labels_at_image_border
from leadline.core.regions.cells import background, cell_medians, trend

MIN_MEASUREMENTS = 100
"""With fewer measurements a region would consist of too few to be distinguished from the errors of a prior."""
MAX_FITTED = 10_000
"""Pairs that are enough for the robust fit, which only has to leave residuals that a smooth background can explain."""
MAX_CELLS = 12_000
"""Largest number of cells, which bounds the cost: at 640 x 480 pixels they are 6 pixels wide."""
ERROR_QUANTILE = 0.99
MIN_PRIOR_ERROR = 0.02
"""Errors of a prior are taken to be at least this large, in log depth: sensors' own errors are about as large."""


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
    cell_medians(cell, np.stack([g, log_t]), maps[:2])
    value, depth = maps[:2, cells]
    deviation = value - background(value, cells, grid)
    error = float(np.quantile(-deviation, ERROR_QUANTILE))
    if error > MAX_PRIOR_ERROR:
        return Outliers.none(prior_error=error)
    unit = max(error, MIN_PRIOR_ERROR)
    maps[2:, cells] = deviation, deviation - np.maximum(trend(deviation, depth), 0.0)
    measured = np.isfinite(maps[0]).reshape(grid)
    # A cell without a measurement takes the values of the nearest one with some, so that it does not split a region.
    nearest = ndimage.distance_transform_edt(~measured, return_distances=False, return_indices=True)
    values, depths, deviations, detrended = (values.reshape(grid)[tuple(nearest)] for values in maps)
    labels, reasons = label_regions(deviations, deviations, depths, measured, unit, np.inf)
    others, more = label_regions(detrended, deviations, depths, measured, unit, UNMISTAKABLE)
    # Of a wrong region, the trend is a part. But one that the image border cuts off may have grown into errors of the
    # response there, so it is taken without the trend if that leaves most of it.
    cut_off = labels_at_image_border(labels)
    for n in range(1, len(reasons) + 1):
        region = measured & (labels == n)
        shared = others[region & (others > 0)]
        if n in cut_off and shared.size > MOST * np.count_nonzero(region):
            labels[labels == n] = 0
        else:
            others[np.isin(others, shared)] = 0
    labels, reasons = np.where(others > 0, others + len(reasons), labels), reasons + more
    # A region that grew over a surface on which the prior errs a little is confirmed by its seeds alone.
    others, more = label_regions(deviations, deviations, depths, measured, unit, np.inf, only_seeds=True)
    others[np.isin(others, others[labels > 0])] = 0
    labels, reasons = np.where(others > 0, others + len(reasons), labels), reasons + more
    if not reasons:
        return Outliers.none(prior_error=error)
    label, own, threshold = label_measurements(labels, g, cell, values, depths, SLACK * unit)
    # The surroundings explain a region that deviates from their level by no more than the prior's error.
    explained = [n for n in np.unique(label[label > 0]) if own[label == n].mean() <= error]
    label[np.isin(label, explained)] = 0
    found = follow_surfaces(label, g, log_t, where, shape)
    threshold[label != found] = -np.inf
    left_out = found > 0
    numbers = np.unique(found[left_out])
    regions = [_describe(own[found == n], rows[found == n], columns[found == n], reasons[n - 1]) for n in numbers]
    region = (np.searchsorted(numbers, found[left_out]) + 1).astype(np.int32)
    return Outliers(where[left_out], own[left_out], threshold[left_out], region, tuple(regions), error)


def _describe(own: Float64Array, rows: IndexArray, columns: IndexArray, reason: RegionReason) -> Region:
    first_to_last = [(int(places.min()), int(places.max())) for places in (rows, columns)]
    return Region(own.size, float(own.mean()), first_to_last[0], first_to_last[1], reason)
