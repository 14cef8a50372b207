"""Compilation of kernels with numba: on first use, cached on disk, with IEEE division."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import numba
from numba import njit

# Sums may be reordered so that they vectorise. Stencils may not: (p - a) + (p - b) would become
# 2 p - (a + b), which loses digits. Neither set contains 'nnan' or 'ninf', because NaN must propagate.
SUM = {"contract", "reassoc", "nsz"}
STENCIL = {"contract", "nsz"}
EXACT = {"contract"}  # for compensated arithmetic

_LOCK = Lock()
_PACKAGE = Path(__file__).parents[1]


def compiled(*, parallel: bool = False, fastmath: set[str] | bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a kernel. Division follows IEEE: Python's ZeroDivisionError would be a branch in every loop."""
    return njit(cache=True, nogil=True, error_model="numpy", parallel=parallel, fastmath=fastmath)  # type: ignore[no-any-return]


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator of a scalar function that is inlined into its callers."""
    return njit(inline="always", error_model="numpy")(function)


def numba_lock() -> AbstractContextManager[Any]:
    """A lock to hold around parallel kernels, or a null context where numba's threading layer is thread-safe.

    Without OpenMP or TBB numba uses its own work queue, which aborts the process if two threads enter it.
    """
    try:
        safe = numba.threading_layer() in ("omp", "tbb")
    except ValueError:  # no parallel kernel has run yet, so that the threading layer is not chosen
        safe = False
    return nullcontext() if safe else _LOCK


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
