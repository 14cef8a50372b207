"""Compilation of kernels with numba: on first use, cached on disk, with IEEE division."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import numba
from numba import njit

# Sums may be reordered so that they vectorise; stencils may not, or (p - a) + (p - b) would become
# 2 p - (a + b) again. Neither set contains 'nnan' or 'ninf', because NaN must propagate.
SUM = {"contract", "reassoc", "nsz"}
STENCIL = {"contract", "nsz"}
EXACT = {"contract"}  # for compensated arithmetic

_LOCK = Lock()


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
