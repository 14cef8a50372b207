"""The paper's simulated measurements: a low-resolution grid over a reference depth, in three cases.

To the pixel, for an axis of `size` pixels, pixel u covering [u, u + 1) of it:

- the axis has n = max(1, floor(size / stride + 1/2)) cells of size / n pixels each: "nominal" stride 7.5
  becomes 640/85 = 7.53 at 640 pixels and exactly 7.5 at 480, so no cell is cut off at the border;
- cell k holds the pixels whose middle u + 1/2 lies in [k size/n, (k + 1) size/n): with stride 7.5, cells of
  7 and 8 pixels by turns, and each pixel is in exactly one cell;
- its anchor is the pixel that covers the cell's middle, floor((k + 1/2) size/n): it lies inside the cell.

A cell's value is the mean of the valid (finite, > 0) reference depths in it, a cell without any gives no anchor,
and the anchor gets the value even where the reference itself is invalid there: the sensor sees the cell.

The central rectangle has floor(H/2) rows from floor((H - floor(H/2)) / 2) on, and likewise for columns: 240 to 719
of 960; of 5 pixels, 1 and 2. It removes *anchors* by their own position; a cell that straddles its border keeps its
whole mean, as a real low-resolution sensor would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map
from leadline.base.errors import InputError

Case = Literal["distributed", "central", "outer"]
CASES: tuple[Case, ...] = get_args(Case)


@dataclass(frozen=True)
class Observed:
    """What a method is given, and where it is scored."""

    sparse: NDArray[np.float32]  # (H, W) metres, NaN where not measured
    scored: BoolArray  # (H, W)
    case: Case


def observe(reference: FloatArray, case: Case, *, stride: float = 7.5) -> Observed:
    """The measurements of one case and the pixels on which it is scored.

    =============  =========================  ==============================================
    case           measured                   scored (where the reference is valid)
    =============  =========================  ==============================================
    distributed    every anchor               every pixel that is not an anchor
    central        anchors outside the        pixels inside the central rectangle
                   central rectangle
    outer          anchors inside it          pixels outside it
    =============  =========================  ==============================================

    A pixel that was given to the method is never scored. In the last two cases an anchor that was removed is
    an ordinary held-out pixel.

    Parameters
    ----------
    reference : (H, W) array
        Depth in metres; NaN, inf and values <= 0 are invalid.
    case : {"distributed", "central", "outer"}
    stride : float
        Nominal distance between anchors in pixels, at least 1.

    Raises
    ------
    InputError
        If the case is unknown or the stride is below 1 or not finite.

    Examples
    --------
    >>> observed = observe(np.full((15, 15), 2.0), "distributed")
    >>> np.argwhere(np.isfinite(observed.sparse)).tolist()
    [[3, 3], [3, 11], [11, 3], [11, 11]]
    >>> int(observed.scored.sum())
    221
    """
    if case not in CASES:
        raise InputError(f"`case` must be one of {', '.join(CASES)}, got {case!r} instead.")
    if not (math.isfinite(stride) and stride >= 1):
        raise InputError(f"`stride` must be a finite number of at least 1 pixel, got {stride!r} instead.")
    reference = as_map(reference, "reference")
    height, width = reference.shape
    valid = np.isfinite(reference) & (reference > 0)

    row_edges, row_anchors = _cells(height, stride)
    column_edges, column_anchors = _cells(width, stride)
    # Along the rows first: that leaves an eighth of the numbers, and widens them only while they are summed.
    totals = np.add.reduceat(np.where(valid, reference, 0), column_edges, axis=1, dtype=np.float64)
    counts = np.add.reduceat(valid.view(np.uint8), column_edges, axis=1, dtype=np.int64)
    totals, counts = (np.add.reduceat(values, row_edges, axis=0) for values in (totals, counts))
    means = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)

    sparse = np.full((height, width), np.nan, dtype=np.float32)
    sparse[np.ix_(row_anchors, column_anchors)] = means
    if case == "distributed":
        return Observed(sparse, valid & ~np.isfinite(sparse), case)
    inside = np.zeros((height, width), dtype=bool)
    inside[central_rectangle(height, width)] = True
    removed = inside if case == "central" else ~inside
    sparse[removed] = np.nan
    return Observed(sparse, valid & removed, case)


def central_rectangle(height: int, width: int) -> tuple[slice, slice]:
    """Rows and columns of the rectangle of half the height and half the width, in the middle.

    Examples
    --------
    >>> central_rectangle(480, 5)
    (slice(120, 360, None), slice(1, 3, None))
    """
    top, left = (height - height // 2) // 2, (width - width // 2) // 2
    return slice(top, top + height // 2), slice(left, left + width // 2)


def _cells(size: int, stride: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First pixel and anchor pixel of each cell along one axis."""
    count = max(1, math.floor(size / stride + 0.5))
    cells = np.arange(count)
    # In integers, so that a middle that falls exactly on a border does so on every machine.
    first = -((count - 2 * cells * size) // (2 * count))  # ceil(k size/n - 1/2)
    return first, (2 * cells + 1) * size // (2 * count)
