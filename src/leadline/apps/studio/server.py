"""The server behind the page: sessions, the worker, and uvicorn listening on a socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.apps.studio.access import LOCAL_HOSTS
from leadline.apps.studio.jobs import Worker
from leadline.apps.studio.sessions import Sessions
from leadline.base.errors import MissingExtra

if TYPE_CHECKING:
    from leadline.priors.predictor import Predictor

_EXPIRY_INTERVAL = 30.0  # seconds between searches for idle sessions
_SHUTDOWN_SECONDS = 3  # requests that are still being answered at the end get this long


@dataclass(frozen=True)
class Limits:
    """What the operator of the server allows."""

    upload: int = 256 * 2**20  # bytes per file
    idle: float = 3600.0  # seconds without a request until a session's files are removed


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
        from leadline.apps.studio.web import make_application

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.predictors, self.default_prior = dict(predictors), default_prior
        self.limits = limits or Limits()
        self.sessions = Sessions(self.limits.idle)
        self.worker = Worker()
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                make_application(self),
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )
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
        self.worker.close()
        self._socket.close()
        self.sessions.close()

    def _expire_sessions(self) -> None:
        while not self._closing.wait(min(_EXPIRY_INTERVAL, self.limits.idle)):
            self.sessions.expire()
