"""COLMAP calibrations: cameras, poses, and the ray of every pixel of a distorted camera.

COLMAP puts the centre of the first pixel at (0.5, 0.5), this package at (0, 0): the half pixel is added and taken
away here and nowhere else. Lens models are pycolmap's. The files are read here, because a calibration is often
shipped without the point cloud that pycolmap insists on, and because it takes a truncated file for a short one.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import Camera, FileError, InputError, MissingExtra, RayCamera

# Names and numbers of parameters in the order of COLMAP's model ids, as far as its files have long had them.
MODELS = {
    "SIMPLE_PINHOLE": 3,
    "PINHOLE": 4,
    "SIMPLE_RADIAL": 4,
    "RADIAL": 5,
    "OPENCV": 8,
    "OPENCV_FISHEYE": 8,
    "FULL_OPENCV": 12,
    "FOV": 5,
    "SIMPLE_RADIAL_FISHEYE": 4,
    "RADIAL_FISHEYE": 5,
    "THIN_PRISM_FISHEYE": 12,
    "RAD_TAN_THIN_PRISM_FISHEYE": 16,
}

# Undistortion is iterative and may end elsewhere, e.g. beyond 90 degrees or past the fold of a polynomial: a ray
# that does not come back to its own pixel within this distance is none. True solutions return within 1e-7 pixels.
ROUND_TRIP_PX = 1e-3

_MAX_SIDE = 1 << 16
_QUATERNION_NORM = (0.9, 1.1)  # outside, the numbers are something else than a rotation


@dataclass(frozen=True)
class ColmapCamera:
    """A calibrated camera as its file has it: pixel centres at +0.5, `params` in COLMAP's order."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]

    def rays(self, size: tuple[int, int] | None = None) -> RayCamera:
        """`camera_rays` of this camera, for a picture of `size` = (width, height), by default its own."""
        return camera_rays(self.model, self.params, self.width, self.height, size=size)

    def at_size(self, size: tuple[int, int] | None = None) -> Camera | RayCamera:
        """The pinhole where the lens has no distortion, its rays where it has."""
        if self.model not in ("SIMPLE_PINHOLE", "PINHOLE"):
            return self.rays(size)
        fx, fy, cx, cy = self.params if self.model == "PINHOLE" else (self.params[0], *self.params)
        camera = Camera(self.width, self.height, fx, fy, cx - 0.5, cy - 0.5)
        return camera if size is None else camera.scaled(*size)


@dataclass(frozen=True, eq=False)
class ColmapImage:
    """Pose of one image: x_camera = rotation @ x_world + translation."""

    name: str
    camera_id: int
    rotation: NDArray[np.float64]  # (3, 3)
    translation: NDArray[np.float64]  # (3,), in the units of the reconstruction


@dataclass(frozen=True)
class ColmapModel:
    """Cameras by id and images by name."""

    cameras: dict[int, ColmapCamera]
    images: dict[str, ColmapImage]

    def camera_of(self, image: ColmapImage) -> ColmapCamera:
        return self.cameras[image.camera_id]


def camera_rays(
    model_name: str,
    params: tuple[float, ...] | list[float],
    width: int,
    height: int,
    *,
    size: tuple[int, int] | None = None,
) -> RayCamera:
    """The rays of a COLMAP camera through the centres of its pixels, or of those of a resized picture.

    NaN where the lens model has no ray for a pixel, or none in front of the camera. A resized picture keeps its
    border, so its pixel (0, 0) looks at (0.5 W/w, 0.5 H/h) in COLMAP's coordinates: no parameter is rescaled.

    Parameters
    ----------
    model_name : str
        COLMAP's name, e.g. ``"PINHOLE"``, ``"SIMPLE_RADIAL"``, ``"OPENCV"``, ``"OPENCV_FISHEYE"`` or
        ``"THIN_PRISM_FISHEYE"``.
    params : sequence of float
        In COLMAP's order, in pixels of `width` x `height`.
    width, height : int
        Size for which the camera was calibrated.
    size : (int, int), optional
        Width and height of the picture if it was resized since.

    Raises
    ------
    InputError
        If the model is unknown, its parameters are not of the right number or not finite, or a size is not positive.
    MissingExtra
        If pycolmap is not installed.
    """
    _check_camera(model_name, params, width, height)
    columns, rows = (width, height) if size is None else size
    if not (0 < columns <= _MAX_SIDE and 0 < rows <= _MAX_SIDE):
        raise InputError(f"`size` must be a width and a height between 1 and {_MAX_SIDE}, got {size} instead.")
    camera = _pycolmap().Camera(model=model_name, width=width, height=height, params=list(params))
    u = (np.arange(columns) + 0.5) * (width / columns)
    v = (np.arange(rows) + 0.5) * (height / rows)
    rays = np.empty((rows, columns, 2), dtype=np.float32)
    block = max(1, (1 << 20) // columns)  # float64 temporaries of a 24-megapixel camera would take gigabytes
    for start in range(0, rows, block):
        pixels = np.stack(np.meshgrid(u, v[start : start + block]), axis=-1).reshape(-1, 2)
        flat = camera.cam_from_img(pixels)
        back = camera.img_from_cam(np.concatenate((flat, np.ones((len(flat), 1))), axis=1))
        with np.errstate(invalid="ignore", over="ignore"):
            home = np.abs(back - pixels).max(axis=1) <= ROUND_TRIP_PX  # false for NaN as well
            home &= np.isfinite(flat.astype(np.float32)).all(axis=1)
        flat[~home] = np.nan
        rays[start : start + block] = flat.reshape(-1, columns, 2)
    return RayCamera(rays)


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
    binary, text = ([folder / f"{part}{suffix}" for part in ("cameras", "images")] for suffix in (".bin", ".txt"))
    if all(path.is_file() for path in binary):
        paths, parsers = binary, (_cameras_binary, _images_binary)
    elif all(path.is_file() for path in text):
        paths, parsers = text, (_cameras_text, _images_text)
    else:
        raise FileError(f"{folder}: needs cameras.bin and images.bin, or both as .txt, of a COLMAP model.")
    cameras = _parsed(paths[0], parsers[0])
    images: dict[str, ColmapImage] = {}
    for image in _parsed(paths[1], parsers[1]):
        if image.camera_id not in cameras:
            raise FileError(f"{paths[1]}: image {image.name!r} has camera {image.camera_id}, which {paths[0]} lacks.")
        if image.name in images:
            raise FileError(f"{paths[1]}: two images are named {image.name!r}.")
        images[image.name] = image
    return ColmapModel(cameras, images)


def _pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtra("pycolmap", "colmap", "A distorted camera") from error
    return pycolmap


def _check_camera(model: str, params: tuple[float, ...] | list[float], width: int, height: int) -> None:
    if model not in MODELS:
        raise InputError(f"`model_name` must be one of {', '.join(MODELS)}, got {model!r} instead.")
    if len(params) != MODELS[model] or not all(map(math.isfinite, params)):
        raise InputError(f"`params` of {model} must be {MODELS[model]} finite numbers, got {params!r} instead.")
    focal = params[:1] if model.startswith("SIMPLE") or model in ("RADIAL", "RADIAL_FISHEYE") else params[:2]
    if not all(value > 0 for value in focal):
        raise InputError(f"`params` of {model} must begin with a positive focal length, got {params!r} instead.")
    if not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        raise InputError(f"A camera must have between 1 and {_MAX_SIDE} pixels a side, got {width} x {height}.")


def _camera(model: str, width: int, height: int, params: tuple[float, ...]) -> ColmapCamera:
    _check_camera(model, params, width, height)
    return ColmapCamera(model, width, height, params)


def _image(name: str, camera_id: int, pose: tuple[float, ...]) -> ColmapImage:
    translation = np.array(pose[4:])
    length = math.hypot(*pose[:4])
    if not (_QUATERNION_NORM[0] < length < _QUATERNION_NORM[1] and np.isfinite(translation).all()):
        raise ValueError(f"image {name!r} has no valid pose: {pose}")
    w, x, y, z = (value / length for value in pose[:4])
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    return ColmapImage(name, camera_id, rotation, translation)


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
        cameras[number] = _camera(name, width, height, params)
        place += 24 + 8 * parameters
    return cameras


def _images_binary(data: bytes) -> list[ColmapImage]:
    (count,) = struct.unpack_from("<Q", data)
    place, images = 8, []
    for _ in range(count):
        _, *pose, camera_id = struct.unpack_from("<I7dI", data, place)
        end = data.index(b"\0", place + 64)
        (features,) = struct.unpack_from("<Q", data, end + 1)
        images.append(_image(data[place + 64 : end].decode(), camera_id, tuple(pose)))
        place = end + 9 + 24 * features  # x, y and the id of a point, eight bytes each
        if place > len(data):
            raise struct.error("truncated features")
    return images


def _cameras_text(data: bytes) -> dict[int, ColmapCamera]:
    cameras = {}
    for line in data.decode().splitlines():
        words = line.split()
        if words and not line.startswith("#"):
            params = tuple(map(float, words[4:]))
            cameras[int(words[0])] = _camera(words[1], int(words[2]), int(words[3]), params)
    return cameras


def _images_text(data: bytes) -> list[ColmapImage]:
    lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
    while lines and not lines[-1].strip():
        lines.pop()
    images = []
    for line in lines[::2]:  # every second line holds the features and may be empty
        words = line.split(maxsplit=9)  # a name may have spaces
        images.append(_image(words[9].strip(), int(words[8]), tuple(map(float, words[1:8]))))
    return images
