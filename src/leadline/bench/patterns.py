"""Which pixels are measured, and how well: the paper's three cases and further patterns, as short strings.

A pattern is one of the sources below, followed by any number of faults, joined by plus signs:
``"distributed"``, ``"random:500"``, ``"lidar:16+noise:0.02+range:1:20"``.

==========================  ================================================================================
source                      measured
==========================  ================================================================================
distributed, central,       the low-resolution grid of `observations`
outer
random:N                    N pixels, drawn evenly from those with a reference
lidar:N[:LOW:HIGH[:STEP]]   N beams of constant elevation, evenly from LOW to HIGH degrees above the horizon (by
                            default over the camera's own vertical field of view), every STEP degrees of azimuth
                            (0.2). Beams are cones about the camera's vertical axis: they curve in the image
corners:N                   the N strongest corners of the picture that are apart: where structure from motion
                            finds its points
==========================  ================================================================================

==========================  ================================================================================
fault                       does
==========================  ================================================================================
noise:S                     multiplies each measurement by 1 + S times a standard normal number
outliers:P                  replaces a share P of the measurements by depths drawn evenly in the logarithm
                            between half the nearest and twice the farthest
range:LOW:HIGH              drops measurements outside this range, in metres
holes:P                     drops measurements in random discs that together cover a share P of the image
==========================  ================================================================================

Everything random is drawn from a generator seeded by the data set's name, the image's name and the pattern, so that
neither the order of the work nor the machine it is done on changes a measurement. Scored is every pixel with a
reference that was not given to the method (for central and outer: in their region); those that a fault has dropped
are ordinary held-out pixels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError
from leadline.bench.observations import CASES, central_rectangle, observe
from leadline.datasets.scene import Scene

Map = NDArray[np.float32]
AZIMUTH_STEP = 0.2  # degrees: that of a rotating LiDAR at 10 Hz
APART = 4  # pixels between corners, along either axis


class Step(NamedTuple):
    """One part of a pattern: its name and its numbers."""

    name: str
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """What a method is given, and where it is scored."""

    sparse: Map  # (H, W) metres, NaN where not measured
    scored: BoolArray  # (H, W)


def parse(pattern: str) -> tuple[Step, ...]:
    """The parts of a pattern.

    Raises
    ------
    InputError
        A part is unknown, stands in the wrong place, or has the wrong numbers.

    Examples
    --------
    >>> parse("lidar:16+noise:0.02")
    (Step(name='lidar', numbers=(16.0,)), Step(name='noise', numbers=(0.02,)))
    """
    steps = []
    for place, part in enumerate(pattern.split("+")):
        name, *texts = part.split(":")
        known = SOURCES if place == 0 else FAULTS
        if name not in known:
            what = "a source" if place == 0 else "a fault"
            raise InputError(f"the pattern {pattern!r} must have {what} at {part!r}, one of {', '.join(known)}.")
        form, check = known[name]
        try:
            numbers = tuple(float(text) for text in texts)
        except ValueError:
            numbers = (math.nan,)
        if not all(map(math.isfinite, numbers)) or not check(numbers):
            raise InputError(f"the pattern {pattern!r} must be like {form!r} at {part!r}.")
        steps.append(Step(name, numbers))
    return tuple(steps)


class Sensor:
    """Takes the measurements of one scene under one pattern after the other.

    Parameters
    ----------
    scene : Scene
        With a reference; ``lidar`` needs its camera too.
    dataset : str
        Name of the data set, a part of the seed.
    stride : float
        Of the grid of the three cases, in pixels.

    Raises
    ------
    InputError
        The scene has no reference.

    Examples
    --------
    >>> scene = Scene("a", np.zeros((60, 80, 3), np.uint8), np.full((60, 80), 2.0, np.float32))
    >>> measured = Sensor(scene, dataset="mine").measure("random:100+holes:0.5")
    >>> 20 < int(np.isfinite(measured.sparse).sum()) < 80
    True
    """

    def __init__(self, scene: Scene, *, dataset: str, stride: float = 7.5) -> None:
        if scene.reference is None:
            raise InputError(f"{scene.name}: has no reference depth: nothing to measure, nothing to score against.")
        self.scene, self.dataset = scene, dataset
        self.reference = scene.reference
        self._valid = np.isfinite(scene.reference) & (scene.reference > 0)
        self._grid = observe(scene.reference, "distributed", stride=stride).sparse

    def measure(self, pattern: str) -> Measured:
        """The measurements, and the pixels on which they are scored.

        Raises
        ------
        InputError
            The pattern is unknown, or the scene lacks what it needs.
        """
        source, *faults = parse(pattern)
        rng = np.random.default_rng(_seed(self.dataset, self.scene.name, pattern))
        region = self._valid
        if source.name in CASES:
            sparse, region = self._case(source.name)
        else:
            chosen = _PICK[source.name](self.scene, self._valid, source.numbers, rng)
            sparse = np.where(chosen, self.reference, np.nan).astype(np.float32)
        for fault in faults:
            sparse = _SPOIL[fault.name](sparse, fault.numbers, rng)
        return Measured(sparse, region & np.isnan(sparse))

    def _case(self, case: str) -> tuple[Map, BoolArray]:
        """`observe`, whose cases share their cell means: those are formed once."""
        if case == "distributed":
            return self._grid, self._valid
        inside = np.zeros(self._valid.shape, dtype=bool)
        inside[central_rectangle(*self._valid.shape)] = True
        removed = inside if case == "central" else ~inside
        return np.where(removed, np.float32(np.nan), self._grid), self._valid & removed


def _seed(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:16], "little")


def _random(scene: Scene, valid: BoolArray, numbers: tuple[float, ...], rng: np.random.Generator) -> BoolArray:
    places = np.flatnonzero(valid)
    chosen = np.zeros(valid.shape, dtype=bool)
    chosen.flat[rng.choice(places, min(int(numbers[0]), places.size), replace=False)] = True
    return chosen


def _lidar(scene: Scene, valid: BoolArray, numbers: tuple[float, ...], rng: np.random.Generator) -> BoolArray:
    """For each beam and column the pixel nearest in elevation, thinned to the steps of the azimuth."""
    if scene.camera is None:
        raise InputError(f"{scene.name}: has no camera, and the beams of the pattern 'lidar' need one.")
    rays = scene.camera.points(np.ones(valid.shape, dtype=np.float32))
    x, y = rays[..., 0], rays[..., 1]
    elevation = np.degrees(np.arctan2(-y, np.hypot(x, 1.0)))
    azimuth = np.degrees(np.arctan(x))
    beams = int(numbers[0])
    middle = elevation[:, valid.shape[1] // 2]
    low, high = numbers[1:3] if len(numbers) > 1 else (float(middle.min()), float(middle.max()))
    step = numbers[3] if len(numbers) > 3 else AZIMUTH_STEP
    # Beams in the middles of equal parts, so that none lies on the image's border.
    angles = (
        low + (np.arange(beams) + 0.5) * (high - low) / beams if len(numbers) < 2 else np.linspace(low, high, beams)
    )
    columns = np.arange(valid.shape[1])
    chosen = np.zeros(valid.shape, dtype=bool)
    # Half of the largest step between rows: a beam above or below the picture is not in it.
    reach = 0.5 * float(np.abs(np.diff(elevation, axis=0)).max(initial=0.0))
    for angle in angles:
        off = np.abs(elevation - angle)
        rows = off.argmin(axis=0)
        seen = off[rows, columns] <= reach
        shots = np.rint(azimuth[rows, columns] / step)
        miss = np.abs(azimuth[rows, columns] - shots * step)
        order = np.lexsort((miss, shots))
        order = order[seen[order]]
        _, first = np.unique(shots[order], return_index=True)
        kept = order[first]
        chosen[rows[kept], columns[kept]] = True
    return chosen & valid


def _corners(scene: Scene, valid: BoolArray, numbers: tuple[float, ...], rng: np.random.Generator) -> BoolArray:
    """Largest smaller eigenvalue of the structure tensor, and the largest of all pixels around."""
    grey = scene.image.astype(np.float32).mean(axis=2)
    down, across = np.gradient(grey) if min(grey.shape) > 1 else (np.zeros_like(grey), np.zeros_like(grey))
    xx, xy, yy = (_box(values) for values in (across * across, across * down, down * down))
    strength = np.where(valid, 0.5 * (xx + yy) - np.sqrt(0.25 * (xx - yy) ** 2 + xy * xy), -1.0)
    # Ranks have no ties, so that of a plateau one pixel is left.
    order = np.argsort(strength, axis=None, kind="stable")
    rank = np.empty(strength.shape, np.int64)
    rank.flat[order] = np.arange(strength.size)
    largest: NDArray[np.int64] = rank
    for axis in (0, 1):
        pad = [(APART, APART) if axis == own else (0, 0) for own in (0, 1)]
        largest = np.lib.stride_tricks.sliding_window_view(np.pad(largest, pad), 2 * APART + 1, axis=axis).max(axis=-1)
    chosen = np.zeros(valid.shape, dtype=bool)
    strongest = order[::-1][((largest == rank) & (strength > 0)).flat[order[::-1]]]
    chosen.flat[strongest[: int(numbers[0])]] = True
    return chosen


def _box(values: FloatArray, reach: int = 2) -> NDArray[np.float64]:
    """Sums over squares of 2 reach + 1 pixels, the border repeated."""
    padded = np.pad(values.astype(np.float64), ((reach + 1, reach), (reach + 1, reach)), mode="edge")
    total = padded.cumsum(axis=0).cumsum(axis=1)
    size = 2 * reach + 1
    sums: NDArray[np.float64] = (
        total[size:, size:] - total[:-size, size:] - total[size:, :-size] + total[:-size, :-size]
    )
    return sums


def _noise(sparse: Map, numbers: tuple[float, ...], rng: np.random.Generator) -> Map:
    spoilt = sparse * (1.0 + numbers[0] * rng.standard_normal(sparse.shape))
    return np.where(spoilt > 0, spoilt, np.nan).astype(np.float32)


def _outliers(sparse: Map, numbers: tuple[float, ...], rng: np.random.Generator) -> Map:
    places = np.flatnonzero(np.isfinite(sparse))
    hit = rng.permutation(places)[: round(numbers[0] * places.size)]
    spoilt = sparse.copy()
    if hit.size:
        low, high = math.log(np.nanmin(sparse) / 2), math.log(np.nanmax(sparse) * 2)
        spoilt.flat[hit] = np.exp(rng.uniform(low, high, hit.size))
    return spoilt


def _range(sparse: Map, numbers: tuple[float, ...], rng: np.random.Generator) -> Map:
    return np.where((sparse >= numbers[0]) & (sparse <= numbers[1]), sparse, np.float32(np.nan))


def _holes(sparse: Map, numbers: tuple[float, ...], rng: np.random.Generator) -> Map:
    height, width = sparse.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)
    covered = np.zeros(sparse.shape, dtype=bool)
    while covered.mean() < numbers[0]:
        row, column = rng.uniform(0, height), rng.uniform(0, width)
        radius = rng.uniform(0.04, 0.16) * math.hypot(height, width)
        covered |= (rows - row) ** 2 + (columns - column) ** 2 < radius * radius
    return np.where(covered, np.float32(np.nan), sparse)


Check = Callable[[tuple[float, ...]], bool]


def _counts(numbers: tuple[float, ...]) -> bool:
    return len(numbers) == 1 and numbers[0] >= 1 and numbers[0] == int(numbers[0])


def _beams(numbers: tuple[float, ...]) -> bool:
    if len(numbers) not in (1, 3, 4) or not _counts(numbers[:1]):
        return False
    return len(numbers) == 1 or (-90 < numbers[1] < numbers[2] < 90 and all(step > 0 for step in numbers[3:]))


def _share(numbers: tuple[float, ...]) -> bool:
    return len(numbers) == 1 and 0 <= numbers[0] <= 1


SOURCES: dict[str, tuple[str, Check]] = {
    **{case: (case, lambda numbers: not numbers) for case in CASES},
    "random": ("random:500", _counts),
    "lidar": ("lidar:16' or 'lidar:16:-15:15", _beams),
    "corners": ("corners:300", _counts),
}
FAULTS: dict[str, tuple[str, Check]] = {
    "noise": ("noise:0.02", lambda numbers: len(numbers) == 1 and numbers[0] >= 0),
    "outliers": ("outliers:0.05", _share),
    "range": ("range:0.5:5", lambda numbers: len(numbers) == 2 and 0 <= numbers[0] < numbers[1]),
    "holes": ("holes:0.2", lambda numbers: len(numbers) == 1 and 0 <= numbers[0] < 1),
}

_PICK = {"random": _random, "lidar": _lidar, "corners": _corners}
_SPOIL = {"noise": _noise, "outliers": _outliers, "range": _range, "holes": _holes}
