"""Statistics of the references of a data set: coverage, holes, connectivity and depth.

Coverage, holes and connectivity are measured per image, and their percentiles are taken over the images; depth is
pooled over all valid pixels. Regions are 4-connected, valid regions and holes alike. The paper does not state its
choice, and this is the common one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray, as_map
from leadline.base.errors import FileError, LeadlineError
from leadline.datasets import Dataset
from leadline.io.files import write_csv

PERCENTILES = (7, 16, 31, 50, 69, 84, 93)

# Names of the subsets in the paper's tables. Each scene of Tanks and Temples is a separate subset.
SUBSETS = {
    "diode-indoor": "DIODE-in",
    "diode-outdoor": "DIODE-out",
    "eth3d": "ETH3D",
    "ibims": "iBims",
    "arkit": "ARKit",
}

_NEAREST, _FARTHEST = 1e-4, 1e5  # metres; limits of the histogram of pooled depth
_STEP = 1e-4  # width of a bin in log depth
_BINS = math.ceil(math.log(_FARTHEST / _NEAREST) / _STEP)
_MEASURED = ("valid_fraction", "hole_fraction", "largest_component")

Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Support:
    """Where one image has reference depth, as numbers of pixels."""

    pixels: int
    valid: int  # with depth
    holes: int  # without depth, and enclosed by valid pixels
    largest: int  # in the largest connected valid region

    @property
    def valid_fraction(self) -> float:
        return self.valid / self.pixels

    @property
    def hole_fraction(self) -> float:
        """Area of the interior holes as a fraction of the support with its holes filled; NaN without support."""
        return self.holes / (self.valid + self.holes) if self.valid else math.nan

    @property
    def largest_component(self) -> float:
        """Fraction of the valid pixels in the largest connected region; NaN without support."""
        return self.largest / self.valid if self.valid else math.nan


@dataclass(frozen=True)
class GeometryRow:
    """One row of ``reference_geometry.csv``: one percentile of one subset."""

    percentile: int
    subset: str
    images: int
    valid_pixels: int
    valid_fraction: float
    hole_fraction: float
    largest_component: float
    depth_m: float


@dataclass(frozen=True)
class Geometry:
    """Statistics of a data set's references, and the images that could not be read, each with the error."""

    rows: tuple[GeometryRow, ...]
    images: tuple[tuple[str, Support], ...]
    failures: tuple[tuple[str, str], ...]


class DepthHistogram:
    """Percentiles of any number of depths in 1.7 MB, from a histogram of log depth with bins of equal width.

    A percentile is within a relative 5e-5, half a bin, of that of `numpy.percentile`, as long as all depths lie between
    0.1 mm and 100 km; depths outside of these limits count as the limits.
    """

    def __init__(self) -> None:
        self._bins = np.zeros(_BINS, dtype=np.int64)

    @property
    def count(self) -> int:
        return int(self._bins.sum())

    def add(self, depth: FloatArray) -> None:
        """Count the finite positive values of an array in metres."""
        values = depth[np.isfinite(depth) & (depth > 0)].astype(np.float64)
        index = np.floor(np.log(values / _NEAREST) / _STEP).astype(np.int64)
        self._bins += np.bincount(np.clip(index, 0, _BINS - 1), minlength=_BINS)

    def percentile(self, percentile: float) -> float:
        """The percentile in metres, interpolated linearly between neighbouring depths; NaN if there are none."""
        count = self.count
        if not count:
            return math.nan
        rank = percentile / 100 * (count - 1)
        below = math.floor(rank)
        ends = np.cumsum(self._bins)
        bins = (int(np.searchsorted(ends, place, side="right")) for place in (below, math.ceil(rank)))
        low, high = (_NEAREST * math.exp((index + 0.5) * _STEP) for index in bins)
        return low + (rank - below) * (high - low)


def support(reference: FloatArray) -> Support:
    """Coverage, holes and connectivity of an (H, W) reference, in which NaN, inf and values <= 0 are invalid."""
    from scipy import ndimage

    reference = as_map(reference, "reference")
    with np.errstate(invalid="ignore"):
        valid: BoolArray = np.isfinite(reference) & (reference > 0)
    labels, count = ndimage.label(valid)
    largest = int(np.bincount(labels.ravel())[1:].max()) if count else 0
    holes = int(np.count_nonzero(ndimage.binary_fill_holes(valid) & ~valid))
    return Support(valid.size, int(valid.sum()), holes, largest)


def reference_geometry(
    dataset: Dataset,
    *,
    names: Sequence[str] | None = None,
    subset: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Geometry:
    """Statistics of the references of all images, or of those named, by subset, in the paper's columns.

    Images are read one at a time, and only their counts are stored. An image without a valid pixel counts for the
    coverage, but not for the percentiles of holes and connectivity, which are undefined for it. `subset` is the name in
    the table; by default that of the paper, or the result of the data set's ``subset(name)``.
    """
    depths: dict[str, DepthHistogram] = {}
    supports: dict[str, list[Support]] = {}
    own: Callable[[str], str] = getattr(dataset, "subset", lambda name: SUBSETS.get(dataset.name, dataset.name))

    def measure(name: str) -> tuple[str, Support]:
        reference = read_reference(dataset, name)
        where, found = subset or own(name), support(reference)
        depths.setdefault(where, DepthHistogram()).add(reference)
        supports.setdefault(where, []).append(found)
        return name, found

    images, failures = measure_images(dataset, measure, names, progress)
    rows = [_row(percentile, where, supports[where], depths[where]) for percentile in PERCENTILES for where in supports]
    return Geometry(tuple(rows), images, failures)


def read_reference(dataset: Dataset, name: str) -> FloatArray:
    """The reference of an image; `FileError` if it has none."""
    reference = dataset.load(name).reference
    if reference is None:
        raise FileError(f"{name}: has no reference depth.")
    return reference


def measure_images(
    dataset: Dataset,
    measure: Callable[[str], Measured],
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[Measured, ...], tuple[tuple[str, str], ...]]:
    """Apply `measure` to the name of each image; also return the images that cannot be read, with the error.

    `names` are all images by default. `progress` is called with the number of images read so far and in all.
    """
    names = dataset.names() if names is None else names
    results: list[Measured] = []
    failures: list[tuple[str, str]] = []
    for index, name in enumerate(names):
        try:
            results.append(measure(name))
        except LeadlineError as error:
            failures.append((name, str(error)))
        if progress is not None:
            progress(index + 1, len(names))
    if not results:
        raise FileError(f"The data set {dataset.name!r}: none of its {len(names)} images can be used. {failures[0][1]}")
    return tuple(results), tuple(failures)


def write_reference_geometry(geometry: Geometry, folder: Path) -> list[Path]:
    """Write ``reference_geometry.csv``, as the paper's, and ``reference_geometry_images.csv``, a row per image."""
    table = [["percentile", "subset", "images", "valid_pixels", *_MEASURED, "depth_m"]]
    for row in geometry.rows:
        shares = [_decimals(getattr(row, name), 4) for name in _MEASURED]
        counts = [str(row.percentile), row.subset, str(row.images), str(row.valid_pixels)]
        table.append([*counts, *shares, _decimals(row.depth_m, 3)])
    single = [["image", "pixels", "valid_pixels", *_MEASURED]]
    for name, found in geometry.images:
        shares = [repr(getattr(found, measure)) for measure in _MEASURED]
        single.append([name, str(found.pixels), str(found.valid), *shares])
    paths = [folder / "reference_geometry.csv", folder / "reference_geometry_images.csv"]
    for path, lines in zip(paths, (table, single), strict=True):
        write_csv(path, lines)
    return paths


def _row(percentile: int, subset: str, supports: list[Support], depth: DepthHistogram) -> GeometryRow:
    measured = {}
    for name in _MEASURED:
        values = [value for value in (getattr(found, name) for found in supports) if not math.isnan(value)]
        measured[name] = float(np.percentile(values, percentile)) if values else math.nan
    valid = sum(found.valid for found in supports)
    return GeometryRow(percentile, subset, len(supports), valid, **measured, depth_m=depth.percentile(percentile))


def _decimals(value: float, places: int) -> str:
    """The number as in the paper's tables, without the zero before the point."""
    return f"{value:.{places}f}".removeprefix("0")
