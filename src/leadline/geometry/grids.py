"""Maps of another size brought onto an image's grid: priors by interpolation, measurements by moving them.

Both maps cover the same field of view, so positions follow the half-pixel rule: with pixel centres at
integers, the centre of pixel u of n lies at (u + 1/2) N / n - 1/2 on a grid of N pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]


def resize_bilinear(values: FloatArray, shape: tuple[int, int], usable: NDArray[np.bool_] | None = None) -> FloatArray:
    """`values` interpolated bilinearly onto `shape`; NaN wherever an unusable value would take part.

    Positions beyond the outermost centres take the outermost value. Shrinking is not smoothed first.

    Parameters
    ----------
    values : (h, w) float array
        In the unit that is to be interpolated, e.g. disparity for a prior of that kind.
    shape : (H, W)
        Size of the result.
    usable : (h, w) bool array, optional
        False where a value means nothing. By default the finite ones are usable.

    Examples
    --------
    >>> resize_bilinear(np.array([[0.0, 4.0]]), (1, 4))
    array([[0., 1., 3., 4.]])
    """
    kept = np.where(np.isfinite(values) if usable is None else usable, values, np.nan)
    for axis in (0, 1):
        low, high, share = _neighbours(values.shape[axis], shape[axis])
        share = np.expand_dims(share, 1 - axis)
        near, far = np.take(kept, low, axis), np.take(kept, high, axis)
        kept = near + (far - near) * share
    return kept.astype(values.dtype, copy=False)


def scatter_nearest(sparse: FloatArray, shape: tuple[int, int]) -> tuple[FloatArray, int]:
    """`sparse` with each measurement moved to the nearest pixel of a grid of `shape`, and how many were lost.

    Nothing is interpolated: a mean of two depths lies on neither surface. A position halfway between two
    pixels goes to the one on the right or below. Where several measurements meet in a pixel the nearest
    depth stays, since it hides the others.

    Parameters
    ----------
    sparse : (h, w) float array
        Metres; what is not finite and positive was not measured.
    shape : (H, W)
        Size of the result, NaN where nothing falls.

    Examples
    --------
    >>> scatter_nearest(np.array([[5.0, 3.0, np.nan, 2.0]]), (1, 2))
    (array([[3., 2.]]), 1)
    """
    with np.errstate(invalid="ignore"):
        rows, columns = np.nonzero(np.isfinite(sparse) & (sparse > 0))
    depths = sparse[rows, columns]
    # Whole numbers, so that a position that falls on a border falls there at any size.
    target = tuple(
        (2 * index + 1) * wanted // (2 * given)
        for index, wanted, given in zip((rows, columns), shape, sparse.shape, strict=True)
    )
    moved = np.full(shape, np.inf, dtype=sparse.dtype)
    np.minimum.at(moved, target, depths)
    occupied = np.isfinite(moved)
    return np.where(occupied, moved, sparse.dtype.type(np.nan)), len(depths) - int(occupied.sum())


def turn(values: NDArray[Any], quarter_turns: int) -> NDArray[Any]:
    """`values` (H, W, ...) turned counter-clockwise by so many quarter turns, in memory order."""
    return np.ascontiguousarray(np.rot90(values, quarter_turns))


def _neighbours(given: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    position = np.clip((np.arange(wanted) + 0.5) * given / wanted - 0.5, 0, given - 1)
    low = np.floor(position)
    # ceil, not low + 1: on a centre the neighbour has no share and, being NaN perhaps, must not take part.
    return low.astype(np.intp), np.ceil(position).astype(np.intp), position - low
