"""The interface of all cameras, the pinhole camera, and cameras given by the ray of each pixel.

Pixel coordinates have their origin at the centre of the first pixel. A camera's frame has x to the right, y down and z
forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param, require_positive


class CameraModel(Protocol):
    """What every camera can do: `Camera`, `RayCamera` and `leadline.geometry.lenses.ColmapCamera`."""

    @property
    def width(self) -> int:
        """Width of the image in pixels."""

    @property
    def height(self) -> int:
        """Height of the image in pixels."""

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-project a depth map.

        Parameters
        ----------
        depth : (H, W) array
            Metres along the optical axis.

        Returns
        -------
        (H, W, 3) float64 array
            Metres in the camera's frame.
        """

    def project(self, points: FloatArray) -> NDArray[np.float64]:
        """Pixel coordinates of points.

        Far outside the image a lens polynomial may fold back, so that a point there gets coordinates inside the image.

        Parameters
        ----------
        points : (N, 3) array
            In the camera's frame.

        Returns
        -------
        (N, 2) float64 array
            x and y in pixels; NaN where a point is not in front of the camera.

        Raises
        ------
        InputError
            The camera is known by its rays alone.
        """

    def scaled(self, width: int, height: int) -> CameraModel:
        """The camera of the same image resized to `width` x `height`."""

    def __hash__(self) -> int: ...  # cameras are keys of caches


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
        """Back-projected points of a depth map, (H, W, 3) in metres."""
        rows, columns = np.indices(depth.shape)
        return np.stack(((columns - self.cx) / self.fx * depth, (rows - self.cy) / self.fy * depth, depth), axis=-1)

    def project(self, points: FloatArray) -> NDArray[np.float64]:
        """Pixel coordinates of points in the camera's frame, (N, 2); NaN where z is not positive.

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

    Examples
    --------
    >>> RayCamera(np.full((1, 1, 2), 0.5)).points(np.array([[4.0]]))
    array([[[2., 2., 4.]]])
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
        """Back-projected points of a depth map, (H, W, 3) in metres."""
        if depth.shape != self.rays.shape[:2]:
            raise InputError(
                f"{param('depth')} must have the camera's shape {self.rays.shape[:2]}, got {depth.shape} instead."
            )
        z = depth.astype(np.float64)
        return np.stack((self.rays[..., 0] * z, self.rays[..., 1] * z, z), axis=-1)

    def project(self, points: FloatArray) -> NDArray[np.float64]:
        """Raises InputError: rays give no pixel for a point."""
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
