"""Images without measurements: the relative depth of a network or a file, with a picture of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.batch.folder import save_prediction
from leadline.batch.outcome import Outcome, State
from leadline.core.prior import Prior, PriorKindOrAuto
from leadline.io.depth import read_image
from leadline.io.files import atomic_write
from leadline.io.frame_checks import resize_prior
from leadline.io.frames import Predict
from leadline.io.notes import Note, NoteKind
from leadline.io.priors import SourcedPrior, read_prior

if TYPE_CHECKING:
    from PIL.Image import Image

    from leadline.priors.predictor import Predictor

_CONSTANT = (
    f"the {param('prior')} has the same value everywhere, so that there is no depth without measurements: choose a "
    f"network, or give {param('sparse')}."
)


@dataclass(frozen=True, eq=False)
class RelativeDepth:
    """An image with its prior and no measurements."""

    image: NDArray[np.uint8]  # (H, W, 3)
    source: SourcedPrior  # at its own size
    prior: Prior  # at the size of the image

    @property
    def depth(self) -> FloatArray:
        """The depth, (H, W): larger is farther."""
        return self.prior.depth()

    @property
    def is_metric(self) -> bool:
        """Whether the network states metres, which nothing confirms; otherwise the depth has no unit."""
        return self.source.record.get("gauge") == "metric"

    def describe(self) -> str:
        """A clause about what the depth is for want of measurements."""
        is_metric = self.is_metric
        what = "in the network's own metres, which nothing confirms" if is_metric else "relative and has no unit"
        return f"there are no measurements, so the depth is {what}"

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the depth of an image without measurements is, and the notes of the prior."""
        text = (
            f"{self.describe()}; give {param('sparse')}, a depth map, or {param('points')}, a point cloud, for depth "
            "that agrees with them."
        )
        return (Note(NoteKind.NO_MEASUREMENTS, text), *self.source.notes)

    def draw(self) -> Image:
        """The image beside its depth, as a Pillow image."""
        from leadline.report.tiles import draw_preview

        return draw_preview(self.image, self.depth, unit="m" if self.is_metric else None)


def read_relative_depth(
    image: Path, prior: Path | None = None, *, kind: PriorKindOrAuto | None = None, predict: Predict | None = None
) -> RelativeDepth:
    """The relative depth of an image: the prior in a file, or predicted by `predict` from the image.

    Raises an `InputError` if the prior says nothing about depth by itself: if it is constant, or of an unknown kind.
    """
    pixels = read_image(image)
    if prior is not None:
        found = read_prior(prior, kind=kind)
    elif predict is not None:
        found = predict(pixels, image.stem)
    else:
        raise InputError(f"the {param('prior')} is missing: give its file, or a network that predicts it.")
    if found.prior.kind == "auto":
        raise InputError(
            f"{param('prior_kind', 'auto')} needs measurements, which show whether the prior is depth or disparity; "
            f"choose one of them, or give {param('sparse')}."
        )
    usable = found.prior.values[np.isfinite(found.prior.values)]
    if not usable.size or usable.min() == usable.max():
        raise InputError(_CONSTANT)
    return RelativeDepth(pixels, found, resize_prior(found.prior, (pixels.shape[0], pixels.shape[1])))


def save_relative_depth(
    image: Path, predictor: Predictor, folder: Path, *, file_format: str = "npy", overwrite: bool = False
) -> Outcome:
    """Predict and save the prior of one image, and draw it; skipped if the same network did so before.

    Writes ``STEM.npy`` (or another `file_format`) and ``STEM.prior.json``, which together are a prior for
    `complete_frame`, and ``STEM_preview.png``.
    """
    preview = folder / f"{image.stem}_preview.png"
    if preview.resolve() == image.resolve():
        raise InputError(f"{preview}: would overwrite the image; choose another {param('output')}.")
    if predictor.spec == "none":
        raise InputError(_CONSTANT)
    saved = save_prediction(image, predictor, folder, file_format=file_format, overwrite=overwrite)
    if saved.state is State.SKIPPED and preview.exists():
        return saved
    found = read_relative_depth(image, folder / f"{image.stem}.{file_format}")
    picture = found.draw()
    atomic_write(preview, lambda part: picture.save(part, format="PNG"))
    return replace(saved, state=State.DONE, notes=(*found.notes, *saved.notes), files=(*saved.files, preview))
