"""Everything that the diagnostics say about one image, gathered: what `leadline diagnose` writes and draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.bench.tables import OURS, RAW, RESPONSE
from leadline.core.fit.estimator import fit_response
from leadline.report.diagnostics import (
    BIN,
    Band,
    GainCurve,
    Relation,
    anchor_distance,
    band,
    gain_curve,
    held_out_sample,
    relation,
    window_of,
)
from leadline.report.profile import MEMBERS, ExponentProfile, exponent_profile, fit_at
from leadline.report.trial import Trial

SCALED = "Prior, scaled"
"""The raw prior's relation: times the one factor that makes its held-out median the reference's, for display."""
ADAPTIVE = "adaptive"


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Numbers about one trial; the dictionaries are by method, but for `gains`, which are by coordinate."""

    title: str
    relations: dict[str, Relation]
    gains: dict[str, GainCurve]
    profile: ExponentProfile
    residuals: dict[str, Band]  # signed, metres, along the reference depth in metres
    distances: dict[str, Band]  # absolute, metres, along the distance to the nearest measurement in pixels

    def to_dict(self) -> dict[str, Any]:
        """All numbers, but for the displayed pixels."""
        parts: dict[str, dict[str, Any]] = {
            "relations": self.relations,
            "gains": self.gains,
            "residual_along_depth": self.residuals,
            "error_along_distance": self.distances,
        }
        return {
            "title": self.title,
            **{part: {name: entry.to_dict() for name, entry in entries.items()} for part, entries in parts.items()},
            "exponent_profile": self.profile.to_dict(),
        }


def diagnose(trial: Trial, *, bin_width: float = BIN) -> Diagnosis:
    """The diagnosis of a trial.

    Raises
    ------
    InputError
        No pixel is held out, or no measurement has a prior.
    """
    prior, measured = trial.pairs()
    if not prior.size:
        raise InputError(f"{trial.title}: no measurement has a valid prior, so there is no fit to look at.")
    window = window_of(trial.reference, trial.scored)
    relations = {SCALED: scaled_prior_relation(trial, bin_width=bin_width)}
    for name, prediction in trial.predictions.items():
        if name != RAW:  # it is the one above, on a scale of its own
            relations[name] = relation(
                prediction.depth, trial.reference, trial.scored, window=window, bin_width=bin_width
            )

    h = trial.relative()
    known = h[np.isfinite(h)]
    ends = (float(known.min()), float(known.max()))
    chosen = chosen_exponent(trial)
    places = held_out_sample(trial.reference, trial.scored)
    places = places[np.isfinite(h.flat[places])]
    reference = np.asarray(trial.reference.flat[places], np.float64)
    profile = exponent_profile(prior, measured, chosen, prior_range=ends, held_out=(h.flat[places], reference))
    gains = {
        name: gain_curve(fit_at(exponent, prior, measured, ends), prior)
        for name, exponent in {**MEMBERS, ADAPTIVE: chosen}.items()
    }

    shown = {name: prediction.depth for name, prediction in trial.predictions.items() if name != RAW}
    away = anchor_distance(np.isfinite(trial.sparse) & (trial.sparse > 0), places)
    off = {name: np.asarray(depth.flat[places], np.float64) - reference for name, depth in shown.items()}
    residuals = {name: band(reference, values) for name, values in off.items()}
    distances = {name: band(away, np.abs(values)) for name, values in off.items()}
    return Diagnosis(trial.title, relations, gains, profile, residuals, distances)


def chosen_exponent(trial: Trial) -> float:
    """The exponent that the trial's response was estimated at, as recorded; where none was, it is estimated now."""
    for name in (RESPONSE, OURS, *trial.predictions):
        found = trial.predictions.get(name)
        if found is not None and "exponent" in found.parameters:
            return float(found.parameters["exponent"])
    h = trial.relative()
    known = h[np.isfinite(h)]
    return fit_response(*trial.pairs(), (float(known.min()), float(known.max()))).response.exponent


def scaled_prior_relation(trial: Trial, *, bin_width: float = BIN) -> Relation:
    """The relation of the prior itself; only its Pearson's r means anything, as its scale was chosen for display."""
    scaled: FloatArray = trial.relative()
    both = trial.scored & np.isfinite(scaled) & np.isfinite(trial.reference)
    if both.any():
        scaled = scaled * (np.median(trial.reference[both]) / np.median(scaled[both]))
    window = window_of(trial.reference, trial.scored)
    return relation(scaled, trial.reference, trial.scored, window=window, bin_width=bin_width)
