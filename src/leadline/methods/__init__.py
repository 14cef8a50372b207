"""Methods that turn a prior and measurements into metric depth: ours, the baselines and the trained systems."""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map
from leadline.base.errors import FileError, InputError, LeadlineError, param
from leadline.base.registry import Registry
from leadline.core.prior import Prior

__all__ = ["CONTEXT", "METHODS", "Method", "MethodFacts", "MethodResult", "method", "missing_requirement", "run_method"]


@dataclass(frozen=True)
class MethodResult:
    """A prediction with its status, run time and parameters."""

    depth: NDArray[np.float32]  # (H, W) metres, NaN where not predicted
    status: str = "ok"  # for the user; no code depends on its text
    seconds: float = math.nan  # wall clock; `run_method` measures it for a method that leaves it NaN
    parameters: dict[str, float] = field(default_factory=dict)  # what the method estimated or counted
    versions: dict[str, str] = field(default_factory=dict)  # of software outside leadline, e.g. {"ldcm commit": "3fab"}
    failed: bool = False  # True if no pixel was predicted because of the reason in `status`
    converged: bool | None = None  # whether the method's iterations met their tolerances; None if it has none to count


Method = Callable[..., MethodResult]
"""A function called as ``method(prior, sparse)``, and with the keywords of `CONTEXT` that its signature contains."""

CONTEXT = ("image", "camera", "dataset", "name")
"""Keyword-only parameters through which a method receives more than the prior and the measurements: the (H, W, 3) uint8
image, its camera or None, and the data set and the name that the image was loaded by."""


@dataclass(frozen=True)
class MethodFacts:
    """One row of the list of methods."""

    target: str  # "module:function", imported when the method is used
    summary: str
    licence: str = "Apache-2.0"  # of code and weights
    commercial: bool = True  # whether that licence allows commercial use, as far as known
    extra: str | None = None  # leadline's extra that installs the packages it needs
    model: str | None = None  # id of the weights, where leadline loads them itself
    argument: str | None = None  # keyword for what follows the colon in NAME:ARGUMENT; None if nothing may follow
    metric_prior: bool = False  # whether it needs a prior in metres, because it returns the prior's own depth


_SYSTEMS = "leadline.methods.external.systems"
_CLASSICAL = "leadline.methods.classical"
_NO_COMMERCE, _NOT_STATED = "Apache-2.0, weights CC-BY-NC-4.0", "Apache-2.0, weights not stated"

METHODS: dict[str, MethodFacts] = {
    "raw": MethodFacts("leadline.methods.simple:raw", "the prior as it is", metric_prior=True),
    "gdisp": MethodFacts("leadline.methods.simple:gdisp", "least squares in disparity"),
    "gmetric": MethodFacts("leadline.methods.simple:gmetric", "least squares in depth"),
    "glog": MethodFacts("leadline.methods.simple:glog", "least squares in log depth"),
    "knn": MethodFacts("leadline.methods.knn:knn", "a line through the five nearest measurements"),
    "lwlr": MethodFacts("leadline.methods.lwlr:lwlr", "locally weighted lines on a grid"),
    "poisson": MethodFacts("leadline.methods.poisson:poisson", "the prior's gradients, soft measurements"),
    "response": MethodFacts("leadline.methods.simple:response", "the paper's response alone"),
    "ours": MethodFacts("leadline.methods.simple:ours", "the paper's method: response and reconstruction"),
    "best": MethodFacts("leadline.methods.simple:best", "leadline's default: a robust fit, an adaptive solve"),
    "scale": MethodFacts(f"{_CLASSICAL}.global_fits:scale", "one scale for the image"),
    "ransac-metric": MethodFacts(f"{_CLASSICAL}.global_fits:ransac_metric", "a line in depth by RANSAC"),
    "ransac-disp": MethodFacts(f"{_CLASSICAL}.global_fits:ransac_disp", "a line in disparity by RANSAC"),
    "lad-metric": MethodFacts(f"{_CLASSICAL}.global_fits:lad_metric", "least absolute deviations in depth"),
    "lad-disp": MethodFacts(f"{_CLASSICAL}.global_fits:lad_disp", "least absolute deviations in disparity"),
    "delaunay": MethodFacts(f"{_CLASSICAL}.scattered:delaunay", "linear interpolation, no prior"),
    "natural-neighbour": MethodFacts(f"{_CLASSICAL}.scattered:natural_neighbour", "natural neighbours, no prior"),
    "ip-basic": MethodFacts(f"{_CLASSICAL}.ip_basic:ip_basic", "IP-Basic, 2018: dilation and blur, no prior"),
    "joint-bilateral": MethodFacts(f"{_CLASSICAL}.joint_upsampling:joint_bilateral", "joint bilateral upsampling"),
    "guided-filter": MethodFacts(f"{_CLASSICAL}.joint_upsampling:guided_filter", "guided filtering of measurements"),
    "bilateral-solver": MethodFacts(f"{_CLASSICAL}.bilateral_solver:bilateral_solver", "fast bilateral solver, 2016"),
    "colourisation": MethodFacts(f"{_CLASSICAL}.colourisation:colourisation", "Levin's colourisation, as for NYU v2"),
    "kriging": MethodFacts(f"{_CLASSICAL}.kriging:kriging", "a Gaussian process on the log residual"),
    "integrator": MethodFacts(f"{_CLASSICAL}.integration:integrator", "OMNI-DC's integrator of the prior's gradients"),
    "predictions": MethodFacts(
        "leadline.methods.predictions:predictions", "depth maps saved earlier", licence="theirs", argument="folder"
    ),
    "priorda": MethodFacts(f"{_SYSTEMS}:priorda", "Prior Depth Anything, 2025", _NO_COMMERCE, commercial=False),
    "ldcm": MethodFacts(f"{_SYSTEMS}:ldcm", "Large Depth Completion Model, 2026", _NOT_STATED),
    "any2full": MethodFacts(f"{_SYSTEMS}:any2full", "Any2Full, 2026", _NO_COMMERCE, commercial=False),
    "promptda": MethodFacts(
        "leadline.methods.promptda:promptda",
        "Prompt Depth Anything, 2025",
        _NOT_STATED,
        extra="transformers",
        model="depth-anything/prompt-depth-anything-vitl-hf",
    ),
    "omni-dc": MethodFacts(
        f"{_SYSTEMS}:omni_dc", "OMNI-DC 1.1, 2025", "BSD-3-Clause, weights CC-BY-NC-4.0", commercial=False
    ),
    "marigold-dc": MethodFacts(f"{_SYSTEMS}:marigold_dc", "Marigold-DC, 2025"),
    "testpromptdc": MethodFacts(
        f"{_SYSTEMS}:testpromptdc", "TestPromptDC, 2025", "not stated, weights CC-BY-NC-4.0", commercial=False
    ),
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
    >>> method("leadline.methods.simple:gdisp") is method("gdisp")
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
    """Run a method and return its result with the time it took.

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


def missing_requirement(name: str) -> str:
    """A text about what is missing before a method of `METHODS` can run here; empty if nothing is missing.

    The weights of an external system are not checked: the system downloads them or reports an error.
    """
    from leadline.methods.external.server_program import SYSTEMS
    from leadline.methods.external.systems import read_setups
    from leadline.priors.model_files import weights_present

    facts = METHODS[name]
    if facts.extra is not None and find_spec(facts.extra) is None:  # the extra has the name of its main package
        return f"not installed: pip install 'leadline[{facts.extra}]'"
    if facts.model is not None and not weights_present(facts.model):
        return f"its weights are not on this machine: hf download {facts.model}"
    if name not in SYSTEMS:
        return ""
    try:
        found = read_setups().get(name)
    except FileError as error:
        return str(error)
    if found is None:
        return f"not set up; see 'leadline methods setup {name}'"
    absent = [path for path in (found.python, found.repo) if path is not None and not os.path.exists(path)]
    return f"{absent[0]} no longer exists; set the system up again" if absent else ""


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


def relative_depth(prior: Prior) -> NDArray[np.float64]:
    """The prior's depth, (H, W), NaN where it is not finite and positive or not valid."""
    depth = prior.depth()
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float64)


def measured_pixels(prior: Prior, sparse: FloatArray) -> BoolArray:
    """The mask of the pixels with a finite positive measurement, (H, W)."""
    sparse = as_map(sparse, "sparse")
    if sparse.shape != prior.shape:
        raise InputError(f"{param('sparse')} must have the prior's shape {prior.shape}, got {sparse.shape} instead.")
    return np.isfinite(sparse) & (sparse > 0)


def failure(shape: tuple[int, int], reason: str, versions: dict[str, str] | None = None) -> MethodResult:
    """The result of a method that predicts nothing, with the reason in its status."""
    empty = np.full(shape, np.nan, np.float32)
    return MethodResult(empty, f"failed: {reason}", versions=versions or {}, failed=True)


def pixel_status(unusable: int, pixels: int) -> str:
    """The status of a prediction in which `unusable` pixels were non-positive or infinite and are now NaN."""
    return f"ok, but {unusable} of {pixels} pixels came out non-positive or infinite" if unusable else "ok"
