"""Figures of single images, whose maps are computed again from the protocol of the run.

Each figure has a rule that chooses its image from the records; the user may choose another image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from leadline.base.errors import InputError
from leadline.bench.metrics import depth_scores, normals
from leadline.bench.records import Record
from leadline.bench.tables import BEST, FIXED, OURS, PARTIAL, RAW, RESPONSE
from leadline.report.colour import normals_picture
from leadline.report.diagnostics import all_linearity, chosen_exponent
from leadline.report.diagnostics.plots import plot_linearity, plot_point_groups, show_errors, show_picture
from leadline.report.figures.plotting import WIDTH, Drawing, new_figure, styled
from leadline.report.figures.scores import plain_methods
from leadline.report.image_results import ImageCase, ImageResults, recompute_results

if TYPE_CHECKING:
    from leadline.geometry.cameras import CameraModel
    from leadline.report.figures import Source

CASE = "distributed"  # case of the paper's figures of single images, used if the run has it
MOST_METHODS = 4  # methods of `qualitative`

Score = Callable[[dict[str, Record]], float]


def regions(source: Source) -> Drawing:
    """Groups of points that follow different lines, and one response for all of them (fig:response-regions).

    The image is the one with the largest ratio of the MAE of GMetric to that of the response.
    """

    def ratio(there: dict[str, Record]) -> float:
        return there["GMetric"].mae / there[RESPONSE].mae

    drawing: Drawing = plot_point_groups(_recompute(source, ("GMetric", RESPONSE), ratio))
    return drawing


def motivation(source: Source) -> Drawing:
    """Error maps and linearity of fixed coordinates and of the response on one image (fig:motivation).

    The image is the one with the largest ratio of the lowest MAE of a fixed coordinate to that of the response.
    """
    return _draw_coordinates(source, mae_ratio)


def near_linear(source: Source) -> Drawing:
    """Error maps and linearity on an image that fixed coordinates already fit well (fig:arkit).

    The rule is that of `motivation`, restricted to the half of the images with the lowest AbsRel of a fixed coordinate.
    """
    good = [_best_fixed(there, "absrel") for there in _candidates(source, (*FIXED, RESPONSE)).values()]
    middle = float(np.median(good)) if good else math.nan

    def score(there: dict[str, Record]) -> float:
        return mae_ratio(there) if _best_fixed(there, "absrel") <= middle else -math.inf

    return _draw_coordinates(source, score)


def _draw_coordinates(source: Source, score: Score) -> Drawing:
    methods = (*FIXED, RESPONSE)
    results = _recompute(source, methods, score)
    linearity = all_linearity(results, list(methods))
    numbers = {
        "title": results.title,
        "exponent": chosen_exponent(results),
        "linearity": {method: found.to_dict() for method, found in linearity.items()},
    }
    return Drawing(plot_linearity(results, linearity), numbers)


@styled
def qualitative(source: Source) -> Drawing:
    """Depth errors and normals of several methods on one image (fig:qualitative).

    The image is the one whose MAE of the paper's method is nearest to the median over images, among those with normals.
    """
    shown = compared(plain_methods(source.results, source.prior))
    if OURS not in shown or len(shown) < 2:
        raise InputError(f"the figure needs {OURS!r} and another method that completes depth.")
    typical = float(np.median([there[OURS].mae for there in _candidates(source, shown).values()] or [math.nan]))

    def score(there: dict[str, Record]) -> float:
        if not math.isfinite(there[OURS].nmed):
            return -math.inf
        return -abs(math.log(there[OURS].mae / typical))

    results = _recompute(source, shown, score)
    if results.camera is None:
        raise InputError(f"{results.title}: normals need a camera, and this image has none; choose another image.")
    return _draw_methods(results, shown, results.camera)


def compared(methods: list[str]) -> list[str]:
    """At most four methods: complete systems first, then local baselines, and in the end ours and best."""
    own = [name for name in (OURS, BEST) if name in methods]
    others = [name for name in methods if name not in (RAW, *FIXED, RESPONSE, *own)]
    others.sort(key=lambda name: name in PARTIAL)  # a stable sort: otherwise in the run's order
    return others[: MOST_METHODS - len(own)] + own


def _draw_methods(results: ImageResults, shown: list[str], camera: CameraModel) -> Drawing:
    height, width = results.reference.shape
    columns = 1 + len(shown)
    side = WIDTH / columns
    figure = new_figure(2 * side * height / width * 0.95 + 0.75)
    grid: Any = figure.subplots(2, columns, squeeze=False)
    show_picture(grid[0][0], results.image, "(a) image, errors")
    mae = {name: depth_scores(results.predictions[name].depth, results.reference, results.scored).mae for name in shown}
    errors = {name: np.abs(results.predictions[name].depth - results.reference) for name in shown}
    high = show_errors(grid[0][1:], errors, [f"{name}\n{mae[name]:.3f} m" for name in shown])
    show_picture(grid[1][0], normals_picture(normals(results.reference, camera)), "(b) true normals")
    for axes, name in zip(grid[1][1:], shown, strict=True):
        show_picture(axes, normals_picture(normals(results.predictions[name].depth, camera)), name)
    return Drawing(figure, {"title": results.title, "held_out_mae": mae, "largest error shown": high})


def _recompute(source: Source, methods: Sequence[str], score: Score) -> ImageResults:
    image_case = choose(source, methods, score)  # an error for published numbers, which have no folder
    return recompute_results(cast(Path, source.folder), image_case, methods)


def choose(source: Source, methods: Sequence[str], score: Score) -> ImageCase:
    """The image and case with the highest score among those with records of all `methods`."""
    found = _candidates(source, methods)
    scores = {image_case: score(there) for image_case, there in found.items()}
    best = max(scores, key=lambda image_case: scores[image_case], default=None)
    if best is None or scores[best] == -math.inf:
        raise InputError(f"the figure needs an image with scores of all of {', '.join(methods)}.")
    return best


def _candidates(source: Source, methods: Sequence[str]) -> dict[ImageCase, dict[str, Record]]:
    places = source.image_cases()
    if source.case is None and any(image_case.case == CASE for image_case in places):
        places = [image_case for image_case in places if image_case.case == CASE]
    found = {image_case: source.records_of(image_case) for image_case in places}
    return {image_case: there for image_case, there in found.items() if all(name in there for name in methods)}


def _best_fixed(there: dict[str, Record], metric: str) -> float:
    return min(float(getattr(there[name], metric)) for name in FIXED)


def mae_ratio(there: dict[str, Record]) -> float:
    """The lowest MAE of a fixed coordinate over that of the response."""
    return _best_fixed(there, "mae") / there[RESPONSE].mae
