"""Compile the kernels before the first frame, and tell whether that was done."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from platformdirs import user_cache_path

from leadline.core.options import CompletionOptions, as_options
from leadline.core.pipeline import complete

_PACKAGE = Path(__file__).parents[1]


def warm_up(options: CompletionOptions | str = "best") -> None:
    """Compile every kernel that a completion with these options needs, or load it from numba's cache on disk."""
    # Large enough for the finest level to be shared among threads, so that serial and parallel loops are both compiled.
    ramp = np.linspace(1.0, 2.0, 240 * 200, dtype=np.float32).reshape(240, 200)
    sparse = np.zeros_like(ramp)
    sparse[::7, ::5] = np.sqrt(ramp[::7, ::5])
    sparse[3, 3] = 1.5  # a residual for the solver
    ramp[0, 0] = np.nan  # an invalid pixel, so that connected components are searched for
    for dtype in ("float32", "float64"):
        complete(ramp.astype(dtype), sparse.astype(dtype), options=options)
    marker = _marker(options)
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError:  # without the marker, `is_compiled` answers False, which costs a message and a second
        pass


def is_compiled(options: CompletionOptions | str = "best") -> bool:
    """Whether `warm_up` has run with such options since the package, numba or Python changed on this machine."""
    return _marker(options).exists()


def _marker(options: CompletionOptions | str) -> Path:
    """An empty file beside numba's cache, whose name is a hash of everything that the compiled code depends on."""
    options = as_options(options)
    fit, reconstruction = options.fit, options.reconstruction
    kernels = (fit.least_squares, fit.screen_outliers, reconstruction.system, reconstruction.solver, options.outliers)
    sources = [
        (path.relative_to(_PACKAGE).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in ("base", "core")
        for path in sorted((_PACKAGE / folder).rglob("*.py"))
    ]
    versions = (sys.version, numba.__version__, get_host_cpu_name())
    digest = hashlib.sha256(repr((kernels, sources, versions)).encode()).hexdigest()[:16]
    return _cache_folder() / f"leadline-compiled-{digest}"


def _cache_folder() -> Path:
    """Where numba stores compiled code: the configured folder, the package's own if it is writeable, or the user's."""
    if numba.config.CACHE_DIR:
        return Path(numba.config.CACHE_DIR)
    own = _PACKAGE / "__pycache__"
    return own if os.access(own if own.exists() else _PACKAGE, os.W_OK) else user_cache_path("leadline")
