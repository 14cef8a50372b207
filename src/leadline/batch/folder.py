"""A folder of frames: files matched by name, completed here or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.base.errors import InputError, param
from leadline.base.executors import processes, serial
from leadline.batch.frame import FrameJob, ensure_compiled
from leadline.batch.outcome import Outcome, State
from leadline.io.depth.files import DEPTH_SUFFIXES
from leadline.io.frames import FrameFiles
from leadline.io.notes import Note, NoteKind

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
# Number of unmatched names that are listed before "and n more".
LISTED = 5


@dataclass(frozen=True)
class Matches:
    """The frames of a folder, failures for names that match more than once, and notes about files without a partner."""

    frames: tuple[FrameFiles, ...]
    ambiguous: tuple[Outcome, ...]
    notes: tuple[Note, ...]


def match_frames(folders: Mapping[str, Path], *, camera: Path | None = None) -> Matches:
    """Match the files of folders by their names up to the suffix.

    Parameters
    ----------
    folders : mapping
        Folders by the field of `FrameFiles` that their files are: image, sparse, prior, valid, confidence.
    camera : Path, optional
        File of the camera of all frames.

    Raises
    ------
    InputError
        No image has all its partners.
    """
    listings = {
        name: list_files(folder, IMAGE_SUFFIXES if name in ("image", "valid") else DEPTH_SUFFIXES)
        for name, folder in folders.items()
    }
    images = listings["image"]
    frames, ambiguous = [], []
    for stem in sorted(images):
        found = {name: files.get(stem, []) for name, files in listings.items()}
        repeated = [
            f"{param(name)} has {' and '.join(path.name for path in files)}"
            for name, files in found.items()
            if len(files) > 1
        ]
        if repeated:
            reason = f"several files have this name: {'; '.join(repeated)}; keep one of them."
            ambiguous.append(Outcome(stem, State.FAILED, reason))
        elif all(found.values()):
            files = {name: paths[0] for name, paths in found.items()}
            frames.append(FrameFiles(**files, camera=camera, stem=stem))
    notes = []
    for name, by_stem in listings.items():
        if name != "image":
            place = f"{param(name)} {folders[name]}"
            notes += _unmatched(f"images without a file in {place}", images.keys() - by_stem.keys())
            notes += _unmatched(f"files in {place} without an image", by_stem.keys() - images.keys())
    if not frames and not ambiguous:
        examples = [f"{param(name)} {folder} has {_example(listings[name])}" for name, folder in folders.items()]
        raise InputError(
            f"no image has all its partners, which need the same name up to the suffix: {', '.join(examples)}."
        )
    return Matches(tuple(frames), tuple(ambiguous), tuple(notes))


def complete_folder(
    frames: Sequence[FrameFiles],
    job: FrameJob,
    on_outcome: Callable[[Outcome], None],
    *,
    workers: int = 1,
) -> None:
    """Complete many frames, in this process or in several.

    A frame that fails, or at which a worker process dies twice, becomes a failed outcome, and the others go on. After
    Ctrl-C the results of each frame are complete or absent, and the same call continues where this one ended.

    Parameters
    ----------
    frames : sequence of FrameFiles
    job : FrameJob
    on_outcome : callable
        Called in this process with the `Outcome` of each frame, in the order of completion.
    workers : int
        Number of worker processes; with 1 the frames are completed in this process.
    """
    ensure_compiled(job.completion)  # once here, not in every worker
    results = serial(job, frames) if workers == 1 else processes(job, frames, workers=workers)
    try:
        for files, outcome in results:
            on_outcome(outcome or _died(files))
    except KeyboardInterrupt:
        for files in frames:  # files that a terminated worker was writing
            for part in (job.folder / files.stem).parent.glob(f".{Path(files.stem).name}*.part"):
                part.unlink(missing_ok=True)
        raise


def list_files(folder: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """The files of a folder with one of the suffixes, by their name without it; hidden files are left out."""
    longest_first = sorted(set(suffixes), key=len, reverse=True)
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        suffix = next((suffix for suffix in longest_first if path.name.lower().endswith(suffix)), "")
        if suffix and not path.name.startswith(".") and path.is_file():
            found.setdefault(path.name[: -len(suffix)], []).append(path)
    return found


def _died(files: FrameFiles) -> Outcome:
    reason = (
        "a worker process died twice at this frame, perhaps because memory ran out; run again with fewer "
        f"{param('workers')}."
    )
    return Outcome(files.stem, State.FAILED, reason)


def _unmatched(what: str, stems: set[str]) -> list[Note]:
    if not stems:
        return []
    names = sorted(stems)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [Note(NoteKind.UNMATCHED, f"{len(names)} {what}: {', '.join(names[:LISTED])}{more}.")]


def _example(files_by_stem: Mapping[str, Sequence[Path]]) -> str:
    return next((files[0].name for files in files_by_stem.values()), "no file that leadline reads")
