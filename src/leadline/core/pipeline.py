"""The whole method: calibrate the prior by a fitted response, then spread what is left."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.core.calibration import SMALLEST, VALID_BITS, calibrate, contiguous, valid_bits
from leadline.core.estimator import Fit, FitStatus, fit_response
from leadline.core.jit import one_caller
from leadline.core.reconstruction import Reconstruction, reconstruct
from leadline.core.solver import SolveStatus
from leadline.core.types import (
    BoolArray,
    CompletionOptions,
    FloatArray,
    InputError,
    NotConverged,
    Prior,
    as_map,
    as_mask,
    json_ready,
)


@dataclass(frozen=True)
class Completion:
    """Dense metric depth, and how it came about.

    Attributes
    ----------
    depth : (H, W), dtype of the measurements
        Metres. Equal to the measurement, bit for bit, where there is one; positive and finite wherever the
        prior is valid; NaN elsewhere.
    calibrated : (H, W) float32
        Metres: the response stage alone, t of eq:dense.
    fit : Fit
    reconstruction : Reconstruction
    unpaired : int
        Measurements at pixels without a valid prior: in `depth`, but without a part in the fit or the solve.
    invalid : int
        Pixels without a valid prior.
    """

    depth: FloatArray
    calibrated: NDArray[np.float32]
    fit: Fit
    reconstruction: Reconstruction
    options: CompletionOptions
    unpaired: int
    invalid: int

    def __str__(self) -> str:
        height, width = self.depth.shape
        response = self.fit.response
        solve = self.reconstruction
        lines = [
            f"{width} x {height} pixels, {self.fit.count} measurements"
            + (f", {self.unpaired} more where the prior is invalid" if self.unpaired else "")
            + (f", {self.invalid} pixels without a prior" if self.invalid else ""),
            f"fit    {self.fit.status}",
            f"       exponent {response.exponent:.4g}, gain {response.gain:.4g}, offset {response.offset:.4g}, "
            f"scale {response.scale:.4g} m, rmse {self.fit.rmse:.4g} m",
            f"solve  {solve.status} ({solve.iterations} iterations, residual {solve.residual:.1e})",
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All but the maps, ready for JSON: what is not a number is None."""
        values = {
            "fit": self.fit.to_dict(),
            "reconstruction": self.reconstruction.to_dict(),
            "unpaired": self.unpaired,
            "invalid": self.invalid,
            "options": asdict(self.options),
        }
        return json_ready(values)  # type: ignore[no-any-return]


def complete(
    prior: ArrayLike | Prior,
    sparse: ArrayLike,
    *,
    valid: ArrayLike | None = None,
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
    fit = fit_response(h.flat[where], measured, (lowest, highest) if where.size else None, options.fit)

    calibrated = np.full(h.shape, np.nan, np.float32)
    if fit.status is FitStatus.NO_MEASUREMENTS:
        depth = calibrated.astype(measurements.dtype)
        reconstruction = Reconstruction(SolveStatus.NOTHING_TO_SOLVE, 0, 0.0, ())
    else:
        with one_caller():
            calibrate(h, calibrated, *fit.response.plan((lowest, highest)))
            depth, reconstruction = reconstruct(calibrated, where, measured, options.reconstruction)
    depth.flat[unpaired] = measurements.flat[unpaired]
    result = Completion(depth, calibrated, fit, reconstruction, options, unpaired.size, invalid)
    if options.strict and not (fit.status is FitStatus.CONVERGED and reconstruction.converged):
        raise NotConverged(f"strict: fit {fit.status}; solve {reconstruction.status}.")
    return result


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
