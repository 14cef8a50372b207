"""A folder of images: frames matched by name and completed, or predictions saved for each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from leadline.base.errors import FileError, InputError, LeadlineError, param, require_choice
from leadline.base.executors import available_cores, processes, serial
from leadline.batch.frame import ensure_compiled
from leadline.batch.outcome import Outcome, State, package_version
from leadline.core.options import CompletionOptions
from leadline.io.clouds import CLOUD_SUFFIXES
from leadline.io.depth import DEPTH_SUFFIXES, read_image
from leadline.io.files import file_hash
from leadline.io.frames import FrameFiles
from leadline.io.notes import Note, NoteKind, as_texts
from leadline.io.priors import SourcedPrior, read_facts, write_prior
from leadline.priors.predictor import Predictor

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
WORKER_DIED = (
    "a worker process died twice at this frame, perhaps because memory ran out; run again with fewer "
    f"{param('workers')}."
)
ExecutorName = Literal["processes", "ray"]
# Number of unmatched names that are listed before "and n more".
LISTED = 5


@dataclass(frozen=True)
class Matches:
    """The frames of a folder, failures for names that match more than once, and notes about files without a partner."""

    frames: tuple[FrameFiles, ...]
    ambiguous: tuple[Outcome, ...]
    notes: tuple[Note, ...]


class Frame(Protocol):
    """A frame of a run: its files, or its name in a data set."""

    @property
    def stem(self) -> str: ...  # the names of its results begin with it


FrameT = TypeVar("FrameT", bound=Frame)
FrameIn = TypeVar("FrameIn", bound=Frame, contravariant=True)


class FolderJob(Protocol[FrameIn]):
    """The work on each frame of a run, e.g. a `FrameJob`."""

    @property
    def folder(self) -> Path: ...  # where the results are written

    @property
    def completion(self) -> CompletionOptions: ...

    def start(self, threads: int) -> Callable[[FrameIn], Outcome]: ...


def match_frames(
    folders: Mapping[str, Path],
    *,
    camera: Path | None = None,
    extrinsics: Path | None = None,
    kitti: Path | None = None,
) -> Matches:
    """Match the files of folders by their names up to the suffix.

    The keys of `folders` are fields of `FrameFiles`; `camera`, `extrinsics` and `kitti` are those of all frames.
    """
    suffixes = {"image": IMAGE_SUFFIXES, "valid": IMAGE_SUFFIXES, "points": CLOUD_SUFFIXES}
    common: dict[str, Any] = {"camera": camera, "extrinsics": extrinsics, "kitti": kitti}
    listings = {name: list_files(folder, suffixes.get(name, DEPTH_SUFFIXES)) for name, folder in folders.items()}
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
            frames.append(FrameFiles(**files, **common, stem=stem))
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
    frames: Sequence[FrameT],
    job: FolderJob[FrameT],
    on_outcome: Callable[[Outcome], None],
    *,
    workers: int = 1,
    executor: ExecutorName = "processes",
    address: str | None = None,
) -> None:
    """Complete many frames: in this process, in several, or on a Ray cluster.

    A frame that fails, or at which a worker process dies twice, becomes a failed outcome, and the others go on. After
    Ctrl-C the results of each frame are complete or absent, and the same call continues where this one ended.

    Parameters
    ----------
    frames : sequence
        E.g. of `FrameFiles`.
    job : FolderJob
        E.g. a `FrameJob`.
    on_outcome : callable
        Called in this process with the outcome of each frame, in the order of completion.
    workers : int
        Number of processes; for Ray the number of tasks that share the cores of this machine.
    executor : {"processes", "ray"}
        On Ray every node needs leadline, the inputs and the output folder under the same paths.
    address : str, optional
        Address of a Ray cluster. Default: a new one on this machine.
    """
    require_choice("executor", executor, ExecutorName)
    if address is not None and executor != "ray":
        raise InputError(f"{param('address')} needs {param('executor', 'ray')}.")
    ensure_compiled(job.completion)  # once here, not in every worker
    try:
        for frame, outcome in _execute(frames, job, workers, executor, address):
            on_outcome(outcome or Outcome(frame.stem, State.FAILED, WORKER_DIED))
    except KeyboardInterrupt:
        for frame in frames:  # files that a terminated worker was writing
            for part in (job.folder / frame.stem).parent.glob(f".{Path(frame.stem).name}*.part"):
                part.unlink(missing_ok=True)
        raise


def _execute(
    frames: Sequence[FrameT], job: FolderJob[FrameT], workers: int, executor: ExecutorName, address: str | None
) -> Iterator[tuple[FrameT, Outcome | None]]:
    if executor == "ray":
        from leadline.base.ray_executor import on_ray

        return on_ray(job, frames, address=address, threads=max(1, available_cores() // workers))
    return serial(job, frames) if workers == 1 else processes(job, frames, workers=workers)


def list_files(folder: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """The files of a folder with one of the suffixes, by their name without it; hidden files are left out."""
    longest_first = sorted(set(suffixes), key=len, reverse=True)
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        suffix = next((suffix for suffix in longest_first if path.name.lower().endswith(suffix)), "")
        if suffix and not path.name.startswith(".") and path.is_file():
            found.setdefault(path.name[: -len(suffix)], []).append(path)
    return found


def _unmatched(what: str, stems: set[str]) -> list[Note]:
    if not stems:
        return []
    names = sorted(stems)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [Note(NoteKind.UNMATCHED, f"{len(names)} {what}: {', '.join(names[:LISTED])}{more}.")]


def _example(files_by_stem: Mapping[str, Sequence[Path]]) -> str:
    return next((files[0].name for files in files_by_stem.values()), "no file that leadline reads")


def save_prediction(
    image: Path, predictor: Predictor, folder: Path, *, file_format: str = "npy", overwrite: bool = False
) -> Outcome:
    """Predict and save the prior of one image; skipped if the same network did so before."""
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
    write_prior(target, found.prior, prediction_facts(found, predictor, source))
    text = f"{found.prior.kind} by {found.record['model']}"
    return Outcome(image.stem, State.DONE, text, found.notes, (target,))


def prediction_facts(found: SourcedPrior, predictor: Predictor, source: Mapping[str, str]) -> dict[str, Any]:
    """The entries of the sidecar of a prediction that say where it comes from; `source` is the image."""
    return {
        **found.record,
        "leadline": package_version(),
        "prior": predictor.spec,
        "options": predictor.options,
        "image": source,
        "notes": as_texts(found.notes),
    }


def list_images(paths: Sequence[Path]) -> list[Path]:
    """The given images, and the images of the given folders."""
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
