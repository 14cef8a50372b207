"""The depth map of one view carried into another: depth, and where each pixel's surface point lies in the first view.

A z-buffer of the first view's points gives the nearest surface in each pixel of the second view, but a point
rarely falls on the centre of a pixel, and a surface that comes closer has gaps between its points. The depth on the ray
through each pixel's centre is therefore found by a fixed-point iteration that starts from the z-buffer: the point at
the current depth is projected into the first view, and the depth is multiplied by the ratio of the depth that the first
view has there to the point's own. Where the two do not agree after some steps, the surface is hidden in one of the
views, or lies on a depth edge, and nothing is carried.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from leadline.base.arrays import Float32Array, FloatArray, as_map
from leadline.base.errors import InputError, param
from leadline.base.jit import inlined, parallel_loop
from leadline.geometry.cameras import Camera, CameraModel, ColmapCamera
from leadline.geometry.poses import Transform, as_transform, invert_transform, transform_points
from leadline.geometry.projection import z_buffer

STEPS = 3
"""Steps of the fixed-point iteration. Each multiplies the error by the parallax per pixel times the relative slope of
the surface, which is a few hundredths between frames of a video."""
MAX_MISMATCH = 0.01
"""Largest relative difference between the depth of a carried point and that of the first view where it projects to."""
SETTLED = 1e-3
"""Relative change of the depth after which the iteration ends early; the next change would be far smaller."""
EDGE_RATIO = 1.05
"""Pixels whose depths differ by more than this factor are not interpolated between: the nearest one is used."""
BORDER = 1e-3
"""Pixels beyond the outermost pixel centres at which a map can still be sampled, for rounding errors."""


@dataclass(frozen=True, eq=False)
class CarriedDepth:
    """The depth of a first view in a second view. All maps have the size of the second view and are NaN where nothing
    was carried.

    Attributes
    ----------
    depth : (H, W) float32
        Metres along the optical axis of the second view.
    rows, columns : (H, W) float32
        Where the surface point of each pixel lies in the first view.
    """

    depth: Float32Array
    rows: Float32Array
    columns: Float32Array

    def sample(self, values: FloatArray) -> Float32Array:
        """Another map of the first view, such as its standard deviation, at the same surface points."""
        return sample_map(values, self.rows, self.columns)


def carry_depth(depth: FloatArray, source: CameraModel, target: CameraModel, transform: Transform) -> CarriedDepth:
    """The depth that the surface seen by `source` has in `target`, where both views see it.

    Parameters
    ----------
    depth : (H, W) array
        Metres along the optical axis of `source`; NaN, inf and values <= 0 are not carried.
    source, target : CameraModel
        Cameras that can project.
    transform : (4, 4) array
        Rigid, from the frame of `source` to the frame of `target`.

    Examples
    --------
    >>> camera = Camera(4, 3, 4.0, 4.0, 1.5, 1.0)
    >>> forward = np.eye(4)
    >>> forward[2, 3] = -0.5  # the target is half a metre in front of the source
    >>> carry_depth(np.full((3, 4), 2.0), camera, camera, forward).depth[1]
    array([1.5, 1.5, 1.5, 1.5], dtype=float32)
    """
    depth = np.ascontiguousarray(as_map(depth, "depth"), np.float32)
    if depth.shape != (source.height, source.width):
        raise InputError(
            f"{param('depth')} must have the size of its camera, {source.width} x {source.height}, got "
            f"{depth.shape[1]} x {depth.shape[0]} instead."
        )
    transform = as_transform(transform)
    points = np.empty((depth.size, 3), np.float32)
    _back_project[len(depth)](depth, _rays(source), points)
    nearest = z_buffer(points, transform, target)
    carried, rows, columns = (np.empty_like(nearest) for _ in range(3))
    back, rays, lens = invert_transform(transform), _rays(target), perspective_lens(source)
    _fill_gaps[len(nearest)](nearest, carried)
    if lens is not None:
        _iterate[len(carried)](depth, carried, rays, back.astype(np.float32), lens.astype(np.float32), rows, columns)
        return CarriedDepth(carried, rows, columns)
    directions = np.dstack((rays, np.ones_like(nearest)))
    for step in range(1, STEPS + 1):
        seen = transform_points((directions * carried[..., None]).reshape(-1, 3), back)
        columns, rows = source.project(seen).astype(np.float32).T.reshape(2, *nearest.shape)
        ratio = sample_map(depth, rows, columns) / seen[:, 2].astype(np.float32).reshape(nearest.shape)
        agreeing = np.abs(ratio - 1) <= MAX_MISMATCH
        carried = np.where(agreeing | (step < STEPS), carried * ratio, np.float32(np.nan))
    rows[np.isnan(carried)] = columns[np.isnan(carried)] = np.nan
    return CarriedDepth(carried, rows, columns)


def sample_map(values: FloatArray, rows: FloatArray, columns: FloatArray) -> Float32Array:
    """`values`, (H, W), at the positions `rows` and `columns`, by bilinear interpolation; NaN outside.

    Between pixels whose values differ by more than `EDGE_RATIO`, or of which one is NaN, the nearest is used.

    Examples
    --------
    >>> sample_map(np.array([[1.0, 1.02]]), np.array([[0.0, 0.0]]), np.array([[0.5, 7.0]])).round(3)
    array([[1.01,  nan]], dtype=float32)
    """
    result = np.empty(rows.shape, np.float32)
    _sample[len(rows)](np.ascontiguousarray(values, np.float32), rows, columns, result)
    return result


def perspective_lens(camera: CameraModel) -> FloatArray | None:
    """fx, fy, cx, cy, k1, k2, p1, p2 about the centre of the first pixel; None for cameras of other models."""
    camera = (camera.pinhole() or camera) if isinstance(camera, ColmapCamera) else camera
    if isinstance(camera, Camera):
        return np.array([camera.fx, camera.fy, camera.cx, camera.cy, 0.0, 0.0, 0.0, 0.0])
    if isinstance(camera, ColmapCamera) and camera.with_two_focal_lengths().model == "OPENCV":
        return np.array(camera.with_two_focal_lengths().params) - (0, 0, 0.5, 0.5, 0, 0, 0, 0)
    return None


@lru_cache(maxsize=8)
def _rays(camera: CameraModel) -> Float32Array:
    """x/z and y/z of each pixel, (H, W, 2)."""
    return camera.points(np.ones((camera.height, camera.width)))[..., :2].astype(np.float32)


@parallel_loop()
def _back_project(i, depth, rays, points):  # type: ignore[no-untyped-def]
    width = depth.shape[1]
    for j in range(width):
        z = depth[i, j] if depth[i, j] > 0 else np.float32(np.nan)
        n = i * width + j
        points[n, 0], points[n, 1], points[n, 2] = rays[i, j, 0] * z, rays[i, j, 1] * z, z


@parallel_loop()
def _fill_gaps(i, nearest, filled):  # type: ignore[no-untyped-def]
    """`nearest`, and where it is empty the nearest of the eight neighbours; NaN if all are empty."""
    height, width = nearest.shape
    for j in range(width):
        least = nearest[i, j]
        if np.isnan(least):
            least = np.float32(np.inf)
            for k in range(max(i - 1, 0), min(i + 2, height)):
                for m in range(max(j - 1, 0), min(j + 2, width)):
                    if nearest[k, m] < least:
                        least = nearest[k, m]
            if least == np.inf:
                least = np.float32(np.nan)
        filled[i, j] = least


@inlined
def _interpolate(values, y, x):  # type: ignore[no-untyped-def]
    height, width = values.shape
    result = np.float32(np.nan)
    if -BORDER <= y <= height - 1 + BORDER and -BORDER <= x <= width - 1 + BORDER:  # False for NaN
        top, left = min(max(int(y), 0), max(height - 2, 0)), min(max(int(x), 0), max(width - 2, 0))
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        a, b, c, d = values[top, left], values[top, right], values[bottom, left], values[bottom, right]
        dy, dx = np.float32(y - top), np.float32(x - left)
        above, below = a + dx * (b - a), c + dx * (d - c)
        result = above + dy * (below - above)
        low, high = min(min(a, b), min(c, d)), max(max(a, b), max(c, d))
        if not (result == result and high <= np.float32(EDGE_RATIO) * low):
            result = values[bottom if dy >= 0.5 else top, right if dx >= 0.5 else left]
    return result


@parallel_loop()
def _sample(i, values, rows, columns, result):  # type: ignore[no-untyped-def]
    for j in range(rows.shape[1]):
        result[i, j] = _interpolate(values, rows[i, j], columns[i, j])


@parallel_loop()
def _iterate(i, depth, carried, rays, transform, lens, rows, columns):  # type: ignore[no-untyped-def]
    """The fixed-point iteration for each pixel of the second view; `transform` leads back to the first view."""
    fx, fy, cx, cy, k1, k2, p1, p2 = lens
    t00, t01, t02, t03 = transform[0]
    t10, t11, t12, t13 = transform[1]
    t20, t21, t22, t23 = transform[2]
    one, two = np.float32(1.0), np.float32(2.0)
    for j in range(carried.shape[1]):
        a, b, z = rays[i, j, 0], rays[i, j, 1], carried[i, j]
        forward, right, down = t20 * a + t21 * b + t22, t00 * a + t01 * b + t02, t10 * a + t11 * b + t12
        ratio = row = column = np.float32(np.nan)
        for _ in range(STEPS):
            far = forward * z + t23
            if not far > 0:
                ratio = np.float32(np.nan)
                break
            u, v = (right * z + t03) / far, (down * z + t13) / far
            square = u * u + v * v
            radial = one + square * (k1 + square * k2)
            column = fx * (u * radial + two * p1 * u * v + p2 * (square + two * u * u)) + cx
            row = fy * (v * radial + two * p2 * u * v + p1 * (square + two * v * v)) + cy
            ratio = _interpolate(depth, row, column) / far
            z *= ratio
            if abs(ratio - one) <= SETTLED:
                break
        if not abs(ratio - one) <= MAX_MISMATCH:
            z = row = column = np.float32(np.nan)
        carried[i, j], rows[i, j], columns[i, j] = z, row, column
