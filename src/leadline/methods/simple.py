"""leadline's own presets as methods, and baselines with one curve for the whole image.

The baselines are the prior as it is, and least squares in disparity, depth and log depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior
from leadline.methods import MethodResult, failure, measured_pixels, pixel_status, relative_depth

# The pipeline is imported inside the functions: it imports numba, which is slow and not needed to list the methods.
if TYPE_CHECKING:
    from leadline.core.fit.estimator import Fit

_Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def response(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | str = "paper") -> MethodResult:
    """The calibrated prior: `calibrated` of `leadline.align`."""
    from leadline.core.pipeline import align

    found = align(prior, sparse, options=options)
    depth = np.asarray(found.calibrated, np.float32)
    return MethodResult(depth, str(found.fit.status), parameters=_parameters(found.fit))


def ours(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | str = "paper") -> MethodResult:
    """The paper's method, or another preset or options: `depth` of `leadline.complete`."""
    from leadline.core.pipeline import complete

    completion = complete(prior, sparse, options=options)
    status = f"{completion.fit.status}; {completion.reconstruction.status}"
    return MethodResult(np.asarray(completion.depth, np.float32), status, parameters=_parameters(completion.fit))


def best(prior: Prior, sparse: FloatArray) -> MethodResult:
    """`depth` of `leadline.complete` with its default options."""
    return ours(prior, sparse, options="best")


def _parameters(fit: Fit) -> dict[str, float]:
    return {name: float(getattr(fit.response, name)) for name in ("exponent", "gain", "offset", "scale")}


def raw(prior: Prior, sparse: FloatArray) -> MethodResult:
    """The prior's own depth. The measurements are checked for their shape but not used, so it is not metric."""
    measured_pixels(prior, sparse)
    return MethodResult(relative_depth(prior).astype(np.float32), "ok: not metric")


def gdisp(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Least squares in disparity, 1/s = gain / h + offset (GDisp)."""
    return _fit_coordinate(prior, sparse, np.reciprocal, np.reciprocal)


def gmetric(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Least squares in depth, s = gain h + offset (GMetric)."""
    return _fit_coordinate(prior, sparse, np.positive, np.positive)


def glog(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Least squares in log depth, log s = gain log h + offset (GLog)."""
    return _fit_coordinate(prior, sparse, np.log, np.exp)


def _fit_coordinate(prior: Prior, sparse: FloatArray, coordinate: _Function, inverse: _Function) -> MethodResult:
    """Affine least squares between coordinate(h) and coordinate(s) at the measured pixels, inverted everywhere.

    A pixel whose depth is not finite and positive is NaN and counted in the status. With fewer than two measurements,
    or where the prior is the same at all of them, the two coefficients are not determined and the method fails.
    """
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
    depth = np.full(prior.shape, np.nan, np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        values = inverse(gain * (coordinate(relative[known]) - x_mean) + y_mean).astype(np.float32)
    usable = (values > 0) & np.isfinite(values)
    depth[known] = np.where(usable, values, np.nan)
    status = pixel_status(int(np.count_nonzero(~usable)), depth.size)
    return MethodResult(depth, status, parameters={"gain": gain, "offset": y_mean - gain * x_mean})
