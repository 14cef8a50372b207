"""Camera and depth from a point map that is known up to a shift along the optical axis.

MoGe (Wang et al. 2025) predicts points (x, y, z) up to a scale and a shift of z. A pinhole camera with its principal
point in the middle of the image sees a point at u = f x / (z + s), v = f y / (z + s), so that the coordinates of the
pixels determine f and s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray

_GRID = 64  # points along each side of the image that are used
_COARSE = 121  # shifts of the first search, over six decades
_EXPONENT_TOLERANCE = 1e-10  # of the decimal logarithm of the shift


def focal_and_shift(points: NDArray[np.float32], valid: BoolArray | None = None) -> tuple[float, float] | None:
    """Focal length in pixels and shift of z that fit a point map best; None if too few points are usable.

    For a given shift the best focal length is a linear least-squares problem, so that one unknown is left. It is
    searched among the shifts that put every point in front of the camera, first on a grid, since there may be several
    minima, then by Brent's method in the best interval.

    Parameters
    ----------
    points : (H, W, 3) array
        x right, y down, z forward, in any common unit.
    valid : (H, W) bool array, optional
    """
    from scipy.optimize import minimize_scalar

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
    found = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": _EXPONENT_TOLERANCE})
    shift = reach * 10.0 ** float(found.x) - nearest
    length = focal(shift)
    return (length, shift) if np.isfinite(length) and length > 0 else None
