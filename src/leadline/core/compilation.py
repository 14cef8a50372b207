"""Compilation of the kernels before the first completion needs them, in two processes.

A completion compiles its kernels in the order of its stages. From an empty cache a second process compiles those of the
solver in the opposite order. Each loads from numba's cache on disk what the other has stored there by then, so that
they meet in the middle. Threads could not do this: numba compiles one kernel at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from leadline.base.executors import available_cores
from leadline.base.jit import compilation_marker
from leadline.core.options import CompletionOptions, as_options
from leadline.core.pipeline import complete
from leadline.core.solve import kernels, membrane, thin_plate
from leadline.core.solve.cg import Operator
from leadline.core.solve.multigrid import NO_PLANES, Level, VCycle, coarse_sizes, edge_planes, padded
from leadline.core.solve.thin_plate_cycle import ThinPlateCycle
from leadline.core.stream import Stream
from leadline.geometry.cameras import Camera

# Large enough for the finest level to be shared among threads, so that serial and parallel loops are both compiled.
SHAPE = (240, 200)
_PACKAGE_FOLDER = Path(__file__).parents[2]


def warm_up(options: CompletionOptions | str = "best") -> None:
    """Compile every kernel that a completion with these options needs, or load it from numba's cache on disk."""
    options = as_options(options)
    ramp = np.linspace(1.0, 2.0, SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
    sparse = np.zeros_like(ramp)
    sparse[::7, ::5] = np.sqrt(ramp[::7, ::5])
    sparse[3, 3] = 1.5  # a residual for the solver
    sparse[70:140, 80:130] *= 1.5  # a region of outliers
    ramp[0, 0] = np.nan  # an invalid pixel, so that connected components are searched for
    other = None if is_compiled(options) else _start_other(general=options.reconstruction.system == "adaptive")
    try:
        for dtype in ("float32", "float64"):
            complete(ramp.astype(dtype), sparse.astype(dtype), options=options)
    finally:
        if other is not None:
            other.kill()
            other.wait()
    _touch(_marker(options))


def is_compiled(options: CompletionOptions | str = "best") -> bool:
    """Whether `warm_up` has run with such options since the package, numba or Python changed on this machine."""
    return _marker(as_options(options)).exists()


def compile_carried() -> bool:
    """Compile the kernels that carry depth along in a `Stream`; returns whether they were compiled now."""
    marker = compilation_marker("carried")
    if marker.exists():
        return False
    ramp = np.linspace(1.0, 2.0, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    sparse = np.zeros_like(ramp)
    sparse[::7, ::5] = np.sqrt(ramp[::7, ::5])
    camera = Camera.from_view_angle(SHAPE[1], SHAPE[0], 60.0)
    for dtype in (np.float32, np.float64):
        maps, stream = (ramp.astype(dtype), sparse.astype(dtype)), Stream()
        for _ in range(2):
            stream(*maps, camera=camera, camera_to_world=np.eye(4))
        stream(*maps, flow=np.zeros((*SHAPE, 2), np.float32))
    _touch(marker)
    return True


def compile_solver(*, general: bool) -> None:
    """Compile the kernels of the solver, the costly ones that a completion needs last first, by running them on zeros.

    `general` are those of the general system, otherwise of the paper's.
    """
    shape = SHAPE[0] + 2, SHAPE[1] + 2
    code, field = np.zeros(shape, np.uint8), np.zeros(shape)
    x, y, z = padded(3, SHAPE)
    operator = Operator(code, 0.0, 1.0, edge_planes(2, SHAPE), z) if general else Operator(code, 0.0, 1.0)
    (_empty_thin_plate(operator) if general else _empty_membrane(operator)).compile()
    if operator.edges is not None and operator.mass is not None:
        thin_plate.build_thin_plate(code, operator.edges, operator.mass, 1.0)
    else:
        membrane.build_membrane(code, 1.0)
    kernels.update_solution[1](field, x, y, z, 0.0, np.zeros(kernels.block_count(SHAPE[0])))
    kernels.update_direction[1](x, y, np.float32(0))
    operator.apply(x, y)
    for dtype in (np.float32, np.float64):
        kernels.correct_depth[1](np.zeros(SHAPE, np.float32), field, np.zeros(SHAPE, dtype))


def _empty_thin_plate(operator: Operator) -> VCycle:
    """A cycle on levels of zeros, made without any kernel."""
    edges, mass = edge_planes(2, SHAPE), padded(1, SHAPE)[0]
    bending = np.zeros((1, mass.shape[1]), np.float32)
    levels = [thin_plate.ThinPlateLevel(edges, NO_PLANES, NO_PLANES, mass, bending, mass)]
    for size in list(coarse_sizes(*SHAPE))[:2]:
        mass, bending, step = padded(3, size)
        arrays = edge_planes(5, size), padded(9, size), padded(3, size), mass, bending, step
        levels.append(thin_plate.ThinPlateLevel(*arrays))
    return ThinPlateCycle(thin_plate.ThinPlateHierarchy(operator.code, tuple(levels), np.eye(1, dtype=np.float32)))


def _empty_membrane(operator: Operator) -> VCycle:
    levels = [Level(NO_PLANES, NO_PLANES, NO_PLANES)]
    levels += [Level(padded(4, size), padded(9, size), padded(3, size)) for size in list(coarse_sizes(*SHAPE))[:2]]
    inverse = np.eye(1, dtype=np.float32)
    return membrane.MembraneCycle(membrane.MembraneHierarchy(operator.code, tuple(levels), inverse, 0.0))


def _start_other(*, general: bool) -> subprocess.Popen[bytes] | None:
    """Start a process that runs `compile_solver`; None on one core, or inside a program that embeds Python."""
    python = Path(sys.executable or "")
    if available_cores() < 2 or not python.name.startswith("python"):
        return None
    command = f"from leadline.core.compilation import compile_solver; compile_solver(general={general})"
    paths = os.pathsep.join(filter(None, (str(_PACKAGE_FOLDER), os.environ.get("PYTHONPATH"))))
    quiet = subprocess.DEVNULL
    with suppress(OSError):  # this process then compiles everything itself
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.Popen([str(python), "-c", command], env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
    return None


def _touch(marker: Path) -> None:
    with suppress(OSError):  # without the marker, the kernels count as not compiled, which only causes a message
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _marker(options: CompletionOptions) -> Path:
    fit, reconstruction = options.fit, options.reconstruction
    return compilation_marker(
        fit.least_squares, fit.screen_outliers, reconstruction.system, reconstruction.solver, options.outliers
    )
