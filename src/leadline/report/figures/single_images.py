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
from leadline.report.diagnostics.group_plot import plot_point_groups
from leadline.report.diagnostics.linearity import Linearity
from leadline.report.diagnostics.plots import plot_linearity, show_errors, show_picture
from leadline.report.figures.plotting import WIDTH, Drawing, new_figure, styled
from leadline.report.figures.scores import plain_methods
from leadline.report.image_results import ImageCase, ImageResults, recompute_results

if TYPE_CHECKING:
    from leadline.geometry.cameras import CameraModel
    from leadline.report.figures import Source

CASE = "distributed"  # case of the paper's figures of single images, used if the run has it
MOST_OTHERS = 3  # methods of `qualitative` beside ours
PAPER_SYSTEMS = ("PriorDA", "LDCM", "Any2Full")  # those of the paper's `qualitative`, in its order
LARGEST_ERROR = 0.3  # metres: where the paper's error scale of `qualitative` ends
NEAR_LINEAR = 0.99  # lowest Pearson's r of a fixed coordinate that `near-linear` looks for; the paper's is 0.9980
MOST_TRIED = 8  # images whose maps are computed for it
_COORDINATES = (*FIXED, RESPONSE)

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
    results = _recompute(source, _COORDINATES, mae_ratio)
    return _draw_coordinates(source, results, all_linearity(results, list(_COORDINATES)))


def near_linear(source: Source) -> Drawing:
    """Error maps and linearity on an image that fixed coordinates already fit well (fig:arkit).

    The rule is that of `motivation`, restricted to the half of the images with the lowest AbsRel of a fixed coordinate.
    Of the first of them the one is shown at which all fixed coordinates have a correlation of 0.99, or else the one
    with the highest.
    """
    found = _candidates(source, _COORDINATES)
    middle = float(np.median([_best_fixed(there, "absrel") for there in found.values()] or [math.nan]))
    half = [place for place, there in found.items() if _best_fixed(there, "absrel") <= middle]
    half.sort(key=lambda place: -mae_ratio(found[place]))
    if not half:
        raise _no_image(_COORDINATES)
    best, highest = None, -math.inf
    for image_case in half[:MOST_TRIED]:
        results = recompute_results(cast(Path, source.folder), image_case, _COORDINATES)
        linearity = all_linearity(results, list(_COORDINATES))
        # Without displayed pixels there is no correlation; such an image is the last choice.
        correlation = min(np.nan_to_num(linearity[name].pearson, nan=-1.0) for name in FIXED)
        if best is None or correlation > highest:
            best, highest = (results, linearity), correlation
        if highest >= NEAR_LINEAR:
            break
    return _draw_coordinates(source, *cast(tuple[ImageResults, dict[str, Linearity]], best))


def _draw_coordinates(source: Source, results: ImageResults, linearity: dict[str, Linearity]) -> Drawing:
    numbers = {
        "title": results.title,
        "exponent": chosen_exponent(results),
        "linearity": {method: found.to_dict() for method, found in linearity.items()},
    }
    return Drawing(plot_linearity(results, linearity, largest_error=source.largest_error), numbers)


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
    return _draw_methods(results, shown, results.camera, source.largest_error or LARGEST_ERROR)


def compared(methods: list[str]) -> list[str]:
    """The methods to show: three others, the paper's systems first and local baselines last; then ours and best."""
    own = [name for name in (OURS, BEST) if name in methods]
    others = [name for name in methods if name not in (RAW, *FIXED, RESPONSE, *own)]
    first = [name for name in PAPER_SYSTEMS if name in others]
    rest = [name for name in others if name not in first]
    rest.sort(key=lambda name: name in PARTIAL)  # a stable sort: otherwise in the run's order
    return [*first, *rest][:MOST_OTHERS] + own


def _draw_methods(results: ImageResults, shown: list[str], camera: CameraModel, largest_error: float) -> Drawing:
    height, width = results.reference.shape
    columns = 1 + len(shown)
    side = WIDTH / columns
    figure = new_figure(2 * side * height / width * 0.95 + 0.85)
    grid: Any = figure.subplots(2, columns, squeeze=False)
    show_picture(grid[0][0], results.image, "(a) image, errors")
    mae = {name: depth_scores(results.predictions[name].depth, results.reference, results.scored).mae for name in shown}
    errors = {name: np.abs(results.predictions[name].depth - results.reference) for name in shown}
    show_errors(grid[0][1:], errors, [f"{name}\n{mae[name]:.3f} m" for name in shown], high=largest_error)
    show_picture(grid[1][0], normals_picture(normals(results.reference, camera)), "(b) true normals")
    for axes, name in zip(grid[1][1:], shown, strict=True):
        show_picture(axes, normals_picture(normals(results.predictions[name].depth, camera)), name)
    return Drawing(figure, {"title": results.title, "held_out_mae": mae, "error_scale_end": largest_error})


def _recompute(source: Source, methods: Sequence[str], score: Score) -> ImageResults:
    image_case = choose(source, methods, score)  # an error for published numbers, which have no folder
    return recompute_results(cast(Path, source.folder), image_case, methods)


def choose(source: Source, methods: Sequence[str], score: Score) -> ImageCase:
    """The image and case with the highest score among those with records of all `methods`."""
    found = _candidates(source, methods)
    scores = {image_case: score(there) for image_case, there in found.items()}
    best = max(scores, key=lambda image_case: scores[image_case], default=None)
    if best is None or scores[best] == -math.inf:
        raise _no_image(methods)
    return best


def _no_image(methods: Sequence[str]) -> InputError:
    return InputError(f"the figure needs an image with scores of all of {', '.join(methods)}.")


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
