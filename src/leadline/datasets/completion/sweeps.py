"""What public evaluations do to LiDAR sweeps in image form: fewer lines, and no points behind the foreground."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from leadline.base.arrays import FloatArray, is_measured
from leadline.base.errors import InputError, param
from leadline.geometry.cameras import Camera

SWEEP_LINES = 64  # of the Velodyne HDL-64E of KITTI
_NEAREST_M = 1e-3  # depths up to this are not a foreground


def thin_lines(sparse: FloatArray, camera: Camera, lines: int) -> NDArray[np.float32]:
    """A sweep of 64 lines, (H, W) metres with NaN, thinned to every (64 / `lines`)-th bin of pitch; NaN elsewhere.

    The pitch of a point is asin(y / distance) in the camera's frame. The range between the smallest and the largest
    pitch of the image is divided into 64 equal steps, each point is rounded to the nearest of the 65 marks, and the
    marks whose number is a multiple of 64 / `lines` are kept. These are not the laser's own lines, which the image form
    does not contain. OMNI-DC and others thin KITTI in this way.

    `lines` is from 1 to 64. `camera` has the principal point of this crop.
    """
    if isinstance(lines, bool) or not isinstance(lines, int) or not 1 <= lines <= SWEEP_LINES:
        raise InputError(f"{param('lines')} must be a whole number from 1 to {SWEEP_LINES}, got {lines!r} instead.")
    rows, columns = np.nonzero(is_measured(sparse))
    result = np.full(sparse.shape, np.nan, dtype=np.float32)
    if lines == SWEEP_LINES or not len(rows):
        result[rows, columns] = sparse[rows, columns]
        return result
    depth = sparse[rows, columns].astype(np.float64)
    points = np.stack(
        ((columns - camera.cx) / camera.fx * depth, (rows - camera.cy) / camera.fy * depth, depth), axis=1
    )
    pitch = np.arcsin(points[:, 1] / np.linalg.norm(points, axis=1))
    step = (pitch.max() - pitch.min()) / SWEEP_LINES
    marks = np.rint((pitch - pitch.min()) / step) if step > 0 else np.zeros(len(pitch))
    kept = marks % (SWEEP_LINES / lines) == 0
    result[rows[kept], columns[kept]] = sparse[rows[kept], columns[kept]]
    return result


def remove_behind(sparse: FloatArray, window: int = 7, threshold: float = 1.5) -> NDArray[np.float32]:
    """`sparse`, (H, W) metres with NaN, without the points that lie behind the foreground of a window around them.

    A point is removed if some measured point of the square window of side `window` around it has, in its own window, a
    depth that is smaller by more than `threshold` metres. VPP4DC and Marigold-DC filter KITTI and DDAD so, with
    windows of 7x7 and 1.5 m; it removes background that is seen through the parallax between LiDAR and camera, and
    also correct points near depth edges.
    """
    if isinstance(window, bool) or not isinstance(window, int) or window < 1 or window % 2 == 0:
        raise InputError(f"{param('window')} must be an odd whole number of pixels, got {window!r} instead.")
    if not threshold > 0:
        raise InputError(f"{param('threshold')} must be positive, in metres, got {threshold!r} instead.")
    measured = is_measured(sparse)
    depth = np.where(measured, sparse, 0).astype(np.float64)
    foreground = _minimum(np.where(depth > _NEAREST_M, depth, np.inf), window)
    nearest = _minimum(np.where(measured, foreground, np.inf), window)
    with np.errstate(invalid="ignore"):
        behind = (depth - nearest).astype(np.float32) > np.float32(threshold)
    return np.where(measured & ~behind, sparse, np.nan).astype(np.float32)


def _minimum(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    smallest: NDArray[np.float64] = ndimage.minimum_filter(values, size=window, mode="constant", cval=np.inf)
    return smallest
