"""Methods that turn a prior and measurements into metric depth: ours, the baselines and the trained systems."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, LeadlineError, param
from leadline.base.registry import Registry
from leadline.core.prior import Prior
from leadline.methods.result import MethodResult

__all__ = ["CONTEXT", "METHODS", "Method", "MethodFacts", "MethodResult", "method", "run_method"]

Method = Callable[..., MethodResult]
"""Called as ``method(prior, sparse)``, with those of `CONTEXT` as keywords that its signature names."""

CONTEXT = ("image", "camera", "dataset", "name")
"""Keyword-only parameters through which a method receives more than the prior and the measurements: the (H, W, 3) uint8
image, its camera or None, and the data set and the name that the image was loaded by."""


@dataclass(frozen=True)
class MethodFacts:
    """One row of the list of methods."""

    target: str  # "module:function", imported when the method is used
    summary: str
    licence: str = "Apache-2.0"  # of code and weights
    commercial: bool = True  # whether that licence allows commercial use, as far as it is known here
    extra: str | None = None  # leadline's extra that installs the packages it needs
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
    "response": MethodFacts("leadline.methods.completion:response", "the paper's response alone"),
    "ours": MethodFacts("leadline.methods.completion:ours", "the paper's method: response and reconstruction"),
    "best": MethodFacts("leadline.methods.completion:best", "leadline's default: a robust fit, an adaptive solve"),
    "predictions": MethodFacts(
        "leadline.methods.predictions:predictions", "depth maps saved earlier", licence="theirs", argument="folder"
    ),
    "priorda": MethodFacts(
        "leadline.methods.external.systems:priorda",
        "Prior Depth Anything, 2025",
        licence="Apache-2.0, weights CC-BY-NC-4.0",
        commercial=False,
    ),
    "ldcm": MethodFacts(
        "leadline.methods.external.systems:ldcm",
        "Large Depth Completion Model, 2026",
        licence="Apache-2.0, weights not stated",
    ),
    "any2full": MethodFacts(
        "leadline.methods.external.systems:any2full",
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
        "leadline.methods.external.systems:omni_dc",
        "OMNI-DC 1.1, 2025",
        licence="BSD-3-Clause, weights CC-BY-NC-4.0",
        commercial=False,
    ),
    "marigold-dc": MethodFacts("leadline.methods.external.systems:marigold_dc", "Marigold-DC, 2025"),
}


def method(name: str) -> Method:
    """The method of that name; its module is imported now.

    Parameters
    ----------
    name : str
        One of `METHODS`; or ``predictions:DIR``; or ``module:function``, a function of your own.

    Raises
    ------
    InputError
        There is no such method, or the module or function cannot be imported.

    Examples
    --------
    >>> method("gdips")
    Traceback (most recent call last):
    leadline.base.errors.InputError: `method`: there is no method 'gdips'; did you mean 'gdisp'?
    >>> method("leadline.methods.global_fits:gdisp") is method("gdisp")
    True
    """
    kind, colon, argument = name.partition(":")
    if colon and (kind not in METHODS or METHODS[kind].argument is None):
        return _import_function(name)
    found: Method = Registry("method", {key: facts.target for key, facts in METHODS.items()}).load(kind)
    keyword = METHODS[kind].argument
    if keyword is None:
        return found
    if not argument:
        raise InputError(f"{param('method')}: {kind!r} needs a {keyword} after a colon, {kind}:{keyword.upper()}.")
    return partial(found, **{keyword: argument})


def run_method(found: Method, prior: Prior, sparse: FloatArray, **context: Any) -> MethodResult:
    """The result of a method with the time it took.

    The method receives those of `context` (see `CONTEXT`) that it names as keyword-only parameters and that are not
    bound already. The time includes any compilation in the first call of a process.
    """
    bound = found.keywords if isinstance(found, partial) else {}
    keywords = {
        parameter.name: context[parameter.name]
        for parameter in inspect.signature(found).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name in context and parameter.name not in bound
    }
    begun = time.perf_counter()
    result = found(prior, sparse, **keywords)
    return replace(result, seconds=time.perf_counter() - begun) if math.isnan(result.seconds) else result


def _import_function(name: str) -> Method:
    module, _, attribute = name.partition(":")
    if not (all(part.isidentifier() for part in module.split(".")) and attribute.isidentifier()):
        raise InputError(f"{param('method')}: a method of your own must be named 'module:function', got {name!r}.")
    try:
        home = import_module(module)
    except LeadlineError:
        raise  # a missing extra already says what to install
    except ImportError as error:
        raise InputError(
            f"{param('method')}: {name!r} cannot be imported: {error}. Install its package, or put its folder on "
            "PYTHONPATH."
        ) from error
    found: Method | None = getattr(home, attribute, None)
    if not callable(found):
        raise InputError(f"{param('method')}: the module {module!r} has no function {attribute!r} to use as a method.")
    return found
