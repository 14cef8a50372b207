"""Sessions: each browser has its own temporary folder, which is removed when the session ends."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.apps.studio.form import wording
from leadline.base.errors import InputError, render

if TYPE_CHECKING:
    from leadline.apps.studio.relative import RelativeResult
    from leadline.apps.studio.scene import Result
    from leadline.io.priors import SourcedPrior

MAX_SESSIONS = 64
_SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")


class Role(Enum):
    """The role of a file in a scene. A session has at most one file of each role."""

    IMAGE = "image"
    SPARSE = "sparse"
    PRIOR = "prior"
    REFERENCE = "reference"
    CAMERA = "camera"
    EXTRINSICS = "extrinsics"
    MASK = "mask"


@dataclass(frozen=True)
class Upload:
    """A file of a session: its path on the server, and its name on the user's machine."""

    role: Role
    name: str
    path: Path


@dataclass(eq=False)
class Session:
    """The files of one browser, and the last result computed from them."""

    key: str
    token: str  # requests that change something must repeat it in a header
    folder: Path
    files: dict[Role, Upload] = field(default_factory=dict)
    result: Result | RelativeResult | None = None
    prediction: tuple[str, SourcedPrior] | None = None  # of the image, with the name of the network
    last_used: float = field(default_factory=time.monotonic)
    example: str | None = None  # the example that wrote the files, if one did
    readable: set[Path] = field(default_factory=set)  # files that are known to be read without harm

    def names(self) -> dict[Role, str]:
        """The names of the files on the user's machine."""
        return {role: upload.name for role, upload in self.files.items()}

    def plan_upload(self, role: Role, name: str) -> Upload:
        """Where a file of this role is to be written. The server chooses the path; only the suffix is the user's."""
        shown = re.split(r"[\\/]", name)[-1][-120:]
        shown = "".join(letter for letter in shown if letter.isprintable())
        suffix = Path(shown).suffix.lower()
        if not _SUFFIX.fullmatch(suffix):
            raise InputError(
                f"{shown or 'this file'}: the name needs a suffix such as .png or .npy, which determines the format."
            )
        # A new name each time: a file that was found harmless cannot be replaced by another before it is read.
        return Upload(role, shown, self.folder / f"{role.value}-{secrets.token_hex(4)}{suffix}")

    def add(self, upload: Upload) -> None:
        """Register a file that has been written, and delete the one that had its role before."""
        before = self.files.get(upload.role)
        if before is not None and before.path != upload.path:
            before.path.unlink(missing_ok=True)
        self.files[upload.role] = upload
        if upload.role is Role.IMAGE:
            self.prediction = None

    def remove(self, role: Role) -> None:
        """Delete the file of a role, if there is one."""
        before = self.files.pop(role, None)
        if before is not None:
            before.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete every file and the result."""
        self.files.clear()
        self.readable.clear()
        self.result, self.prediction, self.example = None, None, None
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def render(self, text: str) -> str:
        """The text of an error or note with the page's labels for parameters and the user's names for files."""
        text = render(text, wording)
        for upload in self.files.values():
            text = text.replace(str(upload.path), upload.name)
        return text.replace(f"{self.folder}/", "")


class Sessions:
    """All sessions, in one temporary folder that `close` removes; each ends after `idle` seconds without a request.

    `on_end` is called with the key of a session that has ended.
    """

    def __init__(self, idle: float, on_end: Callable[[str], None] = lambda key: None) -> None:
        self.idle = idle
        self._on_end = on_end
        self.root = Path(tempfile.mkdtemp(prefix="leadline-studio-"))
        self._all: dict[str, Session] = {}
        self._lock = threading.Lock()

    def get(self, key: str | None) -> Session | None:
        """The session of that key, which counts as used now; None if there is none."""
        with self._lock:
            found = self._all.get(key or "")
            if found is not None:
                found.last_used = time.monotonic()
            return found

    def open(self) -> Session:
        """Create a session."""
        self.expire()
        with self._lock:
            unused = [key for key, session in self._all.items() if not session.files]
            if len(self._all) >= MAX_SESSIONS and unused:  # a session without files makes room
                shutil.rmtree(self._all.pop(unused[0]).folder, ignore_errors=True)
            if len(self._all) >= MAX_SESSIONS:
                raise InputError(f"{MAX_SESSIONS} people use leadline studio already; try again later.")
            key = secrets.token_urlsafe(24)
            folder = self.root / secrets.token_hex(8)
            folder.mkdir()
            self._all[key] = Session(key, secrets.token_urlsafe(24), folder)
            return self._all[key]

    def expire(self) -> None:
        """Remove the sessions that have been idle for too long. Polling for a job's state counts as use."""
        limit = time.monotonic() - self.idle
        with self._lock:
            stale = [session for session in self._all.values() if session.last_used < limit]
            for session in stale:
                del self._all[session.key]
        for session in stale:
            self._on_end(session.key)
            session.result = None
            shutil.rmtree(session.folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all sessions and their files."""
        with self._lock:
            self._all.clear()
        shutil.rmtree(self.root, ignore_errors=True)
