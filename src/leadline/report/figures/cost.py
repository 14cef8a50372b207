"""Figures of error against cost, in measurements and in seconds. They are not in the paper."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.base.errors import InputError
from leadline.bench.results import MACRO, pool
from leadline.bench.tables import HEADS, RAW
from leadline.report.figures.plotting import (
    Drawing,
    add_legend,
    label_points,
    new_figure,
    plot_lines,
    plot_points,
    styled,
    use_log_axis,
)
from leadline.report.figures.scores import FAR, Lines, Point, axis_ends, plain_methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leadline.report.figures import Source

PAPER_CASES = ("distributed", "central", "outer")
PAPER_KIND = "the paper's cases"


def measurement_counts(source: Source) -> dict[str, float]:
    """The median number of measurements per image of each case, in the run's order."""
    ran = [record for record in source.records if record.prior == source.prior and record.measured]
    cases = dict.fromkeys(record.case for record in ran)
    return {case: float(np.median([record.measured for record in ran if record.case == case])) for case in cases}


def case_errors(source: Source) -> dict[str, dict[str, float]]:
    """For each case with measurements the Macro of p50 AbsRel of each method that has one."""
    results, prior = source.results, source.prior
    methods = [name for name in plain_methods(results, prior) if name != RAW]
    errors = {}
    for case in measurement_counts(source):
        own = [record for record in source.records if record.prior == prior and record.case == case]
        pooled = pool(own, subsets=results.subsets, priors=[prior], methods=results.methods)
        values = {name: pooled.value(prior, name, MACRO, "absrel") for name in methods}
        errors[case] = {name: value for name, value in values.items() if math.isfinite(value)}
    return errors


def comparable_cases(source: Source) -> dict[str, list[str]]:
    """Kinds of patterns of which the run has several, each with its cases by their number of measurements.

    Patterns of one kind differ in their first number only, e.g. ``random:100`` and ``random:1000``. The paper's three
    cases are one kind as well.
    """
    counts = measurement_counts(source)
    kinds: dict[str, list[str]] = {}
    for case in counts:
        kinds.setdefault(pattern_kind(case), []).append(case)
    return {kind: sorted(cases, key=lambda case: counts[case]) for kind, cases in kinds.items() if len(cases) > 1}


def pattern_kind(case: str) -> str:
    """The case with N for the first number of its pattern."""
    first, *rest = case.split("+")
    name, *numbers = first.split(":")
    kind = PAPER_KIND if name in PAPER_CASES else ":".join([name, "N" if numbers else "", *numbers[1:]]).rstrip(":")
    return "+".join([kind, *rest])


@styled
def coverage(source: Source) -> Drawing:
    """Depth error against the number of measurements per image, a panel per kind of pattern.

    Lines join patterns of one kind. The paper's cases differ in where they measure and where they are scored, so their
    points are not joined.
    """
    kinds, counts, errors = comparable_cases(source), measurement_counts(source), case_errors(source)
    known = [value for cases in kinds.values() for case in cases for value in errors[case].values()]
    if not known:
        raise InputError(
            "the figure needs a run with patterns that differ in their number only, e.g. random:100 and random:1000."
        )
    figure = new_figure(2.7)
    grid: Any = figure.subplots(1, len(kinds), sharey=True, squeeze=False)
    methods = list(dict.fromkeys(name for cases in kinds.values() for case in cases for name in errors[case]))
    for axes, (kind, cases) in zip(grid[0], kinds.items(), strict=True):
        axes.set(xlabel="measurements per image", title=kind)
        use_log_axis(axes, "y", known, 0.06)
        if kind.startswith(PAPER_KIND):
            _plot_cases(axes, {case: errors[case] for case in cases}, methods, [counts[case] for case in cases])
            continue
        lines: Lines = {}
        for name in methods:
            scored = [case for case in cases if name in errors[case]]
            lines[name] = [counts[case] for case in scored], [errors[case][name] for case in scored]
        plot_lines(axes, lines)
        use_log_axis(axes, "x", [counts[case] for case in cases])
        axes.grid(True)
    grid[0][0].set_ylabel(f"{HEADS['absrel']}, Macro of p50")
    add_legend(figure, methods, lines=any(not kind.startswith(PAPER_KIND) for kind in kinds))
    numbers = {
        kind: {case: {"measurements": counts[case], "absrel": errors[case]} for case in cases}
        for kind, cases in kinds.items()
    }
    return Drawing(figure, {"prior": source.prior, "kinds": numbers})


def _plot_cases(axes: Axes, errors: dict[str, dict[str, float]], methods: list[str], counts: list[float]) -> None:
    """Markers in one column per case; each method is moved sideways so that equal errors do not cover each other."""
    offsets = dict(zip(methods, np.linspace(-0.27, 0.27, len(methods)), strict=True))
    points: dict[str, Any] = {}
    for name in methods:
        scored = [(column, own[name]) for column, own in enumerate(errors.values()) if name in own]
        points[name] = [column + offsets[name] for column, _ in scored], [value for _, value in scored]
    plot_points(axes, points, 4.5)
    names = [case.partition("+")[0] for case in errors]
    axes.set_xticks(range(len(names)), [f"{name}\n{count:,.0f}" for name, count in zip(names, counts, strict=True)])
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(True, axis="y")


def speed_points(source: Source) -> dict[str, Point]:
    """For each method the median seconds per image, without those of the network, and the Macro of p50 AbsRel."""
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
    """Depth error against the seconds per image of each method."""
    points = speed_points(source)
    if not points:
        raise InputError("the figure needs the records of a run, with the run time of their method.")
    middle = float(np.median([point[1] for point in points.values()]))
    shown = {name: point for name, point in points.items() if point[1] <= FAR * middle}
    figure = new_figure(2.9)
    axes = figure.add_subplot()
    use_log_axis(axes, "x", [point[0] for point in shown.values()], 0.12)
    axes.set_ylim(axis_ends([point[1] for point in shown.values()], 0.12))
    axes.set(xlabel="seconds per image, without the network", ylabel=f"{HEADS['absrel']}, Macro of p50")
    axes.grid(True)
    plot_points(axes, shown, 6.0)
    label_points(axes, shown)
    left_out = [name for name in points if name not in shown]
    return Drawing(figure, {"prior": source.prior, "points": points, "not shown": left_out})
