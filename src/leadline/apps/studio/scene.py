"""From the files of a session to a completed scene."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from leadline.apps.studio.form import parse_options
from leadline.apps.studio.jobs import Job, JobCancelled
from leadline.apps.studio.sessions import Role, Session, Upload
from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, LeadlineError, param
from leadline.base.limited_process import CallStopped, LimitedProcess
from leadline.base.registry import suggestion
from leadline.batch.frame import ensure_compiled
from leadline.core.options import CompletionOptions
from leadline.core.outliers import Outliers
from leadline.core.prior import PriorKindOrAuto
from leadline.geometry.cameras import Camera
from leadline.io.frames import FrameFiles, FrameInputs, FrameOptions, Predict, read_frame
from leadline.io.notes import Note
from leadline.priors.hub import supervise
from leadline.report.completed_scene import CompletedScene, HeldExponent, SceneScores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leadline.io.priors import SourcedPrior
    from leadline.priors.predictor import Predictor

PRIOR_FILE = "file"
"""The choice of a prior from a file, in place of a network's name."""
CLOUD_SUFFIXES = (".ply", ".pcd", ".las", ".laz", ".bin")
"""Suffixes of point clouds. Files in .npy and .npz are depth maps here; `leadline project` reads them as clouds."""
ASSUMED_VIEW_DEG = 60.0
"""Horizontal field of view of the camera where none is given: between a phone's and a webcam's."""
METHOD_TITLES = {"result": "this result", "best": "leadline (best)", "ours": "the paper's method"}
"""Titles in comparisons: of the result itself, and of methods whose names do not explain themselves."""
Uploads = Mapping[Role, Upload]
_REVISIONS = itertools.count(1)


def next_revision() -> int:
    """A number that no other result of this server has."""
    return next(_REVISIONS)


class CompleteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a completion depends on except the files."""

    prior: str = PRIOR_FILE
    unit: str | None = None
    prior_kind: PriorKindOrAuto | None = None
    reference_unit: str | None = None
    uncertainty: bool = False
    options: dict[str, str] = {}  # msgspec copies an empty default
    kept_regions: frozenset[int] = frozenset()  # regions of outliers, counted from 1, whose measurements are used


@dataclass(frozen=True)
class FileFacts:
    """Facts about an uploaded file; fields that do not apply to its role are None."""

    name: str
    size: tuple[int, int] | None = None  # width, height
    points: int | None = None  # of a point cloud
    count: int | None = None  # pixels with a depth
    unit: str | None = None
    unit_guessed: bool = False
    near: float | None = None  # metres, 1st and 99th percentile
    far: float | None = None


class CameraSource(Enum):
    """Where the camera of the 3D view and the normals comes from."""

    FILE = "file"
    PRIOR = "prior"
    ASSUMED = "assumed"


@dataclass(eq=False)
class Result:
    """A completed scene, and what was computed from it since."""

    revision: int
    request: CompleteRequest
    flags: tuple[str, ...]  # options that differ from the preset, as flags of the command line
    files: FrameFiles
    inputs: FrameInputs
    scene: CompletedScene
    camera_source: CameraSource
    measurements_removed: int  # under the drawn mask
    notes: tuple[Note, ...]
    found: Outliers | None = None  # all that the policy found, including those of the kept regions
    held: HeldExponent | None = None
    methods: dict[str, FloatArray] = field(default_factory=dict)  # depth maps of other methods

    @property
    def options(self) -> CompletionOptions:
        return self.scene.completion.options

    @property
    def depth(self) -> FloatArray:
        """The depth at the exponent that was set by hand, or else at the fitted one."""
        return self.scene.completion.depth if self.held is None else self.held.depth

    @property
    def outliers(self) -> int:
        """Number of measurements that were left out as outliers."""
        found = self.scene.completion.outliers
        return 0 if found is None else int(found.where.size)

    @property
    def used(self) -> FloatArray:
        """The measurements from which a command computes the same depth: without outliers if regions were kept."""
        outliers = self.scene.completion.outliers
        if not self.request.kept_regions or outliers is None:
            return self.scene.sparse
        return _without(self.scene.sparse, outliers)

    @property
    def method_name(self) -> str:
        """The name of the result among the methods to compare: that of its preset, if no option was changed."""
        presets = {"best": CompletionOptions.best(), "ours": CompletionOptions.paper()}
        return next((name for name, options in presets.items() if options == self.options), "result")

    def score(self, depth: FloatArray) -> SceneScores | None:
        """Scores of a depth map of this scene against the ground truth, if there is one."""
        # With an assumed camera the normals are a picture and not a measurement.
        return self.scene.score(depth, with_normals=self.camera_source is CameraSource.FILE)


def inspect_upload(upload: Upload, unit: str | None) -> FileFacts:
    """Read a file and return facts about its content."""
    from leadline.io.cameras import read_camera, read_extrinsics
    from leadline.io.clouds import read_cloud
    from leadline.io.depth import read_depth, read_image, read_values
    from leadline.report.colour import colour_range

    role, name, path = upload.role, upload.name, upload.path
    if role is Role.SPARSE and path.suffix in CLOUD_SUFFIXES:
        return FileFacts(name, points=len(read_cloud(path)))
    if role in (Role.SPARSE, Role.REFERENCE):
        depth = read_depth(path, unit)
        height, width = depth.values.shape
        count = int(np.isfinite(depth.values).sum())
        near, far = colour_range(depth.values)
        return FileFacts(name, (width, height), None, count, depth.unit, depth.guessed, near, far)
    if role is Role.CAMERA:
        camera = read_camera(path)
        return FileFacts(name, size=(camera.width, camera.height))
    if role is Role.EXTRINSICS:
        read_extrinsics(path)
        return FileFacts(name)
    height, width = (read_values(path) if role is Role.PRIOR else read_image(path)).shape[:2]
    return FileFacts(name, size=(width, height))


def inspect_safely(session: Session, upload: Upload, unit: str | None, reader: LimitedProcess, job: Job) -> FileFacts:
    """`inspect_upload` in another process, which a damaged file may occupy or end without harm to this one."""
    try:
        facts = reader.call(inspect_upload, upload, unit, wanted=lambda: job.wanted)
    except CallStopped:
        raise JobCancelled from None
    except LeadlineError as error:
        text = error.render(param)
        raise InputError(text if str(upload.path) in text else f"{upload.name}: {text}") from error
    session.readable.add(upload.path)
    return facts


def complete_scene(
    session: Session,
    uploads: Uploads,
    request: CompleteRequest,
    predictors: Mapping[str, Predictor],
    report: Callable[[str], None],
) -> Result:
    """Complete the scene of `uploads`; `report` is called with a sentence at the beginning of each stage."""
    from leadline.core import pipeline
    from leadline.core.inputs import check_inputs
    from leadline.io.frame_checks import exclude_painted

    flags, options = parse_options(request.options)
    report("Reading the files")
    files = _frame_files(uploads, request)
    is_cloud = files.points is not None
    frame_options = FrameOptions(
        unit=None if is_cloud else request.unit,
        prior_kind=request.prior_kind if files.prior is not None else None,
        resize_prior=True,
        scatter_sparse=not is_cloud,
    )
    inputs = read_frame(files, frame_options, predict_with(session, request.prior, predictors, report))
    sparse, removed = inputs.sparse, 0
    if Role.MASK in uploads:
        sparse, removed = exclude_painted(inputs.sparse, uploads[Role.MASK].path)
    reference, reference_notes = _read_reference(uploads, request, inputs)
    height, width = sparse.shape
    if inputs.camera is None:
        source = CameraSource.ASSUMED
    else:
        source = CameraSource.FILE if inputs.camera_source == "user" else CameraSource.PRIOR
    camera = inputs.camera or Camera.from_view_angle(width, height, ASSUMED_VIEW_DEG)
    ensure_compiled(
        options, lambda: report("Compiling the kernels, which happens once per installation and takes about a minute")
    )
    report("Completing")
    found, used, policy = None, sparse, options
    if request.kept_regions:
        if options.outliers != "regions":
            raise InputError(f"a region can be kept only with {param('outliers', 'regions')}.")
        found = pipeline.remove_outliers(check_inputs(inputs.prior, sparse).pairs, "regions")[1] or Outliers.none()
        used, policy = _without(sparse, _drop_regions(found, request.kept_regions)), replace(options, outliers="keep")
    completion = pipeline.complete(inputs.prior, used, uncertainty=request.uncertainty, options=policy)
    if completion.fit.count == 0:
        raise InputError(f"{completion.fit.status.value}.")
    if found is not None:
        completion = replace(completion, options=options, outliers=_drop_regions(found, request.kept_regions))
    scene = CompletedScene(files.stem, inputs.image, inputs.prior, sparse, reference, camera, completion)
    notes = (*inputs.notes, *reference_notes)
    found = found or completion.outliers
    return Result(next_revision(), request, flags, files, inputs, scene, source, removed, notes, found)


def _drop_regions(outliers: Outliers, kept: Collection[int]) -> Outliers:
    """The outliers without those of the kept regions; the others are counted anew."""
    labels = [label for label in range(1, len(outliers.regions) + 1) if label not in kept]
    left = np.isin(outliers.region, [0, *labels])
    return replace(
        outliers,
        where=outliers.where[left],
        deviation=outliers.deviation[left],
        threshold=outliers.threshold[left],
        region=np.searchsorted([0, *labels], outliers.region[left]).astype(np.int32),
        regions=tuple(outliers.regions[label - 1] for label in labels),
    )


def _without(sparse: FloatArray, outliers: Outliers) -> FloatArray:
    used = sparse.copy()
    used.flat[outliers.where] = np.nan
    return used


def run_method_on(result: Result, name: str) -> FloatArray:
    """The depth of a method of the registry with the same prior and measurements; computed once."""
    from leadline.methods import method, run_method

    if name not in comparable_methods():
        raise InputError(f"the method {name!r} is not ready here; {suggestion(name, comparable_methods())}")
    scene = result.scene
    if name in ("result", result.method_name):
        result.methods[name] = scene.completion.depth
    if name not in result.methods:
        context = {"image": scene.image, "camera": scene.camera, "name": result.files.stem, "dataset": None}
        extra = {"options": result.options} if name == "response" else {}
        result.methods[name] = run_method(method(name), scene.prior, scene.sparse, **context, **extra).depth
    return result.methods[name]


def comparable_methods() -> dict[str, str]:
    """Titles of what can be compared here, by name: this result, and the methods that are ready to run."""
    from leadline.methods import METHODS, missing_requirement

    ready = {
        name: f"{name}: {facts.summary}"
        for name, facts in METHODS.items()
        if name not in METHOD_TITLES and facts.argument is None and not missing_requirement(name)
    }
    return METHOD_TITLES | ready


def _frame_files(uploads: Uploads, request: CompleteRequest) -> FrameFiles:
    """The uploaded files as those of a frame."""
    paths = {role: upload.path for role, upload in uploads.items()}
    needed = {Role.IMAGE: "an image", Role.SPARSE: "measurements"}
    if request.prior == PRIOR_FILE:
        needed[Role.PRIOR] = "a prior"
    missing = [text for role, text in needed.items() if role not in uploads]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing: drop the file onto its field, or try an example.")
    measurements = uploads[Role.SPARSE]
    is_cloud = measurements.path.suffix in CLOUD_SUFFIXES
    if is_cloud and Role.CAMERA not in uploads:
        raise InputError(f"{measurements.name}: a point cloud needs the camera of the image: add {param('camera')}.")
    return FrameFiles(
        image=paths[Role.IMAGE],
        sparse=None if is_cloud else measurements.path,
        points=measurements.path if is_cloud else None,
        prior=paths[Role.PRIOR] if request.prior == PRIOR_FILE else None,
        camera=paths.get(Role.CAMERA),
        extrinsics=paths.get(Role.EXTRINSICS) if is_cloud else None,
        stem=Path(uploads[Role.IMAGE].name).stem,
    )


def predict_with(
    session: Session, name: str, predictors: Mapping[str, Predictor], report: Callable[[str], None]
) -> Predict | None:
    """The chosen network, whose last prediction the session keeps until there is another image; None for a file."""
    if name == PRIOR_FILE:
        return None
    if name not in predictors:
        raise InputError(f"{param('prior')}: {name!r} is not ready here; {suggestion(name, predictors)}")

    def predict(image: NDArray[np.uint8], stem: str) -> SourcedPrior:
        if session.prediction is None or session.prediction[0] != name:
            report(f"Predicting with {name}")

            def show(arrived: int, size: int) -> None:
                report(f"Downloading {name}: {arrived / 1e6:.1f} of {size / 1e6:.1f} MB")

            try:
                with supervise(progress=show):  # the choice of a network that is not here says that it is downloaded
                    session.prediction = name, predictors[name].predict(image, stem)
            except LeadlineError as error:
                # Visitors from other machines should not see the folder of the model.
                model = predictors[name].spec.partition(":")[2]
                text = error.render(param)
                raise InputError(text.replace(model, Path(model).name) if model else text) from error
        return session.prediction[1]

    return predict


def _read_reference(
    uploads: Uploads, request: CompleteRequest, inputs: FrameInputs
) -> tuple[FloatArray | None, tuple[Note, ...]]:
    from leadline.io.frame_checks import read_reference

    upload = uploads.get(Role.REFERENCE)
    if upload is None:
        return None, ()
    stated = None if inputs.measurements.unit_guessed or inputs.measurements.cloud is not None else inputs.unit
    return read_reference(upload.path, request.reference_unit, inputs.sparse, stated)
