"""Posed pictures from their files to depth that agrees from picture to picture.

The inputs of each picture are read once and stored under ``OUTPUT/rounds``, where `leadline.Views` stores its maps as
well. Every file there is whole or absent, so a run that was killed continues where it was. The results of a picture are
written when the last round has completed it, its sidecar last. The list of the pictures is removed before the first of
them is written and written again after the last one, so that it never belongs to results of other options; a run is
complete when it is there. The stored maps are removed at the end.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError, LeadlineError, param
from leadline.base.executors import processes, serial
from leadline.base.strict_json import dump_json
from leadline.batch.folder import WORKER_DIED
from leadline.batch.frame import FrameJob, ensure_compiled, result_notes
from leadline.batch.outcome import Outcome, State, outcome_of, package_version, reasons_to_redo, recorded_unit, skipped
from leadline.batch.outputs import write_results
from leadline.batch.posed_inputs import PosedFrame, Preparation, Prepared
from leadline.core.pipeline import Completion
from leadline.io.cameras import camera_record
from leadline.io.depth import write_depth
from leadline.io.files import exclusive_folder, remove_parts, write_text
from leadline.io.notes import Note, NoteKind, as_texts
from leadline.io.views.posed import VIEW_LIST, PosedView, write_views
from leadline.views.pose_check import LOOKS_INVERTED
from leadline.views.rounds import Round
from leadline.views.views import Views

STORE = "rounds"  # folder inside the output for the inputs and the maps between rounds
ALONE = "alone"  # folder inside the output for the depth that each picture has by itself
_LAST_ROUND = ("moved", "disagreement", "disagreement_before")  # the numbers that `Views.complete_last` returns


@dataclass(frozen=True, kw_only=True)
class ViewsProgress:
    """How far a run is: the number of pictures of one step that are done."""

    step: str
    done: int
    total: int


def complete_views(
    frames: Sequence[PosedFrame],
    job: FrameJob,
    on_outcome: Callable[[Outcome], None],
    *,
    rounds: int | None = None,
    workers: int = 1,
    on_progress: Callable[[ViewsProgress], None] | None = None,
) -> list[Round]:
    """Complete pictures so that their depth agrees, and write the results of each; returns statistics of the rounds.

    For each picture ``NAME`` the files of ``job.outputs`` are written, the depth that the picture has alone, and the
    sidecar ``NAME.json``. ``views.json`` lists all pictures with cameras and poses; `leadline.batch.fusion` and other
    programs read it.

    Parameters
    ----------
    frames : sequence of PosedFrame
    job : FrameJob
    on_outcome : callable
        Called with the outcome of each picture.
    rounds : int, optional
        Rounds after each picture alone. Default: until the depth no longer changes.
    workers : int
        Processes that read the inputs and complete the pictures of a round.
    on_progress : callable, optional

    Raises
    ------
    InputError
        No two pictures see the same surface, or another run is writing to the folder.
    """
    ensure_compiled(job.completion)
    job.folder.mkdir(parents=True, exist_ok=True)
    with exclusive_folder(job.folder):  # one run would remove the stored maps of another one
        remove_parts(job.folder)
        return _complete_views(frames, job, on_outcome, rounds, workers, on_progress or (lambda _: None))


def _complete_views(
    frames: Sequence[PosedFrame],
    job: FrameJob,
    on_outcome: Callable[[Outcome], None],
    rounds: int | None,
    workers: int,
    progress: Callable[[ViewsProgress], None],
) -> list[Round]:
    """See `complete_views`, whose process is the only one that writes to the folder."""
    preparation = Preparation(job=job, folder=job.folder / STORE / "inputs")
    if _all_complete(frames, preparation, rounds):
        for frame in frames:
            on_outcome(skipped(frame.files.stem, job.outputs.paths(job.folder, frame.files.stem)["sidecar"]))
        shutil.rmtree(job.folder / STORE, ignore_errors=True)
        return []
    prepared: dict[str, Prepared] = {}
    run = serial(preparation, frames) if workers == 1 else processes(preparation, frames, workers=workers)
    for count, (frame, result) in enumerate(run, start=1):
        if isinstance(result, Prepared):
            prepared[frame.files.stem] = result
        else:
            on_outcome(result or Outcome(frame.files.stem, State.FAILED, WORKER_DIED))
        progress(ViewsProgress(step="reading", done=count, total=len(frames)))
    chosen = [prepared[frame.files.stem] for frame in frames if frame.files.stem in prepared]
    if not chosen:
        return []
    settings = _settings(job, rounds, [(one.frame, one.hashes()) for one in chosen])
    todo = []
    for one in chosen:
        if _is_complete(one.stem, one.hashes(), job, settings):
            on_outcome(skipped(one.stem, job.outputs.paths(job.folder, one.stem)["sidecar"]))
        else:
            todo.append(one)
    if not todo and (job.folder / VIEW_LIST).is_file():
        shutil.rmtree(job.folder / STORE, ignore_errors=True)
        return []

    def show(step: str, done: int, total: int) -> None:
        progress(ViewsProgress(step=step, done=done, total=total))

    views = _open_views(chosen, job, settings, show)
    last = views.advance(rounds, workers=workers)
    if len(chosen) > 1 and not any(views.neighbours(one.stem) for one in chosen):
        text = f"no two of {len(chosen)} pictures see the same surface, so nothing can be made to agree; "
        cure = "check the poses, which must be from camera to world with x right, y down and z forward."
        raise InputError(text + (LOOKS_INVERTED if views.look_inverted else cure))
    (job.folder / VIEW_LIST).unlink(missing_ok=True)
    writing = _Writing(views, last, job, settings)
    for one, outcome in serial(writing, todo) if workers == 1 else processes(writing, todo, workers=workers):
        on_outcome(outcome or Outcome(one.stem, State.FAILED, WORKER_DIED))
    # From the files, so that the statistics are the same if an earlier run has written some of the pictures.
    views.record(last, [_recorded_round(job, one.stem) for one in chosen])
    write_list(job, chosen, rounds=[vars(part) for part in views.rounds])
    if all(_is_complete(one.stem, one.hashes(), replace(job, overwrite=False), settings) for one in chosen):
        shutil.rmtree(job.folder / STORE, ignore_errors=True)
    return views.rounds


def write_list(job: FrameJob, prepared: Sequence[Prepared], **facts: Any) -> Path:
    """Write ``views.json`` with the pictures that are complete; returns its path."""
    listed = []
    for one in prepared:
        stem = one.stem
        paths = job.outputs.paths(job.folder, stem)
        if paths["sidecar"].is_file():
            image, camera, pose = one.frame.files.image, one.frame.camera, one.frame.camera_to_world
            unit = recorded_unit(paths["sidecar"])
            maps = (paths["depth"], paths.get("sigma"), _alone_path(job, stem))
            listed.append(PosedView(stem, image, camera, pose, *maps, unit))
    path = job.folder / VIEW_LIST
    write_views(path, listed, leadline=package_version(), **facts)
    return path


def _open_views(
    chosen: Sequence[Prepared],
    job: FrameJob,
    settings: dict[str, Any],
    show: Callable[[str, int, int], None],
) -> Views:
    """The pictures as `Views`, with a store of their own; stores of other inputs or options are removed."""
    # What is written, and after how many rounds, does not change the maps of a round.
    facts = {name: settings[name] for name in ("inputs", "completion", "views")}
    digest = hashlib.sha256(dump_json(facts).encode()).hexdigest()
    store = job.folder / STORE / f"maps-{digest[:16]}"
    for other in store.parent.glob("maps-*"):
        if other != store or job.overwrite:
            shutil.rmtree(other, ignore_errors=True)
    views = Views(job.completion, store=store, on_progress=show)
    for one in chosen:
        noise = one.load_noise if isinstance(one.noise, Path) else one.noise
        valid = None if one.valid is None else one.load_valid
        maps = (one.load_prior, one.load_sparse)
        image = one.frame.files.image if one.frame.matched else None
        views.add(one.stem, *maps, one.frame.camera, one.frame.camera_to_world, noise=noise, valid=valid, image=image)
    return views


def _settings(
    job: FrameJob, rounds: int | None, pictures: Sequence[tuple[PosedFrame, dict[str, str]]]
) -> dict[str, Any]:
    """All options, and a number that changes with any input of any picture, since the depth of each depends on all."""
    facts = [
        [frame.files.stem, hashes, camera_record(frame.camera), frame.camera_to_world.tolist()]
        + ["matched"] * frame.matched
        for frame, hashes in pictures
    ]
    return {**job.record(), "rounds": rounds, "views": hashlib.sha256(dump_json(facts).encode()).hexdigest()}


def _all_complete(frames: Sequence[PosedFrame], preparation: Preparation, rounds: int | None) -> bool:
    """Whether nothing is to be done, which is found without reading and predicting the inputs."""
    job = preparation.job
    if not (job.folder / VIEW_LIST).is_file():
        return False
    if not all(job.outputs.paths(job.folder, frame.files.stem)["sidecar"].is_file() for frame in frames):
        return False
    try:
        inputs = [preparation.identify(frame) for frame in frames]
    except LeadlineError:
        return False
    hashes = [{name: entry["sha256"] for name, entry in found.items()} for found in inputs]
    settings = _settings(job, rounds, list(zip(frames, hashes, strict=True)))
    return all(_is_complete(frame.files.stem, own, job, settings) for frame, own in zip(frames, hashes, strict=True))


def _is_complete(stem: str, hashes: dict[str, str], job: FrameJob, settings: dict[str, Any]) -> bool:
    """Whether a picture has results of the same inputs and options, and is not to be completed again."""
    paths = job.outputs.paths(job.folder, stem)
    return not job.overwrite and paths["sidecar"].exists() and not reasons_to_redo(paths, hashes, settings)


@dataclass(frozen=True, eq=False)
class _Writing:
    """Completes pictures in the last round and writes their results; see `leadline.base.executors.Job`."""

    views: Views
    last: int
    job: FrameJob
    settings: dict[str, Any]

    def start(self, threads: int) -> Callable[[Prepared], Outcome]:
        return lambda one: outcome_of(one.stem, lambda: self._complete(one))

    def _complete(self, one: Prepared) -> Outcome:
        completion, numbers = self.views.complete_last(one.stem, self.last, uncertainty=self.job.outputs.sigma)
        return _write(one, completion, numbers, self.views, self.job, self.settings)


def _write(
    one: Prepared,
    completion: Completion,
    numbers: NDArray[np.float64],
    views: Views,
    job: FrameJob,
    settings: dict[str, Any],
) -> Outcome:
    """Write the results of a picture, its sidecar last; `numbers` are those of the last round."""
    stem = one.stem
    if completion.fit.count == 0:
        raise InputError(f"{completion.fit.status.describe(param)}.")
    paths = job.outputs.paths(job.folder, stem)
    alone = _alone_path(job, stem)
    for path in (paths["depth"], alone):
        path.parent.mkdir(parents=True, exist_ok=True)
    paths["sidecar"].unlink(missing_ok=True)
    inputs = one.load()
    notes = [*inputs.notes, *result_notes(completion, inputs.sparse)]
    neighbours = views.neighbours(stem)
    if not neighbours:
        notes.append(
            Note(
                NoteKind.NO_OVERLAP,
                "no other picture sees what this one sees, or its pose contradicts theirs; it was completed alone.",
            )
        )
    if views.look_inverted:
        notes.append(Note(NoteKind.POSES, LOOKS_INVERTED))
    write_depth(alone, views.alone(stem), "m")
    results = write_results(paths, inputs, completion, job.outputs)
    notes += results.notes
    record = {
        "leadline": package_version(),
        "frame": stem,
        "inputs": one.record["inputs"],
        "outputs": {name: path.name for name, path in paths.items() if name != "sidecar"},
        **inputs.record,
        "units": {**inputs.record["units"], "depth": {"unit": results.unit}},
        "neighbours": list(neighbours),
        "last_round": dict(zip(_LAST_ROUND, numbers.tolist(), strict=True)),
        "pixels": asdict(results.pixels),
        "notes": as_texts(notes),
        "result": completion.to_dict(),
        "settings": settings,
    }
    write_text(paths["sidecar"], dump_json(record))
    files = tuple(paths.values())
    return Outcome(stem, State.DONE, completion.summary(param), tuple(notes), files, pixels=results.pixels)


def _recorded_round(job: FrameJob, stem: str) -> NDArray[np.float64]:
    """The numbers of a picture in the last round, from its sidecar; NaN if it has none."""
    try:
        text = job.outputs.paths(job.folder, stem)["sidecar"].read_text(encoding="utf-8")
        found = json.loads(text)["last_round"]
        return np.array([found[name] for name in _LAST_ROUND], np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        return np.full(len(_LAST_ROUND), np.nan)


def _alone_path(job: FrameJob, stem: str) -> Path:
    return job.folder / ALONE / f"{stem}.npy"
