"""COLMAP models: cameras, poses, and the points that an image sees.

The files are parsed here and not by pycolmap, because calibrations are often published without the point cloud, which
pycolmap requires, and because pycolmap does not detect truncated files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import FileError, InputError, param
from leadline.base.registry import suggestion
from leadline.geometry.cameras import MODELS, ColmapCamera
from leadline.geometry.cloud import Cloud
from leadline.geometry.poses import rotation_from_quaternion
from leadline.io.files import reading

# A reprojection error below this, in pixels, means that few images see a point, not that the point is exact.
_MIN_ERROR_PX = 0.1
# The accuracy of a detected feature in pixels, below which the noise of a point does not fall.
_FEATURE_PX = 0.3


@dataclass(frozen=True, eq=False)
class ColmapImage:
    """Pose of one image: x_camera = rotation @ x_world + translation."""

    name: str
    camera_id: int
    rotation: NDArray[np.float64]  # (3, 3)
    translation: NDArray[np.float64]  # (3,), in the unit of the reconstruction
    image_id: int = 0

    @property
    def transform(self) -> NDArray[np.float64]:
        """The transform from the world to the camera, (4, 4)."""
        return np.vstack((np.column_stack((self.rotation, self.translation)), (0.0, 0.0, 0.0, 1.0)))


@dataclass(frozen=True)
class ColmapModel:
    """Cameras by id and images by name."""

    cameras: dict[int, ColmapCamera]
    images: dict[str, ColmapImage]

    def camera_of(self, image: ColmapImage) -> ColmapCamera:
        return self.cameras[image.camera_id]

    def find(self, name: str) -> ColmapImage:
        """The image with this name, or the only one with this file name, with or without its suffix."""
        if name in self.images:
            return self.images[name]
        wanted = Path(name)
        found = [image for image in self.images.values() if Path(image.name).name == wanted.name]
        found = found or [image for image in self.images.values() if Path(image.name).stem == wanted.stem]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(image.name for image in found[:3])
            raise InputError(
                f"{name!r} matches {len(found)} images of the COLMAP model ({listed}); include the folder in the name."
            )
        hint = suggestion(name, self.images, fallback=f"it has {len(self.images)} images.")
        raise InputError(f"the COLMAP model has no image {name!r}; {hint}")


_PointRow = tuple[tuple[float, ...], NDArray[np.int64]]  # (x, y, z, error), and the image ids of the track


@dataclass(frozen=True, eq=False)
class Tracks:
    """The points of a model, their accuracy, and the images that each was triangulated from."""

    points: NDArray[np.float64]  # (N, 3), in the model's frame and unit
    errors: NDArray[np.float64]  # (N,), mean reprojection error in pixels
    lengths: NDArray[np.int64]  # (N,), number of images in the track
    # The observations, (M,), sorted by image: the id of the image, and the index of the point that it sees.
    image_ids: NDArray[np.int64]
    point_indices: NDArray[np.int64]

    def seen_by(self, image: ColmapImage, *, min_track: int = 2, max_error: float = np.inf) -> NDArray[np.float64]:
        """The points that `image` and at least `min_track` images observe, with an error of at most `max_error` pixels.

        A point that an image's feature was matched to is visible in it, so no visibility test is needed.
        """
        if not (min_track > 0 and max_error > 0):
            raise InputError(
                f"{param('min_track')} and {param('max_error')} must be positive, got {min_track} and {max_error}."
            )
        seen = self.indices_seen_by(image)
        return self.points[seen[(self.lengths[seen] >= min_track) & (self.errors[seen] <= max_error)]]

    def indices_seen_by(self, image: ColmapImage) -> NDArray[np.int64]:
        """Indices of the points that `image` observes, ascending."""
        first, last = np.searchsorted(self.image_ids, (image.image_id, image.image_id + 1))
        return np.unique(self.point_indices[first:last])  # a track may contain an image twice


def track_noise(model: ColmapModel, tracks: Tracks, image: ColmapImage) -> NDArray[np.float64]:
    """Standard deviation of the depth in `image` of each point it sees, (n,), in the unit of the model.

    The order is that of `Tracks.indices_seen_by`. A point lies on the ray of its feature in `image`. Another image, at
    distance d and with the angle a between the two rays, determines its position along that ray with the standard
    deviation e d / (f sin a), where e is the point's reprojection error in pixels and f the focal length. The
    information, the inverse variance, of all images of the track is added. For two images with the baseline b this is
    the e z^2 / (f b) of stereo. A point without parallax has an infinite standard deviation.
    """
    seen = tracks.indices_seen_by(image)
    by_id = {other.image_id: other for other in model.images.values()}
    transform, points = image.transform, tracks.points[seen]
    centre = -image.rotation.T @ image.translation
    own = points - centre
    distance = np.linalg.norm(own, axis=1)
    error = np.hypot(tracks.errors[seen], _FEATURE_PX)
    information = np.zeros(len(seen))
    place = np.full(len(tracks.points), -1)
    place[seen] = np.arange(len(seen))
    for image_id in np.unique(tracks.image_ids):
        other = by_id.get(int(image_id))
        if other is None or other.image_id == image.image_id:
            continue
        shared = place[tracks.indices_seen_by(other)]
        shared = shared[shared >= 0]
        ray = points[shared] + other.rotation.T @ other.translation
        range_ = np.linalg.norm(ray, axis=1)
        sine = np.linalg.norm(np.cross(ray, own[shared]), axis=1) / (range_ * distance[shared])
        focal = model.camera_of(other).params[0]
        information[shared] += (focal * sine / (error[shared] * range_)) ** 2
    depth = points @ transform[2, :3] + transform[2, 3]
    with np.errstate(divide="ignore"):
        return np.asarray(depth / distance / np.sqrt(information))


def read_model(folder: str | os.PathLike[str]) -> ColmapModel:
    """Cameras and poses of a COLMAP model, from the files ``cameras`` and ``images``, ``.bin`` or else ``.txt``.

    Points and feature positions are skipped; ``points3D`` may be missing.

    Raises
    ------
    FileError
        A file is missing, truncated, or has an unknown camera model or invalid numbers; an image refers to a camera
        that does not exist; or two images have the same name.
    """
    folder = Path(folder)
    paths, binary = _find_files(folder, ("cameras", "images"))
    cameras = _parse(paths[0], _parse_cameras_binary if binary else _parse_cameras_text)
    images: dict[str, ColmapImage] = {}
    for image in _parse(paths[1], _parse_images_binary if binary else _parse_images_text):
        if image.camera_id not in cameras:
            raise FileError(f"{paths[1]}: image {image.name!r} has camera {image.camera_id}, which {paths[0]} lacks.")
        if image.name in images:
            raise FileError(f"{paths[1]}: two images are named {image.name!r}.")
        images[image.name] = image
    return ColmapModel(cameras, images)


def read_tracks(folder: str | os.PathLike[str]) -> Tracks:
    """The points of a COLMAP model with their tracks, from ``points3D.bin`` or else ``points3D.txt``."""
    (path,), binary = _find_files(Path(folder), ("points3D",))
    rows: list[_PointRow] = _parse(path, _parse_points_binary if binary else _parse_points_text)
    table = np.array([numbers for numbers, _ in rows], dtype=np.float64).reshape(-1, 4)
    lengths = np.array([len(np.unique(track)) for _, track in rows], dtype=np.int64)
    image_ids = np.concatenate([np.empty(0, np.int64), *(track for _, track in rows)])
    point_indices = np.repeat(np.arange(len(rows)), [len(track) for _, track in rows])
    order = np.argsort(image_ids, kind="stable")
    return Tracks(table[:, :3].copy(), table[:, 3].copy(), lengths, image_ids[order], point_indices[order])


def read_points(folder: str | os.PathLike[str], image: ColmapImage | None = None) -> Cloud:
    """The points of a COLMAP model in its world frame, or those that `image` observes.

    `Cloud.confidence` is sqrt(n) / e for a point seen by n images with a mean reprojection error of e pixels: the
    inverse, up to a factor, of the standard deviation of its position if the errors are independent. The unit is that
    of the reconstruction, which is metres only if it was scaled to metres.
    """
    tracks = read_tracks(folder)
    chosen = slice(None) if image is None else tracks.indices_seen_by(image)
    confidence = np.sqrt(tracks.lengths[chosen]) / np.maximum(tracks.errors[chosen], _MIN_ERROR_PX)
    return Cloud(tracks.points[chosen], confidence=confidence)


def _find_files(folder: Path, parts: tuple[str, ...]) -> tuple[list[Path], bool]:
    """The paths of these parts of a model, and whether they are binary."""
    for suffix in (".bin", ".txt"):
        paths = [folder / f"{part}{suffix}" for part in parts]
        if all(path.is_file() for path in paths):
            return paths, suffix == ".bin"
    named = " and ".join(f"{part}.bin" for part in parts)
    text = "both as .txt" if len(parts) > 1 else f"{parts[0]}.txt"
    raise FileError(f"{folder}: needs {named}, or {text}, of a COLMAP model.")


def _parse(path: Path, parse: Any) -> Any:
    """The result of `parse` for the bytes of the file; every error becomes a `FileError` with the path."""
    with reading(path, "a file of a COLMAP model"):
        try:
            return parse(path.read_bytes())
        except InputError as error:  # a camera or a pose with invalid numbers
            raise FileError(f"{path}: is not a file of a COLMAP model ({error}).") from error


def _make_image(image_id: int, name: str, camera_id: int, pose: tuple[float, ...]) -> ColmapImage:
    if len(pose) != 7 or not np.isfinite(pose).all() or not np.any(pose[:4]):
        raise ValueError(f"image {name!r} has no valid pose: {pose}")
    rotation = rotation_from_quaternion(pose[:4]).as_matrix()
    return ColmapImage(name, camera_id, rotation, np.array(pose[4:]), image_id)


def _parse_cameras_binary(data: bytes) -> dict[int, ColmapCamera]:
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


def _parse_images_binary(data: bytes) -> list[ColmapImage]:
    (count,) = struct.unpack_from("<Q", data)
    place, images = 8, []
    for _ in range(count):
        image_id, *pose, camera_id = struct.unpack_from("<I7dI", data, place)
        end = data.index(b"\0", place + 64)
        (features,) = struct.unpack_from("<Q", data, end + 1)
        images.append(_make_image(image_id, data[place + 64 : end].decode(), camera_id, tuple(pose)))
        place = end + 9 + 24 * features  # x, y and the id of a point, eight bytes each
        if place > len(data):
            raise struct.error("truncated features")
    return images


def _parse_points_binary(data: bytes) -> list[_PointRow]:
    (count,) = struct.unpack_from("<Q", data)
    place = 8
    rows: list[_PointRow] = []
    for _ in range(count):
        x, y, z, error, length = struct.unpack_from("<8x3d3xdQ", data, place)
        end = place + 51 + 8 * length
        if end > len(data):
            raise struct.error("truncated track")
        track = np.frombuffer(data, "<u4", 2 * length, place + 51)[::2].astype(np.int64)
        rows.append(((x, y, z, error), track))
        place = end
    return rows


def _split_lines(data: bytes) -> Iterator[list[str]]:
    """The words of each line that is not empty and not a comment."""
    lines = (line for line in data.decode().splitlines() if not line.startswith("#"))
    return (line.split() for line in lines if line.strip())


def _parse_cameras_text(data: bytes) -> dict[int, ColmapCamera]:
    return {
        int(number): ColmapCamera(model, int(width), int(height), tuple(map(float, params)))
        for number, model, width, height, *params in _split_lines(data)
    }


def _parse_images_text(data: bytes) -> list[ColmapImage]:
    lines = [line for line in data.decode().rstrip().splitlines() if not line.startswith("#")]
    images = []
    for line in lines[::2]:  # every second line holds the features and may be empty
        words = line.split(maxsplit=9)  # a name may have spaces
        pose = tuple(map(float, words[1:8]))
        images.append(_make_image(int(words[0]), words[9].strip(), int(words[8]), pose))
    return images


def _parse_points_text(data: bytes) -> list[_PointRow]:
    return [
        (tuple(map(float, (*words[1:4], words[7]))), np.array(words[8::2], dtype=np.int64))
        for words in _split_lines(data)
    ]
