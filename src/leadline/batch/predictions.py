"""Predictions of a network saved in files, one for each image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leadline.base.errors import FileError, InputError, LeadlineError, param
from leadline.batch.folder import IMAGE_SUFFIXES, list_files
from leadline.batch.outcome import Outcome, State
from leadline.batch.sidecar import file_hash, package_version
from leadline.io.depth.files import read_image
from leadline.io.notes import as_texts
from leadline.io.priors import read_facts, write_prior
from leadline.priors.predictor import Predictor


def save_prediction(
    image: Path, predictor: Predictor, folder: Path, *, file_format: str = "npy", overwrite: bool = False
) -> Outcome:
    """Predict and save the prior of one image; skipped if the same network did so before.

    Raises
    ------
    LeadlineError
        The image cannot be read, the network fails, or the files cannot be written.
    """
    target = folder / f"{image.stem}.{file_format}"
    if target.resolve() == image.resolve():
        raise InputError(f"{target}: would overwrite the image; choose another {param('output')} or {param('format')}.")
    source = {"path": str(image), "sha256": file_hash(image)}
    if not overwrite and target.exists():
        try:
            facts: dict[str, Any] = read_facts(target)
        except LeadlineError:
            facts = {}  # a damaged sidecar is replaced
        before = (facts.get("file"), facts.get("fingerprint"), (facts.get("image") or {}).get("sha256"))
        if before == (target.name, predictor.fingerprint, source["sha256"]):
            text = f"predicted already, by the same network; {param('overwrite', True)} predicts it again"
            return Outcome(image.stem, State.SKIPPED, text)
    found = predictor.predict(read_image(image), image.stem)
    facts = {
        "leadline": package_version(),
        "prior": predictor.spec,
        "options": predictor.options,
        "image": source,
        "notes": as_texts(found.notes),
    }
    write_prior(target, found.prior, {**found.record, **facts})
    text = f"{found.prior.kind} by {found.record['model']}, wrote {target}"
    return Outcome(image.stem, State.DONE, text, found.notes, (target,))


def list_images(paths: Sequence[Path]) -> list[Path]:
    """The given images, and the images of the given folders.

    Raises
    ------
    FileError
        A path does not exist, or a folder has no image.
    InputError
        Two images have the same name up to the suffix.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileError(f"{path}: there is no such image or folder; check the path.")
        listed = list_files(path, IMAGE_SUFFIXES) if path.is_dir() else {path.stem: [path]}
        inside = [file for files in listed.values() for file in files]
        if not inside:
            raise FileError(f"{path}: there is no image in it; images end in {', '.join(IMAGE_SUFFIXES)}.")
        found += inside
    by_stem: dict[str, Path] = {}
    for image in found:
        other = by_stem.setdefault(image.stem, image)
        if other.resolve() != image.resolve():
            raise InputError(f"{other} and {image} would be saved under one name; use two {param('output')} folders.")
    return list(by_stem.values())
