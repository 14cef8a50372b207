"""A test of the installation that takes seconds: the method, threads, files and worker processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import LeadlineError

SIZE = (320, 240)  # width and height of the rendered scene
MAX_ERROR = 0.05  # of the depth: the rendered room is completed to 1 %


@dataclass(frozen=True)
class Check:
    """The outcome of one test."""

    name: str
    passed: bool
    text: str  # what was measured, or what went wrong


@dataclass(frozen=True)
class Echo:
    """A job for a worker process: it returns each number plus one."""

    def start(self, threads: int) -> Callable[[int], int]:
        return lambda number: number + 1


def run_self_test() -> Iterator[Check]:
    """All tests, one after the other. An error of one is its outcome, and the others go on."""
    tests: dict[str, Callable[[], str]] = {
        "completion": _test_completion,
        "threads": _test_threads,
        "files": _test_files,
        "worker process": _test_worker,
    }
    for name, test in tests.items():
        try:
            yield Check(name, True, test())
        except Exception as error:  # whatever is wrong with an installation belongs in the report
            text = str(error) if isinstance(error, LeadlineError) else f"{type(error).__name__}: {error}"
            yield Check(name, False, " ".join(text.split()))


@cache
def _scene() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Prior, measurements and true depth of the rendered scene."""
    from leadline.bench.observations import observe
    from leadline.datasets.rendered import network_like_prior, render

    reference = render(*SIZE, seed=0).reference
    if reference is None:
        raise LeadlineError("the rendered scene has no depth.")
    return network_like_prior(reference, seed=0), observe(reference, "distributed").sparse, reference


def _test_completion() -> str:
    from leadline.core.pipeline import complete

    prior, sparse, reference = _scene()
    complete(prior, sparse)  # loads the kernels
    begun = time.perf_counter()
    result = complete(prior, sparse)
    seconds = time.perf_counter() - begun
    measured = sparse > 0
    known = np.isfinite(reference) & (reference > 0)
    error = float(np.mean(np.abs(result.depth / reference - 1)[known]))
    if not np.array_equal(result.depth[measured], sparse[measured]):
        raise LeadlineError("the depth differs from the measurements.")
    if not error < MAX_ERROR:
        raise LeadlineError(f"the error is {error:.1%} of the depth, expected less than {MAX_ERROR:.0%}.")
    return f"{SIZE[0]} x {SIZE[1]} pixels completed in {1e3 * seconds:.0f} ms, error {error:.2%} of the depth"


def _test_threads() -> str:
    import numba

    from leadline.base.threads import set_thread_count
    from leadline.core.pipeline import complete

    prior, sparse, _ = _scene()
    threads = numba.get_num_threads()
    expected = complete(prior, sparse).depth
    try:
        set_thread_count(1)
        alone = complete(prior, sparse).depth
    finally:
        set_thread_count(threads)
    if not np.array_equal(alone, expected):
        raise LeadlineError(f"one thread and {threads} give different depth.")
    return f"one and {threads} give the same bits"


def _test_files() -> str:
    from leadline.io.depth import read_depth, write_depth

    depth = np.array([[1.0, 2.5], [np.nan, 4.25]], np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("depth.png", "depth.npy"):
            write_depth(Path(folder) / name, depth, "mm")
            if not np.allclose(read_depth(Path(folder) / name, "mm").values, depth, equal_nan=True):
                raise LeadlineError(f"{name} does not hold what was written.")
        return f"written and read in {Path(folder).parent}"


def _test_worker() -> str:
    from leadline.base.executors import processes

    if dict(processes(Echo(), [1, 2], workers=1)) != {1: 2, 2: 3}:
        raise LeadlineError("a worker process died.")
    return "started and ended"
