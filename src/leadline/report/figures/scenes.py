"""Figures of single images: their maps are computed again from the protocol that the run carries.

Which image is shown follows from the records by a rule that each figure states, unless one is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.base.errors import InputError
from leadline.bench.metrics import depth_scores, normals
from leadline.bench.records import Record
from leadline.bench.tables import FIXED, OURS, PARTIAL, RAW, RESPONSE
from leadline.report.colour import normals_picture
from leadline.report.diagnosis import SCALED, chosen_exponent, scaled_prior_relation
from leadline.report.diagnostic_plots import group_plot, linearity, show_errors, show_picture
from leadline.report.diagnostics import relation, window_of
from leadline.report.figures.plotting import WIDTH, Drawing, new_figure, styled
from leadline.report.figures.scores import plain_methods
from leadline.report.trial import Place, Trial, recompute

if TYPE_CHECKING:
    from leadline.report.figures.catalogue import Source

CASE = "distributed"  # that of the paper's figures of single images, where the run has it
MOST = 3  # methods beside ours

Score = Callable[[dict[str, Record]], float]


def regions(source: Source) -> Drawing:
    """Point groups of the image at which one response gains most over one line in depth (fig:response-regions)."""

    def gain(there: dict[str, Record]) -> float:
        return there["GMetric"].mae / there[RESPONSE].mae

    needed = ("GMetric", RESPONSE)
    trial = recompute(_folder(source), choose(source, needed, gain), (RESPONSE,))
    drawing: Drawing = group_plot(trial)
    return drawing


def motivation(source: Source) -> Drawing:
    """The image at which the response gains most over the best of the fixed coordinates (fig:motivation)."""
    return _coordinates(source, _gain)


def near_linear(source: Source) -> Drawing:
    """As `motivation`, among the half of the images on which the fixed coordinates are best (fig:arkit)."""
    good = [_best_fixed(there, "absrel") for there in _candidates(source, (*FIXED, RESPONSE)).values()]
    middle = float(np.median(good)) if good else math.nan

    def score(there: dict[str, Record]) -> float:
        return _gain(there) if _best_fixed(there, "absrel") <= middle else -math.inf

    return _coordinates(source, score)


def _coordinates(source: Source, score: Score) -> Drawing:
    methods = (*FIXED, RESPONSE)
    trial = recompute(_folder(source), choose(source, methods, score), methods)
    window = window_of(trial.reference, trial.scored)
    relations = {SCALED: scaled_prior_relation(trial)}
    for method in methods:
        relations[method] = relation(trial.predictions[method].depth, trial.reference, trial.scored, window=window)
    numbers = {
        "title": trial.title,
        "exponent": chosen_exponent(trial),
        "relations": {method: found.to_dict() for method, found in relations.items()},
    }
    return Drawing(linearity(trial, relations), numbers)


@styled
def qualitative(source: Source) -> Drawing:
    """Depth errors and normals of the image whose error is nearest to our median one (fig:qualitative)."""
    shown = compared(plain_methods(source.results, source.prior))
    if OURS not in shown or len(shown) < 2:
        raise InputError(f"needs {OURS!r} and another method that completes depth.")
    typical = float(np.median([there[OURS].mae for there in _candidates(source, tuple(shown)).values()] or [math.nan]))

    def score(there: dict[str, Record]) -> float:
        if not math.isfinite(there[OURS].nmed):
            return -math.inf
        return -abs(math.log(there[OURS].mae / typical))

    trial = recompute(_folder(source), choose(source, tuple(shown), score), shown)
    if trial.camera is None:
        raise InputError(f"{trial.title} has no camera, which normals need; choose another image.")
    return _panels(trial, shown)


def compared(methods: list[str]) -> list[str]:
    """At most three methods to show beside ours, which comes last: complete systems first, then local baselines."""
    others = [name for name in methods if name not in (RAW, *FIXED, RESPONSE, OURS)]
    others.sort(key=lambda name: name in PARTIAL)  # stable: else in the run's order
    return others[:MOST] + [OURS] * (OURS in methods)


def _panels(trial: Trial, shown: list[str]) -> Drawing:
    height, width = trial.reference.shape
    columns = 1 + len(shown)
    side = WIDTH / columns
    figure = new_figure(2 * side * height / width * 0.95 + 0.62)
    grid: Any = figure.subplots(2, columns, squeeze=False)
    show_picture(grid[0][0], trial.image, "(a) scene, errors")
    mae = {name: depth_scores(trial.predictions[name].depth, trial.reference, trial.scored).mae for name in shown}
    errors = {name: np.abs(trial.predictions[name].depth - trial.reference) for name in shown}
    high = show_errors(grid[0][1:], errors, [f"{name}, {mae[name]:.3f} m" for name in shown])
    camera = trial.camera
    if camera is None:
        raise InputError(f"{trial.title}: has no camera, which normals need.")
    show_picture(grid[1][0], normals_picture(normals(trial.reference, camera)), "(b) normals")
    for axes, name in zip(grid[1][1:], shown, strict=True):
        show_picture(axes, normals_picture(normals(trial.predictions[name].depth, camera)), name)
    return Drawing(figure, {"title": trial.title, "held_out_mae": mae, "largest error shown": high})


def choose(source: Source, methods: tuple[str, ...], score: Score) -> Place:
    """The place with the highest score among those that have all of `methods`.

    Raises
    ------
    InputError
        There is none.
    """
    found = _candidates(source, methods)
    scores = {place: score(there) for place, there in found.items()}
    best = max(scores, key=lambda place: scores[place], default=None)
    if best is None or scores[best] == -math.inf:
        raise InputError(f"no image of the run has a score of each of {', '.join(methods)}.")
    return best


def _candidates(source: Source, methods: tuple[str, ...]) -> dict[Place, dict[str, Record]]:
    places = source.places()
    if source.case is None and any(place.case == CASE for place in places):
        places = [place for place in places if place.case == CASE]
    found = {place: source.at(place) for place in places}
    return {place: there for place, there in found.items() if all(name in there for name in methods)}


def _folder(source: Source) -> Any:
    source.places()  # says so if these are published numbers
    return source.folder


def _best_fixed(there: dict[str, Record], metric: str) -> float:
    return min(float(getattr(there[name], metric)) for name in FIXED)


def _gain(there: dict[str, Record]) -> float:
    return _best_fixed(there, "mae") / there[RESPONSE].mae
