"""Downsampling of images and depth.

Pixel centres are at integers. Pixel u of n covers the fraction [u/n, (u + 1)/n) of its axis at every size. The
*footprint* of a small pixel consists of the large pixels whose centres it covers. Colours are averaged over footprints.
Depth is not, since the mean of two surfaces lies on neither.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param

DepthRule = Literal["nearest", "nearest-valid"]
PillowFilter = Literal["nearest", "bilinear", "lanczos"]


def downsample_image(image: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """`image` at `shape` (H, W): each pixel the mean of its footprint, rounded.

    Pillow computes in fixed point: exact where both sides are divided by 2 or 4, else off by less than a grey level.
    """
    from PIL import Image

    if image.shape[:2] == shape:
        return image
    _require_smaller(image.shape, shape)
    picture = Image.fromarray(image)
    if image.shape[0] % shape[0] == 0 and image.shape[1] % shape[1] == 0:
        return np.array(picture.reduce((image.shape[1] // shape[1], image.shape[0] // shape[0])))
    return np.array(picture.resize((shape[1], shape[0]), Image.Resampling.BOX))


def resize_as_pillow(values: NDArray[Any], shape: tuple[int, int], kind: PillowFilter) -> NDArray[Any]:
    """An RGB image or a float32 map at `shape` (H, W) by Pillow, as evaluations with torchvision resize PIL images.

    When shrinking, ``bilinear`` and ``lanczos`` average over the area that a pixel covers. Depth with missing values of
    0 is averaged with them; this is what those evaluations do.
    """
    from PIL import Image

    picture = Image.fromarray(values)
    return np.array(picture.resize((shape[1], shape[0]), Image.Resampling[kind.upper()]))


def downsample_depth(depth: FloatArray, shape: tuple[int, int], rule: DepthRule) -> FloatArray:
    """`depth` at `shape` (H, W): each pixel is one value of its footprint, or NaN.

    NaN, inf and values <= 0 are missing. The rule ``nearest`` takes the pixel whose centre is nearest, valid or not;
    halfway between two, the one on the right or below, which is pixel 4u + 2 for a factor of 4. ``nearest-valid`` takes
    the valid pixel of the footprint that is nearest to its centre, and of several at the same distance the one of least
    depth, since it occludes the others. It preserves scan points that are sparser than the pixels of a large image.

    Examples
    --------
    >>> row = np.array([[1.0, 2.0, np.nan, 4.0]])
    >>> downsample_depth(row, (1, 2), "nearest"), downsample_depth(row, (1, 2), "nearest-valid")
    (array([[2., 4.]]), array([[1., 4.]]))
    """
    if depth.shape == shape:
        return depth
    _require_smaller(depth.shape, shape)
    if rule == "nearest":  # of the pixels of one axis, those that cover the centres of the small ones
        sides = zip(shape, depth.shape, strict=True)
        return depth[np.ix_(*((2 * np.arange(small) + 1) * large // (2 * small) for small, large in sides))]
    (top, rows), (left, columns) = (_footprints(*sizes) for sizes in zip(shape, depth.shape, strict=True))
    result = np.full(shape, np.nan, dtype=depth.dtype)
    least = np.full(shape, np.inf)
    for down in range(int(rows.max())):
        for right in range(int(columns.max())):
            row, column = np.minimum(top + down, depth.shape[0] - 1), np.minimum(left + right, depth.shape[1] - 1)
            away = _offset(row, shape[0], depth.shape[0])[:, None] ** 2
            away = away + _offset(column, shape[1], depth.shape[1])[None, :] ** 2
            candidate = depth[np.ix_(row, column)]
            with np.errstate(invalid="ignore"):
                usable = np.isfinite(candidate) & (candidate > 0) & (down < rows)[:, None] & (right < columns)[None, :]
                better = usable & ((away < least) | ((away == least) & (candidate < result)))
            result[better], least[better] = candidate[better], away[better]
    return result


def _require_smaller(given: tuple[int, ...], wanted: tuple[int, int]) -> None:
    if wanted[0] > given[0] or wanted[1] > given[1]:
        raise InputError(f"{param('size')} {wanted[1]}x{wanted[0]} is larger than the image's {given[1]}x{given[0]}.")


def _footprints(small: int, large: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First pixel and number of pixels of each footprint, in integer arithmetic so that no border is rounded."""
    edges = -((small - 2 * np.arange(small + 1) * large) // (2 * small))  # ceil(u N/n - 1/2)
    return edges[:-1], np.diff(edges)


def _offset(index: NDArray[np.int64], small: int, large: int) -> NDArray[np.float64]:
    """Distance of each pixel's centre from that of its footprint, in large pixels."""
    return ((2 * index + 1) * small - (2 * np.arange(small) + 1) * large) / (2 * small)
