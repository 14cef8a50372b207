"""Diagnostics of one image: linearity, gain, exponent profile and errors, as `leadline diagnose` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.bench.tables import OURS, RAW, RESPONSE
from leadline.core.fit.estimator import fit_response
from leadline.report.diagnostics.curves import (
    FIXED_EXPONENTS,
    BinnedPercentiles,
    ExponentProfile,
    GainCurve,
    binned_percentiles,
    distance_to_measurement,
    exponent_profile,
    fit_at_exponent,
    gain_curve,
)
from leadline.report.diagnostics.linearity import BIN_WIDTH, Linearity, depth_window, measure_linearity, sample_held_out
from leadline.report.image_results import ImageResults

SCALED_PRIOR = "Prior, scaled"
"""Label of the prior multiplied by a factor, so that its median at held-out pixels equals that of the ground truth."""
ADAPTIVE = "adaptive"
"""Label of the estimated exponent, beside those of `FIXED_EXPONENTS`."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Diagnostics of the results of one image."""

    title: str
    linearity: dict[str, Linearity]  # by method, and of `SCALED_PRIOR`
    gains: dict[str, GainCurve]  # of `FIXED_EXPONENTS` and `ADAPTIVE`
    profile: ExponentProfile
    residuals: dict[str, BinnedPercentiles]  # by method: predicted minus true depth (m), along the true depth (m)
    distances: dict[str, BinnedPercentiles]  # by method: absolute error (m), by pixels to the nearest measurement

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

    prior_range, exponent = results.prior_range(), chosen_exponent(results)
    places, *held_out = sample_pairs(results)
    reference = held_out[1]
    profile = exponent_profile(prior, measured, exponent, prior_range=prior_range, held_out=held_out)
    gains = {
        name: gain_curve(fit_at_exponent(value, prior, measured, prior_range), prior)
        for name, value in {**FIXED_EXPONENTS, ADAPTIVE: exponent}.items()
    }
    distance = distance_to_measurement(np.isfinite(results.sparse) & (results.sparse > 0)).flat[places]
    errors = {name: results.predictions[name].depth.flat[places].astype(np.float64) - reference for name in methods}
    residuals = {name: binned_percentiles(reference, error) for name, error in errors.items()}
    distances = {name: binned_percentiles(distance, np.abs(error)) for name, error in errors.items()}
    return Diagnosis(results.title, linearity, gains, profile, residuals, distances)


def sample_pairs(results: ImageResults) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Flat indices of sampled held-out pixels with a prior; there the relative prior depth, and the true depth (m)."""
    h = results.prior_depth()
    places = sample_held_out(results.reference, results.scored)
    places = places[np.isfinite(h.flat[places])]
    return places, h.flat[places], np.asarray(results.reference.flat[places], np.float64)


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


def write_diagnosis(diagnosis: Diagnosis, results: ImageResults, folder: Path) -> tuple[list[Path], str]:
    """Write ``diagnosis.json`` and the plots ``linearity``, ``response``, ``errors`` and ``groups``.

    Returns
    -------
    paths : list of paths
        The JSON file and one PNG file per plot; the SVG and PDF files are beside it.
    no_groups : str
        The reason if there is no plot of point groups, else empty.
    """
    from leadline.report.diagnostics import plots
    from leadline.report.diagnostics.group_plot import plot_point_groups
    from leadline.report.figures.plotting import save_figure, save_numbers

    numbers, no_groups = diagnosis.to_dict(), ""
    figures = {
        "linearity": plots.plot_linearity(results, diagnosis.linearity),
        "response": plots.plot_response(diagnosis),
        "errors": plots.plot_errors(diagnosis),
    }
    try:
        groups = plot_point_groups(results)
        figures["groups"], numbers["groups"] = groups.figure, groups.numbers
    except InputError as error:
        no_groups = str(error)
    paths = [save_numbers(numbers, folder, "diagnosis")]
    paths += [save_figure(figure, folder, name)[0] for name, figure in figures.items()]
    return paths, no_groups
