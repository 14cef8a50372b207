"""What the numerical tests share: a seed of each test's own."""

from __future__ import annotations

import os
import signal
import zlib

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
