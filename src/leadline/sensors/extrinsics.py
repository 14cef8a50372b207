"""Where a sensor sits: rigid transforms as 4x4 arrays, from JSON and from KITTI's calibration files.

A transform T takes a point of one frame into another, x' = T[:3, :3] @ x + T[:3, 3], in metres. Frames of cameras have
x to the right, y down and z forward.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import Camera, FileError, FloatArray, InputError

Transform = NDArray[np.float64]  # (4, 4)

# Calibrations are written with some seven digits; what is off by more than this is no rotation.
ROTATION_TOLERANCE = 1e-3
_QUATERNION_NORM = (0.9, 1.1)  # outside, the numbers are something else than a rotation
_NAMES = ("matrix", "lidar_to_camera", "cloud_to_camera", "T")
_FORMS = (
    "a 4x4 or 3x4 list of rows, {matrix: ...}, {rotation, translation} with a quaternion w, x, y, z or a 3x3, "
    "{inverse: ...} or {chain: [first, ..., last]}"
)


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


def read_extrinsics(path: str | os.PathLike[str]) -> Transform:
    """The transform of a JSON file, from the cloud's frame to the camera's.

    Accepted are a 4x4 or 3x4 list of rows; an object with such a list under ``matrix``, ``lidar_to_camera``,
    ``cloud_to_camera`` or ``T``; ``{"rotation": …, "translation": …}`` with a quaternion (list w, x, y, z or keys qw,
    qx, qy, qz) or a 3x3, as nuScenes and DDAD have them; ``{"inverse": one of these}``; and ``{"chain": [first, …,
    last]}``. Data sets give both sensors relative to the car: that is
    ``{"chain": [lidar_to_car, {"inverse": camera_to_car}]}``.

    Raises
    ------
    FileError
        The file cannot be read or is no JSON of this form.
    InputError
        It holds no rigid transform.
    """
    file = Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{file}: cannot be read ({error.strerror or error}); check the path.") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{file}: is not JSON ({error}); extrinsics are {_FORMS}.") from error
    try:
        return _transform(content)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileError(f"{file}: extrinsics must be {_FORMS} ({error!r}).") from error


def _transform(content: Any) -> Transform:
    if isinstance(content, list):
        return as_transform(content, "matrix")
    if not isinstance(content, dict):
        raise TypeError(f"got {type(content).__name__}")
    if "chain" in content:
        result = np.eye(4)
        for step in content["chain"]:
            result = _transform(step) @ result
        return result
    if "inverse" in content:
        return inverse(_transform(content["inverse"]))
    if "rotation" in content and "translation" in content:
        turn, shift = content["rotation"], content["translation"]
        turn = [turn[key] for key in ("qw", "qx", "qy", "qz")] if isinstance(turn, dict) else turn
        shift = [shift[key] for key in "xyz"] if isinstance(shift, dict) else shift
        if len(turn) == 4:
            turn = rotation_of(tuple(map(float, turn))).tolist()
        if len(turn) != 3 or len(shift) != 3:
            raise ValueError(f"rotation {turn!r:.80}, translation {shift!r:.80}")
        return as_transform([[*row, t] for row, t in zip(turn, shift, strict=True)], "rotation")
    for name in _NAMES:
        if name in content:
            return as_transform(content[name], name)
    raise KeyError(f"no {', '.join(_NAMES)}, rotation, inverse or chain")


def read_kitti(
    path: str | os.PathLike[str], camera: int = 2, size: tuple[int, int] | None = None
) -> tuple[Camera, Transform]:
    """The rectified camera and the LiDAR's transform to it, from KITTI's calibration files.

    With ``P = K [I | b]`` and x_camera = R_rect (R x + T), the frame of camera `camera` is shifted by b:
    the depth along its axis differs from camera 0's by a few millimetres.

    Parameters
    ----------
    path : path
        Of the raw recordings, the folder with ``calib_cam_to_cam.txt`` and ``calib_velo_to_cam.txt``; of the object,
        tracking and odometry benchmarks, the one file with ``P0`` to ``P3`` and ``Tr_velo_to_cam`` or ``Tr``.
    camera : int
        0 and 1 are grey, 2 and 3 colour; 2 is the left colour camera of the benchmarks.
    size : (width, height), optional
        Of the picture. Only the raw recordings' files state it, and theirs is taken.

    Raises
    ------
    FileError
        A file is missing or lacks an entry.
    InputError
        The entries are no camera or no rigid transform, or the size is missing.
    """
    place = Path(path)
    rectified, from_lidar, shift = np.eye(4), np.eye(4), np.eye(4)
    if place.is_file():
        source, name = place, f"P{camera}"
        entries = _entries(place)
        if size is None:
            raise InputError(f"{place}: does not say how large the pictures are; give one of them with --image.")
        # In the odometry benchmark Tr leads to the rectified frame; in the others R0_rect or R_rect comes after it.
        velodyne = next((key for key in ("Tr_velo_to_cam", "Tr_velo_cam", "Tr") if key in entries), "Tr_velo_to_cam")
        turn = next((key for key in ("R0_rect", "R_rect") if key in entries), "R0_rect")
        from_lidar[:3] = np.reshape(_numbers(place, entries, velodyne, 12), (3, 4))
        if velodyne != "Tr":
            rectified[:3, :3] = np.reshape(_numbers(place, entries, turn, 9), (3, 3))
    else:
        source, lidar = (place / file for file in ("calib_cam_to_cam.txt", "calib_velo_to_cam.txt"))
        entries, lidar_entries, name = _entries(source), _entries(lidar), f"P_rect_{camera:02d}"
        width, height = _numbers(source, entries, f"S_rect_{camera:02d}", 2)
        size = int(width), int(height)
        rectified[:3, :3] = np.reshape(_numbers(source, entries, "R_rect_00", 9), (3, 3))
        from_lidar[:3, :3] = np.reshape(_numbers(lidar, lidar_entries, "R", 9), (3, 3))
        from_lidar[:3, 3] = _numbers(lidar, lidar_entries, "T", 3)
    projection = np.reshape(_numbers(source, entries, name, 12), (3, 4))
    try:
        shift[:3, 3] = np.linalg.solve(projection[:, :3], projection[:, 3])
    except np.linalg.LinAlgError as error:
        raise InputError(f"{source}: {name} is singular.") from error
    fx, fy, cx, cy = (float(projection[index]) for index in ((0, 0), (1, 1), (0, 2), (1, 2)))
    try:
        transform = as_transform(shift @ rectified @ from_lidar, "LiDAR to camera")
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    return Camera(*size, fx, fy, cx, cy), transform


def _entries(file: Path) -> dict[str, list[str]]:
    """Numbers by name; the tracking benchmark leaves out some of the colons."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FileError(f"{file}: cannot be read ({error.strerror or error}); check the path.") from error
    except ValueError as error:
        raise FileError(f"{file}: is not a text file of KITTI's calibration.") from error
    words = (line.replace(":", " ", 1).split() for line in lines)
    return {name: rest for name, *rest in (line for line in words if line)}


def _numbers(file: Path, entries: dict[str, list[str]], name: str, count: int) -> list[float]:
    try:
        numbers = [float(word) for word in entries[name]]
    except (KeyError, ValueError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise FileError(f"{file}: must have the entry {name!r} with {count} numbers; is this KITTI's calibration?")
    return numbers
