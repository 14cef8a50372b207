"""Compilation of kernels with numba: on first use, cached on disk, with IEEE division."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from pathlib import Path
from threading import RLock
from typing import Any

import numba
from numba import njit

# Sums may be reordered so that they vectorise. Stencils may not: (p - a) + (p - b) would become
# 2 p - (a + b), which loses digits. Neither set contains 'nnan' or 'ninf', because NaN must propagate.
SUM = {"contract", "reassoc", "nsz"}
STENCIL = {"contract", "nsz"}
EXACT = {"contract"}  # for compensated arithmetic

_LOCK = RLock()
SERIAL_BELOW = 40_000
"""Elements of the largest array below which a parallel kernel runs on one thread. Waking the other threads takes as
long as the work itself, and far longer on a busy machine, where a parallel loop waits for its slowest thread."""
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""How threads of OpenMP wait. GNU's spin for some microseconds, without which a completion on an idle machine takes a
tenth longer."""
_PACKAGE = Path(__file__).parents[1]


def compiled(*, parallel: bool = False, fastmath: set[str] | bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a kernel. Division follows IEEE: Python's ZeroDivisionError would be a branch in every loop.

    A parallel kernel can be called from several threads at a time, but not from another kernel.
    """
    decorate = njit(cache=True, nogil=True, error_model="numpy", parallel=parallel, fastmath=fastmath)
    return (lambda function: ParallelKernel(decorate(function))) if parallel else decorate  # type: ignore[no-any-return]


class ParallelKernel:
    """A compiled kernel with parallel loops, which threads enter one after the other where numba needs that.

    On small arrays it runs on the calling thread alone.
    """

    def __init__(self, dispatcher: Any) -> None:
        update_wrapper(self, dispatcher.py_func)
        self._dispatcher = dispatcher

    def __call__(self, *arguments: Any) -> Any:
        with numba_lock():
            threads = numba.get_num_threads()
            if threads == 1 or max(getattr(argument, "size", 1) for argument in arguments) >= SERIAL_BELOW:
                return self._dispatcher(*arguments)
            numba.set_num_threads(1)
            try:
                return self._dispatcher(*arguments)
            finally:
                numba.set_num_threads(threads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator of a small function that is inlined into its callers."""
    return njit(inline="always", error_model="numpy")(function)


def numba_lock() -> AbstractContextManager[Any]:
    """The lock that parallel kernels hold, or a null context where numba's threading layer is thread-safe.

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


def compilation_marker(*variant: Any) -> Path:
    """An empty file beside numba's cache, to be made once the kernels for this variant of the method are compiled.

    Its name is a hash of everything that the compiled code depends on: the variant, the sources and the machine.
    """
    from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
    from platformdirs import user_cache_path

    sources = [
        (path.relative_to(_PACKAGE).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in ("base", "core")
        for path in sorted((_PACKAGE / folder).rglob("*.py"))
    ]
    versions = (sys.version, numba.__version__, get_host_cpu_name())
    digest = hashlib.sha256(repr((variant, sources, versions)).encode()).hexdigest()[:16]
    # numba stores compiled code in the configured folder, else in the package if writeable, else in the user's cache.
    own = _PACKAGE / "__pycache__"
    writeable = os.access(own if own.exists() else _PACKAGE, os.W_OK)
    folder = (
        Path(numba.config.CACHE_DIR) if numba.config.CACHE_DIR else own if writeable else user_cache_path("leadline")
    )
    return folder / f"leadline-compiled-{digest}"
