"""Slow twin of the comparison of the carried depth with the calibrated prior."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import minimum_filter

from leadline.base.arrays import Float32Array, FloatArray
from leadline.core.carried import MARGIN, MAX_STEP


def compare(calibrated: Float32Array, depth: Float32Array, ratio: Float32Array) -> tuple[FloatArray, FloatArray]:
    """The carried residual and the change of the prior; both NaN where unknown and behind a nearer surface."""
    known = (depth > 0) & (ratio > 0) & (calibrated > 0)
    nearest = minimum_filter(np.where(np.isnan(depth), np.inf, depth), 2 * MARGIN + 1, mode="constant", cval=np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        residual = np.where(known & (depth <= MAX_STEP * nearest), np.log(depth / calibrated), np.nan)
        return residual, residual - np.log(ratio)
