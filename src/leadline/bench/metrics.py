"""Scores of a predicted depth map, in NumPy. With an empty mask all scores are NaN and the support is 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map, as_mask
from leadline.base.errors import InputError, param
from leadline.geometry.cameras import CameraModel, require_camera

DELTA_BASE = 1.25  # delta1, delta2 and delta3 count ratios below 1.25, 1.25^2 and 1.25^3
TIGHT_DELTAS = (1.02, 1.05, 1.10)  # ratios of delta102, delta105 and delta110
PER_KM = 1000.0  # an inverse depth in 1/m times this is in 1/km
Missing = Literal["exclude", "fail", "penalise"]
"""What is done with scored pixels that have no prediction, see `depth_scores`."""


@dataclass(frozen=True)
class DepthScores:
    """Errors over the scored pixels; all NaN if there are none."""

    absrel: float = math.nan  # mean |p - r| / r
    mae: float = math.nan  # mean |p - r|, metres
    rmse: float = math.nan  # metres
    delta1: float = math.nan  # share of pixels with max(p / r, r / p) < 1.25
    delta2: float = math.nan  # ... < 1.25^2
    delta3: float = math.nan  # ... < 1.25^3
    irmse: float = math.nan  # root mean square of 1/p - 1/r, 1/km
    imae: float = math.nan  # mean |1/p - 1/r|, 1/km
    delta102: float = math.nan  # share of pixels with max(p / r, r / p) < 1.02
    delta105: float = math.nan  # ... < 1.05
    delta110: float = math.nan  # ... < 1.10
    support: int = 0  # pixels scored, penalised ones included
    missing: int = 0  # pixels of the mask with a valid reference but no valid prediction

    @property
    def failed(self) -> bool:
        """Whether no pixel was scored."""
        return self.support == 0


@dataclass(frozen=True)
class NormalScores:
    """Angles between predicted and reference normals in degrees; NaN if no pixel was scored."""

    mean_deg: float = math.nan
    median_deg: float = math.nan
    support: int = 0  # pixels at which both normals exist

    @property
    def failed(self) -> bool:
        """Whether no pixel was scored."""
        return self.support == 0


def depth_scores(
    prediction: FloatArray, reference: FloatArray, mask: BoolArray, *, missing: Missing = "exclude"
) -> DepthScores:
    """AbsRel, MAE, RMSE, their counterparts of inverse depth, and the delta accuracies of a prediction.

    The scored pixels are those of `mask` at which the reference is valid (finite, > 0). The number of those without a
    valid prediction is `DepthScores.missing`. They do not affect the errors ("exclude"), leave all scores NaN ("fail"),
    or are scored as depth 0 and inverse depth 0, outside every delta ("penalise").

    Examples
    --------
    >>> scores = depth_scores(np.array([[1.0, 3.0]]), np.array([[2.0, 2.0]]), np.array([[True, True]]))
    >>> scores.absrel, scores.mae, scores.support
    (0.5, 1.0, 2)
    """
    prediction, reference = _check_maps(prediction, reference)
    mask = as_mask(mask, "mask", reference.shape) & np.isfinite(reference) & (reference > 0)
    valid = mask & np.isfinite(prediction) & (prediction > 0)
    absent = int(np.count_nonzero(mask)) - int(np.count_nonzero(valid))
    scored = mask if missing == "penalise" else valid
    support = int(np.count_nonzero(scored))
    if not support or (missing == "fail" and absent):
        return DepthScores(missing=absent)
    p, r = np.where(valid, prediction, 0)[scored].astype(np.float64), reference[scored].astype(np.float64)
    error = np.abs(p - r)
    with np.errstate(divide="ignore"):
        ratio = np.maximum(p / r, r / p)
        inverse = np.abs(np.where(p > 0, 1 / p, 0.0) - 1 / r) * PER_KM

    shares = [float(np.mean(ratio < limit)) for limit in (*(DELTA_BASE**k for k in (1, 2, 3)), *TIGHT_DELTAS)]
    return DepthScores(
        absrel=float(np.mean(error / r)),
        mae=float(np.mean(error)),
        rmse=math.sqrt(float(np.mean(error * error))),
        delta1=shares[0],
        delta2=shares[1],
        delta3=shares[2],
        irmse=math.sqrt(float(np.mean(inverse * inverse))),
        imae=float(np.mean(inverse)),
        delta102=shares[3],
        delta105=shares[4],
        delta110=shares[5],
        support=support,
        missing=absent,
    )


def relative_error(prediction: FloatArray, reference: FloatArray) -> NDArray[np.float64]:
    """|p - r| / r per pixel, (H, W); NaN where either is not a positive finite depth."""
    p, r = map(_positive, _check_maps(prediction, reference))
    return np.asarray(np.abs(p - r) / r)


def normals(depth: FloatArray, camera: CameraModel) -> NDArray[np.float64]:
    """Unit surface normals in the camera's frame, (H, W, 3), oriented towards the camera; NaN where unknown.

    The normal is the normalised cross product of the horizontal and vertical central differences of the back-projected
    points. It is unknown at the border of the image, where one of the four neighbours has no depth, and where the
    differences are parallel. The depth of the pixel itself has no influence.
    """
    depth = as_map(depth, "depth")
    height, width = depth.shape
    require_camera(camera, depth.shape)
    result = np.full((height, width, 3), np.nan)
    if height < 3 or width < 3:
        return result
    z = _positive(depth)
    # Rays at depth 1, not points at depth z: they are known also where the pixel's own depth is not.
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


def normal_scores(prediction: FloatArray, reference: FloatArray, camera: CameraModel, mask: BoolArray) -> NormalScores:
    """Mean and median angle in degrees between the normals of two depth maps.

    Both are computed by `normals`. The scored pixels are those of `mask` at which both normals exist. The angle is
    atan2(|a x b|, a . b), because the arc cosine of the dot product is inaccurate below 1e-6 degrees, and rounding may
    move its argument out of its domain.
    """
    prediction, reference = _check_maps(prediction, reference)
    mask = as_mask(mask, "mask", reference.shape)
    predicted, true = normals(prediction, camera), normals(reference, camera)
    both = mask & np.isfinite(predicted[..., 0]) & np.isfinite(true[..., 0])
    support = int(np.count_nonzero(both))
    if not support:
        return NormalScores()
    a, b = predicted[both].T, true[both].T
    sine = np.sqrt(
        (a[1] * b[2] - a[2] * b[1]) ** 2 + (a[2] * b[0] - a[0] * b[2]) ** 2 + (a[0] * b[1] - a[1] * b[0]) ** 2
    )
    angle = np.degrees(np.arctan2(sine, a[0] * b[0] + a[1] * b[1] + a[2] * b[2]))
    return NormalScores(float(np.mean(angle)), float(np.median(angle)), support)


def _check_maps(prediction: FloatArray, reference: FloatArray) -> tuple[FloatArray, FloatArray]:
    prediction, reference = as_map(prediction, "prediction"), as_map(reference, "reference")
    if prediction.shape != reference.shape:
        raise InputError(f"{param('prediction')} must have the shape {reference.shape}, got {prediction.shape}.")
    return prediction, reference


def _positive(depth: FloatArray) -> NDArray[np.float64]:
    """Depth in float64 with every invalid pixel as NaN."""
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float64)
