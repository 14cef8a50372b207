"""Compilation of the kernels before the first completion needs them, in two processes.

From an empty cache one process compiles the kernels of the fit and then takes tasks of the solver from the front of a
list, while a second process takes them from the end, the costly ones first. Each task is taken once. A completion then
loads the compiled code from numba's cache on disk, and compiles what no task covers. Threads could not do this: numba
compiles one kernel at a time.

The second process is a new Python that runs nothing of the caller's program, and ends when no task is left. It is not
started where it could not help or could disturb; see `_compile_in_two_processes`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time

import numba
import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.executors import available_cores
from leadline.base.jit import compilation_marker
from leadline.core import adaptive
from leadline.core.neighbours import MIN_NEIGHBOURS, Neighbours
from leadline.core.options import CompletionOptions, ReconstructionOptions, as_options
from leadline.core.pipeline import align, complete
from leadline.core.solve import kernels, membrane, nested, thin_plate
from leadline.core.solve.cg import Operator
from leadline.core.solve.multigrid import NO_PLANES, Level, VCycle, coarse_sizes, edge_planes, padded
from leadline.core.solve.thin_plate_cycle import ThinPlateCycle

# Large enough for the finest level to be shared among threads, so that a parallel loop has run.
SHAPE = (240, 200)
_DTYPES = np.float32, np.float64
_PATIENCE = 120.0
"""Seconds after which a second process is not waited for, and a lock counts as left behind by a process that died."""
_ahead = False  # whether this process has compiled ahead of a completion, or decided not to


def warm_up(options: CompletionOptions | str = "best") -> None:
    """Compile every kernel that a completion with these options needs, or load it from numba's cache on disk.

    From an empty cache this takes some seconds in two processes. The first `complete` of a program does the same where
    that is safe. A program that must not wait at its first frame calls this function when it starts.
    """
    global _ahead
    _ahead = True
    options = as_options(options)
    if not is_compiled(options):
        _compile_in_two_processes(options)
    with _without_collection():
        for dtype in _DTYPES:
            complete(*_example(dtype), options=options)
    _touch(_marker(options))


def compile_ahead(options: CompletionOptions) -> None:
    """Before the first completion of a program, compile its kernels with the help of a second process if that is safe.

    Otherwise nothing is done, and the completion compiles what it needs. A program with `NUMBA_NUM_THREADS=1` wants one
    processor for itself, and worker processes share theirs with others of their kind.
    """
    global _ahead
    if _ahead:
        return
    _ahead = True
    alone = multiprocessing.parent_process() is None and numba.config.NUMBA_NUM_THREADS > 1
    if alone and not numba.config.DISABLE_JIT and not is_compiled(options) and _compile_in_two_processes(options):
        _touch(_marker(options))


def is_compiled(options: CompletionOptions | str = "best") -> bool:
    """Whether `warm_up` has run with such options since the package, numba or Python changed on this machine."""
    return _marker(as_options(options)).exists()


def compile_carried() -> bool:
    """Compile the kernels that carry depth along in a `Stream`; returns whether they were compiled now."""
    from leadline.core.stream import Stream  # here, because the first completion imports this module
    from leadline.geometry.cameras import Camera

    marker = compilation_marker("carried")
    if marker.exists():
        return False
    camera = Camera.from_view_angle(SHAPE[1], SHAPE[0], 60.0)
    for dtype in _DTYPES:
        maps, stream = _example(dtype), Stream()
        for _ in range(2):
            stream(*maps, camera=camera, camera_to_world=np.eye(4))
        stream(*maps, flow=np.zeros((*SHAPE, 2), np.float32))
    _touch(marker)
    return True


def compile_solver(claims: Path, *, general: bool, reverse: bool) -> None:
    """Compile those kernels of the solver that no other process compiles, by running them on small maps.

    A file in the folder `claims` says that a task is taken. `general` is the general system, otherwise the paper's.
    """
    tasks = list(enumerate(_solver_tasks(general)))
    for number, task in reversed(tasks) if reverse else tasks:
        with suppress(FileExistsError):
            (claims / str(number)).touch(exist_ok=False)
            task()


def _solver_tasks(general: bool) -> list[Callable[[], object]]:
    """Functions that compile kernels of the solver, the costly ones last; what two of them share is compiled twice."""
    shape = SHAPE[0] + 2, SHAPE[1] + 2
    code, field = np.zeros(shape, np.uint8), np.zeros(shape, np.float32 if general else np.float64)
    x, y, z = padded(3, SHAPE)
    operator = Operator(code, 0.0, 1.0, edge_planes(2, SHAPE), z) if general else Operator(code, 0.0, 1.0)

    def adapt() -> None:
        prior, sparse = _example(np.float32)
        where = np.flatnonzero(sparse)
        found = adaptive.adapt(prior, where, sparse.flat[where])
        measurements, options = (where, found.targets, found.weights), ReconstructionOptions.paper()
        image = nested.Grid(prior, *measurements, options, adaptive.edge_weights(prior)[0], found.contrast)
        half = image.halved()
        half.interpolate(half.calibrated, prior)
        half.interpolate_at(where, half.calibrated, prior)
        Neighbours(np.arange(MIN_NEIGHBOURS + 1), (1, MIN_NEIGHBOURS + 1))  # measurements of every pixel

    def encode() -> None:
        kernels.fix_unobserved(code)
        kernels.encode(code, code)

    def correct() -> None:
        kernels.correct_depth(np.zeros(SHAPE, np.float32), field, np.zeros(SHAPE))

    def update() -> None:
        kernels.update_solution[1](field, x, y, z, 0.0, np.zeros(kernels.block_count(SHAPE[0])))
        kernels.update_direction[1](x, y, np.float32(0))

    def build() -> object:
        if operator.edges is not None and operator.mass is not None:
            return thin_plate.build_thin_plate(code, operator.edges, operator.mass, 1.0)
        return membrane.build_membrane(code, 1.0)

    def apply() -> None:
        operator.apply(x, y)
        operator.residual(field, x if general else None, y)

    cycle = _empty_thin_plate(code) if general else _empty_membrane(code)
    return [*([adapt] if general else []), encode, correct, apply, update, build, cycle.compile]


def _empty_thin_plate(code: NDArray[np.uint8]) -> VCycle:
    """A cycle on levels of zeros, made without any kernel."""
    edges, mass = edge_planes(2, SHAPE), padded(1, SHAPE)[0]
    bending = np.zeros((1, mass.shape[1]), np.float32)
    levels = [thin_plate.ThinPlateLevel(edges, NO_PLANES, NO_PLANES, mass, bending, mass)]
    for size in list(coarse_sizes(*SHAPE))[:2]:
        mass, bending, step = padded(3, size)
        arrays = edge_planes(4, size), padded(8, size), padded(2, size), mass, bending, step
        levels.append(thin_plate.ThinPlateLevel(*arrays))
    return ThinPlateCycle(thin_plate.ThinPlateHierarchy(code, tuple(levels), np.eye(1, dtype=np.float32)))


def _empty_membrane(code: NDArray[np.uint8]) -> VCycle:
    levels = [Level(NO_PLANES, NO_PLANES, NO_PLANES)]
    levels += [Level(padded(4, size), padded(9, size), padded(2, size)) for size in list(coarse_sizes(*SHAPE))[:2]]
    inverse = np.eye(1, dtype=np.float32)
    return membrane.MembraneCycle(membrane.MembraneHierarchy(code, tuple(levels), inverse, 0.0))


def _example(dtype: type[np.floating]) -> tuple[FloatArray, FloatArray]:
    """A prior and measurements that need every kernel of the default."""
    ramp = np.linspace(1.0, 2.0, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    sparse = np.zeros_like(ramp)
    sparse[::7, ::5] = np.sqrt(ramp[::7, ::5])
    sparse[3, 3] = 1.5  # a residual for the solver
    sparse[70:140, 80:130] *= 1.5  # a region of outliers
    ramp[0, 0] = np.nan  # an invalid pixel, so that connected components are searched for
    return ramp.astype(dtype), sparse.astype(dtype)


def _compile_in_two_processes(options: CompletionOptions) -> bool:
    """Compile the kernels together with a process that runs `compile_solver`; returns whether that was done.

    Nothing is done on one core, inside a program that embeds Python, where nothing can be stored, or while another
    process does the same.
    """
    python = Path(sys.executable or "")
    if available_cores() < 2 or not python.name.startswith("python"):
        return False
    general = options.reconstruction.system == "adaptive"
    quiet = subprocess.DEVNULL
    with suppress(OSError), _lock(_marker(options).with_suffix(".lock")), tempfile.TemporaryDirectory() as folder:
        program = (
            "import gc; gc.disable(); from pathlib import Path; "
            f"from {__name__} import compile_solver; compile_solver(Path('.'), general={general}, reverse=True)"
        )
        # In a folder of its own, because Python also searches the working directory for modules; it finds those of
        # this process on the same path.
        flags = {"cwd": folder, "env": _environment(), "stdin": quiet, "stdout": quiet, "stderr": quiet}
        other = subprocess.Popen([str(python.absolute()), "-c", program], **flags)  # type: ignore[call-overload]
        try:
            with _without_collection():
                for dtype in _DTYPES:
                    align(*_example(dtype), options=options)
                compile_solver(Path(folder), general=general, reverse=False)
            with suppress(subprocess.TimeoutExpired):
                other.wait(_PATIENCE)
        finally:
            other.kill()
            other.wait()
        return True
    return False


def _environment() -> dict[str, str]:
    """The environment of a Python that imports the same modules and stores compiled code in the same place."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    cache = {"NUMBA_CACHE_DIR": os.path.abspath(numba.config.CACHE_DIR)} if numba.config.CACHE_DIR else {}
    return {**os.environ, "PYTHONPATH": path, **cache}


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file that one process can make; raises OSError if another holds it, or if it cannot be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if time() - path.stat().st_mtime > _PATIENCE:
            path.unlink()
    path.touch(exist_ok=False)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Suspend the search for unreachable objects, which takes a seventh of the time: numba makes millions that live."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _touch(marker: Path) -> None:
    with suppress(OSError):  # without the marker, the kernels count as not compiled, which only causes a message
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _marker(options: CompletionOptions) -> Path:
    fit, reconstruction = options.fit, options.reconstruction
    return compilation_marker(
        fit.least_squares, fit.screen_outliers, reconstruction.system, reconstruction.solver, options.outliers
    )
