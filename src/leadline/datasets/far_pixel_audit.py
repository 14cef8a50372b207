"""An audit of projected references for depth of surfaces that are hidden in the image; it excluded Courthouse.

Scan rays pass through gaps in foliage, and the points behind it are projected into pixels that show leaves. Such pixels
are much farther than the rest of the frame: *far* pixels are those beyond twice the median depth of the frame. If there
is a nearer scan point close by in the image, the far pixel is probably wrong. Each far pixel is therefore compared with
the minimum depth in windows of growing size, and counts as *recovered* if that depth is not far. A pixel that stays far
is either correct, or minimum pooling cannot correct it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.datasets import Dataset
from leadline.datasets.reference_statistics import measure_references
from leadline.geometry.projection import min_pool
from leadline.io.files import write_csv

RADII = (4, 8, 16)
FAR_RATIO = 2.0
FAR_FRACTION = 0.10


@dataclass(frozen=True)
class FrameAudit:
    """Numbers of valid pixels and of far pixels in one frame, and of recovered far pixels for each radius."""

    name: str
    valid: int
    far: int
    recovered: tuple[int, ...]

    @property
    def far_fraction(self) -> float:
        """Far pixels as a fraction of the valid ones; NaN if there are none."""
        return self.far / self.valid if self.valid else math.nan


@dataclass(frozen=True)
class Audit:
    """All frames, the radii in pixels of the full resolution, and the frames that could not be read, with the error."""

    radii: tuple[int, ...]
    frames: tuple[FrameAudit, ...]
    failures: tuple[tuple[str, str], ...]

    def fraction_of_frames(self, limit: float = FAR_FRACTION) -> float:
        """Fraction of the frames in which the fraction of far pixels is larger than `limit`."""
        return sum(frame.far_fraction > limit for frame in self.frames) / len(self.frames)

    @property
    def far_fraction(self) -> float:
        """Far pixels of all frames as a fraction of the valid ones; NaN if there are none."""
        valid = sum(frame.valid for frame in self.frames)
        return sum(frame.far for frame in self.frames) / valid if valid else math.nan

    @property
    def recovered(self) -> tuple[float, ...]:
        """For each radius, the recovered fraction of the far pixels of all frames; NaN if there are none."""
        far = sum(frame.far for frame in self.frames)
        counts = (sum(frame.recovered[index] for frame in self.frames) for index in range(len(self.radii)))
        return tuple(count / far if far else math.nan for count in counts)


def audit_frame(
    name: str,
    reference: FloatArray,
    fine: FloatArray | None = None,
    *,
    radii: Sequence[int] = RADII,
    far_ratio: float = FAR_RATIO,
) -> FrameAudit:
    """Count the far pixels of one reference and those that minimum pooling recovers.

    A pixel is far if its depth exceeds `far_ratio` times the median of the reference. `fine`, the reference itself by
    default, is the nearest depth of the same image at full resolution, (h, w); `radii` are those of the windows in its
    pixels. The window of a pixel of the reference is centred at the pixel of `fine` that covers its centre.
    """
    fine = reference if fine is None else fine
    pooled = {radius: min_pool(fine, radius) for radius in radii}
    with np.errstate(invalid="ignore"):
        valid = np.isfinite(reference) & (reference > 0)
    count = int(valid.sum())
    bound = far_ratio * float(np.median(reference[valid])) if count else math.nan
    rows, columns = np.nonzero(valid & (np.where(valid, reference, 0) > bound))
    below, right = (
        (2 * place + 1) * size // (2 * given)
        for place, size, given in zip((rows, columns), fine.shape, reference.shape, strict=True)
    )
    recovered = tuple(int(np.count_nonzero(pooled[radius][below, right] <= bound)) for radius in radii)
    return FrameAudit(name, count, len(rows), recovered)


def audit(
    dataset: Dataset,
    *,
    radii: Sequence[int] = RADII,
    far_ratio: float = FAR_RATIO,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """`audit_frame` of every image, at full resolution where the data set can project it."""
    if not radii or not all(isinstance(radius, int) and radius >= 0 for radius in radii):
        raise InputError(f"{param('radii')} must be one or more integers of pixels, got {radii!r} instead.")
    if not far_ratio > 1:
        raise InputError(f"{param('far_ratio')} must be above 1, got {far_ratio!r} instead.")
    project: Callable[[str], FloatArray | None] = getattr(dataset, "fine_depth", lambda name: None)

    def measure(name: str, reference: FloatArray) -> FrameAudit:
        return audit_frame(name, reference, project(name), radii=radii, far_ratio=far_ratio)

    return Audit(tuple(radii), *measure_references(dataset, measure, progress=progress))


def write_audit(result: Audit, path: Path) -> None:
    """Write a CSV table with a row per frame."""
    lines = [["image", "valid_pixels", "far_pixels", *(f"recovered_{radius}" for radius in result.radii)]]
    lines += [[frame.name, *map(str, (frame.valid, frame.far, *frame.recovered))] for frame in result.frames]
    write_csv(path, lines)
