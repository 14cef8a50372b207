"""Point clouds, and their construction from depth maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import BoolArray, FloatArray, as_map, is_measured
from leadline.base.errors import InputError, param
from leadline.geometry.cameras import CameraModel

_ATTRIBUTES = ("intensity", "time", "confidence")


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points with optional attributes.

    Parameters
    ----------
    points : (N, 3) float32 or float64 array
        x, y, z in metres, in the sensor's or the world's frame.
    intensity : (N,) array, optional
        Strength of the return.
    time : (N,) array, optional
        Seconds.
    confidence : (N,) array, optional
        Larger is more reliable.

    Raises
    ------
    InputError
        The shapes do not fit.
    """

    points: FloatArray
    intensity: FloatArray | None = None
    time: FloatArray | None = None
    confidence: FloatArray | None = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points)
        if points.ndim != 2 or points.shape[1] != 3 or points.dtype.kind not in "iuf":
            raise InputError(
                f"{param('points')} must be an (N, 3) array of numbers, got {points.dtype} {points.shape} instead."
            )
        dtype = np.float32 if points.dtype == np.float32 else np.float64
        object.__setattr__(self, "points", np.ascontiguousarray(points, dtype))
        for name in _ATTRIBUTES:
            values = getattr(self, name)
            if values is not None and np.shape(values) != (len(points),):
                raise InputError(
                    f"{param(name)} must have one number for each of {len(points)} points, got {np.shape(values)}."
                )

    def __len__(self) -> int:
        return len(self.points)

    def select(self, mask: BoolArray) -> Cloud:
        """The points where `mask`, (N,) bool, is true."""
        given = {name: getattr(self, name) for name in _ATTRIBUTES if getattr(self, name) is not None}
        return Cloud(self.points[mask], **{name: values[mask] for name, values in given.items()})


def cloud_from_depth(
    depth: FloatArray, camera: CameraModel, *, ranges: bool = False, confidence: ArrayLike | None = None
) -> Cloud:
    """The measured pixels of a depth map, (H, W) metres, as points in its own camera's frame.

    With `ranges` the values are distances along each pixel's ray, as time-of-flight sensors and simulators often give
    them, not along the optical axis. `confidence`, (H, W), becomes the confidence of the points.

    Examples
    --------
    >>> from leadline.geometry.cameras import RayCamera
    >>> cloud_from_depth(np.array([[5.0]]), RayCamera(np.array([[[0.75, 0.0]]])), ranges=True).points
    array([[3., 0., 4.]])
    """
    depth = as_map(depth, "depth")
    if depth.shape != (camera.height, camera.width):
        raise InputError(
            f"{param('depth')} must have its camera's size {camera.width}x{camera.height}, got "
            f"{depth.shape[1]}x{depth.shape[0]}."
        )
    if ranges:  # divided by the length of the ray at z = 1
        lengths = np.linalg.norm(camera.points(np.ones(depth.shape)), axis=-1)
        depth = np.asarray(depth / lengths, depth.dtype)
    measured = is_measured(depth)
    levels = None
    if confidence is not None:
        levels = np.asarray(confidence)
        if levels.shape != depth.shape:
            raise InputError(f"{param('confidence')} must have the depth's shape {depth.shape}, got {levels.shape}.")
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
            levels = levels[measured].astype(np.float32)
    return Cloud(camera.points(depth)[measured], confidence=levels)
