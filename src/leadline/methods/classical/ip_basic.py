"""IP-Basic: dilation, closing and blurring of the measured depth, without prior and without image.

Ku, Harakeh and Waslander 2018, *In Defense of Classical Image Processing: Fast Depth Completion on the CPU*. Their
code (kujason/ip_basic, MIT) uses OpenCV; here the same operations are SciPy's. It was made for the 64 lines of
KITTI's LiDAR: its kernels have a fixed number of pixels, so that with few measurements most of the image stays empty.

Depths are inverted as `max_depth` - depth, so that dilation prefers near surfaces. Values up to 0.1 are empty.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import require_choice, require_positive
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels
from leadline.methods.classical.fields import NO_MEASUREMENT

Fill = Literal["fast", "multiscale"]
Blur = Literal["gaussian", "bilateral"]
_Map = NDArray[np.float32]

EMPTY = 0.1  # metres, also of inverted depth; smaller values are empty
NEAR, FAR = 15.0, 30.0  # metres between the three ranges of the multiscale dilation
FILLS = 6  # dilations by 5 x 5 of large holes, multiscale
FAST_BLUR, MULTISCALE_BLUR = 1.5, 0.5  # standard deviations of the bilateral filters in depth, metres
SPATIAL_BLUR = 2.0  # standard deviation of the bilateral filters in the image, pixels
_GAUSSIAN = np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0  # OpenCV's kernel of 5 pixels


def ip_basic(
    prior: Prior,
    sparse: FloatArray,
    *,
    fill: Fill = "fast",
    blur: Blur = "gaussian",
    extrapolate: bool = True,
    max_depth: float = 100.0,
) -> MethodResult:
    """The measured depth, dilated and blurred. Only the shape of the prior is used.

    The defaults are those of the authors' demo for KITTI's test set. Measurements are not restored. Pixels that no
    dilation reaches have no depth and are counted. Some 0.1 s at 640 x 480 (fast).

    Parameters
    ----------
    fill : {"fast", "multiscale"}
        Dilation by one kernel, or by three for near, medium and far depths, with more clean-up.
    blur : {"gaussian", "bilateral"}
        The last filter; the authors find the first better in RMSE and the second better for local structure.
    extrapolate : bool
        Whether the topmost depth of each column is continued to the top of the image, and large holes are filled.
    max_depth : float
        Metres from which depth is inverted. Measurements beyond it are not used.
    """
    require_choice("fill", fill, Fill)
    require_choice("blur", blur, Blur)
    require_positive(max_depth=max_depth)
    measured = measured_pixels(prior, sparse)
    depths = np.where(measured, sparse, 0.0).astype(np.float32)
    depths[(depths <= EMPTY) | (max_depth - depths <= EMPTY)] = 0.0
    if not depths.any():
        return failure(prior.shape, NO_MEASUREMENT)
    inverted = np.where(depths > 0, np.float32(max_depth) - depths, np.float32(0.0))
    filled = _fast(inverted, blur, extrapolate) if fill == "fast" else _multiscale(depths, inverted, blur, extrapolate)
    depth = np.where(filled > EMPTY, np.float32(max_depth) - filled, np.float32(np.nan))
    depth[~(depth > 0)] = np.nan
    missing = int(np.count_nonzero(np.isnan(depth)))
    return MethodResult(depth, f"ok, but {missing} of {depth.size} pixels have no depth" if missing else "ok")


def _fast(values: _Map, blur: Blur, extrapolate: bool) -> _Map:
    values = _close(_dilate(values, _diamond(2)))
    values = np.where(values < EMPTY, _dilate(values, _square(7)), values)
    if extrapolate:
        values = _extend_up(values)
        values = np.where(values < EMPTY, _dilate(values, _square(31)), values)
    values = _median(values)
    if blur == "bilateral":
        return _bilateral(values, FAST_BLUR)
    return np.where(values > EMPTY, _gaussian(values), values)


def _multiscale(depths: _Map, values: _Map, blur: Blur, extrapolate: bool) -> _Map:
    far, medium, near = depths > FAR, (depths > NEAR) & (depths <= FAR), (depths > 0) & (depths <= NEAR)
    combined = values
    for chosen, kernel in ((far, _cross(1)), (medium, _cross(2)), (near, _cross(3))):  # near surfaces last
        dilated = _dilate(np.where(chosen, values, np.float32(0.0)), kernel)
        combined = np.where(dilated > EMPTY, dilated, combined)
    closed = _close(combined)
    blurred = np.where(closed > EMPTY, _median(closed), closed)
    filled = np.where((blurred <= EMPTY) & _below_top(blurred), _dilate(blurred, _square(9)), blurred)
    inside = np.ones(filled.shape, np.bool_) if extrapolate else _below_top(filled)
    if extrapolate:
        filled = _extend_up(filled)
    for _ in range(FILLS):
        filled = np.where((filled < EMPTY) & inside, _dilate(filled, _square(5)), filled)
    chosen = (filled > EMPTY) & inside
    filled = np.where(chosen, _median(filled), filled)
    if blur == "bilateral":
        return np.where(chosen, _bilateral(filled, MULTISCALE_BLUR), filled)
    return np.where((filled > EMPTY) & inside, _gaussian(filled), filled)


def _square(size: int) -> NDArray[np.bool_]:
    return np.ones((size, size), np.bool_)


def _cross(reach: int) -> NDArray[np.bool_]:
    rows, columns = np.indices((2 * reach + 1, 2 * reach + 1)) - reach
    return np.asarray((rows == 0) | (columns == 0))


def _diamond(reach: int) -> NDArray[np.bool_]:
    rows, columns = np.indices((2 * reach + 1, 2 * reach + 1)) - reach
    return np.asarray(np.abs(rows) + np.abs(columns) <= reach)


def _dilate(values: _Map, kernel: NDArray[np.bool_]) -> _Map:
    from scipy.ndimage import maximum_filter

    if kernel.all():  # a full kernel is separable
        return np.asarray(maximum_filter(values, size=kernel.shape, mode="constant", cval=0.0))
    return np.asarray(maximum_filter(values, footprint=kernel, mode="constant", cval=0.0))


def _close(values: _Map) -> _Map:
    from scipy.ndimage import minimum_filter

    return np.asarray(minimum_filter(_dilate(values, _square(5)), size=5, mode="constant", cval=np.inf))


def _median(values: _Map) -> _Map:
    from scipy.ndimage import median_filter

    return np.asarray(median_filter(values, size=5, mode="nearest"))


def _gaussian(values: _Map) -> _Map:
    from scipy.ndimage import correlate1d

    return np.asarray(correlate1d(correlate1d(values, _GAUSSIAN, 0, mode="mirror"), _GAUSSIAN, 1, mode="mirror"))


def _bilateral(values: _Map, spread: float) -> _Map:
    """A bilateral filter over the pixels within 2 of each one."""
    height, width = values.shape
    padded = np.pad(values, 2, mode="reflect").astype(np.float64)
    total, weights = np.zeros(values.shape), np.zeros(values.shape)
    for i, j in np.argwhere(np.hypot(*(np.indices((5, 5)) - 2)) <= 2):
        shifted = padded[i : i + height, j : j + width]
        near = -((i - 2) ** 2 + (j - 2) ** 2) / (2 * SPATIAL_BLUR**2)
        weight = np.exp(near - (shifted - values) ** 2 / (2 * spread**2))
        total += weight * shifted
        weights += weight
    return (total / weights).astype(np.float32)


def _tops(values: _Map) -> NDArray[np.intp]:
    """The row of the topmost depth of each column; 0 where there is none."""
    return np.asarray(np.argmax(values > EMPTY, axis=0))


def _below_top(values: _Map) -> NDArray[np.bool_]:
    return np.asarray(np.arange(values.shape[0])[:, None] >= _tops(values))


def _extend_up(values: _Map) -> _Map:
    tops = _tops(values)
    return np.where(_below_top(values), values, values[tops, np.arange(values.shape[1])])
