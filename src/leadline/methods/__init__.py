"""Ways to turn a prior and measurements into metric depth, behind one call."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, LeadlineError
from leadline.core.prior import Prior


@dataclass(frozen=True)
class MethodResult:
    """A prediction and how it came about."""

    depth: NDArray[np.float32]  # (H, W) metres, NaN where not predicted
    status: str  # starts with "ok" or "failed" for the baselines; else the stages' own statuses
    seconds: float  # wall clock, including any compilation in a process's first call
    parameters: dict[str, float]
    versions: dict[str, str] = field(default_factory=dict)  # of what is not leadline, e.g. {"ldcm": "1.0 at 3fab839"}


Method = Callable[..., MethodResult]
"""Called as ``method(prior, sparse)``, with those of `CONTEXT` as keywords that its signature asks for."""

CONTEXT = ("image", "camera", "dataset", "name")
"""What a method may ask for besides prior and measurements, as keyword-only parameters of these names: the (H, W, 3)
uint8 picture, its camera or None, and the data set and the name that it was loaded from."""


@dataclass(frozen=True)
class MethodFacts:
    """One row of the list of methods."""

    function: str  # "module:function"
    summary: str
    licence: str = "Apache-2.0"  # of code and weights
    commercial: bool = True  # whether that allows commercial use, as far as it is known here
    extra: str | None = None  # leadline's extra that installs what it needs
    model: str | None = None  # id of the weights, where leadline loads them itself
    argument: str | None = None  # keyword for what follows the colon in NAME:ARGUMENT; None if nothing may follow


METHODS: dict[str, MethodFacts] = {
    "raw": MethodFacts("leadline.methods.global_fits:raw", "the prior as it is"),
    "gdisp": MethodFacts("leadline.methods.global_fits:gdisp", "least squares in disparity"),
    "gmetric": MethodFacts("leadline.methods.global_fits:gmetric", "least squares in depth"),
    "glog": MethodFacts("leadline.methods.global_fits:glog", "least squares in log depth"),
    "knn": MethodFacts("leadline.methods.knn:knn", "a line through the five nearest measurements"),
    "lwlr": MethodFacts("leadline.methods.lwlr:lwlr", "locally weighted lines on a grid"),
    "poisson": MethodFacts("leadline.methods.poisson:poisson", "the prior's gradients, soft measurements"),
    "response": MethodFacts("leadline.methods.global_fits:response", "the response alone"),
    "ours": MethodFacts("leadline.methods.global_fits:ours", "the response, then the residual: the paper's method"),
    "best": MethodFacts("leadline.methods.global_fits:best", "the same with a system that each image chooses"),
    "predictions": MethodFacts(
        "leadline.methods.predictions:predictions", "depth maps saved earlier", licence="theirs", argument="folder"
    ),
    "priorda": MethodFacts(
        "leadline.methods.systems:priorda",
        "Prior Depth Anything, 2025",
        licence="Apache-2.0, weights CC-BY-NC-4.0",
        commercial=False,
    ),
    "ldcm": MethodFacts(
        "leadline.methods.systems:ldcm", "Large Depth Completion Model, 2026", licence="Apache-2.0, weights not stated"
    ),
    "any2full": MethodFacts(
        "leadline.methods.systems:any2full",
        "Any2Full, 2026",
        licence="Apache-2.0, weights CC-BY-NC-4.0",
        commercial=False,
    ),
    "promptda": MethodFacts(
        "leadline.methods.promptda:promptda",
        "Prompt Depth Anything, 2025",
        licence="Apache-2.0, weights not stated",
        extra="transformers",
        model="depth-anything/prompt-depth-anything-vitl-hf",
    ),
    "omni-dc": MethodFacts(
        "leadline.methods.systems:omni_dc",
        "OMNI-DC 1.1, 2025",
        licence="BSD-3-Clause, weights CC-BY-NC-4.0",
        commercial=False,
    ),
    "marigold-dc": MethodFacts("leadline.methods.systems:marigold_dc", "Marigold-DC, 2025"),
}


def method(name: str) -> Method:
    """The method of that name, imported now.

    Parameters
    ----------
    name : str
        One of `METHODS`; or ``predictions:DIR``; or ``module:function``, a function of your own.

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
    kind, colon, argument = name.partition(":")
    facts = METHODS.get(kind)
    if colon and (facts is None or facts.argument is None):
        return _own(name)
    if facts is None:
        close = difflib.get_close_matches(name, METHODS, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(f"There is no method {name!r}; {hint}There are: {', '.join(METHODS)}.")
    found = _own(facts.function)
    if facts.argument is None:
        return found
    if not argument:
        raise InputError(
            f"The method {kind!r} needs a {facts.argument} after a colon: {kind}:{facts.argument.upper()}."
        )
    return partial(found, **{facts.argument: argument})


def run_method(found: Method, prior: Prior, sparse: FloatArray, **context: Any) -> MethodResult:
    """The result of a method, given those of `context` (see `CONTEXT`) that it asks for by keyword-only parameters.

    A function of two arguments is called with two; so is one that has an option by such a name bound already.
    """
    bound = found.keywords if isinstance(found, partial) else {}
    asked = {
        parameter.name: context[parameter.name]
        for parameter in inspect.signature(found).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name in context and parameter.name not in bound
    }
    return found(prior, sparse, **asked)


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
