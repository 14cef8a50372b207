"""Simulated measurements of a scene: the paper's three cases and further patterns.

A *pattern* is a short text: a source of measurements, followed by any number of faults, joined by plus signs. Examples
are ``distributed``, ``random:500`` and ``lidar:16+noise:0.02+range:1:20``.

==========================  ================================================================================
source                      measured pixels
==========================  ================================================================================
distributed, central,       the paper's low-resolution grid, see `observe`
outer
random:N                    N pixels, sampled uniformly from those with a reference depth
lidar:N[:LOW:HIGH[:STEP]]   N beams of constant elevation, equally spaced from LOW to HIGH degrees above the horizon
                            (default: the vertical field of view of the camera), one measurement every STEP degrees
                            of azimuth (default: 0.2). The beams are cones about the camera's vertical axis, so they
                            are curves in the image
corners:N                   the N strongest image corners with a minimum distance, where structure from motion
                            typically finds its points
==========================  ================================================================================

==========================  ================================================================================
fault                       effect
==========================  ================================================================================
noise:S                     multiplies each measurement by 1 + S z with standard normal z
outliers:P                  replaces a share P of the measurements by depths whose logarithm is uniform between half
                            the smallest and twice the largest measurement
range:LOW:HIGH              removes measurements outside this range, in metres
holes:P                     removes measurements inside random discs that cover a share P of the image
==========================  ================================================================================

The random generator is seeded with the names of the data set, the image and the pattern, so that the measurements
depend neither on the order of the work nor on the machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map
from leadline.base.errors import InputError, param, require_choice
from leadline.base.registry import suggestion
from leadline.datasets import Scene

Case = Literal["distributed", "central", "outer"]
CASES: tuple[Case, ...] = get_args(Case)
STRIDE = 7.5  # nominal distance between the paper's measurements, in pixels
AZIMUTH_STEP = 0.2  # degrees; that of a rotating LiDAR at 10 Hz
CORNER_DISTANCE = 4  # minimum distance between corners along either axis, in pixels

SparseMap = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Observations:
    """The measurements that a method receives, and the pixels on which its result is scored."""

    sparse: SparseMap  # (H, W) metres, NaN where not measured
    scored: BoolArray  # (H, W)

    @property
    def count(self) -> int:
        """Number of measurements."""
        return int(np.count_nonzero(np.isfinite(self.sparse)))


def observe(reference: FloatArray, case: Case, *, stride: float = STRIDE) -> Observations:
    """Measurements of one of the paper's cases: the means of the reference depth over the cells of a regular grid.

    =============  =========================  ==============================================
    case           measured                   scored (where the reference is valid)
    =============  =========================  ==============================================
    distributed    every anchor               every pixel that is not an anchor
    central        anchors outside the        pixels inside the central rectangle
                   central rectangle
    outer          anchors inside it          pixels outside it
    =============  =========================  ==============================================

    Along an axis of `size` pixels, where pixel u covers [u, u + 1):

    - There are n = max(1, floor(size / stride + 1/2)) cells of size / n pixels. The nominal stride of 7.5 becomes
      640/85 = 7.53 at 640 pixels and exactly 7.5 at 480, so that no cell is cut off at the border.
    - Cell k contains the pixels whose centre u + 1/2 lies in [k size/n, (k + 1) size/n). Each pixel is in one cell.
    - The anchor of a cell is the pixel that covers its centre, floor((k + 1/2) size/n).

    The value of a cell is the mean of its valid reference depths, and the anchor receives it even if the reference is
    invalid at the anchor itself. A cell without valid depth has no anchor. The central rectangle removes anchors by
    their own position; a cell that crosses its border keeps the mean over the whole cell, as a low-resolution sensor
    would.

    `reference` is depth in metres, (H, W), where NaN, inf and values <= 0 are invalid; `stride` is at least 1 pixel.

    Examples
    --------
    >>> observations = observe(np.full((15, 15), 2.0), "distributed")
    >>> np.argwhere(np.isfinite(observations.sparse)).tolist()
    [[3, 3], [3, 11], [11, 3], [11, 11]]
    >>> int(observations.scored.sum())
    221
    """
    require_choice("case", case, Case)
    if not (math.isfinite(stride) and stride >= 1):
        raise InputError(f"{param('stride')} must be a finite number of at least 1 pixel, got {stride!r} instead.")
    reference = as_map(reference, "reference")
    valid = _is_valid(reference)
    sparse = _grid_means(reference, valid, stride)
    if case == "distributed":
        return Observations(sparse, valid & np.isnan(sparse))
    removed = np.zeros(valid.shape, dtype=bool)
    removed[central_rectangle(*valid.shape)] = True
    if case == "outer":
        removed = ~removed
    sparse[removed] = np.nan
    return Observations(sparse, valid & removed)


def simulate(scene: Scene, pattern: str, *, dataset: str, stride: float = STRIDE) -> Observations:
    """Measurements of a scene under a pattern, see the table at the top of this module.

    Every pixel with a valid reference that is not measured is scored; in the cases ``central`` and ``outer``, only
    those of the removed region. Pixels whose measurement a fault has removed are scored like any other.

    The name of the data set is part of the random seed; `stride` is that of the grid of the paper's cases, in pixels.

    Examples
    --------
    >>> scene = Scene("a", np.zeros((60, 80, 3), np.uint8), np.full((60, 80), 2.0, np.float32))
    >>> 20 < simulate(scene, "random:100+holes:0.5", dataset="mine").count < 80
    True
    """
    if scene.reference is None:
        raise InputError(f"{scene.name}: the scene has no reference depth, so nothing can be measured or scored.")
    source, *faults = parse_pattern(pattern)
    rng = np.random.default_rng(_seed(dataset, scene.name, pattern))
    region = _is_valid(scene.reference)
    if source.name in CASES:
        observations = observe(scene.reference, source.name, stride=stride)  # type: ignore[arg-type]
        sparse = observations.sparse
        if source.name != "distributed":
            region = observations.scored
    else:
        chosen = SOURCES[source.name].function(scene, region, source.numbers, rng)
        sparse = np.where(chosen, scene.reference, np.nan).astype(np.float32)
    for fault in faults:
        sparse = FAULTS[fault.name].function(sparse, fault.numbers, rng)
    return Observations(sparse, region & np.isnan(sparse))


def central_rectangle(height: int, width: int) -> tuple[slice, slice]:
    """Rows and columns of the centred rectangle of half the height and half the width, both rounded down.

    Examples
    --------
    >>> central_rectangle(480, 5)
    (slice(120, 360, None), slice(1, 3, None))
    """
    top, left = (height - height // 2) // 2, (width - width // 2) // 2
    return slice(top, top + height // 2), slice(left, left + width // 2)


class PatternPart(NamedTuple):
    """One part of a pattern: the name of a source or fault, and its numbers."""

    name: str
    numbers: tuple[float, ...]


def parse_pattern(pattern: str) -> tuple[PatternPart, ...]:
    """The parts of a pattern.

    Examples
    --------
    >>> parse_pattern("lidar:16+noise:0.02")
    (PatternPart(name='lidar', numbers=(16.0,)), PatternPart(name='noise', numbers=(0.02,)))
    """
    parts = []
    for position, text in enumerate(pattern.split("+")):
        name, *values = text.split(":")
        kind, known = ("source", SOURCES) if position == 0 else ("fault", FAULTS)
        if name not in known:
            raise InputError(f"the pattern {pattern!r}: {name!r} is not a {kind}; {suggestion(name, known)}")
        try:
            numbers = tuple(float(value) for value in values)
        except ValueError:
            numbers = (math.nan,)
        if not all(map(math.isfinite, numbers)) or not known[name].accepts(numbers):
            raise InputError(f"the pattern {pattern!r}: {text!r} must be written like {known[name].example}.")
        parts.append(PatternPart(name, numbers))
    return tuple(parts)


def _seed(*names: str) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()[:16], "little")


def _is_valid(reference: FloatArray) -> BoolArray:
    return np.isfinite(reference) & (reference > 0)


def _grid_means(reference: FloatArray, valid: BoolArray, stride: float) -> SparseMap:
    """The mean of each cell at its anchor, (H, W), NaN elsewhere."""
    row_edges, row_anchors = _cells(reference.shape[0], stride)
    column_edges, column_anchors = _cells(reference.shape[1], stride)
    # Summed along the rows first: that leaves an eighth of the numbers, and converts to float64 only while summing.
    totals = np.add.reduceat(np.where(valid, reference, 0), column_edges, axis=1, dtype=np.float64)
    counts = np.add.reduceat(valid.view(np.uint8), column_edges, axis=1, dtype=np.int64)
    totals, counts = (np.add.reduceat(values, row_edges, axis=0) for values in (totals, counts))
    sparse = np.full(reference.shape, np.nan, dtype=np.float32)
    means = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    sparse[np.ix_(row_anchors, column_anchors)] = means
    return sparse


def _cells(size: int, stride: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First pixel and anchor pixel of each cell along one axis."""
    count = max(1, math.floor(size / stride + 0.5))
    cells = np.arange(count)
    # Integer arithmetic, so that a centre exactly on a border is assigned to the same cell on every machine.
    first = -((count - 2 * cells * size) // (2 * count))  # ceil(k size/n - 1/2)
    return first, (2 * cells + 1) * size // (2 * count)


def _random_pixels(scene: Scene, valid: BoolArray, numbers: tuple[float, ...], rng: np.random.Generator) -> BoolArray:
    candidates = np.flatnonzero(valid)
    chosen = np.zeros(valid.shape, dtype=bool)
    chosen.flat[rng.choice(candidates, min(int(numbers[0]), candidates.size), replace=False)] = True
    return chosen


def _lidar_beams(scene: Scene, valid: BoolArray, numbers: tuple[float, ...], rng: np.random.Generator) -> BoolArray:
    """For each beam and column the pixel of nearest elevation, thinned to the azimuth steps."""
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


def _image_corners(scene: Scene, valid: BoolArray, numbers: tuple[float, ...], rng: np.random.Generator) -> BoolArray:
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
    chosen.flat[strongest[: int(numbers[0])]] = True
    return chosen


def _add_noise(sparse: SparseMap, numbers: tuple[float, ...], rng: np.random.Generator) -> SparseMap:
    noisy = sparse * (1.0 + numbers[0] * rng.standard_normal(sparse.shape))
    return np.where(noisy > 0, noisy, np.nan).astype(np.float32)


def _add_outliers(sparse: SparseMap, numbers: tuple[float, ...], rng: np.random.Generator) -> SparseMap:
    measured = np.flatnonzero(np.isfinite(sparse))
    replaced = rng.permutation(measured)[: round(numbers[0] * measured.size)]
    result = sparse.copy()
    if replaced.size:
        low, high = math.log(np.nanmin(sparse) / 2), math.log(np.nanmax(sparse) * 2)
        result.flat[replaced] = np.exp(rng.uniform(low, high, replaced.size))
    return result


def _limit_range(sparse: SparseMap, numbers: tuple[float, ...], rng: np.random.Generator) -> SparseMap:
    return np.where((sparse >= numbers[0]) & (sparse <= numbers[1]), sparse, np.float32(np.nan))


def _cut_holes(sparse: SparseMap, numbers: tuple[float, ...], rng: np.random.Generator) -> SparseMap:
    height, width = sparse.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)
    covered = np.zeros(sparse.shape, dtype=bool)
    while covered.mean() < numbers[0]:
        row, column = rng.uniform(0, height), rng.uniform(0, width)
        radius = rng.uniform(0.04, 0.16) * math.hypot(height, width)
        covered |= (rows - row) ** 2 + (columns - column) ** 2 < radius * radius
    return np.where(covered, np.float32(np.nan), sparse)


def _is_count(numbers: tuple[float, ...]) -> bool:
    return len(numbers) == 1 and numbers[0] >= 1 and numbers[0] == int(numbers[0])


def _is_lidar(numbers: tuple[float, ...]) -> bool:
    if len(numbers) not in (1, 3, 4) or not _is_count(numbers[:1]):
        return False
    return len(numbers) == 1 or (-90 < numbers[1] < numbers[2] < 90 and all(step > 0 for step in numbers[3:]))


class _Kind(NamedTuple):
    """A source or fault: how it is written, which numbers it accepts, and the function that applies it."""

    example: str
    accepts: Callable[[tuple[float, ...]], bool]
    function: Callable[..., Any]


SOURCES: dict[str, _Kind] = {
    **{case: _Kind(case, lambda numbers: not numbers, observe) for case in CASES},
    "random": _Kind("random:500", _is_count, _random_pixels),
    "lidar": _Kind("lidar:16 or lidar:16:-15:15", _is_lidar, _lidar_beams),
    "corners": _Kind("corners:300", _is_count, _image_corners),
}
FAULTS: dict[str, _Kind] = {
    "noise": _Kind("noise:0.02", lambda numbers: len(numbers) == 1 and numbers[0] >= 0, _add_noise),
    "outliers": _Kind("outliers:0.05", lambda numbers: len(numbers) == 1 and 0 <= numbers[0] <= 1, _add_outliers),
    "range": _Kind("range:0.5:5", lambda numbers: len(numbers) == 2 and 0 <= numbers[0] < numbers[1], _limit_range),
    "holes": _Kind("holes:0.2", lambda numbers: len(numbers) == 1 and 0 <= numbers[0] < 1, _cut_holes),
}
