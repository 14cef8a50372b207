"""Where the depth camera of an RGB-D sensor is relative to its colour camera, from the points of a COLMAP model.

The colour camera of 7-Scenes is not the camera of its depth: it lies beside it, with another focal length. A reference
that is compared with depth in the colour camera must be moved there. The rotation, the displacement across the optical
axis (along it, it can hardly be distinguished from the scale) and the scale of the model are fitted to the depth of the
points of the model in all frames, with a Cauchy loss: six numbers from some ten thousand points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from leadline.geometry.cameras import Camera, CameraModel
from leadline.geometry.poses import invert_transform
from leadline.geometry.projection import z_buffer

LOSS_SCALES = (0.1, 0.03, 0.01)  # log depth at which the loss begins to grow more slowly: first coarse, then fine
UNSEEN = 0.1  # residual of a point at which there is no reference
STEP = 2e-3  # radians, metres and log scale: finite differences that change the interpolated depth
BESIDE = 0.03  # metres to either side at which the fit also starts: depth edges make local minima

Depth = NDArray[np.floating[Any]]
Points = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Registration:
    """The scale of the model in metres, and the depth camera as the colour camera sees it."""

    scale: float
    depth_camera: Camera
    from_colour: NDArray[np.float64]  # (4, 4): from the colour camera to the depth camera, in metres
    error: float  # median of |log depth ratio| between points and reference

    @classmethod
    def fit(cls, camera: Camera, seen: Sequence[tuple[Points, Depth]]) -> Registration:
        """From the points of each frame in its colour camera, in units of the model, and its reference."""
        ratios = [np.nanmedian(reference) / np.median(points[:, 2]) for points, reference in seen]

        def residuals(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
            found = cls._of(camera, numbers)
            return np.concatenate([found._residuals(*one) for one in seen])

        def differences(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
            steps = STEP * np.eye(6)
            columns = [(residuals(numbers + step) - residuals(numbers - step)) / (2 * STEP) for step in steps]
            return np.stack(columns, axis=-1)

        found = []
        for beside in (-BESIDE, 0.0, BESIDE):
            numbers = np.array([0.0, 0.0, 0.0, beside, 0.0, np.log(np.median(ratios))])
            for scale in LOSS_SCALES:
                fit = least_squares(residuals, numbers, differences, loss="cauchy", f_scale=scale)
                numbers = fit.x
            found.append(fit)
        best = min(found, key=lambda fit: fit.cost)
        return cls._of(camera, best.x, float(np.median(np.abs(best.fun))))

    @classmethod
    def _of(cls, camera: Camera, numbers: NDArray[np.float64], error: float = np.nan) -> Registration:
        transform = np.eye(4)
        transform[:3, :3] = Rotation.from_rotvec(numbers[:3]).as_matrix()
        transform[:2, 3] = numbers[3:5]
        return cls(float(np.exp(numbers[5])), camera, transform, error)

    def _residuals(self, points: Points, reference: Depth) -> NDArray[np.float64]:
        there = self.scale * points @ self.from_colour[:3, :3].T + self.from_colour[:3, 3]
        columns, rows = self.depth_camera.project(there).T
        depth = map_coordinates(reference.astype(np.float64), (rows, columns), order=1, cval=np.nan)
        ratio = np.log(there[:, 2] / depth)
        return np.where(np.isfinite(ratio), ratio, UNSEEN)

    def move(self, reference: Depth, camera: CameraModel) -> Depth:
        """The reference in the colour camera."""
        points = self.depth_camera.points(reference.astype(np.float64)).reshape(-1, 3)
        return z_buffer(points, invert_transform(self.from_colour), camera)
