"""Time-of-flight sensors: depth maps of few pixels, and sensors of a few zones.

A low-resolution map that shows the picture's own field of view is moved onto its grid by `grids.scatter_nearest`. One
with a lens of its own becomes a cloud here, and is projected like any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, RayCamera
from leadline.geometry.cloud import Cloud
from leadline.geometry.lenses import ColmapCamera, range_to_depth


def depth_cloud(
    depth: FloatArray,
    camera: Camera | RayCamera | ColmapCamera,
    *,
    ranges: bool = False,
    confidence: ArrayLike | None = None,
) -> Cloud:
    """The measured pixels of a depth map as points in its own camera's frame.

    Parameters
    ----------
    depth : (H, W) array
        Metres; what is not finite and positive was not measured.
    camera : Camera, RayCamera or ColmapCamera
        Of the sensor, at the size of the map.
    ranges : bool
        The numbers are distances along each pixel's ray, not along the optical axis.
    confidence : (H, W) array, optional
        Comes along as the points' confidence.

    Raises
    ------
    InputError
        If the sizes differ.
    """
    depth = as_map(depth, "depth")
    lens = camera.at_size() if isinstance(camera, ColmapCamera) else camera
    if depth.shape != (lens.height, lens.width):
        raise InputError(
            f"`depth` must have its camera's size {lens.width}x{lens.height}, got {depth.shape[1]}x{depth.shape[0]}."
        )
    if ranges:
        depth = range_to_depth(depth, lens)
    with np.errstate(invalid="ignore"):
        measured = np.isfinite(depth) & (depth > 0)
    levels = None if confidence is None else _levels(confidence, depth)[measured].astype(np.float32)
    return Cloud(lens.points(depth)[measured], confidence=levels)


def confident(depth: FloatArray, confidence: ArrayLike, least: float) -> FloatArray:
    """`depth` with NaN where `confidence`, of the same size, is below `least`.

    ARKit's maps have the levels 0, 1 and 2; 2 leaves out most of what is wrong at edges and on shiny things.

    Examples
    --------
    >>> confident(np.array([[1.0, 2.0, 3.0]]), np.array([[0, 1, 2]]), 1)
    array([[nan,  2.,  3.]])
    """
    depth = as_map(depth, "depth")
    return np.where(_levels(confidence, depth) >= least, depth, depth.dtype.type(np.nan))


def _levels(confidence: ArrayLike, depth: FloatArray) -> NDArray[Any]:
    levels = np.asarray(confidence)
    if levels.shape != depth.shape:
        raise InputError(f"`confidence` must have the depth's shape {depth.shape}, got {levels.shape} instead.")
    return levels


def place_zones(
    depths: ArrayLike, boxes: ArrayLike, shape: tuple[int, int], *, valid: ArrayLike | None = None
) -> NDArray[np.float32]:
    """A zone sensor's mean depths at the centres of their zones, (H, W) float32 metres, NaN elsewhere.

    A zone reports one distance for a whole rectangle of the picture, e.g. each of the 8 x 8 of a VL53L5CX. Its mean
    depth is most likely right at the centre; spreading it over the rectangle would claim a frontal wall there.

    Parameters
    ----------
    depths : (N,) array
        Metres; what is not finite and positive was not measured.
    boxes : (N, 4) array
        First row, first column, row and column after the last one, as ZJU-L5 has its zones.
    shape : (H, W)
        Size of the picture. Zones whose centre lies outside are left out.
    valid : (N,) array, optional
        What is 0 or false is left out.

    Examples
    --------
    >>> place_zones([2.0], [[0, 0, 3, 2]], (3, 2))
    array([[nan, nan], [nan,  2.], [nan, nan]], dtype=float32)
    """
    depth, box = np.asarray(depths, np.float32), np.asarray(boxes, np.float64)
    if depth.ndim != 1 or box.shape != (len(depth), 4):
        raise InputError(f"`boxes` must be (N, 4) for N depths, got {box.shape} for {depth.shape} instead.")
    used = np.ones(len(depth), bool) if valid is None else np.asarray(valid).astype(bool)
    if used.shape != depth.shape:
        raise InputError(f"`valid` must have one entry for each of {len(depth)} depths, got {used.shape} instead.")
    # Pixels first to last - 1 have their middle at (first + last - 1) / 2; halves go right and down.
    rows, columns = (np.floor((box[:, k] + box[:, k + 2]) / 2) for k in (0, 1))
    with np.errstate(invalid="ignore"):
        used = used & np.isfinite(depth) & (depth > 0) & (box[:, 2] > box[:, 0]) & (box[:, 3] > box[:, 1])
        used &= (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
    placed = np.full(shape, np.inf, np.float32)
    np.minimum.at(placed, (rows[used].astype(np.intp), columns[used].astype(np.intp)), depth[used])
    placed[np.isinf(placed)] = np.nan
    return placed
