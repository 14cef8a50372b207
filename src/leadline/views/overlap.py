"""Choice of the views that can say something about a view: those that see the same surfaces.

Each view is represented by a coarse grid of its points in the world. The overlap of two views is the smaller share of
their points that lie inside the other's image. Only views that look at about the same place are compared, so the cost
grows in proportion to the number of views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leadline.base.arrays import Float64Array, FloatArray
from leadline.geometry.cameras import CameraModel
from leadline.geometry.poses import Transform, invert_transform, transform_points

GRID = 16
"""Points of the coarse grid along the longer side of the image."""
CANDIDATES = 96
"""Views with the nearest centre of gravity of their points, of which the overlap is computed."""
MIN_OVERLAP = 0.3
"""Smallest overlap of neighbours."""


@dataclass(frozen=True, eq=False)
class Outline:
    """The camera of a view and its coarse points in the world."""

    camera: CameraModel
    camera_to_world: Transform
    points: Float64Array  # (n, 3)

    def distances(self) -> Float64Array:
        """Distances of the points from the camera, (n,)."""
        return np.asarray(np.linalg.norm(self.points - self.camera_to_world[:3, 3], axis=1))


def coarse_points(depth: FloatArray, camera: CameraModel, camera_to_world: Transform) -> Float64Array:
    """The points of a coarse grid of pixels in the world, (n, 3)."""
    step = max(1, max(depth.shape) // GRID)
    coarse = np.full(depth.shape, np.nan)
    coarse[step // 2 :: step, step // 2 :: step] = depth[step // 2 :: step, step // 2 :: step]
    points = camera.points(coarse)[step // 2 :: step, step // 2 :: step].reshape(-1, 3)
    return transform_points(points[np.isfinite(points).all(axis=1)], camera_to_world)


def find_neighbours(outlines: Mapping[str, Outline], count: int) -> dict[str, tuple[str, ...]]:
    """The neighbours of each view, at most `count`, those with the largest overlap first."""
    from scipy.spatial import cKDTree

    seen = [name for name, outline in outlines.items() if len(outline.points)]
    nothing: dict[str, tuple[str, ...]] = {name: () for name in outlines}
    if len(seen) < 2:
        return nothing
    centres = np.array([np.median(outlines[name].points, axis=0) for name in seen])
    _, nearest = cKDTree(centres).query(centres, k=min(CANDIDATES + 1, len(seen)))
    found = {}
    for i, name in enumerate(seen):
        others = [seen[j] for j in nearest[i] if j != i]
        shares = _overlaps(outlines[name], [outlines[other] for other in others])
        order = np.argsort(-shares, kind="stable")
        found[name] = tuple(others[j] for j in order[:count] if shares[j] >= MIN_OVERLAP)
    return {**nothing, **found}


def _overlaps(view: Outline, others: Sequence[Outline]) -> Float64Array:
    return np.array([min(_share_inside(view, other), _share_inside(other, view)) for other in others])


def _share_inside(view: Outline, other: Outline) -> float:
    """Share of the points of a view that lie inside the other's image."""
    points = transform_points(view.points, invert_transform(other.camera_to_world))
    with np.errstate(invalid="ignore"):
        x, y = other.camera.project(points).T
        inside = (x >= -0.5) & (x < other.camera.width - 0.5) & (y >= -0.5) & (y < other.camera.height - 0.5)
    return float(np.mean(inside))
