"""The method from end to end: fit a response, calibrate the prior with it, and interpolate the remaining residual.

`complete` is one function call per stage. The stages are functions of `Pairs`, so that `align`, the uncertainty
estimate and `Stream` use the same ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import NotConverged, Status
from leadline.base.jit import numba_lock
from leadline.core.fit.calibration import calibrate
from leadline.core.fit.estimator import Fit, FitStatus, fit_response
from leadline.core.fit.response import Response
from leadline.core.inputs import Inputs, Pairs, check_inputs
from leadline.core.neighbours import MIN_NEIGHBOURS
from leadline.core.noise import Noise, measurement_weights
from leadline.core.options import CompletionOptions, FitOptions, OutlierPolicy, ReconstructionOptions, as_options
from leadline.core.outliers import Outliers, find_disagreeing, find_isolated
from leadline.core.prior import Prior
from leadline.core.results import Alignment, Completion
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.reconstruction import Reconstruction, SolverCache, reconstruct
from leadline.core.uncertainty import log_deviation

ROBUST_FIT = FitOptions.paper(residual="log", loss="cauchy", tolerance=1e-6)
"""The fit whose residuals the outlier tests use: outliers have little influence on it."""
MIN_SCREENED = 50
"""Pairs above which they are screened before the fit: with fewer, neighbours are too far apart to be compared."""
MAX_SCREENING_FIT = 1000
"""Pairs that are enough for the robust fit before the screening, which is only a starting point."""
LEFT_OUT_TOLERANCE = 3e-3
"""Tolerance of the solves that leave measurements out. It changes sigma by 0.1 % with the paper's system; with `best`
by 7 % on average and 17 % in single scenes, and the coverage by one percentage point at most."""


def complete(
    prior: ArrayLike | Prior,
    sparse: ArrayLike,
    *,
    valid: ArrayLike | None = None,
    noise: Noise | float | ArrayLike | None = None,
    uncertainty: bool = False,
    options: CompletionOptions | str = "best",
) -> Completion:
    """Dense metric depth from a relative prior and sparse measurements.

    Parameters
    ----------
    prior : (H, W) array or Prior
        Relative depth, larger is farther; wrap it in `Prior` if it is a disparity or a log depth. Pixels that
        are NaN, infinite or not positive are invalid.
    sparse : (H, W) array
        Metres; 0, negative, NaN and inf mean "not measured".
    valid : (H, W) bool array, optional
        False where neither the prior nor the measurement may be used.
    noise : float, Noise or (H, W) array, optional
        Standard deviation of the measurements in metres. Measurements with a smaller one have more weight in the fit,
        and the depth follows each only to within its noise. Where it is 0 the measurement is kept exactly. Default: all
        are kept exactly.
    uncertainty : bool
        Also estimate the standard deviation of each depth, `Completion.sigma`, at three times the cost.
    options : "best", "paper" or CompletionOptions
        A preset or single options.

    Raises
    ------
    InputError
        If shapes or types do not fit together.
    NotConverged
        Only with ``options.strict``: a fallback was taken or the solve stopped early.

    Examples
    --------
    >>> prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
    >>> sparse = np.zeros((48, 64))
    >>> sparse[::8, ::8] = 3.0 * prior[::8, ::8]
    >>> result = complete(prior, sparse)
    >>> bool(np.allclose(result.depth, 3.0 * prior, rtol=1e-4))
    True
    """
    options = as_options(options)
    inputs = check_inputs(prior, sparse, valid, noise)
    pairs, outliers = remove_outliers(inputs.pairs, options.outliers)
    fit = fit_pairs(pairs, options.fit)
    calibrated = calibrate_prior(pairs, fit)
    depth, reconstruction = reconstruct_depth(pairs, calibrated, options.reconstruction)
    sigma = estimate_sigma(pairs, fit, depth, options) if uncertainty else None
    return assemble(inputs, depth, calibrated, fit, reconstruction, options, outliers, sigma)


def align(
    prior: ArrayLike | Prior,
    sparse: ArrayLike,
    *,
    valid: ArrayLike | None = None,
    noise: Noise | float | ArrayLike | None = None,
    options: CompletionOptions | str = "best",
) -> Alignment:
    """The prior brought to metres by the fitted response alone; the arguments and errors are those of `complete`.

    Examples
    --------
    >>> prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
    >>> sparse = np.zeros((48, 64))
    >>> sparse[::8, ::8] = 3.0 * prior[::8, ::8]
    >>> alignment = align(prior, sparse, options="paper")
    >>> alignment.fit.status.name, bool(np.allclose(alignment.calibrated, 3.0 * prior))
    ('CONVERGED', True)
    """
    options = as_options(options)
    pairs, _ = remove_outliers(check_inputs(prior, sparse, valid, noise).pairs, options.outliers)
    fit = fit_pairs(pairs, options.fit)
    return Alignment(fit, calibrate_prior(pairs, fit))


def remove_outliers(pairs: Pairs, policy: OutlierPolicy) -> tuple[Pairs, Outliers | None]:
    """The pairs without outliers, and the outliers; all pairs and None with the policy ``keep``."""
    if policy == "keep":
        return pairs, None
    residuals = pairs.log_residuals(fit_pairs(pairs, ROBUST_FIT).response)
    with numba_lock():
        outliers = find_isolated(residuals, pairs.where, pairs.shape, pairs.log_sigma)
    return pairs.subset(~np.isin(pairs.where, outliers.where)), outliers


def fit_pairs(pairs: Pairs, options: FitOptions, start: Response | None = None) -> Fit:
    """The fitted response. With ``options.screen_outliers``, pairs that disagree with their neighbours have weight 0.

    `start` is a response to start from in place of ``options.starts``, such as that of the previous frame.
    """
    if not (options.screen_outliers and pairs.count > MIN_SCREENED):
        return _fit(pairs, options, start)
    some = np.zeros(pairs.count, np.bool_)
    some[:: -(-pairs.count // MAX_SCREENING_FIT)] = True
    robust = _fit(pairs.subset(some), ROBUST_FIT)
    residuals = pairs.log_residuals(robust.response).astype(np.float64)
    with numba_lock():
        agreeing = ~find_disagreeing(residuals, pairs.neighbours)
    if start is None and robust.status is FitStatus.CONVERGED:
        start = robust.response
    fit = _fit(pairs.subset(agreeing), options, start)
    weights = np.zeros(pairs.count)
    weights[agreeing] = fit.weights
    return replace(fit, weights=weights, count=pairs.count)


def _fit(pairs: Pairs, options: FitOptions, start: Response | None = None) -> Fit:
    groups = None if options.least_squares else pairs.tiles
    prior_range = pairs.prior_range if pairs.count else None
    return fit_response(
        pairs.paired_prior, pairs.measured, prior_range, options, sigma=pairs.sigma, groups=groups, start=start
    )


def calibrate_prior(pairs: Pairs, fit: Fit) -> NDArray[np.float32]:
    """The prior in metres, t of eq:dense, (H, W); NaN at invalid pixels, and everywhere without a measurement."""
    calibrated = np.full(pairs.shape, np.nan, np.float32)
    if fit.status is not FitStatus.NO_MEASUREMENTS:
        with numba_lock():
            calibrate(pairs.prior, calibrated, *fit.response.kernel_args(pairs.prior_range))
    return calibrated


def reconstruct_depth(
    pairs: Pairs, calibrated: NDArray[np.float32], options: ReconstructionOptions, cache: SolverCache | None = None
) -> tuple[FloatArray, Reconstruction]:
    """The completed depth, (H, W) in metres, and the result of the solve.

    `cache` holds the linear system and the solution of the previous frame, and receives those of this one.
    """
    if pairs.count == 0:
        nothing = Reconstruction(SolveStatus.NOTHING_TO_SOLVE, 0, 0.0, ())
        return calibrated.astype(pairs.measured.dtype), nothing
    extra: dict[str, Any] = {}
    with numba_lock():
        if pairs.log_sigma is not None:
            residuals = np.log(pairs.measured / calibrated.flat[pairs.where])
            screening = options.weight_data / options.weight_gradient
            weights = measurement_weights(residuals, pairs.log_sigma, pairs.where, pairs.shape, screening)
            extra = {"weights": weights}
        if options.system == "adaptive" and pairs.count > MIN_NEIGHBOURS:
            extra["neighbours"] = pairs.neighbours
        return reconstruct(calibrated, pairs.where, pairs.measured, options, cache=cache, **extra)


def estimate_sigma(pairs: Pairs, fit: Fit, depth: FloatArray, options: CompletionOptions) -> NDArray[np.float32]:
    """One standard deviation of each depth in metres, (H, W), from completions that leave measurements out."""
    tolerance = max(options.reconstruction.tolerance, LEFT_OUT_TOLERANCE)
    reconstruction = replace(options.reconstruction, tolerance=tolerance)
    fit_options = replace(options.fit, screen_outliers=False)  # the pairs of weight 0 were found with all neighbours
    start = fit.response if fit.status is FitStatus.CONVERGED else None

    def complete_without(left_out: BoolArray) -> FloatArray:
        refit = fit_pairs(pairs.subset(~left_out & (fit.weights > 0)), fit_options, start)
        remaining = pairs.subset(~left_out)
        return reconstruct_depth(remaining, calibrate_prior(remaining, refit), reconstruction)[0]

    relative = log_deviation(complete_without, depth, pairs.where, pairs.measured, pairs.log_sigma)
    return (relative * depth).astype(np.float32)


def assemble(
    inputs: Inputs,
    depth: FloatArray,
    calibrated: NDArray[np.float32],
    fit: Fit,
    reconstruction: Reconstruction,
    options: CompletionOptions,
    outliers: Outliers | None,
    sigma: NDArray[np.float32] | None,
) -> Completion:
    """The `Completion`, with unpaired measurements written into `depth`; raises `NotConverged` with ``strict``."""
    depth.flat[inputs.unpaired] = inputs.measurements.flat[inputs.unpaired]
    result = Completion(
        depth, calibrated, fit, reconstruction, options, inputs.unpaired.size, inputs.invalid, outliers, sigma
    )
    if options.strict and not result.converged:
        raise NotConverged(
            f"strict: the fit is {_message(fit.status)}; the solve is {_message(reconstruction.status)}."
        )
    return result


def _message(status: Status) -> str:
    return f"{status.name.lower()} ({status.value})"
