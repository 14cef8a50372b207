"""The server: uvicorn on a socket, the routes as a Starlette application, and the checks of access.

This is the only module that uses the web framework.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from leadline.apps.studio.jobs import Worker
from leadline.apps.studio.routes import ENDPOINTS, Access, Call, Endpoint, Refused, Reply, reply_json
from leadline.apps.studio.sessions import Role, Session, Sessions
from leadline.base.errors import InputError, LeadlineError, MissingExtra, param
from leadline.base.limited_process import LimitedProcess

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from leadline.priors.predictor import Predictor

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Answer = Callable[["Request", "Session | None"], Awaitable[Reply]]

COOKIE = "leadline_studio"
TOKEN_HEADER = "X-Leadline-Token"
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_JSON_LIMIT = 64 * 1024  # bytes
_PATIENCE = 30.0  # seconds without a byte of the body after which a request is abandoned
_EXPIRY_INTERVAL = 30.0  # seconds between searches for idle sessions
_SHUTDOWN_SECONDS = 3  # requests that are still being answered at the end get this long
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits that the operator of the server sets."""

    upload: int = 256 * 2**20  # bytes per file
    idle: float = 3600.0  # seconds without a request until a session's files are removed
    reading: float = 60.0  # seconds that the decoding of an uploaded file may take
    memory: int = 4 * 2**30  # bytes that it may take


class Studio:
    """The server. `serve` answers requests until `stop`; `close` removes every file that it made.

    Parameters
    ----------
    host, port : str, int
        Address to listen on; port 0 takes any free one.
    predictors : mapping
        Networks that the page offers, by their name there.
    limits : Limits, optional
    default_prior : str, optional
        The network that is selected when the page opens. Default: a file.

    Raises
    ------
    MissingExtra
        Starlette or uvicorn is not installed.
    OSError
        The address cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        predictors: Mapping[str, Predictor],
        limits: Limits | None = None,
        default_prior: str | None = None,
    ) -> None:
        try:
            import starlette  # noqa: F401
            import uvicorn
        except ImportError as error:
            raise MissingExtra(error.name or "starlette", "studio", "leadline studio") from error
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.predictors, self.default_prior = dict(predictors), default_prior
        self.limits = limits or Limits()
        self.worker = Worker()
        self.sessions = Sessions(self.limits.idle, self.worker.cancel)
        self.reader = LimitedProcess(self.limits.reading, self.limits.memory)
        config = uvicorn.Config(
            _make_application(self),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._uvicorn = uvicorn.Server(config)
        self._closing = threading.Event()
        threading.Thread(target=self._expire_sessions, name="studio-expiry", daemon=True).start()

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOCAL_HOSTS

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        shown = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://[{shown}]:{self.port}/" if ":" in shown else f"http://{shown}:{self.port}/"

    def serve(self) -> None:
        """Answer requests until `stop` is called or, in the main thread, a signal arrives, which is then raised."""
        self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `serve` return."""
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Free the address, and remove every file of every session."""
        self._closing.set()
        self.reader.close()
        self.worker.close()
        self._socket.close()
        self.sessions.close()

    def _expire_sessions(self) -> None:
        while not self._closing.wait(min(_EXPIRY_INTERVAL, self.limits.idle)):
            self.sessions.expire()


def is_allowed_host(header: str | None, bound: str) -> bool:
    """Whether the Host header of a request names this server.

    A foreign page whose own domain name is made to resolve to this machine (DNS rebinding) sends that name as the
    host. Therefore only IP addresses, localhost, this machine's name and the `bound` host are accepted.

    Examples
    --------
    >>> is_allowed_host("127.0.0.1:8421", "127.0.0.1"), is_allowed_host("evil.example:8421", "127.0.0.1")
    (True, False)
    """
    try:
        name = (urlsplit(f"//{header or ''}").hostname or "").rstrip(".")
        if name and name in ("localhost", bound.lower(), socket.gethostname().lower()):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _admit(request: Request, access: Access, sessions: Sessions) -> Session | None:
    """The session of a request that satisfies `access`; None only for public requests without one."""
    headers, session = request.headers, sessions.get(request.cookies.get(COOKIE))
    if access is Access.PUBLIC:
        return session
    if session is None:
        raise Refused(HTTPStatus.UNAUTHORIZED, "this page was idle for too long; reload it.")
    if access is Access.PAGE:
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("Host"):
            raise Refused(HTTPStatus.FORBIDDEN, "this request comes from another page.")
        if not secrets.compare_digest(headers.get(TOKEN_HEADER, "").encode(), session.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "this request does not come from leadline's page; reload it.")
    return session


def _content_length(request: Request, limit: int) -> int:
    """The stated length of a request's body, which must not exceed `limit`."""
    text = request.headers.get("Content-Length", "")
    if not text.isdecimal():
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "the request must state the length of its content.")
    if int(text) > limit:
        sizes = f"the file has {int(text) / 2**20:.1f} MB, and {limit / 2**20:g} MB are allowed"
        advice = "start leadline studio with a larger --upload-limit."
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{sizes}: {advice}")
    return int(text)


def _make_application(studio: Studio) -> Application:
    """The ASGI application: refuses requests for other hosts first, and adds the security headers to every answer."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    async def not_found(request: Request, error: Exception) -> Response:
        status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND)
        return _refuse(status, "there is no such page.")

    routes = [
        Route(entry.path, _handler(studio, entry.access, _answer(studio, entry)), methods=[entry.method])
        for entry in ENDPOINTS
    ]
    routes.append(Route("/api/file/{role}", _handler(studio, Access.PAGE, _receive_file(studio)), methods=["PUT"]))
    application = Starlette(routes=routes, exception_handlers={HTTPException: not_found})
    application.router.redirect_slashes = False
    extra = [(name.lower().encode(), value.encode()) for name, value in _SECURITY_HEADERS.items()]

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
        refusal = _refuse(HTTPStatus.FORBIDDEN, "this address does not belong to leadline studio.")
        inner = application if is_allowed_host(host, studio.host) else refusal
        await inner(scope, receive, send_with_headers)

    return guarded


def _answer(studio: Studio, endpoint: Endpoint) -> Answer:
    """Read the body of the request, and answer in another thread, since answers may take a while."""
    from starlette.concurrency import run_in_threadpool

    async def answer(request: Request, session: Session | None) -> Reply:
        body = b""
        if endpoint.method == "POST":
            length = _content_length(request, _JSON_LIMIT)
            body = b"".join([chunk async for chunk in _chunks(request)])[:length]
        return await run_in_threadpool(endpoint.answer, Call(studio, session, request.path_params, body))

    return answer


def _receive_file(studio: Studio) -> Answer:
    """Write the body to a file of the session, which replaces the one of the same role once it is complete."""

    async def answer(request: Request, visitor: Session | None) -> Reply:
        session = Call(studio, visitor).session
        roles = {role.value: role for role in Role}
        role = request.path_params["role"]
        if role not in roles:
            raise InputError(f"the kind of file must be one of {', '.join(roles)}, got {role!r:.40} instead.")
        upload = session.plan_upload(roles[role], request.query_params.get("name", ""))
        length = _content_length(request, studio.limits.upload)
        part = session.folder / f"part-{secrets.token_hex(6)}"
        try:
            with part.open("wb") as stream:
                async for chunk in _chunks(request):
                    length -= stream.write(chunk)
            if length:
                raise Refused(HTTPStatus.BAD_REQUEST, f"{upload.name}: the upload is incomplete; try again.")
            part.replace(upload.path)
        finally:
            part.unlink(missing_ok=True)
        session.add(upload)
        return reply_json({"role": upload.role, "name": upload.name})

    return answer


async def _chunks(request: Request) -> Any:
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


def _handler(studio: Studio, access: Access, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """`answer` for requests with the right access. Known errors become an answer with one sentence."""
    from starlette.requests import ClientDisconnect

    async def handle(request: Request) -> Response:
        session = None
        try:
            session = _admit(request, access, studio.sessions)
            return _respond(await answer(request, session))
        except Refused as refusal:
            return _refuse(refusal.status, str(refusal))
        except msgspec.MsgspecError as error:
            return _refuse(HTTPStatus.BAD_REQUEST, f"the request is not valid: {error}.")
        except LeadlineError as error:
            text = str(error) if session is None else session.render(error.render(param))
            return _refuse(HTTPStatus.UNPROCESSABLE_ENTITY, text)
        except ClientDisconnect:
            return _refuse(HTTPStatus.BAD_REQUEST, "the connection was closed.")
        except Exception:
            _LOG.exception("studio: %s %s failed", request.method, request.url.path)
            return _refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "an internal error occurred; see the terminal.")

    return handle


def _refuse(status: HTTPStatus, reason: str) -> Response:
    # The rest of the request's body is not read, so the connection cannot be used again.
    return _respond(reply_json({"error": reason}), status, {"Connection": "close"})


def _respond(reply: Reply, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import Response

    response = Response(reply.content, status, headers, reply.media_type)
    if reply.file_name is not None:
        plain = re.sub(r"[^A-Za-z0-9._ -]", "_", reply.file_name)
        response.headers["Content-Disposition"] = f'attachment; filename="{plain}"'
    if reply.cookie is not None:
        response.set_cookie(COOKIE, reply.cookie, httponly=True, samesite="strict", path="/")
    return response
