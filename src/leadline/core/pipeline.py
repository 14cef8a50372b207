"""The method from end to end: fit a response, calibrate the prior with it, and interpolate the remaining residual.

The stages are functions of `Pairs`, so `complete`, `align`, the uncertainty estimate and `Stream` use the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leadline.base.arrays import BoolArray, Float32Array, FloatArray
from leadline.base.errors import NotConverged, Wording, param, warn_caller
from leadline.base.strict_json import json_ready
from leadline.core.fit.calibration import calibrate
from leadline.core.fit.estimator import Fit, FitStatus, fit_response
from leadline.core.fit.response import Response
from leadline.core.inputs import Inputs, Pairs, check_inputs
from leadline.core.neighbours import MIN_NEIGHBOURS
from leadline.core.noise import Noise, measurement_weights
from leadline.core.options import CompletionOptions, FitOptions, OutlierPolicy, ReconstructionOptions, as_options
from leadline.core.outliers import ROBUST_FIT, Outliers, find_disagreeing, find_isolated
from leadline.core.prior import Prior, PriorKind
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.reconstruction import (
    Reconstruction,
    ResidualProblem,
    SolverCache,
    reconstruct,
    residual_problem,
)
from leadline.core.uncertainty import log_deviation

MIN_SCREENED = 50
"""Pairs above which they are screened before the fit: with fewer, neighbours are too far apart to be compared."""
MAX_SCREENED = 20_000
"""Pairs that are enough for the screening and the fit; with more, a sample of them is used. On 17 scenes at half their
size with every pixel measured but for holes, errors are 1.000 (weak prior) and 1.003 (strong) of those with all."""
MAX_SCREENING_FIT = 1000
"""Pairs that are enough for the robust fit before the screening, which is only a starting point."""
SCREENING_FIT = replace(ROBUST_FIT, starts=(-1.0, 1.0), tolerance=1e-4)
"""That fit, which continues only from the better start. With a tolerance of 1e-3 one of 34 errors outside of the
measured part of an image grows by 6 %."""
LEFT_OUT_TOLERANCE = 3e-3
"""Tolerance of the solves that leave measurements out. It changes sigma by 0.1 % with the paper's system; with `best`
by 7 % on average and 17 % in single scenes, and the coverage by one percentage point at most."""


@dataclass(frozen=True)
class Alignment:
    """The prior brought to metres by a fitted response, without the reconstruction of the residual.

    Attributes
    ----------
    fit : Fit
    calibrated : (H, W) float32
        Metres: t of eq:dense. NaN where the prior is invalid, and everywhere if there is no measurement.
    """

    fit: Fit
    calibrated: Float32Array


@dataclass(frozen=True)
class Completion:
    """Dense metric depth, with the results of each stage.

    Attributes
    ----------
    depth : (H, W), dtype of the measurements
        Metres. Equal to the measurement, bit for bit, wherever one was taken as exact and not left out as an outlier;
        positive and finite wherever the prior is valid; NaN elsewhere.
    calibrated : (H, W) float32
        Metres: the response stage alone, t of eq:dense.
    fit : Fit
    reconstruction : Reconstruction
    options : CompletionOptions
    unpaired : int
        Measurements at pixels without a valid prior. They are in `depth`, but are used neither in the fit nor in the
        solve.
    invalid : int
        Pixels without a valid prior.
    outliers : Outliers or None
        The measurements that were left out; None with ``options.outliers="keep"``.
    sigma : (H, W) float32 or None
        One standard deviation of `depth` in metres, if it was requested; see `leadline.core.uncertainty`. NaN where
        the prior is invalid, and everywhere with fewer than eight measurements.
    chosen_kind : {"depth", "disparity"} or None
        What a prior of the kind "auto" was taken for; None if its kind was stated.
    """

    depth: FloatArray
    calibrated: Float32Array
    fit: Fit
    reconstruction: Reconstruction
    options: CompletionOptions
    unpaired: int
    invalid: int
    outliers: Outliers | None = None
    sigma: Float32Array | None = None
    chosen_kind: PriorKind | None = None

    @property
    def converged(self) -> bool:
        """Whether the fit estimated all parameters and the solve reached its tolerance."""
        return self.fit.status is FitStatus.CONVERGED and self.reconstruction.converged

    def __str__(self) -> str:
        return self.summary()

    def summary(self, wording: Wording | None = None) -> str:
        """A few lines for a person, with parameter names in the words of a front end."""
        height, width = self.depth.shape
        response = self.fit.response
        solve = self.reconstruction
        lines = [
            f"{width} x {height} pixels, {_counted(self.fit.count, 'measurement')}"
            + (f", {self.outliers.where.size} more left out as outliers" if self.outliers is not None else "")
            + (f", {self.unpaired} more where the prior is invalid" if self.unpaired else "")
            + (f", {self.invalid} pixels without a prior" if self.invalid else ""),
            f"fit    {self.fit.status.describe(wording)}",
            f"       exponent {response.exponent:.4g}, gain {response.gain:.4g}, offset {response.offset:.4g}, "
            f"scale {response.scale:.4g} m, rmse {self.fit.rmse:.4g} m",
            f"solve  {solve.status.describe(wording)} ({_counted(solve.iterations, 'iteration')}, "
            f"residual {solve.residual:.1e})",
        ]
        if self.chosen_kind is not None:
            rises = "rises" if self.chosen_kind == "depth" else "falls"
            lines.insert(1, f"prior  taken as {self.chosen_kind}, because it {rises} where the measured depth rises")
        lines += [] if self.outliers is None else self.outliers.describe_regions()
        if self.sigma is not None and np.isfinite(self.sigma).any():
            lines.append(f"sigma  {np.nanmedian(self.sigma):.4g} m, median over the image")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything except the maps, ready for JSON: numbers that are not finite are None."""
        values = {
            "fit": self.fit.to_dict(),
            "reconstruction": self.reconstruction.to_dict(),
            "unpaired": self.unpaired,
            "invalid": self.invalid,
            "outliers": None if self.outliers is None else self.outliers.to_dict(),
            "prior_kind_chosen": self.chosen_kind,
            "options": asdict(self.options),
        }
        return json_ready(values)  # type: ignore[no-any-return]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def complete(
    prior: ArrayLike | Prior,
    sparse: ArrayLike,
    *,
    valid: ArrayLike | None = None,
    noise: Noise | float | ArrayLike | None = None,
    unit: str | float | None = None,
    uncertainty: bool = False,
    options: CompletionOptions | str = "best",
) -> Completion:
    """Dense metric depth from a relative prior and sparse measurements.

    Parameters
    ----------
    prior : (H, W) array or Prior
        Relative depth, larger is farther; wrap it in `Prior` if it is a disparity or a log depth, or with
        ``kind="auto"`` if that is not known. Pixels that are NaN, infinite or not positive are invalid.
    sparse : (H, W) array
        Metres, or the counts of `unit`; 0, negative, NaN and inf mean "not measured".
    valid : (H, W) bool array, optional
        False where neither the prior nor the measurement may be used.
    noise : float, Noise or (H, W) array, optional
        Standard deviation of the measurements in metres. Measurements with a smaller one have more weight in the fit,
        and the depth follows each only to within its noise. Where it is 0 the measurement is kept exactly. Default: all
        are kept exactly.
    unit : str or float, optional
        Unit of `sparse`: "mm", "cm", "m", "kitti" (1/256 m), "tum" (1/5000 m), or metres per count. Default: metres,
        with a warning if `sparse` holds integers or depths beyond a kilometre.
    uncertainty : bool
        Also estimate the standard deviation of each depth, `Completion.sigma`, at three times the cost.
    options : "best", "paper" or CompletionOptions
        A preset or single options.

    Raises
    ------
    InputError
        If shapes or types do not fit together.
    NotConverged
        Only with ``options.strict``: a fallback was used or the solve stopped early.

    Warns
    -----
    InputWarning
        The unit or the kind of the prior is probably another one.

    Examples
    --------
    >>> prior = np.linspace(1.0, 2.0, 64 * 48).reshape(48, 64)
    >>> sparse = np.zeros((48, 64))
    >>> sparse[::8, ::8] = 3.0 * prior[::8, ::8]
    >>> result = complete(prior, sparse)
    >>> bool(np.allclose(result.depth, 3.0 * prior, rtol=1e-4))
    True
    """
    from leadline.core.compilation import compile_ahead  # here, because it imports this module

    options = as_options(options)
    inputs = check_inputs(prior, sparse, valid, noise, unit)
    compile_ahead(options)
    pairs, outliers = remove_outliers(inputs.pairs, options.outliers)
    fit = fit_pairs(pairs, options.fit)
    warn_about_prior(fit)
    return finish(inputs, pairs, outliers, fit, options, uncertainty)


def align(
    prior: ArrayLike | Prior,
    sparse: ArrayLike,
    *,
    valid: ArrayLike | None = None,
    noise: Noise | float | ArrayLike | None = None,
    unit: str | float | None = None,
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
    pairs, _ = remove_outliers(check_inputs(prior, sparse, valid, noise, unit).pairs, options.outliers)
    fit = fit_pairs(pairs, options.fit)
    warn_about_prior(fit)
    return Alignment(fit, calibrate_prior(pairs, fit))


def warn_about_prior(fit: Fit) -> None:
    """Warn about a prior that is probably a disparity and was taken as depth, or the other way round."""
    if fit.status is FitStatus.ANTI_CORRELATED:
        text = (
            "the prior falls where the measured depth rises, so only its scale could be fitted. Pass a leadline.Prior "
            f"of {param('kind', 'disparity')} if it is a disparity, of {param('kind', 'depth')} if it is depth, or of "
            f"{param('kind', 'auto')}, which decides that itself."
        )
        warn_caller(text, "leadline.core")


def remove_outliers(pairs: Pairs, policy: OutlierPolicy) -> tuple[Pairs, Outliers | None]:
    """The pairs without outliers, and the outliers; all pairs and None with the policy ``keep``."""
    if policy == "keep":
        return pairs, None
    if policy == "regions":
        from leadline.core.regions import MAX_FITTED, find_regions  # SciPy's image filters take long to import

        residuals = pairs.log_residuals(fit_pairs(pairs.sample(MAX_FITTED), ROBUST_FIT).response)
        outliers = find_regions(residuals, np.log(pairs.measured) - residuals, pairs.where, pairs.shape)
    else:
        residuals = pairs.log_residuals(fit_pairs(pairs, ROBUST_FIT).response)
        outliers = find_isolated(residuals, pairs.where, pairs.shape, pairs.log_sigma)
    return pairs.subset(~np.isin(pairs.where, outliers.where)), outliers


def fit_pairs(pairs: Pairs, options: FitOptions, start: Response | None = None) -> Fit:
    """The fitted response. With ``options.screen_outliers``, pairs that disagree with their neighbours have weight 0.

    `start` is a response to start from in place of ``options.starts``, such as that of the previous frame.
    """
    if not (options.screen_outliers and pairs.count > MIN_SCREENED):
        return _fit(pairs, options, start)
    fitted = pairs.sample(MAX_SCREENED)
    some = np.zeros(fitted.count, np.bool_)
    some[:: -(-fitted.count // MAX_SCREENING_FIT)] = True
    robust = _fit(fitted.subset(some), SCREENING_FIT, start, briefly=True)
    residuals = fitted.log_residuals(robust.response).astype(np.float64)
    agreeing = ~find_disagreeing(residuals, fitted.neighbours)
    if start is None and robust.status is FitStatus.CONVERGED:
        start = robust.response
    fit = _fit(fitted.subset(agreeing), options, start)
    of_fitted = np.zeros(fitted.count)
    of_fitted[agreeing] = fit.weights
    weights = np.full(pairs.count, np.nan)
    weights[pairs.sampled(MAX_SCREENED)] = of_fitted
    return replace(fit, weights=weights, count=pairs.count)


def _fit(pairs: Pairs, options: FitOptions, start: Response | None = None, *, briefly: bool = False) -> Fit:
    groups = None if options.least_squares else pairs.tiles
    prior_range = pairs.prior_range if pairs.count else None
    numbers = pairs.paired_prior, pairs.measured, prior_range
    return fit_response(*numbers, options, sigma=pairs.sigma, groups=groups, start=start, briefly=briefly)


def calibrate_prior(pairs: Pairs, fit: Fit, earlier: Response | None = None) -> Float32Array:
    """The prior in metres, t of eq:dense, (H, W); NaN at invalid pixels.

    Without a measurement it is that of an `earlier` response, and NaN everywhere without one.
    """
    response = earlier if fit.status is FitStatus.NO_MEASUREMENTS else fit.response
    if response is None or pairs.prior_range[0] > pairs.prior_range[1]:  # or no pixel has a valid prior
        return np.full(pairs.shape, np.nan, np.float32)
    calibrated = np.empty(pairs.shape, np.float32)
    calibrate(pairs.prior, calibrated, *response.kernel_args(pairs.prior_range))
    return calibrated


def reconstruct_depth(
    pairs: Pairs, calibrated: Float32Array, options: ReconstructionOptions, cache: SolverCache | None = None
) -> tuple[FloatArray, Reconstruction]:
    """The completed depth, (H, W) in metres, and the result of the solve.

    `cache` holds the linear system and the solution of the previous frame, and receives those of this one.
    """
    if pairs.count == 0:
        return calibrated.astype(pairs.measured.dtype), Reconstruction(SolveStatus.NOTHING_TO_SOLVE, 0, 0.0, ())
    known = known_of_measurements(pairs, calibrated, options)
    return reconstruct(calibrated, pairs.where, pairs.measured, options, cache=cache, **known)


def choose_system(
    pairs: Pairs, calibrated: Float32Array, options: ReconstructionOptions, *, halve: bool = True
) -> ResidualProblem:
    """The residual system that `reconstruct_depth` solves, for solvers of other packages; needs a measurement.

    Without `halve` it has the resolution of the image.
    """
    known = known_of_measurements(pairs, calibrated, options)
    return residual_problem(calibrated, pairs.where, pairs.measured, options, halve=halve, **known)


def known_of_measurements(pairs: Pairs, calibrated: Float32Array, options: ReconstructionOptions) -> dict[str, Any]:
    """Weights that follow from the noise, and neighbours if the system needs them: arguments of `reconstruct`."""
    known: dict[str, Any] = {}
    if pairs.log_sigma is not None:
        residuals = np.log(pairs.measured / calibrated.flat[pairs.where])
        screening = options.weight_data / options.weight_gradient
        known["weights"] = measurement_weights(residuals, pairs.log_sigma, pairs.where, pairs.shape, screening)
    if options.system == "adaptive" and MIN_NEIGHBOURS < pairs.count <= MAX_SCREENED:
        known["neighbours"] = pairs.neighbours  # of more pairs the screening has not computed them, nor keeps them
    return known


def estimate_sigma(pairs: Pairs, fit: Fit, depth: FloatArray, options: CompletionOptions) -> Float32Array:
    """One standard deviation of each depth in metres, (H, W), from completions that leave measurements out."""
    tolerance = max(options.reconstruction.tolerance, LEFT_OUT_TOLERANCE)
    reconstruction = replace(options.reconstruction, tolerance=tolerance)
    fit_options = replace(options.fit, screen_outliers=False)  # screened pairs have weight 0 and are left out below
    start = fit.response if fit.status is FitStatus.CONVERGED else None

    def complete_without(left_out: BoolArray) -> FloatArray:
        refit = fit_pairs(pairs.subset(~left_out & (fit.weights > 0)), fit_options, start)
        remaining = pairs.subset(~left_out)
        return reconstruct_depth(remaining, calibrate_prior(remaining, refit), reconstruction)[0]

    relative = log_deviation(complete_without, depth, pairs.where, pairs.measured, pairs.log_sigma)
    return (relative * depth).astype(np.float32)


def finish(
    inputs: Inputs,
    pairs: Pairs,
    outliers: Outliers | None,
    fit: Fit,
    options: CompletionOptions,
    uncertainty: bool,
    earlier: Response | None = None,
    reconstruct: Callable[..., tuple[FloatArray, Reconstruction]] = reconstruct_depth,
) -> Completion:
    """All stages after the fit, and measurements without a prior; raises `NotConverged` with ``strict``.

    A stream gives the `earlier` response, see `calibrate_prior`, and a `reconstruct` that uses the previous frame.
    """
    calibrated = calibrate_prior(pairs, fit, earlier)
    depth, reconstruction = reconstruct(pairs, calibrated, options.reconstruction)
    sigma = estimate_sigma(pairs, fit, depth, options) if uncertainty else None
    depth.flat[inputs.unpaired] = inputs.measurements.flat[inputs.unpaired]
    counts = inputs.unpaired.size, inputs.invalid
    result = Completion(depth, calibrated, fit, reconstruction, options, *counts, outliers, sigma, inputs.chosen_kind)
    if options.strict and not result.converged:
        fitted, solved = (f"{status.name.lower()} ({status.value})" for status in (fit.status, reconstruction.status))
        raise NotConverged(f"strict: the fit is {fitted}; the solve is {solved}.")
    return result
