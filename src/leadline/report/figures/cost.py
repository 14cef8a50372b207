"""Figures of cost: what measurements and seconds buy. Not in the paper; from a run's records alone."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.base.errors import InputError
from leadline.bench.results import MACRO, pool
from leadline.bench.tables import HEADS, RAW
from leadline.report.figures.plotting import (
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
from leadline.report.figures.scores import OUTLYING, Lines, Point, axis_ends, named, plain_methods

if TYPE_CHECKING:
    from leadline.report.figures.catalogue import Source

GRID = ("distributed", "central", "outer")
PAPER = "the paper's cases"


def measurements(source: Source) -> dict[str, float]:
    """The median number of measurements an image of each case, in the run's order."""
    ran = [record for record in source.records if record.prior == source.prior and record.measured]
    cases = dict.fromkeys(record.case for record in ran)
    return {case: float(np.median([record.measured for record in ran if record.case == case])) for case in cases}


def coverage_lines(source: Source) -> dict[str, Lines]:
    """Per kind of pattern: of each method the measurements an image and the Macro of p50 AbsRel, by their number.

    Patterns of one kind differ in their first number only, e.g. ``random:100`` and ``random:1000``. The paper's three
    cases are a kind too, though they are scored on different pixels.
    """
    results, prior = source.results, source.prior
    methods = [name for name in plain_methods(results, prior) if name != RAW]
    kinds: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    counts = measurements(source)
    for case in counts:
        own = [record for record in source.records if record.prior == prior and record.case == case]
        pooled = pool(own, subsets=results.subsets, priors=[prior], methods=results.methods)
        count = counts[case]
        for name in methods:
            value = pooled.value(prior, name, MACRO, "absrel")
            if math.isfinite(value) and count > 0:
                kinds[_kind(case)][name].append((count, value))
    found = {
        kind: {name: tuple(map(list, zip(*sorted(points), strict=True))) for name, points in lines.items()}
        for kind, lines in kinds.items()
    }
    return {kind: lines for kind, lines in found.items() if any(len(line[0]) > 1 for line in lines.values())}  # type: ignore[misc]


@styled
def coverage(source: Source) -> Drawing:
    """AbsRel against the number of measurements an image, a panel per kind of pattern."""
    kinds = coverage_lines(source)
    if not kinds:
        raise InputError("needs patterns that differ in their number only, e.g. random:100 and random:1000.")
    figure = new_figure(2.7)
    grid: Any = figure.subplots(1, len(kinds), sharey=True, squeeze=False)
    every = [value for lines in kinds.values() for line in lines.values() for value in line[1]]
    for axes, (kind, lines) in zip(grid[0], kinds.items(), strict=True):
        plot_lines(axes, lines)
        across = log_limits([value for line in lines.values() for value in line[0]], 0.08)
        up = log_limits(every, 0.06)
        axes.set(xscale="log", yscale="log", xlim=across, ylim=up, xlabel="measurements an image", title=kind)
        plain_log(axes.xaxis, *across)
        plain_log(axes.yaxis, *up)
        axes.grid(True)
        cases = {case: count for case, count in measurements(source).items() if _kind(case) == kind}
        if kind.startswith(PAPER):  # their names say more than their numbers
            axes.set_xticks(list(cases.values()), [f"{case}\n{count:,.0f}" for case, count in cases.items()])
    grid[0][0].set_ylabel(f"{HEADS['absrel']}, Macro of p50")
    methods = list(dict.fromkeys(name for lines in kinds.values() for name in lines))
    add_legend(figure, methods, lines=True)
    return Drawing(figure, {"prior": source.prior, "kinds": kinds})


def _kind(case: str) -> str:
    first, *rest = case.split("+")
    name, *numbers = first.split(":")
    named = PAPER if name in GRID else ":".join([name, "N" if numbers else "", *numbers[1:]]).rstrip(":")
    return "+".join([named, *rest])


def speed_points(source: Source) -> dict[str, Point]:
    """Per method the median seconds an image, the network's not counted, and the Macro of p50 AbsRel."""
    results, prior = source.results, source.prior
    points = {}
    for name in plain_methods(results, prior):
        seconds = [r.seconds for r in source.records if r.method == name and r.prior == prior and r.seconds > 0]
        value = results.value(prior, name, MACRO, "absrel")
        if seconds and math.isfinite(value):
            points[name] = float(np.median(seconds)), value
    return points


@styled
def speed(source: Source) -> Drawing:
    """AbsRel against the seconds that a method takes for an image."""
    points = speed_points(source)
    if not points:
        raise InputError("no record says how long its method took.")
    middle = float(np.median([point[1] for point in points.values()]))
    shown = {name: point for name, point in points.items() if point[1] <= OUTLYING * middle}
    figure = new_figure(2.9)
    axes = figure.add_subplot()
    across = log_limits([point[0] for point in shown.values()], 0.12)
    axes.set(xscale="log", xlim=across, ylim=axis_ends([point[1] for point in shown.values()], 0.12))
    axes.set(xlabel="seconds an image, without the network", ylabel=f"{HEADS['absrel']}, Macro of p50")
    plain_log(axes.xaxis, *across)
    axes.grid(True)
    plot_points(axes, shown, 6.0)
    label_points(axes, shown)
    left_out = [name for name in points if name not in shown]
    return Drawing(figure, {"prior": source.prior, "points": named(points), "not shown": left_out})
