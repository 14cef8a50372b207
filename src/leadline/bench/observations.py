"""Simulated measurements of a scene: the paper's three cases and further patterns.

A *pattern* is a short text: a source of measurements, followed by any number of faults, joined by plus signs. Examples
are ``distributed``, ``random:500`` and ``lidar:16+noise:0.02+range:1:20``.

==========================  ================================================================================
source                      measured pixels
==========================  ================================================================================
distributed, central,       the paper's low-resolution grid, see `observe`. ``distributed:floor`` or ``:ceil`` round
outer                       the number of cells differently, ``distributed:valid-anchors`` leaves out anchors at pixels
                            without a reference; ``distributed:floor:valid-anchors`` does both
stored, stored:LABEL        the measurements that come with the image (`Scene.sparse`): a real sweep, points of
                            odometry or structure from motion, a low-resolution sensor; maps of another size are moved
                            to the nearest pixels
dense                       every pixel with a reference depth
random:N                    N pixels, sampled uniformly from those with a reference depth
share:P                     a share P of the pixels with a reference depth, sampled uniformly
lidar:N[:LOW:HIGH[:STEP]]   N beams of constant elevation, equally spaced from LOW to HIGH degrees above the horizon
                            (default: the vertical field of view of the camera), one measurement every STEP degrees
                            of azimuth (default: 0.2). The beams are cones about the camera's vertical axis, so they
                            are curves in the image
corners:N                   the N strongest image corners with a minimum distance, where structure from motion
                            typically finds its points
marigold:N[:SEED]           N pixels as Marigold-DC samples them; its seed is 2024
randperm:N[:SEED]           N pixels by ``torch.randperm``, as NLSPN, PriorDA and OMNI-DC on NYU; default seed 43
omni:N[:SEED]               N pixels times the valid fraction, as OMNI-DC elsewhere; default seed 43
omni-lidar:N                N lines of 200 points of a virtual LiDAR, as OMNI-DC and PriorDA
keypoints:sift, :orb        OpenCV's key points, as OMNI-DC and PriorDA (extra ``opencv``)
square:N                    every pixel outside a square of N pixels at a random place, PriorDA's missing area
lowres:N                    the reference reduced by a factor of N, PriorDA's low resolution
==========================  ================================================================================

==========================  ================================================================================
fault                       effect
==========================  ================================================================================
noise:S                     multiplies each measurement by 1 + S z with standard normal z
outliers:P                  replaces a share P of the measurements by depths whose logarithm is uniform between half
                            the smallest and twice the largest measurement
range:LOW:HIGH              removes measurements outside this range in metres, and at its ends
holes:P                     removes measurements inside random discs that cover a share P of the image
lines:N                     thins a sweep of 64 lines to N by bins of pitch, as OMNI-DC does (`thin_lines`)
behind[:W:T]                removes points more than T metres behind the foreground of windows of W pixels, as VPP4DC
                            and Marigold-DC do (`remove_behind`); default 7 pixels and 1.5 m
shift:DX[:DY]               moves all measurements by so many pixels to the right and down: a wrong registration
omni-noise:P[:SEED]         replaces a share P by depths uniform between the percentiles 10 and 90, as OMNI-DC does
==========================  ================================================================================

The random generator is seeded with the names of the data set, the image and the pattern, so that the measurements
depend neither on the order of the work nor on the machine.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray, as_map
from leadline.base.errors import InputError, param, require_choice
from leadline.base.registry import suggestion
from leadline.bench.patterns import pixels, published
from leadline.bench.patterns.faults import FAULTS, SparseMap
from leadline.bench.patterns.parts import (
    PatternKind,
    PatternPart,
    is_count,
    is_count_with_seed,
    is_empty,
    is_fraction,
    parse_part,
)
from leadline.datasets import Scene
from leadline.geometry.grids import Rounding, cell_means, grid_cells, scatter_nearest

Case = Literal["distributed", "central", "outer"]
CASES: tuple[Case, ...] = get_args(Case)
STRIDE = 7.5  # nominal distance between the paper's measurements, in pixels


@dataclass(frozen=True, eq=False)
class Observations:
    """The measurements that a method receives, and the pixels on which its result is scored."""

    sparse: SparseMap  # (H, W) metres, NaN where not measured
    scored: BoolArray  # (H, W)
    region: BoolArray  # (H, W) `scored` and the measured pixels of the same region that have a reference

    @property
    def count(self) -> int:
        """Number of measurements."""
        return int(np.count_nonzero(np.isfinite(self.sparse)))


def observe(
    reference: FloatArray,
    case: Case,
    *,
    stride: float = STRIDE,
    rounding: Rounding = "round",
    valid_anchors: bool = False,
) -> Observations:
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

    - There are n = max(1, floor(size / stride + 1/2)) cells of size / n pixels, see `grid_cells`. The nominal stride of
      7.5 becomes 640/85 = 7.53 at 640 pixels and exactly 7.5 at 480, so that no cell is cut off at the border.
      `rounding` takes floor or ceil instead.
    - Cell k contains the pixels whose centre u + 1/2 lies in [k size/n, (k + 1) size/n). Each pixel is in one cell.
    - The anchor of a cell is the pixel that covers its centre, floor((k + 1/2) size/n).

    The value of a cell is the mean of its valid reference depths, and the anchor receives it even if the reference is
    invalid at the anchor itself; with `valid_anchors` such a cell has no anchor. A cell without valid depth has none
    either. The central rectangle removes anchors by
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
    sparse = _grid_means(reference, stride, rounding)
    if valid_anchors:
        sparse[~valid] = np.nan
    if case == "distributed":
        return Observations(sparse, valid & np.isnan(sparse), valid)
    removed = np.zeros(valid.shape, dtype=bool)
    removed[central_rectangle(*valid.shape)] = True
    if case == "outer":
        removed = ~removed
    sparse[removed] = np.nan
    return Observations(sparse, valid & removed, valid & removed)


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
        rounding: Any = next((word for word in source.words if word in ("floor", "ceil")), "round")
        observations = observe(
            scene.reference,
            source.name,  # type: ignore[arg-type]
            stride=stride,
            rounding=rounding,
            valid_anchors="valid-anchors" in source.words,
        )
        sparse = observations.sparse
        if source.name != "distributed":
            region = observations.scored
    else:
        found = SOURCES[source.name].function(scene, region, source, rng)
        # A source gives the measured pixels or, where it does not measure the reference itself, the measurements.
        sparse = np.where(found, scene.reference, np.nan).astype(np.float32) if found.dtype == bool else found
    for fault in faults:
        sparse = FAULTS[fault.name].function(sparse, fault, scene, rng)
    return Observations(sparse, region & np.isnan(sparse), region)


def central_rectangle(height: int, width: int) -> tuple[slice, slice]:
    """Rows and columns of the centred rectangle of half the height and half the width, both rounded down.

    Examples
    --------
    >>> central_rectangle(480, 5)
    (slice(120, 360, None), slice(1, 3, None))
    """
    top, left = (height - height // 2) // 2, (width - width // 2) // 2
    return slice(top, top + height // 2), slice(left, left + width // 2)


def parse_pattern(pattern: str) -> tuple[PatternPart, ...]:
    """The parts of a pattern.

    Examples
    --------
    >>> parse_pattern("lidar:16+noise:0.02")
    (PatternPart(name='lidar', numbers=(16.0,), words=()), PatternPart(name='noise', numbers=(0.02,), words=()))
    """
    parts = []
    for position, text in enumerate(pattern.split("+")):
        kind, known = ("source", SOURCES) if position == 0 else ("fault", FAULTS)
        part = parse_part(text, known)
        if part.name not in known:
            raise InputError(f"the pattern {pattern!r}: {part.name!r} is not a {kind}; {suggestion(part.name, known)}")
        if not known[part.name].accepts(part):
            raise InputError(f"the pattern {pattern!r}: {text!r} must be written like {known[part.name].example}.")
        parts.append(part)
    return tuple(parts)


def _seed(*names: str) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()[:16], "little")


def _is_valid(reference: FloatArray) -> BoolArray:
    return np.isfinite(reference) & (reference > 0)


def _grid_means(reference: FloatArray, stride: float, rounding: Rounding) -> SparseMap:
    """The mean of each cell at its anchor, (H, W), NaN elsewhere."""
    sparse = np.full(reference.shape, np.nan, dtype=np.float32)
    anchors = (grid_cells(size, stride, rounding)[1] for size in reference.shape)
    sparse[np.ix_(*anchors)] = cell_means(reference, stride, rounding)
    return sparse


def _is_detector(part: PatternPart) -> bool:
    return not part.numbers and part.words in (("sift",), ("orb",))


def _is_grid(part: PatternPart) -> bool:
    words = set(part.words)
    return not part.numbers and words <= {"floor", "ceil", "valid-anchors"} and not {"floor", "ceil"} <= words


def _stored(scene: Scene, valid: BoolArray, part: PatternPart, rng: np.random.Generator) -> SparseMap:
    """The measurements that come with the scene; those of another size are moved to the nearest pixels."""
    labels = ", ".join(scene.sparse) or "none"
    if not part.words and len(scene.sparse) != 1:
        raise InputError(
            f"{scene.name}: the pattern 'stored' needs a label if a scene has not exactly one map of measurements; "
            f"it has {labels}."
        )
    label = part.words[0] if part.words else next(iter(scene.sparse))
    if label not in scene.sparse:
        raise InputError(f"{scene.name}: has no stored measurements {label!r}; it has {labels}.")
    values = scene.sparse[label].values
    if values.shape != valid.shape:
        values = scatter_nearest(values, (valid.shape[0], valid.shape[1]))[0]
    return np.where(_is_valid(values), values, np.nan).astype(np.float32)


SOURCES: dict[str, PatternKind] = {
    **{case: PatternKind(f"{case} or {case}:floor:valid-anchors", _is_grid, observe) for case in CASES},
    "stored": PatternKind("stored or stored:LABEL", lambda part: part.words != ("",), _stored, takes_label=True),
    "dense": PatternKind("dense", is_empty, pixels.all_pixels),
    "random": PatternKind("random:500", is_count, pixels.random_pixels),
    "share": PatternKind("share:0.9", is_fraction, pixels.share_of_pixels),
    "lidar": PatternKind("lidar:16 or lidar:16:-15:15", pixels.is_lidar, pixels.lidar_beams),
    "corners": PatternKind("corners:300", is_count, pixels.image_corners),
    "marigold": PatternKind("marigold:1000 or marigold:1000:2024", is_count_with_seed, published.marigold_pixels),
    "randperm": PatternKind("randperm:500 or randperm:500:43", is_count_with_seed, published.permuted_pixels),
    "omni": PatternKind("omni:2150 or omni:2150:43", is_count_with_seed, published.density_pixels),
    "omni-lidar": PatternKind("omni-lidar:64", is_count, published.virtual_lidar),
    "keypoints": PatternKind("keypoints:sift or keypoints:orb", _is_detector, published.keypoints),
    "square": PatternKind("square:160", is_count, published.square_hole),
    "lowres": PatternKind("lowres:8", is_count, published.low_resolution),
}
