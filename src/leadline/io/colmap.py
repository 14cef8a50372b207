"""COLMAP models: cameras, poses, and the points that an image sees.

The files are parsed here and not by pycolmap, because calibrations are often published without the point cloud, which
pycolmap requires, and because pycolmap does not detect truncated files.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
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
# The mean length of a residual in two dimensions is this multiple of the standard deviation of each coordinate.
_MEAN_LENGTH = math.sqrt(math.pi / 2)
# Degrees of freedom with which the model's mean square error counts in that of a point. The error of a point seen by
# three images has three of its own, so it is as often 0.3 times as 1.8 times what it should be.
_SHARED_FREEDOM = 6.0
# Fewer features than this do not show whether the points of an image project to them.
_MIN_FEATURES = 10


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


_PointRow = tuple[tuple[float, ...], NDArray[np.int64]]  # (x, y, z, error), and image id and feature of the track


@dataclass(frozen=True, eq=False)
class Tracks:
    """The points of a model, their accuracy, and the images that each was triangulated from."""

    points: NDArray[np.float64]  # (N, 3), in the model's frame and unit
    errors: NDArray[np.float64]  # (N,), mean reprojection error in pixels
    lengths: NDArray[np.int64]  # (N,), number of images in the track
    # The observations, (M,), sorted by image: the id of the image, and the index of the point that it sees.
    image_ids: NDArray[np.int64]
    point_indices: NDArray[np.int64]
    # Where each observation is in its image, (M, 2), in COLMAP's pixels; NaN where the model does not have it.
    features: NDArray[np.float64] | None = None

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


def position_covariances(model: ColmapModel, tracks: Tracks) -> NDArray[np.float64]:
    """Covariance of the position of each point, (N, 3, 3), in the square of the model's unit.

    An observation by an image at distance z, of focal length f, constrains the two directions across its ray with a
    standard deviation of s z / f, where s is that of a feature in pixels. The inverse of the sum of this information
    over the track is large along the rays if these meet at a small angle, so reprojection error, length of the track
    and angle of triangulation are all in it. The poses count as exact. The variance s^2 of a point is estimated from
    its own reprojection error, with 2 n - 3 degrees of freedom for n images, and from that of the whole model.
    """
    count = len(tracks.points)
    order = {image.image_id: index for index, image in enumerate(model.images.values())}
    known = np.isin(tracks.image_ids, list(order))
    index = np.array([order[number] for number in tracks.image_ids[known].tolist()], dtype=np.intp)
    which = tracks.point_indices[known]
    images = list(model.images.values())
    centres = np.array([-image.rotation.T @ image.translation for image in images]).reshape(-1, 3)
    focal = np.array([model.camera_of(image).params[0] for image in images])
    rays = tracks.points[which] - centres[index]
    square = np.maximum((rays**2).sum(axis=1), np.finfo(float).tiny)
    weight = focal[index] ** 2 / square
    information = np.zeros((count, 9))
    across = np.eye(3) - rays[:, :, None] * rays[:, None, :] / square[:, None, None]
    for entry in range(9):
        terms = weight * across.reshape(-1, 9)[:, entry]
        information[:, entry] = np.bincount(which, terms, minlength=count)
    freedom = np.maximum(2.0 * tracks.lengths - 3.0, 1.0)
    own = 2.0 * tracks.lengths * (np.maximum(tracks.errors, 0.0) / _MEAN_LENGTH) ** 2  # sum of squares of 2 n residuals
    shared = max(float(own.sum() / max(freedom.sum(), 1.0)), (_MIN_ERROR_PX / _MEAN_LENGTH) ** 2)
    variance = (own + _SHARED_FREEDOM * shared) / (freedom + _SHARED_FREEDOM)
    # A point on the line of all its centres has no information along it; a millionth of the rest keeps it finite.
    matrices = information.reshape(-1, 3, 3)
    trace = np.trace(matrices, axis1=1, axis2=2)
    matrices = matrices + (1e-6 * trace + np.finfo(float).tiny)[:, None, None] * np.eye(3)
    result: NDArray[np.float64] = variance[:, None, None] * np.linalg.inv(matrices)
    return result


def track_noise(
    model: ColmapModel, tracks: Tracks, image: ColmapImage, covariances: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Standard deviation of the depth in `image` of each point it sees, (n,), in the unit of the model.

    The order is that of `Tracks.indices_seen_by`; `covariances` are those of `position_covariances`, which are computed
    if they are not given.
    """
    known = position_covariances(model, tracks) if covariances is None else covariances
    axis = image.rotation[2]
    return np.asarray(np.sqrt(np.einsum("i,nij,j->n", axis, known[tracks.indices_seen_by(image)], axis)))


def feature_deviation(model: ColmapModel, tracks: Tracks, image: ColmapImage) -> float:
    """Median distance of the features of `image` from its projected points, relative to the image's larger side.

    It is large if poses are inverted or mirrored, or belong to other points. The features are first scaled and shifted
    along each axis, because cameras are often replaced by those of resized or cropped pictures while the features stay
    as they were. Infinite if an axis is reversed; NaN if fewer than ten features are known or lie before the camera.
    """
    if tracks.features is None:
        return math.nan
    first, last = np.searchsorted(tracks.image_ids, (image.image_id, image.image_id + 1))
    features, camera = tracks.features[first:last], model.camera_of(image)
    projected = camera.project(tracks.points[tracks.point_indices[first:last]] @ image.rotation.T + image.translation)
    known = (np.isfinite(features) & np.isfinite(projected)).all(axis=1)
    if known.sum() < _MIN_FEATURES:
        return math.nan
    features, projected = (values[known] - values[known].mean(axis=0) for values in (features, projected))
    spread = (features**2).sum(axis=0)
    if not spread.all():  # another program may have written features without positions
        return math.nan
    scale = (features * projected).sum(axis=0) / spread
    if not (scale > 0).all():
        return math.inf
    distance = np.linalg.norm(projected - scale * features, axis=1)
    return float(np.median(distance)) / max(camera.width, camera.height)


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
    parse_images = _parse_images_binary if binary else _parse_images_text
    for image in _parse(paths[1], lambda data: [found for found, _ in parse_images(data)]):
        if image.camera_id not in cameras:
            raise FileError(f"{paths[1]}: image {image.name!r} has camera {image.camera_id}, which {paths[0]} lacks.")
        if image.name in images:
            raise FileError(f"{paths[1]}: two images are named {image.name!r}.")
        images[image.name] = image
    return ColmapModel(cameras, images)


def read_tracks(folder: str | os.PathLike[str]) -> Tracks:
    """The points of a COLMAP model with their tracks, from ``points3D.bin`` or else ``points3D.txt``.

    The positions of the features are read from the file of the images, if it is there.
    """
    folder = Path(folder)
    (path,), binary = _find_files(folder, ("points3D",))
    rows: list[_PointRow] = _parse(path, _parse_points_binary if binary else _parse_points_text)
    table = np.array([numbers for numbers, _ in rows], dtype=np.float64).reshape(-1, 4)
    lengths = np.array([len(np.unique(track[:, 0])) for _, track in rows], dtype=np.int64)
    seen = np.concatenate([np.empty((0, 2), np.int64), *(track for _, track in rows)])
    point_indices = np.repeat(np.arange(len(rows)), [len(track) for _, track in rows])
    order = np.argsort(seen[:, 0], kind="stable")
    image_ids, numbers = seen[order].T
    features = _read_features(folder, image_ids, numbers)
    return Tracks(table[:, :3].copy(), table[:, 3].copy(), lengths, image_ids, point_indices[order], features)


def _read_features(
    folder: Path, image_ids: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Positions of features, given by their images, ascending, and numbers in these; None without a file of images."""
    try:
        (path,), binary = _find_files(folder, ("images",))
    except FileError:
        return None
    result = np.full((len(numbers), 2), np.nan)

    def parse(data: bytes) -> None:
        for image, features in (_parse_images_binary if binary else _parse_images_text)(data):
            first, last = np.searchsorted(image_ids, (image.image_id, image.image_id + 1))
            positions = _parse_features(features)
            there = first + np.flatnonzero(numbers[first:last] < len(positions))
            result[there] = positions[numbers[there]]

    _parse(path, parse)
    return result


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
            raise FileError(f"{path}: {error.args[0].rstrip('.')}.") from error


def _make_image(image_id: int, name: str, camera_id: int, pose: tuple[float, ...]) -> ColmapImage:
    if len(pose) != 7 or not np.isfinite(pose).all() or not np.any(pose[:4]):
        raise InputError(f"the image {name!r} has no valid pose, its numbers are {', '.join(f'{x:.6g}' for x in pose)}")
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


def _parse_images_binary(data: bytes) -> Iterator[tuple[ColmapImage, bytes]]:
    """Each image with its features as they are in the file."""
    (count,) = struct.unpack_from("<Q", data)
    place = 8
    for _ in range(count):
        image_id, *pose, camera_id = struct.unpack_from("<I7dI", data, place)
        end = data.index(b"\0", place + 64)
        (features,) = struct.unpack_from("<Q", data, end + 1)
        image = _make_image(image_id, data[place + 64 : end].decode(), camera_id, tuple(pose))
        place = end + 9 + 24 * features  # x, y and the id of a point, eight bytes each
        if place > len(data):
            raise struct.error("truncated features")
        yield image, data[end + 9 : place]


def _parse_points_binary(data: bytes) -> list[_PointRow]:
    (count,) = struct.unpack_from("<Q", data)
    place = 8
    rows: list[_PointRow] = []
    for _ in range(count):
        x, y, z, error, length = struct.unpack_from("<8x3d3xdQ", data, place)
        end = place + 51 + 8 * length
        if end > len(data):
            raise struct.error("truncated track")
        track = np.frombuffer(data, "<u4", 2 * length, place + 51).reshape(-1, 2).astype(np.int64)
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


def _parse_images_text(data: bytes) -> Iterator[tuple[ColmapImage, str]]:
    """Each image with the line of its features, which may be empty and, after the last image, missing."""
    lines = [line for line in data.decode().rstrip().splitlines() if not line.startswith("#")]
    for line, features in zip_longest(lines[::2], lines[1::2], fillvalue=""):
        words = line.split(maxsplit=9)  # a name may have spaces
        pose = tuple(map(float, words[1:8]))
        yield _make_image(int(words[0]), words[9].strip(), int(words[8]), pose), features


def _parse_features(features: bytes | str) -> NDArray[np.float64]:
    """Positions of the features of an image, (n, 2)."""
    if isinstance(features, bytes):
        return np.frombuffer(features, [("position", "<f8", 2), ("point", "<i8")])["position"]
    return np.array(features.split(), np.float64).reshape(-1, 3)[:, :2]


def _parse_points_text(data: bytes) -> list[_PointRow]:
    return [
        (tuple(map(float, (*words[1:4], words[7]))), np.array(words[8:], dtype=np.int64).reshape(-1, 2))
        for words in _split_lines(data)
    ]
