"""From the files of a session to a completed scene."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.apps.studio.form import parse_options
from leadline.apps.studio.jobs import Job
from leadline.apps.studio.messages import PRIOR_FILE, CompleteRequest, FileFacts
from leadline.apps.studio.sessions import Role, Session
from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, LeadlineError, param
from leadline.base.registry import suggestion
from leadline.core.options import CompletionOptions
from leadline.geometry.cameras import Camera, CameraModel
from leadline.io.frames import FrameFiles, FrameInputs, FrameOptions, Note, NoteKind, read_frame
from leadline.report.completed_scene import CompletedScene, HeldExponent

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from leadline.io.frames import Predict
    from leadline.io.priors import SourcedPrior
    from leadline.priors.predictor import Predictor

CLOUD_SUFFIXES = (".ply", ".pcd", ".las", ".laz", ".bin")
"""Suffixes of point clouds. Files in .npy and .npz are depth maps here; `leadline project` reads them as clouds."""
ASSUMED_VIEW_DEG = 60.0
"""Horizontal field of view of the camera where none is given: between a phone's and a webcam's."""
_REVISIONS = itertools.count(1)


class CameraSource(Enum):
    """Where the camera of the 3D view and the normals comes from."""

    FILE = "file"
    PRIOR = "prior"
    ASSUMED = "assumed"


@dataclass(eq=False)
class Result:
    """A completed scene, and what was computed from it since."""

    revision: int
    stem: str
    request: CompleteRequest
    flags: tuple[str, ...]  # options that differ from the preset, as flags of the command line
    files: FrameFiles
    frame_options: FrameOptions
    inputs: FrameInputs
    scene: CompletedScene
    camera_source: CameraSource
    measurements_removed: int  # under the drawn mask
    notes: tuple[Note, ...]
    held: HeldExponent | None = None
    methods: dict[str, FloatArray] = field(default_factory=dict)  # depth maps of other methods

    @property
    def options(self) -> CompletionOptions:
        return self.scene.completion.options

    @property
    def depth(self) -> FloatArray:
        """The depth at the exponent that was set by hand, if one was, and else at the fitted one."""
        return self.scene.completion.depth if self.held is None else self.held.depth


def inspect_upload(session: Session, role: Role, unit: str | None) -> FileFacts:
    """What a file of the session contains.

    Raises
    ------
    LeadlineError
        It cannot be read as what its role says.
    """
    from leadline.io.cameras import read_camera, read_extrinsics
    from leadline.io.clouds.files import read_cloud
    from leadline.io.depth.files import read_image, read_values

    upload = session.files[role]
    name, path = upload.name, upload.path
    if role is Role.SPARSE and path.suffix in CLOUD_SUFFIXES:
        return FileFacts(name, points=len(read_cloud(path)))
    if role in (Role.SPARSE, Role.REFERENCE):
        return _inspect_depth(name, path, unit)
    if role is Role.CAMERA:
        camera = read_camera(path)
        return FileFacts(name, size=(camera.width, camera.height))
    if role is Role.EXTRINSICS:
        read_extrinsics(path)
        return FileFacts(name)
    height, width = (read_values(path) if role is Role.PRIOR else read_image(path)).shape[:2]
    return FileFacts(name, size=(width, height))


def _inspect_depth(name: str, path: Path, unit: str | None) -> FileFacts:
    import numpy as np

    from leadline.io.depth.files import read_depth
    from leadline.report.colour import colour_range

    measured = read_depth(path, unit)
    height, width = measured.values.shape
    near, far = colour_range(measured.values)
    count = int(np.isfinite(measured.values).sum())
    return FileFacts(
        name,
        size=(width, height),
        count=count,
        unit=measured.unit,
        unit_guessed=measured.guessed,
        near=near,
        far=far,
    )


def complete_scene(session: Session, request: CompleteRequest, predictors: Mapping[str, Predictor], job: Job) -> Result:
    """Complete the scene of the session's files.

    Raises
    ------
    LeadlineError
        A file is missing, cannot be read or does not fit the others, or there is nothing to work with.
    """
    from leadline.core import pipeline
    from leadline.io.masks import exclude_painted

    flags, options = parse_options(request.options)
    job.report("Reading the files")
    files = frame_files(session, request)
    frame_options = _frame_options(files, request)
    inputs = read_frame(files, frame_options, _predict(session, request, predictors, job))
    sparse, removed = inputs.sparse, 0
    mask = session.path_of(Role.MASK)
    if mask is not None:
        sparse, removed = exclude_painted(inputs.sparse, mask)
    reference, reference_notes = _read_reference(session, request, inputs)
    camera, source = _camera(inputs)
    _compile(options, job)
    job.report("Completing")
    completion = pipeline.complete(inputs.prior, sparse, uncertainty=request.uncertainty, options=options)
    if completion.fit.count == 0:
        raise InputError(f"{completion.fit.status.value}.")
    stem = Path(session.files[Role.IMAGE].name).stem
    scene = CompletedScene(stem, inputs.image, inputs.prior, sparse, reference, camera, completion)
    notes = (*inputs.notes, *reference_notes)
    return Result(next(_REVISIONS), stem, request, flags, files, frame_options, inputs, scene, source, removed, notes)


def run_method_on(result: Result, name: str) -> FloatArray:
    """The depth of a method of the registry with the same prior and measurements; computed once.

    Raises
    ------
    LeadlineError
        The method is not ready on this machine, or it fails.
    """
    from leadline.methods import method, run_method

    if name not in comparable_methods():
        raise InputError(f"the method {name!r} is not ready here; {suggestion(name, comparable_methods())}")
    if name not in result.methods:
        scene = result.scene
        presets = {"best": CompletionOptions.best(), "ours": CompletionOptions.paper()}
        if presets.get(name) == result.options or name == RESULT:
            result.methods[name] = scene.completion.depth
        else:
            context = {"image": scene.image, "camera": scene.camera, "name": result.stem, "dataset": None}
            extra = {"options": result.options} if name == "response" else {}
            found = run_method(method(name), scene.prior, scene.sparse, **context, **extra)
            result.methods[name] = found.depth
    return result.methods[name]


RESULT = "result"
"""The name under which the result itself is compared with methods."""
METHOD_TITLES = {RESULT: "this result", "best": "leadline (best)", "ours": "the paper's method"}


def comparable_methods() -> dict[str, str]:
    """Titles of what can be compared here, by name: this result, and the methods that are ready to run."""
    from leadline.methods import METHODS
    from leadline.methods.requirements import missing_requirement

    ready = {
        name: facts.summary
        for name, facts in METHODS.items()
        if facts.argument is None and not missing_requirement(name)
    }
    return METHOD_TITLES | {name: f"{name}: {text}" for name, text in ready.items() if name not in METHOD_TITLES}


def frame_files(session: Session, request: CompleteRequest) -> FrameFiles:
    """The session's files as those of a frame.

    Raises
    ------
    InputError
        The image or the measurements are missing, the prior is and no network is chosen, or a cloud has no camera.
    """
    needed = {Role.IMAGE: "an image", Role.SPARSE: "measurements"}
    if request.prior == PRIOR_FILE:
        needed[Role.PRIOR] = "a prior"
    missing = [text for role, text in needed.items() if role not in session.files]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing: drop the file onto its field, or try an example.")
    measurements = session.files[Role.SPARSE]
    is_cloud = measurements.path.suffix in CLOUD_SUFFIXES
    if is_cloud and Role.CAMERA not in session.files:
        raise InputError(f"{measurements.name}: a point cloud needs the camera of the image: add {param('camera')}.")
    return FrameFiles(
        image=session.files[Role.IMAGE].path,
        sparse=None if is_cloud else measurements.path,
        points=measurements.path if is_cloud else None,
        prior=session.path_of(Role.PRIOR) if request.prior == PRIOR_FILE else None,
        camera=session.path_of(Role.CAMERA),
        extrinsics=session.path_of(Role.EXTRINSICS) if is_cloud else None,
        stem=Path(session.files[Role.IMAGE].name).stem,
    )


def _frame_options(files: FrameFiles, request: CompleteRequest) -> FrameOptions:
    is_cloud = files.points is not None
    return FrameOptions(
        unit=None if is_cloud else request.unit,
        prior_kind=request.prior_kind if files.prior is not None else None,
        resize_prior=True,
        scatter_sparse=not is_cloud,
    )


def _predict(
    session: Session, request: CompleteRequest, predictors: Mapping[str, Predictor], job: Job
) -> Predict | None:
    """The chosen network, whose last prediction the session keeps until there is another image; None for a file."""
    name = request.prior
    if name == PRIOR_FILE:
        return None
    if name not in predictors:
        raise InputError(f"{param('prior')}: {name!r} is not ready here; {suggestion(name, predictors)}")

    def predict(image: NDArray[np.uint8], stem: str) -> SourcedPrior:
        if session.prediction is None or session.prediction[0] != name:
            job.report(f"Predicting with {name}")
            try:
                session.prediction = name, predictors[name].predict(image, stem)
            except LeadlineError as error:
                raise _without_folder(error, predictors[name].spec) from error
        return session.prediction[1]

    return predict


def _without_folder(error: LeadlineError, spec: str) -> InputError:
    """The error of a network without the folder of its model, which is no concern of visitors from elsewhere."""
    _, _, model = spec.partition(":")
    text = error.render(param)
    return InputError(text.replace(model, Path(model).name) if model else text)


def _read_reference(
    session: Session, request: CompleteRequest, inputs: FrameInputs
) -> tuple[FloatArray | None, tuple[Note, ...]]:
    from leadline.io.depth.files import read_depth

    upload = session.files.get(Role.REFERENCE)
    if upload is None:
        return None, ()
    try:
        measured = read_depth(upload.path, request.reference_unit)
    except LeadlineError as error:
        text = error.render(lambda name, value: param("reference_unit" if name == "unit" else name, value))
        raise InputError(text) from error
    sizes = [f"{shape[1]}x{shape[0]}" for shape in (measured.values.shape, inputs.sparse.shape)]
    if sizes[0] != sizes[1]:
        raise InputError(f"{upload.name}: the ground truth is {sizes[0]} and the image {sizes[1]}; make them equal.")
    if not measured.guessed:
        return measured.values, ()
    text = f"The unit of the ground truth was guessed: {measured.unit}. Set {param('reference_unit')} if it is wrong."
    return measured.values, (Note(NoteKind.REFERENCE_UNIT_GUESSED, text),)


def _camera(inputs: FrameInputs) -> tuple[CameraModel, CameraSource]:
    """The camera of the 3D view and the normals, and where it comes from."""
    height, width = inputs.sparse.shape
    if inputs.camera is None:
        return Camera.from_view_angle(width, height, ASSUMED_VIEW_DEG), CameraSource.ASSUMED
    return inputs.camera, CameraSource.FILE if inputs.camera_source == "user" else CameraSource.PRIOR


def _compile(options: CompletionOptions, job: Job) -> None:
    from leadline.core.warm_up import is_compiled, warm_up

    if not is_compiled(options):
        job.report("Compiling the kernels, which happens once per installation and takes about a minute")
        warm_up(options)
