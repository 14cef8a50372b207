"""How this package compiles: lazily, cached on disk, without the checks that keep a loop from vectorising."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import numba
from numba import njit

# Sums may be reordered so that they vectorise; stencils may not, or (p - a) + (p - b) would become
# 2 p - (a + b) again. No 'nnan' or 'ninf' in either: a NaN must survive to be seen.
SUM = {"contract", "reassoc", "nsz"}
STENCIL = {"contract", "nsz"}
EXACT = {"contract"}  # for compensated arithmetic


def compiled(*, parallel: bool = False, fastmath: set[str] | bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a kernel. Division follows IEEE: Python's ZeroDivisionError would be a branch in every loop."""
    return njit(cache=True, nogil=True, error_model="numpy", parallel=parallel, fastmath=fastmath)  # type: ignore[no-any-return]


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator of a scalar function that becomes part of its callers."""
    return njit(inline="always", error_model="numpy")(function)


def is_warm(*, general: bool = False) -> bool:
    """Whether the largest kernels are in the on-disk cache and up to date, so that a first call need not compile them.

    With `general` those of the general system, and else those of the paper's.
    """
    from leadline.core.solve.multigrid import membrane_cycle as vcycle
    from leadline.core.solve.multigrid import thin_plate_cycle as platecycle

    kernel = platecycle._half_parallel if general else vcycle._half_parallel
    try:
        # An index is empty if its source has changed since.
        return bool(kernel._cache._cache_file._load_index())
    except (AttributeError, OSError):  # numba's own business; not knowing only costs a notice
        return False


_LOCK = Lock()


def one_caller() -> AbstractContextManager[Any]:
    """Held around parallel kernels: where numba has neither OpenMP nor TBB, a second caller would abort the process."""
    try:
        safe = numba.threading_layer() in ("omp", "tbb")
    except ValueError:  # nothing has run yet, so the layer is not chosen
        safe = False
    return nullcontext() if safe else _LOCK
