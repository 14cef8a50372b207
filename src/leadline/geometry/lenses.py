"""Cameras with COLMAP's lens models.

COLMAP puts the centre of the first pixel at (0.5, 0.5), this package at (0, 0). The half pixel is added and subtracted
in this module, in `leadline.geometry.projection` and where files are read. Lenses with distortion are computed by
pycolmap; a pinhole needs no package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, MissingExtra, param
from leadline.geometry.cameras import Camera, RayCamera

# Names and numbers of parameters, in the order of COLMAP's model ids.
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
# Models with one focal length, and the equivalent model with two.
ONE_FOCAL = {
    "SIMPLE_PINHOLE": "PINHOLE",
    "SIMPLE_RADIAL": "OPENCV",
    "RADIAL": "OPENCV",
    "SIMPLE_RADIAL_FISHEYE": "OPENCV_FISHEYE",
    "RADIAL_FISHEYE": "OPENCV_FISHEYE",
}

# Undistortion is iterative and may converge to a wrong solution, e.g. beyond 90 degrees or past the fold of a
# polynomial. A ray counts only if it projects back to its own pixel within this distance; true solutions return within
# 1e-7 pixels.
ROUND_TRIP_PX = 1e-3

MAX_SIDE = 1 << 16


@dataclass(frozen=True)
class ColmapCamera:
    """A calibrated camera with one of COLMAP's lens models.

    Parameters
    ----------
    model : str
        COLMAP's name, e.g. ``"PINHOLE"``, ``"SIMPLE_RADIAL"``, ``"OPENCV"``, ``"OPENCV_FISHEYE"`` or
        ``"THIN_PRISM_FISHEYE"``.
    width, height : int
        Size of the image in pixels.
    params : tuple of float
        In COLMAP's order and convention: the centre of the first pixel is (0.5, 0.5).

    Raises
    ------
    InputError
        The model is unknown, the number of parameters is wrong, one is not finite, or a size is not positive.
    """

    model: str
    width: int
    height: int
    params: tuple[float, ...]

    def __post_init__(self) -> None:
        model, params = self.model, tuple(self.params)
        object.__setattr__(self, "params", params)
        if model not in MODELS:
            raise InputError(f"{param('model')} must be one of {', '.join(MODELS)}, got {model!r} instead.")
        if len(params) != MODELS[model] or not all(map(math.isfinite, params)):
            raise InputError(
                f"{param('params')} of {model} must be {MODELS[model]} finite numbers, got {params!r} instead."
            )
        if not all(value > 0 for value in params[: 1 if model in ONE_FOCAL else 2]):
            raise InputError(
                f"{param('params')} of {model} must begin with a positive focal length, got {params!r} instead."
            )
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            raise InputError(
                f"A camera must have between 1 and {MAX_SIDE} pixels a side, got {self.width} x {self.height}."
            )

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-projected points of a depth map, (H, W, 3) in metres; NaN where the lens model has no ray."""
        return (self.pinhole() or self.rays()).points(depth)

    def project(self, points: FloatArray) -> NDArray[np.float64]:
        """Pixel coordinates of points in the camera's frame, (N, 2); NaN where z is not positive."""
        pinhole = self.pinhole()
        if pinhole is not None:
            return pinhole.project(points)
        points = np.ascontiguousarray(points, np.float64)
        pixels: NDArray[np.float64] = self._pycolmap().img_from_cam(points) - 0.5
        pixels[~(points[:, 2] > 0)] = np.nan
        return pixels

    def scaled(self, width: int, height: int) -> ColmapCamera:
        """The camera of the same image resized to `width` x `height`."""
        camera = self.with_two_focal_lengths()
        x, y = width / self.width, height / self.height
        fx, fy, cx, cy, *distortion = camera.params
        return ColmapCamera(camera.model, width, height, (fx * x, fy * y, cx * x, cy * y, *distortion))

    def pinhole(self) -> Camera | None:
        """The same camera as a `Camera`; None if the lens has distortion."""
        if self.model not in ("SIMPLE_PINHOLE", "PINHOLE"):
            return None
        fx, fy, cx, cy = self.with_two_focal_lengths().params
        return Camera(self.width, self.height, fx, fy, cx - 0.5, cy - 0.5)

    def with_two_focal_lengths(self) -> ColmapCamera:
        """The same camera as a model whose parameters begin with fx, fy, cx, cy."""
        if self.model not in ONE_FOCAL:
            return self
        focal, cx, cy, *distortion = self.params
        model = ONE_FOCAL[self.model]
        zeros = (0.0,) * (MODELS[model] - 4 - len(distortion))
        return ColmapCamera(model, self.width, self.height, (focal, focal, cx, cy, *distortion, *zeros))

    def rays(self) -> RayCamera:
        """The rays through the centres of all pixels, read-only.

        NaN where the lens model has no ray for a pixel, or none in front of the camera. The rays of the last two
        cameras are kept, because the images of one camera usually follow each other.

        Raises
        ------
        MissingExtra
            pycolmap is not installed.
        """
        return _compute_rays(self)

    def _pycolmap(self) -> Any:
        return pycolmap().Camera(model=self.model, width=self.width, height=self.height, params=list(self.params))


def pycolmap() -> Any:
    """The module pycolmap, or `MissingExtra`."""
    try:
        import pycolmap as package
    except ImportError as error:
        raise MissingExtra("pycolmap", "colmap", "A distorted camera") from error
    return package


@lru_cache(maxsize=2)
def _compute_rays(camera: ColmapCamera) -> RayCamera:
    lens = camera._pycolmap()
    u, v = np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5
    rays = np.empty((camera.height, camera.width, 2), dtype=np.float32)
    block = max(1, (1 << 20) // camera.width)  # float64 temporaries of a 24-megapixel camera would take gigabytes
    for start in range(0, camera.height, block):
        pixels = np.stack(np.meshgrid(u, v[start : start + block]), axis=-1).reshape(-1, 2)
        directions = lens.cam_from_img(pixels)
        back = lens.img_from_cam(np.concatenate((directions, np.ones((len(directions), 1))), axis=1))
        with np.errstate(invalid="ignore", over="ignore"):
            returns = np.abs(back - pixels).max(axis=1) <= ROUND_TRIP_PX  # false for NaN as well
            returns &= np.isfinite(directions.astype(np.float32)).all(axis=1)
        directions[~returns] = np.nan
        rays[start : start + block] = directions.reshape(-1, camera.width, 2)
    rays.flags.writeable = False  # the cache returns the same array again
    return RayCamera(rays)
