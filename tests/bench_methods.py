"""Methods of one's own for the tests of the benchmark, named in protocols as ``bench_methods:NAME``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from leadline.core.types import Prior
from leadline.methods import MethodResult, method

MARK = "LEADLINE_TEST_MARK"  # holds the first value of the prior at which `dies` and `raises` do so

SEEN = "LEADLINE_TEST_SEEN"  # folder for the traces of `slow`


def marked(prior: Prior) -> bool:
    return float(prior.values.flat[0]) == float(os.environ.get(MARK, "nan"))


def slow(prior: Prior, sparse: np.ndarray, *, seconds: float = 0.02) -> MethodResult:
    """GLog that takes its time, so that a run can be killed in its middle, and says under which parent it runs."""
    if SEEN in os.environ:
        (Path(os.environ[SEEN]) / f"{os.getppid()}").touch()
    time.sleep(seconds)
    return method("glog")(prior, sparse)


def slower(prior: Prior, sparse: np.ndarray) -> MethodResult:
    return slow(prior, sparse, seconds=0.15)


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
