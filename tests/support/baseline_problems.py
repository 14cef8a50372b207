"""Small priors and measurements for the tests of the baselines."""

from __future__ import annotations

import numpy as np


def seeded(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def smooth(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A relative depth with slopes, a step and some roughness."""
    rows, columns = np.indices(shape)
    slopes = 2.0 + rows / shape[0] + 0.5 * np.sin(3.0 * columns / shape[1])
    return slopes + (columns > shape[1] // 2) + 0.05 * rng.random(shape)


def anchors(rng: np.random.Generator, shape: tuple[int, int], pattern: str) -> np.ndarray:
    chosen = np.zeros(shape, bool)
    if pattern == "grid":  # nothing but ties
        chosen[min(1, shape[0] - 1) :: 4, min(2, shape[1] - 1) :: 4] = True
    elif pattern == "random":
        chosen = rng.random(shape) < 0.1
    elif pattern == "dense":
        chosen = rng.random(shape) < 0.8
    elif pattern == "corner":
        chosen[: max(shape[0] // 4, 1), : max(shape[1] // 4, 2)] = True
    else:
        chosen.flat[rng.choice(chosen.size, int(pattern), replace=False)] = True
    return chosen


def problem(name: str, shape: tuple[int, int], pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """A prior with holes and measurements that no curve explains."""
    rng = seeded(name)
    relative = smooth(rng, shape)
    chosen = anchors(rng, shape, pattern)
    sparse = np.where(chosen, 3.0 * relative**1.3 * np.exp(0.05 * rng.standard_normal(shape)), np.nan)
    if relative.size > 30:
        relative[rng.random(shape) < 0.05] = np.nan
    return relative, sparse
