"""Timing of a completion and its stages, the test scene, and the triad as the unit of memory traffic."""

from __future__ import annotations

import subprocess
import sys
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

TRIADS = 20  # passes per repetition; a single pass is as short as the wake-up of a thread

# The functions that are replaced by timed ones. A stage is timed inside the whole call, with the CPU caches as in use.
STAGES = {
    "fit": (pipeline, "fit_response"),
    "calibrate": (pipeline, "calibrate"),
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
    """Times of one size and case: the whole call ("complete"), its stages and the triad, from the same repetitions."""

    size: Size
    case: Case
    measurements: int
    triad: Times
    stages: dict[str, Times]
    iterations: int
    residual: float

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
    """a = b + s c over float32 arrays of one element per pixel: two reads and one write, the unit of all ratios."""

    def __init__(self, pixels: int) -> None:
        self._arrays = np.zeros(pixels, np.float32), np.ones(pixels, np.float32), np.ones(pixels, np.float32)
        self()  # compiles

    def __call__(self) -> float:
        """Seconds of one pass."""
        a, b, c = self._arrays
        start = perf_counter()
        _triad(a, b, np.float32(0.5), c)
        return perf_counter() - start


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """A dictionary that receives the seconds of each stage that runs inside the context."""
    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            result = function(*args, **kwargs)
            seconds[name] = perf_counter() - start
            return result

        return run

    with ExitStack() as stack:
        for name, (module, attribute) in STAGES.items():
            stack.enter_context(mock.patch.object(module, attribute, timed(name, getattr(module, attribute))))
        yield seconds


def time_case(size: Size, case: Case, repeats: int) -> CaseTimes:
    """Time the whole call and its stages.

    Raises
    ------
    RuntimeError
        If the solve does not reach its tolerance, because the time of a wrong result is meaningless.
    """
    prior, sparse = scene(size, case)
    triad = Triad(size.pixels)
    pipeline.complete(prior, sparse, options="paper")  # compiles the kernels
    passes: list[float] = []
    runs: dict[str, list[float]] = {name: [] for name in ("complete", *STAGES)}
    for _ in range(repeats):
        passes.extend(triad() for _ in range(TRIADS))
        with stopwatch() as seconds:
            start = perf_counter()
            result = pipeline.complete(prior, sparse, options="paper")
            seconds["complete"] = perf_counter() - start
        for name, values in runs.items():
            values.append(seconds[name])
    if not result.reconstruction.converged:
        raise RuntimeError(f"{size}, {case}: {result.reconstruction.status}")
    return CaseTimes(
        size,
        case,
        result.fit.count,
        Times(tuple(passes)),
        {name: Times(tuple(values)) for name, values in runs.items()},
        result.reconstruction.iterations,
        result.reconstruction.residual,
    )


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
