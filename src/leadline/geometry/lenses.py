"""Calibrated cameras: lens models, the ray of every pixel, and camera files.

COLMAP puts the centre of the first pixel at (0.5, 0.5), this package at (0, 0): the half pixel is added and taken
away here and nowhere else. Lens models are pycolmap's; a pinhole needs no package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError, MissingExtra
from leadline.geometry.cameras import Camera, RayCamera

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
# Models with one focal length, and those that say the same with two.
ONE_FOCAL = {
    "SIMPLE_PINHOLE": "PINHOLE",
    "SIMPLE_RADIAL": "OPENCV",
    "RADIAL": "OPENCV",
    "SIMPLE_RADIAL_FISHEYE": "OPENCV_FISHEYE",
    "RADIAL_FISHEYE": "OPENCV_FISHEYE",
}

# Undistortion is iterative and may end elsewhere, e.g. beyond 90 degrees or past the fold of a polynomial: a ray
# that does not come back to its own pixel within this distance is none. True solutions return within 1e-7 pixels.
ROUND_TRIP_PX = 1e-3

MAX_SIDE = 1 << 16


@dataclass(frozen=True)
class ColmapCamera:
    """A calibrated camera as COLMAP's files have it: pixel centres at +0.5, `params` in COLMAP's order.

    Raises
    ------
    InputError
        If the model is unknown, its parameters are not of the right number or not finite, or a size is not positive.
    """

    model: str
    width: int
    height: int
    params: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_camera(self.model, self.params, self.width, self.height)

    def rays(self, size: tuple[int, int] | None = None) -> RayCamera:
        """`camera_rays` of this camera, for a picture of `size` = (width, height), by default its own."""
        return camera_rays(self.model, self.params, self.width, self.height, size=size)

    def plain(self) -> Camera | ColmapCamera:
        """The pinhole where the lens has no distortion, itself where it has."""
        if self.model not in ("SIMPLE_PINHOLE", "PINHOLE"):
            return self
        fx, fy, cx, cy = self.two_focals().params
        return Camera(self.width, self.height, fx, fy, cx - 0.5, cy - 0.5)

    def at_size(self, size: tuple[int, int] | None = None) -> Camera | RayCamera:
        """The pinhole where the lens has no distortion, its rays where it has."""
        camera = self.plain()
        if isinstance(camera, ColmapCamera):
            return self.rays(size)
        return camera if size is None else camera.scaled(*size)

    def two_focals(self) -> ColmapCamera:
        """The same camera as a model whose parameters begin with fx, fy, cx, cy."""
        if self.model not in ONE_FOCAL:
            return self
        focal, cx, cy, *rest = self.params
        model = ONE_FOCAL[self.model]
        zeros = (0.0,) * (MODELS[model] - 4 - len(rest))
        return ColmapCamera(model, self.width, self.height, (focal, focal, cx, cy, *rest, *zeros))

    def scaled(self, width: int, height: int) -> ColmapCamera:
        """The camera of the same picture resized to `width` x `height`."""
        camera = self.two_focals()
        x, y = width / self.width, height / self.height
        fx, fy, cx, cy, *rest = camera.params
        return ColmapCamera(camera.model, width, height, (fx * x, fy * y, cx * x, cy * y, *rest))

    def places(self, points: FloatArray, size: tuple[int, int]) -> FloatArray:
        """Where points in the camera's frame, (N, 3) with z > 0, fall in a picture of `size`, (N, 2) as x and y.

        In COLMAP's coordinates, so the pixel of a place is its floor. Lens polynomials turn back far outside of the
        picture: what lies there may seem to lie inside.
        """
        model = pycolmap().Camera(model=self.model, width=self.width, height=self.height, params=list(self.params))
        found: FloatArray = model.img_from_cam(np.ascontiguousarray(points, np.float64))
        return found * (size[0] / self.width, size[1] / self.height)


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
    if not (0 < columns <= MAX_SIDE and 0 < rows <= MAX_SIDE):
        raise InputError(f"`size` must be a width and a height between 1 and {MAX_SIDE}, got {size} instead.")
    camera = pycolmap().Camera(model=model_name, width=width, height=height, params=list(params))
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


def turn_camera(camera: Camera, quarter_turns: int) -> Camera:
    """The camera of the picture after `grids.turn`: its axes are turned with it, so that y points down the columns.

    Examples
    --------
    >>> turn_camera(Camera(4, 3, 9.0, 8.0, 1.0, 2.0), 1)
    Camera(width=3, height=4, fx=8.0, fy=9.0, cx=2.0, cy=2.0)
    """
    for _ in range(quarter_turns % 4):
        # A quarter turn counter-clockwise sends column u, row v to column v, row (width - 1 - u).
        camera = Camera(camera.height, camera.width, camera.fy, camera.fx, camera.cy, camera.width - 1 - camera.cx)
    return camera


def range_to_depth(ranges: FloatArray, camera: Camera | RayCamera) -> FloatArray:
    """Depth along the optical axis, (H, W) in the unit of `ranges`, from distances along each pixel's ray.

    Time-of-flight sensors and simulators often give distances from the camera's centre. z is shorter by the length of
    the ray at z = 1.

    Examples
    --------
    >>> range_to_depth(np.array([[5.0]]), RayCamera(np.array([[[0.75, 0.0]]])))
    array([[4.]])
    """
    ranges = as_map(ranges, "ranges")
    if ranges.shape != (camera.height, camera.width):
        raise InputError(
            f"`ranges` must have the camera's size {camera.width}x{camera.height}, got {ranges.shape[1]}x"
            f"{ranges.shape[0]} instead."
        )
    lengths = np.linalg.norm(camera.points(np.ones(ranges.shape)), axis=-1)
    return np.asarray(ranges / lengths, ranges.dtype)


def pycolmap() -> Any:
    """The package, or `MissingExtra`."""
    try:
        import pycolmap as package
    except ImportError as error:
        raise MissingExtra("pycolmap", "colmap", "A distorted camera") from error
    return package


def _check_camera(model: str, params: tuple[float, ...] | list[float], width: int, height: int) -> None:
    if model not in MODELS:
        raise InputError(f"`model_name` must be one of {', '.join(MODELS)}, got {model!r} instead.")
    if len(params) != MODELS[model] or not all(map(math.isfinite, params)):
        raise InputError(f"`params` of {model} must be {MODELS[model]} finite numbers, got {params!r} instead.")
    if not all(value > 0 for value in params[: 1 if model in ONE_FOCAL else 2]):
        raise InputError(f"`params` of {model} must begin with a positive focal length, got {params!r} instead.")
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise InputError(f"A camera must have between 1 and {MAX_SIDE} pixels a side, got {width} x {height}.")
