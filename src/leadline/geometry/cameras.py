"""The interface of all cameras, the pinhole camera, cameras given by their rays, and COLMAP's lens models.

Pixel coordinates have their origin at the centre of the first pixel. A camera's frame has x to the right, y down and z
forward. COLMAP puts the centre of the first pixel at (0.5, 0.5): the half pixel is added and subtracted in
`ColmapCamera`, in `leadline.geometry.projection` and where files are read. Lenses with distortion are computed by
pycolmap; a pinhole needs no package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, MissingExtra, param, require_positive

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


class CameraModel(Protocol):
    """The interface of all cameras: `Camera`, `RayCamera` and `ColmapCamera`."""

    @property
    def width(self) -> int: ...  # pixels

    @property
    def height(self) -> int: ...

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-projected points, (H, W, 3) metres in the camera's frame, of depth along the optical axis, (H, W)."""

    def project(self, points: FloatArray) -> NDArray[np.float64]:
        """Pixel coordinates x and y, (N, 2), of points in the camera's frame, (N, 3); NaN where z is not positive.

        Far outside the image a lens polynomial may fold back, so that a point there gets coordinates inside the image.
        A camera that is given by its rays alone raises `InputError`.
        """

    def scaled(self, width: int, height: int) -> CameraModel:
        """The camera of the same image resized to `width` x `height`."""

    def __hash__(self) -> int: ...  # cameras are keys of caches


def require_camera(camera: CameraModel, shape: tuple[int, ...]) -> None:
    """Raise `InputError` unless `camera` is a camera of images of this shape, (H, W)."""
    if not all(hasattr(camera, name) for name in ("width", "height", "points")):
        raise InputError(f"{param('camera')} must be a camera such as leadline.Camera, got {camera!r} instead.")
    if (camera.height, camera.width) != shape:
        raise InputError(
            f"{param('camera')} must have the size {shape[1]} x {shape[0]}, got {camera.width} x {camera.height}; its "
            "method `scaled` gives the camera of a resized image."
        )


@dataclass(frozen=True)
class Camera:
    """A pinhole camera: x = (u - cx) / fx z and y = (v - cy) / fy z for the pixel in column u and row v.

    Parameters
    ----------
    width, height : int
        Size of the image in pixels.
    fx, fy : float
        Focal lengths in pixels.
    cx, cy : float
        Principal point in pixels; the centre of the first pixel is (0, 0).

    Raises
    ------
    InputError
        A number is not finite, or a focal length is not positive.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self) -> None:
        if not (self.fx > 0 and self.fy > 0 and all(map(math.isfinite, (self.fx, self.fy, self.cx, self.cy)))):
            raise InputError(f"Camera: fx and fy must be positive and all four finite, got {self}.")

    @classmethod
    def from_view_angle(cls, width: int, height: int, degrees: float) -> Camera:
        """A camera with square pixels, its principal point in the centre, and this horizontal field of view.

        Examples
        --------
        >>> Camera.from_view_angle(4, 2, 90.0)
        Camera(width=4, height=2, fx=2.0000000000000004, fy=2.0000000000000004, cx=1.5, cy=0.5)
        """
        focal = width / (2 * math.tan(math.radians(degrees / 2)))
        return cls(width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        rows, columns = np.indices(depth.shape)
        return np.stack(((columns - self.cx) / self.fx * depth, (rows - self.cy) / self.fy * depth, depth), axis=-1)

    def project(self, points: FloatArray) -> NDArray[np.float64]:
        """See `CameraModel.project`.

        Examples
        --------
        >>> Camera(4, 2, 8.0, 8.0, 1.5, 0.5).project(np.array([[1.0, 0.5, 4.0], [0.0, 0.0, -1.0]]))
        array([[3.5, 1.5], [nan, nan]])
        """
        x, y, z = np.asarray(points, np.float64).T
        z = np.where(z > 0, z, np.nan)
        return np.stack((self.fx * x / z + self.cx, self.fy * y / z + self.cy), axis=1)

    def scaled(self, width: int, height: int) -> Camera:
        """The camera of the same image resized to `width` x `height`.

        Resizing keeps the border of the image, which lies half a pixel outside the first centre. So cx + 1/2 is
        multiplied, not cx.

        Examples
        --------
        >>> Camera(4, 2, 8.0, 8.0, 1.5, 0.5).scaled(2, 1)
        Camera(width=2, height=1, fx=4.0, fy=4.0, cx=0.5, cy=0.0)
        """
        require_positive(width=width, height=height)
        x, y = width / self.width, height / self.height
        return Camera(width, height, self.fx * x, self.fy * y, (self.cx + 0.5) * x - 0.5, (self.cy + 0.5) * y - 0.5)

    def rotated(self, quarter_turns: int) -> Camera:
        """The camera of the image after `grids.rotate90`; its axes rotate with the image, so y stays down.

        Examples
        --------
        >>> Camera(4, 3, 9.0, 8.0, 1.0, 2.0).rotated(1)
        Camera(width=3, height=4, fx=8.0, fy=9.0, cx=2.0, cy=2.0)
        """
        camera = self
        for _ in range(quarter_turns % 4):
            # A quarter turn counter-clockwise sends column u, row v to column v, row (width - 1 - u).
            camera = Camera(camera.height, camera.width, camera.fy, camera.fx, camera.cy, camera.width - 1 - camera.cx)
        return camera


@dataclass(frozen=True, eq=False)
class RayCamera:
    """A camera given by the ray of each pixel, for lenses with distortion. It cannot project points.

    Parameters
    ----------
    rays : (H, W, 2) array
        x/z and y/z of the ray through the centre of each pixel, stored as float32. NaN where a pixel has no ray.
    """

    rays: NDArray[np.float32]

    def __post_init__(self) -> None:
        rays = np.asarray(self.rays)
        if rays.ndim != 3 or rays.shape[2] != 2 or rays.size == 0 or rays.dtype.kind != "f":
            raise InputError(
                f"{param('rays')} must be a non-empty (H, W, 2) array of floats, got {rays.dtype} {rays.shape} instead."
            )
        object.__setattr__(self, "rays", rays.astype(np.float32, copy=False))

    @property
    def width(self) -> int:
        return int(self.rays.shape[1])

    @property
    def height(self) -> int:
        return int(self.rays.shape[0])

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        if depth.shape != self.rays.shape[:2]:
            raise InputError(f"{param('depth')} must have the camera's shape {self.rays.shape[:2]}, got {depth.shape}.")
        z = depth.astype(np.float64)
        return np.stack((self.rays[..., 0] * z, self.rays[..., 1] * z, z), axis=-1)

    def project(self, points: FloatArray) -> NDArray[np.float64]:
        """Raise InputError, because rays alone do not determine the pixel of a point."""
        raise InputError(f"{param('camera')} is given by its rays alone and cannot project; pass its lens model.")

    def scaled(self, width: int, height: int) -> RayCamera:
        """The camera of the same image resized to `width` x `height`; rays are interpolated linearly."""
        require_positive(width=width, height=height)
        rays = self.rays.astype(np.float64)
        for axis, size in ((0, height), (1, width)):
            given = rays.shape[axis]
            if given == size:
                continue
            position = (np.arange(size) + 0.5) * given / size - 0.5
            # Positions outside the outermost centres are extrapolated from the last two rays.
            low = np.clip(np.floor(position), 0, max(given - 2, 0)).astype(np.intp)
            weight = np.expand_dims(position - low, (1 - axis, 2))
            near, far = (np.take(rays, index, axis) for index in (low, np.minimum(low + 1, given - 1)))
            rays = near + (far - near) * weight
        return RayCamera(rays.astype(np.float32))


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
            raise InputError(f"the camera model must be one of {', '.join(MODELS)}, got {model!r} instead.")
        if len(params) != MODELS[model] or not all(map(math.isfinite, params)):
            raise InputError(f"the parameters of {model} must be {MODELS[model]} finite numbers, got {params!r}.")
        if not all(value > 0 for value in params[: 1 if model in ONE_FOCAL else 2]):
            raise InputError(f"the parameters of {model} must begin with a positive focal length, got {params!r}.")
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            raise InputError(
                f"A camera must have between 1 and {MAX_SIDE} pixels a side, got {self.width} x {self.height}."
            )

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-projected points of a depth map, (H, W, 3) in metres; NaN where the lens model has no ray."""
        return (self.pinhole() or self.rays()).points(depth)

    def project(self, points: FloatArray) -> NDArray[np.float64]:
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
        """The rays through the centres of all pixels, read-only; NaN where the lens model has none in front."""
        return _compute_rays(self)

    def _pycolmap(self) -> Any:
        try:
            import pycolmap
        except ImportError as error:
            raise MissingExtra("pycolmap", "lens", "A distorted camera") from error
        return pycolmap.Camera(model=self.model, width=self.width, height=self.height, params=list(self.params))


@lru_cache(maxsize=2)  # the images of one camera usually follow each other
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
