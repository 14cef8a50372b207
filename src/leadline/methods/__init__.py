"""Ways to turn a prior and measurements into metric depth, behind one call."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from leadline.core.types import FloatArray, InputError, LeadlineError, Prior

METHODS: dict[str, str] = {
    "raw": "leadline.methods.global_fits:raw",
    "gdisp": "leadline.methods.global_fits:gdisp",
    "gmetric": "leadline.methods.global_fits:gmetric",
    "glog": "leadline.methods.global_fits:glog",
    "knn": "leadline.methods.knn:knn",
    "lwlr": "leadline.methods.lwlr:lwlr",
    "poisson": "leadline.methods.poisson:poisson",
    "response": "leadline.methods.global_fits:response",
    "ours": "leadline.methods.global_fits:ours",
}


@dataclass(frozen=True)
class MethodResult:
    """A prediction and how it came about."""

    depth: NDArray[np.float32]  # (H, W) metres, NaN where not predicted
    status: str  # starts with "ok" or "failed" for the baselines; else the stages' own statuses
    seconds: float  # wall clock, including any compilation in a process's first call
    parameters: dict[str, float]


Method = Callable[[Prior, FloatArray], MethodResult]


def method(name: str) -> Method:
    """The method of that name, imported now; a name with a colon is a function of your own, "module:function".

    Raises
    ------
    InputError
        If there is no such method, or no such module or function can be imported.

    Examples
    --------
    >>> method("gdips")
    Traceback (most recent call last):
    leadline.core.types.InputError: There is no method 'gdips'; did you mean gdisp? There are: raw, gdisp, gmetric, ...
    >>> method("leadline.methods.global_fits:gdisp") is method("gdisp")
    True
    """
    if ":" in name:
        return _own(name)
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(f"There is no method {name!r}; {hint}There are: {', '.join(METHODS)}.")
    return _own(METHODS[name])


def _own(name: str) -> Method:
    module, _, attribute = name.partition(":")
    if not (all(part.isidentifier() for part in module.split(".")) and attribute.isidentifier()):
        raise InputError(f"A method of your own must be named 'module:function', got {name!r} instead.")
    try:
        home = import_module(module)
    except LeadlineError:
        raise  # a missing extra already says what to install
    except ImportError as error:
        raise InputError(
            f"The method {name!r} cannot be imported: {error}. Install its package, or put its folder on PYTHONPATH."
        ) from error
    found: Method | None = getattr(home, attribute, None)
    if not callable(found):
        raise InputError(f"The module {module!r} has no function {attribute!r} to use as a method.")
    return found
