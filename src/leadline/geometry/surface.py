"""The surface that a depth map shows: triangles between neighbouring pixels, cut at depth edges, and their normals.

A depth map has one depth per pixel, also where a pixel covers the border between an object and what is behind it. Such
a pixel lies on neither of them. In a point cloud these pixels trail behind every object as "flying pixels", and in a
mesh they become sheets between objects. Two neighbouring pixels are therefore joined only if both of these hold.

1. *Depth step.* Their depths differ by at most `EdgeLimits.max_step`, relative to the nearer one.
2. *Grazing angle.* The line between their points does not run along the line of sight: it would show a surface seen at
   more than `EdgeLimits.max_angle` from its normal. Floors, roads and walls of corridors are truly seen at such angles.
   They are recognised by their inverse depth, which is linear in the image on every plane: a pair whose step in inverse
   depth is usual among its neighbours in the same row or column is joined in spite of the angle.

A pixel is part of the surface if it belongs to a block of 2 x 2 pixels that are joined all round. This removes flying
pixels: along an edge they are joined with each other, but in strips that are one pixel wide and hold no such block. It
also removes wires that are one pixel wide, which look the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map, is_measured
from leadline.base.errors import InputError, param, require_positive
from leadline.geometry.cameras import CameraModel, require_camera

# A step in inverse depth is usual if it equals that of 15 pairs among the 31 around it, where smaller steps count in
# part and steps beyond the limit of the first rule not at all. Completed depth passes from one object to the other
# within about ten pixels, which is cut. On a plane whose depth a sensor has rounded, every second step is not 0, and it
# is joined.
_REACH = 15  # pixels to each side
_USUAL = 15


@dataclass(frozen=True, kw_only=True)
class EdgeLimits:
    """Where a surface is cut between neighbouring pixels; see `leadline.geometry.surface`."""

    max_step: float = 0.05  # largest difference of the two depths, relative to the nearer one
    max_angle: float = 85.0  # degrees between the line of sight and the normal, unless the surface is a plane there

    def __post_init__(self) -> None:
        require_positive(max_step=self.max_step, max_angle=self.max_angle)
        if self.max_angle > 90:
            raise InputError(f"{param('max_angle')} must be at most 90 degrees, got {self.max_angle!r} instead.")


@dataclass(frozen=True, eq=False)
class Surface:
    """Points, normals and triangles of a depth map, in the frame of its camera: x right, y down, z forward.

    Parameters
    ----------
    points : (N, 3) float32 array
        Metres.
    normals : (N, 3) float32 array
        Unit vectors towards the camera.
    triangles : (T, 3) int32 array
        Indices of points, counter-clockwise as the camera sees them.
    pixels : (N,) int64 array
        The pixel of each point as an index into the flat image, e.g. ``image.reshape(-1, 3)[pixels]``.
    shape : (H, W)
        Size of the depth map.
    """

    points: NDArray[np.float32]
    normals: NDArray[np.float32]
    triangles: NDArray[np.int32]
    pixels: NDArray[np.int64]
    shape: tuple[int, int]

    def mask(self) -> BoolArray:
        """Which pixels have a point, (H, W)."""
        found = np.zeros(self.shape, bool)
        found.flat[self.pixels] = True
        return found

    def texture_coordinates(self) -> NDArray[np.float32]:
        """Where each point is in the image, (N, 2): across and down, 0 to 1 from border to border, as glTF has them."""
        height, width = self.shape
        rows, columns = np.divmod(self.pixels, width)
        return np.stack(((columns + 0.5) / width, (rows + 0.5) / height), axis=1).astype(np.float32)


def surface_from_depth(depth: FloatArray, camera: CameraModel, *, edges: EdgeLimits | None = EdgeLimits()) -> Surface:
    """The surface of a depth map, without the pixels that lie between two objects.

    Parameters
    ----------
    depth : (H, W) array
        Metres along the optical axis; pixels that are not finite and positive have no point.
    camera : CameraModel
        Of the size of the depth map.
    edges : EdgeLimits or None
        Where the surface is cut. With None it is cut nowhere, and every pixel with a depth has a point.

    Examples
    --------
    The left part of a box at 1 m is seen before a wall at 3 m, with a column of flying pixels between the two:

    >>> from leadline.geometry.cameras import Camera
    >>> depth = np.tile([3.0, 3.0, 2.0, 1.0, 1.0], (4, 1))
    >>> camera = Camera(5, 4, 100.0, 100.0, 2.0, 1.5)
    >>> found = surface_from_depth(depth, camera)
    >>> np.unique(found.points[:, 2])
    array([1., 3.], dtype=float32)
    >>> len(found.points), len(surface_from_depth(depth, camera, edges=None).points)
    (16, 20)
    """
    depth = as_map(depth, "depth")
    height, width = depth.shape
    require_camera(camera, depth.shape)
    points = camera.points(np.where(is_measured(depth), depth, np.nan))
    known = np.isfinite(points).all(axis=-1)  # a lens may have no ray for a corner
    right, down = join_neighbours(points, edges)
    if edges is not None:
        known = _in_joined_block(right, down)
        right, down = right & known[:, :-1] & known[:, 1:], down & known[:-1] & known[1:]
    triangles = _triangulate(points[..., 2], right, down)
    pixels = np.flatnonzero(known)
    number = np.full(depth.size, -1, np.int32)
    number[pixels] = np.arange(pixels.size, dtype=np.int32)
    own, corners = points.reshape(-1, 3)[pixels], number[triangles]
    return Surface(own.astype(np.float32), _vertex_normals(own, corners), corners, pixels, (height, width))


def join_neighbours(points: FloatArray, edges: EdgeLimits | None) -> tuple[BoolArray, BoolArray]:
    """Whether each pixel is joined with the one to its right, (H, W - 1), and below it, (H - 1, W).

    `points` are those of the pixels, (H, W, 3), NaN where there is none; such pixels are joined with none. Without
    `edges` all others are joined.
    """
    right = _join_along_rows(points, edges)
    down = _join_along_rows(points.transpose(1, 0, 2), edges)
    return right, down.T


def _join_along_rows(points: FloatArray, edges: EdgeLimits | None) -> BoolArray:
    first, second = points[:, :-1], points[:, 1:]
    known: BoolArray = np.isfinite(np.concatenate((first, second), axis=-1)).all(axis=-1)
    if edges is None or not known.any():
        return known
    z = points[..., 2]
    with np.errstate(invalid="ignore"):
        joined: BoolArray = known & (np.abs(np.diff(z)) <= edges.max_step * np.minimum(z[:, :-1], z[:, 1:]))
    # The line between the two points, split into its part along the line of sight and the part across it.
    line, sight = second - first, second + first
    along = np.einsum("ijk,ijk->ij", line, sight) ** 2
    square = np.einsum("ijk,ijk->ij", line, line) * np.einsum("ijk,ijk->ij", sight, sight)
    across = square - along
    with np.errstate(invalid="ignore"):
        rows, columns = np.nonzero(joined & (along > math.tan(math.radians(edges.max_angle)) ** 2 * across))
        steps = np.where(joined, np.abs(np.diff(1 / z)), 0.0)
    padded = np.pad(steps, ((0, 0), (_REACH, _REACH)), mode="edge")
    own, sum_around = steps[rows, columns], np.zeros(rows.size)
    for shift in range(2 * _REACH + 1):
        sum_around += np.minimum(padded[rows, columns + shift], own)
    joined[rows, columns] = sum_around >= _USUAL * own
    return joined


def _in_joined_block(right: BoolArray, down: BoolArray) -> BoolArray:
    """Whether a pixel belongs to a 2 x 2 block with all four sides joined, (H, W)."""
    block = right[:-1] & right[1:] & down[:, :-1] & down[:, 1:]
    found = np.zeros((right.shape[0], down.shape[1]), bool)
    for rows in (slice(None, -1), slice(1, None)):
        for columns in (slice(None, -1), slice(1, None)):
            found[rows, columns] |= block
    return found


def _triangulate(z: FloatArray, right: BoolArray, down: BoolArray) -> NDArray[np.int64]:
    """Flat pixels of the triangles of all 2 x 2 blocks, (T, 3), counter-clockwise as the camera sees them.

    A block with corners ``a b`` above ``c d`` is divided along b-c or a-d: along the one that gives more triangles, or
    else along the one whose ends are nearer to each other in depth, so that a ridge is not cut across.
    """
    height, width = z.shape
    if height < 2 or width < 2:
        return np.empty((0, 3), np.int64)
    top, bottom, left, other = right[:-1], right[1:], down[:, :-1], down[:, 1:]
    near_a, near_b, near_c, near_d = top & left, top & other, bottom & left, bottom & other
    falling, rising = near_b.astype(np.int8) + near_c, near_a.astype(np.int8) + near_d  # along a-d, along b-c
    with np.errstate(invalid="ignore"):
        nearer = np.abs(z[:-1, :-1] - z[1:, 1:]) < np.abs(z[:-1, 1:] - z[1:, :-1])
    along_ad = (falling > rising) | ((falling == rising) & nearer)
    a = np.arange(height * width).reshape(height, width)[:-1, :-1]
    b, c, d = a + 1, a + width, a + width + 1
    parts = [
        np.stack([corner[chosen] for corner in corners], axis=1)
        for chosen, corners in (
            (near_b & along_ad, (a, d, b)),
            (near_c & along_ad, (a, c, d)),
            (near_a & ~along_ad, (a, c, b)),
            (near_d & ~along_ad, (b, c, d)),
        )
    ]
    return np.concatenate(parts)


def _vertex_normals(points: FloatArray, triangles: NDArray[np.int32]) -> NDArray[np.float32]:
    """Unit normals: the sum of those of a point's triangles, weighted by area; towards the camera without triangles."""
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    areas = np.cross(b - a, c - a)
    total = np.stack(
        [
            np.bincount(triangles.ravel(), weights=np.repeat(areas[:, axis], 3), minlength=len(points))
            for axis in range(3)
        ],
        axis=1,
    )
    total = np.where((total != 0).any(axis=1, keepdims=True), total, -points)
    normals: NDArray[np.float32] = (total / np.linalg.norm(total, axis=1, keepdims=True)).astype(np.float32)
    return normals
