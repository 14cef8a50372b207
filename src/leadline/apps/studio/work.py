"""What takes time: each function is a job of the one worker, and returns what the page then shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leadline.apps.studio import messages
from leadline.apps.studio.examples import EXAMPLE_UNITS, EXAMPLES, write_example
from leadline.apps.studio.form import option_fields
from leadline.apps.studio.jobs import Job
from leadline.apps.studio.messages import PRIOR_FILE, Choice, FileFacts, NoteText
from leadline.apps.studio.outputs import download_titles
from leadline.apps.studio.recipes import make_recipe
from leadline.apps.studio.scene import (
    ASSUMED_VIEW_DEG,
    CLOUD_SUFFIXES,
    METHOD_TITLES,
    RESULT,
    CameraSource,
    Result,
    comparable_methods,
    complete_scene,
    inspect_upload,
    run_method_on,
)
from leadline.apps.studio.sessions import Role, Session
from leadline.base.errors import InputError
from leadline.core.fit.estimator import FitStatus
from leadline.io.depth.files import DEPTH_SUFFIXES
from leadline.io.depth.units import UNITS
from leadline.io.frames import NoteKind
from leadline.report.colour import colour_range
from leadline.report.completed_scene import SceneScores
from leadline.report.scene_views import change_range, error_range

if TYPE_CHECKING:
    from leadline.apps.studio.server import Studio

_WARNINGS = {
    NoteKind.UNIT_GUESSED,
    NoteKind.REFERENCE_UNIT_GUESSED,
    NoteKind.UNIT_IMPLAUSIBLE,
    NoteKind.ALIGNMENT,
    NoteKind.ASPECT_RATIO,
}
"""Notes that ask the user to check something."""


def describe_start(studio: Studio, session: Session) -> messages.Start:
    """What the page offers, and the files that the session has already."""
    priors = [Choice(PRIOR_FILE, "a file")]
    priors += [Choice(name, _prior_title(name)) for name in studio.predictors]
    return messages.Start(
        examples=[Choice(name, example.title, example.text) for name, example in EXAMPLES.items()],
        priors=priors,
        default_prior=studio.default_prior or PRIOR_FILE,
        methods=[Choice(name, title) for name, title in comparable_methods().items()],
        units=list(UNITS),
        options=list(option_fields().values()),
        depth_suffixes=tuple(DEPTH_SUFFIXES),
        cloud_suffixes=CLOUD_SUFFIXES,
        files={role: upload.name for role, upload in session.files.items()},
        upload_limit=studio.limits.upload,
        local=studio.local,
    )


def _prior_title(name: str) -> str:
    return "none: interpolate the measurements smoothly" if name == "none" else name


def load_example(session: Session, request: messages.ExampleRequest, job: Job) -> dict[Role, FileFacts]:
    """Write the files of an example and describe them."""
    job.report("Rendering the example")
    write_example(session, request.name)
    return {role: inspect_upload(session, role, EXAMPLE_UNITS.get(role)) for role in session.files}


def inspect_file(session: Session, request: messages.RoleRequest, job: Job) -> FileFacts:
    """Describe a file."""
    job.report("Reading the file")
    if request.role not in session.files:
        raise InputError("this file is no longer there; drop it again.")
    return inspect_upload(session, request.role, request.unit)


def complete(studio: Studio, session: Session, request: messages.CompleteRequest, job: Job) -> messages.Summary:
    """Complete the scene, which becomes the session's result."""
    result = complete_scene(session, request, studio.predictors, job)
    job.report("Drawing")
    session.result = result
    scene, completion = result.scene, result.scene.completion
    height, width = completion.depth.shape
    near, far = colour_range(completion.depth)
    return messages.Summary(
        revision=result.revision,
        width=width,
        height=height,
        views=_views(result),
        near=near,
        far=far,
        measurements=completion.fit.count,
        measurements_removed=result.measurements_removed,
        outliers=0 if completion.outliers is None else int(completion.outliers.where.size),
        exponent=completion.fit.response.exponent,
        rmse=completion.fit.rmse,
        converged=completion.converged,
        notes=_notes(session, result),
        camera=result.camera_source.value,
        error_high=error_range(scene),
        uncertainty=_uncertainty(result),
        scores=_score(result, completion.depth),
        downloads=download_titles(result),
        inputs={role: upload.name for role, upload in session.files.items()} if session.example else {},
        recipe=make_recipe(session, result, studio.predictors, show_folders=studio.local),
        compare_as=_own_name(result),
    )


def diagnose(session: Session, job: Job) -> dict[str, Any]:
    """The curves of the result."""
    job.report("Computing the curves")
    return _result(session).scene.curves()


def set_exponent(
    session: Session, request: messages.ExponentRequest, job: Job
) -> messages.HeldSummary | messages.Empty:
    """Hold the exponent at a value, or return to the fit."""
    result = _result(session)
    if request.exponent is None:
        result.held = None
        return messages.Empty()
    job.report("Fitting at this exponent")
    held = result.held = result.scene.hold_exponent(request.exponent)
    return messages.HeldSummary(
        exponent=held.response.exponent,
        gain=held.response.gain,
        offset=held.response.offset,
        rmse=held.rmse,
        fitted_rmse=result.scene.completion.fit.rmse,
        median_change=held.median_change,
        largest_change=held.largest_change,
        change_high=change_range(held),
        scores=_score(result, held.depth),
        curve=result.scene.response_curve(held.response),
        downloads=download_titles(result),
    )


def run_other_method(session: Session, request: messages.MethodRequest, job: Job) -> messages.MethodSummary:
    """Run another method on the same scene."""
    result = _result(session)
    titles = comparable_methods()
    job.report(f"Running {titles.get(request.name, request.name)}")
    depth = run_method_on(result, request.name)
    return messages.MethodSummary(request.name, METHOD_TITLES.get(request.name, request.name), _score(result, depth))


def _result(session: Session) -> Result:
    if session.result is None:
        raise InputError("there is no result yet; complete the scene first.")
    return session.result


def _views(result: Result) -> list[str]:
    views = ["image", "measurements", "prior", "depth"]
    views += ["error"] if result.scene.reference is not None else []
    views += ["normals"]
    return views + (["uncertainty"] if result.scene.completion.sigma is not None else [])


def _own_name(result: Result) -> str:
    """The name of the result among the methods to compare: that of its preset, if no option was changed."""
    from leadline.core.options import CompletionOptions

    presets = {"best": CompletionOptions.best(), "ours": CompletionOptions.paper()}
    return next((name for name, options in presets.items() if options == result.options), RESULT)


def _uncertainty(result: Result) -> messages.Uncertainty | None:
    sigma = result.scene.completion.sigma
    if sigma is None:
        return None
    return messages.Uncertainty(median=result.scene.median_sigma(), high=colour_range(sigma, "error")[1])


def _score(result: Result, depth: Any) -> SceneScores | None:
    # With an assumed camera the normals are a picture and not a measurement.
    return result.scene.score(depth, with_normals=result.camera_source is CameraSource.FILE)


def _notes(session: Session, result: Result) -> list[NoteText]:
    completion = result.scene.completion
    notes = [NoteText(session.render(note.text), note.kind in _WARNINGS) for note in result.notes]
    if completion.fit.status is not FitStatus.CONVERGED:
        notes.append(NoteText(f"Fit: {session.render(completion.fit.status.value)}.", True))
    if not completion.reconstruction.converged:
        notes.append(NoteText(f"Solve: {session.render(completion.reconstruction.status.value)}.", True))
    if result.measurements_removed:
        notes.append(NoteText(f"{result.measurements_removed:,} measurements under the drawn mask were removed."))
    if completion.outliers is not None and completion.outliers.where.size:
        count = completion.outliers.where.size
        notes.append(NoteText(f"{count:,} outliers were removed: they contradict all their neighbours.", True))
    if result.camera_source is CameraSource.ASSUMED:
        angle = f"{ASSUMED_VIEW_DEG:g}°"
        text = f"No camera was given: the 3D view and the normals assume a field of view of {angle}."
        notes.append(NoteText(f"{text} The depth does not depend on it."))
    return notes
