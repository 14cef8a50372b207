"""Point clouds as depth images: projected into a camera, the nearest point of each pixel kept.

A cloud has no surfaces, so between the points of a near object those of the wall behind it show. `z_buffer` keeps the
nearest point of each pixel; `see_through` finds the pixels where a farther one shows between nearer ones; `project`
does both, for a sensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import get_num_threads, prange
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map
from leadline.base.errors import InputError
from leadline.base.jit import compiled
from leadline.geometry.cameras import Camera, RayCamera
from leadline.geometry.lenses import ColmapCamera
from leadline.geometry.poses import Transform, as_transform, moved

# Where COLMAP's perspective models keep what OPENCV calls fx, fy, cx, cy, k1, k2, p1, p2; -1 is 0.
_AS_OPENCV = {
    "SIMPLE_PINHOLE": (0, 0, 1, 2, -1, -1, -1, -1),
    "PINHOLE": (0, 1, 2, 3, -1, -1, -1, -1),
    "SIMPLE_RADIAL": (0, 0, 1, 2, 3, -1, -1, -1),
    "RADIAL": (0, 0, 1, 2, 3, 4, -1, -1),
    "OPENCV": (0, 1, 2, 3, 4, 5, 6, 7),
}


# On KITTI's sweeps, windows of 1.75 times the mean spacing remove what shows through at the loss of 2 points in a
# thousand; a smaller factor finds less of it, a larger one loses more (docs/sensors.md).
SPACINGS = 1.75
SEE_THROUGH_RATIO = 1.1


@dataclass(frozen=True, eq=False)
class Projection:
    """A cloud as a sparse depth map, and what became of its points.

    Parameters
    ----------
    depth : (H, W) float32 array
        Metres along the optical axis, NaN where no point is.
    points : int
        Of the cloud, inside the limits of range.
    covered : int
        Pixels that had a point before see-through removal.
    removed : (H, W) float32 array
        Depth of the pixels that were removed as seen through, NaN elsewhere.
    radius : int
        In pixels, of the removal; 0 if there was none.
    inside : int
        Points that fell into the picture; of those in one pixel the nearest stays.
    out_of_range : (H, W) float32 array
        Depth of the nearest point of each pixel among those outside the limits of range, NaN elsewhere.
    """

    depth: NDArray[np.float32]
    points: int
    covered: int
    removed: NDArray[np.float32]
    radius: int
    inside: int
    out_of_range: NDArray[np.float32]


def project(
    points: FloatArray,
    transform: Transform,
    camera: Camera | ColmapCamera,
    *,
    min_range: float = 0.0,
    max_range: float = math.inf,
    see_through_radius: int | None = None,
    see_through_ratio: float = SEE_THROUGH_RATIO,
) -> Projection:
    """A cloud seen by a camera: nearest point of each pixel, less what shows through nearer surfaces.

    Parameters
    ----------
    points : (N, 3) array
        In any frame; a point with NaN or inf is left out.
    transform : (4, 4) array
        From that frame to the camera's, rigid.
    camera : Camera or ColmapCamera
    min_range, max_range : float
        Metres between point and camera; points outside are left out.
    see_through_radius : int, optional
        Pixels; 0 removes nothing. By default `SPACINGS` times the mean distance between the projected points.
    see_through_ratio : float
        A point hides another if it is nearer by more than this factor.

    Raises
    ------
    InputError
        If the shapes are wrong, the transform is not rigid, or a number is out of its range.
    MissingExtra
        A lens with distortion needs pycolmap.

    Examples
    --------
    >>> camera = Camera(2, 1, 1.0, 1.0, 0.0, 0.0)
    >>> project(np.array([[0.0, 0.0, 5.0], [0.0, 0.0, 3.0], [4.0, 0.0, 4.0]]), np.eye(4), camera).depth
    array([[3., 4.]], dtype=float32)
    """
    if not 0 <= min_range < max_range:
        raise InputError(f"`min_range` must be at least 0 and below `max_range`, got {min_range} and {max_range}.")
    points, transform = _as_points(points), as_transform(transform)
    others = points[:0]
    if min_range > 0 or max_range < math.inf:
        with np.errstate(invalid="ignore", over="ignore"):
            ranges = np.linalg.norm(moved(points, transform), axis=1)
            kept = (ranges >= min_range) & (ranges <= max_range)  # false for NaN
        points, others = points[kept], points[~kept]
    depth, inside = _rendered(points, transform[:3, :3], transform[:3, 3], camera)
    out_of_range = np.full_like(depth, np.nan)
    if len(others):
        out_of_range = z_buffer(others, transform[:3, :3], transform[:3, 3], camera)
    covered = int(np.isfinite(depth).sum())
    radius = default_radius(depth) if see_through_radius is None else see_through_radius
    removed = np.full_like(depth, np.nan)
    if radius:
        hidden = see_through(depth, radius, see_through_ratio)
        removed[hidden], depth[hidden] = depth[hidden], np.nan
    return Projection(depth, len(points), covered, removed, radius, inside, out_of_range)


def surroundings(
    points: FloatArray, transform: Transform, camera: Camera | ColmapCamera, margin: int
) -> NDArray[np.float32]:
    """What lies around the picture: depth on a grid with `margin` more pixels on each side, NaN inside the picture.

    A lens with distortion is known for its own picture only; around it there is nothing.
    """
    if not isinstance(camera, Camera):
        return np.full((camera.height + 2 * margin, camera.width + 2 * margin), np.nan, np.float32)
    wider = Camera(
        camera.width + 2 * margin,
        camera.height + 2 * margin,
        camera.fx,
        camera.fy,
        camera.cx + margin,
        camera.cy + margin,
    )
    depth = z_buffer(points, transform[:3, :3], transform[:3, 3], wider)
    depth[margin : margin + camera.height, margin : margin + camera.width] = np.nan
    return depth


def default_radius(depth: FloatArray) -> int:
    """Pixels that bridge the gaps between points: `SPACINGS` mean distances, from the box that the points fill."""
    rows, columns = np.nonzero(np.isfinite(depth) & (depth > 0))
    if not len(rows):
        return 1
    return math.ceil(SPACINGS * math.sqrt((np.ptp(rows) + 1) * (np.ptp(columns) + 1) / len(rows)))


def z_buffer(
    points: FloatArray,
    rotation: NDArray[np.float64],
    translation: NDArray[np.float64],
    camera: Camera | ColmapCamera,
    rays: RayCamera | None = None,
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
    camera : Camera or ColmapCamera
        Perspective models (SIMPLE_PINHOLE to OPENCV) are projected by a kernel of this package, others by pycolmap.
    rays : RayCamera, optional
        The rays of a ColmapCamera at the size that the depth image is to have: ``camera.rays(size)``, made here
        for its own size if they are not given.

    Raises
    ------
    InputError
        If the camera has no rays, or `points` is no (N, 3) array.
    MissingExtra
        A lens with distortion needs pycolmap.
    """
    return _rendered(points, rotation, translation, camera, rays)[0]


def _rendered(
    points: FloatArray,
    rotation: NDArray[np.float64],
    translation: NDArray[np.float64],
    camera: Camera | ColmapCamera,
    rays: RayCamera | None = None,
) -> tuple[NDArray[np.float32], int]:
    """The nearest depths of `z_buffer`, and how many points fell into the picture."""
    points = _as_points(points)
    rotation, translation = np.ascontiguousarray(rotation, np.float64), np.ascontiguousarray(translation, np.float64)
    if isinstance(camera, Camera):
        lens = np.array([camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5, 0.0, 0.0, 0.0, 0.0])
        everywhere = np.array([[-np.inf, -np.inf], [np.inf, np.inf]])
        return _nearest(points, rotation, translation, lens, everywhere, (camera.height, camera.width))
    rays = camera.rays() if rays is None else rays
    if not np.isfinite(rays.rays).any():
        raise InputError(f"`camera` has no ray for any of its pixels: {camera}.")
    low, high = np.nanmin(rays.rays, axis=(0, 1)), np.nanmax(rays.rays, axis=(0, 1))
    # The picture ends half a pixel beyond the outermost centres; two are enough even where distortion is strong.
    wider = 2 * (high - low) / (rays.width, rays.height)
    box = np.stack((low - wider, high + wider)).astype(np.float64)
    shape = (rays.height, rays.width)
    if camera.model in _AS_OPENCV:
        lens = np.array([camera.params[place] if place >= 0 else 0.0 for place in _AS_OPENCV[camera.model]])
        lens[:4] *= (rays.width / camera.width, rays.height / camera.height) * 2
        nearest, inside = _nearest(points, rotation, translation, lens, box, shape)
    else:
        nearest, inside = _nearest_of_lens(points, rotation, translation, camera, box, shape)
    nearest[np.isnan(rays.rays[..., 0])] = np.nan
    return nearest, inside


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


def _as_points(points: FloatArray) -> FloatArray:
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] != 3 or points.dtype not in (np.float32, np.float64):
        raise InputError(f"`points` must be an (N, 3) array of floats, got {points.dtype} {points.shape} instead.")
    return points


def _nearest(
    points: FloatArray,
    rotation: NDArray[np.float64],
    translation: NDArray[np.float64],
    lens: NDArray[np.float64],
    box: NDArray[np.float64],
    shape: tuple[int, int],
) -> tuple[NDArray[np.float32], int]:
    buffers = np.full((get_num_threads(), *shape), np.inf, dtype=np.float32)
    inside = np.zeros(len(buffers), dtype=np.int64)
    _project(points, rotation, translation, lens, box, buffers, inside)
    nearest: NDArray[np.float32] = buffers.min(axis=0)
    nearest[np.isinf(nearest)] = np.nan
    return nearest, int(inside.sum())


def _nearest_of_lens(
    points: FloatArray,
    rotation: NDArray[np.float64],
    translation: NDArray[np.float64],
    camera: ColmapCamera,
    box: NDArray[np.float64],
    shape: tuple[int, int],
) -> tuple[NDArray[np.float32], int]:
    """The same for lenses that pycolmap projects."""
    nearest, count = np.full(shape, np.inf, dtype=np.float32), 0
    block = 1 << 20  # points at a time: a laser scan in float64 would not fit beside itself
    for start in range(0, len(points), block):
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            seen = points[start : start + block] @ rotation.T + translation
            flat = seen[:, :2] / seen[:, 2:]
            kept = (seen[:, 2] > 0) & ((flat >= box[0]) & (flat <= box[1])).all(axis=1)
        seen = seen[kept]
        if not len(seen):
            continue
        places = np.floor(camera.places(seen, (shape[1], shape[0])))
        with np.errstate(invalid="ignore"):
            inside = ((places >= 0) & (places < (shape[1], shape[0]))).all(axis=1)  # false for NaN as well
        columns, rows = places[inside].astype(np.intp).T
        np.minimum.at(nearest, (rows, columns), seen[inside, 2].astype(np.float32))
        count += len(rows)
    nearest[np.isinf(nearest)] = np.nan
    return nearest, count


def _empty_as_infinite(depth: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(depth) & (depth > 0), depth, depth.dtype.type(np.inf))


@compiled(parallel=True)
def _project(points: Any, rotation: Any, translation: Any, lens: Any, box: Any, buffers: Any, inside: Any) -> None:
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
                inside[part] += 1
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
