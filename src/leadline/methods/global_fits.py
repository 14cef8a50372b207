"""One curve for the whole image: the raw prior, the three fixed coordinates, and the adaptive response.

`ours`, the response followed by the residual's reconstruction, stands here too, since it is the same call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError
from leadline.core.options import CompletionOptions
from leadline.core.prior import Prior
from leadline.methods import MethodResult

if TYPE_CHECKING:
    from leadline.core.fit.estimator import Fit
    from leadline.core.pipeline import Completion

_Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def raw(prior: Prior, sparse: FloatArray) -> MethodResult:
    """The prior's own depth, as it is: the measurements are checked for shape and not used, so it is not metric."""
    begun = time.perf_counter()
    measured_pixels(prior, sparse)
    depth = relative_depth(prior).astype(np.float32)
    return MethodResult(depth, "ok: not metric", time.perf_counter() - begun, {})


def gdisp(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Least squares in disparity, 1/s = gain / h + offset (GDisp); see `_fixed` for failed pixels."""
    return _fixed(prior, sparse, np.reciprocal, np.reciprocal)


def gmetric(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Least squares in depth, s = gain h + offset (GMetric); see `_fixed` for failed pixels."""
    return _fixed(prior, sparse, np.positive, np.positive)


def glog(prior: Prior, sparse: FloatArray) -> MethodResult:
    """Least squares in log depth, log s = gain log h + offset (GLog); see `_fixed` for failed pixels."""
    return _fixed(prior, sparse, np.log, np.exp)


def response(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | None = None) -> MethodResult:
    """The adaptive response alone: `calibrated` of `leadline.complete`, without the rest of its work."""
    from leadline.core.pipeline import respond

    begun = time.perf_counter()
    fit, depth = respond(prior, sparse, options=options)
    return MethodResult(depth, str(fit.status), time.perf_counter() - begun, _response_parameters(fit))


def ours(prior: Prior, sparse: FloatArray, *, options: CompletionOptions | None = None) -> MethodResult:
    """The whole method: `depth` of `leadline.complete`."""
    completion, seconds = _complete(prior, sparse, options)
    status = f"{completion.fit.status}; {completion.reconstruction.status}"
    return MethodResult(np.asarray(completion.depth, np.float32), status, seconds, _response_parameters(completion.fit))


def best(prior: Prior, sparse: FloatArray) -> MethodResult:
    """The whole method with ``CompletionOptions.best()``."""
    return ours(prior, sparse, options=CompletionOptions.best())


def _fixed(prior: Prior, sparse: FloatArray, coordinate: _Function, inverse: _Function) -> MethodResult:
    """Affine least squares between coordinate(h) and coordinate(s) at the measured pixels, inverted everywhere.

    A pixel whose inverted depth is not finite and positive has failed: it is NaN and counted in the status. With
    fewer than two measurements, or where the prior is the same at all of them, the two coefficients are not
    determined and every pixel fails.
    """
    begun = time.perf_counter()
    relative = relative_depth(prior)
    known = np.isfinite(relative)
    paired = measured_pixels(prior, sparse) & known
    count = int(np.count_nonzero(paired))
    x, y = coordinate(relative[paired]), coordinate(np.asarray(sparse)[paired].astype(np.float64))
    if count < 2 or not np.ptp(x) > 0:
        why = "fewer than two usable measurements" if count < 2 else "the prior is constant at the measurements"
        empty = np.full(prior.shape, np.nan, np.float32)
        return MethodResult(empty, f"failed: {why}", time.perf_counter() - begun, {})
    # Around the means: the normal equations of raw values lose the gain when the offset dominates. Sums and not @,
    # whose last digits depend on the number of threads.
    x_mean, y_mean = float(x.mean()), float(y.mean())
    gain = float(((x - x_mean) * (y - y_mean)).sum() / ((x - x_mean) ** 2).sum())
    depth = np.full(prior.shape, np.nan)
    with np.errstate(divide="ignore", over="ignore"):
        values = inverse(gain * (coordinate(relative[known]) - x_mean) + y_mean)
        usable = (values > 0) & (values.astype(np.float32) > 0) & np.isfinite(values.astype(np.float32))
    depth[known] = np.where(usable, values, np.nan)
    failed = int(np.count_nonzero(~usable))
    status = f"ok, but {failed} of {depth.size} pixels came out non-positive or infinite" if failed else "ok"
    parameters = {"gain": gain, "offset": y_mean - gain * x_mean}
    return MethodResult(depth.astype(np.float32), status, time.perf_counter() - begun, parameters)


def relative_depth(prior: Prior) -> NDArray[np.float64]:
    """The prior's depth in float64, NaN where it is not to be used."""
    depth = prior.depth()
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float64)


def measured_pixels(prior: Prior, sparse: FloatArray) -> NDArray[np.bool_]:
    sparse = as_map(sparse, "sparse")
    if sparse.shape != prior.shape:
        raise InputError(f"`sparse` must have the prior's shape {prior.shape}, got {sparse.shape} instead.")
    return np.isfinite(sparse) & (sparse > 0)


def _complete(prior: Prior, sparse: FloatArray, options: CompletionOptions | None) -> tuple[Completion, float]:
    # Here and not above: it brings in numba, which a listing of the methods should not wait for.
    from leadline.core.pipeline import complete

    begun = time.perf_counter()
    completion = complete(prior, sparse, options=options)
    return completion, time.perf_counter() - begun


def _response_parameters(fit: Fit) -> dict[str, float]:
    return {name: float(getattr(fit.response, name)) for name in ("exponent", "gain", "offset", "scale")}
