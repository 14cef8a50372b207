"""Figures of scores: from a run's distributions and records alone.

Each figure is a function that draws, and one that says what is drawn.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.base.errors import InputError
from leadline.bench.results import MACRO, PERCENTILES, Results
from leadline.bench.tables import FIXED, HEADS, OURS, RAW, RESPONSE
from leadline.report.figures.plotting import (
    BLUE,
    GREEN,
    ORANGE,
    Drawing,
    add_legend,
    label_points,
    log_limits,
    new_figure,
    plain_log,
    plot_lines,
    plot_points,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leadline.report.figures.catalogue import Source

Point = tuple[float, float]
Lines = dict[str, tuple[list[float], list[float]]]

OUTLYING = 3.0  # times the median over methods: beyond this a method would squeeze all others together


def plain_methods(results: Results, prior: str) -> list[str]:
    """Methods that have a score with this prior, without the variants of a sweep of weights."""
    return [
        name
        for name in results.methods
        if results.scored(prior, name, "absrel")
        and not {"weight_data", "weight_laplacian"} & results.options.get(name, {}).keys()
    ]


def macro_points(source: Source) -> dict[str, Point]:
    """Macro AbsRel and NMed of each method that has both."""
    results, prior = source.results, source.prior
    points = {
        name: (results.value(prior, name, MACRO, "absrel"), results.value(prior, name, MACRO, "nmed"))
        for name in plain_methods(results, prior)
    }
    return {name: point for name, point in points.items() if all(map(math.isfinite, point))}


def outlying(points: dict[str, Point]) -> list[str]:
    """The methods that a plot of all would be about: more than three times the median in either number."""
    if not points:
        return []
    middle = np.median(np.array(list(points.values())), axis=0)
    return [name for name, point in points.items() if any(OUTLYING * m < p for p, m in zip(point, middle, strict=True))]


@styled
def macro(source: Source) -> Drawing:
    """Depth against normal error, Macro of p50; an inset with the methods that lie far off (fig:joint, a)."""
    from matplotlib.patches import Rectangle

    points = macro_points(source)
    if len(points) < 2:
        raise InputError("needs two methods with depth and normal scores on every subset.")
    far = outlying(points)
    near = {name: point for name, point in points.items() if name not in far}
    figure = new_figure(3.1)
    axes = figure.add_subplot()
    ends = [axis_ends([point[axis] for point in near.values()], 0.09) for axis in (0, 1)]
    axes.set(xlim=ends[0], ylim=ends[1], xlabel=f"{HEADS['absrel']}, Macro of p50", ylabel=f"{HEADS['nmed']}, Macro")
    axes.grid(True)
    plot_points(axes, near, 6.0)
    arrows = []
    if {OURS, RESPONSE} <= near.keys():
        arrows = [(near[RESPONSE], near[OURS])]
        arrow = {"arrowstyle": "-|>", "color": ORANGE, "linewidth": 0.9, "shrinkA": 5, "shrinkB": 6}
        axes.annotate("", near[OURS], near[RESPONSE], arrowprops=arrow).set_in_layout(False)
    if far:
        # Outside of the axes: whatever corner it took, another run would have its points there.
        inset = axes.inset_axes((1.09, 0.5, 0.32, 0.5))
        plot_points(inset, points, 3.6)
        limits = log_limits([point[0] for point in points.values()], 0.12)
        inset.set(xscale="log", xlim=limits, ylim=(0, 1.15 * max(point[1] for point in points.values())))
        plain_log(inset.xaxis, *limits)
        inset.set_title("all methods", fontsize=7)
        inset.grid(True)
        box = Rectangle((ends[0][0], ends[1][0]), np.ptp(ends[0]), np.ptp(ends[1]), fill=False, edgecolor="0.3")
        box.set_linewidth(0.7)
        inset.add_patch(box)
        for name in far:
            side = "right" if points[name][0] > math.sqrt(limits[0] * limits[1]) else "left"
            inset.annotate(
                name,
                points[name],
                (-5 if side == "right" else 5, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=6.5,
            )
    label_points(axes, near, arrows)
    return Drawing(figure, {"prior": source.prior, "points": named(points), "only in the inset": far})


def subset_points(source: Source, metric: str) -> dict[str, list[float]]:
    """p50 per subset of each method that the main view of `macro` shows."""
    results, prior = source.results, source.prior
    methods = plain_methods(results, prior)
    macro_all = {
        name: (results.value(prior, name, MACRO, "absrel"), results.value(prior, name, MACRO, "nmed"))
        for name in methods
    }
    left_out = outlying({name: point for name, point in macro_all.items() if math.isfinite(point[0])})
    shown = [name for name in methods if name not in left_out and results.scored(prior, name, metric)]
    return {name: [results.value(prior, name, subset, metric) for subset in results.subsets] for name in shown}


@styled
def subsets(source: Source) -> Drawing:
    """p50 per subset: depth error left, normal error right (fig:joint, b)."""
    columns = {metric: subset_points(source, metric) for metric in ("absrel", "nmed")}
    columns = {metric: points for metric, points in columns.items() if points}
    if "absrel" not in columns:
        raise InputError("no method has a depth score.")
    names = source.results.subsets
    figure = new_figure(0.95 + 0.28 * len(names))
    grid: Any = figure.subplots(1, len(columns), sharey=True, squeeze=False)
    rows = np.arange(len(names))
    for axes, (metric, points) in zip(grid[0], columns.items(), strict=True):
        for row in rows[::2]:
            axes.axhspan(row - 0.5, row + 0.5, color="0.95", linewidth=0, zorder=0)
        # Each method a little lower than the one before, so that equal errors stay visible.
        for name, down in zip(points, np.linspace(-0.3, 0.3, len(points)), strict=True):
            plot_points(axes, {name: (points[name], rows + down)}, 4.6)
        known = [value for values in points.values() for value in values if math.isfinite(value) and value > 0]
        limits = log_limits(known, 0.05)
        axes.set(xscale="log", xlim=limits, xlabel=f"{HEADS[metric]}, p50", ylim=(len(names) - 0.5, -0.5))
        plain_log(axes.xaxis, *limits)
        axes.set_yticks(rows, names)
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
    methods = list(dict.fromkeys(name for points in columns.values() for name in points))
    add_legend(figure, methods, lines=False)
    numbers = {metric: {"subsets": list(names), "p50": points} for metric, points in columns.items()}
    return Drawing(figure, {"prior": source.prior, **numbers})


def percentile_lines(source: Source, subset: str, metric: str) -> Lines:
    """Seven percentiles of each complete or local method: neither the raw prior nor fixed coordinates."""
    results, prior = source.results, source.prior
    lines: Lines = {}
    for name in plain_methods(results, prior):
        if name in (RAW, *FIXED, "PromptDA"):
            continue
        values = [results.value(prior, name, subset, metric, percentile) for percentile in PERCENTILES]
        if sum(map(math.isfinite, values)) > 1:  # a median alone is not a distribution
            lines[name] = list(map(float, PERCENTILES)), values
    return lines


@styled
def percentiles(source: Source) -> Drawing:
    """p7 to p93 over images and cases: a row per subset, AbsRel left and NMed right (fig:percentiles)."""
    names = source.results.subsets
    cells = {(s, m): percentile_lines(source, s, m) for s in names for m in ("absrel", "nmed")}
    metrics = [metric for metric in ("absrel", "nmed") if any(cells[name, metric] for name in names)]
    if not metrics:
        raise InputError("there are only medians, no distribution over images.")
    figure = new_figure(min(8.6, 0.8 + 1.0 * len(names)))
    grid: Any = figure.subplots(len(names), len(metrics), sharex=True, squeeze=False)
    for row, name in enumerate(names):
        for column, metric in enumerate(metrics):
            axes, lines = grid[row][column], cells[name, metric]
            _percentile_axes(axes, lines)
            if row == 0:
                axes.set_title(HEADS[metric])
            if column == 0:
                axes.set_ylabel(name)
    figure.align_ylabels(grid[:, 0])
    for axes in grid[-1]:
        axes.set_xticks(PERCENTILES, [f"p{percentile}" for percentile in PERCENTILES])
    methods = list(dict.fromkeys(name for lines in cells.values() for name in lines))
    add_legend(figure, methods, lines=True)
    numbers = {
        metric: {name: {method: line[1] for method, line in cells[name, metric].items()} for name in names}
        for metric in metrics
    }
    return Drawing(figure, {"prior": source.prior, "percentiles": list(PERCENTILES), **numbers})


def _percentile_axes(axes: Axes, lines: Lines) -> None:
    axes.grid(True)
    known = [value for _, values in lines.values() for value in values if math.isfinite(value) and value > 0]
    if not known:
        axes.text(0.5, 0.5, "no score", ha="center", va="center", transform=axes.transAxes, color="0.4")
        axes.set_yticks([])
        return
    plot_lines(axes, lines, 3.0)
    limits = log_limits(known, 0.06)
    axes.set(yscale="log", ylim=limits)
    plain_log(axes.yaxis, *limits)


def stage_points(source: Source, metric: str) -> dict[str, Point]:
    """Per subset the p50 of the response alone and of the whole method."""
    results, prior = source.results, source.prior
    points = {
        subset: (results.value(prior, RESPONSE, subset, metric), results.value(prior, OURS, subset, metric))
        for subset in results.subsets
    }
    return {subset: point for subset, point in points.items() if all(map(math.isfinite, point))}


@styled
def stages(source: Source) -> Drawing:
    """AbsRel before and after the residual's reconstruction; each point a subset (fig:stages)."""
    return _stages(source, "absrel")


@styled
def stage_normals(source: Source) -> Drawing:
    """NMed before and after the residual's reconstruction; each point a subset (fig:stage-normals)."""
    return _stages(source, "nmed")


def _stages(source: Source, metric: str) -> Drawing:
    points = stage_points(source, metric)
    if not points:
        raise InputError(f"needs {HEADS[metric]} of both {RESPONSE!r} and {OURS!r} on a subset.")
    figure = new_figure(3.3, 3.6)
    axes = figure.add_subplot()
    limits = log_limits([value for point in points.values() for value in point], 0.1)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    axes.set(xlabel=f"{HEADS[metric]}, response alone", ylabel=f"{HEADS[metric]}, whole method")
    for axis in (axes.xaxis, axes.yaxis):
        plain_log(axis, *limits)
    axes.grid(True)
    axes.fill_between(limits, (limits[0], limits[0]), limits, color=GREEN, alpha=0.07, linewidth=0)
    axes.plot(limits, limits, color="0.5", linewidth=0.8, label="equal")
    axes.text(0.97, 0.03, "better after the residual", ha="right", transform=axes.transAxes, fontsize=6.5, color="0.35")
    x, y = zip(*points.values(), strict=True)
    axes.plot(x, y, linestyle="none", marker="o", markersize=4.5, color=ORANGE, label="subsets")
    label_points(axes, points, [((limits[0], limits[0]), (limits[1], limits[1]))])
    return Drawing(figure, {"prior": source.prior, "metric": metric, "points": named(points)})


def weight_lines(source: Source, metric: str) -> dict[float, tuple[list[float], list[float]]]:
    """Per curvature weight: the data weights and the Macro of p50 there."""
    results = source.results
    found: dict[float, list[Point]] = defaultdict(list)
    for name, options in results.options.items():
        if {"weight_data", "weight_laplacian"} & options.keys():
            value = results.value(source.prior, name, MACRO, metric)
            if math.isfinite(value):
                place = float(options.get("weight_data", 1e-3)), value
                found[float(options.get("weight_laplacian", 1e-3))].append(place)
    lines = {curvature: sorted(points) for curvature, points in sorted(found.items())}
    return {curvature: ([x for x, _ in points], [y for _, y in points]) for curvature, points in lines.items()}


@styled
def weights(source: Source) -> Drawing:
    """MAE and NMed over the residual's data weight, a line per curvature weight (fig:sensitivity)."""
    panels = {metric: weight_lines(source, metric) for metric in ("mae", "nmed")}
    panels = {metric: lines for metric, lines in panels.items() if lines}
    if not panels:
        raise InputError("no method of the run varies weight_data or weight_laplacian; see 'bench run weights'.")
    figure = new_figure(2.1)
    grid: Any = figure.subplots(1, len(panels), squeeze=False)
    looks = ((BLUE, "o", "-", 7.0), (ORANGE, "s", "--", 4.5), (GREEN, "^", ":", 3.0))
    for axes, (metric, lines) in zip(grid[0], panels.items(), strict=True):
        for place, (curvature, (x, y)) in enumerate(lines.items()):
            # The curves lie on each other: each smaller than the one below it.
            colour, marker, line, size = looks[place % 3]
            axes.plot(x, y, line, marker=marker, color=colour, markersize=size, label=f"{curvature:g}")
        axes.set(xscale="log", xlabel="data weight", ylabel=f"{HEADS[metric]}, Macro of p50")
        axes.margins(x=0.12, y=0.15)
        plain_log(axes.xaxis, *axes.get_xlim())
        axes.grid(True)
    grid[0][-1].legend(title="curvature weight", title_fontsize=7, loc="best")
    numbers = {
        metric: [{"weight_laplacian": lap, "weight_data": x, "macro_p50": y} for lap, (x, y) in lines.items()]
        for metric, lines in panels.items()
    }
    return Drawing(figure, {"prior": source.prior, **numbers})


def axis_ends(values: list[float], margin: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = margin * (high - low) or 0.05 * high
    return low - pad, high + pad


def named(points: dict[str, Point]) -> dict[str, list[float]]:
    return {name: list(point) for name, point in points.items()}
