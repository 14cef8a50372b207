"""Point clouds as depth images: projected into a distorted camera, the nearest point of each pixel kept.

A cloud has no surfaces, so between the points of a near object those of the wall behind it show. `z_buffer` keeps the
nearest point of each pixel; `see_through` finds the pixels where a farther one shows between nearer ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_num_threads, prange
from numpy.typing import NDArray

from leadline.core.jit import compiled
from leadline.core.types import BoolArray, FloatArray, InputError, RayCamera, as_map
from leadline.datasets.colmap import ColmapCamera

# Where COLMAP's perspective models keep what OPENCV calls fx, fy, cx, cy, k1, k2, p1, p2; -1 is 0.
_AS_OPENCV = {
    "SIMPLE_PINHOLE": (0, 0, 1, 2, -1, -1, -1, -1),
    "PINHOLE": (0, 1, 2, 3, -1, -1, -1, -1),
    "SIMPLE_RADIAL": (0, 0, 1, 2, 3, -1, -1, -1),
    "RADIAL": (0, 0, 1, 2, 3, 4, -1, -1),
    "OPENCV": (0, 1, 2, 3, 4, 5, 6, 7),
}


def z_buffer(
    points: FloatArray,
    rotation: NDArray[np.float64],
    translation: NDArray[np.float64],
    camera: ColmapCamera,
    rays: RayCamera,
) -> NDArray[np.float32]:
    """Depth of the nearest point in each pixel, (H, W) float32 along the optical axis, NaN where there is none.

    A point belongs to the pixel whose area it falls into. Far outside the picture a lens polynomial turns back and
    would fold points into it, so points outside the box of the picture's own rays are left out first. Each thread
    fills a buffer of its own and the minimum of all is exact, so the number of threads changes nothing.

    Parameters
    ----------
    points : (N, 3) array
        World coordinates; a point with NaN or inf is left out.
    rotation, translation : (3, 3) and (3,) arrays
        x_camera = rotation @ x_world + translation, in the unit that the depth is to have.
    camera : ColmapCamera
        Of a perspective model: one of SIMPLE_PINHOLE, PINHOLE, SIMPLE_RADIAL, RADIAL and OPENCV.
    rays : RayCamera
        Its rays at the size that the depth image is to have: ``camera.rays(size)``.

    Raises
    ------
    InputError
        If the camera is of another model or has no rays, or `points` is no (N, 3) array.
    """
    if camera.model not in _AS_OPENCV:
        raise InputError(
            f"`camera` must be of a model {', '.join(_AS_OPENCV)} to be projected into, got {camera.model} instead."
        )
    if points.ndim != 2 or points.shape[1] != 3 or points.dtype not in (np.float32, np.float64):
        raise InputError(f"`points` must be an (N, 3) array of floats, got {points.dtype} {points.shape} instead.")
    if not np.isfinite(rays.rays).any():
        raise InputError(f"`camera` has no ray for any of its pixels: {camera}.")
    lens = np.array([camera.params[place] if place >= 0 else 0.0 for place in _AS_OPENCV[camera.model]])
    lens[:4] *= (rays.width / camera.width, rays.height / camera.height) * 2
    low, high = np.nanmin(rays.rays, axis=(0, 1)), np.nanmax(rays.rays, axis=(0, 1))
    # The picture ends half a pixel beyond the outermost centres; two are enough even where distortion is strong.
    wider = 2 * (high - low) / (rays.width, rays.height)
    box = np.stack((low - wider, high + wider)).astype(np.float64)
    buffers = np.full((get_num_threads(), rays.height, rays.width), np.inf, dtype=np.float32)
    _project(points, np.ascontiguousarray(rotation), np.ascontiguousarray(translation), lens, box, buffers)
    nearest: NDArray[np.float32] = buffers.min(axis=0)
    nearest[np.isinf(nearest) | np.isnan(rays.rays[..., 0])] = np.nan
    return nearest


def see_through(depth: FloatArray, radius: int, ratio: float) -> BoolArray:
    """Where a farther surface shows through a nearer one, (H, W) bool.

    The window of side 2 `radius` + 1 around a pixel is cut into its four quadrants, each with the two half axes that
    bound it. A pixel is see-through if each quadrant has a pixel that is nearer by more than the factor `ratio`: then
    nearer points lie around it on all sides. Beside a silhouette, straight or with a right-angled corner, at least
    one quadrant holds background alone, so that the background keeps its pixels up to the edge. On a plane, however
    steep, no pixel is marked: one of the quadrants only holds pixels that are as far or farther. What is lost are
    true openings narrower than `radius`.

    Parameters
    ----------
    depth : (H, W) array
        NaN, inf and values <= 0 are empty and neither hide nor are hidden.
    radius : int
        In pixels, at least 1; it bridges gaps between near points of up to this size.
    ratio : float
        Above 1.

    Raises
    ------
    InputError
        If `radius` or `ratio` is too small.
    """
    if radius < 1 or not ratio > 1:
        raise InputError(f"`radius` must be at least 1 and `ratio` above 1, got {radius} and {ratio} instead.")
    depth = as_map(depth, "depth")
    hidden = np.zeros(depth.shape, dtype=np.bool_)
    _mark_see_through(_empty_as_infinite(depth), radius, ratio, hidden)
    return hidden


def min_pool(depth: FloatArray, radius: int) -> FloatArray:
    """Least depth in the square window of side 2 `radius` + 1 around each pixel; NaN where it is empty.

    Raises
    ------
    InputError
        If `radius` is negative.
    """
    if radius < 0:
        raise InputError(f"`radius` must be at least 0, got {radius} instead.")
    rows = _empty_as_infinite(as_map(depth, "depth"))
    # Two passes along the columns; the second one on the transpose, and back.
    for _ in range(2):
        pooled = np.empty_like(rows)
        _pool_down(rows, radius, pooled)
        rows = np.ascontiguousarray(pooled.T)
    rows[np.isinf(rows)] = np.nan
    return rows


def _empty_as_infinite(depth: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(depth) & (depth > 0), depth, depth.dtype.type(np.inf))


@compiled(parallel=True)
def _project(points: Any, rotation: Any, translation: Any, lens: Any, box: Any, buffers: Any) -> None:
    parts, height, width = buffers.shape
    fx, fy, cx, cy, k1, k2, p1, p2 = lens
    for part in prange(parts):
        for n in range(part * len(points) // parts, (part + 1) * len(points) // parts):
            x, y, z = np.float64(points[n, 0]), np.float64(points[n, 1]), np.float64(points[n, 2])
            depth = rotation[2, 0] * x + rotation[2, 1] * y + rotation[2, 2] * z + translation[2]
            if not depth > 0:
                continue
            u = (rotation[0, 0] * x + rotation[0, 1] * y + rotation[0, 2] * z + translation[0]) / depth
            v = (rotation[1, 0] * x + rotation[1, 1] * y + rotation[1, 2] * z + translation[1]) / depth
            if not (box[0, 0] <= u <= box[1, 0] and box[0, 1] <= v <= box[1, 1]):
                continue
            square = u * u + v * v
            radial = 1 + square * (k1 + square * k2)
            # COLMAP's pixel areas begin at whole numbers, so the pixel of a place is its floor.
            column = np.floor(fx * (u * radial + 2 * p1 * u * v + p2 * (square + 2 * u * u)) + cx)
            row = np.floor(fy * (v * radial + 2 * p2 * u * v + p1 * (square + 2 * v * v)) + cy)
            if 0 <= column < width and 0 <= row < height:
                i, j = int(row), int(column)
                if depth < buffers[part, i, j]:
                    buffers[part, i, j] = depth


@compiled(parallel=True)
def _mark_see_through(depth: Any, radius: int, ratio: float, hidden: Any) -> None:
    height, width = depth.shape
    for i in prange(height):
        top, bottom = max(i - radius, 0), min(i + radius, height - 1)
        for j in range(width):
            if not depth[i, j] < np.inf:
                continue
            left, right = max(j - radius, 0), min(j + radius, width - 1)
            bound = depth[i, j] / ratio
            hidden[i, j] = (
                _any_below(depth, top, i, left, j, bound)
                and _any_below(depth, top, i, j, right, bound)
                and _any_below(depth, i, bottom, left, j, bound)
                and _any_below(depth, i, bottom, j, right, bound)
            )


@compiled()
def _any_below(depth: Any, top: int, bottom: int, left: int, right: int, bound: float) -> bool:
    for i in range(top, bottom + 1):
        for j in range(left, right + 1):
            if depth[i, j] < bound:
                return True
    return False


@compiled(parallel=True)
def _pool_down(depth: Any, radius: int, pooled: Any) -> None:
    height, width = depth.shape
    for i in prange(height):
        pooled[i] = depth[i]
        for k in range(max(i - radius, 0), min(i + radius, height - 1) + 1):
            for j in range(width):
                pooled[i, j] = min(pooled[i, j], depth[k, j])
