"""The server of the page: the standard library's, behind checks that suit a program on one's own machine.

Only this list can be asked for, by method and path. No path of a request ever becomes a path of the file system.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from leadline.apps.studio.examples import thumbnail
from leadline.apps.studio.jobs import Job, Worker
from leadline.apps.studio.sessions import ROLES, Session, Sessions
from leadline.base.errors import InputError, LeadlineError

if TYPE_CHECKING:
    from leadline.apps.network import Network

ASSETS = {
    "studio.css": "text/css",
    "studio.js": "text/javascript",
    "api.js": "text/javascript",
    "viewer.js": "text/javascript",
    "cloud.js": "text/javascript",
    "charts.js": "text/javascript",
    "panels.js": "text/javascript",
    "slots.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
LOCAL = ("127.0.0.1", "localhost", "::1")
COOKIE = "leadline_studio"
TOKEN = "X-Leadline-Token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_JSON_LIMIT = 64 * 1024
_PATIENCE = 30  # seconds without a byte after which a connection is given up
_SWEEP = 30.0  # seconds between looks for idle sessions
_CHUNK = 1 << 20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What the owner of the server allows."""

    upload: int = 256 * 2**20  # bytes a file
    idle: float = 3600.0  # seconds


class Refused(Exception):
    """A request that is not answered: the status, and a sentence."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Studio(ThreadingHTTPServer):
    """The server with its sessions and its worker; `serve_forever` runs it, `close` removes every file it made.

    Parameters
    ----------
    host, port : str, int
        Address to listen on; port 0 takes any free one.
    networks : mapping
        Priors that are offered, by the name on the page.
    limits : Limits
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, host: str, port: int, networks: Mapping[str, Network], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)
        self.host, self.port = host, int(self.server_address[1])
        self.networks = dict(networks)
        self.sessions = Sessions(self.limits.idle)
        self.worker = Worker()
        self._closing = threading.Event()
        threading.Thread(target=self._sweep, name="studio-sweep", daemon=True).start()

    @property
    def local(self) -> bool:
        """Whether nobody but this machine can reach it."""
        return self.host in LOCAL

    @property
    def url(self) -> str:
        """Where this machine's browser finds the page."""
        shown = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://[{shown}]:{self.port}/" if ":" in shown else f"http://{shown}:{self.port}/"

    def close(self) -> None:
        """Stop, and remove every file of every session."""
        self._closing.set()
        self.worker.close()
        self.server_close()
        self.sessions.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves in the middle of an answer is no error; anything else is for the log."""
        _LOG.debug("studio: a connection ended", exc_info=True)

    def _sweep(self) -> None:
        while not self._closing.wait(min(_SWEEP, self.limits.idle)):
            self.sessions.expire()


def allowed_host(header: str | None, bound: str) -> bool:
    """Whether a request's Host is one that this server can be meant by.

    A page of somebody else's that has its own name point to this machine (DNS rebinding) sends that name. So only
    addresses, localhost, this machine's name and the one that was asked for with ``--host`` are let in.

    Examples
    --------
    >>> allowed_host("127.0.0.1:8421", "127.0.0.1"), allowed_host("evil.example:8421", "127.0.0.1")
    (True, False)
    """
    name = (urlsplit(f"//{header or ''}").hostname or "").rstrip(".")
    if name in ("localhost", bound.lower(), socket.gethostname().lower()) and name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Studio
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "leadline-studio", ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def log_message(self, format: str, *args: Any) -> None:
        _LOG.debug(format, *args)

    def _answer(self, route: Callable[[str, dict[str, str]], None]) -> None:
        try:
            if not allowed_host(self.headers.get("Host"), self.server.host):
                raise Refused(HTTPStatus.FORBIDDEN, "this address is not one of leadline studio's.")
            parts = urlsplit(self.path)
            route(parts.path, {name: values[-1] for name, values in parse_qs(parts.query).items()})
        except Refused as refusal:
            self._refuse(refusal.status, str(refusal))
        except LeadlineError as error:
            session = self._session()
            text = str(error) if session is None else session.own_words(str(error))
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, text)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        except Exception:
            _LOG.exception("studio: %s %s failed", self.command, self.path)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "something went wrong inside leadline; see the terminal.")

    # --- reading -------------------------------------------------------------------------------------------

    def _get(self, path: str, query: dict[str, str]) -> None:
        if path == "/":
            return self._page()
        name = path.removeprefix("/assets/")
        if name in ASSETS and path != name:
            content = (files("leadline.apps.studio") / "assets" / name).read_bytes()
            return self._send(content, ASSETS[name])
        if path.startswith("/api/example/"):
            return self._send(thumbnail(path.removeprefix("/api/example/")), "image/jpeg")
        if path.startswith("/api/ramp/"):
            from leadline.apps.studio.views import ramp

            return self._send(ramp(path.removeprefix("/api/ramp/")), "image/png")
        session = self._known()
        if path == "/api/start":
            from leadline.apps.studio.work import offer

            told = offer(session, self.server.networks)
            return self._json({**told, "limit": self.server.limits.upload, "local": self.server.local})
        if path.startswith("/api/job/"):
            return self._json(self._job_state(session, path.removeprefix("/api/job/")))
        if path.startswith("/api/input/"):
            upload = session.files.get(path.removeprefix("/api/input/"))
            if upload is None:
                raise Refused(HTTPStatus.NOT_FOUND, "there is no such file.")
            return self._send(upload.path.read_bytes(), "application/octet-stream", upload.name)
        found = re.fullmatch(r"/api/(view|points|download)/(\d+)(?:/([a-z0-9.-]+))?", path)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page.")
        result = session.result
        if result is None or result.revision != int(found[2]):
            raise Refused(HTTPStatus.GONE, "this result has been replaced by a newer one.")
        from leadline.apps.studio import downloads, views

        if found[1] == "view":
            content = views.picture(result, found[3] or "")
            return self._send(content, "image/jpeg" if content[:2] == b"\xff\xd8" else "image/png")
        if found[1] == "points":
            return self._send(views.points(result), "application/octet-stream")
        name, media, content = downloads.download(session, result, found[3] or "")
        return self._send(content, media, name)

    def _job_state(self, session: Session, key: str) -> dict[str, Any]:
        job = self.server.worker.find(session.key, key)
        if job is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such piece of work.")
        job.finished.wait(0.25)  # so that a page need not ask more than a few times a second
        state: dict[str, Any] = {"state": job.state, "stage": job.stage}
        if job.state == "queued":
            state["position"] = self.server.worker.position(job)
        if job.state == "done":
            state["outcome"] = job.outcome
        if job.state == "failed":
            state["error"] = session.own_words(job.error)
        return state

    # --- changing ------------------------------------------------------------------------------------------

    def _post(self, path: str, query: dict[str, str]) -> None:
        session = self._trusted()
        wish = self._body()
        from leadline.apps.studio import work

        if path == "/api/forget":
            session.clear()
            return self._json({})
        if path == "/api/drop":
            role = wish.get("role")
            if role not in ROLES:
                raise InputError(f"there is no kind of file {role!r:.40}.")
            session.drop(role)
            return self._json({})
        kinds: dict[str, Callable[..., dict[str, Any]]] = {
            "/api/example": work.load_example,
            "/api/inspect": work.look_at,
            "/api/complete": partial(work.complete, networks=self.server.networks, paths=self.server.local),
            "/api/diagnose": work.diagnose,
            "/api/exponent": work.exponent,
            "/api/method": work.method,
        }
        if path not in kinds:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page.")
        kind = f"{path} {wish.get('role', '')}"  # a look at one file does not replace that at another
        job = self.server.worker.submit(session.key, kind, partial(_do, kinds[path], session, wish))
        self._json({"job": job.key})

    def _put(self, path: str, query: dict[str, str]) -> None:
        session = self._trusted()
        if not path.startswith("/api/file/"):
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page.")
        upload = session.place(path.removeprefix("/api/file/"), query.get("name", ""))
        left = self._length(self.server.limits.upload)
        part = session.folder / f"part-{secrets.token_hex(6)}"
        try:
            with part.open("wb") as stream:
                while left:
                    block = self.rfile.read(min(_CHUNK, left))
                    if not block:
                        raise Refused(HTTPStatus.BAD_REQUEST, f"{upload.name}: the upload broke off; try again.")
                    left -= stream.write(block)
            part.replace(upload.path)
        finally:
            part.unlink(missing_ok=True)
        session.keep(upload)
        self._json({"role": upload.role, "name": upload.name})

    # --- checks --------------------------------------------------------------------------------------------

    def _session(self) -> Session | None:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return None
        return self.server.sessions.get(cookie[COOKIE].value if COOKIE in cookie else None)

    def _known(self) -> Session:
        session = self._session()
        if session is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "this page has been idle for too long; load it again.")
        return session

    def _trusted(self) -> Session:
        """The session of a request that changes something: sent by our own page, which knows the session's token."""
        session = self._known()
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self.headers.get("Host"):
            raise Refused(HTTPStatus.FORBIDDEN, "this request comes from another page.")
        if not secrets.compare_digest(self.headers.get(TOKEN, "").encode(), session.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "this request does not come from leadline's page; load it again.")
        return session

    def _length(self, limit: int) -> int:
        text = self.headers.get("Content-Length", "")
        if not text.isdecimal():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the length of the content must be stated.")
        if int(text) > limit:
            size, most = int(text) / 2**20, limit / 2**20
            advice = "start leadline studio with a larger --upload-limit"
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{size:.1f} MB are more than the {most:g} MB allowed: {advice}."
            )
        return int(text)

    def _body(self) -> dict[str, Any]:
        try:
            wish = json.loads(self.rfile.read(self._length(_JSON_LIMIT)) or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "the request is not JSON.") from error
        if not isinstance(wish, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "the request must be a JSON object.")
        return wish

    # --- answering -----------------------------------------------------------------------------------------

    def _page(self) -> None:
        session = self._session() or self.server.sessions.open()
        page = (files("leadline.apps.studio") / "assets" / "index.html").read_text(encoding="utf-8")
        cookie = f"{COOKIE}={session.key}; HttpOnly; SameSite=Strict; Path=/"
        self._send(page.replace("{{token}}", session.token).encode(), "text/html", cookie=cookie)

    def _json(self, content: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(content, allow_nan=False).encode(), "application/json", status=status)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what is left of the request is not read
        self._json({"error": text}, status)

    def _send(
        self,
        content: bytes,
        media: str,
        name: str | None = None,
        *,
        status: HTTPStatus = HTTPStatus.OK,
        cookie: str | None = None,
    ) -> None:
        self.send_response(status)
        text = media.startswith("text/") or media == "application/json"
        self.send_header("Content-Type", f"{media}; charset=utf-8" if text else media)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        if cookie is not None:
            self.send_header("Set-Cookie", cookie)
        if name is not None:
            plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
            self.send_header("Content-Disposition", f'attachment; filename="{plain}"')
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def _do(work: Callable[..., dict[str, Any]], session: Session, wish: dict[str, Any], job: Job) -> dict[str, Any]:
    session.touched = time.monotonic()
    return work(session, wish, job)
