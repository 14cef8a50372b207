"""Slow twin of the sharpening of depth edges."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import maximum_filter, minimum_filter

from leadline.base.arrays import Float32Array, FloatArray
from leadline.geometry.depth_edges import CONTRAST, EDGE, EDGE_HEIGHT, MEMORY, REACH, SLOPE, TOLERANCE


def sharpen(depth: Float32Array, earlier: Float32Array, weights: Float32Array) -> FloatArray:
    """The depth with sharp edges, in float64."""
    known, side = depth > 0, 2 * REACH + 1
    low = minimum_filter(np.where(known, depth, np.inf), side, mode="nearest").astype(np.float64)
    high = maximum_filter(np.where(known, depth, 0.0), side, mode="nearest").astype(np.float64)

    def around(values: FloatArray, steps: tuple[int, ...]) -> list[FloatArray]:
        rows, columns = (np.arange(size) for size in depth.shape)
        shifts = [(a * REACH, b * REACH) for a in steps for b in steps]
        clipped = [
            (np.clip(rows + a, 0, depth.shape[0] - 1), np.clip(columns + b, 0, depth.shape[1] - 1)) for a, b in shifts
        ]
        return [values[np.ix_(i, j)] for i, j in clipped]

    with np.errstate(invalid="ignore", divide="ignore"):
        height = high / low - 1.0
        steepest = np.max(around(height, (-1, 0, 1)), axis=0)
        least, most = np.min(around(low, (-3, -1, 1, 3)), axis=0), np.max(around(high, (-3, -1, 1, 3)), axis=0)
        whole = np.maximum(most, high) / np.minimum(least, low) - 1.0
        share = weights * np.clip((steepest / whole - SLOPE) / (EDGE - SLOPE), 0.0, 1.0)
        share /= 1.0 + (EDGE_HEIGHT / height) ** 4
        position = (depth - low) / (high - low)
        before = np.clip((earlier - low) / (high - low), 0.0, 1.0)
        near = (low <= TOLERANCE * earlier) & (earlier <= TOLERANCE * high)
        position = np.where(near, position + MEMORY * weights * (before - position), position)
        margin = np.minimum((whole - steepest) / (6.0 * height), 0.5)
        between = np.minimum(position, 1.0 - position) > margin
        position = np.clip(CONTRAST * (position - 0.5) + 0.5, margin, 1.0 - margin)
        sharp = depth + share * (low + position * (high - low) - depth)
    return np.where(known & (height > 0.3 * EDGE_HEIGHT) & between, sharp, depth)
