"""Lists of posed pictures: the ``views.json`` that leadline writes, nerfstudio's, COLMAP's, 7-Scenes' and TUM's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, LeadlineError
from leadline.base.strict_json import dump_json
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.poses import Transform, as_transform, invert_transform, rigid_transform
from leadline.io.cameras import camera_record, parse_camera, read_camera, read_trajectory
from leadline.io.colmap import read_model
from leadline.io.depth import read_image_size
from leadline.io.files import naming_file, read_json, read_text, reading, write_text
from leadline.io.units import as_unit

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


def read_views(
    source: str | os.PathLike[str], *, camera: Camera | ColmapCamera | None = None, allow_missing: bool = False
) -> list[PosedView]:
    """The posed pictures of a list of views or of a folder, in the order of their names.

    Accepted are leadline's ``views.json``, nerfstudio's ``transforms.json``, a sequence of 7-Scenes (``NAME.color.png``
    with ``NAME.pose.txt``), a sequence of TUM RGB-D (``rgb.txt`` with ``groundtruth.txt``), the folder of any of these,
    and the folder of a COLMAP model. The two data sets need a camera: ``camera.json``, see `leadline.io.read_camera`,
    or a 3x3 matrix in ``camera-intrinsics.txt``. The pictures of a COLMAP model are expected in the folder ``images``
    beside its ``sparse``.

    Parameters
    ----------
    source : path
    camera : Camera or ColmapCamera, optional
        The camera of all pictures, in place of that of the list.
    allow_missing : bool
        Whether pictures that have no pose, or that cannot be read, are left out. Otherwise they are an error.

    Raises
    ------
    FileError
        Nothing of this is there, or a file cannot be read.
    InputError
        A picture has no pose, two have one name, or a pose is not a rotation and a translation, e.g. because it
        mirrors.
    """
    place = Path(source)
    found: Iterator[PosedView | LeadlineError]
    if place.is_dir():
        for name in (VIEW_LIST, "transforms.json"):
            if (place / name).is_file():
                return read_views(place / name, camera=camera, allow_missing=allow_missing)
        if (place / "groundtruth.txt").is_file():
            found = _read_tum(place, camera)
        elif any(place.glob("*.pose.txt")):
            found = _read_7scenes(place, camera)
        elif any((place / f"images{suffix}").is_file() for suffix in (".bin", ".txt")):
            found = _read_colmap(place)
        else:
            raise FileError(
                f"{place}: has no posed pictures: neither {VIEW_LIST}, transforms.json, groundtruth.txt (TUM), "
                "NAME.pose.txt (7-Scenes) nor images.bin (COLMAP)."
            )
    else:
        content = read_json(place, "a list of posed pictures")
        if "frames" in content:
            found = _parse_transforms(place, content)
        else:
            with reading(place, _VIEWS):
                found = iter([_parse_view(place, entry) for entry in content["views"]])
    listed = _check_listed(place, found, allow_missing)
    return listed if camera is None else [replace(view, camera=camera) for view in listed]


def _check_listed(place: Path, found: Iterable[PosedView | LeadlineError], allow_missing: bool) -> list[PosedView]:
    """The views in the order of their names, each of which occurs once. Errors are those of single pictures."""
    listed: dict[str, PosedView] = {}
    for view in found:
        if isinstance(view, LeadlineError):
            if not allow_missing:
                raise view
        elif view.name in listed:
            raise InputError(f"{place}: lists two pictures of the name {view.name!r}; every one needs its own.")
        else:
            listed[view.name] = view
    if not listed:
        raise FileError(f"{place}: lists no pictures with a pose.")
    return [listed[name] for name in sorted(listed)]


def _parse_view(file: Path, entry: Mapping[str, Any]) -> PosedView | LeadlineError:
    maps = {name: file.parent / entry[name] for name in _MAPS if name in entry}
    name = str(entry["name"])
    try:
        as_unit(entry.get("unit", "m"))
    except InputError as error:
        raise InputError(f"{file}: {name!r}: {error}") from error
    camera, pose = parse_camera(file, entry["camera"]), _pose(file, name, entry.get("camera_to_world"))
    if isinstance(pose, LeadlineError):
        return pose
    return PosedView(name, file.parent / entry["image"], camera, pose, **maps, unit=entry.get("unit", "m"))


def _pose(file: Path, name: str, matrix: Any) -> Transform | LeadlineError:
    """The pose of a picture, or an error if it has none; data sets write NaN or inf where tracking was lost."""
    if matrix is None:
        return InputError(f"{file}: the picture {name!r} has no pose; leave it out, or add its camera_to_world.")
    with reading(file, "a pose, a 4x4 matrix of numbers"):
        numbers = np.array(matrix, np.float64)
    if numbers.size and not np.isfinite(numbers).all():
        return InputError(f"{file}: the picture {name!r} has no pose, its numbers are not finite; leave it out.")
    try:
        return as_transform(numbers, "camera_to_world")
    except InputError as error:  # in the words of the file, which has no flags
        raise InputError(f"{file}: {name!r}: {error}") from error


def _parse_transforms(file: Path, content: Mapping[str, Any]) -> Iterator[PosedView | LeadlineError]:
    with reading(file, _TRANSFORMS):
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
            pose = _pose(file, picture, frame.get("transform_matrix"))
            if isinstance(pose, LeadlineError):
                yield pose
            else:
                name = PurePosixPath(picture).with_suffix("").as_posix()
                yield PosedView(name, file.parent / picture, camera, pose @ _OPENGL, depth, unit=unit)


def _read_colmap(folder: Path) -> Iterator[PosedView]:
    model = read_model(folder)
    images = folder.resolve().parent.parent / "images"
    for name, image in model.images.items():
        lens = model.camera_of(image)
        stem = PurePosixPath(name).with_suffix("").as_posix()
        yield PosedView(stem, images / name, lens.pinhole() or lens, invert_transform(image.transform))


def _read_7scenes(folder: Path, camera: Camera | ColmapCamera | None) -> Iterator[PosedView | LeadlineError]:
    camera_of = _FolderCamera(folder, camera)
    for image in sorted((*folder.glob("*.color.png"), *folder.glob("*.color.jpg"))):
        name = image.name.split(".color.")[0]
        file, depth = folder / f"{name}.pose.txt", folder / f"{name}.depth.png"
        if not file.is_file():
            yield InputError(f"{image}: has no pose; add {file.name}, or remove the picture.")
            continue
        pose, lens = _pose(file, name, _read_matrix(file)), camera_of(image)
        if isinstance(pose, LeadlineError) or isinstance(lens, LeadlineError):
            yield pose if isinstance(pose, LeadlineError) else lens  # type: ignore[misc]
        else:
            yield PosedView(name, image, lens, pose, depth if depth.is_file() else None, unit="mm")


def _read_tum(folder: Path, camera: Camera | ColmapCamera | None) -> Iterator[PosedView | LeadlineError]:
    trajectory = read_trajectory(folder / "groundtruth.txt")
    camera_of = _FolderCamera(folder, camera)
    for words in _lines(folder / "rgb.txt"):
        time, image = float(words[0]), folder / words[1]
        lens = camera_of(image)
        if np.abs(trajectory.times - time).min() > _LARGEST_GAP:
            yield InputError(
                f"{image}: has no pose; groundtruth.txt has none within {_LARGEST_GAP} s of its time {time:.6f}."
            )
        elif isinstance(lens, LeadlineError):
            yield lens
        else:
            rotations, positions = trajectory.at(np.clip([time], trajectory.times[0], trajectory.times[-1]))
            yield PosedView(image.stem, image, lens, rigid_transform(rotations[0], positions[0]))


def _lines(file: Path) -> Iterator[list[str]]:
    """Time and path on each line of TUM's lists of pictures; comments begin with ``#``."""
    for line in read_text(file, "a list of pictures").splitlines():
        if line.strip() and not line.startswith("#"):
            words = line.split(maxsplit=1)
            with reading(file, "a list of pictures, with a time and a path on each line"):
                float(words[0]), words[1]
            yield words


class _FolderCamera:
    """The camera of the pictures of a folder."""

    def __init__(self, folder: Path, camera: Camera | ColmapCamera | None) -> None:
        self._matrix: NDArray[np.float64] | None = None
        self._file = folder / "camera-intrinsics.txt"
        self._camera = camera
        if camera is None and (folder / "camera.json").is_file():
            self._camera = read_camera(folder / "camera.json")
        elif camera is None and self._file.is_file():
            self._matrix = _read_matrix(self._file)
        elif camera is None:
            raise FileError(
                f"{folder}: needs the camera of its pictures; write camera.json with width, height, fx, fy, cx, cy."
            )

    def __call__(self, image: Path) -> Camera | ColmapCamera | LeadlineError:
        """The camera of a picture; a matrix does not state the size, which is that of the picture."""
        if self._camera is not None:
            return self._camera
        try:
            size = read_image_size(image)
        except LeadlineError as error:
            return error
        with reading(self._file, "a 3x3 matrix of intrinsics"), naming_file(self._file):
            rows = np.asarray(self._matrix)
            return Camera(*size, rows[0, 0], rows[1, 1], rows[0, 2], rows[1, 2])


def _read_matrix(file: Path) -> NDArray[np.float64]:
    with reading(file, "a matrix, one row on each line"):
        lines = read_text(file, "a matrix").splitlines()
        return np.array([line.split() for line in lines if line.strip()], np.float64)
