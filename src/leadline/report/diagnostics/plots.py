"""Plots of the diagnostics of one image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.bench.tables import BEST, FIXED, OURS, RESPONSE
from leadline.report.colour import ABOVE, colour_bar, colourise, round_up
from leadline.report.diagnostics import ADAPTIVE, SCALED_PRIOR, Diagnosis, chosen_exponent
from leadline.report.diagnostics.curves import FIXED_EXPONENTS
from leadline.report.diagnostics.linearity import Linearity
from leadline.report.figures.plotting import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    WIDTH,
    marks,
    new_figure,
    styled,
    use_log_axis,
)
from leadline.report.image_results import ImageResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ERROR_PERCENTILE = 95.0  # percentile of the errors at which the colour scale ends
_COORDINATES: dict[str, tuple[str, Any, str]] = {
    "disparity": (BLUE, "-", "v"),
    "log depth": (GREEN, "--", "^"),
    "depth": (PURPLE, "-.", "s"),
    ADAPTIVE: (ORANGE, "-", "*"),
}


@styled
def plot_linearity(
    results: ImageResults, linearity: Mapping[str, Linearity], *, largest_error: float | None = None
) -> Figure:
    """Error maps above, predicted against true depth below; the first column shows the image and the scaled prior.

    `linearity` is that of methods and of `SCALED_PRIOR`, all over the same window; `largest_error` is that of
    `show_errors`.
    """
    methods = [name for name in linearity if name != SCALED_PRIOR]
    columns = 1 + len(methods)
    side = max(WIDTH / columns, 0.88)  # inches; the numbers above a plot need this width
    height, width = results.reference.shape
    figure = new_figure(side * height / width * 0.95 + side + 1.3, side * columns)
    grid: Any = figure.subplots(2, columns, height_ratios=(height / width, 1.0), squeeze=False)
    show_picture(grid[0][0], results.image, "image")
    errors = {name: np.abs(results.predictions[name].depth - results.reference) for name in methods}
    exponents = {**dict(zip(FIXED, (-1.0, 1.0, 0.0), strict=True)), RESPONSE: chosen_exponent(results)}
    named = {RESPONSE: "response"}
    titles = [
        f"{named.get(name, name)}\nλ = {format_number(exponents[name])}" if name in exponents else name
        for name in methods
    ]
    show_errors(grid[0][1:], errors, titles, high=largest_error)
    for axes, name in zip(grid[1], (SCALED_PRIOR, *methods), strict=True):
        draw_linearity(axes, linearity[name], metric=name != SCALED_PRIOR)
    grid[1][0].set_ylabel("ground truth (m)")
    for axes in grid[1]:
        axes.set_xlabel("predicted (m)")
        axes.tick_params(labelleft=axes is grid[1][0])
    handles, labels = grid[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, markerscale=4)
    return figure


def format_number(value: float) -> str:
    """Three significant digits, with a minus sign instead of a hyphen."""
    return f"{value:.3g}".replace("-", "−")


def draw_linearity(axes: Axes, found: Linearity, *, metric: bool) -> None:
    """Draw the displayed pixels, the local-median path and identity; the title has the errors if they are `metric`."""
    low, high = found.window
    pad = 0.03 * (high - low)
    dots: dict[str, Any] = {"markersize": 1.0, "markeredgewidth": 0, "color": "0.6", "alpha": 0.5, "rasterized": True}
    axes.plot(found.predicted, found.reference, "o", label="held-out pixels", **dots)
    axes.plot((low, high), (low, high), color=ORANGE, linewidth=0.9, linestyle=(0, (4, 2)), label="identity")
    axes.plot(found.path_predicted, found.path_reference, color=BLUE, linewidth=1.3, label="local median")
    axes.set(xlim=(low - pad, high + pad), ylim=(low - pad, high + pad), aspect="equal")
    axes.locator_params(nbins=3, steps=(1, 2, 5, 10))
    errors = (
        f"\ntrend {found.trend_cm:.1f} cm\nMAE {found.mae:.3f} m" if metric else "\nprior, scaled to\nthe true median"
    )
    axes.set_title(f"r = {found.pearson:.4f}{errors}", loc="left", fontsize=6.5, linespacing=1.15, pad=3)


def show_picture(axes: Axes, picture: NDArray[np.uint8], title: str) -> None:
    """Show a picture with a title and without axes."""
    axes.imshow(picture, interpolation="antialiased")
    axes.set_title(title, fontsize=7)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def show_errors(
    row: Sequence[Axes],
    errors: Mapping[str, FloatArray],
    titles: Sequence[str],
    *,
    high: float | None = None,
) -> float:
    """Show maps of absolute error on one scale, with a colour bar under the last; returns the scale's end in metres.

    The scale ends at `high` metres, and larger errors are purple. By default it ends at a round number above percentile
    95 of all errors, and larger errors have the colour of its end.
    """
    above = None if high is None else ABOVE
    if high is None:
        every = np.concatenate([values[np.isfinite(values)] for values in errors.values()])
        high = round_up(float(np.percentile(every, ERROR_PERCENTILE))) if every.size else 1.0
    for axes, values, title in zip(row, errors.values(), titles, strict=True):
        show_picture(axes, colourise(values, low=0.0, high=high, scheme="error", above=above), title)
    bar = row[-1].inset_axes((0.0, -0.11, 1.0, 0.06))
    bar.imshow(colour_bar(256, 4, "error"), aspect="auto", extent=(0.0, high, 0.0, 1.0))
    end = high
    if above is not None:  # a purple part beyond the end of the scale
        end = 1.25 * high
        bar.imshow(np.array([[above]], np.uint8), aspect="auto", extent=(1.03 * high, end, 0.0, 1.0))
    labels = ["error 0", f"{'≥' if above is None else '>'} {high:g} m"]
    bar.set(xlim=(0.0, end), ylim=(0.0, 1.0), yticks=[], xticks=(0.0, end), xticklabels=labels)
    for label, side in zip(bar.get_xticklabels(), ("left", "right"), strict=True):
        label.set(ha=side)
    bar.tick_params(length=0, pad=1)
    bar.spines[:].set_visible(False)
    return high


@styled
def plot_response(found: Diagnosis) -> Figure:
    """The gain along depth, and the error along the exponent, with gain and offset fitted at each exponent."""
    from matplotlib.lines import Line2D

    figure = new_figure(2.3)
    left, right = figure.subplots(1, 2)
    for name, curve in found.gains.items():
        colour, line, _ = _COORDINATES[name]
        left.plot(curve.depth, curve.slope, color=colour, linestyle=line, label=name)
    slopes = [value for curve in found.gains.values() for value in curve.slope if value > 0]
    use_log_axis(left, "y", np.percentile(slopes, (0.5, 99.5)).tolist(), 0.1)
    left.set(xlabel="metric depth S (m)", ylabel="slope dS/dH")

    profile = found.profile
    right.plot(profile.exponents, profile.rmse, color="black", label="RMSE at the measurements")
    right.plot(profile.exponents, profile.held_out, color=GREY, linestyle="--", label="MAE at held-out pixels")
    for name, exponent in {**FIXED_EXPONENTS, ADAPTIVE: profile.chosen}.items():
        colour, _, marker = _COORDINATES[name]
        at = {"marker": marker, "color": colour, "markersize": 9.0 if marker == "*" else 5.0}
        right.plot((exponent, exponent), profile.at(exponent), linestyle="none", label=name, zorder=4, **at)
    marked = [value for exponent in (*FIXED_EXPONENTS.values(), profile.chosen) for value in profile.at(exponent)]
    known = [value for value in (*marked, np.nanmin(profile.rmse)) if math.isfinite(value)]
    pad = 0.25 * (max(known) - min(known)) or 0.1 * max(known)
    right.set(ylim=(min(known) - pad, max(known) + pad), xlabel="exponent λ", ylabel="error (m)")
    for axes in (left, right):
        axes.grid(True)
    handles = []
    for name, (colour, line, marker) in _COORDINATES.items():
        label = f"{name}, λ = {format_number(FIXED_EXPONENTS.get(name, profile.chosen))}"
        size = 8.0 if marker == "*" else 4.5
        handles.append(Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=size, label=label))
    figure.legend(handles=[*handles, *right.get_lines()[:2]], loc="outside lower center", ncols=3)
    return figure


@styled
def plot_errors(found: Diagnosis) -> Figure:
    """Signed error along the true depth, and absolute error along the distance to the nearest measurement.

    One method, the completion, also has the band of percentiles 16 to 84; more bands would cover each other.
    """
    figure = new_figure(2.3)
    left, right = figure.subplots(1, 2)
    shown = list(found.residuals)
    with_band = next((name for name in (BEST, OURS) if name in shown), shown[-1])
    for name, mark in marks(shown).items():
        for axes, band in ((left, found.residuals[name]), (right, found.distances[name])):
            filled = name == with_band
            axes.plot(band.at, band.median, color=mark.colour, linestyle=mark.line, label=name, zorder=3 + filled)
            if filled:
                axes.fill_between(band.at, band.low, band.high, color=mark.colour, alpha=0.13, linewidth=0)
    left.axhline(0, color="0.4", linewidth=0.7)
    left.set(xlabel="true depth (m)", ylabel="predicted − true depth (m)")
    right.set(xlabel="distance to nearest measurement (px)", ylabel="absolute error (m)", ylim=(0, None))
    reach = [value for entry in found.distances.values() for value in entry.at if value > 0]
    if reach and max(reach) > 20 * min(reach):  # a large region without measurements beside a dense grid
        use_log_axis(right, "x", reach, 0.04)
    for axes in (left, right):
        axes.grid(True)
    columns = len(shown) if len(shown) <= 5 else -(-len(shown) // 2)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure
