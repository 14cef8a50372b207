"""Files of cameras, extrinsics and trajectories: JSON, KITTI's calibrations, TUM's trajectories."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from leadline.base.errors import FileError, InputError, param
from leadline.geometry.cameras import ONE_FOCAL, Camera, CameraModel, ColmapCamera
from leadline.geometry.poses import Trajectory, Transform, as_transform, invert_transform, rotation_from_quaternion
from leadline.io.files import naming_file, read_json, read_text, reading

_CAMERA = "a camera, a JSON object with width, height, fx, fy, cx and cy, and for a lens also model and params"
_MATRIX_NAMES = ("matrix", "lidar_to_camera", "cloud_to_camera", "T")
_EXTRINSICS = (
    "extrinsics, which are a 4x4 or 3x4 list of rows, {matrix: ...}, {rotation, translation} with a quaternion w, x, "
    "y, z or a 3x3, {inverse: ...} or {chain: [first, ..., last]}"
)
_TRAJECTORY = "a trajectory, with the eight numbers time x y z qx qy qz qw on each line"


def read_camera(path: str | os.PathLike[str]) -> Camera | ColmapCamera:
    """The camera of a JSON file, with pixel centres at integer coordinates as everywhere in this package.

    ``{"width", "height", "fx", "fy", "cx", "cy"}`` is a pinhole. A lens adds ``"model"``, one of COLMAP's names that
    begin with two focal lengths, and ``"params"``, its coefficients after cy: for ``OPENCV`` k1, k2, p1, p2, for
    ``OPENCV_FISHEYE`` k1 to k4, for ``THIN_PRISM_FISHEYE`` k1, k2, p1, p2, k3, k4, sx1, sy1.

    Raises
    ------
    FileError
        The file cannot be read, or lacks one of these numbers.
    InputError
        The numbers are not a camera.
    """
    file = Path(path)
    return parse_camera(file, read_json(file, "a camera"))


def parse_camera(file: Path, content: Mapping[str, Any]) -> Camera | ColmapCamera:
    """The camera of a JSON object in `file`; see `read_camera`."""
    with reading(file, _CAMERA):
        width, height = (int(content[name]) for name in ("width", "height"))
        fx, fy, cx, cy = (float(content[name]) for name in ("fx", "fy", "cx", "cy"))
        model, params = str(content.get("model", "PINHOLE")), tuple(map(float, content.get("params", ())))
    with naming_file(file):
        if model in ONE_FOCAL:
            raise InputError(f"the camera model must have two focal lengths, got {model}; write {ONE_FOCAL[model]}.")
        pinhole = Camera(width, height, fx, fy, cx, cy)
        lens = ColmapCamera(model, width, height, (fx, fy, cx + 0.5, cy + 0.5, *params))
        return pinhole if model == "PINHOLE" else lens


def camera_record(camera: CameraModel) -> dict[str, Any]:
    """The camera as the JSON object that `read_camera` reads."""
    if isinstance(camera, Camera):
        return asdict(camera)
    if not isinstance(camera, ColmapCamera):
        raise InputError(f"{param('camera')} must be a Camera or a ColmapCamera, got {type(camera).__name__}.")
    camera = camera.with_two_focal_lengths()
    fx, fy, cx, cy, *distortion = camera.params
    size = {"width": camera.width, "height": camera.height}
    return {**size, "fx": fx, "fy": fy, "cx": cx - 0.5, "cy": cy - 0.5, "model": camera.model, "params": distortion}


def read_extrinsics(path: str | os.PathLike[str]) -> Transform:
    """The transform of a JSON file, (4, 4), from the cloud's frame to the camera's.

    Accepted are a 4x4 or 3x4 list of rows; an object with such a list under ``matrix``, ``lidar_to_camera``,
    ``cloud_to_camera`` or ``T``; ``{"rotation": …, "translation": …}`` with a quaternion (list w, x, y, z or keys qw,
    qx, qy, qz) or a 3x3, as nuScenes and DDAD have them; ``{"inverse": one of these}``; and ``{"chain": [first, …,
    last]}``. Data sets give both sensors relative to the car: that is
    ``{"chain": [lidar_to_car, {"inverse": camera_to_car}]}``.

    Raises
    ------
    FileError
        The file cannot be read or is not JSON of this format.
    InputError
        The numbers are not a rigid transform.
    """
    file = Path(path)
    with reading(file, _EXTRINSICS), naming_file(file):
        return _parse_transform(json.loads(read_text(file, "extrinsics")))


def _parse_transform(content: Any) -> Transform:
    if isinstance(content, list):
        return as_transform(content, "matrix")
    if not isinstance(content, dict):
        raise TypeError(f"got {type(content).__name__}")
    if "chain" in content:
        result = np.eye(4)
        for step in content["chain"]:
            result = _parse_transform(step) @ result
        return result
    if "inverse" in content:
        return invert_transform(_parse_transform(content["inverse"]))
    if "rotation" in content and "translation" in content:
        rotation, translation = content["rotation"], content["translation"]
        rotation = [rotation[key] for key in ("qw", "qx", "qy", "qz")] if isinstance(rotation, dict) else rotation
        translation = [translation[key] for key in "xyz"] if isinstance(translation, dict) else translation
        if len(rotation) == 4:
            rotation = rotation_from_quaternion(rotation).as_matrix().tolist()
        if len(rotation) != 3 or len(translation) != 3:
            raise ValueError(f"rotation {rotation!r:.80}, translation {translation!r:.80}")
        return as_transform([[*row, t] for row, t in zip(rotation, translation, strict=True)], "rotation")
    for name in _MATRIX_NAMES:
        if name in content:
            return as_transform(content[name], name)
    raise KeyError(f"no {', '.join(_MATRIX_NAMES)}, rotation, inverse or chain")


def read_kitti(
    path: str | os.PathLike[str], camera: int = 2, size: tuple[int, int] | None = None
) -> tuple[Camera, Transform]:
    """The rectified camera, and the transform from the LiDAR to it, from KITTI's calibration files.

    With ``P = K [I | b]`` and x_camera = R_rect (R x + T), the frame of camera `camera` is shifted by b: the depth
    along its axis differs from camera 0's by a few millimetres.

    Parameters
    ----------
    path : path
        For the raw recordings, the folder with ``calib_cam_to_cam.txt`` and ``calib_velo_to_cam.txt``; for the object,
        tracking and odometry benchmarks, the one file with ``P0`` to ``P3`` and ``Tr_velo_to_cam`` or ``Tr``.
    camera : int
        0 and 1 are grey, 2 and 3 colour; 2 is the left colour camera, which the benchmarks use.
    size : (width, height), optional
        Size of the image, for the benchmarks' file. The raw recordings' files state it.

    Raises
    ------
    FileError
        A file is missing or lacks an entry.
    InputError
        The entries are not a camera or not a rigid transform, or the size is missing.
    """
    location = Path(path)
    rectified, from_lidar, shift = np.eye(4), np.eye(4), np.eye(4)
    if location.is_file():
        source, name = location, f"P{camera}"
        entries = _read_entries(location)
        if size is None:
            raise InputError(f"{location}: does not state the size of the images; give it, or one {param('image')}.")
        # In the odometry benchmark Tr ends in the rectified frame; in the others R0_rect or R_rect follows it.
        velodyne = next((key for key in ("Tr_velo_to_cam", "Tr_velo_cam", "Tr") if key in entries), "Tr_velo_to_cam")
        rectification = next((key for key in ("R0_rect", "R_rect") if key in entries), "R0_rect")
        from_lidar[:3] = np.reshape(_parse_numbers(location, entries, velodyne, 12), (3, 4))
        if velodyne != "Tr":
            rectified[:3, :3] = np.reshape(_parse_numbers(location, entries, rectification, 9), (3, 3))
    else:
        source, lidar = (location / file for file in ("calib_cam_to_cam.txt", "calib_velo_to_cam.txt"))
        entries, lidar_entries, name = _read_entries(source), _read_entries(lidar), f"P_rect_{camera:02d}"
        width, height = _parse_numbers(source, entries, f"S_rect_{camera:02d}", 2)
        size = int(width), int(height)
        rectified[:3, :3] = np.reshape(_parse_numbers(source, entries, "R_rect_00", 9), (3, 3))
        from_lidar[:3, :3] = np.reshape(_parse_numbers(lidar, lidar_entries, "R", 9), (3, 3))
        from_lidar[:3, 3] = _parse_numbers(lidar, lidar_entries, "T", 3)
    projection = np.reshape(_parse_numbers(source, entries, name, 12), (3, 4))
    try:
        shift[:3, 3] = np.linalg.solve(projection[:, :3], projection[:, 3])
    except np.linalg.LinAlgError as error:
        raise InputError(f"{source}: {name} is singular.") from error
    fx, fy, cx, cy = (float(projection[index]) for index in ((0, 0), (1, 1), (0, 2), (1, 2)))
    with naming_file(source):
        return Camera(*size, fx, fy, cx, cy), as_transform(shift @ rectified @ from_lidar, "lidar_to_camera")


def _read_entries(file: Path) -> dict[str, list[str]]:
    """The words of each line by its first one; the tracking benchmark leaves out some of the colons."""
    lines = read_text(file, "KITTI's calibration").splitlines()
    words = (line.replace(":", " ", 1).split() for line in lines)
    return {name: rest for name, *rest in (line for line in words if line)}


def _parse_numbers(file: Path, entries: dict[str, list[str]], name: str, count: int) -> list[float]:
    try:
        numbers = [float(word) for word in entries[name]]
    except (KeyError, ValueError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise FileError(f"{file}: must have the entry {name!r} with {count} numbers; is this KITTI's calibration?")
    return numbers


def read_trajectory(path: str | os.PathLike[str]) -> Trajectory:
    """Poses from a text file in TUM's format: ``time x y z qx qy qz qw`` on each line, ``#`` begins a comment.

    Raises
    ------
    FileError
        The file cannot be read, or a line is not these eight numbers.
    InputError
        There are fewer than two poses, or the times do not increase.
    """
    file = Path(path)
    lines = [line.split() for line in read_text(file, "a trajectory").splitlines()]
    with reading(file, _TRAJECTORY), naming_file(file):
        rows = np.array([list(map(float, words)) for words in lines if words and not words[0].startswith("#")])
        if rows.ndim != 2 or rows.shape[1] != 8:
            raise ValueError(f"its numbers have the shape {rows.shape}")
        return Trajectory(rows[:, 0], rows[:, 1:4], rows[:, [7, 4, 5, 6]])
