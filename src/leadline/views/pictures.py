"""Pictures of views as a pinhole camera would see them, grey and of limited size, for the matching of their patches.

Between pinhole cameras a plane maps by a homography, whatever the lens of the view is. Where the lens bends too much
for a pinhole the picture is cut; there is nothing to match beyond it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, Float64Array, FloatArray
from leadline.geometry.cameras import Camera, CameraModel, ColmapCamera

MAX_PIXELS = 400_000
"""Larger pictures are reduced: the cost of matching is that of its pixels, and completed depth has no more detail."""
UNSEEN = 0  # grey value of a pixel that the lens does not see; what it sees is at least 1


def pinhole_camera(camera: CameraModel) -> Camera:
    """The pinhole camera with the focal length and centre of a lens, of at most `MAX_PIXELS` pixels."""
    if isinstance(camera, ColmapCamera):
        fx, fy, cx, cy, *_ = camera.with_two_focal_lengths().params
        camera = Camera(camera.width, camera.height, fx, fy, cx - 0.5, cy - 0.5)
    assert isinstance(camera, Camera)
    ratio = math.sqrt(MAX_PIXELS / (camera.width * camera.height))
    if ratio >= 1:
        return camera
    return camera.scaled(max(1, round(ratio * camera.width)), max(1, round(ratio * camera.height)))


def straighten(grey: FloatArray, camera: CameraModel) -> NDArray[np.uint8]:
    """A grey picture with values from 0 to 255 in the pinhole camera."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    pinhole = pinhole_camera(camera)
    reduction = camera.width / pinhole.width
    if reduction > 1:  # without a filter the noise of single pixels would become texture
        grey = gaussian_filter(grey, 0.5 * math.sqrt(reduction**2 - 1))
    values = map_coordinates(grey, _positions(camera), order=1, mode="nearest")
    seen = _inside(camera)
    return np.where(seen, np.clip(np.rint(values), UNSEEN + 1, 255), UNSEEN).astype(np.uint8)


def straighten_depth(depth: FloatArray, camera: CameraModel) -> Float64Array:
    """A depth map of the view in the pinhole camera; NaN where it is unknown."""
    from scipy.ndimage import map_coordinates

    rows, columns = np.rint(_positions(camera))
    values: Float64Array = map_coordinates(depth.astype(np.float64), (rows, columns), order=0, mode="nearest")
    return np.where(_inside(camera), values, np.nan)


def _inside(camera: CameraModel) -> BoolArray:
    rows, columns = _positions(camera)
    inside: BoolArray = (rows >= 0) & (rows <= camera.height - 1) & (columns >= 0) & (columns <= camera.width - 1)
    return inside


@lru_cache(maxsize=2)  # the views of one camera usually follow each other
def _positions(camera: CameraModel) -> Float64Array:
    """Row and column in the picture of each pixel of the pinhole camera, (2, H, W); -1 where the lens sees nothing."""
    pinhole = pinhole_camera(camera)
    shape = (pinhole.height, pinhole.width)
    columns, rows = camera.project(pinhole.points(np.ones(shape)).reshape(-1, 3)).T
    found = np.stack((rows, columns)).reshape(2, *shape)
    return np.where(np.isfinite(found), found, -1.0)
