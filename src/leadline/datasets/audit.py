"""Does a projected reference show what is behind the things in the picture? The audit that left out Courthouse.

Scan rays pass through gaps in foliage, and what they meet behind it lands in pixels that show leaves. Such pixels are
much farther than the rest of the frame: *far* pixels are those beyond twice the frame's median depth. If a nearer scan
point lies close by in the picture, the far one is likely wrong, so each far pixel is compared with the least depth in
windows of growing size: it counts as *recovered* if that depth is no longer far. What stays far is either right or
beyond mending by pooling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, LeadlineError
from leadline.datasets import Dataset
from leadline.datasets.geometry import write_csv
from leadline.geometry.projection import min_pool

RADII = (4, 8, 16)
FAR_RATIO = 2.0
FAR_SHARE = 0.10


@runtime_checkable
class FineDepth(Protocol):
    """A data set that can render the nearest depth at full resolution, with nothing removed."""

    def fine_depth(self, name: str) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class FrameAudit:
    """Counts of one frame: valid pixels, far ones, and for each radius how many of those are recovered."""

    name: str
    valid: int
    far: int
    recovered: tuple[int, ...]

    @property
    def far_share(self) -> float:
        """Of the valid pixels; NaN if there are none."""
        return self.far / self.valid if self.valid else math.nan


@dataclass(frozen=True)
class Audit:
    """All frames, the radii in pixels of the full resolution, and what could not be read, with its reason."""

    radii: tuple[int, ...]
    frames: tuple[FrameAudit, ...]
    failures: tuple[tuple[str, str], ...]

    def share_of_frames(self, share: float = FAR_SHARE) -> float:
        """Share of the frames with more than this share of far pixels."""
        return sum(frame.far_share > share for frame in self.frames) / len(self.frames)

    @property
    def far_share(self) -> float:
        """Far pixels of all frames as a share of the valid ones; NaN if there are none."""
        valid = sum(frame.valid for frame in self.frames)
        return sum(frame.far for frame in self.frames) / valid if valid else math.nan

    @property
    def recovered(self) -> tuple[float, ...]:
        """For each radius the recovered share of the far pixels of all frames; NaN if there are none."""
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
    """Far pixels of one reference, and how many of them pooling brings back.

    Parameters
    ----------
    name : str
    reference : (H, W) array
        Metres; NaN, inf and values <= 0 are invalid.
    fine : (h, w) array, optional
        Nearest depth of the same picture at full resolution; by default the reference itself. A pixel of the reference
        looks at the window around the pixel of `fine` that covers its centre.
    radii : sequence of int
        Of the windows, in pixels of `fine`.
    far_ratio : float
        A pixel is far beyond this many times the median of the reference.

    Raises
    ------
    InputError
        If a radius is negative, `far_ratio` is not above 1, or an array is not two-dimensional.
    """
    if not far_ratio > 1:
        raise InputError(f"`far_ratio` must be above 1, got {far_ratio!r} instead.")
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
    """`audit_frame` of every image, at full resolution where the data set can render that.

    Raises
    ------
    LeadlineError
        There is nothing to list, not one image could be read, or an option is wrong.
    """
    if not radii or not all(isinstance(radius, int) and radius >= 0 for radius in radii):
        raise InputError(f"`radii` must be one or more whole numbers of pixels, got {radii!r} instead.")
    names = dataset.names()
    frames: list[FrameAudit] = []
    failures: list[tuple[str, str]] = []
    for index, name in enumerate(names):
        try:
            reference = dataset.load(name).reference
            if reference is None:
                raise FileError(f"{name}: has no reference depth.")
            fine = dataset.fine_depth(name) if isinstance(dataset, FineDepth) else None
        except LeadlineError as error:
            failures.append((name, str(error)))
        else:
            frames.append(audit_frame(name, reference, fine, radii=radii, far_ratio=far_ratio))
        if progress is not None:
            progress(index + 1, len(names))
    if not frames:
        raise FileError(f"The data set {dataset.name!r}: none of its {len(names)} images can be used. {failures[0][1]}")
    return Audit(tuple(radii), tuple(frames), tuple(failures))


def write_audit(result: Audit, path: Path) -> None:
    """Write a table with a row per frame.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    lines = [["image", "valid_pixels", "far_pixels", *(f"recovered_{radius}" for radius in result.radii)]]
    lines += [[frame.name, *map(str, (frame.valid, frame.far, *frame.recovered))] for frame in result.frames]
    write_csv(path, lines)
