"""The inputs of posed pictures: read once, brought to the pixels of the picture, and stored for the rounds."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, LeadlineError, param
from leadline.base.strict_json import dump_json
from leadline.batch.frame import FrameJob
from leadline.batch.outcome import Outcome, State, outcome_of
from leadline.core.noise import Noise
from leadline.core.prior import Prior
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.poses import Transform
from leadline.io.depth import read_depth, read_image, read_image_size, read_values, write_depth, write_sigma
from leadline.io.files import file_hash, write_text
from leadline.io.frames import FrameFiles, FrameInputs, Measurements, read_frame
from leadline.io.notes import Note, NoteKind
from leadline.io.placement import scale_camera
from leadline.io.priors import read_prior, write_prior
from leadline.io.views.posed import PosedView


@dataclass(frozen=True, eq=False)
class PosedFrame:
    """The files of one picture, with its camera and pose.

    Parameters
    ----------
    files : FrameFiles
        Picture, prior unless it is predicted, and measurements unless `measure` is given.
    camera : Camera or ColmapCamera
        At the size of the picture.
    camera_to_world : (4, 4) array
        In metres; x right, y down, z forward.
    measure : callable, optional
        Returns the measurements and their standard deviations, (H, W) metres. It is pickled for worker processes.
    matched : bool
        Whether the picture is matched with those of the neighbours; camera and pose must be those of the picture, not
        of a depth sensor beside it.
    """

    files: FrameFiles
    camera: Camera | ColmapCamera
    camera_to_world: Transform
    measure: Callable[[], tuple[Measurements, FloatArray | None]] | None = None
    notes: tuple[Note, ...] = ()
    matched: bool = False


def pose_frames(
    frames: Sequence[FrameFiles], views: Sequence[PosedView], scale: float = 1.0
) -> tuple[list[PosedFrame], list[Outcome]]:
    """The frames with the cameras and poses of their pictures in a list, and a failed outcome for each of the others.

    A frame belongs to the view of the same file, or else of the same name, without folders if that is unambiguous.
    `scale` is in metres per unit of the poses.
    """
    if not 0 < scale < math.inf:
        raise InputError(f"{param('pose_scale')} must be a positive number of metres per unit, got {scale}.")
    if not frames:
        return [], []
    by_file = {os.path.abspath(view.image): view for view in views}  # links to one file are different pictures
    by_name = {view.name: view for view in views}
    without_folders = {name: PurePosixPath(name).name for name in by_name}
    count = Counter(without_folders.values())
    by_name |= {short: by_name[name] for name, short in without_folders.items() if count[short] == 1}
    found = [by_file.get(os.path.abspath(files.image)) or by_name.get(files.stem) for files in frames]
    if not any(found):
        raise InputError(
            f"{param('poses')}: none of {len(frames)} images has a pose there; the first image is named "
            f"{frames[0].stem!r} and the first picture with a pose {views[0].name!r}."
        )
    posed, failed = [], []
    for files, view in zip(frames, found, strict=True):
        try:
            size = read_image_size(files.image)
            if view is None:
                raise InputError(f"{files.image}: has no pose in {param('poses')}; add it, or remove the picture.")
            camera, notes = scale_camera(view.camera, size)
        except LeadlineError as error:
            failed.append(Outcome(files.stem, State.FAILED, error.args[0]))
            continue
        pose = view.camera_to_world.copy()
        pose[:3, 3] *= scale
        posed.append(PosedFrame(files, camera, pose, notes=notes))
    return posed, failed


@dataclass(frozen=True, eq=False)
class Prepared:
    """The stored inputs of a picture."""

    frame: PosedFrame
    prior: Path
    sparse: Path
    noise: Path | Noise | None
    valid: Path | None
    record: dict[str, Any]  # what was read, ready for JSON
    notes: tuple[Note, ...]

    @property
    def stem(self) -> str:
        return self.frame.files.stem

    def hashes(self) -> dict[str, str]:
        """Hashes of the inputs by what they are."""
        return {name: entry["sha256"] for name, entry in self.record["inputs"].items()}

    def load_prior(self) -> Prior:
        return read_prior(self.prior).prior

    def load_sparse(self) -> FloatArray:
        return read_depth(self.sparse, "m").values

    def load_noise(self) -> FloatArray:
        assert isinstance(self.noise, Path)
        return read_values(self.noise)

    def load_valid(self) -> BoolArray:
        assert self.valid is not None
        return np.isfinite(read_depth(self.valid, "m").values)

    def load(self) -> FrameInputs:
        """The inputs as arrays. The measurements are at the size of the picture, whatever their own size was."""
        sparse, record = self.load_sparse(), self.record["frame"]
        return FrameInputs(
            image=read_image(self.frame.files.image),
            sparse=sparse,
            prior=self.load_prior(),
            valid=None if self.valid is None else self.load_valid(),
            noise=None,
            camera=self.frame.camera,
            camera_source="user",
            measurements=Measurements(sparse, record["units"]["sparse"]["unit"]),
            notes=self.notes,
            record=record,
        )


_NOTHING: tuple[None, None] = (None, None)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Reads the inputs of pictures and stores them; see `leadline.base.executors.Job`."""

    job: FrameJob
    folder: Path

    def start(self, threads: int) -> Callable[[PosedFrame], Prepared | Outcome]:
        return self.prepare

    def prepare(self, frame: PosedFrame) -> Prepared | Outcome:
        """The stored inputs of a picture, or a failed outcome."""
        found: list[Prepared] = []

        def run() -> Outcome:
            found.append(self._prepare(frame))
            return Outcome(frame.files.stem, State.DONE)

        outcome = outcome_of(frame.files.stem, run)
        return found[0] if found else outcome

    def identify(self, frame: PosedFrame) -> dict[str, dict[str, str]]:
        """Path and hash of each input of a picture."""
        return self._identify(frame, *(_NOTHING if frame.measure is None else frame.measure()))

    def _identify(
        self, frame: PosedFrame, measured: Measurements | None, sigma: FloatArray | None
    ) -> dict[str, dict[str, str]]:
        files, predictor = frame.files, self.job.predictor
        found = {name: {"path": str(path), "sha256": file_hash(path)} for name, path in files.paths().items()}
        if files.prior is None and predictor is not None:
            found["prior"] = {"path": predictor.spec, "sha256": predictor.fingerprint}
        if measured is not None:
            digest = hashlib.sha256(np.ascontiguousarray(measured.depth).tobytes())
            digest.update(b"" if sigma is None else np.ascontiguousarray(sigma).tobytes())
            found["sparse"] = {"path": "", "sha256": digest.hexdigest()}
        return found

    def _prepare(self, frame: PosedFrame) -> Prepared:
        base = self.folder / frame.files.stem
        paths = {name: base.with_name(f"{base.name}_{name}.npy") for name in ("prior", "sparse", "noise", "valid")}
        record_path = base.with_name(f"{base.name}.json")
        measured, sigma = _NOTHING if frame.measure is None else frame.measure()
        hashes = self._identify(frame, measured, sigma)
        settings = self.job.record()["inputs"]
        stored = _read_record(record_path)
        if stored is None or stored["inputs"] != hashes or stored["settings"] != settings:
            record_path.unlink(missing_ok=True)
            stored = {"inputs": hashes, "settings": settings, **self._store(frame, paths, measured, sigma)}
            write_text(record_path, dump_json(stored))
        noise: Path | Noise | None = self.job.inputs.noise
        return Prepared(
            replace(frame, measure=None),  # its points would be sent to every worker process
            paths["prior"],
            paths["sparse"],
            paths["noise"] if paths["noise"].is_file() else noise,
            paths["valid"] if paths["valid"].is_file() else None,
            stored,
            (*(Note(NoteKind[kind], text) for kind, text in stored["notes"]), *frame.notes),
        )

    def _store(
        self, frame: PosedFrame, paths: dict[str, Path], measured: Measurements | None, sigma: FloatArray | None
    ) -> dict[str, Any]:
        """Read a picture and write its maps; returns further entries of its record."""
        predict = None if self.job.predictor is None else self.job.predictor.predict
        read = read_frame(frame.files, self.job.inputs, predict, measurements=measured)
        shape = (frame.camera.height, frame.camera.width)
        if read.sparse.shape != shape:
            raise InputError(
                f"the picture is {read.sparse.shape[1]}x{read.sparse.shape[0]} and its camera {shape[1]}x{shape[0]}; "
                "give the camera of the picture."
            )
        paths["sparse"].parent.mkdir(parents=True, exist_ok=True)
        for path in paths.values():
            path.unlink(missing_ok=True)
        write_prior(paths["prior"], read.prior, {})
        write_depth(paths["sparse"], read.sparse, "m")
        if sigma is not None:
            write_sigma(paths["noise"], sigma)
        if read.valid is not None:
            write_depth(paths["valid"], read.valid.astype(np.float32), "m")
        notes = [(note.kind.name, note.text) for note in read.notes]
        return {"frame": read.record, "notes": notes}


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    complete = isinstance(content, dict) and {"inputs", "settings", "frame", "notes"} <= content.keys()
    return content if complete else None
