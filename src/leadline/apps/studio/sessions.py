"""Who is using the page: a folder of their own for each, and nothing left behind."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.base.errors import InputError

if TYPE_CHECKING:
    from leadline.apps.studio.scene import Result

ROLES = {
    "image": "image",
    "sparse": "measurements",
    "prior": "prior",
    "reference": "reference",
    "camera": "camera",
    "extrinsics": "extrinsics",
    "mask": "drawn mask",
}
"""What a file can be, and its name in sentences. A session has at most one file of each."""
MOST_SESSIONS = 64
_CONTROLS = {
    "--unit (in Python: unit=)": "another unit",
    "--unit": "the unit",
    "--prior-kind": "what the prior holds",
    "--sparse": "the measurements",
    "--prior": "the prior",
}
"""Flags of the command line that sentences name, and what the page has in their place."""
_SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")


@dataclass(frozen=True)
class Upload:
    """A file of a session: where it is kept, and what its owner calls it."""

    role: str
    name: str
    path: Path


@dataclass(eq=False)
class Session:
    """One browser's files and its last result."""

    key: str
    token: str  # what a request that changes something must repeat
    folder: Path
    files: dict[str, Upload] = field(default_factory=dict)
    result: Result | None = None
    touched: float = field(default_factory=time.monotonic)
    example: str | None = None  # whose files these are

    def place(self, role: str, name: str) -> Upload:
        """Where a file of this role is to be written: under a name of ours, with nothing of theirs but the suffix.

        Raises
        ------
        InputError
            There is no such role, or the name has no suffix that could be one.
        """
        if role not in ROLES:
            raise InputError(f"there is no kind of file {role!r}; there are {', '.join(ROLES)}.")
        shown = re.split(r"[\\/]", name)[-1][-120:]
        shown = "".join(letter for letter in shown if letter.isprintable())
        suffix = Path(shown).suffix.lower()
        if not _SUFFIX.fullmatch(suffix):
            raise InputError(f"{shown or 'this file'}: has no suffix such as .png or .npy, by which its form is known.")
        return Upload(role, shown, self.folder / f"{role}{suffix}")

    def keep(self, upload: Upload) -> None:
        """Take a file that has been written; what was there before in its role goes."""
        before = self.files.get(upload.role)
        if before is not None and before.path != upload.path:
            before.path.unlink(missing_ok=True)
        self.files[upload.role] = upload
        if upload.role == "image":
            for stale in self.folder.glob("predicted-*"):  # of the picture that was there before
                stale.unlink()

    def drop(self, role: str) -> None:
        """Forget the file of a role; nothing happens if there is none."""
        before = self.files.pop(role, None)
        if before is not None:
            before.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget every file and the result."""
        self.files.clear()
        self.result, self.example = None, None
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def own_words(self, text: str) -> str:
        """A sentence in the page's terms: files by the names that their owner gave them, controls instead of flags."""
        for upload in self.files.values():
            text = text.replace(str(upload.path), upload.name)
        text = text.replace(f"{self.folder}/", "")
        for flag, control in _CONTROLS.items():
            text = text.replace(flag, control)
        return text


class Sessions:
    """All sessions, in one temporary folder that `close` removes.

    Parameters
    ----------
    idle : float
        Seconds after which a session that nobody uses is removed.
    """

    def __init__(self, idle: float) -> None:
        self.idle = idle
        self.root = Path(tempfile.mkdtemp(prefix="leadline-studio-"))
        self._all: dict[str, Session] = {}
        self._lock = threading.Lock()

    def get(self, key: str | None) -> Session | None:
        """The session of that key, which counts as used now; None if there is none."""
        with self._lock:
            found = self._all.get(key or "")
            if found is not None:
                found.touched = time.monotonic()
            return found

    def open(self) -> Session:
        """A new session.

        Raises
        ------
        InputError
            There are too many already.
        """
        self.expire()
        with self._lock:
            unused = [key for key, session in self._all.items() if not session.files]
            if len(self._all) >= MOST_SESSIONS and unused:  # a page that was only looked at makes room
                shutil.rmtree(self._all.pop(unused[0]).folder, ignore_errors=True)
            if len(self._all) >= MOST_SESSIONS:
                raise InputError(f"{MOST_SESSIONS} people are here already; try again later.")
            key = secrets.token_urlsafe(24)
            folder = self.root / secrets.token_hex(8)
            folder.mkdir()
            self._all[key] = Session(key, secrets.token_urlsafe(24), folder)
            return self._all[key]

    def close_one(self, session: Session) -> None:
        """Remove a session and its files."""
        with self._lock:
            self._all.pop(session.key, None)
        session.result = None
        shutil.rmtree(session.folder, ignore_errors=True)

    def expire(self) -> None:
        """Remove the sessions that have been idle for too long. Polling for a job's state counts as use."""
        limit = time.monotonic() - self.idle
        with self._lock:
            stale = [session for session in self._all.values() if session.touched < limit]
        for session in stale:
            self.close_one(session)

    def close(self) -> None:
        """Remove everything."""
        with self._lock:
            self._all.clear()
        shutil.rmtree(self.root, ignore_errors=True)
