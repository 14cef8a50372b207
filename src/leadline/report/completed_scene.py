"""One completed image with its inputs: its scores, its response curves, and completions at an exponent set by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param
from leadline.bench.metrics import depth_scores, normal_scores, relative_error
from leadline.core.fit.response import Response
from leadline.core.inputs import Pairs, check_inputs
from leadline.core.pipeline import calibrate_prior, reconstruct_depth
from leadline.core.prior import Prior
from leadline.core.results import Completion
from leadline.geometry.cameras import CameraModel
from leadline.report.diagnostics.curves import binned_percentiles, gain_curve
from leadline.report.diagnostics.diagnosis import ADAPTIVE
from leadline.report.diagnostics.exponent_profile import FIXED_EXPONENTS, exponent_profile, fit_at_exponent
from leadline.report.diagnostics.linearity import sample_held_out
from leadline.report.image_results import ImageResults

LARGEST_EXPONENT = 20.0
"""Beyond this magnitude the response of most priors overflows."""
_PROFILE_PAIRS = 4000  # each exponent of the profile fits all of them
_SHOWN_POINTS = 1500  # points of a scatter plot on a page
_CURVE_POINTS = 80


@dataclass(frozen=True, eq=False)
class HeldExponent:
    """A completion at an exponent that was set by hand; gain and offset are fitted to the same measurements.

    Attributes
    ----------
    response : Response
    rmse : float
        Metres, of the response at the measurements that the fit used.
    depth : (H, W) array
        Metres, after the reconstruction.
    change : (H, W) float64 array
        Relative difference to the depth at the fitted exponent.
    """

    response: Response
    rmse: float
    depth: FloatArray
    change: NDArray[np.float64]

    @property
    def median_change(self) -> float:
        return float(np.nanmedian(self.change))

    @property
    def largest_change(self) -> float:
        """99th percentile of the relative change."""
        return float(np.nanpercentile(self.change, 99))


@dataclass(frozen=True)
class SceneScores:
    """Errors against the ground truth, at the pixels that have one and were not measured.

    Attributes
    ----------
    absrel : float
        Mean relative error.
    mae, rmse : float
        Metres.
    pixels : int
        Number of pixels compared.
    normal_deg : float or None
        Median angle between the normals in degrees; None if it was not computed.
    """

    absrel: float
    mae: float
    rmse: float
    pixels: int
    normal_deg: float | None = None


@dataclass(frozen=True, eq=False)
class CompletedScene:
    """An image, what was completed, and the completion.

    Attributes
    ----------
    title : str
    image : (H, W, 3) uint8 array
    prior : Prior
    sparse : (H, W) array
        Measurements in metres, NaN where there is none.
    reference : (H, W) array or None
        Ground truth in metres.
    camera : CameraModel
    completion : Completion
    """

    title: str
    image: NDArray[np.uint8]
    prior: Prior
    sparse: FloatArray
    reference: FloatArray | None
    camera: CameraModel
    completion: Completion

    def results(self) -> ImageResults:
        """The scene as the diagnostics take it; without ground truth no pixel is scored."""
        shape = self.completion.depth.shape
        reference = np.full(shape, np.nan, np.float32) if self.reference is None else self.reference
        return ImageResults(
            self.title, self.image, self.prior, self.sparse, reference, self.unmeasured(), self.camera, {}
        )

    def unmeasured(self) -> BoolArray:
        """The pixels that have ground truth and were not measured, (H, W)."""
        if self.reference is None:
            return np.zeros(self.completion.depth.shape, dtype=bool)
        scored: BoolArray = (self.reference > 0) & np.isfinite(self.reference) & ~(self.sparse > 0)
        return scored

    def median_sigma(self) -> float:
        """Median standard deviation of the depth in metres; NaN if it was not estimated."""
        sigma = self.completion.sigma
        return math.nan if sigma is None else float(np.nanmedian(sigma))

    def score(self, depth: FloatArray, *, with_normals: bool) -> SceneScores | None:
        """Scores of a depth map of this scene; None without ground truth.

        Parameters
        ----------
        depth : (H, W) array
            Metres.
        with_normals : bool
            Also compare normals, which is meaningful only if the camera is known.
        """
        if self.reference is None:
            return None
        scored = self.unmeasured()
        found = depth_scores(depth, self.reference, scored)
        angle = normal_scores(depth, self.reference, self.camera, scored).median_deg if with_normals else None
        return SceneScores(found.absrel, found.mae, found.rmse, found.support, angle)

    def hold_exponent(self, exponent: float) -> HeldExponent:
        """The completion with the exponent held at a value, and gain and offset fitted again.

        Raises
        ------
        InputError
            The exponent is too large, or the prior spans too wide a range for it.
        """
        if not abs(exponent) <= LARGEST_EXPONENT:
            raise InputError(
                f"{param('exponent')} must lie between {-LARGEST_EXPONENT:g} and {LARGEST_EXPONENT:g}, got {exponent}."
            )
        pairs, completion = self._pairs(), self.completion
        used = pairs.subset(completion.fit.weights > 0)
        response = fit_at_exponent(exponent, used.paired_prior, used.measured, pairs.prior_range)
        calibrated = calibrate_prior(pairs, replace(completion.fit, response=response))
        depth, _ = reconstruct_depth(pairs, calibrated, completion.options.reconstruction)
        error = np.asarray(calibrated.flat[used.where], np.float64) - used.measured
        rmse = math.sqrt(float(np.mean(error * error)))
        return HeldExponent(response, rmse, depth, relative_error(depth, completion.depth))

    def response_curve(self, response: Response) -> dict[str, list[float]]:
        """Points of a response over the range of the prior at the measurements."""
        prior, _ = self.results().pairs()
        grid = np.geomspace(prior.min(), prior.max(), _CURVE_POINTS)
        return {"prior": _rounded(grid), "depth": _rounded(response(grid))}

    def curves(self) -> dict[str, Any]:
        """Everything that is plotted about the scene, as lists for JSON.

        ``pairs`` are measurements over the prior, and ``curve`` the fitted response; ``profile`` is the error along the
        exponent; ``gains`` are the slopes along depth; ``residual`` are percentiles of the error along depth, at
        unmeasured pixels if there is ground truth (``held_out``) and else of the response at the measurements;
        ``scatter`` is the result over the ground truth, or None.
        """
        results, response = self.results(), self.completion.fit.response
        prior, measured = results.pairs()
        h, prior_range = results.prior_depth(), results.prior_range()
        all_pairs = self._pairs()
        used = np.flatnonzero(self.completion.fit.weights > 0)
        used = used[even_subset(used.size, _PROFILE_PAIRS)]
        pairs = all_pairs.paired_prior[used], all_pairs.measured[used]
        places = sample_held_out(results.reference, results.scored)
        places = places[np.isfinite(h.flat[places])]
        reference = np.asarray(results.reference.flat[places], np.float64)
        held_out = (h.flat[places], reference) if places.size else None
        profile = exponent_profile(*pairs, response.exponent, prior_range=prior_range, held_out=held_out)
        gains = {}
        for name, exponent in {**FIXED_EXPONENTS, ADAPTIVE: response.exponent}.items():
            try:
                found = response if name == ADAPTIVE else fit_at_exponent(exponent, *pairs, prior_range)
            except InputError:  # the prior spans too wide a range for this exponent
                continue
            gain = gain_curve(found, prior, points=_CURVE_POINTS)
            gains[name] = {"depth": _rounded(gain.depth), "slope": _rounded(gain.slope)}
        if held_out is None:
            along, error = measured, np.asarray(response(prior), np.float64) - measured
        else:
            along, error = reference, np.asarray(self.completion.depth.flat[places], np.float64) - reference
        shown = even_subset(prior.size, _SHOWN_POINTS)
        return {
            "pairs": {"prior": _rounded(prior[shown]), "measured": _rounded(measured[shown])},
            "curve": self.response_curve(response),
            "profile": {
                "exponents": _rounded(profile.exponents),
                "rmse": _rounded(profile.rmse),
                "held_out": _rounded(profile.held_out),
                "chosen": response.exponent,
            },
            "gains": gains,
            "residual": {"held_out": held_out is not None, **binned_percentiles(along, error).to_dict()},
            "scatter": self._scatter(places) if places.size else None,
        }

    def _pairs(self) -> Pairs:
        """The pairs of prior and measurement that the completion used, in the order of its fit's weights."""
        pairs, outliers = check_inputs(self.prior, self.sparse).pairs, self.completion.outliers
        return pairs if outliers is None else pairs.subset(~np.isin(pairs.where, outliers.where))

    def _scatter(self, places: NDArray[np.intp]) -> dict[str, list[float]]:
        chosen = places[even_subset(places.size, _SHOWN_POINTS)]
        reference = self.results().reference.flat[chosen]
        return {"reference": _rounded(reference), "predicted": _rounded(self.completion.depth.flat[chosen])}


def even_subset(count: int, most: int) -> NDArray[np.intp]:
    """At most `most` indices, evenly spread over `count`.

    Examples
    --------
    >>> even_subset(5, 3).tolist(), even_subset(2, 3).tolist()
    ([0, 2, 4], [0, 1])
    """
    return np.linspace(0, count - 1, most).astype(np.intp) if count > most else np.arange(count)


def _rounded(values: FloatArray) -> list[float]:
    """Values with the digits that a curve on a screen needs, to keep the JSON small."""
    return [float(f"{value:.5g}") for value in np.asarray(values, np.float64).ravel()]
