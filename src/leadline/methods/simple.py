"""leadline's own presets as methods, and baselines with one curve for the whole image.

The baselines are the prior as it is, and least squares in disparity, depth and log depth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior
from leadline.methods import MethodResult, measured_pixels, relative_depth
from leadline.methods.lines import DEPTH, DISPARITY, LOG_DEPTH, Undefined, fit_line, least_squares_line

# The pipeline is imported inside the functions: it imports numba, which is slow and not needed to list the methods.
if TYPE_CHECKING:
    from leadline.core.fit.estimator import Fit


def response(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | str = "paper") -> MethodResult:
    """The calibrated prior: `calibrated` of `leadline.align`."""
    from leadline.core.pipeline import align

    found = align(prior, sparse, options=options)
    depth = np.asarray(found.calibrated, np.float32)
    converged = _has_converged(found.fit)
    return MethodResult(depth, str(found.fit.status), parameters=_parameters(found.fit), converged=converged)


def ours(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | str = "paper") -> MethodResult:
    """The paper's method, or another preset or options: `depth` of `leadline.complete`."""
    from leadline.core.pipeline import complete

    completion = complete(prior, sparse, options=options)
    status = f"{completion.fit.status}; {completion.reconstruction.status}"
    return MethodResult(
        np.asarray(completion.depth, np.float32),
        status,
        parameters=_parameters(completion.fit),
        converged=_has_converged(completion.fit) and completion.reconstruction.converged,
    )


def best(prior: Prior, sparse: FloatArray) -> MethodResult:
    """`depth` of `leadline.complete` with its default options."""
    return ours(prior, sparse, options="best")


def _parameters(fit: Fit) -> dict[str, float]:
    return {name: float(getattr(fit.response, name)) for name in ("exponent", "gain", "offset", "scale")}


def _has_converged(fit: Fit) -> bool:
    """Whether the descent met its tolerance. No other status counts, a fallback to a simpler model included."""
    from leadline.core.fit.estimator import FitStatus

    return fit.status is FitStatus.CONVERGED


def raw(prior: Prior, sparse: FloatArray) -> MethodResult:
    """The prior's own depth. The measurements are checked for their shape but not used.

    It can be scored only if the prior is in metres; the benchmark plans it for no other prior.
    """
    measured_pixels(prior, sparse)
    return MethodResult(relative_depth(prior).astype(np.float32), "ok: the prior as it is")


def gdisp(prior: Prior, sparse: FloatArray, *, undefined: Undefined = "fail") -> MethodResult:
    """Least squares in disparity, 1/s = gain / h + offset (GDisp)."""
    return fit_line(prior, sparse, DISPARITY, least_squares_line, undefined)


def gmetric(prior: Prior, sparse: FloatArray, *, undefined: Undefined = "fail") -> MethodResult:
    """Least squares in depth, s = gain h + offset (GMetric)."""
    return fit_line(prior, sparse, DEPTH, least_squares_line, undefined)


def glog(prior: Prior, sparse: FloatArray, *, undefined: Undefined = "fail") -> MethodResult:
    """Least squares in log depth, log s = gain log h + offset (GLog)."""
    return fit_line(prior, sparse, LOG_DEPTH, least_squares_line, undefined)
