"""Timing of a completion and its stages, the test scene, and the triad as the unit of memory traffic."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from leadline.bench.observations import Case, observe
from leadline.core import pipeline
from leadline.core.solve import system

TRIADS = 3  # passes per repetition
TRIAD_PIXELS = 16 * 2**20  # the arrays of a triad must not fit into a cache; its time is scaled to the image's pixels
PRESETS = ("paper", "best")

# The functions that are replaced by timed ones. A stage is timed inside the whole call, with the CPU caches as in use.
STAGES = {
    "fit": (pipeline, "fit_response"),
    "calibrate": (pipeline, "calibrate_prior"),
    "set-up": (system.System, "build_hierarchy"),
    "solve": (system.System, "solve"),
    "reconstruct": (pipeline, "reconstruct"),
}


@dataclass(frozen=True)
class Times:
    """Seconds of several runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.runs)


@dataclass(frozen=True)
class Size:
    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height

    def __str__(self) -> str:
        return f"{self.width} × {self.height}"


@dataclass(frozen=True)
class CaseTimes:
    """Times of one size, case and preset: the whole call ("complete"), its stages and the triad, measured in turns.

    `memory` is the peak of a call in bytes per pixel, beyond its inputs.
    """

    size: Size
    case: Case
    preset: str
    measurements: int
    triad: Times
    stages: dict[str, Times]
    iterations: int
    residual: float
    memory: float

    def triads(self, stage: str) -> float:
        return self.stages[stage].median / self.triad.median


def scene(size: Size, case: Case) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A prior and the measurements of one case: floor, wall and boxes, and a network with a nonlinear response.

    The scene is a formula, so that every size shows the same content and large images are cheap.
    """
    v, u = np.ogrid[0 : 1 : size.height * 1j, 0 : 1 : size.width * 1j]
    depth = np.minimum(5.0 + 0.5 * np.sin(4 * u) + 0.3 * v, 1.2 / np.maximum(v - 0.35, 0.01))
    for left, top, right, bottom, near in (
        (0.1, 0.45, 0.3, 0.8, 2.1),
        (0.42, 0.3, 0.5, 0.7, 2.9),
        (0.6, 0.5, 0.9, 0.9, 1.6),
    ):
        inside = (u > left) & (u < right) & (v > top) & (v < bottom)
        depth = np.where(inside, near + 0.4 * (u - left) - 0.2 * (v - top), depth)
    slow = 0.03 * np.cos(7 * u + 2 * v) * np.cos(3 * u - 6 * v)  # an error that no response removes
    prior = 0.4 * (depth**-1.5 + 0.05) ** (-1 / 1.2) * np.exp(slow)
    return prior.astype(np.float32), observe(depth.astype(np.float32), case).sparse


@njit(parallel=True, cache=True)  # type: ignore[untyped-decorator]
def _triad(a: Any, b: Any, s: Any, c: Any) -> None:
    for i in prange(a.size):
        a[i] = b[i] + s * c[i]


class Triad:
    """a = b + s c over float32 arrays that fit into no cache: two reads and one write, the unit of all ratios."""

    def __init__(self) -> None:
        zeros, ones = np.zeros(TRIAD_PIXELS, np.float32), np.ones(TRIAD_PIXELS, np.float32)
        self._arrays = zeros, ones, ones.copy()
        self(1)  # compiles

    def __call__(self, pixels: int) -> float:
        """Seconds of one pass over so many pixels."""
        a, b, c = self._arrays
        start = perf_counter()
        _triad(a, b, np.float32(0.5), c)
        return (perf_counter() - start) * pixels / TRIAD_PIXELS


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """A dictionary that receives the seconds of each stage that runs inside the context."""
    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            result = function(*args, **kwargs)
            seconds[name] = seconds.get(name, 0.0) + perf_counter() - start  # `best` fits twice
            return result

        return run

    with ExitStack() as stack:
        for name, (module, attribute) in STAGES.items():
            stack.enter_context(mock.patch.object(module, attribute, timed(name, getattr(module, attribute))))
        yield seconds


def time_case(size: Size, case: Case, repeats: int, triad: Triad) -> list[CaseTimes]:
    """Time the whole call and its stages with each preset; the presets take turns.

    Raises
    ------
    RuntimeError
        If the solve does not reach its tolerance, because the time of a wrong result is meaningless.
    """
    prior, sparse = scene(size, case)
    peaks = {preset: _memory(prior, sparse, preset) for preset in PRESETS}  # also compiles the kernels
    passes: list[float] = []
    runs: dict[str, dict[str, list[float]]] = {preset: {} for preset in PRESETS}
    results = {}
    for _ in range(repeats):
        passes.extend(triad(size.pixels) for _ in range(TRIADS))
        for preset in PRESETS:
            with stopwatch() as seconds:
                start = perf_counter()
                results[preset] = pipeline.complete(prior, sparse, options=preset)
                seconds["complete"] = perf_counter() - start
            for name in ("complete", *STAGES):
                runs[preset].setdefault(name, []).append(seconds[name])
    found = []
    for preset, result in results.items():
        solve = result.reconstruction
        if not solve.converged:
            raise RuntimeError(f"{size}, {case}, {preset}: {solve.status}")
        stages = {name: Times(tuple(values)) for name, values in runs[preset].items()}
        numbers = solve.iterations, solve.residual, peaks[preset] / size.pixels
        found.append(CaseTimes(size, case, preset, result.fit.count, Times(tuple(passes)), stages, *numbers))
    return found


def _memory(prior: NDArray[np.float32], sparse: NDArray[np.float32], preset: str) -> float:
    """The peak of what a second call allocates, in bytes."""
    pipeline.complete(prior, sparse, options=preset)
    tracemalloc.start()
    try:
        pipeline.complete(prior, sparse, options=preset)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FIRST_CALL = """
import numpy as np, leadline
prior = np.linspace(1, 2, 640 * 480, dtype=np.float32).reshape(480, 640)
sparse = np.zeros_like(prior)
sparse[::8, ::8] = prior[::8, ::8] ** 1.2
leadline.complete(prior, sparse)
"""
WARM_UP = "from leadline.core.compilation import warm_up; warm_up()"
FIRST_CALLS = {"import and first `complete`": FIRST_CALL, "`warm_up` of the preset best in two processes": WARM_UP}


def time_first_calls() -> dict[str, Times]:
    """Wall time of processes that find no compiled kernel: a completion with `best`, and `warm_up`."""
    times = {}
    for name, program in FIRST_CALLS.items():
        with tempfile.TemporaryDirectory() as cache:
            start = perf_counter()
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment)
            times[name] = Times((perf_counter() - start,))
    return times


def time_start_up(repeats: int) -> dict[str, Times]:
    """Wall time of the start of new processes, after one run that fills the file cache."""
    script = Path(sys.executable).with_name("leadline")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "leadline"]
    commands = {
        "python -c 'import leadline'": [sys.executable, "-c", "import leadline"],
        "leadline --help": [*command, "--help"],
    }
    times = {}
    for name, line in commands.items():
        runs = []
        for _ in range(repeats + 1):
            start = perf_counter()
            subprocess.run(line, check=True, capture_output=True)
            runs.append(perf_counter() - start)
        times[name] = Times(tuple(runs[1:]))
    return times
