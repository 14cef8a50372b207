"""What the neighbours of a view say about its depth, as soft measurements.

Two kinds of evidence are carried into a view. *Points* are the measurements of the neighbours, moved into the view.
They are first-hand: they contain no error of any completion, and nothing of the view itself. *Depth* is what the
neighbours' completions say, the median over several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.base.arrays import Float32Array, Float64Array, FloatArray, IndexArray, is_measured
from leadline.geometry.cameras import CameraModel
from leadline.geometry.poses import Transform, invert_transform, transform_points
from leadline.geometry.projection import z_buffer

NEARER, FARTHER = 0.5, 0.25
"""Log depth by which carried evidence may be nearer or farther than the view's own depth. Beyond it is hidden behind a
surface of the view, or the view does not see it at all."""
POINT_NOISE = 0.01
"""Relative standard deviation that carrying adds to a measurement: poses, pixels and time."""
DEPTH_NOISE = 0.03
STRIDE = 4
MIN_VIEWS = 2


@dataclass(frozen=True, eq=False)
class Points:
    """Measurements in the world."""

    points: Float64Array  # (n, 3)
    relative: Float64Array  # (n,): standard deviation relative to the depth


@dataclass(frozen=True, eq=False)
class DepthMap:
    """A completed depth map with its camera."""

    depth: FloatArray
    camera: CameraModel
    camera_to_world: Transform


@dataclass(frozen=True, eq=False)
class Evidence:
    """Soft measurements for a view, and how far its depth is from those of its neighbours."""

    where: IndexArray  # (n,): flat indices, increasing
    depth: Float64Array  # (n,): metres
    sigma: Float64Array  # (n,): metres
    carried: Float32Array  # coarse map of the neighbours' depth, NaN where there is none


def measured_points(sparse: FloatArray, sigma: FloatArray, camera: CameraModel, camera_to_world: Transform) -> Points:
    """The measurements of a view in the world; `sigma`, (H, W), is their standard deviation in metres."""
    measured = is_measured(sparse)
    points = camera.points(np.where(measured, sparse, np.nan))[measured]
    there = np.isfinite(points).all(axis=1)
    relative = (sigma[measured] / sparse[measured]).astype(np.float64)
    return Points(transform_points(points[there], camera_to_world), relative[there])


def collect(own: DepthMap, points: Sequence[Points], maps: Sequence[DepthMap]) -> Evidence:
    """The evidence of the neighbours for a view whose last depth is `own`."""
    shape = own.depth.shape
    world_to_camera = invert_transform(own.camera_to_world)
    where, depth, sigma = _carry_points(own, points, world_to_camera)
    carried = np.full(shape, np.nan, np.float32)
    if maps:
        carried, spread = _carry_depth(own, maps, world_to_camera)
        dense = np.flatnonzero(is_measured(carried))
        taken = np.zeros(shape, np.bool_)
        taken.flat[where] = True
        free = dense[~taken.flat[dense]]
        near = _visible(carried.flat[free], own.depth.flat[free])
        free = free[near]
        where = np.concatenate((where, free))
        depth = np.concatenate((depth, carried.flat[free]))
        noise = np.hypot(DEPTH_NOISE, spread.flat[free]) * carried.flat[free]
        sigma = np.concatenate((sigma, noise))
    order = np.argsort(where, kind="stable")
    return Evidence(where[order], depth[order], sigma[order], carried)


def _visible(depth: FloatArray, own: FloatArray) -> np.ndarray:  # type: ignore[type-arg]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(depth / own)
        return (ratio > -NEARER) & (ratio < FARTHER)


def _carry_points(
    own: DepthMap, points: Sequence[Points], world_to_camera: Transform
) -> tuple[IndexArray, Float64Array, Float64Array]:
    height, width = own.depth.shape
    if not points:
        return np.empty(0, np.intp), np.empty(0), np.empty(0)
    seen = transform_points(np.concatenate([part.points for part in points]), world_to_camera)
    relative = np.concatenate([part.relative for part in points])
    with np.errstate(invalid="ignore"):
        columns, rows = np.floor(own.camera.project(seen) + 0.5).T
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    where = (rows[inside] * width + columns[inside]).astype(np.intp)
    depth, relative = seen[inside, 2], relative[inside]
    visible = _visible(depth, own.depth.flat[where])
    where, depth, relative = where[visible], depth[visible], relative[visible]
    order = np.lexsort((depth, where))  # the nearest point of a pixel first
    where, first = np.unique(where[order], return_index=True)
    depth, relative = depth[order][first], relative[order][first]
    return where, depth, np.hypot(relative, POINT_NOISE) * depth


def _carry_depth(
    own: DepthMap, maps: Sequence[DepthMap], world_to_camera: Transform
) -> tuple[Float32Array, Float32Array]:
    """Median and relative spread over the neighbours on a grid of pixels; NaN elsewhere."""
    shape = own.depth.shape
    grid = np.s_[STRIDE // 2 :: STRIDE, STRIDE // 2 :: STRIDE]
    stack = []
    for other in maps:
        points = other.camera.points(other.depth.astype(np.float64)).reshape(-1, 3)
        stack.append(z_buffer(points, world_to_camera @ other.camera_to_world, own.camera)[grid])
    values = np.sort(np.stack(stack), axis=0)  # NaN last
    count = np.isfinite(values).sum(axis=0)
    middle = _middle(values, count)
    deviation = np.sort(np.abs(np.log(values / middle)), axis=0)
    spread = 1.4826 * _middle(deviation, count)
    enough = count >= min(MIN_VIEWS, len(maps))
    result, spreads = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    result[grid], spreads[grid] = np.where(enough, middle, np.nan), np.where(enough, spread, np.nan)
    return result, spreads


def _middle(values: Float32Array, count: IndexArray) -> Float32Array:
    """Median of the first `count` of sorted values along the first axis; NaN where there is none."""
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    high = np.minimum(high, np.maximum(count - 1, 0))
    pick = [np.take_along_axis(values, index[None], axis=0)[0] for index in (low, high)]
    return np.asarray(0.5 * (pick[0] + pick[1]), np.float32)
