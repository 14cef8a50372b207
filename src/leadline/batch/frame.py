"""One frame from its files to its results, with a sidecar that records how the depth was computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, is_measured
from leadline.base.errors import InputError, param
from leadline.base.strict_json import dump_json
from leadline.batch.outcome import (
    Outcome,
    State,
    outcome_of,
    package_version,
    reasons_to_redo,
    settings_record,
)
from leadline.core.options import CompletionOptions
from leadline.io.files import file_hash
from leadline.io.frames import FrameFiles, FrameInputs, FrameOptions, Measurements, read_frame
from leadline.io.notes import Note, NoteKind, as_texts

if TYPE_CHECKING:
    from leadline.core.pipeline import Completion
    from leadline.geometry.cameras import CameraModel
    from leadline.priors.predictor import Predictor

# Formats of the written depth with the suffix of their files. All but PNG store floats.
FORMATS = {"png": ".png", "npy": ".npy", "npz": ".npz", "exr": ".exr", "pfm": ".pfm", "tiff": ".tiff"}
# Depth beyond this multiple of the farthest measurement is extrapolated by the response alone.
EXTRAPOLATION = 10.0


class PixelOrigin(IntEnum):
    """Grey values of the mask: they can be seen, and compared with."""

    NO_DEPTH = 0
    LEFT_OUT = 85  # measured, and filled because the measurement is an outlier
    FILLED = 170
    MEASURED = 255


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of the files that are written for a frame.

    Without `output_unit` the depth is in metres; for PNG in the unit of the measurements if that is a centimetre or
    finer and holds the depth, else in millimetres, or in 1/256 m for depth beyond 65 m.
    """

    format: str = "png"  # of the depth, see `FORMATS`
    output_unit: str | None = None
    calibrated: bool = False  # whether the calibrated prior is written, too
    sigma: bool = False  # whether the standard deviation of the depth is computed and written
    mask: bool = False  # whether a mask of measured, left out and filled pixels is written
    ply: bool = False  # whether a coloured point cloud is written; it needs a camera

    def __post_init__(self) -> None:
        from leadline.base.registry import suggestion
        from leadline.io.notes import rename_parameter
        from leadline.io.units import as_unit

        if self.format not in FORMATS:
            raise InputError(
                f"{param('format')}: depth cannot be written as {self.format!r}; {suggestion(self.format, FORMATS)}"
            )
        if self.output_unit is not None:
            try:
                as_unit(self.output_unit)
            except InputError as error:
                raise InputError(rename_parameter(error.args[0], "unit", "output_unit")) from error

    def paths(self, folder: Path, stem: str, *, cloud: bool = False) -> dict[str, Path]:
        """The files of a frame by what they are, in the order in which they are written.

        With `cloud`, the measurements are a point cloud and its projection is written as well.
        """
        suffix = FORMATS[self.format]
        files = {"depth": folder / f"{stem}_depth{suffix}"}
        if self.calibrated:
            files["calibrated"] = folder / f"{stem}_calibrated{suffix}"
        if self.sigma:  # 16 bits of millimetres would lose most of it
            files["sigma"] = folder / f"{stem}_sigma{'.npy' if self.format == 'png' else suffix}"
        if self.mask:
            files["mask"] = folder / f"{stem}_mask.png"
        if cloud:
            files["sparse"] = folder / f"{stem}_sparse{suffix}"
            files["points"] = folder / f"{stem}_points.png"
        files["preview"] = folder / f"{stem}_preview.png"
        if self.ply:
            files["cloud"] = folder / f"{stem}.ply"
        return {**files, "sidecar": folder / f"{stem}.json"}

    def units(self, measured: str) -> tuple[str, ...]:
        """Units for the depth, in the order in which they are tried; `measured` is the unit of the measurements.

        Where 16 bits in one unit do not reach the farthest depth, the next unit is used.
        """
        from leadline.io.units import png_units

        if self.output_unit is not None:
            return (self.output_unit,)
        return png_units(measured) if self.format == "png" else ("m",)


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

    def record(self) -> dict[str, Any]:
        """All options, ready for JSON. A frame is completed again if one of them changes."""
        return settings_record(
            {"inputs": asdict(self.inputs), "outputs": asdict(self.outputs), "completion": asdict(self.completion)}
        )


def ensure_compiled(options: CompletionOptions, announce: Callable[[], None] | None = None) -> bool:
    """Compile the kernels for `options` unless that was done before; returns whether they were compiled now.

    `announce` is called before, as compiling takes up to a minute.
    """
    from leadline.core.pipeline import is_compiled, warm_up

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
    announce_compiling: Callable[[], None] | None = None,
) -> Outcome:
    """Complete one frame and write its results; skipped if that was done before with the same inputs and options.

    The sidecar ``STEM.json`` is removed first and written last, so its presence means that all files it lists are
    complete and belong together.

    `measurements` replace the files of measurements. `announce_compiling` is called before the kernels are compiled.
    """
    paths = job.outputs.paths(job.folder, files.stem, cloud=files.points is not None)
    _refuse_to_overwrite_inputs(files, paths)
    inputs = _hash_inputs(files, job.predictor, measurements)
    notes: list[Note] = []
    if not job.overwrite and paths["sidecar"].exists():
        changes = reasons_to_redo(paths, {name: entry["sha256"] for name, entry in inputs.items()}, job.record())
        if not changes:
            text = f"complete already, from the same inputs and options; {param('overwrite', True)} completes it again"
            return Outcome(files.stem, State.SKIPPED, text)
        notes.append(Note(NoteKind.REDONE, f"completed again: {changes}."))

    started = time.perf_counter()
    predict = None if job.predictor is None else job.predictor.predict
    frame = read_frame(files, job.inputs, predict, measurements=measurements)
    if job.outputs.ply and frame.camera is None:
        raise InputError(
            f"{param('ply', True)} needs a camera: give {param('intrinsics')} or {param('camera')}, or a prior that "
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
    unit, more = _write_results(paths, frame, result, job.outputs)
    notes += more
    written = time.perf_counter()
    seconds = {"read": read - started, "complete": solved - compiled, "write": written - solved}
    record = {
        "leadline": package_version(),
        "frame": files.stem,
        "inputs": inputs,
        "outputs": {name: path.name for name, path in paths.items() if name != "sidecar"},
        **frame.record,
        "units": {**frame.record["units"], "depth": {"unit": unit}},
        "notes": as_texts(notes),
        "result": result.to_dict(),
        "settings": job.record(),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
    }
    from leadline.io.files import write_text

    write_text(paths["sidecar"], dump_json(record))
    return Outcome(files.stem, State.DONE, result.summary(param), tuple(notes), tuple(paths.values()))


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
    extrapolated = _extrapolation(result.depth, sparse)
    if extrapolated:
        notes.append(Note(NoteKind.EXTRAPOLATED, extrapolated))
    return notes


def origin_mask(result: Completion, sparse: FloatArray, valid: BoolArray | None = None) -> NDArray[np.uint8]:
    """What each depth is, (H, W): a `PixelOrigin`. `valid` is False where measurements were not to be used."""
    mask = np.where(np.isfinite(result.depth), np.uint8(PixelOrigin.FILLED), np.uint8(PixelOrigin.NO_DEPTH))
    mask[is_measured(sparse) if valid is None else is_measured(sparse) & valid] = PixelOrigin.MEASURED
    if result.outliers is not None:
        mask.flat[result.outliers.where] = PixelOrigin.LEFT_OUT
    return mask


def write_in_fitting_unit(maps: Mapping[Path, FloatArray], units: tuple[str, ...]) -> str:
    """Write depth maps in the first of `units` whose 16 bits reach their farthest value; returns that unit."""
    from leadline.io.depth import write_depth

    for unit in units:
        try:
            for path, depth in maps.items():
                write_depth(path, depth, unit)
            break
        except InputError:  # the depth is beyond 16 bits in this unit
            if unit == units[-1]:
                raise
    return unit


def write_cloud(
    path: Path, camera: CameraModel, depth: FloatArray, image: NDArray[np.uint8], *, edge_filter: bool = True
) -> None:
    """Write the pixels with a depth as a point cloud with colours and normals in PLY.

    The `edge_filter` leaves out pixels that lie between two objects; see `leadline.geometry.surface`.
    """
    from leadline.geometry.surface import EdgeLimits, surface_from_depth
    from leadline.io.ply import write_ply

    surface = surface_from_depth(depth, camera, edges=EdgeLimits() if edge_filter else None)
    write_ply(path, surface.points, image.reshape(-1, 3)[surface.pixels], normals=surface.normals)


def _write_results(
    paths: Mapping[str, Path], frame: FrameInputs, result: Completion, outputs: OutputOptions
) -> tuple[str, list[Note]]:
    """Write all files but the sidecar; returns the unit of the depth, and a note if it is not the first choice."""
    from leadline.io.depth import write_depth
    from leadline.io.files import atomic_write
    from leadline.report.tiles import draw_preview

    units = outputs.units(frame.unit)
    maps = {paths[name]: getattr(result, name) for name in ("depth", "calibrated") if name in paths}
    try:
        unit = write_in_fitting_unit(maps, units)
    except InputError as error:
        doubts = [note.text for note in frame.notes if note.kind is NoteKind.UNIT_IMPLAUSIBLE]
        if doubts:  # no format for the depth is the cure
            raise InputError(f"the depth cannot be written: {doubts[0]}") from error
        text = f"{_extrapolation(result.depth, frame.sparse)} {error.args[0]}".strip()
        raise InputError(f"{text} The parameters are {param('output_unit')} and {param('format')}.") from error
    if result.sigma is not None:
        write_depth(paths["sigma"], result.sigma, "m")
    notes = []
    if unit != units[0]:
        text = f"the depth is beyond 16 bits in {units[0]} and was written in {unit}."
        notes.append(Note(NoteKind.OUTPUT_UNIT, text))
    cloud = frame.measurements.cloud
    if cloud is not None:
        from leadline.report.tiles import draw_projected_points

        write_in_fitting_unit({paths["sparse"]: frame.sparse}, units)
        picture = draw_projected_points(frame.image, frame.sparse, cloud.dropped(), heading=paths["points"].stem)
        atomic_write(paths["points"], lambda part: picture.save(part, format="PNG"))
    if "mask" in paths:
        from PIL import Image

        mask = Image.fromarray(origin_mask(result, frame.sparse, frame.valid))
        atomic_write(paths["mask"], lambda part: mask.save(part, format="PNG"))
    preview = draw_preview(frame.image, result.depth)
    atomic_write(paths["preview"], lambda part: preview.save(part, format="PNG"))
    if "cloud" in paths and frame.camera is not None:
        write_cloud(paths["cloud"], frame.camera, result.depth, frame.image)
    return unit, notes


def _extrapolation(depth: FloatArray, sparse: FloatArray) -> str:
    """A sentence if the depth goes far beyond all measurements; empty if it does not."""
    most, farthest = (float(np.nanmax(values)) for values in (depth, sparse))
    if not most > EXTRAPOLATION * farthest:
        return ""
    return (
        f"the depth reaches {most:.3g} m and the farthest measurement is {farthest:.3g} m: the rest is extrapolated; "
        "measure farther away."
    )


def _hash_inputs(
    files: FrameFiles, predictor: Predictor | None, measurements: Measurements | None
) -> dict[str, dict[str, str]]:
    inputs = {name: {"path": str(path), "sha256": file_hash(path)} for name, path in files.paths().items()}
    if files.prior is None and predictor is not None:
        inputs["prior"] = {"path": predictor.spec, "sha256": predictor.fingerprint}
    if measurements is not None:
        from leadline.priors.predictor import content_hash

        inputs["sparse"] = {"path": "", "sha256": content_hash(measurements.depth)}
    return inputs


def _refuse_to_overwrite_inputs(files: FrameFiles, paths: Mapping[str, Path]) -> None:
    inputs = {path.resolve(): name for name, path in files.paths().items()}
    for path in paths.values():
        if path.resolve() in inputs:
            raise InputError(
                f"{path}: would overwrite the {inputs[path.resolve()]} input; choose another {param('output')}."
            )
