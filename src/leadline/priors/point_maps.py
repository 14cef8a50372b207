"""From a point map that is known up to a shift along the optical axis to depth and a camera.

MoGe (Wang et al. 2025) predicts points (x, y, z) up to a scale and a shift of z. A pinhole in the middle of the picture
sees a point at u = f x / (z + s), v = f y / (z + s), so that the pixels' own coordinates determine f and s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray

_GRID = 64  # points along each side of the image that take part
_COARSE = 121  # shifts that are tried first, over six decades
_HALVINGS = 60


def focal_and_shift(points: NDArray[np.float32], valid: BoolArray | None = None) -> tuple[float, float] | None:
    """Focal length in pixels and shift of z that explain a point map best; None if too few points are usable.

    For a given shift the best focal length is a linear least-squares problem, so that one unknown is left. It is sought
    among the shifts that put every point in front of the camera, by a grid and then by golden sections: there may be
    several minima, and the derivative is of no use close to the nearest point.

    Parameters
    ----------
    points : (H, W, 3) array
        x right, y down, z forward, on any common scale.
    valid : (H, W) bool array, optional
    """
    height, width = points.shape[:2]
    rows, columns = (np.unique(np.linspace(0, side - 1, _GRID).round().astype(int)) for side in (height, width))
    at = np.ix_(rows, columns)
    chosen = points[at].astype(np.float64)
    usable = np.isfinite(chosen).all(axis=-1)
    if valid is not None:
        usable &= valid[at]
    v, u = np.meshgrid(rows - (height - 1) / 2, columns - (width - 1) / 2, indexing="ij")
    pixels = np.stack((u, v), axis=-1)[usable]
    xy, z = chosen[usable][:, :2], chosen[usable][:, 2]
    reach = float(np.median(np.abs(chosen[usable]))) if usable.any() else 0.0
    if len(z) < 3 or not reach > 0 or not np.square(pixels).sum() > 0:
        return None
    nearest = float(z.min())

    def focal(shift: float) -> float:
        seen = xy / (z + shift)[:, None]
        return float((seen * pixels).sum() / np.square(seen).sum())

    def cost(exponent: float) -> float:
        shift = reach * 10.0**exponent - nearest
        return float(np.square(focal(shift) * xy / (z + shift)[:, None] - pixels).sum())

    exponents = np.linspace(-3.0, 3.0, _COARSE)
    best = int(np.argmin([cost(exponent) for exponent in exponents]))
    low, high = exponents[max(best - 1, 0)], exponents[min(best + 1, _COARSE - 1)]
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    for _ in range(_HALVINGS):
        first, second = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, second) if cost(first) < cost(second) else (first, high)
    shift = reach * 10.0 ** (0.5 * (low + high)) - nearest
    length = focal(shift)
    return (length, shift) if np.isfinite(length) and length > 0 else None
