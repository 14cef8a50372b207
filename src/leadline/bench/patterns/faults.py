"""Faults: functions that change or remove measurements, (H, W) metres with NaN where not measured.

Each takes the measurements, its part of the pattern, the scene and a random generator, and returns new measurements.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError
from leadline.bench.patterns.parts import PatternKind, PatternPart, is_count, is_fraction, is_interval, is_scale
from leadline.bench.patterns.published import OMNI_SEED
from leadline.datasets import Scene
from leadline.datasets.completion.sweeps import SWEEP_LINES, remove_behind, thin_lines
from leadline.geometry.cameras import Camera

SparseMap = NDArray[np.float32]


def _add_noise(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    noisy = sparse * (1.0 + part.numbers[0] * rng.standard_normal(sparse.shape))
    return np.where(noisy > 0, noisy, np.nan).astype(np.float32)


def _add_outliers(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    measured = np.flatnonzero(np.isfinite(sparse))
    replaced = rng.permutation(measured)[: round(part.numbers[0] * measured.size)]
    result = sparse.copy()
    if replaced.size:
        low, high = math.log(np.nanmin(sparse) / 2), math.log(np.nanmax(sparse) * 2)
        result.flat[replaced] = np.exp(rng.uniform(low, high, replaced.size))
    return result


def _limit_range(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    low, high = part.numbers
    inside = (sparse > low) & (sparse < high)  # without the ends, as PriorDA's sampler has it
    return np.where(inside, sparse, np.float32(np.nan))


def _cut_holes(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    height, width = sparse.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)
    covered = np.zeros(sparse.shape, dtype=bool)
    while covered.mean() < part.numbers[0]:
        row, column = rng.uniform(0, height), rng.uniform(0, width)
        radius = rng.uniform(0.04, 0.16) * math.hypot(height, width)
        covered |= (rows - row) ** 2 + (columns - column) ** 2 < radius * radius
    return np.where(covered, np.float32(np.nan), sparse)


def _thin_lines(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    if not isinstance(scene.camera, Camera):
        raise InputError(f"{scene.name}: the fault 'lines' needs a pinhole camera, and the scene has none.")
    return thin_lines(sparse, scene.camera, int(part.numbers[0]))


def _remove_behind(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    window, threshold = part.numbers or (7, 1.5)
    return remove_behind(sparse, int(window), threshold)


def _shift(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    across, down = (*map(int, part.numbers), 0)[:2]
    shifted = np.full_like(sparse, np.nan)
    height, width = sparse.shape
    if abs(across) < width and abs(down) < height:
        shifted[max(down, 0) : height + min(down, 0), max(across, 0) : width + min(across, 0)] = sparse[
            max(-down, 0) : height + min(-down, 0), max(-across, 0) : width + min(-across, 0)
        ]
    return shifted


def _replace_by_noise(sparse: SparseMap, part: PatternPart, scene: Scene, rng: np.random.Generator) -> SparseMap:
    """OMNI-DC's noise, with NumPy's legacy generator in its order of calls."""
    if scene.reference is None:
        raise InputError(f"{scene.name}: the fault 'omni-noise' needs a reference, and the scene has none.")
    share, seed = part.numbers[0], int(part.numbers[1]) if len(part.numbers) > 1 else OMNI_SEED
    generator = np.random.RandomState(seed)
    generator.random_sample(2)  # the choice among one pattern, and the share between two equal bounds
    dense = np.nan_to_num(np.where(np.isfinite(scene.reference), scene.reference, 0))
    replaced = generator.binomial(n=1, p=share, size=dense.shape) == 1
    low, high = np.percentile(dense, 10), np.percentile(dense, 90)  # missing depth counts as 0
    values = generator.uniform(low, high, size=dense.shape).astype(np.float32)
    noisy = np.where(replaced & np.isfinite(sparse), values, sparse)
    return np.where(noisy > 0, noisy, np.float32(np.nan))


def _is_lines(part: PatternPart) -> bool:
    return is_count(part) and part.numbers[0] <= SWEEP_LINES


def _is_window(part: PatternPart) -> bool:
    if part.words or len(part.numbers) not in (0, 2):
        return False
    return not part.numbers or (part.numbers[0] >= 1 and part.numbers[0] % 2 == 1 and part.numbers[1] > 0)


def _is_shift(part: PatternPart) -> bool:
    return not part.words and len(part.numbers) in (1, 2) and all(number == int(number) for number in part.numbers)


def _is_share_with_seed(part: PatternPart) -> bool:
    seeds = part.numbers[1:]
    return is_fraction(part._replace(numbers=part.numbers[:1])) and all(s >= 0 and s == int(s) for s in seeds[:2])


FAULTS: dict[str, PatternKind] = {
    "noise": PatternKind("noise:0.02", is_scale, _add_noise),
    "outliers": PatternKind("outliers:0.05", is_fraction, _add_outliers),
    "range": PatternKind("range:0.5:5", is_interval, _limit_range),
    "holes": PatternKind("holes:0.2", lambda part: is_fraction(part) and part.numbers[0] < 1, _cut_holes),
    "lines": PatternKind("lines:16", _is_lines, _thin_lines),
    "behind": PatternKind("behind or behind:7:1.5", _is_window, _remove_behind),
    "shift": PatternKind("shift:4 or shift:4:-2", _is_shift, _shift),
    "omni-noise": PatternKind("omni-noise:0.05 or omni-noise:0.05:43", _is_share_with_seed, _replace_by_noise),
}
