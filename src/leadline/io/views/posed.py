"""Lists of posed pictures: the ``views.json`` that leadline writes, nerfstudio's, 7-Scenes' and TUM's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import dump_json
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.poses import Transform, as_transform, rigid_transform
from leadline.io.cameras import camera_record, parse_camera, read_camera, read_trajectory
from leadline.io.files import read_json, read_text, reading, write_text

VIEW_LIST = "views.json"
_MAPS = ("depth", "sigma", "alone")
_VIEWS = "a list of views, a JSON object with views, each with image, camera and camera_to_world"
_TRANSFORMS = "a transforms.json of nerfstudio"
_NERFSTUDIO_UNIT = 1e-3  # units of the poses per count, unless the file states it
_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])  # from OpenCV's axes of a camera, y down and z forward, to OpenGL's
_LARGEST_GAP = 0.05  # seconds between a picture of TUM's and the poses before and after it


@dataclass(frozen=True, eq=False)
class PosedView:
    """A picture with its camera and pose, and its maps if it has any.

    Parameters
    ----------
    name : str
        With folders and without the suffix.
    image : Path
    camera : Camera or ColmapCamera
        At the size of the picture.
    camera_to_world : (4, 4) array
        In OpenCV's convention: x right, y down, z forward; metres, or the unit of the depth.
    depth, sigma : Path, optional
        Maps of the size of the picture; the standard deviation is in metres.
    alone : Path, optional
        Depth that the picture has by itself, to compare with.
    """

    name: str
    image: Path
    camera: Camera | ColmapCamera
    camera_to_world: Transform
    depth: Path | None = None
    sigma: Path | None = None
    alone: Path | None = None
    unit: str | float = "m"  # of the depth; a number is metres per count


def write_views(path: Path, views: Sequence[PosedView], **facts: Any) -> None:
    """Write a list of views with paths relative to its folder; `facts` are further entries of the file."""
    folder = path.parent.resolve()

    def entry(view: PosedView) -> dict[str, Any]:
        files = {name: getattr(view, name) for name in ("image", *_MAPS) if getattr(view, name) is not None}
        return {
            "name": view.name,
            **{name: Path(os.path.relpath(file.resolve(), folder)).as_posix() for name, file in files.items()},
            "camera": camera_record(view.camera),
            "camera_to_world": view.camera_to_world.tolist(),
            "unit": view.unit,
        }

    write_text(path, dump_json({**facts, "views": [entry(view) for view in views]}))


def read_views(source: str | os.PathLike[str]) -> list[PosedView]:
    """The posed pictures of a list of views or of a folder, in the order of their names.

    Accepted are leadline's ``views.json``, nerfstudio's ``transforms.json``, a sequence of 7-Scenes (``NAME.color.png``
    with ``NAME.pose.txt``), a sequence of TUM RGB-D (``rgb.txt`` with ``groundtruth.txt``), and the folder of any of
    these. The two data sets need a camera: ``camera.json``, see `leadline.io.read_camera`, or a 3x3 matrix in
    ``camera-intrinsics.txt``.

    Raises
    ------
    FileError
        Nothing of this is there, or a file cannot be read.
    InputError
        A picture has no pose, or a pose is not a rotation and a translation, e.g. because it mirrors.
    """
    place = Path(source)
    if place.is_dir():
        for name in (VIEW_LIST, "transforms.json"):
            if (place / name).is_file():
                return read_views(place / name)
        if (place / "groundtruth.txt").is_file():
            found = _read_tum(place)
        elif any(place.glob("*.pose.txt")):
            found = _read_7scenes(place)
        else:
            raise FileError(
                f"{place}: has no posed pictures: neither {VIEW_LIST}, transforms.json, groundtruth.txt (TUM) nor "
                "NAME.pose.txt (7-Scenes)."
            )
    else:
        content = read_json(place, "a list of posed pictures")
        if "frames" in content:
            found = _parse_transforms(place, content)
        else:
            with reading(place, _VIEWS):
                found = [_parse_view(place, entry) for entry in content["views"]]
    listed = sorted(found, key=lambda view: view.name)
    if not listed:
        raise FileError(f"{place}: lists no pictures.")
    return listed


def _parse_view(file: Path, entry: Mapping[str, Any]) -> PosedView:
    maps = {name: file.parent / entry[name] for name in _MAPS if name in entry}
    name = str(entry["name"])
    camera, pose = parse_camera(file, entry["camera"]), _pose(file, name, entry.get("camera_to_world"))
    return PosedView(name, file.parent / entry["image"], camera, pose, **maps, unit=entry.get("unit", "m"))


def _pose(file: Path, name: str, matrix: Any) -> Transform:
    if matrix is None:
        raise InputError(f"{file}: the picture {name!r} has no pose; leave it out or add {param('camera_to_world')}.")
    try:
        return as_transform(matrix, "camera_to_world")
    except InputError as error:
        raise InputError(f"{file}: {name!r}: {error.args[0]}") from error


def _parse_transforms(file: Path, content: Mapping[str, Any]) -> list[PosedView]:
    with reading(file, _TRANSFORMS):
        views = []
        for frame in content["frames"]:
            facts = {**content, **frame}  # a frame may have a camera of its own
            fx, cx, cy = (float(facts[key]) for key in ("fl_x", "cx", "cy"))
            kind = str(facts.get("camera_model", "OPENCV"))
            model = "OPENCV_FISHEYE" if kind == "OPENCV_FISHEYE" else "OPENCV"
            keys = ("k1", "k2", "k3", "k4") if model == "OPENCV_FISHEYE" else ("k1", "k2", "p1", "p2")
            lens = tuple(float(facts.get(key, 0.0)) for key in keys)
            size, fy = (int(facts["w"]), int(facts["h"])), float(facts.get("fl_y", fx))
            camera: Camera | ColmapCamera = Camera(*size, fx, fy, cx - 0.5, cy - 0.5)
            if model == "OPENCV_FISHEYE" or any(lens):
                camera = ColmapCamera(model, *size, (fx, fy, cx, cy, *lens))
            picture = str(frame["file_path"])
            depth = file.parent / frame["depth_file_path"] if "depth_file_path" in frame else None
            unit = float(content.get("depth_unit_scale_factor", _NERFSTUDIO_UNIT))
            pose = _pose(file, picture, frame.get("transform_matrix")) @ _OPENGL
            name = str(Path(picture).with_suffix("")).removeprefix("./")
            views.append(PosedView(name, file.parent / picture, camera, pose, depth, unit=unit))
    return views


def _read_7scenes(folder: Path) -> list[PosedView]:
    views: list[PosedView] = []
    cameras: dict[tuple[int, int], Camera | ColmapCamera] = {}
    for image in sorted((*folder.glob("*.color.png"), *folder.glob("*.color.jpg"))):
        name = image.name.split(".color.")[0]
        pose = folder / f"{name}.pose.txt"
        if not pose.is_file():
            raise InputError(f"{image}: has no pose; add {pose.name}, or remove the picture.")
        depth = folder / f"{name}.depth.png"
        transform = _pose(pose, name, _read_matrix(pose))
        camera, measured = _camera_of(folder, image, cameras), depth if depth.is_file() else None
        views.append(PosedView(name, image, camera, transform, measured, unit="mm"))
    return views


def _read_tum(folder: Path) -> list[PosedView]:
    trajectory = read_trajectory(folder / "groundtruth.txt")
    views: list[PosedView] = []
    cameras: dict[tuple[int, int], Camera | ColmapCamera] = {}
    for words in _lines(folder / "rgb.txt"):
        time, image = float(words[0]), folder / words[1]
        gap = np.abs(trajectory.times - time).min()
        if gap > _LARGEST_GAP:
            raise InputError(
                f"{image}: has no pose; groundtruth.txt has none within {_LARGEST_GAP} s of its time {time:.6f}."
            )
        rotations, positions = trajectory.at(np.clip([time], trajectory.times[0], trajectory.times[-1]))
        pose = rigid_transform(rotations[0], positions[0])
        views.append(PosedView(image.stem, image, _camera_of(folder, image, cameras), pose))
    return views


def _lines(file: Path) -> Iterator[list[str]]:
    """Time and path on each line of TUM's lists of pictures; comments begin with ``#``."""
    for line in read_text(file, "a list of pictures").splitlines():
        if line.strip() and not line.startswith("#"):
            words = line.split(maxsplit=1)
            with reading(file, "a list of pictures, with a time and a path on each line"):
                float(words[0]), words[1]
            yield words


def _camera_of(folder: Path, image: Path, known: dict[tuple[int, int], Camera | ColmapCamera]) -> Camera | ColmapCamera:
    """The camera of the folder at the size of the picture."""
    from PIL import Image

    with reading(image, "a picture"), Image.open(image) as picture:
        size = picture.size
    if size not in known:
        matrix = folder / "camera-intrinsics.txt"
        if (folder / "camera.json").is_file():
            known[size] = read_camera(folder / "camera.json")
        elif matrix.is_file():
            rows = _read_matrix(matrix)
            with reading(matrix, "a 3x3 matrix of intrinsics"):
                known[size] = Camera(*size, rows[0, 0], rows[1, 1], rows[0, 2], rows[1, 2])
        else:
            raise FileError(
                f"{folder}: needs the camera of its pictures; write camera.json with width, height, fx, fy, cx, cy."
            )
    return known[size]


def _read_matrix(file: Path) -> NDArray[np.float64]:
    with reading(file, "a matrix, one row on each line"):
        lines = read_text(file, "a matrix").splitlines()
        return np.array([line.split() for line in lines if line.strip()], np.float64)
