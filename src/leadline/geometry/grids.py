"""Depth maps on pixel grids: resizing, scattering, averaging cells, rotating, and masking by confidence.

Two maps of different size that cover the same field of view are related by the half-pixel rule: with pixel centres at
integers, the centre of pixel u of n lies at (u + 1/2) N / n - 1/2 on a grid of N pixels.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map, is_measured
from leadline.base.errors import InputError, param

Rounding = Literal["round", "floor", "ceil"]
_ROUNDINGS = {"round": lambda value: math.floor(value + 0.5), "floor": math.floor, "ceil": math.ceil}


def resize_bilinear(values: FloatArray, shape: tuple[int, int], usable: BoolArray | None = None) -> FloatArray:
    """`values` interpolated bilinearly to `shape`; NaN wherever an unusable value contributes.

    Positions beyond the outermost centres take the outermost value. There is no smoothing before shrinking. SciPy's
    interpolation is not used, because it multiplies a NaN neighbour by its weight 0, which loses pixels that fall on a
    centre. By default the finite values are usable.

    Examples
    --------
    >>> resize_bilinear(np.array([[0.0, 4.0]]), (1, 4))
    array([[0., 1., 3., 4.]])
    """
    result = np.where(np.isfinite(values) if usable is None else usable, values, np.nan)
    for axis, (given, size) in enumerate(zip(values.shape, shape, strict=True)):
        position = np.clip((np.arange(size) + 0.5) * given / size - 0.5, 0, given - 1)
        # ceil, not low + 1: on a centre the next pixel has weight 0 and must not contribute, because it may be NaN.
        low, high = np.floor(position), np.ceil(position)
        near, far = (np.take(result, index.astype(np.intp), axis) for index in (low, high))
        result = near + (far - near) * np.expand_dims(position - low, 1 - axis)
    return result.astype(values.dtype, copy=False)


def scatter_nearest(sparse: FloatArray, shape: tuple[int, int]) -> tuple[FloatArray, int]:
    """`sparse` with each measurement moved to the nearest pixel of a grid of `shape`, and how many were lost.

    Measurements are not interpolated, because a mean of two depths lies on neither surface. A position halfway between
    two pixels goes to the one on the right or below. Where several measurements fall into one pixel, the nearest depth
    is kept, since it occludes the others. The result is NaN where nothing is measured.

    Examples
    --------
    >>> scatter_nearest(np.array([[5.0, 3.0, np.nan, 2.0]]), (1, 2))
    (array([[3., 2.]]), 1)
    """
    rows, columns = np.nonzero(is_measured(sparse))
    # Integer arithmetic, so that halfway positions are decided alike at every size.
    target = tuple(
        (2 * index + 1) * size // (2 * given)
        for index, size, given in zip((rows, columns), shape, sparse.shape, strict=True)
    )
    return _keep_nearest(shape, target, sparse[rows, columns])


def place_zones(
    depths: ArrayLike, boxes: ArrayLike, shape: tuple[int, int], *, valid: ArrayLike | None = None
) -> NDArray[np.float32]:
    """Mean depths of a zone sensor at the centres of its zones, (H, W) float32 metres, NaN elsewhere.

    A zone measures one distance for a whole rectangle of the image, e.g. each of the 8 x 8 of a VL53L5CX. Its mean
    depth is most likely right at the centre; filling the rectangle with it would describe a wall that faces the camera.

    Parameters
    ----------
    depths : (N,) array
        Metres; values that are not finite and positive are not measured.
    boxes : (N, 4) array
        First row, first column, row and column after the last one, as in ZJU-L5.
    shape : (H, W)
        Size of the image. Zones whose centre lies outside are left out.
    valid : (N,) array, optional
        Zones with 0 or false are left out.

    Examples
    --------
    >>> place_zones([2.0], [[0, 0, 3, 2]], (3, 2))
    array([[nan, nan], [nan,  2.], [nan, nan]], dtype=float32)
    """
    depth, box = np.asarray(depths, np.float32), np.asarray(boxes, np.float64)
    if depth.ndim != 1 or box.shape != (len(depth), 4):
        raise InputError(f"{param('boxes')} must be (N, 4) for N depths, got {box.shape} for {depth.shape} instead.")
    used = np.ones(len(depth), bool) if valid is None else np.asarray(valid).astype(bool)
    if used.shape != depth.shape:
        raise InputError(f"{param('valid')} must have one entry for each of {len(depth)} depths, got {used.shape}.")
    # Pixels first to last - 1 have their middle at (first + last - 1) / 2; halves go right and down.
    rows, columns = (np.floor((box[:, k] + box[:, k + 2]) / 2) for k in (0, 1))
    with np.errstate(invalid="ignore"):
        used = used & is_measured(depth) & (box[:, 2] > box[:, 0]) & (box[:, 3] > box[:, 1])
        used &= (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
    target = rows[used].astype(np.intp), columns[used].astype(np.intp)
    return _keep_nearest(shape, target, depth[used])[0].astype(np.float32, copy=False)


def grid_cells(size: int, stride: float, rounding: Rounding = "round") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First pixel and central pixel of each cell of a regular grid along an axis of `size` pixels.

    There are n cells of size / n pixels, so that none is cut off at the border; n is size / stride rounded, from 1 to
    `size`. Pixel u covers [u, u + 1); cell k contains the pixels whose centre lies in [k size/n, (k + 1) size/n),
    and its central pixel covers its centre, floor((k + 1/2) size/n).

    Examples
    --------
    >>> grid_cells(20, 7.5), grid_cells(20, 7.5, "floor")[1]
    ((array([ 0,  7, 13]), array([ 3, 10, 16])), array([ 5, 15]))
    """
    count = min(size, max(1, _ROUNDINGS[rounding](size / stride)))
    cells = np.arange(count)
    # Integer arithmetic, so that a centre exactly on a border is assigned to the same cell on every machine.
    first = -((count - 2 * cells * size) // (2 * count))  # ceil(k size/n - 1/2)
    return first, (2 * cells + 1) * size // (2 * count)


def cell_means(values: FloatArray, stride: float, rounding: Rounding = "round") -> NDArray[np.float32]:
    """The mean of the measured values of each cell of `grid_cells`, (rows, columns), NaN for a cell without any.

    Examples
    --------
    >>> cell_means(np.array([[2.0, np.nan, 4.0, 0.0]]), 2.0)
    array([[2., 4.]], dtype=float32)
    """
    (row_edges, _), (column_edges, _) = (grid_cells(size, stride, rounding) for size in values.shape)
    measured = is_measured(values)
    # Summed along the rows first: that leaves an eighth of the numbers, and converts to float64 only while summing.
    totals = np.add.reduceat(np.where(measured, values, 0), column_edges, axis=1, dtype=np.float64)
    counts = np.add.reduceat(measured.view(np.uint8), column_edges, axis=1, dtype=np.int64)
    totals, counts = (np.add.reduceat(sums, row_edges, axis=0) for sums in (totals, counts))
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan).astype(np.float32)


def mask_low_confidence(depth: FloatArray, confidence: ArrayLike, minimum: float) -> FloatArray:
    """`depth` with NaN where `confidence`, of the same size, is below `minimum`.

    ARKit's maps have the levels 0, 1 and 2; a minimum of 2 removes most errors at edges and on shiny surfaces.

    Examples
    --------
    >>> mask_low_confidence(np.array([[1.0, 2.0, 3.0]]), np.array([[0, 1, 2]]), 1)
    array([[nan,  2.,  3.]])
    """
    depth, levels = as_map(depth, "depth"), np.asarray(confidence)
    if levels.shape != depth.shape:
        raise InputError(f"{param('confidence')} must have the depth's shape {depth.shape}, got {levels.shape}.")
    return np.where(levels >= minimum, depth, depth.dtype.type(np.nan))


def rotate90(values: NDArray[Any], quarter_turns: int) -> NDArray[Any]:
    """`values`, (H, W, ...), rotated counter-clockwise by quarter turns, as a contiguous array."""
    return np.ascontiguousarray(np.rot90(values, quarter_turns))


def _keep_nearest(shape: tuple[int, int], target: tuple[Any, ...], depths: FloatArray) -> tuple[FloatArray, int]:
    """A map with each depth at its target pixel, the nearest where several meet, and how many were lost by that."""
    nearest = np.full(shape, np.inf, dtype=depths.dtype)
    np.minimum.at(nearest, target, depths)
    occupied = np.isfinite(nearest)
    return np.where(occupied, nearest, depths.dtype.type(np.nan)), len(depths) - int(occupied.sum())
