"""Views of a rendered room from a moving camera, with priors that a network might predict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from leadline.geometry.cameras import Camera

CAMERA = Camera(96, 72, 80.0, 80.0, 47.5, 35.5)
NOISE = 0.01


@dataclass(frozen=True, eq=False)
class PosedView:
    name: str
    depth: NDArray[np.float32]  # ground truth
    prior: NDArray[np.float32]
    sparse: NDArray[np.float32]
    noise: NDArray[np.float32]
    pose: NDArray[np.float64]  # as it is given to the method


class Room:
    """A wall, a floor and a cylinder, seen by `count` cameras that move to the right by `step` metres.

    `wrong` is the index of a view whose pose is wrong, `bent` that of a view whose prior is wrong in the middle, and
    the views before `box_until` see a box that the others do not see.
    """

    def __init__(
        self,
        count: int,
        *,
        step: float = 0.1,
        wrong: int | None = None,
        bent: int | None = None,
        box_until: int = 0,
        measurements: int = 60,
    ) -> None:
        self.views = []
        for k in range(count):
            generator = np.random.default_rng([3, k])
            pose = np.eye(4)
            pose[:3, :3] = Rotation.from_euler("y", -0.2 * step * (k - count / 2)).as_matrix()
            pose[0, 3] = step * (k - count / 2)
            depth = _render(pose, k < box_until)
            rows, columns = np.indices(depth.shape)
            waves = np.sin(columns / 17.0 + 2.0 * k) * np.cos(rows / 13.0 + k)
            log_prior = 0.8 * np.log(depth) + 0.15 * waves
            if k == bent:
                log_prior += 0.4 * np.exp(-((rows - 36.0) ** 2 + (columns - 48.0) ** 2) / 200.0)
            sparse = np.zeros_like(depth)
            where = generator.choice(depth.size, measurements, replace=False)
            sparse.flat[where] = depth.flat[where] * (1 + NOISE * generator.standard_normal(where.size))
            if k == wrong:
                error = np.eye(4)
                error[:3, :3] = Rotation.from_euler("x", 6.0, degrees=True).as_matrix()
                error[2, 3] = 0.3
                pose = pose @ error
            name = f"view-{k}"
            self.views.append(
                PosedView(name, depth, np.exp(log_prior).astype(np.float32), sparse, NOISE * sparse, pose)
            )


def _render(pose: NDArray[np.float64], with_box: bool) -> NDArray[np.float32]:
    rays = CAMERA.points(np.ones((CAMERA.height, CAMERA.width))) @ pose[:3, :3].T
    x, y, z = np.moveaxis(rays, -1, 0)
    cx, cy, cz = pose[:3, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        wall = (4.0 - cz + 0.2 * cx) / (z - 0.2 * x)
        floor = np.where(y > 0, (1.2 - cy) / y, np.inf)
        depth = np.minimum(np.where(wall > 0, wall, np.inf), floor)
        # A vertical cylinder of radius 0.5 m around (0.3, 3).
        a, b = x * x + z * z, x * (cx - 0.3) + z * (cz - 3.0)
        root = b * b - a * ((cx - 0.3) ** 2 + (cz - 3.0) ** 2 - 0.25)
        near = (-b - np.sqrt(root)) / a
        depth = np.where((root > 0) & (near > 0), np.minimum(depth, near), depth)
        if with_box:
            near, far = (np.array([low, high]) for low, high in ((-0.9, -0.4), (-0.2, 0.3)))
            ends_x, ends_y = ((edges[:, None, None] - c) / d for edges, c, d in ((near, cx, x), (far, cy, y)))
            ends_z = (np.array([2.4, 2.9])[:, None, None] - cz) / z
            enter = np.max([np.min(ends, axis=0) for ends in (ends_x, ends_y, ends_z)], axis=0)
            leave = np.min([np.max(ends, axis=0) for ends in (ends_x, ends_y, ends_z)], axis=0)
            depth = np.where((enter < leave) & (enter > 0), np.minimum(depth, enter), depth)
    return depth.astype(np.float32)
