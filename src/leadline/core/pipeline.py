"""The whole method: calibrate the prior by a fitted response, then spread what is left."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import BoolArray, FloatArray, as_map, as_mask
from leadline.base.errors import InputError, NotConverged
from leadline.base.jit import one_caller
from leadline.base.strict_json import json_ready
from leadline.core.fit.calibration import SMALLEST, VALID_BITS, calibrate, contiguous, valid_bits
from leadline.core.fit.estimator import Fit, FitStatus, fit_response
from leadline.core.fit.response import Response
from leadline.core.neighbours import FEWEST, Neighbours
from leadline.core.noise import Noise, precision, sigma_at
from leadline.core.options import CompletionOptions, FitOptions
from leadline.core.outliers import Rejected, contradictions
from leadline.core.prior import Prior
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.reconstruction import Kept, Reconstruction, reconstruct
from leadline.core.uncertainty import log_deviation

# Tiles along each side of the image for the fit's `groups`: larger than most surfaces, and enough of them to count.
# Between 4 and 12 the accuracy on real scenes is the same to 0.3 %.
TILES = 6
ROBUST = FitOptions(residual="log", loss="cauchy", tolerance=1e-6)
"""The fit by which measurements are judged: one that wrong ones do not draw to themselves."""
LEFT_OUT_TOLERANCE = 3e-3
"""Of the solves without some measurements. It changes sigma by 0.1 % with the paper's system; with `best` by 7 % on the
average, 17 % in single scenes, and its coverage by a point at most."""
VETTED, VETTING = 50, 1000
"""Measurements beyond which each has neighbours to be judged by, and how many are enough for that first fit."""


@dataclass(frozen=True)
class Completion:
    """Dense metric depth, and how it came about.

    Attributes
    ----------
    depth : (H, W), dtype of the measurements
        Metres. Equal to the measurement, bit for bit, where there is one that is taken as exact and not left out;
        positive and finite wherever the prior is valid; NaN elsewhere.
    calibrated : (H, W) float32
        Metres: the response stage alone, t of eq:dense.
    fit : Fit
    reconstruction : Reconstruction
    unpaired : int
        Measurements at pixels without a valid prior: in `depth`, but without a part in the fit or the solve.
    invalid : int
        Pixels without a valid prior.
    rejected : Rejected or None
        The measurements left out, with ``options.reject``.
    sigma : (H, W) float32 or None
        One standard deviation of `depth` in metres, if it was asked for; see `uncertainty.py`. NaN where the
        prior is invalid, and everywhere with fewer than eight measurements.
    """

    depth: FloatArray
    calibrated: NDArray[np.float32]
    fit: Fit
    reconstruction: Reconstruction
    options: CompletionOptions
    unpaired: int
    invalid: int
    rejected: Rejected | None = None
    sigma: NDArray[np.float32] | None = None

    def __str__(self) -> str:
        height, width = self.depth.shape
        response = self.fit.response
        solve = self.reconstruction
        lines = [
            f"{width} x {height} pixels, {self.fit.count} measurements"
            + (f", {self.rejected.where.size} more left out as wrong" if self.rejected is not None else "")
            + (f", {self.unpaired} more where the prior is invalid" if self.unpaired else "")
            + (f", {self.invalid} pixels without a prior" if self.invalid else ""),
            f"fit    {self.fit.status}",
            f"       exponent {response.exponent:.4g}, gain {response.gain:.4g}, offset {response.offset:.4g}, "
            f"scale {response.scale:.4g} m, rmse {self.fit.rmse:.4g} m",
            f"solve  {solve.status} ({solve.iterations} iterations, residual {solve.residual:.1e})",
        ]
        if self.sigma is not None and np.isfinite(self.sigma).any():
            lines.append(f"sigma  {np.nanmedian(self.sigma):.4g} m, the median over the image")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All but the maps, ready for JSON: what is not a number is None."""
        values = {
            "fit": self.fit.to_dict(),
            "reconstruction": self.reconstruction.to_dict(),
            "unpaired": self.unpaired,
            "invalid": self.invalid,
            "rejected": None if self.rejected is None else self.rejected.to_dict(),
            "options": asdict(self.options),
        }
        return json_ready(values)  # type: ignore[no-any-return]


def complete(
    prior: ArrayLike | Prior,
    sparse: ArrayLike,
    *,
    valid: ArrayLike | None = None,
    noise: Noise | float | ArrayLike | None = None,
    uncertainty: bool = False,
    options: CompletionOptions | None = None,
) -> Completion:
    """Dense metric depth from a relative prior and sparse measurements.

    Parameters
    ----------
    prior : (H, W) array or Prior
        Relative depth, larger is farther; wrap it in `Prior` if it is a disparity or a log depth. Pixels that
        are NaN, infinite or not positive are left out.
    sparse : (H, W) array
        Metres; 0, negative, NaN and inf mean "not measured".
    valid : (H, W) bool array, optional
        False where neither prior nor measurement is to be used.
    noise : float, Noise or (H, W) array, optional
        Standard deviation of the measurements in metres: the more certain ones count for more in the fit, and the
        depth passes them by no closer than that. Where it is 0 they are kept exactly. Default: all are kept exactly.
    uncertainty : bool
        Also estimate the standard deviation of each depth, `Completion.sigma`, at three times the cost.
    options : CompletionOptions, optional
        Default: the paper's.

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
    >>> bool(np.allclose(result.depth, 3.0 * prior))
    True
    """
    options = options or CompletionOptions()
    given = gather(prior, sparse, valid, noise, options)
    return given.completion(options, uncertainty, *given.pairs.complete(options))


def respond(
    prior: ArrayLike | Prior, sparse: ArrayLike, *, options: CompletionOptions | None = None
) -> tuple[Fit, NDArray[np.float32]]:
    """The response stage alone: the fit, and the calibrated prior t, (H, W) in metres; see `complete`."""
    options = options or CompletionOptions()
    return gather(prior, sparse, None, None, options).pairs.respond(options.fit)


@dataclass(frozen=True, eq=False)
class Pairs:
    """A prior with its valid range, and the measurements (flat indices, metres, sigma in metres) that meet it."""

    prior: FloatArray
    ends: tuple[float, float]
    where: NDArray[np.intp]
    measured: FloatArray
    sigma: NDArray[np.float64] | None

    @property
    def log_sigma(self) -> NDArray[np.float64] | None:
        return None if self.sigma is None else self.sigma / self.measured

    def only(self, keep: BoolArray) -> Pairs:
        sigma = None if self.sigma is None else self.sigma[keep]
        return replace(self, where=self.where[keep], measured=self.measured[keep], sigma=sigma)

    def fit(self, options: FitOptions, near: Response | None = None) -> Fit:
        if options.vetted and self.where.size > VETTED:
            confirmed, first = self.vetted()
            near = near or (first.response if first.status is FitStatus.CONVERGED else None)
            fit = self.only(confirmed).fit(replace(options, vetted=False), near)
            weights = np.zeros(confirmed.size)
            weights[confirmed] = fit.weights
            return replace(fit, weights=weights, count=confirmed.size)
        groups = None if options.least_squares else self.tiles()
        ends = self.ends if self.where.size else None
        h = self.prior.flat[self.where]
        return fit_response(h, self.measured, ends, options, sigma=self.sigma, groups=groups, near=near)

    def tiles(self) -> NDArray[np.intp]:
        return _tiles(self.where, self.prior.shape)

    def vetted(self) -> tuple[BoolArray, Fit]:
        """Which measurements their neighbours do not contradict, and the robust fit to some that it is judged by."""
        some = np.zeros(self.where.size, np.bool_)
        some[:: math.ceil(self.where.size / VETTING)] = True
        first = self.only(some).fit(ROBUST)
        residuals = np.log(self.measured / first.response(self.prior.flat[self.where])).astype(np.float64)
        with one_caller():
            return self.neighbours.confirm(residuals), first

    @cached_property
    def neighbours(self) -> Neighbours:
        return Neighbours(self.where, self.prior.shape)

    def contradictions(self) -> tuple[BoolArray, Rejected]:
        """Which measurements to keep, judged by a fit that wrong ones do not draw to themselves."""
        t = self.fit(ROBUST).response(self.prior.flat[self.where])
        with one_caller():
            return contradictions(np.log(self.measured / t), self.where, self.prior.shape, self.log_sigma)

    def respond(self, options: FitOptions) -> tuple[Fit, NDArray[np.float32]]:
        """The fit, and the calibrated prior: NaN everywhere without a measurement."""
        fit = self.fit(options)
        return fit, self.calibrated(fit)

    def calibrated(self, fit: Fit) -> NDArray[np.float32]:
        calibrated = np.full(self.prior.shape, np.nan, np.float32)
        if fit.status is not FitStatus.NO_MEASUREMENTS:
            with one_caller():
                calibrate(self.prior, calibrated, *fit.response.plan(self.ends))
        return calibrated

    def complete(self, options: CompletionOptions) -> tuple[Fit, NDArray[np.float32], FloatArray, Reconstruction]:
        """The fit, the calibrated prior, and the depth with the way it was found."""
        return self.spread(self.fit(options.fit), options)

    def spread(
        self, fit: Fit, options: CompletionOptions, kept: Kept | None = None
    ) -> tuple[Fit, NDArray[np.float32], FloatArray, Reconstruction]:
        """The same for a given fit, with what is kept of the image before."""
        calibrated = self.calibrated(fit)
        if fit.status is FitStatus.NO_MEASUREMENTS:
            nothing = Reconstruction(SolveStatus.NOTHING_TO_SOLVE, 0, 0.0, ())
            return fit, calibrated, calibrated.astype(self.measured.dtype), nothing
        with one_caller():
            extra: dict[str, Any] = {}
            if self.log_sigma is not None:
                residuals = np.log(self.measured / calibrated.flat[self.where])
                screening = options.reconstruction.weight_data / options.reconstruction.weight_gradient
                weights = precision(residuals, self.log_sigma, self.where, self.prior.shape, screening)
                extra = {"precision": weights, "exact": np.isinf(weights)}
            if options.reconstruction.system == "adaptive" and self.where.size > FEWEST:
                extra["neighbours"] = self.neighbours
            depth, reconstruction = reconstruct(
                calibrated, self.where, self.measured, options.reconstruction, kept=kept, **extra
            )
        return fit, calibrated, depth, reconstruction


@dataclass(frozen=True, eq=False)
class Given:
    """What `complete` was given, brought together: the pairs, and what could not be paired."""

    pairs: Pairs
    measurements: FloatArray
    unpaired: NDArray[np.intp]  # flat indices of measurements without a prior
    invalid: int  # pixels without a prior
    rejected: Rejected | None

    def completion(
        self,
        options: CompletionOptions,
        uncertainty: bool,
        fit: Fit,
        calibrated: NDArray[np.float32],
        depth: FloatArray,
        reconstruction: Reconstruction,
    ) -> Completion:
        """What `complete` returns, from what the pairs gave."""
        pairs, unpaired = self.pairs, self.unpaired
        deviation = None
        if uncertainty:
            tolerance = max(options.reconstruction.tolerance, LEFT_OUT_TOLERANCE)
            rough = replace(options, reconstruction=replace(options.reconstruction, tolerance=tolerance))
            fitting = replace(options.fit, vetted=False)  # all of them were, together
            near = fit.response if fit.status is FitStatus.CONVERGED else None

            def without(out: BoolArray) -> FloatArray:
                refit = pairs.only(~out & (fit.weights > 0)).fit(fitting, near)
                return pairs.only(~out).spread(refit, rough)[2]

            relative = log_deviation(without, depth, pairs.where, pairs.measured, pairs.log_sigma)
            deviation = (relative * depth).astype(np.float32)
        depth.flat[unpaired] = self.measurements.flat[unpaired]
        result = Completion(
            depth, calibrated, fit, reconstruction, options, unpaired.size, self.invalid, self.rejected, deviation
        )
        if options.strict and not (fit.status is FitStatus.CONVERGED and reconstruction.converged):
            raise NotConverged(f"strict: fit {fit.status}; solve {reconstruction.status}.")
        return result


def gather(
    prior: ArrayLike | Prior,
    sparse: ArrayLike,
    valid: ArrayLike | None,
    noise: Noise | float | ArrayLike | None,
    options: CompletionOptions,
) -> Given:
    """Check what is given and bring it together; see `complete`."""
    prior = prior if isinstance(prior, Prior) else Prior(prior)  # type: ignore[arg-type]
    measurements = as_map(sparse, "sparse")
    if measurements.shape != prior.shape:
        raise InputError(
            f"`sparse` must have the prior's shape {prior.shape}, got {measurements.shape} instead. "
            "Bring them to one pixel grid first; measurements must be moved, not interpolated."
        )
    mask = None if valid is None else as_mask(valid, "valid", prior.shape)

    h = contiguous(_masked(prior.depth(), mask))
    where, measured, unpaired = _pairs(h, measurements, mask)
    lowest, highest, invalid = _valid_range(h)
    sigma = None if noise is None else sigma_at(noise, measured, where, prior.shape)
    pairs = Pairs(h, (lowest, highest), where, measured, sigma)
    rejected = None
    if options.reject:
        keep, rejected = pairs.contradictions()
        pairs = pairs.only(keep)
    return Given(pairs, measurements, unpaired, invalid, rejected)


def _masked(depth: FloatArray, mask: BoolArray | None) -> FloatArray:
    return depth if mask is None else np.where(mask, depth, depth.dtype.type(np.nan))


def _pairs(
    prior: FloatArray, measurements: FloatArray, mask: BoolArray | None
) -> tuple[NDArray[np.intp], FloatArray, NDArray[np.intp]]:
    """Where measurement and prior meet, the depths measured there, and where a measurement stands alone."""
    measured = (measurements > 0) & (measurements < np.inf)  # False for NaN
    if mask is not None:
        measured &= mask
    where = np.flatnonzero(measured)
    h = prior.flat[where].astype(np.float64)  # in float32 the smallest valid prior would be zero
    paired = (h >= SMALLEST) & (h < np.inf)
    paired_where = where[paired]
    return paired_where, measurements.flat[paired_where], where[~paired]


def _tiles(where: NDArray[np.intp], shape: tuple[int, int]) -> NDArray[np.intp]:
    """The tile of the image that each measurement lies in: a network errs by whole surfaces, not by pixels."""
    rows, columns = np.divmod(where, shape[1])
    tiles: NDArray[np.intp] = rows * TILES // shape[0] * TILES + columns * TILES // shape[1]
    return tiles


def _valid_range(prior: FloatArray) -> tuple[float, float, int]:
    """Lowest and highest valid prior, and the number of invalid pixels."""
    low, high, valid = valid_bits(prior.view(f"i{prior.itemsize}").ravel(), *VALID_BITS[prior.itemsize])
    low, high = np.array([low, high], f"i{prior.itemsize}").view(prior.dtype)
    return float(low), float(high), prior.size - int(valid)


def warm_up(dtypes: tuple[str, ...] = ("float32", "float64"), options: CompletionOptions | None = None) -> None:
    """Compile, or load from the cache, every kernel that a completion of these input types needs."""
    # Large enough for the finest level to be shared among threads, so that both kinds of loop are compiled.
    ramp = np.linspace(1.0, 2.0, 240 * 200, dtype=np.float32).reshape(240, 200)
    sparse = np.zeros_like(ramp)
    sparse[::7, ::5] = np.sqrt(ramp[::7, ::5])
    sparse[3, 3] = 1.5  # something for the solver to spread
    ramp[0, 0] = np.nan  # and a hole to look for components around
    for dtype in dtypes:
        complete(ramp.astype(dtype), sparse.astype(dtype), options=options)
