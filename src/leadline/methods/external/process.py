"""The process in which a trained system runs: start it, send it images, watch it and end it."""

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
from leadline.methods.external import server_program

ATTEMPTS = 2  # failed starts in a row after which a system is not started again
_EXIT_TIMEOUT = 5.0  # seconds to wait for a killed process
_QUOTED_LINES, _QUOTED_WIDTH = 3, 200  # last lines of output in a reason, and characters of each
_LONGEST_ANSWER = 64 * 1024  # bytes; no valid answer is longer


class SystemFailure(Exception):
    """The reason why a system gave no depth."""


class SystemProcess:
    """A trained system in its own process, which runs until this process ends or an error makes it unusable.

    `system` is one of `server_program.SYSTEMS`, `python` the interpreter of its environment, and `repo` its checkout if
    it is not installed as a package. With `check` its package is only imported.
    """

    def __init__(
        self, system: str, python: str, repo: str | None, options: Mapping[str, Any], *, check: bool = False
    ) -> None:
        self._request = {"system": system, "repo": repo, "options": dict(options), "check": check}
        self._python = python
        self._lock = threading.RLock()  # one image at a time
        self._process: subprocess.Popen[bytes] | None = None
        self._work = Path()
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self._output: deque[str] = deque(maxlen=_QUOTED_LINES)
        self._output_reader = threading.Thread()
        self._versions: dict[str, str] = {}
        self._failures = 0
        self._jobs = 0
        self._last_failure = ""

    def start(self, timeout: float) -> dict[str, str]:
        """Load the system, unless it is loaded, and return its versions."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return self._versions
            self.stop()  # removes the remains of a process that died
            if self._failures >= ATTEMPTS:
                raise SystemFailure(f"given up after {ATTEMPTS} failed starts: {self._last_failure}")
            try:
                self._launch()
                answer = self._receive(timeout, "loading")
                if not isinstance(answer.get("ready"), dict):
                    raise SystemFailure(str(answer.get("failed", "it answered nothing that can be read")))
            except BaseException as error:
                self._failures += 1
                self._last_failure = str(error)
                self.stop()
                raise
            self._failures = 0
            self._versions = {str(name): str(value) for name, value in answer["ready"].items()}
            return self._versions

    def predict(
        self, arrays: Mapping[str, NDArray[Any]], intrinsics: dict[str, float] | None, timeout: float
    ) -> tuple[FloatArray, float]:
        """The depth that the system answered, not yet checked, and the seconds it took."""
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
                    raise _ProcessUnusable(f"it answered {json.dumps(answer)[:_QUOTED_WIDTH]}")
                if "failed" in answer:
                    raise SystemFailure(str(answer["failed"]))
                return np.load(folder / "depth.npy", allow_pickle=False), float(answer["seconds"])
            except BaseException as error:
                # After an interruption the next answer would belong to this image.
                if isinstance(error, _ProcessUnusable) or not isinstance(error, SystemFailure):
                    self.stop()
                if isinstance(error, (OSError, ValueError, TypeError, KeyError, EOFError)):
                    raise SystemFailure(f"its answer cannot be read ({error})") from error
                raise
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """End the process and all processes that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)  # the process is the leader of its process group
            else:
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT)
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def _launch(self) -> None:
        self._work = Path(tempfile.mkdtemp(prefix="leadline-"))
        self._answers, self._output, self._jobs = queue.Queue(), deque(maxlen=_QUOTED_LINES), 0
        # The search paths of this interpreter would give the other one the wrong packages.
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        try:
            process = subprocess.Popen(
                [self._python, str(Path(server_program.__file__).resolve())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C does not reach it, and its whole process group can be ended
            )
        except OSError as error:
            shutil.rmtree(self._work, ignore_errors=True)
            raise SystemFailure(f"{self._python} cannot be started ({error.strerror})") from error
        self._process = process
        threading.Thread(target=_collect_answers, args=(process.stdout, self._answers), daemon=True).start()
        self._output_reader = threading.Thread(target=_collect_output, args=(process.stderr, self._output), daemon=True)
        self._output_reader.start()
        self._send(json.dumps({**self._request, "work": str(self._work)}))

    def _send(self, line: str) -> None:
        try:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
        except OSError:
            pass  # the process has ended, which waiting for its answer reports

    def _receive(self, timeout: float, task: str) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise _ProcessUnusable(self._quote_output(f"it took more than {timeout:g} s for {task}")) from None
        if line is None:
            raise _ProcessUnusable(self._quote_output(f"its process ended ({self._describe_exit()})"))
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _ProcessUnusable(self._quote_output("it answered nothing that can be read"))
        return answer

    def _describe_exit(self) -> str:
        try:
            code = self._process.wait(_EXIT_TIMEOUT) if self._process is not None else 0
        except subprocess.TimeoutExpired:
            return "its output was closed"
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def _quote_output(self, reason: str) -> str:
        if self._process is not None and self._process.poll() is not None:
            self._output_reader.join(1.0)  # its last lines may not have been read yet
        lines = " | ".join(self._output)
        return f"{reason}; it last wrote: {lines}" if lines else reason


class _ProcessUnusable(SystemFailure):
    """A failure after which no further image can be sent to the process."""


def _collect_answers(pipe: IO[bytes], answers: queue.Queue[bytes | None]) -> None:
    """Queue the answers until the pipe ends. Only this thread closes it: closing blocks while another one reads."""
    with pipe, suppress(OSError, ValueError):
        while line := pipe.readline(_LONGEST_ANSWER):
            answers.put(line)
    answers.put(None)


def _collect_output(pipe: IO[bytes], lines: deque[str]) -> None:
    """Remember the last lines that the system wrote."""
    with pipe, suppress(OSError, ValueError):
        while line := pipe.readline(_LONGEST_ANSWER):
            # A progress bar overwrites its line after each carriage return; the last state counts.
            text = line.decode(errors="replace").strip().rsplit("\r", 1)[-1]
            if text:
                lines.append(text[:_QUOTED_WIDTH])


_processes: dict[tuple[int, str], SystemProcess] = {}


def system_process(system: str, python: str, repo: str | None, options: Mapping[str, Any]) -> SystemProcess:
    """The process for a system with such options; a new one, not yet started, where there is none."""
    # The key contains this process's id, since a forked child must not use its parent's pipes.
    key = os.getpid(), json.dumps([system, python, repo, options], sort_keys=True, default=str)
    if key not in _processes:
        _processes[key] = SystemProcess(system, python, repo, options)
    return _processes[key]


@atexit.register
def stop_all_processes() -> None:
    """End every system that this process has started; the next call starts it again."""
    for key in [key for key in _processes if key[0] == os.getpid()]:
        _processes.pop(key).stop()
