"""Ways to turn a prior and measurements into metric depth, behind one call."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import FloatArray, InputError, Prior

METHODS: dict[str, str] = {
    "raw": "leadline.methods.global_fits:raw",
    "gdisp": "leadline.methods.global_fits:gdisp",
    "gmetric": "leadline.methods.global_fits:gmetric",
    "glog": "leadline.methods.global_fits:glog",
    "response": "leadline.methods.global_fits:response",
    "ours": "leadline.methods.global_fits:ours",
}


@dataclass(frozen=True)
class MethodResult:
    """A prediction and how it came about."""

    depth: NDArray[np.float32]  # (H, W) metres, NaN where not predicted
    status: str  # starts with "ok" or "failed" for the fits of one coordinate; else the stages' own statuses
    seconds: float  # wall clock, including any compilation in a process's first call
    parameters: dict[str, float]


Method = Callable[[Prior, FloatArray], MethodResult]


def method(name: str) -> Method:
    """The method of that name, imported now.

    Examples
    --------
    >>> method("gdips")
    Traceback (most recent call last):
    leadline.core.types.InputError: There is no method 'gdips'; did you mean gdisp? There are: raw, gdisp, gmetric, ...
    """
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(f"There is no method {name!r}; {hint}There are: {', '.join(METHODS)}.")
    module, _, attribute = METHODS[name].partition(":")
    found: Method = getattr(import_module(module), attribute)
    return found
