"""Who may send which request: checks of the host, the session, the token and the origin, and the headers of answers."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from enum import Enum, auto
from http import HTTPStatus
from urllib.parse import urlsplit

from leadline.apps.studio.sessions import Session, Sessions

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
COOKIE = "leadline_studio"
TOKEN_HEADER = "X-Leadline-Token"
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access(Enum):
    """What a request must prove."""

    PUBLIC = auto()  # nothing
    SESSION = auto()  # that it belongs to a session, by its cookie
    PAGE = auto()  # also that our page sent it, by the session's token and the origin


class Refused(Exception):
    """A request that is not answered, with the status and the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


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
    except ValueError:
        return False
    if name and name in ("localhost", bound.lower(), socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def admit(access: Access, sessions: Sessions, headers: Mapping[str, str], cookies: Mapping[str, str]) -> Session | None:
    """The session of a request that satisfies `access`; None only for public requests without one.

    Raises
    ------
    Refused
        The request has no session, or does not come from our page.
    """
    session = sessions.get(cookies.get(COOKIE))
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


def content_length(headers: Mapping[str, str], limit: int) -> int:
    """The stated length of a request's body.

    Raises
    ------
    Refused
        No length is stated, or it exceeds the limit.
    """
    text = headers.get("Content-Length", "")
    if not text.isdecimal():
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "the request must state the length of its content.")
    if int(text) > limit:
        size, most = int(text) / 2**20, limit / 2**20
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the file has {size:.1f} MB, and {most:g} MB are allowed: start leadline studio with a larger "
            "--upload-limit.",
        )
    return int(text)
