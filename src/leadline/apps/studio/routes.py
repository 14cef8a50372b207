"""The requests that the server answers, each a small function from a `Call` to a `Reply`.

Nothing here depends on the web framework: `web` connects these functions to it. No part of a request ever becomes a
path of the file system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from leadline.apps.studio import messages
from leadline.apps.studio.access import Access, Refused
from leadline.apps.studio.jobs import Job, JobState
from leadline.apps.studio.sessions import Session

if TYPE_CHECKING:
    from leadline.apps.studio.scene import Result
    from leadline.apps.studio.server import Studio

ASSETS = {
    "studio.css": "text/css",
    "studio.js": "text/javascript",
    "api.js": "text/javascript",
    "viewer.js": "text/javascript",
    "cloud.js": "text/javascript",
    "charts.js": "text/javascript",
    "panels.js": "text/javascript",
    "slots.js": "text/javascript",
    "form.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_POLL_SECONDS = 0.25  # an answer about a job waits this long for its end, so that a page polls at most so often


@dataclass(frozen=True, eq=False)
class Call:
    """A request that was let in."""

    studio: Studio
    session: Session | None
    path: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def own_session(self) -> Session:
        """The session; `Access` guarantees that there is one."""
        if self.session is None:
            raise RuntimeError("this route must not be public")
        return self.session

    def result(self) -> Result:
        """The session's result, if it is still the one that the path names."""
        result = self.own_session().result
        if result is None or str(result.revision) != self.path["revision"]:
            raise Refused(HTTPStatus.GONE, "this result has been replaced by a newer one.")
        return result


@dataclass(frozen=True)
class Reply:
    """An answer: its content and media type, and for downloads the name of the file."""

    content: bytes
    media_type: str = "application/json"
    file_name: str | None = None
    cookie: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A method and path, the function that answers, and what the request must prove."""

    method: str
    path: str
    answer: Callable[[Call], Reply]
    access: Access = Access.SESSION


def _reply(message: Any) -> Reply:
    return Reply(messages.encode(message))


# --- reading -------------------------------------------------------------------------------------------------


def get_page(call: Call) -> Reply:
    """The page, with the token of a session that begins here unless there is one."""
    session = call.session or call.studio.sessions.open()
    page = (files("leadline.apps.studio") / "assets" / "index.html").read_text(encoding="utf-8")
    return Reply(page.replace("{{token}}", session.token).encode(), "text/html", cookie=session.key)


def get_asset(call: Call) -> Reply:
    name = call.path["name"]
    if name not in ASSETS:
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page.")
    return Reply((files("leadline.apps.studio") / "assets" / name).read_bytes(), ASSETS[name])


def get_thumbnail(call: Call) -> Reply:
    from leadline.apps.studio.examples import thumbnail

    return Reply(thumbnail(call.path["name"]), "image/jpeg")


def get_colour_ramp(call: Call) -> Reply:
    from leadline.apps.studio.outputs import colour_ramp

    return Reply(colour_ramp(call.path["scheme"]), "image/png")


def get_start(call: Call) -> Reply:
    from leadline.apps.studio.work import describe_start

    return _reply(describe_start(call.studio, call.own_session()))


def get_job(call: Call) -> Reply:
    """The state of a job; waits a moment for its end."""
    session, worker = call.own_session(), call.studio.worker
    job = worker.find(session.key, call.path["key"])
    if job is None:
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such job.")
    job.finished.wait(_POLL_SECONDS)
    state = job.state
    status = messages.JobStatus(
        state,
        stage=job.stage,
        position=worker.position(job) if state is JobState.QUEUED else 0,
        result=job.result if state is JobState.DONE else None,
        error="" if job.error is None else session.error_text(job.error),
    )
    return _reply(status)


def get_input(call: Call) -> Reply:
    """A file of the session."""
    uploads = {role.value: upload for role, upload in call.own_session().files.items()}
    upload = uploads.get(call.path["role"])
    if upload is None:
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such file.")
    return Reply(upload.path.read_bytes(), "application/octet-stream", upload.name)


def get_view(call: Call) -> Reply:
    from leadline.apps.studio.outputs import encode_view

    content, media_type = encode_view(call.result(), call.path["name"])
    return Reply(content, media_type)


def get_points(call: Call) -> Reply:
    from leadline.apps.studio.outputs import encode_points

    return Reply(encode_points(call.result()), "application/octet-stream")


def get_download(call: Call) -> Reply:
    from leadline.apps.studio.outputs import make_download

    found = make_download(call.own_session(), call.result(), call.path["kind"])
    return Reply(found.content, found.media_type, found.name)


# --- changing ------------------------------------------------------------------------------------------------


def post_forget(call: Call) -> Reply:
    """Remove all files of the session."""
    call.own_session().clear()
    return _reply(messages.Empty())


def post_remove(call: Call) -> Reply:
    """Remove one file."""
    call.own_session().remove(messages.decode(call.body, messages.RoleRequest).role)
    return _reply(messages.Empty())


def post_cancel(call: Call) -> Reply:
    """Cancel what the session has queued, and stop what is running at its next stage."""
    call.studio.worker.cancel(call.own_session().key)
    return _reply(messages.Empty())


def _submit(call: Call, subject: str, work: Callable[[Job], Any]) -> Reply:
    session = call.own_session()

    def run(job: Job) -> Any:
        session.last_used = time.monotonic()
        return work(job)

    return _reply(messages.JobAnswer(call.studio.worker.submit(session.key, subject, run).key))


def post_example(call: Call) -> Reply:
    from leadline.apps.studio.work import load_example

    request = messages.decode(call.body, messages.ExampleRequest)
    return _submit(call, "example", lambda job: load_example(call.own_session(), request, job))


def post_inspect(call: Call) -> Reply:
    from leadline.apps.studio.work import inspect_file

    request = messages.decode(call.body, messages.RoleRequest)
    return _submit(call, f"inspect {request.role}", lambda job: inspect_file(call.own_session(), request, job))


def post_complete(call: Call) -> Reply:
    from leadline.apps.studio.work import complete

    request = messages.decode(call.body, messages.CompleteRequest)
    return _submit(call, "complete", lambda job: complete(call.studio, call.own_session(), request, job))


def post_diagnose(call: Call) -> Reply:
    from leadline.apps.studio.work import diagnose

    return _submit(call, "diagnose", lambda job: diagnose(call.own_session(), job))


def post_exponent(call: Call) -> Reply:
    from leadline.apps.studio.work import set_exponent

    request = messages.decode(call.body, messages.ExponentRequest)
    return _submit(call, "exponent", lambda job: set_exponent(call.own_session(), request, job))


def post_method(call: Call) -> Reply:
    from leadline.apps.studio.work import run_other_method

    request = messages.decode(call.body, messages.MethodRequest)
    # One method's job must not supersede another's: a comparison waits for two.
    return _submit(call, f"method {request.name}", lambda job: run_other_method(call.own_session(), request, job))


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
    Endpoint("GET", "/api/download/{revision}/{kind}", get_download),
    Endpoint("POST", "/api/forget", post_forget, Access.PAGE),
    Endpoint("POST", "/api/remove", post_remove, Access.PAGE),
    Endpoint("POST", "/api/cancel", post_cancel, Access.PAGE),
    Endpoint("POST", "/api/example", post_example, Access.PAGE),
    Endpoint("POST", "/api/inspect", post_inspect, Access.PAGE),
    Endpoint("POST", "/api/complete", post_complete, Access.PAGE),
    Endpoint("POST", "/api/diagnose", post_diagnose, Access.PAGE),
    Endpoint("POST", "/api/exponent", post_exponent, Access.PAGE),
    Endpoint("POST", "/api/method", post_method, Access.PAGE),
)
"""All requests but the upload of a file, which `web` writes to disk while it arrives."""
