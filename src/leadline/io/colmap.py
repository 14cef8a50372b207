"""COLMAP models: cameras, poses, and the points that an image sees.

The files are read here, because a calibration is often shipped without the point cloud that pycolmap insists on, and
because it takes a truncated file for a short one.
"""

from __future__ import annotations

import difflib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError
from leadline.geometry.cloud import Cloud
from leadline.geometry.lenses import MODELS, ColmapCamera
from leadline.geometry.poses import rotation_of

# A reprojection error below this, in pixels, says that few images see a point rather than that it is exact.
_LEAST_ERROR_PX = 0.1


@dataclass(frozen=True, eq=False)
class ColmapImage:
    """Pose of one image: x_camera = rotation @ x_world + translation."""

    name: str
    camera_id: int
    rotation: NDArray[np.float64]  # (3, 3)
    translation: NDArray[np.float64]  # (3,), in the units of the reconstruction
    image_id: int = 0

    @property
    def transform(self) -> NDArray[np.float64]:
        """The pose as 4x4: world to camera."""
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = self.rotation, self.translation
        return matrix


@dataclass(frozen=True)
class ColmapModel:
    """Cameras by id and images by name."""

    cameras: dict[int, ColmapCamera]
    images: dict[str, ColmapImage]

    def camera_of(self, image: ColmapImage) -> ColmapCamera:
        return self.cameras[image.camera_id]

    def find(self, name: str) -> ColmapImage:
        """The image of that name, or else the only one whose file name it is, with or without its suffix.

        Raises
        ------
        InputError
            If there is none, or more than one.
        """
        if name in self.images:
            return self.images[name]
        asked = Path(name)
        found = [image for image in self.images.values() if Path(image.name).name == asked.name]
        found = found or [image for image in self.images.values() if Path(image.name).stem == asked.stem]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(image.name for image in found[:3])
            raise InputError(
                f"{name!r} may be any of {len(found)} images of the COLMAP model ({listed}); give the folder."
            )
        close = difflib.get_close_matches(name, self.images, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {len(self.images)} images."
        raise InputError(f"the COLMAP model has no image {name!r}; {hint}")


_Row = tuple[tuple[float, ...], NDArray[np.int64]]  # x, y, z, error; the images of the track


@dataclass(frozen=True, eq=False)
class Tracks:
    """The points of a model, how well each is known, and the images that each was triangulated from.

    Parameters
    ----------
    points : (N, 3) float64 array
        In the model's frame and unit.
    errors : (N,) float64 array
        Mean reprojection error, pixels.
    lengths : (N,) int64 array
        Number of images in the track.
    viewers, seen : (M,) int64 arrays
        Ids of images in ascending order, and the index of the point that each of them sees.
    """

    points: NDArray[np.float64]
    errors: NDArray[np.float64]
    lengths: NDArray[np.int64]
    viewers: NDArray[np.int64]
    seen: NDArray[np.int64]

    def seen_by(self, image: ColmapImage, *, min_track: int = 2, max_error: float = np.inf) -> NDArray[np.float64]:
        """Points that `image` was matched to and that are known well enough, (N, 3).

        What an image's features were matched to is visible in it, so no visibility test is needed.

        Parameters
        ----------
        image : ColmapImage
        min_track : int
            Images that must see a point.
        max_error : float
            Largest mean reprojection error, pixels.

        Raises
        ------
        InputError
            If a limit is not positive.
        """
        if not (min_track > 0 and max_error > 0):
            raise InputError(f"`min_track` and `max_error` must be positive, got {min_track} and {max_error}.")
        found = self.index_of(image)
        kept = found[(self.lengths[found] >= min_track) & (self.errors[found] <= max_error)]
        return self.points[kept]

    def index_of(self, image: ColmapImage) -> NDArray[np.int64]:
        """Indices of the points that `image` was matched to, ascending."""
        first, last = np.searchsorted(self.viewers, (image.image_id, image.image_id + 1))
        return np.unique(self.seen[first:last])  # a track may hold an image twice


def read_model(folder: str | os.PathLike[str]) -> ColmapModel:
    """Cameras and poses of a COLMAP model, from ``cameras`` and ``images`` as ``.bin`` or, failing that, ``.txt``.

    Points and the images' feature positions are skipped; ``points3D`` need not be there.

    Raises
    ------
    FileError
        If a file is missing, truncated, has an unknown camera model or numbers that are no calibration, if an image
        names a camera that is not there, or if two images have one name.
    """
    folder = Path(folder)
    paths, binary = _files(folder, ("cameras", "images"))
    cameras = _parsed(paths[0], _cameras_binary if binary else _cameras_text)
    images: dict[str, ColmapImage] = {}
    for image in _parsed(paths[1], _images_binary if binary else _images_text):
        if image.camera_id not in cameras:
            raise FileError(f"{paths[1]}: image {image.name!r} has camera {image.camera_id}, which {paths[0]} lacks.")
        if image.name in images:
            raise FileError(f"{paths[1]}: two images are named {image.name!r}.")
        images[image.name] = image
    return ColmapModel(cameras, images)


def read_tracks(folder: str | os.PathLike[str]) -> Tracks:
    """The points of a COLMAP model with their tracks, from ``points3D.bin`` or, failing that, ``points3D.txt``.

    Raises
    ------
    FileError
        If the file is missing or damaged.
    """
    (path,), binary = _files(Path(folder), ("points3D",))
    rows: list[_Row] = _parsed(path, _points_binary if binary else _points_text)
    table = np.array([numbers for numbers, _ in rows], dtype=np.float64).reshape(-1, 4)
    lengths = np.array([len(np.unique(track)) for _, track in rows], dtype=np.int64)
    viewers = np.concatenate([np.empty(0, np.int64), *(track for _, track in rows)])
    seen = np.repeat(np.arange(len(rows)), [len(track) for _, track in rows])
    order = np.argsort(viewers, kind="stable")
    return Tracks(table[:, :3].copy(), table[:, 3].copy(), lengths, viewers[order], seen[order])


def read_points(folder: str | os.PathLike[str], image: ColmapImage | None = None) -> Cloud:
    """The points of a COLMAP model in its world frame, or those of them that `image` was triangulated from.

    What an image's features were matched to is known to be visible in it, so no visibility test is needed.
    `Cloud.confidence` is sqrt(n) / e for a point seen by n images with a mean reprojection error of e pixels: the
    inverse, up to a factor, of the spread that its position has if the errors are independent. The unit is the
    reconstruction's, which is metres only if it was scaled to them.

    Raises
    ------
    FileError
        If ``points3D.bin`` and ``points3D.txt`` are missing, or damaged.
    """
    tracks = read_tracks(folder)
    chosen = slice(None) if image is None else tracks.index_of(image)
    confidence = np.sqrt(tracks.lengths[chosen]) / np.maximum(tracks.errors[chosen], _LEAST_ERROR_PX)
    return Cloud(tracks.points[chosen], confidence=confidence)


def _files(folder: Path, parts: tuple[str, ...]) -> tuple[list[Path], bool]:
    """The files of these parts, and whether they are the binary ones."""
    for suffix in (".bin", ".txt"):
        paths = [folder / f"{part}{suffix}" for part in parts]
        if all(path.is_file() for path in paths):
            return paths, suffix == ".bin"
    named = " and ".join(f"{part}.bin" for part in parts)
    text = "both as .txt" if len(parts) > 1 else f"{parts[0]}.txt"
    raise FileError(f"{folder}: needs {named}, or {text}, of a COLMAP model.")


def _parsed(path: Path, parse: Any) -> Any:
    """What `parse` makes of the file's bytes; whatever it trips over becomes a `FileError` with the path."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except struct.error as error:
        raise FileError(f"{path}: ends too early for what its beginning announces; copy it again.") from error
    except (ValueError, IndexError) as error:  # InputError is a ValueError
        raise FileError(f"{path}: is not a file of a COLMAP model ({error}).") from error


def _image(image_id: int, name: str, camera_id: int, pose: tuple[float, ...]) -> ColmapImage:
    try:
        rotation, translation = rotation_of(pose[:4]), np.array(pose[4:])
    except InputError as error:
        raise ValueError(f"image {name!r} has no valid pose: {error}") from error
    if not np.isfinite(translation).all():
        raise ValueError(f"image {name!r} has no valid pose: {pose}")
    return ColmapImage(name, camera_id, rotation, translation, image_id)


def _cameras_binary(data: bytes) -> dict[int, ColmapCamera]:
    models = list(MODELS.items())
    (count,) = struct.unpack_from("<Q", data)
    place, cameras = 8, {}
    for _ in range(count):
        number, model_id, width, height = struct.unpack_from("<IiQQ", data, place)
        if not 0 <= model_id < len(models):
            raise ValueError(f"camera {number} has the unknown model id {model_id}")
        name, parameters = models[model_id]
        params = struct.unpack_from(f"<{parameters}d", data, place + 24)
        cameras[number] = ColmapCamera(name, width, height, params)
        place += 24 + 8 * parameters
    return cameras


def _images_binary(data: bytes) -> list[ColmapImage]:
    (count,) = struct.unpack_from("<Q", data)
    place, images = 8, []
    for _ in range(count):
        image_id, *pose, camera_id = struct.unpack_from("<I7dI", data, place)
        end = data.index(b"\0", place + 64)
        (features,) = struct.unpack_from("<Q", data, end + 1)
        images.append(_image(image_id, data[place + 64 : end].decode(), camera_id, tuple(pose)))
        place = end + 9 + 24 * features  # x, y and the id of a point, eight bytes each
        if place > len(data):
            raise struct.error("truncated features")
    return images


def _points_binary(data: bytes) -> list[_Row]:
    (count,) = struct.unpack_from("<Q", data)
    place = 8
    rows: list[_Row] = []
    for _ in range(count):
        x, y, z, error, length = struct.unpack_from("<8x3d3xdQ", data, place)
        end = place + 51 + 8 * length
        if end > len(data):
            raise struct.error("truncated track")
        track = np.frombuffer(data, "<u4", 2 * length, place + 51)[::2].astype(np.int64)
        rows.append(((x, y, z, error), track))
        place = end
    return rows


def _cameras_text(data: bytes) -> dict[int, ColmapCamera]:
    cameras = {}
    for line in data.decode().splitlines():
        words = line.split()
        if words and not line.startswith("#"):
            params = tuple(map(float, words[4:]))
            cameras[int(words[0])] = ColmapCamera(words[1], int(words[2]), int(words[3]), params)
    return cameras


def _images_text(data: bytes) -> list[ColmapImage]:
    lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
    while lines and not lines[-1].strip():
        lines.pop()
    images = []
    for line in lines[::2]:  # every second line holds the features and may be empty
        words = line.split(maxsplit=9)  # a name may have spaces
        pose = tuple(map(float, words[1:8]))
        images.append(_image(int(words[0]), words[9].strip(), int(words[8]), pose))
    return images


def _points_text(data: bytes) -> list[_Row]:
    rows: list[_Row] = []
    for line in data.decode().splitlines():
        words = line.split()
        if words and not line.startswith("#"):
            x, y, z, error = map(float, (*words[1:4], words[7]))
            rows.append(((x, y, z, error), np.array(words[8::2], dtype=np.int64)))
    return rows
