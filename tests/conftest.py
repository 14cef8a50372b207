"""What the numerical tests share: a seed of each test's own, and derivatives by differences."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable

import numba
import numpy as np
import pytest

# A shell's background job ignores Ctrl-C, and so would the commands that are tested here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def one_thread_a_worker() -> None:
    """Tests that run side by side share the cores; what is said about threads is tested by setting their number."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        numba.set_num_threads(1)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone, so that order and selection never matter."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def central_jacobian(function: Callable[[np.ndarray], np.ndarray], at: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """Derivatives of a vector function, (outputs, inputs), by fourth-order central differences.

    With the default step the truncation, step^4 times a fifth derivative, meets the rounding, 1e-16 / step,
    near 1e-12 for functions of order one.
    """
    columns = []
    for i in range(at.size):
        shift = np.zeros(at.size)
        shift[i] = step * max(1.0, abs(at[i]))
        near = function(at + shift) - function(at - shift)
        far = function(at + 2 * shift) - function(at - 2 * shift)
        columns.append((8 * near - far) / (12 * shift[i]))
    return np.stack(columns, axis=-1)
