"""Pictures of a wall and a box with texture from a moving camera, with depth, priors and a few measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leadline.geometry.cameras import Camera

CAMERA = Camera(192, 144, 170.0, 170.0, 95.5, 71.5)


@dataclass(frozen=True, eq=False)
class TexturedView:
    name: str
    image: NDArray[np.uint8]
    depth: NDArray[np.float32]  # ground truth
    prior: NDArray[np.float32]
    sparse: NDArray[np.float32]
    pose: NDArray[np.float64]

    def with_pose(self, pose: NDArray[np.float64]) -> TexturedView:
        return replace(self, pose=pose)


def textured_views(count: int = 7, *, box_moves: bool = False, noise: float = 1.0) -> list[TexturedView]:
    """Views whose exposure changes; with `box_moves` the second half of them sees the box 30 cm aside."""
    views = []
    for k in range(count):
        generator = np.random.default_rng([11, k])
        pose = np.eye(4)
        pose[:3, 3] = 0.12 * (k - count / 2), 0.06 * (-1) ** k, 0.0
        aside = 0.3 if box_moves and 2 * k >= count else 0.0
        depth, texture = _render(pose, aside)
        grey = (60.0 + 10.0 * (k % 3)) * (1.0 + 0.5 * texture) + noise * generator.standard_normal(depth.shape)
        rows, columns = np.indices(depth.shape)
        waves = np.sin(columns / 31.0 + 2.0 * k) * np.cos(rows / 23.0 + k)
        sparse = np.zeros_like(depth)
        where = generator.choice(depth.size, 40, replace=False)
        sparse.flat[where] = depth.flat[where] * (1 + 0.01 * generator.standard_normal(where.size))
        prior = np.exp(0.8 * np.log(depth) + 0.1 * waves).astype(np.float32)
        image = np.clip(np.rint(grey), 0, 255).astype(np.uint8)
        views.append(TexturedView(f"view-{k}", image, depth, prior, sparse, pose))
    return views


def _render(pose: NDArray[np.float64], aside: float) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Depth, and a texture between about -2 and 2 that is painted on wall and box."""
    rays = CAMERA.points(np.ones((CAMERA.height, CAMERA.width))) @ pose[:3, :3].T
    x, y, z = np.moveaxis(rays, -1, 0)
    cx, cy, cz = pose[:3, 3]
    depth = (3.0 - cz + 0.2 * cx) / (z - 0.2 * x)
    front = (2.2 - cz) / z
    on_box = (np.abs(cx + front * x + 0.2 - aside) < 0.35) & (np.abs(cy + front * y) < 0.35)
    depth = np.where(on_box, front, depth)
    points = pose[:3, 3] + depth[..., None] * rays - np.where(on_box[..., None], (aside, 0.0, 7.0), 0.0)
    generator = np.random.default_rng(5)
    waves = generator.standard_normal((24, 3)) * 25.0  # wavelengths of some 20 cm, about 15 pixels
    phases = points @ waves.T + generator.uniform(0, 2 * np.pi, 24)
    return depth.astype(np.float32), np.cos(phases).sum(axis=-1) / np.sqrt(12.0)
