"""Distance of the mesh that is fused from depth maps to the mesh that is fused from the reference.

``benchmarks/views.py`` prints it. All meshes have the same poses, voxels, pixels and options, which are those of
``leadline fuse``. The distance is the median over the vertices of one mesh of that to the nearest vertex of the other;
voxels of 1 cm limit it to some millimetres.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial import cKDTree

from leadline.batch.fusion import DepthView, FusedSurface, FusionOptions, fuse

if TYPE_CHECKING:
    from views import Frame, Maps

OPTIONS = FusionOptions(voxel=0.01, max_depth=4.0)  # metres; the sensor of the reference measures up to about 4 m


def fused(frames: Sequence[Frame], maps: Maps, sigma: Mapping[str, np.ndarray]) -> FusedSurface:
    """The fused surface of depth maps, at pixels that have a reference, so that all show the same part of the scene."""
    views = []
    for frame in frames:
        depth = np.where(np.isfinite(frame.reference), maps[frame.name], np.nan)
        views.append(DepthView(depth, frame.image, frame.camera, frame.pose, sigma[frame.name]))
    return fuse(views, OPTIONS)


def distances(found: FusedSurface, reference: FusedSurface) -> tuple[float, float]:
    """Median distance of the vertices to the reference, and of the reference to them, in metres."""
    forth, _ = cKDTree(reference.points).query(found.points)
    back, _ = cKDTree(found.points).query(reference.points)
    return float(np.median(forth)), float(np.median(back))


def print_meshes(frames: Sequence[Frame], alone: Maps, together: Maps, sigma: Mapping[str, np.ndarray]) -> None:
    """Print the distances of both meshes; as in ``leadline fuse``, `sigma` of the latter chooses the pixels of both."""
    everywhere = {frame.name: np.zeros(frame.reference.shape) for frame in frames}
    reference = fused(frames, {frame.name: frame.reference for frame in frames}, everywhere)
    before, after = (distances(fused(frames, maps, sigma), reference) for maps in (alone, together))
    for label, one, two in zip(("mesh to reference", "reference to mesh"), before, after, strict=True):
        print(f"  {label}  {1000 * one:.1f} -> {1000 * two:.1f} mm, ratio {two / one:.3f}")
