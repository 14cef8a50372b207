"""Rigid transforms between frames, as 4x4 arrays.

A transform T takes a point of one frame into another, x' = T[:3, :3] @ x + T[:3, 3], in metres. Frames of cameras have
x to the right, y down and z forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param

Transform = NDArray[np.float64]  # (4, 4)

# Calibrations are written with about seven digits; a matrix farther from orthogonal than this is not a rotation.
ROTATION_TOLERANCE = 1e-3
_QUATERNION_LENGTHS = (0.9, 1.1)  # outside this range the numbers are not a rotation


def rotation_from_quaternion(quaternion: ArrayLike) -> Rotation:
    """The rotations of quaternions in the order w, x, y, z.

    Parameters
    ----------
    quaternion : (4,) or (N, 4) array
        Of length near 1; it is normalised.

    Raises
    ------
    InputError
        The shape is wrong or a length is not near 1.

    Examples
    --------
    >>> rotation_from_quaternion((0.0, 0.0, 0.0, 1.0)).apply((1.0, 2.0, 3.0))
    array([-1., -2.,  3.])
    """
    values = np.asarray(quaternion, np.float64)
    lengths = np.linalg.norm(values, axis=-1)
    low, high = _QUATERNION_LENGTHS
    if values.ndim not in (1, 2) or values.shape[-1] != 4 or not ((lengths > low) & (lengths < high)).all():
        raise InputError(
            f"{param('quaternion')} must be four numbers w, x, y, z of length 1, got {quaternion!r:.100} instead."
        )
    return Rotation.from_quat(np.roll(values, -1, axis=-1))  # SciPy has the scalar last


def rigid_transform(rotation: Rotation, translation: ArrayLike) -> Transform:
    """The 4x4 transform of a rotation and a translation, (3,)."""
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = rotation.as_matrix(), translation
    return transform


def as_transform(matrix: Any, name: str = "transform") -> Transform:
    """`matrix`, 4x4 or 3x4, as a 4x4 rigid transform.

    Raises
    ------
    InputError
        The matrix is singular, mirrors, scales, or is not a 3x4 or 4x4 array of finite numbers.
    """
    try:
        array = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape == (3, 4):
        array = np.vstack((array, (0.0, 0.0, 0.0, 1.0)))
    if array.shape != (4, 4) or not np.isfinite(array).all():
        raise InputError(f"{param(name)} must be a 4x4 or 3x4 matrix of finite numbers, got {matrix!r:.200} instead.")
    rotation = array[:3, :3]
    with np.errstate(all="ignore"):
        determinant = float(np.linalg.det(rotation))
        deviation = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if not (deviation <= ROTATION_TOLERANCE and determinant > 0 and np.allclose(array[3], (0, 0, 0, 1))):
        fault = f"its determinant is {determinant:.4g}"
        if abs(determinant) < ROTATION_TOLERANCE:
            fault = "it is singular"
        elif determinant < 0:
            fault = "it mirrors (determinant below 0)"
        elif not np.allclose(array[3], (0, 0, 0, 1)):
            fault = f"its last row is {array[3].tolist()} and not 0, 0, 0, 1 (is it transposed?)"
        raise InputError(f"{param(name)} must be a rotation and a translation, but {fault}. Check its numbers.")
    return array


def invert_transform(transform: Transform) -> Transform:
    """The inverse transform. A general inverse, so it is exact also for a rotation that was rounded in a file."""
    return np.linalg.inv(transform).astype(np.float64)


def transform_points(points: FloatArray, transform: Transform) -> NDArray[np.float64]:
    """`points`, (N, 3), in the target frame of `transform`."""
    return points @ transform[:3, :3].T + transform[:3, 3]
