"""How numba's threads are started."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba import njit

from leadline.base.jit import SERIAL_BELOW, WAITING, ParallelKernel

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


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare with one")
def test_small_arrays_are_processed_by_one_thread() -> None:
    threads = numba.get_num_threads()
    in_use = ParallelKernel(njit(lambda _: numba.get_num_threads()))
    assert in_use(np.zeros(SERIAL_BELOW - 1)) == 1
    assert in_use(np.zeros(SERIAL_BELOW)) == numba.get_num_threads() == threads
