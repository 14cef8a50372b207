"""Calls of a function in a child process with limits of time and memory, for files from strangers.

A decoder of a damaged file may loop, allocate all memory or abort its process. Here it ends the child alone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from leadline.base.errors import LeadlineError
from leadline.base.executors import exit_with_parent

Result = TypeVar("Result")

_POLL_SECONDS = 0.02  # between two looks at whether the call is still wanted


class CallStopped(Exception):
    """Raised by `LimitedProcess.call` if the call was no longer wanted."""


class LimitedProcess:
    """A child process that does one call at a time. It is started by the first call, and again after it was ended.

    Parameters
    ----------
    seconds : float
        Time that a call may take.
    memory : int
        Bytes that a call may allocate. There is no such limit on Windows.
    """

    def __init__(self, seconds: float, memory: int) -> None:
        self.seconds, self.memory = seconds, memory
        self._lock = threading.Lock()
        self._process: Any = None
        self._pipe: Connection | None = None

    def call(
        self, function: Callable[..., Result], *arguments: Any, wanted: Callable[[], bool] = lambda: True
    ) -> Result:
        """The result of `function`, which must be importable; its arguments and its result are pickled.

        Raises
        ------
        LeadlineError
            The function raised one, took too long, needed too much memory, or ended the process.
        CallStopped
            `wanted` returned False; the child was ended.
        """
        with self._lock:
            pipe = self._start()
            deadline = time.monotonic() + self.seconds
            try:
                pipe.send((function, arguments))
                while not pipe.poll(_POLL_SECONDS):
                    if not wanted():
                        raise CallStopped
                    if time.monotonic() > deadline:
                        raise LeadlineError(f"reading it takes longer than {self.seconds:g} s. Is it damaged?")
                failed, answer = pipe.recv()
            except (EOFError, BrokenPipeError, ConnectionResetError) as error:
                self._end()
                raise LeadlineError(
                    "the program that reads it crashed. It is damaged; write or copy it again."
                ) from error
            except BaseException:
                self._end()
                raise
        if not failed:
            return answer  # type: ignore[no-any-return]
        if isinstance(answer, MemoryError):
            gigabytes = f"{self.memory / 2**30:.3g} GB"
            raise LeadlineError(f"reading it takes more than {gigabytes} of memory. Is it damaged?") from answer
        raise answer

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is no child."""
        process = self._process
        return None if process is None else process.pid

    def close(self) -> None:
        """End the child; a call in another thread raises `LeadlineError`."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _start(self) -> Connection:
        if self._pipe is not None and self._process.is_alive():
            return self._pipe
        self._end()
        context = get_context("spawn")  # a forked child would inherit the locks of other threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.memory), daemon=True, name="leadline-reader")
        self._process.start()
        theirs.close()
        return self._pipe

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _serve(pipe: Connection, memory: int) -> None:
    """What the child runs: calls, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=exit_with_parent, daemon=True).start()
    limited = False
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        if not limited:  # only now, because importing the function's module reserves address space, too
            limited = True
            _limit_memory(memory)
        try:
            answer = False, function(*arguments)
        except Exception as error:
            answer = True, error
        try:
            pipe.send(answer)
        except Exception as error:  # the result or the error cannot be pickled
            pipe.send((True, RuntimeError(f"{type(error).__name__}: {error}")))


def _limit_memory(memory: int) -> None:
    """Limit the address space of this process to what it has now and `memory` bytes more."""
    try:
        import resource
    except ImportError:  # Windows
        return
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            used = int(stream.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: a process with NumPy reserves about this much
        used = 1 << 32
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + memory
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most < 0 else min(wanted, most), most))
