"""Point clouds as sparse depth maps: projection into a camera, keeping the nearest point of each pixel.

A cloud has no surfaces, so a far wall is visible between the points of a near object. `z_buffer` keeps the nearest
point of each pixel; `see_through` finds the pixels where a farther surface shows between nearer points; `project` does
both for the cloud of a sensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray
from scipy import ndimage

from leadline.base.arrays import BoolArray, FloatArray, as_map, is_measured
from leadline.base.errors import InputError, param
from leadline.base.jit import called_by_kernels, parallel_loop
from leadline.geometry.cameras import Camera, CameraModel, ColmapCamera
from leadline.geometry.poses import Transform, as_transform, transform_points

_BLOCK = 1 << 20  # points that pycolmap projects at a time, to bound the float64 copies of a laser scan

# On KITTI's sweeps, windows of 1.75 times the mean spacing remove the see-through points at the loss of 2 points in a
# thousand; a smaller factor finds fewer of them, a larger one loses more (docs/sensors.md).
WINDOW_SPACINGS = 1.75
SEE_THROUGH_RATIO = 1.1


@dataclass(frozen=True, eq=False)
class Projection:
    """A cloud as a sparse depth map, and counts of its points. The maps are NaN where no point is."""

    depth: NDArray[np.float32]  # (H, W), metres along the optical axis
    in_range: int  # number of points inside the range limits
    in_image: int  # number of these that fall into the image; the nearest one of each pixel is kept
    covered: int  # number of pixels with a point before see-through removal
    removed: NDArray[np.float32]  # depth of the pixels that see-through removal emptied
    see_through_radius: int  # of the see-through test, in pixels; 0 if it was not applied
    out_of_range: NDArray[np.float32]  # depth of the nearest point of each pixel among those outside the range limits


def project(
    points: FloatArray,
    transform: Transform,
    camera: CameraModel,
    *,
    min_range: float = 0.0,
    max_range: float = math.inf,
    see_through_radius: int | None = None,
    see_through_ratio: float = SEE_THROUGH_RATIO,
) -> Projection:
    """Project a cloud into a camera: the nearest point of each pixel, without see-through points.

    Parameters
    ----------
    points, transform, camera
        As for `z_buffer`; the transform must be rigid.
    min_range, max_range : float
        Metres between point and camera; points outside are left out.
    see_through_radius : int, optional
        Pixels; 0 removes nothing. Default: `WINDOW_SPACINGS` times the mean distance between the projected points.
    see_through_ratio : float
        A point occludes another if it is nearer by more than this factor.

    Examples
    --------
    >>> camera = Camera(2, 1, 1.0, 1.0, 0.0, 0.0)
    >>> project(np.array([[0.0, 0.0, 5.0], [0.0, 0.0, 3.0], [4.0, 0.0, 4.0]]), np.eye(4), camera).depth
    array([[3., 4.]], dtype=float32)
    """
    if not 0 <= min_range < max_range:
        raise InputError(
            f"{param('min_range')} must be at least 0 and below {param('max_range')}, got {min_range} and {max_range}."
        )
    points, transform = _check_points(points), as_transform(transform)
    outside = points[:0]
    if min_range > 0 or max_range < math.inf:
        with np.errstate(invalid="ignore", over="ignore"):
            ranges = np.linalg.norm(transform_points(points, transform), axis=1)
            in_range = (ranges >= min_range) & (ranges <= max_range)  # false for NaN
        points, outside = points[in_range], points[~in_range]
    depth, in_image = _render(points, transform, camera)
    out_of_range = z_buffer(outside, transform, camera) if len(outside) else np.full_like(depth, np.nan)
    covered = int(np.isfinite(depth).sum())
    radius = default_see_through_radius(depth) if see_through_radius is None else see_through_radius
    radius = min(radius, max(depth.shape))  # a larger one has the same effect
    removed = np.full_like(depth, np.nan)
    if radius:
        hidden = see_through(depth, radius, see_through_ratio)
        removed[hidden], depth[hidden] = depth[hidden], np.nan
    return Projection(depth, len(points), in_image, covered, removed, radius, out_of_range)


def project_around_image(
    points: FloatArray, transform: Transform, camera: CameraModel, margin: int
) -> NDArray[np.float32]:
    """Depth of the points around the image, on a grid with `margin` more pixels on each side; NaN inside the image.

    A lens with distortion is calibrated for its own image only; for it the result is empty.
    """
    if not isinstance(camera, Camera):
        return np.full((camera.height + 2 * margin, camera.width + 2 * margin), np.nan, np.float32)
    size = (camera.width + 2 * margin, camera.height + 2 * margin)
    depth = z_buffer(points, transform, Camera(*size, camera.fx, camera.fy, camera.cx + margin, camera.cy + margin))
    depth[margin : margin + camera.height, margin : margin + camera.width] = np.nan
    return depth


def default_see_through_radius(depth: FloatArray) -> int:
    """Pixels that bridge the gaps between points: `WINDOW_SPACINGS` mean spacings in the bounding box of the points."""
    rows, columns = np.nonzero(is_measured(depth))
    if not len(rows):
        return 1
    return math.ceil(WINDOW_SPACINGS * math.sqrt((np.ptp(rows) + 1) * (np.ptp(columns) + 1) / len(rows)))


def z_buffer(points: FloatArray, transform: Transform, camera: CameraModel) -> NDArray[np.float32]:
    """Depth of the nearest point in each pixel, (H, W) float32 along the optical axis, NaN where there is none.

    A point belongs to the pixel whose area it falls into. Far outside the image a lens polynomial folds back and would
    map points into it, so points outside the bounding box of the image's own rays are left out first. Each thread fills
    a buffer of its own and the minimum of all is exact, so the result does not depend on the number of threads.

    Parameters
    ----------
    points : (N, 3) array
        In any frame; points with NaN or inf are left out.
    transform : (4, 4) array
        From that frame to the camera's, in the unit that the depth should have.
    camera : CameraModel
        A camera that can project. Pinhole and perspective models (SIMPLE_RADIAL to OPENCV) are projected by a compiled
        kernel, others by the camera itself.
    """
    return _render(points, transform, camera)[0]


def _render(points: FloatArray, transform: Transform, camera: CameraModel) -> tuple[NDArray[np.float32], int]:
    """The depth map of `z_buffer`, and how many points fall into the image."""
    points = _check_points(points)
    transform = np.ascontiguousarray(transform, np.float64)
    shape = (camera.height, camera.width)
    camera = (camera.pinhole() or camera) if isinstance(camera, ColmapCamera) else camera
    if isinstance(camera, Camera):
        lens = np.array([camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5, 0.0, 0.0, 0.0, 0.0])
        everywhere = np.array([[-np.inf, -np.inf], [np.inf, np.inf]])
        return _render_perspective(points, transform, lens, everywhere, shape)
    rays = camera.rays().rays if isinstance(camera, ColmapCamera) else camera.points(np.ones(shape))[..., :2]
    if not np.isfinite(rays).any():
        raise InputError(f"{param('camera')} has no ray for any of its pixels: {camera}.")
    low, high = np.nanmin(rays, axis=(0, 1)), np.nanmax(rays, axis=(0, 1))
    # The image ends half a pixel beyond the outermost centres; two pixels suffice even where distortion is strong.
    margin = 2 * (high - low) / (camera.width, camera.height)
    box = np.stack((low - margin, high + margin)).astype(np.float64)
    if isinstance(camera, ColmapCamera) and camera.with_two_focal_lengths().model == "OPENCV":
        lens = np.array(camera.with_two_focal_lengths().params)  # fx, fy, cx, cy, k1, k2, p1, p2
        nearest, in_image = _render_perspective(points, transform, lens, box, shape)
    else:
        nearest, in_image = _render_by_camera(points, transform, camera, box)
    nearest[np.isnan(rays[..., 0])] = np.nan
    return nearest, in_image


def see_through(depth: FloatArray, radius: int, ratio: float) -> BoolArray:
    """Where a farther surface shows through a nearer one, (H, W) bool.

    The window of side 2 `radius` + 1 around a pixel is divided into its four quadrants, each with the two half axes
    that bound it. A pixel is see-through if each quadrant has a pixel that is nearer by more than the factor `ratio`:
    then nearer points lie around it on all sides. Beside a silhouette, straight or with a right-angled corner, at least
    one quadrant holds only background, so the background keeps its pixels up to the edge. On a plane, however steep, no
    pixel is marked: one of the quadrants only holds pixels that are as far or farther. True openings narrower than
    `radius` are lost.

    NaN, inf and values <= 0 neither occlude nor are occluded. The kernel visits measured pixels only, which for a sweep
    makes it several times faster than minimum filters over the whole image.
    """
    if radius < 1 or not ratio > 1:
        raise InputError(
            f"{param('radius')} must be at least 1 and {param('ratio')} above 1, got {radius} and {ratio} instead."
        )
    depth = as_map(depth, "depth")
    hidden = np.zeros(depth.shape, dtype=np.bool_)
    _mark_see_through[len(depth)](_replace_empty(depth), radius, ratio, hidden)
    return hidden


def min_pool(depth: FloatArray, radius: int) -> FloatArray:
    """Smallest depth in the square window of side 2 `radius` + 1 around each pixel; NaN where the window is empty."""
    if radius < 0:
        raise InputError(f"{param('radius')} must be at least 0, got {radius} instead.")
    pooled = ndimage.minimum_filter(
        _replace_empty(as_map(depth, "depth")), size=2 * radius + 1, mode="constant", cval=np.inf
    )
    return np.where(np.isinf(pooled), depth.dtype.type(np.nan), pooled)


def _check_points(points: FloatArray) -> FloatArray:
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] != 3 or points.dtype not in (np.float32, np.float64):
        raise InputError(f"{param('points')} must be an (N, 3) array of floats, got {points.dtype} {points.shape}.")
    return points


def _render_perspective(
    points: FloatArray, transform: Transform, lens: FloatArray, box: FloatArray, shape: tuple[int, int]
) -> tuple[NDArray[np.float32], int]:
    buffers = np.full((get_num_threads(), *shape), np.inf, dtype=np.float32)
    in_image = np.zeros(len(buffers), dtype=np.int64)
    _project[len(buffers)](points, transform, lens, box, buffers, in_image)
    nearest: NDArray[np.float32] = buffers.min(axis=0)
    nearest[np.isinf(nearest)] = np.nan
    return nearest, int(in_image.sum())


def _render_by_camera(
    points: FloatArray, transform: Transform, camera: CameraModel, box: NDArray[np.float64]
) -> tuple[NDArray[np.float32], int]:
    size = (camera.width, camera.height)
    nearest, count = np.full(size[::-1], np.inf, dtype=np.float32), 0
    for start in range(0, len(points), _BLOCK):
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            seen = transform_points(points[start : start + _BLOCK], transform)
            directions = seen[:, :2] / seen[:, 2:]
            candidates = (seen[:, 2] > 0) & ((directions >= box[0]) & (directions <= box[1])).all(axis=1)
        seen = seen[candidates]
        pixels = np.floor(camera.project(seen) + 0.5)
        with np.errstate(invalid="ignore"):
            inside = ((pixels >= 0) & (pixels < size)).all(axis=1)  # false for NaN as well
        columns, rows = pixels[inside].astype(np.intp).T
        np.minimum.at(nearest, (rows, columns), seen[inside, 2].astype(np.float32))
        count += len(rows)
    nearest[np.isinf(nearest)] = np.nan
    return nearest, count


def _replace_empty(depth: FloatArray) -> FloatArray:
    """`depth` with infinity where nothing is measured."""
    return np.where(is_measured(depth), depth, depth.dtype.type(np.inf))


@parallel_loop()
def _project(part: int, points: Any, transform: Any, lens: Any, box: Any, buffers: Any, in_image: Any) -> None:
    parts, height, width = buffers.shape
    fx, fy, cx, cy, k1, k2, p1, p2 = lens
    for n in range(part * len(points) // parts, (part + 1) * len(points) // parts):
        x, y, z = np.float64(points[n, 0]), np.float64(points[n, 1]), np.float64(points[n, 2])
        depth = transform[2, 0] * x + transform[2, 1] * y + transform[2, 2] * z + transform[2, 3]
        if not depth > 0:
            continue
        u = (transform[0, 0] * x + transform[0, 1] * y + transform[0, 2] * z + transform[0, 3]) / depth
        v = (transform[1, 0] * x + transform[1, 1] * y + transform[1, 2] * z + transform[1, 3]) / depth
        if not (box[0, 0] <= u <= box[1, 0] and box[0, 1] <= v <= box[1, 1]):
            continue
        square = u * u + v * v
        radial = 1 + square * (k1 + square * k2)
        # In COLMAP's convention pixel areas begin at integers, so the pixel of a position is its floor.
        column = np.floor(fx * (u * radial + 2 * p1 * u * v + p2 * (square + 2 * u * u)) + cx)
        row = np.floor(fy * (v * radial + 2 * p2 * u * v + p1 * (square + 2 * v * v)) + cy)
        if 0 <= column < width and 0 <= row < height:
            i, j = int(row), int(column)
            in_image[part] += 1
            if depth < buffers[part, i, j]:
                buffers[part, i, j] = depth


@parallel_loop()
def _mark_see_through(i: int, depth: Any, radius: int, ratio: float, hidden: Any) -> None:
    height, width = depth.shape
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


@called_by_kernels()
def _any_below(depth: Any, top: int, bottom: int, left: int, right: int, bound: float) -> bool:
    for i in range(top, bottom + 1):
        for j in range(left, right + 1):
            if depth[i, j] < bound:
                return True
    return False
