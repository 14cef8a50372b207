"""Area interpolation of images: the value of a pixel is the mean of the area that it covers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def resize_area(image: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.float32]:
    """`image`, (H, W) or (H, W, C), at `shape`: each pixel is the mean over the area it covers, not rounded.

    A source pixel that lies half inside the area counts half. This is OpenCV's ``INTER_AREA`` where both sides shrink;
    Pillow's box filter is not, since it counts a source pixel either whole or not at all, by its centre.

    Examples
    --------
    >>> stripes = np.tile(np.array([255, 0], np.uint8), 5)[None]
    >>> resize_area(stripes, (1, 7)).tolist()
    [[178.5, 153.0, 76.5, 127.5, 178.5, 102.0, 76.5]]
    """
    height, width = image.shape[:2]
    rows, columns = shape
    channels = image.shape[2:]
    values = image.astype(np.float32, copy=False)
    if rows != height:
        values = (area_weights(height, rows) @ values.reshape(height, -1)).reshape(rows, width, *channels)
    if columns != width:
        across = np.moveaxis(values, 1, 0).reshape(width, -1)
        values = np.moveaxis((area_weights(width, columns) @ across).reshape(columns, rows, *channels), 0, 1)
    return np.ascontiguousarray(values)


def area_weights(size: int, count: int) -> Any:
    """The sparse (count, size) matrix whose entry (j, i) is the share of new pixel j that old pixel i covers.

    In units of 1 / (size count) of the axis, old pixels are `count` and new ones `size` long. Between two neighbouring
    borders of either kind there is one old and one new pixel, so that all shares are quotients of integers.
    """
    from scipy.sparse import csr_matrix

    borders = np.union1d(np.arange(size + 1) * count, np.arange(count + 1) * size)
    first = borders[:-1]
    shares = (np.diff(borders) / size).astype(np.float32)
    return csr_matrix((shares, (first // size, first // count)), shape=(count, size))
