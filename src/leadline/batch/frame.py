"""One frame from its files to its results, with a sidecar that records how the depth was computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.base.strict_json import dump_json
from leadline.batch.outcome import (
    Outcome,
    State,
    outcome_of,
    package_version,
    reasons_to_redo,
    settings_record,
    skipped,
)
from leadline.batch.outputs import OutputOptions, extrapolation, write_results
from leadline.core.options import CompletionOptions
from leadline.io.depth import read_image
from leadline.io.files import file_hash
from leadline.io.frames import FrameFiles, FrameOptions, Measurements, read_frame, read_measurements
from leadline.io.notes import Note, NoteKind, as_texts

if TYPE_CHECKING:
    from leadline.core.pipeline import Completion
    from leadline.priors.predictor import Predictor


@dataclass(frozen=True, kw_only=True)
class FrameJob:
    """The settings for completing every frame of a run. It can be sent to worker processes."""

    folder: Path  # where the results are written
    inputs: FrameOptions = field(default_factory=FrameOptions)
    outputs: OutputOptions = field(default_factory=OutputOptions)
    completion: CompletionOptions = field(default_factory=CompletionOptions.best)
    predictor: Predictor | None = None  # predicts the priors of frames that have no file of it
    overwrite: bool = False  # whether frames that are complete already are completed again

    def start(self, threads: int) -> Callable[[FrameFiles], Outcome]:
        """The function that a worker process applies to each frame; see `leadline.base.executors.Job`."""
        return lambda files: outcome_of(files.stem, lambda: complete_frame(files, self))

    def read_measured(self, files: FrameFiles) -> tuple[NDArray[np.uint8], FloatArray]:
        """The image of a frame, and its measurements in metres as they were read, at their own size."""
        image = read_image(files.image)
        return image, read_measurements(files, self.inputs, image).depth

    def record(self) -> dict[str, Any]:
        """All options, ready for JSON. A frame is completed again if one of them changes."""
        return settings_record(
            {"inputs": asdict(self.inputs), "outputs": asdict(self.outputs), "completion": asdict(self.completion)}
        )


def ensure_compiled(options: CompletionOptions, announce: Callable[[], None] | None = None) -> bool:
    """Compile the kernels for `options` unless that was done before; returns whether they were compiled now.

    `announce` is called before, as compiling takes up to a minute.
    """
    from leadline.core.compilation import is_compiled, warm_up

    if is_compiled(options):
        return False
    if announce is not None:
        announce()
    warm_up(options)
    return True


def complete_frame(
    files: FrameFiles,
    job: FrameJob,
    *,
    measurements: Measurements | None = None,
    image: NDArray[np.uint8] | None = None,
    announce_compiling: Callable[[], None] | None = None,
) -> Outcome:
    """Complete one frame and write its results; skipped if that was done before with the same inputs and options.

    The sidecar ``STEM.json`` is removed first and written last, so its presence means that all files it lists are
    complete and belong together.

    `measurements` replace the files of measurements, and `image` that of the image. `announce_compiling` is called
    before the kernels are compiled.
    """
    paths = job.outputs.paths(job.folder, files.stem, cloud=files.points is not None)
    _refuse_to_overwrite_inputs(files, paths)
    inputs = _hash_inputs(files, job.predictor, measurements, image)
    notes: list[Note] = []
    if not job.overwrite and paths["sidecar"].exists():
        changes = reasons_to_redo(paths, {name: entry["sha256"] for name, entry in inputs.items()}, job.record())
        if not changes:
            return skipped(files.stem, paths["sidecar"])
        notes.append(Note(NoteKind.REDONE, f"completed again: {changes}."))

    started = time.perf_counter()
    predict = None if job.predictor is None else job.predictor.predict
    frame = read_frame(files, job.inputs, predict, measurements=measurements, image=image)
    if (job.outputs.ply or job.outputs.mesh) and frame.camera is None:
        wanted = param("ply", True) if job.outputs.ply else param("mesh")
        raise InputError(
            f"{wanted} needs a camera: give {param('intrinsics')} or {param('camera')}, or a prior that "
            "predicts its camera, such as moge-2."
        )
    read = time.perf_counter()
    ensure_compiled(job.completion, announce_compiling)
    from leadline.core import pipeline  # imports numba, which skipped frames and refused inputs do not need

    compiled = time.perf_counter()
    result = pipeline.complete(
        frame.prior,
        frame.sparse,
        valid=frame.valid,
        noise=frame.noise,
        uncertainty=job.outputs.sigma,
        options=job.completion,
    )
    solved = time.perf_counter()
    if result.fit.count == 0:
        raise InputError(f"{files.sparse or files.points or files.image}: {result.fit.status.describe(param)}.")
    notes += [*frame.notes, *result_notes(result, frame.sparse, without_prior=_is_without_prior(job))]
    paths["sidecar"].unlink(missing_ok=True)
    results = write_results(paths, frame, result, job.outputs)
    notes += results.notes
    seconds = {"read": read - started, "complete": solved - compiled, "write": time.perf_counter() - solved}
    record = {
        "leadline": package_version(),
        "frame": files.stem,
        "inputs": inputs,
        "outputs": {name: path.name for name, path in paths.items() if name != "sidecar"},
        **frame.record,
        "units": {**frame.record["units"], "depth": {"unit": results.unit}},
        "pixels": asdict(results.pixels),
        "notes": as_texts(notes),
        "result": result.to_dict(),
        "settings": job.record(),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
    }
    from leadline.io.files import write_text

    write_text(paths["sidecar"], dump_json(record))
    return Outcome(
        files.stem, State.DONE, result.summary(param), tuple(notes), tuple(paths.values()), pixels=results.pixels
    )


def _is_without_prior(job: FrameJob) -> bool:
    return job.predictor is not None and job.predictor.spec == "none"


def result_notes(result: Completion, sparse: FloatArray, *, without_prior: bool = False) -> list[Note]:
    """Notes about stages that fell back or stopped early, and about extrapolated depth.

    If the user wanted it `without_prior`, a constant one, it is no surprise that only its scale was fitted.
    """
    from leadline.core.fit.estimator import FitStatus

    notes = []
    expected = {FitStatus.CONVERGED, FitStatus.SCALE_ONLY} if without_prior else {FitStatus.CONVERGED}
    if result.fit.status not in expected:
        text = result.fit.status.describe(param)
        notes.append(Note(NoteKind.FIT, f"fit {text}{'' if text.endswith('?') else '.'}"))
    if not result.reconstruction.converged:
        notes.append(Note(NoteKind.SOLVE, f"solve {result.reconstruction.status.describe(param)}."))
    extrapolated = extrapolation(result.depth, sparse)
    if extrapolated:
        notes.append(Note(NoteKind.EXTRAPOLATED, extrapolated))
    return notes


def _hash_inputs(
    files: FrameFiles,
    predictor: Predictor | None,
    measurements: Measurements | None,
    image: NDArray[np.uint8] | None,
) -> dict[str, dict[str, str]]:
    from leadline.priors.predictor import content_hash

    paths = files.paths()
    inputs = {} if image is None else {"image": {"path": str(paths.pop("image")), "sha256": content_hash(image)}}
    inputs |= {name: {"path": str(path), "sha256": file_hash(path)} for name, path in paths.items()}
    if files.prior is None and predictor is not None:
        inputs["prior"] = {"path": predictor.spec, "sha256": predictor.fingerprint}
    if measurements is not None:
        inputs["sparse"] = {"path": "", "sha256": content_hash(measurements.depth)}
    return inputs


def _refuse_to_overwrite_inputs(files: FrameFiles, paths: Mapping[str, Path]) -> None:
    inputs = {path.resolve(): name for name, path in files.paths().items()}
    for path in paths.values():
        if path.resolve() in inputs:
            raise InputError(
                f"{path}: would overwrite the {inputs[path.resolve()]} input; choose another {param('output')}."
            )
