"""Files of cameras, extrinsics and trajectories: JSON, KITTI's calibrations, TUM's trajectories."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from leadline.base.errors import FileError, InputError
from leadline.geometry.cameras import Camera
from leadline.geometry.lenses import ONE_FOCAL, ColmapCamera
from leadline.geometry.motion import Trajectory
from leadline.geometry.poses import Transform, as_transform, inverse, rotation_of

_NAMES = ("matrix", "lidar_to_camera", "cloud_to_camera", "T")
_FORMS = (
    "a 4x4 or 3x4 list of rows, {matrix: ...}, {rotation, translation} with a quaternion w, x, y, z or a 3x3, "
    "{inverse: ...} or {chain: [first, ..., last]}"
)


def read_camera(path: str | os.PathLike[str]) -> Camera | ColmapCamera:
    """The camera of a JSON file, with pixel centres at integer coordinates as everywhere in this package.

    ``{"width", "height", "fx", "fy", "cx", "cy"}`` is a pinhole. A lens adds ``"model"``, one of COLMAP's names that
    begin with two focal lengths, and ``"params"``, its coefficients after cy: for ``OPENCV`` k1, k2, p1, p2, for
    ``OPENCV_FISHEYE`` k1 to k4, for ``THIN_PRISM_FISHEYE`` k1, k2, p1, p2, k3, k4, sx1, sy1.

    Raises
    ------
    FileError
        The file cannot be read, or does not hold these numbers.
    InputError
        The numbers are no camera.
    """
    file = Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        width, height = (int(content[name]) for name in ("width", "height"))
        fx, fy, cx, cy = (float(content[name]) for name in ("fx", "fy", "cx", "cy"))
        model, params = str(content.get("model", "PINHOLE")), tuple(map(float, content.get("params", ())))
    except OSError as error:
        raise FileError(f"{file}: cannot be read ({error.strerror or error}); check the path.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{file}: must be a JSON object with the numbers width, height, fx, fy, cx and cy, and a lens's model and "
            f"params ({error!r})."
        ) from error
    try:
        pinhole = Camera(width, height, fx, fy, cx, cy)
        if model in ONE_FOCAL:
            raise InputError(f"`model` must have two focal lengths, got {model}: say it as {ONE_FOCAL[model]}.")
        lens = ColmapCamera(model, width, height, (fx, fy, cx + 0.5, cy + 0.5, *params))
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    return pinhole if model == "PINHOLE" else lens


def camera_record(camera: Camera | ColmapCamera) -> dict[str, Any]:
    """What `read_camera` reads back, for a sidecar."""
    if isinstance(camera, Camera):
        return {name: getattr(camera, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
    camera = camera.two_focals()
    fx, fy, cx, cy, *rest = camera.params
    size = {"width": camera.width, "height": camera.height}
    return {**size, "fx": fx, "fy": fy, "cx": cx - 0.5, "cy": cy - 0.5, "model": camera.model, "params": rest}


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


def read_trajectory(path: str | os.PathLike[str]) -> Trajectory:
    """Poses from a text file in TUM's form: ``time x y z qx qy qz qw`` a line, ``#`` begins a comment.

    Raises
    ------
    FileError
        The file cannot be read, or a line is not these eight numbers.
    """
    file = Path(path)
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
        rows = np.array([list(map(float, words)) for words in lines if words and not words[0].startswith("#")])
    except OSError as error:
        raise FileError(f"{file}: cannot be read ({error.strerror or error}); check the path.") from error
    except ValueError as error:
        raise FileError(f"{file}: each line must be time x y z qx qy qz qw ({error}).") from error
    if rows.ndim != 2 or rows.shape[1] != 8:
        raise FileError(f"{file}: each line must be the eight numbers time x y z qx qy qz qw, got shape {rows.shape}.")
    try:
        return Trajectory(rows[:, 0], rows[:, 1:4], rows[:, [7, 4, 5, 6]])
    except InputError as error:
        raise FileError(f"{file}: {error}") from error
