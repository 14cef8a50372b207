"""Images without measurements: the relative depth of a network, with a picture of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.base.errors import InputError, param
from leadline.batch.folder import save_prediction
from leadline.batch.outcome import Outcome, State
from leadline.io.depth import read_image
from leadline.io.files import atomic_write
from leadline.io.notes import Note, NoteKind
from leadline.io.priors import read_prior

if TYPE_CHECKING:
    from leadline.priors.predictor import Predictor


def no_measurements(gauge: str) -> Note:
    """The note that states what the depth of an image without measurements is."""
    what = "in the network's own metres, which nothing confirms" if gauge == "metric" else "relative and has no unit"
    text = (
        f"there are no measurements, so the depth is {what}; give {param('sparse')}, a depth map, or "
        f"{param('points')}, a point cloud, for depth that agrees with them."
    )
    return Note(NoteKind.NO_MEASUREMENTS, text)


def save_relative_depth(
    image: Path, predictor: Predictor, folder: Path, *, file_format: str = "npy", overwrite: bool = False
) -> Outcome:
    """Predict and save the prior of one image, and draw it; skipped if the same network did so before.

    Writes ``STEM.npy`` (or another `file_format`) and ``STEM.prior.json``, which together are a prior for
    `complete_frame`, and ``STEM_preview.png``.
    """
    from leadline.report.tiles import draw_preview

    preview = folder / f"{image.stem}_preview.png"
    if preview.resolve() == image.resolve():
        raise InputError(f"{preview}: would overwrite the image; choose another {param('output')}.")
    saved = save_prediction(image, predictor, folder, file_format=file_format, overwrite=overwrite)
    if saved.state is State.SKIPPED and preview.exists():
        return saved
    found = read_prior(folder / f"{image.stem}.{file_format}")
    picture = draw_preview(
        read_image(image), found.prior.depth(), unit="m" if found.record["gauge"] == "metric" else None
    )
    atomic_write(preview, lambda part: picture.save(part, format="PNG"))
    notes = (no_measurements(str(found.record["gauge"])), *saved.notes)
    return replace(saved, state=State.DONE, notes=notes, files=(*saved.files, preview))
