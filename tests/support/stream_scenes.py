"""A moving scene and its measurements, for the tests of streams."""

from __future__ import annotations

import numpy as np

SHAPE = (96, 128)


def scene(shape: tuple[int, int] = SHAPE, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Prior and depth of a picture that moves with `shift`; no response undoes all of the prior's error."""
    y, x = np.indices(shape) / max(shape)
    x = x + shift
    depth = 1.5 + x + 2 * y + 0.2 * np.sin(9 * x) + 0.4 * (y > 0.4)
    return (depth**1.4 * np.exp(0.03 * np.cos(7 * x + 5 * y)) / 3).astype(np.float32), depth


def measured(depth: np.ndarray, step: int = 8, noise: float = 0.0, rng: np.random.Generator | None = None):
    sparse = np.zeros(depth.shape, np.float32)
    grid = np.s_[step // 2 :: step, step // 2 :: step]
    sparse[grid] = depth[grid]
    if rng is not None:
        sparse[grid] *= np.exp(noise * rng.standard_normal(sparse[grid].shape))
    return sparse
