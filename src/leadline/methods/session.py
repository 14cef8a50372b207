"""The process that holds a system's model: started, spoken to, watched and ended."""

from __future__ import annotations

import atexit
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.methods import bridge

ATTEMPTS = 2  # failed starts in a row after which a system is not started again
_PATIENCE = 5.0  # seconds for a process that was told to end
_LINES, _WIDTH = 3, 200  # of the system's last words that a reason quotes
_ANSWER = 64 * 1024  # bytes at most in an answer; longer ones are nonsense


class SystemFailure(Exception):
    """Why a system gave no depth, in words for a record."""


class Session:
    """A system in a process of its own, which lives until this one ends or something goes wrong with it.

    Parameters
    ----------
    system : str
        One of `bridge.SYSTEMS`.
    python, repo : str
        Interpreter of its environment, and its checkout if it is not installed.
    options : mapping
        Of the system.
    check : bool
        Only see whether it can be imported.
    """

    def __init__(
        self, system: str, python: str, repo: str | None, options: Mapping[str, Any], *, check: bool = False
    ) -> None:
        self._first = {"system": system, "repo": repo, "options": dict(options), "check": check}
        self._python = python
        self._lock = threading.RLock()  # one image at a time
        self._process: subprocess.Popen[bytes] | None = None
        self._work = Path()
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self._words: deque[str] = deque(maxlen=_LINES)
        self._noting = threading.Thread()
        self._versions: dict[str, str] = {}
        self._failures = 0
        self._jobs = 0
        self._last = ""

    def start(self, timeout: float) -> dict[str, str]:
        """Load the system, unless it is loaded; returns what is known of its version.

        Raises
        ------
        SystemFailure
            It cannot be started, fails to load, or takes longer than `timeout` seconds.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return self._versions
            self.stop()  # what is left of one that died
            if self._failures >= ATTEMPTS:
                raise SystemFailure(f"given up after {ATTEMPTS} failed starts: {self._last}")
            try:
                self._launch()
                answer = self._receive(timeout, "loading")
                if not isinstance(answer.get("ready"), dict):
                    raise SystemFailure(str(answer.get("failed", "it answered nonsense")))
            except BaseException as error:
                self._failures += 1
                self._last = str(error)
                self.stop()
                raise
            self._failures = 0
            self._versions = {str(name): str(value) for name, value in answer["ready"].items()}
            return self._versions

    def predict(
        self, arrays: Mapping[str, NDArray[Any]], intrinsics: dict[str, float] | None, timeout: float
    ) -> tuple[FloatArray, float]:
        """Depth as the system answered it, not yet checked, and the seconds it took.

        Raises
        ------
        SystemFailure
            It raised, died, answered nonsense or took longer than `timeout` seconds.
        """
        with self._lock:
            if self._process is None:
                raise SystemFailure("it is not running")
            self._jobs += 1
            folder = self._work / str(self._jobs)
            try:
                folder.mkdir()
                for name, array in arrays.items():
                    np.save(folder / f"{name}.npy", array, allow_pickle=False)
                (folder / "job.json").write_text(json.dumps({"intrinsics": intrinsics}), encoding="utf-8")
                self._send(str(folder))
                answer = self._receive(timeout, "an image")
                if answer.get("job") != str(folder):
                    raise _Confused(f"it answered {json.dumps(answer)[:_WIDTH]}")
                if "failed" in answer:
                    raise SystemFailure(str(answer["failed"]))
                return np.load(folder / "depth.npy", allow_pickle=False), float(answer["seconds"])
            except SystemFailure as error:
                if isinstance(error, _Confused):
                    self.stop()
                raise
            except (OSError, ValueError, TypeError, KeyError, EOFError) as error:
                self.stop()
                raise SystemFailure(f"its answer cannot be read ({error})") from error
            except BaseException:  # interrupted: the next answer would be to this question
                self.stop()
                raise
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """End the process and all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
            else:
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def _launch(self) -> None:
        self._work = Path(tempfile.mkdtemp(prefix="leadline-"))
        self._answers, self._words, self._jobs = queue.Queue(), deque(maxlen=_LINES), 0
        # Search paths of this interpreter would give another one the wrong packages.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        try:
            process = subprocess.Popen(
                [self._python, str(Path(bridge.__file__).resolve())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=kept,
                start_new_session=True,  # Ctrl-C is for leadline; and the group can be ended as one
            )
        except OSError as error:
            shutil.rmtree(self._work, ignore_errors=True)
            raise SystemFailure(f"{self._python} cannot be started ({error.strerror})") from error
        self._process = process
        threading.Thread(target=_listen, args=(process.stdout, self._answers), daemon=True).start()
        self._noting = threading.Thread(target=_note, args=(process.stderr, self._words), daemon=True)
        self._noting.start()
        self._send(json.dumps({**self._first, "work": str(self._work)}))

    def _send(self, line: str) -> None:
        try:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
        except OSError:
            pass  # it is gone, which the wait for its answer will tell

    def _receive(self, timeout: float, task: str) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise _Confused(self._with_words(f"it took more than {timeout:g} s for {task}")) from None
        if line is None:
            raise _Confused(self._with_words(f"its process ended ({self._ending()})"))
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _Confused(self._with_words("it answered nonsense"))
        return answer

    def _ending(self) -> str:
        try:
            code = self._process.wait(_PATIENCE) if self._process is not None else 0
        except subprocess.TimeoutExpired:
            return "its channel was closed"
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def _with_words(self, reason: str) -> str:
        if self._process is not None and self._process.poll() is not None:
            self._noting.join(1.0)  # what it wrote last may still be on its way
        words = " | ".join(self._words)
        return f"{reason}; it last wrote: {words}" if words else reason


class _Confused(SystemFailure):
    """After which the process cannot be spoken to any more."""


def _listen(pipe: IO[bytes], answers: queue.Queue[bytes | None]) -> None:
    """Pass answers on until the pipe ends; only this thread closes it, for a close waits for whoever reads."""
    with pipe, suppress(OSError, ValueError):
        while line := pipe.readline(_ANSWER):
            answers.put(line)
    answers.put(None)


def _note(pipe: IO[bytes], words: deque[str]) -> None:
    with pipe, suppress(OSError, ValueError):
        while line := pipe.readline(_ANSWER):
            # Progress bars write one line over and over.
            text = line.decode(errors="replace").strip().rsplit("\r", 1)[-1]
            if text:
                words.append(text[:_WIDTH])


_sessions: dict[tuple[int, str], Session] = {}


def session(system: str, python: str, repo: str | None, options: Mapping[str, Any]) -> Session:
    """The session of this process for a system with such options; a new one where there is none yet."""
    # With the process's number: a forked child must not speak through its parent's pipes.
    key = os.getpid(), json.dumps([system, python, repo, options], sort_keys=True, default=str)
    if key not in _sessions:
        _sessions[key] = Session(system, python, repo, options)
    return _sessions[key]


@atexit.register
def end_sessions() -> None:
    """End every system that this process has started; the next call starts it again."""
    for key in [key for key in _sessions if key[0] == os.getpid()]:
        _sessions.pop(key).stop()
