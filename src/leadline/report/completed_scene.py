"""One completed image: its scores, response curves, completions at an exponent set by hand, and views."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import InputError, param
from leadline.base.registry import suggestion
from leadline.bench.metrics import depth_scores, normal_scores, normals, relative_error
from leadline.core.fit.response import Response
from leadline.core.inputs import Pairs, check_inputs
from leadline.core.pipeline import Completion, calibrate_prior, reconstruct_depth
from leadline.core.prior import Prior
from leadline.geometry.cameras import CameraModel
from leadline.report.colour import Picture, colour_range, colourise, draw_measurements, normals_picture
from leadline.report.diagnostics import ADAPTIVE, sample_pairs
from leadline.report.diagnostics.curves import (
    FIXED_EXPONENTS,
    binned_percentiles,
    even_subset,
    exponent_profile,
    fit_at_exponent,
    gain_curve,
)
from leadline.report.image_results import ImageResults

LARGEST_EXPONENT = 20.0
"""Beyond this magnitude the response of most priors overflows."""
_PROFILE_PAIRS = 4000  # each exponent of the profile fits all of them
_SHOWN_POINTS = 1500  # points of a scatter plot on a page
_CURVE_POINTS = 80
# Relative values at the dark end of the ramp are at least these, or noise would look like an error.
_LEAST_ERROR_RANGE, _LEAST_CHANGE_RANGE = 0.02, 0.01


@dataclass(frozen=True, eq=False)
class HeldExponent:
    """A completion at an exponent that was set by hand; gain and offset are fitted to the same measurements."""

    response: Response
    rmse: float  # metres, of the response at the measurements that the fit used
    depth: FloatArray  # (H, W) metres, after the reconstruction
    change: NDArray[np.float64]  # (H, W), relative difference to the depth at the fitted exponent

    @property
    def median_change(self) -> float:
        return float(np.nanmedian(self.change))

    @property
    def largest_change(self) -> float:
        """99th percentile of the relative change."""
        return float(np.nanpercentile(self.change, 99))


@dataclass(frozen=True)
class SceneScores:
    """Errors against the ground truth, at the pixels that have one and were not measured."""

    absrel: float  # mean relative error
    mae: float  # metres
    rmse: float  # metres
    pixels: int  # number of pixels compared
    normal_deg: float | None = None  # median angle between the normals in degrees; None if it was not computed


@dataclass(frozen=True, eq=False)
class CompletedScene:
    """An image with its prior, measurements, ground truth and completion."""

    title: str
    image: NDArray[np.uint8]  # (H, W, 3)
    prior: Prior
    sparse: FloatArray  # (H, W) metres, NaN where there is no measurement
    reference: FloatArray | None  # (H, W) metres, the ground truth
    camera: CameraModel
    completion: Completion

    def results(self) -> ImageResults:
        """The scene as the input of the diagnostics; without ground truth no pixel is scored."""
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

    def values_at(self, row: int, column: int) -> dict[str, float]:
        """The maps of the scene at a pixel in metres: those of depth, sigma, measured and reference that are known."""
        completion = self.completion
        maps = {"depth": completion.depth, "sigma": completion.sigma, "measured": self.sparse}
        found = {name: float(values[row, column]) for name, values in maps.items() if values is not None}
        if self.reference is not None:
            found["reference"] = float(self.reference[row, column])
        return {name: value for name, value in found.items() if math.isfinite(value) and value > 0}

    def median_sigma(self) -> float:
        """Median standard deviation of the depth in metres; NaN if it was not estimated."""
        sigma = self.completion.sigma
        return math.nan if sigma is None else float(np.nanmedian(sigma))

    def score(self, depth: FloatArray, *, with_normals: bool) -> SceneScores | None:
        """Scores of a depth map, (H, W) in metres; None without ground truth.

        Normals are compared only `with_normals`, which is meaningful if the camera is known.
        """
        if self.reference is None:
            return None
        scored = self.unmeasured()
        found = depth_scores(depth, self.reference, scored)
        angle = normal_scores(depth, self.reference, self.camera, scored).median_deg if with_normals else None
        return SceneScores(found.absrel, found.mae, found.rmse, found.support, angle)

    def hold_exponent(self, exponent: float) -> HeldExponent:
        """The completion with the exponent held at a value, and gain and offset fitted again."""
        if not abs(exponent) <= LARGEST_EXPONENT:
            raise InputError(
                f"{param('exponent')} must lie between {-LARGEST_EXPONENT:g} and {LARGEST_EXPONENT:g}, got {exponent}."
            )
        pairs, completion = self._pairs(), self.completion
        used = pairs.subset(completion.fit.weights > 0)
        response = fit_at_exponent(exponent, used.paired_prior, used.measured, pairs.prior_range)
        calibrated = calibrate_prior(pairs, replace(completion.fit, response=response))
        depth, _ = reconstruct_depth(pairs, calibrated, completion.options.reconstruction)
        rmse = float(np.sqrt(np.mean((np.asarray(calibrated.flat[used.where], np.float64) - used.measured) ** 2)))
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
        prior_range = results.prior_range()
        all_pairs = self._pairs()
        used = np.flatnonzero(self.completion.fit.weights > 0)
        used = used[even_subset(used.size, _PROFILE_PAIRS)]
        pairs = all_pairs.paired_prior[used], all_pairs.measured[used]
        places, *held_out = sample_pairs(results)
        reference = held_out[1]
        profile = exponent_profile(*pairs, response.exponent, prior_range=prior_range, held_out=held_out)
        gains = {}
        for name, exponent in {**FIXED_EXPONENTS, ADAPTIVE: response.exponent}.items():
            try:
                found = response if name == ADAPTIVE else fit_at_exponent(exponent, *pairs, prior_range)
            except InputError:  # the prior spans too wide a range for this exponent
                continue
            gain = gain_curve(found, prior, points=_CURVE_POINTS)
            gains[name] = {"depth": _rounded(gain.depth), "slope": _rounded(gain.slope)}
        along, error, scatter = measured, np.asarray(response(prior), np.float64) - measured, None
        if places.size:
            depth = np.asarray(self.completion.depth.flat[places], np.float64)
            along, error, shown = reference, depth - reference, even_subset(places.size, _SHOWN_POINTS)
            scatter = {"reference": _rounded(reference[shown]), "predicted": _rounded(depth[shown])}
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
            "residual": {"held_out": places.size > 0, **binned_percentiles(along, error).to_dict()},
            "scatter": scatter,
        }

    def _pairs(self) -> Pairs:
        """The pairs of prior and measurement that the completion used, in the order of its fit's weights."""
        pairs, outliers = check_inputs(self.prior, self.sparse).pairs, self.completion.outliers
        return pairs if outliers is None else pairs.subset(~np.isin(pairs.where, outliers.where))


def error_range(scene: CompletedScene) -> float:
    """The relative error at the dark end of the ramp, the same for every method; NaN without ground truth."""
    if scene.reference is None:
        return math.nan
    high = colour_range(relative_error(scene.completion.depth, scene.reference), "error")[1]
    return max(high, _LEAST_ERROR_RANGE) if math.isfinite(high) else _LEAST_ERROR_RANGE


def change_range(held: HeldExponent) -> float:
    """The relative change at the dark end of the ramp."""
    return max(colour_range(held.change, "error")[1], _LEAST_CHANGE_RANGE)


def draw_view(
    scene: CompletedScene, name: str, *, held: HeldExponent | None = None, methods: Mapping[str, FloatArray]
) -> Picture:
    """A view of the scene, (H, W, 3) uint8.

    Parameters
    ----------
    scene : CompletedScene
    name : str
        One of image, measurements, prior, depth, error, normals, uncertainty; held and change with `held`; and
        depth, error and normals followed by a hyphen and the name of one of `methods`.
    held : HeldExponent, optional
    methods : mapping
        Depth maps of other methods, by name.
    """
    low, high = colour_range(scene.completion.depth)
    depth_picture, error_picture = partial(colourise, low=low, high=high), partial(colourise, low=0.0, scheme="error")
    views: dict[str, Callable[[], Picture]] = {
        "image": lambda: scene.image,
        "measurements": lambda: draw_measurements(scene.sparse, scene.image, low=low, high=high),
        "prior": lambda: colourise(scene.results().prior_depth()),
    }
    if scene.completion.sigma is not None:
        views["uncertainty"] = partial(error_picture, scene.completion.sigma)
    if held is not None:
        views["held"] = partial(depth_picture, held.depth)
        views["change"] = partial(error_picture, held.change, high=change_range(held))

    def normals_view(depth: FloatArray) -> Picture:
        return normals_picture(normals(depth, scene.camera))

    def error_view(depth: FloatArray, reference: FloatArray) -> Picture:
        return error_picture(relative_error(depth, reference), high=error_range(scene))

    depths = {"": scene.completion.depth, **{f"-{method}": depth for method, depth in methods.items()}}
    for suffix, depth in depths.items():
        views[f"depth{suffix}"] = partial(depth_picture, depth)
        views[f"normals{suffix}"] = partial(normals_view, depth)
        if scene.reference is not None:
            views[f"error{suffix}"] = partial(error_view, depth, scene.reference)
    if name not in views:
        raise InputError(f"there is no view {name!r} of this result; {suggestion(name, views)}")
    return views[name]()


def _rounded(values: FloatArray) -> list[float]:
    """Values with the digits that a curve on a screen needs, to keep the JSON small."""
    return [float(f"{value:.5g}") for value in np.asarray(values, np.float64).ravel()]
