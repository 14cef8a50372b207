"""All diagnostics of one image: the numbers that `leadline diagnose` writes and plots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.bench.tables import OURS, RAW, RESPONSE
from leadline.core.fit.estimator import fit_response
from leadline.report.diagnostics.curves import (
    BinnedPercentiles,
    GainCurve,
    binned_percentiles,
    distance_to_measurement,
    gain_curve,
)
from leadline.report.diagnostics.exponent_profile import (
    FIXED_EXPONENTS,
    ExponentProfile,
    exponent_profile,
    fit_at_exponent,
)
from leadline.report.diagnostics.linearity import (
    BIN_WIDTH,
    Linearity,
    depth_window,
    measure_linearity,
    sample_held_out,
)
from leadline.report.image_results import ImageResults

SCALED_PRIOR = "Prior, scaled"
"""Label of the prior, multiplied by the one factor that makes its held-out median that of the ground truth."""
ADAPTIVE = "adaptive"
"""Label of the estimated exponent, beside those of `FIXED_EXPONENTS`."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Diagnostics of the results of one image.

    Attributes
    ----------
    title : str
    linearity : dict
        By method, and of `SCALED_PRIOR`.
    gains : dict
        By coordinate: those of `FIXED_EXPONENTS`, and `ADAPTIVE`.
    profile : ExponentProfile
    residuals : dict
        By method: predicted minus true depth in metres, along the true depth in metres.
    distances : dict
        By method: absolute error in metres, along the distance to the nearest measurement in pixels.
    """

    title: str
    linearity: dict[str, Linearity]
    gains: dict[str, GainCurve]
    profile: ExponentProfile
    residuals: dict[str, BinnedPercentiles]
    distances: dict[str, BinnedPercentiles]

    def to_dict(self) -> dict[str, Any]:
        """All numbers except the displayed pixels."""
        parts: dict[str, Mapping[str, Any]] = {
            "linearity": self.linearity,
            "gains": self.gains,
            "residual_along_depth": self.residuals,
            "error_along_distance": self.distances,
        }
        return {
            "title": self.title,
            **{part: {name: entry.to_dict() for name, entry in entries.items()} for part, entries in parts.items()},
            "exponent_profile": self.profile.to_dict(),
        }


def diagnose(results: ImageResults, *, bin_width: float = BIN_WIDTH) -> Diagnosis:
    """The diagnostics of the results of one image.

    Parameters
    ----------
    results : ImageResults
    bin_width : float
        Width of the bins of predicted depth in metres, as for `measure_linearity`.

    Raises
    ------
    InputError
        No pixel is held out, or no measurement has a prior.
    """
    prior, measured = results.pairs()
    if not prior.size:
        raise InputError(f"{results.title}: no measurement has a valid prior, so no response can be fitted.")
    # The prior as a method, which `RAW` is, has no metric scale; it is shown scaled instead.
    methods = [name for name in results.predictions if name != RAW]
    linearity = all_linearity(results, methods, bin_width=bin_width)

    prior_range = results.prior_range()
    exponent = chosen_exponent(results)
    h = results.prior_depth()
    places = sample_held_out(results.reference, results.scored)
    places = places[np.isfinite(h.flat[places])]
    reference = np.asarray(results.reference.flat[places], np.float64)
    profile = exponent_profile(prior, measured, exponent, prior_range=prior_range, held_out=(h.flat[places], reference))
    gains = {
        name: gain_curve(fit_at_exponent(value, prior, measured, prior_range), prior)
        for name, value in {**FIXED_EXPONENTS, ADAPTIVE: exponent}.items()
    }

    distance = distance_to_measurement(np.isfinite(results.sparse) & (results.sparse > 0)).flat[places]
    errors = {
        name: np.asarray(results.predictions[name].depth.flat[places], np.float64) - reference for name in methods
    }
    residuals = {name: binned_percentiles(reference, error) for name, error in errors.items()}
    distances = {name: binned_percentiles(distance, np.abs(error)) for name, error in errors.items()}
    return Diagnosis(results.title, linearity, gains, profile, residuals, distances)


def all_linearity(results: ImageResults, methods: list[str], *, bin_width: float = BIN_WIDTH) -> dict[str, Linearity]:
    """The linearity of the scaled prior and of methods, all over the same depth window."""
    window = depth_window(results.reference, results.scored)
    prior = results.prior_depth()
    both = results.scored & np.isfinite(prior) & np.isfinite(results.reference)
    if both.any():
        prior = prior * (np.median(results.reference[both]) / np.median(prior[both]))
    depths: dict[str, FloatArray] = {SCALED_PRIOR: prior, **{name: results.predictions[name].depth for name in methods}}
    return {
        name: measure_linearity(depth, results.reference, results.scored, window=window, bin_width=bin_width)
        for name, depth in depths.items()
    }


def chosen_exponent(results: ImageResults) -> float:
    """The exponent that a method recorded, the response's first; estimated now if no method recorded one."""
    for name in (RESPONSE, OURS, *results.predictions):
        found = results.predictions.get(name)
        if found is not None and "exponent" in found.parameters:
            return float(found.parameters["exponent"])
    return fit_response(*results.pairs(), results.prior_range()).response.exponent
