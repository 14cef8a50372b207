"""RGB-D frames, refined: wrong measurements left out, missing ones completed, the others kept bit for bit.

This is the completion of a folder (`leadline.batch.folder`) with other inputs and outputs: folders of RGB-D frames and
data sets by name, and, besides the results of each frame, a table of all frames and a contact sheet of those that
changed most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, is_measured
from leadline.base.errors import FileError, InputError, LeadlineError, param
from leadline.base.registry import suggestion
from leadline.batch.folder import FolderJob, FrameIn, FrameT
from leadline.batch.frame import FrameJob, complete_frame
from leadline.batch.outcome import Outcome, PixelCounts, State, outcome_of, recorded_unit
from leadline.batch.outputs import OutputOptions, PixelOrigin
from leadline.core.options import CompletionOptions
from leadline.datasets import Dataset, Scene
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.grids import scatter_nearest
from leadline.io.files import read_text, reading, write_csv
from leadline.io.frames import FrameFiles, Measurements
from leadline.io.notes import Note, NoteKind

if TYPE_CHECKING:
    from leadline.report.contact_sheet import RefinedFrame

IMAGE_FOLDERS = ("rgb", "color", "colour", "image", "images", "frames")
DEPTH_FOLDERS = ("depth", "depths", "sparse", "depth_raw", "aligned_depth")
REFERENCE = "reference"
"""Name of a data set's own depth, as that of Kinect data sets, among the measurements of a scene."""
SequenceKind = Literal["tum", "7scenes"]
SEQUENCE_UNITS = {"tum": "tum", "7scenes": "mm"}
TUM_GAP = 0.02  # largest difference in seconds between an image and its depth, as in TUM's own tool
SHEET, TABLE = "contact_sheet.png", "frames.csv"


# ---- inputs


def find_rgbd_folders(folder: Path) -> dict[str, Path]:
    """The subfolders of images and of depth, by the fields of `FrameFiles`."""
    found: dict[str, Path] = {}
    for field, names in (("image", IMAGE_FOLDERS), ("sparse", DEPTH_FOLDERS)):
        there = [folder / name for name in names if (folder / name).is_dir()]
        if len(there) != 1:
            listed = ", ".join(f"{path.name}/" for path in there) or "none of them"
            what = "images" if field == "image" else "depth"
            raise InputError(
                f"{folder}: must have one subfolder of {what} ({', '.join(names)}), and has {listed}; give the folder "
                f"of images and {param('depth')}, that of depth, or a {param('dataset')}."
            )
        found[field] = there[0]
    return found


def sequence_kind(folder: Path) -> SequenceKind | None:
    """Whether a folder is a sequence of TUM's RGB-D benchmark, with ``rgb.txt`` and ``depth.txt``, or of 7-Scenes, with
    ``NAME.color.png`` and ``NAME.depth.png``.
    """
    if (folder / "rgb.txt").is_file() and (folder / "depth.txt").is_file():
        return "tum"
    return "7scenes" if any(folder.glob("*.color.*")) and any(folder.glob("*.depth.png")) else None


def match_tum_frames(
    folder: Path, *, camera: Path | None = None, priors: Path | None = None
) -> tuple[tuple[FrameFiles, ...], tuple[Note, ...]]:
    """The frames of a folder with TUM's lists: each image with the depth that is nearest in time."""
    images, depths = _read_tum_list(folder / "rgb.txt"), _read_tum_list(folder / "depth.txt")
    times, others = np.array(sorted(images)), np.array(sorted(depths))
    if not times.size or not others.size:
        raise InputError(f"{folder}: rgb.txt or depth.txt lists no file.")
    after = np.searchsorted(others, times).clip(max=others.size - 1)
    before = (after - 1).clip(min=0)
    nearest = np.where(times - others[before] <= others[after] - times, before, after)
    close = np.abs(others[nearest] - times) <= TUM_GAP
    frames = tuple(
        FrameFiles(image=images[time], sparse=depths[other], camera=camera, prior=_prior_of(images[time].stem, priors))
        for time, other in zip(times[close], others[nearest][close], strict=True)
    )
    if not frames:
        raise InputError(f"{folder}: no image of rgb.txt has a depth within {TUM_GAP} s in depth.txt.")
    left = times.size - len(frames)
    text = f"{left} of {times.size} images have no depth within {TUM_GAP} s and are left out."
    return frames, (Note(NoteKind.UNMATCHED, text),) if left else ()


def match_7scenes_frames(
    folder: Path, *, camera: Path | None = None, priors: Path | None = None
) -> tuple[tuple[FrameFiles, ...], tuple[Note, ...]]:
    """The frames of a sequence of 7-Scenes: each image with its depth."""
    frames, without = [], []
    for image in sorted((*folder.glob("*.color.png"), *folder.glob("*.color.jpg"))):
        name = image.name.split(".color.")[0]
        depth = folder / f"{name}.depth.png"
        if depth.is_file():
            prior = _prior_of(name, priors)
            frames.append(FrameFiles(image=image, sparse=depth, camera=camera, prior=prior, stem=name))
        else:
            without.append(name)
    text = f"{len(without)} images have no depth and are left out, {without[0]} for one." if without else ""
    return tuple(frames), (Note(NoteKind.UNMATCHED, text),) if without else ()


def _prior_of(name: str, folder: Path | None) -> Path | None:
    from leadline.priors.without_network import find_prediction

    return None if folder is None else find_prediction(folder, name)


def _read_tum_list(file: Path) -> dict[float, Path]:
    lines = [line.split() for line in read_text(file, "a list of TUM's benchmark").splitlines()]
    with reading(file, "lines of a time and a file name"):
        found = {float(words[0]): file.parent / words[1] for words in lines if words and not words[0].startswith("#")}
    root = file.parent.resolve()
    for path in found.values():
        if not path.resolve().is_relative_to(root):
            raise FileError(f"{file}: names {path}, which is outside of its folder.")
    return found


@dataclass(frozen=True)
class SceneFrame:
    """An image of a data set by its name."""

    stem: str


@dataclass(frozen=True, eq=False)
class SceneJob:
    """The settings for completing each image of a data set. It can be sent to worker processes."""

    dataset: Dataset
    frames: FrameJob
    measured: str | None = None  # label of the stored measurements; None for the first, or else the reference
    priors: Path | None = None  # folder with a prior for each image; None if they are predicted

    @property
    def folder(self) -> Path:
        return self.frames.folder

    @property
    def completion(self) -> CompletionOptions:
        return self.frames.completion

    @property
    def outputs(self) -> OutputOptions:
        return self.frames.outputs

    def start(self, threads: int) -> Callable[[SceneFrame], Outcome]:
        """See `leadline.base.executors.Job`."""
        return lambda frame: outcome_of(frame.stem, lambda: self._complete(frame))

    def read_measured(self, frame: SceneFrame) -> tuple[NDArray[np.uint8], FloatArray]:
        """The image of a frame, and its measurements in metres, at their own size."""
        scene = self.dataset.load(frame.stem)
        return scene.image, self._measured(scene)

    def _complete(self, frame: SceneFrame) -> Outcome:
        from leadline.priors.without_network import find_prediction

        scene = self.dataset.load(frame.stem)
        camera = scene.camera if isinstance(scene.camera, Camera | ColmapCamera) else None
        (self.folder / frame.stem).parent.mkdir(parents=True, exist_ok=True)
        files = FrameFiles(
            image=self.dataset.files(frame.stem)[0],
            prior=None if self.priors is None else find_prediction(self.priors, frame.stem),
            stem=frame.stem,
        )
        measurements = Measurements(self._measured(scene), camera=camera)
        return complete_frame(files, self.frames, measurements=measurements, image=scene.image)

    def _measured(self, scene: Scene) -> FloatArray:
        maps: dict[str, FloatArray] = {label: entry.values for label, entry in scene.sparse.items()}
        if scene.reference is not None:
            maps.setdefault(REFERENCE, scene.reference)
        if not maps:
            raise InputError("has neither measurements nor a reference.")
        label = next(iter(maps)) if self.measured is None else self.measured
        if label not in maps:
            raise InputError(f"{param('measured')}: there are no measurements {label!r}; {suggestion(label, maps)}")
        return maps[label]


def measured_format(frames: Sequence[FrameFiles]) -> str:
    """The format of refined depth that stores measured values as they are: ``png`` if all of them are PNG."""
    suffixes = {files.sparse.suffix.lower() for files in frames if files.sparse is not None}
    return "png" if suffixes == {".png"} else "npy"


# ---- outputs


class RefineJob(FolderJob[FrameIn], Protocol[FrameIn]):
    """A job whose inputs can be read again, for the contact sheet: a `FrameJob` or a `SceneJob`."""

    @property
    def outputs(self) -> OutputOptions: ...

    def read_measured(self, frame: FrameIn, /) -> tuple[NDArray[np.uint8], FloatArray]: ...


def worst_frames(outcomes: Sequence[Outcome], count: int) -> list[Outcome]:
    """The frames that changed most: the largest share of measurements left out, then of pixels filled in."""
    known = [outcome for outcome in outcomes if outcome.pixels is not None]

    def change(outcome: Outcome) -> tuple[float, float, str]:
        pixels = outcome.pixels or PixelCounts(0, 0, 0, 0)
        return -pixels.left_out_share, -pixels.filled / max(1, pixels.total), outcome.stem

    return sorted(known, key=change)[:count]


def total_pixels(outcomes: Sequence[Outcome]) -> PixelCounts:
    """The sum over all frames that have results."""
    counts = [asdict(outcome.pixels) for outcome in outcomes if outcome.pixels is not None]
    return PixelCounts(**{name: sum(count[name] for count in counts) for name in PixelCounts.__dataclass_fields__})


def write_table(outcomes: Sequence[Outcome], folder: Path, render: Callable[[str], str]) -> Path:
    """Write ``frames.csv``: each frame with its state, its pixels by origin and, if it failed, the reason.

    `render` turns the reason, which may contain references to parameters, into text.
    """
    names = list(PixelCounts.__dataclass_fields__)
    rows: list[Sequence[object]] = [("frame", "state", *names, "reason")]
    for outcome in sorted(outcomes, key=lambda outcome: outcome.stem):
        counts = asdict(outcome.pixels) if outcome.pixels is not None else {}
        reason = render(outcome.message) if outcome.state is State.FAILED else ""
        rows.append((outcome.stem, outcome.state.value, *(counts.get(name, "") for name in names), reason))
    path = folder / TABLE
    write_csv(path, rows)
    return path


def write_contact_sheet(
    worst: Sequence[Outcome], frames: Mapping[str, FrameT], job: RefineJob[FrameT], *, total: int
) -> Path | None:
    """Write ``contact_sheet.png`` of the `worst` of `total` frames; None if there are none.

    A frame whose files cannot be read any more is left out: the sheet is drawn after the run.
    """
    from leadline.io.files import atomic_write
    from leadline.report.contact_sheet import draw_contact_sheet

    rows: list[RefinedFrame] = []
    for outcome in worst:
        try:
            rows.append(_refined(outcome, frames[outcome.stem], job))
        except (LeadlineError, OSError):
            continue
    if not rows:
        return None
    heading = f"{len(rows)} of {total} frames, in the order of what was left out"
    picture = draw_contact_sheet(
        rows, heading=heading, note="orange: measured and left out, depth filled in; blue: not measured, filled in"
    )
    path = job.folder / SHEET
    atomic_write(path, lambda part: picture.save(part, format="PNG"))
    return path


def _refined(outcome: Outcome, frame: FrameT, job: RefineJob[FrameT]) -> RefinedFrame:
    from PIL import Image

    from leadline.io.depth import read_depth
    from leadline.report.contact_sheet import RefinedFrame

    image, measured = job.read_measured(frame)
    shape = (image.shape[0], image.shape[1])
    if measured.shape != shape:
        measured, _ = scatter_nearest(measured, shape)
    paths = job.outputs.paths(job.folder, frame.stem)
    with Image.open(paths["mask"]) as opened:
        mask = np.asarray(opened)
    pixels = outcome.pixels or PixelCounts(0, 0, 0, 0)
    filled = pixels.filled / max(1, pixels.total)
    caption = f"{pixels.left_out_share:.1%} of the measured left out, {filled:.1%} filled"
    return RefinedFrame(
        frame.stem,
        caption,
        image,
        np.where(is_measured(measured), measured, np.nan),
        read_depth(paths["depth"], recorded_unit(paths["sidecar"])).values,
        mask == PixelOrigin.LEFT_OUT,
        mask == PixelOrigin.FILLED,
    )
