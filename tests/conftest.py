"""What tests share: a seed of each test's own, and a folder with the files that the commands' examples name."""

from __future__ import annotations

import os
import signal
import zlib
from pathlib import Path

import numba
import numpy as np
import pytest

# Left out of `make check`: these start browsers, servers, worker processes or whole commands, or read real scenes.
SLOW = (
    *("apps", "batch", "report", "bench/test_run.py", "bench/test_examples.py", "bench/test_speed_benchmark.py"),
    *("bench/test_oracle_blend.py", "methods/test_systems.py", "methods/test_promptda.py", "priors", "datasets"),
    *("core/test_real_scenes.py", "core/test_uncertainty.py", "core/test_contracts.py", "core/test_best_preset.py"),
    *("core/test_regions.py", "tensors", "test_surface.py"),
)

# A shell's background job ignores Ctrl-C, and so would the commands that are tested here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow by its place, so that a new test needs no mark of its own."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and any(item.path.is_relative_to(here / place) for place in SLOW):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def one_thread_a_worker() -> None:
    """Tests that run side by side share the cores; what is said about threads is tested by setting their number."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        numba.set_num_threads(1)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone, so that order and selection never matter."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the files that the examples in the help name, and a cache of its own."""
    from support.cli_frames import prepare  # most tests need no command line

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepare()
    return tmp_path
