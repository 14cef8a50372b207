"""Scores of a predicted depth map. An empty mask scores NaN with a support of 0, never a number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map, as_mask
from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, RayCamera

DELTA_BASE = 1.25  # a prediction within this ratio of the reference counts for delta1, its square for delta2, ...


@dataclass(frozen=True)
class DepthScores:
    """Errors over the scored pixels; all NaN where nothing could be scored."""

    absrel: float  # mean |p - r| / r
    mae: float  # mean |p - r|, metres
    rmse: float  # metres
    delta1: float  # share of pixels with max(p / r, r / p) < 1.25
    delta2: float  # ... < 1.25^2
    delta3: float  # ... < 1.25^3
    support: int  # pixels scored
    missing: int  # pixels of the mask with a valid reference but no usable prediction

    @property
    def failed(self) -> bool:
        """Whether there was nothing to score."""
        return self.support == 0


@dataclass(frozen=True)
class NormalScores:
    """Angles between predicted and reference normals; NaN where nothing could be scored."""

    mean_deg: float
    median_deg: float
    support: int  # pixels at which both normals exist

    @property
    def failed(self) -> bool:
        """Whether there was nothing to score."""
        return self.support == 0


def depth_scores(prediction: FloatArray, reference: FloatArray, mask: BoolArray) -> DepthScores:
    """AbsRel, MAE, RMSE and the delta accuracies of a prediction.

    Scored are the pixels of `mask` at which the reference is valid (finite, > 0) and the prediction usable
    (finite, > 0). The others are not punished but counted in `missing`, so read both.

    Parameters
    ----------
    prediction, reference : (H, W) arrays
        Depth in metres.
    mask : (H, W) bool array

    Raises
    ------
    InputError
        If shapes differ or the mask is not boolean.

    Examples
    --------
    >>> scores = depth_scores(np.array([[1.0, 3.0]]), np.array([[2.0, 2.0]]), np.array([[True, True]]))
    >>> scores.absrel, scores.mae, scores.support
    (0.5, 1.0, 2)
    """
    prediction, reference, asked = _inputs(prediction, reference, mask)
    asked = asked & np.isfinite(reference) & (reference > 0)
    usable = asked & np.isfinite(prediction) & (prediction > 0)
    support = int(np.count_nonzero(usable))
    missing = int(np.count_nonzero(asked)) - support
    if not support:
        nan = math.nan
        return DepthScores(nan, nan, nan, nan, nan, nan, support, missing)
    p, r = prediction[usable].astype(np.float64), reference[usable].astype(np.float64)
    error = np.abs(p - r)
    ratio = np.maximum(p / r, r / p)
    delta1, delta2, delta3 = (float(np.mean(ratio < DELTA_BASE**k)) for k in (1, 2, 3))
    rmse = math.sqrt(float(np.mean(error * error)))
    return DepthScores(float(np.mean(error / r)), float(np.mean(error)), rmse, delta1, delta2, delta3, support, missing)


def relative_error(prediction: FloatArray, reference: FloatArray) -> NDArray[np.float64]:
    """|p - r| / r per pixel, (H, W); NaN where either is not a positive finite depth."""
    prediction, reference = as_map(prediction, "prediction"), as_map(reference, "reference")
    if prediction.shape != reference.shape:
        raise InputError(f"`prediction` must have the reference's shape {reference.shape}, got {prediction.shape}.")
    p, r = _positive(prediction), _positive(reference)
    return np.asarray(np.abs(p - r) / r)


def normals(depth: FloatArray, camera: Camera | RayCamera) -> NDArray[np.float64]:
    """Unit surface normals in camera axes, (H, W, 3), turned towards the camera; NaN where unknown.

    The depth is back-projected, its centred horizontal and vertical differences are taken, and their cross
    product is normalised. A normal is unknown on the outer ring of pixels, where one of the four neighbours has
    no depth, and where the differences are parallel. The pixel's own depth takes no part.

    Parameters
    ----------
    depth : (H, W) array
        Metres; NaN, inf and values <= 0 are invalid.
    camera : Camera or RayCamera
        Of the same size as the depth.

    Raises
    ------
    InputError
        If the camera's size is not the depth's.
    """
    depth = as_map(depth, "depth")
    height, width = depth.shape
    if (camera.height, camera.width) != (height, width):
        raise InputError(
            f"`camera` must be of the depth's size {width} x {height}, got {camera.width} x {camera.height} instead."
        )
    result = np.full((height, width, 3), np.nan)
    if height < 3 or width < 3:
        return result
    z = _positive(depth)
    # At depth 1, not at z: the direction of a pixel is known where its own depth is not.
    rays = camera.points(np.ones((height, width)))
    rays_x, rays_y = rays[..., 0], rays[..., 1]
    x, y = rays_x * z, rays_y * z
    ax, ay, az = (p[1:-1, 2:] - p[1:-1, :-2] for p in (x, y, z))
    bx, by, bz = (p[2:, 1:-1] - p[:-2, 1:-1] for p in (x, y, z))
    nx, ny, nz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    length = np.sqrt(nx * nx + ny * ny + nz * nz)
    length[length == 0] = np.nan
    away = nx * rays_x[1:-1, 1:-1] + ny * rays_y[1:-1, 1:-1] + nz > 0
    length = np.where(away, -length, length)
    for axis, component in enumerate((nx, ny, nz)):
        result[1:-1, 1:-1, axis] = component / length
    return result


def normal_scores(
    prediction: FloatArray, reference: FloatArray, camera: Camera | RayCamera, mask: BoolArray
) -> NormalScores:
    """Mean and median angle in degrees between the normals of two depth maps.

    The same operator, `normals`, serves both; scored are the pixels of `mask` at which both exist. The angle is
    atan2(|a x b|, a . b): the arc cosine of the dot product has no accurate digits below some 1e-6 degrees and
    leaves its domain by rounding.

    Raises
    ------
    InputError
        If shapes differ, the mask is not boolean, or the camera is of another size.
    """
    prediction, reference, asked = _inputs(prediction, reference, mask)
    ours, theirs = normals(prediction, camera), normals(reference, camera)
    both = asked & np.isfinite(ours[..., 0]) & np.isfinite(theirs[..., 0])
    support = int(np.count_nonzero(both))
    if not support:
        return NormalScores(math.nan, math.nan, support)
    a, b = ours[both].T, theirs[both].T
    sine = np.sqrt(
        (a[1] * b[2] - a[2] * b[1]) ** 2 + (a[2] * b[0] - a[0] * b[2]) ** 2 + (a[0] * b[1] - a[1] * b[0]) ** 2
    )
    angle = np.degrees(np.arctan2(sine, a[0] * b[0] + a[1] * b[1] + a[2] * b[2]))
    return NormalScores(float(np.mean(angle)), float(np.median(angle)), support)


def _inputs(prediction: FloatArray, reference: FloatArray, mask: BoolArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    prediction, reference = as_map(prediction, "prediction"), as_map(reference, "reference")
    if prediction.shape != reference.shape:
        raise InputError(f"`prediction` must have the reference's shape {reference.shape}, got {prediction.shape}.")
    return prediction, reference, as_mask(mask, "mask", reference.shape)


def _positive(depth: FloatArray) -> NDArray[np.float64]:
    """Depth in float64 with every invalid pixel as NaN."""
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float64)
