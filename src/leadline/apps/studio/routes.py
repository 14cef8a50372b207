"""The requests that the server answers, each by a small function.

Nothing here depends on the web framework: `server` connects these functions to it. No part of a request ever becomes a
path of the file system. The body of a request is read as a msgspec type: an unknown field or a value of another type
is refused before anything is done. Answers are dictionaries; numbers in them that are not finite become null.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from leadline.apps.studio import outputs, relative
from leadline.apps.studio.examples import EXAMPLE_UNITS, EXAMPLES, thumbnail, write_example
from leadline.apps.studio.jobs import Job, JobState
from leadline.apps.studio.relative import RelativeResult
from leadline.apps.studio.scene import (
    METHOD_TITLES,
    CompleteRequest,
    FileFacts,
    Result,
    comparable_methods,
    complete_scene,
    inspect_safely,
    inspect_upload,
    run_method_on,
)
from leadline.apps.studio.sessions import Role, Session
from leadline.apps.studio.start import list_choices
from leadline.base.errors import InputError, param
from leadline.report.completed_scene import change_range
from leadline.report.scene_geometry import encode_points

if TYPE_CHECKING:
    from leadline.apps.studio.server import Studio

_ASSETS = files("leadline.apps.studio") / "assets"
_ASSET_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLL_SECONDS = 0.25  # an answer about a job waits this long for its end, so that a page polls at most so often


class Access(Enum):
    """The credentials that a request needs."""

    PUBLIC = auto()  # none
    SESSION = auto()  # the cookie of a session
    PAGE = auto()  # also the session's token and the origin, which show that our page sent it


class Refused(Exception):
    """A request that is not answered, with the status and the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, eq=False)
class Call:
    """An accepted request."""

    studio: Studio
    visitor: Session | None
    path: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def session(self) -> Session:
        """The session; `Access` guarantees that there is one unless the route is public."""
        if self.visitor is None:
            raise RuntimeError("this route must not be public")
        return self.visitor

    def any_result(self) -> Result | RelativeResult:
        """The session's result, if it is still the one that the path names."""
        result = self.session.result
        if result is None or str(result.revision) != self.path["revision"]:
            raise Refused(HTTPStatus.GONE, "this result has been replaced by a newer one.")
        return result

    def result(self) -> Result:
        """The same, for what a relative depth does not have."""
        result = self.any_result()
        if isinstance(result, RelativeResult):
            raise Refused(HTTPStatus.NOT_FOUND, "a relative depth has no such thing; give measurements.")
        return result


@dataclass(frozen=True)
class Reply:
    """An answer: its content and media type, and for downloads the name of the file."""

    content: bytes
    media_type: str
    file_name: str | None = None
    cookie: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A method and path, the function that answers, and the credentials that the request needs."""

    method: str
    path: str
    answer: Callable[[Call], Reply]
    access: Access = Access.SESSION


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request without content."""


class RoleRequest(Request, frozen=True, kw_only=True):
    """A request about the file of one role; `unit` is for depth maps."""

    role: Role
    unit: str | None = None


class NameRequest(Request, frozen=True, kw_only=True):
    """A request about an example or a method."""

    name: str


class ExponentRequest(Request, frozen=True, kw_only=True):
    """Hold the exponent at a value, or with None return to the fit."""

    exponent: float | None = None


Message = TypeVar("Message", bound=msgspec.Struct)


def decode(body: bytes, kind: type[Message]) -> Message:
    """The body of a request as that type; raises msgspec.MsgspecError if it is not one."""
    return msgspec.json.decode(body or b"{}", type=kind)


def reply_json(content: Any) -> Reply:
    return Reply(msgspec.json.encode(content), "application/json")


def get_page(call: Call) -> Reply:
    """The page, with the token of a session that begins here unless there is one."""
    session = call.visitor or call.studio.sessions.open()
    page = (_ASSETS / "index.html").read_text(encoding="utf-8")
    return Reply(page.replace("{{token}}", session.token).encode(), "text/html", cookie=session.key)


def get_asset(call: Call) -> Reply:
    media_types = {entry.name: _ASSET_TYPES.get(PurePath(entry.name).suffix) for entry in _ASSETS.iterdir()}
    media_type = media_types.get(call.path["name"])
    if media_type is None:
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page.")
    return Reply((_ASSETS / call.path["name"]).read_bytes(), media_type)


def get_thumbnail(call: Call) -> Reply:
    return Reply(thumbnail(call.path["name"]), "image/jpeg")


def get_colour_ramp(call: Call) -> Reply:
    return Reply(outputs.colour_ramp(call.path["scheme"]), "image/png")


def get_start(call: Call) -> Reply:
    """The choices that the page offers when it is loaded, and the files that the session already has."""
    return reply_json(list_choices(call.studio) | {"files": call.session.names()})


def get_job(call: Call) -> Reply:
    """The state of a job; waits a moment for its end."""
    worker = call.studio.worker
    job = worker.find(call.session.key, call.path["key"])
    if job is None:
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such job.")
    job.finished.wait(_POLL_SECONDS)
    state = job.state
    status = {
        "state": state,
        "stage": job.stage,
        "position": worker.position(job) if state is JobState.QUEUED else 0,
        "result": job.result if state is JobState.DONE else None,
        "error": "" if job.error is None else call.session.render(job.error.render(param)),
    }
    return reply_json(status)


def get_input(call: Call) -> Reply:
    """A file of the session."""
    uploads = {role.value: upload for role, upload in call.session.files.items()}
    upload = uploads.get(call.path["role"])
    if upload is None:
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such file.")
    return Reply(upload.path.read_bytes(), "application/octet-stream", upload.name)


def get_view(call: Call) -> Reply:
    result, name = call.any_result(), call.path["name"]
    if isinstance(result, RelativeResult):
        return Reply(*outputs.encode_picture(relative.draw_view(result, name), name))
    return Reply(*outputs.encode_view(result, name))


def get_points(call: Call) -> Reply:
    result = call.result()
    return Reply(encode_points(result.scene, result.depth), "application/octet-stream")


def get_regions(call: Call) -> Reply:
    return Reply(outputs.encode_regions(call.result()), "application/octet-stream")


def get_values(call: Call) -> Reply:
    """The values of a result at one pixel in metres."""
    row, column = (int(text) if text.isdecimal() else -1 for text in (call.path["row"], call.path["column"]))
    return reply_json(outputs.values_at(call.result(), row, column))


def get_download(call: Call) -> Reply:
    result, kind = call.any_result(), call.path["kind"]
    if isinstance(result, RelativeResult):
        return Reply(*relative.make_download(call.session, result, kind, show_folders=call.studio.local))
    return Reply(*outputs.make_download(call.session, result, kind))


def post_forget(call: Call) -> Reply:
    """Remove all files of the session, and stop what reads them."""
    call.studio.worker.cancel(call.session.key)
    call.session.clear()
    return reply_json({})


def post_remove(call: Call) -> Reply:
    """Remove one file."""
    call.session.remove(decode(call.body, RoleRequest).role)
    return reply_json({})


def post_cancel(call: Call) -> Reply:
    """Cancel what the session has queued, and stop what is running at its next stage."""
    call.studio.worker.cancel(call.session.key)
    return reply_json({})


def load_example(call: Call, request: NameRequest, job: Job) -> dict[str, Any]:
    """Write the files of an example and describe them, with the options that it sets."""
    job.report("Rendering the example")
    write_example(call.session, request.name)
    uploads = call.session.files.values()
    call.session.readable.update(upload.path for upload in uploads)  # this program wrote them
    files = {upload.role: inspect_upload(upload, EXAMPLE_UNITS.get(upload.role)) for upload in uploads}
    return {"files": files, "options": EXAMPLES[request.name].options}


def inspect_file(call: Call, request: RoleRequest, job: Job) -> FileFacts:
    """Describe a file."""
    job.report("Reading the file")
    if request.role not in call.session.files:
        raise InputError("this file is no longer there; drop it again.")
    upload = call.session.files[request.role]
    return inspect_safely(call.session, upload, request.unit, call.studio.reader, job)


def complete(call: Call, request: CompleteRequest, job: Job) -> dict[str, Any]:
    """Complete the scene, which becomes the session's result; without measurements that is its relative depth."""
    studio, session = call.studio, call.session
    uploads = dict(session.files)  # a file that arrives from now on is for the next job
    for upload in uploads.values():
        if upload.path not in session.readable:
            job.report(f"Reading {upload.name}")
            inspect_safely(session, upload, None, studio.reader, job)
    if Role.SPARSE not in uploads:
        shown = relative.show_relative_depth(session, uploads, request, studio.predictors, job.report)
        session.result = shown
        return relative.summarize(session, shown, show_folders=studio.local)
    result = complete_scene(session, uploads, request, studio.predictors, job.report)
    job.report("Drawing")
    session.result = result
    return outputs.summarize(session, result, studio.predictors, show_folders=studio.local)


def diagnose(call: Call, request: Request, job: Job) -> dict[str, Any]:
    """The curves of the result."""
    job.report("Computing the curves")
    return _last_result(call).scene.curves()


def set_exponent(call: Call, request: ExponentRequest, job: Job) -> dict[str, Any]:
    """Hold the exponent at a value, or return to the fit."""
    result = _last_result(call)
    if request.exponent is None:
        result.held = None
        return {}
    job.report("Fitting at this exponent")
    held = result.held = result.scene.hold_exponent(request.exponent)
    return {
        "exponent": held.response.exponent,
        "gain": held.response.gain,
        "offset": held.response.offset,
        "rmse": held.rmse,
        "fitted_rmse": result.scene.completion.fit.rmse,
        "median_change": held.median_change,
        "largest_change": held.largest_change,
        "change_high": change_range(held),
        "scores": result.score(held.depth),
        "curve": result.scene.response_curve(held.response),
        "downloads": outputs.download_titles(result),
    }


def run_other_method(call: Call, request: NameRequest, job: Job) -> dict[str, Any]:
    """Run another method on the same scene."""
    result = _last_result(call)
    job.report(f"Running {comparable_methods().get(request.name, request.name)}")
    scores = result.score(run_method_on(result, request.name))
    return {"name": request.name, "title": METHOD_TITLES.get(request.name, request.name), "scores": scores}


def _last_result(call: Call) -> Result:
    result = call.session.result
    if result is None or isinstance(result, RelativeResult):
        raise InputError("there is no metric result yet; complete a scene with measurements first.")
    return result


def _job(
    path: str, kind: type[Message], work: Callable[[Call, Message, Job], Any], distinct_by: str | None = None
) -> Endpoint:
    """A request that puts `work` into the queue, and is answered with the key by which its state can be fetched.

    It supersedes a waiting request of the same session and path, if both have the same value of `distinct_by`.
    """

    def answer(call: Call) -> Reply:
        request = decode(call.body, kind)
        subject = path if distinct_by is None else f"{path} {getattr(request, distinct_by)}"

        def run(job: Job) -> Any:
            call.session.last_used = time.monotonic()
            return work(call, request, job)

        return reply_json({"job": call.studio.worker.submit(call.session.key, subject, run).key})

    return Endpoint("POST", path, answer, Access.PAGE)


ENDPOINTS = (
    Endpoint("GET", "/", get_page, Access.PUBLIC),
    Endpoint("GET", "/assets/{name}", get_asset, Access.PUBLIC),
    Endpoint("GET", "/api/example/{name}", get_thumbnail, Access.PUBLIC),
    Endpoint("GET", "/api/ramp/{scheme}", get_colour_ramp, Access.PUBLIC),
    Endpoint("GET", "/api/start", get_start),
    Endpoint("GET", "/api/job/{key}", get_job),
    Endpoint("GET", "/api/input/{role}", get_input),
    Endpoint("GET", "/api/view/{revision}/{name}", get_view),
    Endpoint("GET", "/api/points/{revision}", get_points),
    Endpoint("GET", "/api/regions/{revision}", get_regions),
    Endpoint("GET", "/api/values/{revision}/{column}/{row}", get_values),
    Endpoint("GET", "/api/download/{revision}/{kind}", get_download),
    Endpoint("POST", "/api/forget", post_forget, Access.PAGE),
    Endpoint("POST", "/api/remove", post_remove, Access.PAGE),
    Endpoint("POST", "/api/cancel", post_cancel, Access.PAGE),
    _job("/api/example", NameRequest, load_example),
    _job("/api/inspect", RoleRequest, inspect_file, distinct_by="role"),
    _job("/api/complete", CompleteRequest, complete),
    _job("/api/diagnose", Request, diagnose),
    _job("/api/exponent", ExponentRequest, set_exponent),
    _job("/api/method", NameRequest, run_other_method, distinct_by="name"),  # a comparison requests two methods
)
"""All requests but the upload of a file, which `server` writes to disk while it arrives."""
