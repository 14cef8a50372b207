"""Figures of scores, drawn from the distributions of a run.

Each figure has a function that collects its numbers and one that plots them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.base.errors import InputError
from leadline.bench.results import MACRO, PERCENTILES, Results
from leadline.bench.tables import FIXED, HEADS, OURS, RAW, RESPONSE
from leadline.report.figures.plotting import (
    BLUE,
    GREEN,
    ORANGE,
    WIDTH,
    Drawing,
    add_legend,
    label_points,
    new_figure,
    plain_log,
    plot_lines,
    plot_points,
    styled,
    use_log_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Transform

    from leadline.report.figures import Source

LONGEST_NAME = 35  # characters of a subset's name that fit above one panel
PAGE = 8.6  # inches: the height of a figure of a whole page
MOST_NAMES = 12  # subsets whose names fit beside their points; more are numbered

Point = tuple[float, float]
Lines = dict[str, tuple[list[float], list[float]]]

FAR = 3.0  # times the median over methods: a method beyond it would squeeze all others together


def plain_methods(results: Results, prior: str) -> list[str]:
    """Methods that have a score with this prior, without variants that differ in their weights only."""
    return [
        name
        for name in results.methods
        if results.has_scores(prior, name, "absrel")
        and not {"weight_data", "weight_laplacian"} & results.options.get(name, {}).keys()
    ]


def with_normals(results: Results, prior: str) -> Results:
    """The results restricted to subsets in which a method has a normal score, so that Macro is over these."""
    subsets = tuple(
        name
        for name in results.subsets
        if any(math.isfinite(results.value(prior, method, name, "nmed")) for method in results.methods)
    )
    return replace(results, subsets=subsets)


def macro_points(results: Results, prior: str) -> dict[str, Point]:
    """Macro AbsRel and NMed of each method that has both."""
    points = {
        name: (results.value(prior, name, MACRO, "absrel"), results.value(prior, name, MACRO, "nmed"))
        for name in plain_methods(results, prior)
    }
    return {name: point for name, point in points.items() if all(map(math.isfinite, point))}


def far_methods(points: dict[str, Point]) -> list[str]:
    """Methods with more than three times the median of all methods in either number."""
    if not points:
        return []
    middle = np.median(np.array(list(points.values())), axis=0)
    return [name for name, point in points.items() if any(FAR * m < p for p, m in zip(point, middle, strict=True))]


@styled
def macro(source: Source) -> Drawing:
    """Depth and normal error of each method, averaged over the subsets (fig:joint, a).

    Methods with far larger errors are shown in an inset. Subsets without normals are left out of both averages.
    """
    from matplotlib.patches import Rectangle

    results = with_normals(source.results, source.prior)
    points = macro_points(results, source.prior)
    if len(points) < 2:
        raise InputError("the figure needs two methods with depth and normal scores.")
    left_out = [name for name in source.results.subsets if name not in results.subsets]
    over = f" over {len(results.subsets)} of {len(source.results.subsets)} subsets" if left_out else ""
    far = far_methods(points)
    near = {name: point for name, point in points.items() if name not in far}
    figure = new_figure(3.1)
    axes = figure.add_subplot()
    ends = [axis_ends([point[axis] for point in near.values()], 0.09) for axis in (0, 1)]
    axes.set(xlim=ends[0], ylim=ends[1])
    axes.set(xlabel=f"{HEADS['absrel']}, Macro of p50{over}", ylabel=f"{HEADS['nmed']}, Macro")
    axes.grid(True)
    plot_points(axes, near, 6.0)
    arrows = []
    if {OURS, RESPONSE} <= near.keys():
        arrows = [(near[RESPONSE], near[OURS])]
        arrow = {"arrowstyle": "-|>", "color": ORANGE, "linewidth": 0.9, "shrinkA": 5, "shrinkB": 6}
        axes.annotate("", near[OURS], near[RESPONSE], arrowprops=arrow).set_in_layout(False)
    if far:
        # Outside of the axes, since every corner inside may hold points.
        inset = axes.inset_axes((1.09, 0.5, 0.32, 0.5))
        plot_points(inset, points, 3.6)
        limits = use_log_axis(inset, "x", [point[0] for point in points.values()], 0.12, closest=0.25)
        inset.set_ylim(0, 1.15 * max(point[1] for point in points.values()))
        inset.set_title("all methods", fontsize=7)
        inset.grid(True)
        corner, size = (ends[0][0], ends[1][0]), (float(np.ptp(ends[0])), float(np.ptp(ends[1])))
        inset.add_patch(Rectangle(corner, *size, fill=False, edgecolor="0.3", linewidth=0.7))
        for name in far:
            side, offset = ("right", -5) if points[name][0] > math.sqrt(limits[0] * limits[1]) else ("left", 5)
            place: dict[str, Any] = {"textcoords": "offset points", "ha": side, "va": "center", "fontsize": 6.5}
            inset.annotate(name, points[name], (offset, 0), **place)
    label_points(axes, near, arrows)
    numbers = {"points": points, "only in the inset": far, "subsets without normals": left_out}
    return Drawing(figure, {"prior": source.prior, **numbers})


def subset_points(source: Source, metric: str) -> dict[str, list[float]]:
    """p50 per subset of each method whose Macro is not far larger than that of the others."""
    results, prior = source.results, source.prior
    methods = plain_methods(results, prior)
    normals = with_normals(results, prior)
    macro_all = {
        name: (results.value(prior, name, MACRO, "absrel"), normals.value(prior, name, MACRO, "nmed"))
        for name in methods
    }
    left_out = far_methods({name: point for name, point in macro_all.items() if math.isfinite(point[0])})
    shown = [name for name in methods if name not in left_out and results.has_scores(prior, name, metric)]
    return {name: [results.value(prior, name, subset, metric) for subset in results.subsets] for name in shown}


@styled
def subsets(source: Source) -> Drawing:
    """Median depth and normal error of each method per subset (fig:joint, b)."""
    columns = {metric: subset_points(source, metric) for metric in ("absrel", "nmed")}
    columns = {metric: points for metric, points in columns.items() if points}
    if "absrel" not in columns:
        raise InputError("the figure needs a method with a depth score.")
    names = source.results.subsets
    figure = new_figure(0.95 + 0.33 * len(names))
    grid: Any = figure.subplots(1, len(columns), sharey=True, squeeze=False)
    rows = np.arange(len(names))
    for axes, (metric, points) in zip(grid[0], columns.items(), strict=True):
        for row in rows[::2]:
            axes.axhspan(row - 0.5, row + 0.5, color="0.95", linewidth=0, zorder=0)
        # Each method is drawn a little lower than the one before, so that equal errors do not cover each other.
        for name, down in zip(points, np.linspace(-0.3, 0.3, len(points)), strict=True):
            plot_points(axes, {name: (points[name], rows + down)}, 4.6)
        known = [value for values in points.values() for value in values if math.isfinite(value) and value > 0]
        use_log_axis(axes, "x", known, 0.05)
        axes.set(xlabel=f"{HEADS[metric]}, p50", ylim=(len(names) - 0.5, -0.5))
        axes.set_yticks(rows, [shortened(name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
        for row in rows:
            if not any(math.isfinite(values[row]) for values in points.values()):
                _say_no_score(axes, float(row), axes.get_yaxis_transform())
    methods = list(dict.fromkeys(name for points in columns.values() for name in points))
    add_legend(figure, methods, lines=False)
    numbers = {metric: {"subsets": list(names), "p50": points} for metric, points in columns.items()}
    return Drawing(figure, {"prior": source.prior, **numbers})


def shortened(name: str) -> str:
    """A name of at most 35 characters, without its middle if it is longer, since names often differ at the end."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def _say_no_score(axes: Axes, y: float, transform: Transform) -> None:
    axes.text(0.5, y, "no score", ha="center", va="center", transform=transform, color="0.4")


def percentile_lines(source: Source, subset: str, metric: str) -> Lines:
    """Seven percentiles of each method except the raw prior, the fixed coordinates and PromptDA."""
    results, prior = source.results, source.prior
    lines: Lines = {}
    for name in plain_methods(results, prior):
        if name in (RAW, *FIXED, "PromptDA"):
            continue
        values = [results.value(prior, name, subset, metric, percentile) for percentile in PERCENTILES]
        if sum(map(math.isfinite, values)) > 1:  # published numbers may have the median alone
            lines[name] = list(map(float, PERCENTILES)), values
    return lines


@styled
def percentiles(source: Source) -> Drawing:
    """Percentiles 7 to 93 of depth and normal error over images and cases, per subset (fig:percentiles)."""
    names = source.results.subsets
    cells = {(s, m): percentile_lines(source, s, m) for s in names for m in ("absrel", "nmed")}
    metrics = [metric for metric in ("absrel", "nmed") if any(cells[name, metric] for name in names)]
    if not metrics:
        raise InputError("the figure needs percentiles over images; there are only medians.")
    figure = new_figure(max(min(PAGE, 1.0 + 1.15 * len(names)), 0.95 * len(names)))
    grid: Any = figure.subplots(len(names), len(metrics), sharex=True, squeeze=False)
    for row, name in enumerate(names):
        for column, metric in enumerate(metrics):
            axes, lines = grid[row][column], cells[name, metric]
            axes.grid(True)
            known = [value for _, values in lines.values() for value in values if math.isfinite(value) and value > 0]
            if known:
                plot_lines(axes, lines, 3.0)
                use_log_axis(axes, "y", known, 0.06, closest=0.18)  # the panels are low
            else:
                _say_no_score(axes, 0.5, axes.transAxes)
                axes.set_yticks([])
            axes.set_ylabel(HEADS[metric])
            if column == 0:
                axes.set_title(shortened(name), loc="left", pad=3, fontweight="bold")
    figure.align_ylabels(grid)
    for axes in grid[-1]:
        axes.set_xticks(PERCENTILES, [str(percentile) for percentile in PERCENTILES])
        axes.set_xlabel("percentile over images and cases")
    methods = list(dict.fromkeys(name for lines in cells.values() for name in lines))
    add_legend(figure, methods, lines=True)
    numbers = {
        metric: {name: {method: line[1] for method, line in cells[name, metric].items()} for name in names}
        for metric in metrics
    }
    return Drawing(figure, {"prior": source.prior, "percentiles": list(PERCENTILES), **numbers})


def stage_points(source: Source, metric: str) -> dict[str, Point]:
    """For each subset the p50 of the response without and with the reconstructed residual."""
    results, prior = source.results, source.prior
    points = {
        subset: (results.value(prior, RESPONSE, subset, metric), results.value(prior, OURS, subset, metric))
        for subset in results.subsets
    }
    return {subset: point for subset, point in points.items() if all(map(math.isfinite, point))}


@styled
def stages(source: Source) -> Drawing:
    """Depth error before and after the reconstruction of the residual, per subset (fig:stages)."""
    return _stages(source, "absrel")


@styled
def stage_normals(source: Source) -> Drawing:
    """Normal error before and after the reconstruction of the residual, per subset (fig:stage-normals)."""
    return _stages(source, "nmed")


def _stages(source: Source, metric: str) -> Drawing:
    from matplotlib.lines import Line2D

    points = stage_points(source, metric)
    if not points:
        raise InputError(f"the figure needs {HEADS[metric]} of both {RESPONSE!r} and {OURS!r} on a subset.")
    figure = new_figure(3.3, 3.6 if len(points) <= MOST_NAMES else WIDTH)
    axes = figure.add_subplot()
    both = [value for point in points.values() for value in point]
    limits = use_log_axis(axes, "x", both, 0.1)
    use_log_axis(axes, "y", both, 0.1)
    axes.set(xlabel=f"{HEADS[metric]}, response only", ylabel=f"{HEADS[metric]}, response and residual")
    axes.set_aspect("equal")
    axes.grid(True)
    axes.fill_between(limits, (limits[0], limits[0]), limits, color=GREEN, alpha=0.07, linewidth=0)
    axes.plot(limits, limits, color="0.5", linewidth=0.8, label="equal")
    axes.text(0.97, 0.03, "better with the residual", ha="right", transform=axes.transAxes, fontsize=6.5, color="0.35")
    x, y = zip(*points.values(), strict=True)
    axes.plot(x, y, linestyle="none", marker="o", markersize=4.5, color=ORANGE, label="subsets")
    labels = {str(i): point for i, point in enumerate(points.values(), 1)} if len(points) > MOST_NAMES else points
    if labels is not points:
        key = [Line2D([], [], linestyle="none", label=f"{i} {shortened(name)}") for i, name in enumerate(points, 1)]
        figure.legend(handles=key, loc="outside right upper", handlelength=0, handletextpad=0, fontsize=6.5)
    # Names cover neither the diagonal nor the sentence in the corner.
    middle, low = (limits[0] * (limits[1] / limits[0]) ** share for share in (0.55, 0.05))
    diagonal = ((limits[0], limits[0]), (limits[1], limits[1]))
    label_points(axes, labels, [diagonal, ((middle, low), (limits[1], low))])
    return Drawing(figure, {"prior": source.prior, "metric": metric, "points": points})


def weight_lines(source: Source, metric: str) -> dict[float, tuple[list[float], list[float]]]:
    """For each curvature weight the data weights of the run and the Macro of p50 at each."""
    results = source.results
    found: dict[float, list[Point]] = defaultdict(list)
    for name, options in results.options.items():
        if {"weight_data", "weight_laplacian"} & options.keys():
            value = results.value(source.prior, name, MACRO, metric)
            if math.isfinite(value):
                point = float(options.get("weight_data", 1e-3)), value
                found[float(options.get("weight_laplacian", 1e-3))].append(point)
    lines = {curvature: sorted(points) for curvature, points in sorted(found.items())}
    return {curvature: ([x for x, _ in points], [y for _, y in points]) for curvature, points in lines.items()}


@styled
def weights(source: Source) -> Drawing:
    """Sensitivity of depth and normal error to the weights of the reconstruction (fig:sensitivity)."""
    panels = {metric: weight_lines(source, metric) for metric in ("mae", "nmed")}
    panels = {metric: lines for metric, lines in panels.items() if lines}
    if not panels:
        raise InputError(
            "the figure needs methods that differ in weight_data or weight_laplacian; the protocol 'weights' has them."
        )
    figure = new_figure(2.1)
    grid: Any = figure.subplots(1, len(panels), squeeze=False)
    looks = ((BLUE, "o", "-", 7.0), (ORANGE, "s", "--", 4.5), (GREEN, "^", ":", 3.0))
    for axes, (metric, lines) in zip(grid[0], panels.items(), strict=True):
        for place, (curvature, (x, y)) in enumerate(lines.items()):
            # The curves nearly coincide, so each has smaller markers than the one below it.
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
    """Limits of a linear axis with a margin around the values."""
    low, high = min(values), max(values)
    pad = margin * (high - low) or 0.05 * high
    return low - pad, high + pad
