"""The threads of parallel kernels: how many, how they wait, and who may enter numba's threading layer."""

from __future__ import annotations

import math
import os
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from time import monotonic
from typing import Any

import numba

_LOCK = RLock()
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""How threads of OpenMP wait. GNU's spin for some microseconds, without which a completion on an idle machine takes a
tenth longer."""
PROCESSORS = os.cpu_count() or 1  # of the machine, also in a container that may use only some of them
LOAD = "/proc/loadavg"
INTERVAL = 0.01
"""Seconds between two looks at the load of the machine, each of which takes some 15 microseconds."""
SAMPLES = 3
"""Looks at the load of which the least counts: each may meet threads of a loop that has just ended."""


def thread_count() -> int:
    """The number of threads on which a loop should run at present.

    On an idle machine that is numba's number of threads. Beside n other running threads on c processors it is the share
    c / (c + n) of it, rounded up. A loop waits for its slowest thread, which on a busy machine waits for a processor:
    beside two or more processes on two cores one thread is as fast as two, or faster.
    """
    threads: int = numba.get_num_threads()
    if threads == 1:
        return 1
    return math.ceil(threads * PROCESSORS / (PROCESSORS + _load.other_threads()))


class Load:
    """How many threads of other work are running or wait for a processor; 0 where the system does not say."""

    def __init__(self) -> None:
        self._samples = deque([0] * SAMPLES, SAMPLES)
        self._next = 0.0

    def other_threads(self) -> int:
        """The least of the last samples; a new one is taken if the last is older than the interval."""
        now = monotonic()
        if now >= self._next:
            self._next = now + INTERVAL
            self._samples.append(_running_threads() - 1)  # without this one
        return max(0, min(self._samples))


_load = Load()


def _running_threads() -> int:
    """Threads of the whole system that are running or ready to run, this one included; 0 if that is not known."""
    try:
        with open(LOAD, "rb", buffering=0) as file:
            return int(file.read(100).split()[3].split(b"/")[0])
    except (OSError, ValueError, IndexError):  # not Linux, or not readable in a sandbox
        return 0


def numba_lock() -> AbstractContextManager[Any]:
    """The lock that parallel loops hold, or a null context where numba's threading layer is thread-safe.

    Without OpenMP or TBB numba uses its own work queue, which aborts the process if two threads enter it.
    """
    try:
        safe = numba.threading_layer() in ("omp", "tbb")
    except ValueError:  # no parallel kernel has run yet, so that the threading layer is not chosen
        with _LOCK:
            _start_threads()
        safe = False
    return nullcontext() if safe else _LOCK


def set_thread_count(count: int) -> None:
    """Let parallel kernels of this thread use so many threads, at least one and at most as many as numba has started.

    Called before the first kernel, it starts the threads as the kernels would; ``numba.set_num_threads`` would start
    threads that spin.
    """
    numba_lock()
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))


def _start_threads() -> None:
    """Start numba's threads, with OpenMP threads that soon sleep while they wait for each other.

    By default they spin for a millisecond or longer. On a busy machine a thread then occupies a core that the thread it
    waits for needs: beside six other processes on two cores a completion with two threads took 3 to 4 times as long as
    with one. OpenMP reads its settings when it is loaded, so the environment is changed for that moment only; settings
    of the user are respected.
    """
    ours = {} if WAITING.keys() & os.environ.keys() else WAITING
    os.environ.update(ours)
    try:
        numba.get_num_threads()  # loads the threading layer
    finally:
        for name in ours:
            del os.environ[name]
