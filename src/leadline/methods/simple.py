"""leadline's own presets as methods, and baselines with one curve for the whole image.

The baselines are the prior as it is, and least squares in disparity, depth and log depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import require_choice
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, pixel_status, relative_depth

# The pipeline is imported inside the functions: it imports numba, which is slow and not needed to list the methods.
if TYPE_CHECKING:
    from leadline.core.fit.estimator import Fit

_Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Undefined = Literal["fail", "drop"]


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
    return _fit_coordinate(prior, sparse, np.reciprocal, np.reciprocal, undefined)


def gmetric(prior: Prior, sparse: FloatArray, *, undefined: Undefined = "fail") -> MethodResult:
    """Least squares in depth, s = gain h + offset (GMetric)."""
    return _fit_coordinate(prior, sparse, np.positive, np.positive, undefined)


def glog(prior: Prior, sparse: FloatArray, *, undefined: Undefined = "fail") -> MethodResult:
    """Least squares in log depth, log s = gain log h + offset (GLog)."""
    return _fit_coordinate(prior, sparse, np.log, np.exp, undefined)


def _fit_coordinate(
    prior: Prior, sparse: FloatArray, coordinate: _Function, inverse: _Function, undefined: Undefined
) -> MethodResult:
    """Affine least squares between coordinate(h) and coordinate(s) at the measured pixels, inverted everywhere.

    The method fails, with the reason in its status, if the two coefficients are not determined (fewer than two
    measurements, or the same prior at all of them), if the gain is not positive (eq:affine asks for alpha > 0), or if
    the inverse is not a finite positive depth at every valid pixel of the prior. The paper reports such images as
    failures; it does not define them, and these two conditions are our reading.

    With ``undefined="drop"`` the last two are no failures: any gain is accepted, and a pixel whose depth is not finite
    and positive is NaN and counted in the status.
    """
    require_choice("undefined", undefined, Undefined)
    relative = relative_depth(prior)
    known = np.isfinite(relative)
    paired = measured_pixels(prior, sparse) & known
    x, y = coordinate(relative[paired]), coordinate(np.asarray(sparse)[paired].astype(np.float64))
    if x.size < 2:
        return failure(prior.shape, "fewer than two usable measurements")
    if not np.ptp(x) > 0:
        return failure(prior.shape, "the prior is constant at the measurements")
    # Subtracting the means first avoids the cancellation that raw normal equations suffer when the offset dominates.
    # Sums are used instead of @, whose last digits depend on the number of threads.
    x_mean, y_mean = float(x.mean()), float(y.mean())
    gain = float(((x - x_mean) * (y - y_mean)).sum() / ((x - x_mean) ** 2).sum())
    parameters = {"gain": gain, "offset": y_mean - gain * x_mean}
    if undefined == "fail" and not gain > 0:
        # The reasons contain no numbers, so that a benchmark can count them; the parameters have the numbers.
        reason = "the fitted gain is not positive, so the depths would not have the order of the prior"
        return replace(failure(prior.shape, reason), parameters=parameters)
    depth = np.full(prior.shape, np.nan, np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        values = inverse(gain * (coordinate(relative[known]) - x_mean) + y_mean).astype(np.float32)
    usable = (values > 0) & np.isfinite(values)
    unusable = int(np.count_nonzero(~usable))
    if undefined == "fail" and unusable:
        reason = "the fitted line gives no positive finite depth at some valid pixels of the prior"
        return replace(failure(prior.shape, reason), parameters={**parameters, "undefined": float(unusable)})
    depth[known] = np.where(usable, values, np.nan)
    return MethodResult(depth, pixel_status(unusable, depth.size), parameters=parameters)
