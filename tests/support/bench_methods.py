"""Methods that fail, wait or die, for the tests of the benchmark; in protocols ``support.bench_methods:NAME``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from leadline.core.prior import Prior
from leadline.datasets import Dataset
from leadline.methods import MethodResult, method

# Environment variable: the first value of the prior at which `dies` and `raises` fail.
MARK = "LEADLINE_TEST_MARK"
# Environment variable: a file with the id of the process that will be killed; `stays` waits in its children.
DOOMED = "LEADLINE_TEST_DOOMED"
PATIENCE = 120.0  # seconds


def marked(prior: Prior) -> bool:
    return float(prior.values.flat[0]) == float(os.environ.get(MARK, "nan"))


def slow(prior: Prior, sparse: np.ndarray, *, seconds: float = 0.02) -> MethodResult:
    """GLog with a delay, so that a run can be killed while it works."""
    time.sleep(seconds)
    return method("glog")(prior, sparse)


def wait_under_the_doomed() -> None:
    """Wait: in a child of the doomed process until it is killed, elsewhere until such a child has begun."""
    doomed = Path(os.environ[DOOMED])
    begun = doomed.with_suffix(".begun")
    if doomed.read_text(encoding="utf-8") == f"{os.getppid()}":
        begun.touch()
        time.sleep(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def stays(prior: Prior, sparse: np.ndarray) -> MethodResult:
    """GLog that waits until a node is lost; see `wait_under_the_doomed`."""
    wait_under_the_doomed()
    return method("glog")(prior, sparse)


def raises(prior: Prior, sparse: np.ndarray) -> MethodResult:
    if marked(prior):
        raise KeyError("a bug of the method")
    return method("glog")(prior, sparse)


def dies(prior: Prior, sparse: np.ndarray) -> MethodResult:
    """GLog that is killed at the marked image, as if memory had run out."""
    if marked(prior):
        os.kill(os.getpid(), signal.SIGKILL)
    return method("glog")(prior, sparse)


def wrong_shape(prior: Prior, sparse: np.ndarray) -> MethodResult:
    return MethodResult(np.ones((2, 2), np.float32), "ok", 0.0, {})


def empty(prior: Prior, sparse: np.ndarray) -> MethodResult:
    return MethodResult(np.full(prior.shape, np.nan, np.float32), "failed: nothing to say", failed=True)


def left_half(prior: Prior, sparse: np.ndarray, *, dataset: Dataset, name: str) -> MethodResult:
    """The exact depth in the left half of the image, and nothing in the right half."""
    depth = np.array(dataset.load(name).reference)
    depth[:, depth.shape[1] // 2 :] = np.nan
    return MethodResult(depth, "ok")
