"""An audit of projected references for depth of surfaces that are hidden in the image; the paper excludes Courthouse.

Scan rays pass through gaps in foliage, and the points behind it are projected into pixels that show leaves. Such pixels
are much farther than the rest of the frame: *far* pixels are those beyond twice the median depth of the frame. If there
is a nearer scan point close by in the image, the far pixel is probably wrong. Each far pixel is therefore compared with
the minimum depth in windows of growing size, and counts as *recovered* if that depth is not far. A pixel that stays far
is either correct, or minimum pooling cannot correct it.

The audit looks at the unfiltered reference: options that remove pixels have no effect on it. Two checks rule out other
causes, as in the paper (appendix on the choice of scenes):

- Reprojection: points of the scan, projected one by one by COLMAP's camera, are compared with the rendered reference,
  from the cache if there is one. The median difference is in millimetres. The paper reports 4 to 9 mm and does not
  describe its check.
- Colour: the grey values of the same points are correlated with those of the image at their pixels, and with the image
  shifted by a quarter of its width. A correct pose gives a high correlation, and a higher one than the shifted image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.datasets import Dataset
from leadline.datasets.reference_statistics import measure_images, read_reference
from leadline.geometry.projection import min_pool
from leadline.io.files import write_csv

if TYPE_CHECKING:
    from leadline.datasets.tanks import ScanProjection

RADII = (4, 8, 16)
FAR_RATIO = 2.0
FAR_FRACTION = 0.10
# A point farther than the rendered depth by more than this factor belongs to a surface that the frame does not show.
VISIBLE_RATIO = 1.02


@dataclass(frozen=True)
class FrameAudit:
    """Numbers of valid pixels and of far pixels in one frame, of recovered far pixels for each radius, and the checks.

    The checks are NaN where the data set has no scan, or the scan no colours.
    """

    name: str
    valid: int
    far: int
    recovered: tuple[int, ...]
    reprojection_mm: float = math.nan  # median distance of visible scan points from the rendered depth, along z
    colour_correlation: float = math.nan  # of grey values of visible scan points and their pixels
    shifted_correlation: float = math.nan  # the same with the image shifted by a quarter of its width

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

    def quartiles(self, check: str) -> tuple[float, float, float] | None:
        """The quartiles over the frames of a check of `FrameAudit`, by its name; None if no frame has it."""
        values = [value for value in (getattr(frame, check) for frame in self.frames) if not math.isnan(value)]
        if not values:
            return None
        low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
        return low, middle, high


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


def check_scan(scan: ScanProjection) -> tuple[float, float, float]:
    """Median distance in mm of visible scan points from the rendered depth, and the two correlations of `FrameAudit`.

    A point is visible if it is at most `VISIBLE_RATIO` times as far as the rendered depth of its pixel. Points in front
    of the rendered depth are included: there are none if the depth was rendered from this scan with this pose.
    """
    rows, columns = scan.pixels.T
    rendered = scan.reference[rows, columns].astype(np.float64)
    with np.errstate(invalid="ignore"):
        visible = scan.depth <= VISIBLE_RATIO * rendered  # false where nothing is rendered
    if not visible.any():
        return math.nan, math.nan, math.nan
    distance = 1000 * float(np.median(np.abs(scan.depth - rendered)[visible]))
    if scan.colours is None:
        return distance, math.nan, math.nan
    grey = scan.colours[visible].mean(axis=1)
    width = scan.image.shape[1]
    shown, shifted = (
        scan.image[rows[visible], (columns[visible] + shift) % width].mean(axis=1) for shift in (0, width // 4)
    )
    return distance, _correlation(grey, shown), _correlation(grey, shifted)


def audit(
    dataset: Dataset,
    *,
    radii: Sequence[int] = RADII,
    far_ratio: float = FAR_RATIO,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """`audit_frame` of every image; projected data sets at full resolution, without filters, and with the checks."""
    if not radii or not all(isinstance(radius, int) and radius >= 0 for radius in radii):
        raise InputError(f"{param('radii')} must be one or more integers of pixels, got {radii!r} instead.")
    if not far_ratio > 1:
        raise InputError(f"{param('far_ratio')} must be above 1, got {far_ratio!r} instead.")
    project: Callable[[str], ScanProjection] | None = getattr(dataset, "scan_projection", None)

    def measure(name: str) -> FrameAudit:
        if project is None:
            return audit_frame(name, read_reference(dataset, name), radii=radii, far_ratio=far_ratio)
        scan = project(name)
        found = audit_frame(name, scan.reference, scan.fine, radii=radii, far_ratio=far_ratio)
        return FrameAudit(name, found.valid, found.far, found.recovered, *check_scan(scan))

    return Audit(tuple(radii), *measure_images(dataset, measure, progress=progress))


def write_audit(result: Audit, path: Path) -> None:
    """Write a CSV table with a row per frame; a check that could not be made is an empty cell."""
    checks = ("reprojection_mm", "colour_correlation", "shifted_correlation")
    recovered = [f"recovered_{radius}" for radius in result.radii]
    lines = [["image", "valid_pixels", "far_pixels", *recovered, *checks]]
    for frame in result.frames:
        values = [getattr(frame, check) for check in checks]
        cells = ["" if math.isnan(value) else f"{value:.4f}" for value in values]
        lines.append([frame.name, *map(str, (frame.valid, frame.far, *frame.recovered)), *cells])
    write_csv(path, lines)


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Pearson's correlation; NaN if one of the two is constant."""
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0 else math.nan
