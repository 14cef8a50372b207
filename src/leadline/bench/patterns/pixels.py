"""Sources of our own that choose pixels of the reference, (H, W) bool each."""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import BoolArray
from leadline.base.errors import InputError
from leadline.bench.patterns.parts import PatternPart, is_count
from leadline.datasets import Scene

AZIMUTH_STEP = 0.2  # degrees; that of a rotating LiDAR at 10 Hz
CORNER_DISTANCE = 4  # minimum distance between corners along either axis, in pixels


def all_pixels(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """Every pixel with a reference."""
    return valid


def random_pixels(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """N pixels, sampled uniformly."""
    candidates = np.flatnonzero(valid)
    chosen = np.zeros(valid.shape, dtype=bool)
    chosen.flat[rng.choice(candidates, min(int(part.numbers[0]), candidates.size), replace=False)] = True
    return chosen


def share_of_pixels(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """A share P of the pixels, sampled uniformly."""
    count = round(part.numbers[0] * int(np.count_nonzero(valid)))
    return random_pixels(scene, valid, part._replace(numbers=(float(count),)), rng)


def lidar_beams(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """For each beam and column the pixel of nearest elevation, thinned to the azimuth steps."""
    numbers = part.numbers
    if scene.camera is None:
        raise InputError(f"{scene.name}: the pattern 'lidar' needs a camera, and the scene has none.")
    rays = scene.camera.points(np.ones(valid.shape, dtype=np.float32))
    x, y = rays[..., 0], rays[..., 1]
    elevation = np.degrees(np.arctan2(-y, np.hypot(x, 1.0)))
    azimuth = np.degrees(np.arctan(x))
    beams = int(numbers[0])
    if len(numbers) > 1:
        angles = np.linspace(numbers[1], numbers[2], beams)
    else:
        # Centres of equal intervals of the field of view, so that no beam lies on the border of the image.
        centre = elevation[:, valid.shape[1] // 2]
        low, high = float(centre.min()), float(centre.max())
        angles = low + (np.arange(beams) + 0.5) * (high - low) / beams
    step = numbers[3] if len(numbers) > 3 else AZIMUTH_STEP
    columns = np.arange(valid.shape[1])
    chosen = np.zeros(valid.shape, dtype=bool)
    # A beam farther than half the largest row spacing from every pixel passes above or below the image.
    tolerance = 0.5 * float(np.abs(np.diff(elevation, axis=0)).max(initial=0.0))
    for angle in angles:
        deviation = np.abs(elevation - angle)
        rows = deviation.argmin(axis=0)
        inside = deviation[rows, columns] <= tolerance
        steps = np.rint(azimuth[rows, columns] / step)
        # Of the columns with the same azimuth step, the nearest one to it is measured.
        order = np.lexsort((np.abs(azimuth[rows, columns] - steps * step), steps))
        order = order[inside[order]]
        _, first = np.unique(steps[order], return_index=True)
        measured = order[first]
        chosen[rows[measured], columns[measured]] = True
    return chosen & valid


def image_corners(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> BoolArray:
    """The pixels whose smaller eigenvalue of the structure tensor is largest, each a maximum of its neighbourhood."""
    from scipy.ndimage import correlate1d, maximum_filter

    grey = scene.image.astype(np.float64).mean(axis=2)
    gy, gx = np.gradient(grey) if min(grey.shape) > 1 else (np.zeros_like(grey), np.zeros_like(grey))
    window = np.ones(5)
    xx, xy, yy = (
        correlate1d(correlate1d(product, window, axis=0, mode="nearest"), window, axis=1, mode="nearest")
        for product in (gx * gx, gx * gy, gy * gy)
    )
    strength = np.where(valid, 0.5 * (xx + yy) - np.sqrt(0.25 * (xx - yy) ** 2 + xy * xy), -1.0)
    # Ranks are unique, so that exactly one pixel of a plateau is a maximum.
    order = np.argsort(strength, axis=None, kind="stable")
    rank = np.empty(strength.shape, np.int64)
    rank.flat[order] = np.arange(strength.size)
    peak = (maximum_filter(rank, size=2 * CORNER_DISTANCE + 1, mode="constant") == rank) & (strength > 0)
    strongest = order[::-1][peak.flat[order[::-1]]]
    chosen = np.zeros(valid.shape, dtype=bool)
    chosen.flat[strongest[: int(part.numbers[0])]] = True
    return chosen


def is_lidar(part: PatternPart) -> bool:
    """A number of beams, perhaps two angles, perhaps the step of azimuth."""
    numbers = part.numbers
    if len(numbers) not in (1, 3, 4) or not is_count(part._replace(numbers=numbers[:1])):
        return False
    return len(numbers) == 1 or (-90 < numbers[1] < numbers[2] < 90 and all(step > 0 for step in numbers[3:]))
