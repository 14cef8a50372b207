"""The routes as a Starlette application: the only module that knows the web framework."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from leadline.apps.studio import messages
from leadline.apps.studio.access import (
    COOKIE,
    SECURITY_HEADERS,
    Access,
    Refused,
    admit,
    content_length,
    is_allowed_host,
)
from leadline.apps.studio.routes import ENDPOINTS, Call, Endpoint, Reply
from leadline.apps.studio.sessions import Role, Session, Upload
from leadline.base.errors import LeadlineError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from leadline.apps.studio.server import Studio

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON_LIMIT = 64 * 1024
_PATIENCE = 30.0  # seconds without a byte of the body after which a request is abandoned
_LOG = logging.getLogger(__name__)


def make_application(studio: Studio) -> Application:
    """The server's ASGI application."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    async def not_found(request: Request, error: Exception) -> Response:
        status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND)
        return _refuse(status, "there is no such page.")

    routes = [Route(entry.path, _handler(studio, entry), methods=[entry.method]) for entry in ENDPOINTS]
    routes.append(Route("/api/file/{role}", _upload_handler(studio), methods=["PUT"]))
    application = Starlette(routes=routes, exception_handlers={HTTPException: not_found})
    application.router.redirect_slashes = False
    return _guard(application, studio)


def _guard(application: Application, studio: Studio) -> Application:
    """Refuse requests for other hosts before anything else, and add the security headers to every answer."""
    extra = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
        if is_allowed_host(host, studio.host):
            await application(scope, receive, send_with_headers)
        else:
            refusal = _refuse(HTTPStatus.FORBIDDEN, "this address does not belong to leadline studio.")
            await refusal(scope, receive, send_with_headers)

    return guarded


def _handler(studio: Studio, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Check the request, read its body, and answer in a thread of its own, since answers may take a while."""
    from starlette.concurrency import run_in_threadpool

    async def answer(request: Request, session: Session | None) -> Response:
        body = b""
        if endpoint.method == "POST":
            length = content_length(request.headers, _JSON_LIMIT)
            chunks = [chunk async for chunk in _body(request)]
            body = b"".join(chunks)[:length]
        call = Call(studio, session, request.path_params, body)
        return _respond(await run_in_threadpool(endpoint.answer, call))

    return _with_errors(studio, endpoint.access, answer)


def _upload_handler(studio: Studio) -> Callable[[Request], Awaitable[Response]]:
    """Write the body to a file of the session, which replaces the one of the same role once it is complete."""

    async def answer(request: Request, session: Session | None) -> Response:
        if session is None:
            raise RuntimeError("uploads must not be public")
        upload = session.plan_upload(Role.parse(request.path_params["role"]), request.query_params.get("name", ""))
        length = content_length(request.headers, studio.limits.upload)
        await _receive_file(request, session, upload, length)
        session.add(upload)
        return _respond(Reply(messages.encode(messages.UploadAnswer(upload.role, upload.name))))

    return _with_errors(studio, Access.PAGE, answer)


async def _receive_file(request: Request, session: Session, upload: Upload, length: int) -> None:
    part = session.folder / f"part-{secrets.token_hex(6)}"
    try:
        with part.open("wb") as stream:
            async for chunk in _body(request):
                length -= stream.write(chunk)
        if length:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{upload.name}: the upload is incomplete; try again.")
        part.replace(upload.path)
    finally:
        part.unlink(missing_ok=True)


async def _body(request: Request) -> Any:
    """The chunks of a request's body as they arrive."""
    import anyio

    stream = request.stream()
    while True:
        try:
            with anyio.fail_after(_PATIENCE):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the request stopped arriving; try again.") from None
        if chunk is None:
            return
        yield chunk


def _with_errors(
    studio: Studio, access: Access, answer: Callable[[Request, Session | None], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """`answer` for requests with the right access. Known errors become an answer with one sentence."""
    from starlette.requests import ClientDisconnect

    async def handle(request: Request) -> Response:
        session = None
        try:
            session = admit(access, studio.sessions, request.headers, request.cookies)
            return await answer(request, session)
        except Refused as refusal:
            return _refuse(refusal.status, str(refusal))
        except msgspec.MsgspecError as error:
            return _refuse(HTTPStatus.BAD_REQUEST, f"the request is not valid: {error}.")
        except LeadlineError as error:
            text = str(error) if session is None else session.error_text(error)
            return _refuse(HTTPStatus.UNPROCESSABLE_ENTITY, text)
        except ClientDisconnect:
            return _refuse(HTTPStatus.BAD_REQUEST, "the connection was closed.")
        except Exception:
            _LOG.exception("studio: %s %s failed", request.method, request.url.path)
            return _refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "an internal error occurred; see the terminal.")

    return handle


def _refuse(status: HTTPStatus, reason: str) -> Response:
    from starlette.responses import Response

    # What is left of the request's body is not read, so the connection cannot be used again.
    content = messages.encode(messages.ErrorAnswer(reason))
    return Response(content, status, {"Connection": "close"}, "application/json")


def _respond(reply: Reply) -> Response:
    from starlette.responses import Response

    headers = {}
    if reply.file_name is not None:
        plain = re.sub(r"[^A-Za-z0-9._ -]", "_", reply.file_name)
        headers["Content-Disposition"] = f'attachment; filename="{plain}"'
    response = Response(reply.content, HTTPStatus.OK, headers, reply.media_type)
    if reply.cookie is not None:
        response.set_cookie(COOKIE, reply.cookie, httponly=True, samesite="strict", path="/")
    return response
