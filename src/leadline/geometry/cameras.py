"""Cameras without lens distortion, and cameras given by the ray of each pixel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, require_positive


@dataclass(frozen=True)
class Camera:
    """Pinhole intrinsics in pixels; pixel (0, 0) has its centre at (0, 0), so x = (u - cx) / fx * z."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self) -> None:
        if not (self.fx > 0 and self.fy > 0 and all(map(math.isfinite, (self.fx, self.fy, self.cx, self.cy)))):
            raise InputError(f"Camera: fx and fy must be positive and all four finite, got {self}.")

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-projected points, (H, W, 3) in metres: x right, y down, z forward."""
        rows, columns = np.indices(depth.shape)
        return np.stack(((columns - self.cx) / self.fx * depth, (rows - self.cy) / self.fy * depth, depth), axis=-1)

    def scaled(self, width: int, height: int) -> Camera:
        """The camera of the same picture resized to `width` x `height`.

        The border of the picture, half a pixel outside the first centre, stays where it is: that is what is scaled,
        so cx + 1/2 is multiplied and not cx.

        Examples
        --------
        >>> Camera(4, 2, 8.0, 8.0, 1.5, 0.5).scaled(2, 1)
        Camera(width=2, height=1, fx=4.0, fy=4.0, cx=0.5, cy=0.0)
        """
        require_positive(width=width, height=height)
        x, y = width / self.width, height / self.height
        return Camera(width, height, self.fx * x, self.fy * y, (self.cx + 0.5) * x - 0.5, (self.cy + 0.5) * y - 0.5)


@dataclass(frozen=True, eq=False)
class RayCamera:
    """A camera of any kind, as the ray of each pixel: for lenses whose distortion a pinhole would get wrong.

    Parameters
    ----------
    rays : (H, W, 2) array
        x/z and y/z of the ray through each pixel's centre; kept as float32. NaN where a pixel sees nothing.

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
                f"`rays` must be a non-empty (H, W, 2) array of floats, got {rays.dtype} {rays.shape} instead."
            )
        object.__setattr__(self, "rays", rays.astype(np.float32, copy=False))

    @property
    def width(self) -> int:
        return int(self.rays.shape[1])

    @property
    def height(self) -> int:
        return int(self.rays.shape[0])

    def points(self, depth: FloatArray) -> NDArray[np.float64]:
        """Back-projected points, (H, W, 3) in metres: x right, y down, z forward."""
        if depth.shape != self.rays.shape[:2]:
            raise InputError(f"`depth` must have the camera's shape {self.rays.shape[:2]}, got {depth.shape} instead.")
        z = depth.astype(np.float64)
        return np.stack((self.rays[..., 0] * z, self.rays[..., 1] * z, z), axis=-1)
