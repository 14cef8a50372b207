"""Loops that are shared among threads, and how the threads are started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from leadline.base import threads as threads_module
from leadline.base.jit import SERIAL_BELOW, parallel_loop
from leadline.base.threads import SAMPLES, WAITING, Load, thread_count

PROGRAM = """
import os
import numba, numpy as np
import leadline
before = dict(os.environ)
prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
sparse = np.zeros_like(prior)
sparse[::8, ::8] = 3.0 * prior[::8, ::8]
leadline.complete(prior, sparse)
assert dict(os.environ) == before
print(numba.threading_layer())
"""


FROM_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import numba, numpy as np
import leadline
prior = np.linspace(1.0, 2.0, 160 * 120).reshape(120, 160)
sparse = np.zeros_like(prior)
sparse[::8, ::8] = 3.0 * prior[::8, ::8] ** 1.2
alone = leadline.complete(prior, sparse).depth
with ThreadPoolExecutor(3) as pool:
    found = list(pool.map(lambda _: leadline.complete(prior, sparse).depth, range(9)))
print(numba.threading_layer(), all(np.array_equal(depth, alone) for depth in found))
"""


def test_the_layer_of_last_resort_takes_calls_from_several_threads() -> None:
    """numba's own work queue aborts the process if two threads enter it at the same time."""
    settings = {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", FROM_THREADS], env={**os.environ, **settings}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["workqueue", "True"], done.stderr


def spin_count(**settings: str) -> str:
    """The number of times that a waiting thread spins in a process that completes an image, as OpenMP reports it."""
    where = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**where, "OMP_DISPLAY_ENV": "verbose", **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    if done.stdout.strip() != "omp" or "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip(f"numba uses the threading layer {done.stdout.strip()}, not GNU OpenMP")
    line = next(line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line)
    return line.split("'")[1]


def test_threads_spin_for_microseconds_only() -> None:
    assert spin_count() == WAITING["GOMP_SPINCOUNT"]


def test_settings_of_the_user_are_respected() -> None:
    assert spin_count(GOMP_SPINCOUNT="1234") == "1234"
    assert int(spin_count(OMP_WAIT_POLICY="active")) > 1234


@parallel_loop()
def record(i, stack, row, factor, negative, nothing, pair, visits, threads):
    """One step of a loop with every kind of argument that kernels have."""
    if i == row.size:
        raise MemoryError
    value = stack[0, i, 0] * factor + pair[0] * row[i] + pair[1]
    if negative and nothing is None:
        value = -value
    visits[i] += value
    threads[i] = numba.get_thread_id()


def run(count: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    rng = np.random.default_rng(count)
    stack, row = rng.normal(size=(2, count, size // count)), rng.normal(size=count)
    visits, threads = np.zeros(count), np.full(count, -1)
    record[count](stack, row, 3.0, True, None, (2.0, 5), visits, threads)
    return visits, threads, -(3.0 * stack[0, :, 0] + 2.0 * row + 5)


@pytest.mark.parametrize("size", [SERIAL_BELOW // 2, SERIAL_BELOW])
def test_every_step_is_done_once(size: int) -> None:
    visits, threads, expected = run(100, size)
    np.testing.assert_array_equal(visits, expected)
    assert (threads >= 0).all()


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare with one")
def test_small_arrays_are_processed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack of two planes is as large as one of them."""
    monkeypatch.setattr(threads_module, "_running_threads", lambda: 1)
    monkeypatch.setattr(threads_module, "_load", Load())
    assert len(set(run(100, SERIAL_BELOW - 100)[1])) == 1
    if numba.threading_layer() == "omp":  # other layers may leave everything to one thread
        assert len(set(run(100, SERIAL_BELOW)[1])) == numba.get_num_threads()


@pytest.mark.parametrize("size", [SERIAL_BELOW // 2, SERIAL_BELOW])
def test_a_lack_of_memory_in_a_step_is_reported(size: int) -> None:
    with pytest.raises(MemoryError, match="a step of a compiled loop failed"):
        record[6](np.zeros((1, 8, size // 8)), np.zeros(5), 1.0, False, None, (2.0, 5), np.zeros(8), np.zeros(8, int))


@parallel_loop()
def stop_early(i, out):
    if i == 1:
        return
    out[i] = 1.0


def test_a_step_that_returns_early_is_refused() -> None:
    """Its body becomes that of the loop, where a return would end all steps."""
    with pytest.raises(SyntaxError, match="stop_early: a step of a loop may not return"):
        stop_early[3](np.zeros(3))


@pytest.mark.parametrize(
    ("processors", "others", "expected"),
    [(2, 0, 2), (2, 1, 2), (2, 2, 1), (2, 6, 1), (16, 0, 2), (16, 8, 2), (16, 16, 1)],
)
def test_beside_other_work_a_loop_runs_on_fewer_threads(
    monkeypatch: pytest.MonkeyPatch, processors: int, others: int, expected: int
) -> None:
    monkeypatch.setattr(threads_module, "PROCESSORS", processors)
    monkeypatch.setattr("numba.get_num_threads", lambda: 2)
    monkeypatch.setattr(threads_module, "INTERVAL", 0.0)
    monkeypatch.setattr(threads_module, "_running_threads", lambda: others + 1)
    monkeypatch.setattr(threads_module, "_load", Load())
    counts = [thread_count() for _ in range(SAMPLES)]
    assert counts == [2] * (SAMPLES - 1) + [expected]


@pytest.mark.parametrize("content", [None, "", "0.10 0.56 1.27", "0.1 0.5 1.2 many/93 311"])
def test_where_the_load_is_not_known_all_threads_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    monkeypatch.setattr(threads_module, "LOAD", str(tmp_path / "loadavg"))
    if content is not None:
        (tmp_path / "loadavg").write_text(content)
    monkeypatch.setattr(threads_module, "_load", Load())
    assert thread_count() == numba.get_num_threads()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts the running threads")
def test_the_load_counts_this_thread() -> None:
    assert threads_module._running_threads() >= 1
