"""Where a sensor sits: rigid transforms as 4x4 arrays, from JSON and from KITTI's calibration files.

A transform T takes a point of one frame into another, x' = T[:3, :3] @ x + T[:3, 3], in metres. Frames of cameras have
x to the right, y down and z forward.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError

Transform = NDArray[np.float64]  # (4, 4)

# Calibrations are written with some seven digits; what is off by more than this is no rotation.
ROTATION_TOLERANCE = 1e-3
_QUATERNION_NORM = (0.9, 1.1)  # outside, the numbers are something else than a rotation


def rotation_of(quaternion: tuple[float, ...]) -> NDArray[np.float64]:
    """The rotation matrix of a unit quaternion w, x, y, z, (3, 3).

    Raises
    ------
    InputError
        If its length is not near 1.

    Examples
    --------
    >>> rotation_of((0.0, 0.0, 0.0, 1.0)) @ (1.0, 2.0, 3.0)
    array([-1., -2.,  3.])
    """
    length = math.hypot(*quaternion)
    if len(quaternion) != 4 or not _QUATERNION_NORM[0] < length < _QUATERNION_NORM[1]:
        raise InputError(f"`quaternion` must be four numbers w, x, y, z of length 1, got {quaternion} instead.")
    w, x, y, z = (value / length for value in quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def as_transform(matrix: Any, name: str = "transform") -> Transform:
    """`matrix` as a 4x4 rigid transform; a 3x4 one gets its last row.

    Raises
    ------
    InputError
        If it is singular, mirrors, scales, or is no 3x4 or 4x4 array of finite numbers.
    """
    try:
        array = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape == (3, 4):
        array = np.vstack((array, (0.0, 0.0, 0.0, 1.0)))
    if array.shape != (4, 4) or not np.isfinite(array).all():
        raise InputError(f"`{name}` must be a 4x4 or 3x4 matrix of finite numbers, got {matrix!r:.200} instead.")
    rotation = array[:3, :3]
    with np.errstate(all="ignore"):
        determinant = float(np.linalg.det(rotation))
        off = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if not (off <= ROTATION_TOLERANCE and determinant > 0 and np.allclose(array[3], (0, 0, 0, 1))):
        fault = f"its determinant is {determinant:.4g}"
        if abs(determinant) < ROTATION_TOLERANCE:
            fault = "it is singular"
        elif determinant < 0:
            fault = "it mirrors (determinant below 0)"
        elif not np.allclose(array[3], (0, 0, 0, 1)):
            fault = f"its last row is {array[3].tolist()} and not 0, 0, 0, 1 (is it transposed?)"
        raise InputError(f"`{name}` must be a rotation and a translation, but {fault}. Check its numbers.")
    return array


def inverse(transform: Transform) -> Transform:
    """The transform back; exact for what `as_transform` let pass, whether or not it is rounded."""
    return np.linalg.inv(transform).astype(np.float64)


def moved(points: FloatArray, transform: Transform) -> NDArray[np.float64]:
    """`points`, (N, 3), in the frame that `transform` leads to."""
    return points @ transform[:3, :3].T + transform[:3, 3]
