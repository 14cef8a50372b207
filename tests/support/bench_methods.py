"""Methods of one's own for the tests of the benchmark, named in protocols as ``bench_methods:NAME``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from leadline.core.prior import Prior
from leadline.methods import MethodResult, method

MARK = "LEADLINE_TEST_MARK"  # holds the first value of the prior at which `dies` and `raises` do so

DOOMED = "LEADLINE_TEST_DOOMED"  # file in which a process is named under which `stays` never ends

PATIENCE = 120.0  # seconds


def marked(prior: Prior) -> bool:
    return float(prior.values.flat[0]) == float(os.environ.get(MARK, "nan"))


def slow(prior: Prior, sparse: np.ndarray, *, seconds: float = 0.02) -> MethodResult:
    """GLog that takes its time, so that a run can be killed in its middle."""
    time.sleep(seconds)
    return method("glog")(prior, sparse)


def stays(prior: Prior, sparse: np.ndarray) -> MethodResult:
    """GLog that under the doomed parent says that it has begun and waits for its end; elsewhere it waits for that."""
    doomed = Path(os.environ[DOOMED])
    begun = doomed.with_suffix(".begun")
    if doomed.read_text(encoding="utf-8") == f"{os.getppid()}":
        begun.touch()
        time.sleep(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return method("glog")(prior, sparse)


def raises(prior: Prior, sparse: np.ndarray) -> MethodResult:
    if marked(prior):
        raise KeyError("a bug of the method")
    return method("glog")(prior, sparse)


def dies(prior: Prior, sparse: np.ndarray) -> MethodResult:
    """As if the system had run out of memory, at one image."""
    if marked(prior):
        os.kill(os.getpid(), signal.SIGKILL)
    return method("glog")(prior, sparse)


def wrong_shape(prior: Prior, sparse: np.ndarray) -> MethodResult:
    return MethodResult(np.ones((2, 2), np.float32), "ok", 0.0, {})


def empty(prior: Prior, sparse: np.ndarray) -> MethodResult:
    return MethodResult(np.full(prior.shape, np.nan, np.float32), "failed: nothing to say", 0.0, {})
