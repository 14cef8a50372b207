"""The plot of point groups (fig:response-regions): pixels that follow different lines, and one response for all.

Panel (c) has the points in the response coordinate at the estimated exponent, as in the paper, and no point is left
out. At a large exponent most of them then lie in one corner of the panel. Panel (d), which the paper does not have, is
drawn in that case: the same points after the response, in metres.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError
from leadline.bench.tables import RESPONSE
from leadline.report.diagnostics import chosen_exponent
from leadline.report.diagnostics.curves import fit_at_exponent
from leadline.report.diagnostics.plots import format_number, show_picture
from leadline.report.diagnostics.point_groups import PointGroups, point_groups
from leadline.report.figures.plotting import BLUE, GREEN, ORANGE, WIDTH, Drawing, new_figure, styled
from leadline.report.image_results import ImageResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Vector = NDArray[np.float64]
Window = tuple[float, float]

GROUP_COLOURS = (BLUE, ORANGE, GREEN)
GROUP_NAMES = ("near group", "middle group", "all other pixels")
SMALLEST_SPREAD = 0.1
"""Panel (d) is drawn if the middle 90 % of the points lie on less than this share of an axis of (c)."""
LARGEST_RATIO = 2.0  # of the axis of the calibrated prior in (d) to the largest true depth
_CELLS = 140  # of a picture of points, along either axis: about half a typographic point each


@styled
def plot_point_groups(results: ImageResults) -> Drawing:
    """Groups of points that follow different lines, and the points in the response coordinate (fig:response-regions).

    The numbers of the drawing state the exponent, the share of an axis of (c) that the middle 90 % of the points cover,
    and, if there is a panel (d), how many points lie beyond its axes.
    """
    h, reference = results.prior_depth(), np.asarray(results.reference, np.float64)
    both = np.isfinite(h) & np.isfinite(reference) & (reference > 0)
    if np.count_nonzero(both) < 300:  # the nearest hundredth would have fewer than three
        raise InputError(f"{results.title}: fewer than 300 pixels have both a prior and a ground truth.")
    prior, depth = h[both], reference[both]
    exponent = chosen_exponent(results)
    x = unit_coordinate(prior, 1.0)
    groups = point_groups(x, depth)
    coordinates = unit_coordinate(prior, exponent), unit_coordinate(depth, exponent)
    spread = min(float(np.ptp(np.percentile(values, (5, 95)))) for values in coordinates)
    compressed = spread < SMALLEST_SPREAD

    if compressed:
        figure = new_figure(2 * WIDTH / 2.9 + 0.4)
        (left, middle), (right, fourth) = figure.subplots(2, 2, width_ratios=(1.25, 1.0))
    else:
        figure = new_figure(WIDTH / 3 + 0.35)
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.0, 1.0))
    show_picture(left, _overlay(results.image, both, groups), "(a) groups of pixels")
    _show_points(middle, x, depth, groups)
    _show_points(right, *coordinates, groups)
    limits = middle.get_xlim(), middle.get_ylim()
    for line, colour, name in zip(groups.lines, GROUP_COLOURS, GROUP_NAMES, strict=True):
        reach = np.array(limits[0])
        middle.plot(reach, line(reach), color="white", linewidth=2.2)
        middle.plot(reach, line(reach), color=colour, linewidth=1.0, linestyle=(0, (5, 1.5)), label=name)
    middle.set(xlim=limits[0], ylim=limits[1])  # the lines extend beyond the points
    middle.set(title="(b) true depth over prior", xlabel="prior, normalised", ylabel="ground truth (m)")
    right.set(title=f"(c) response, λ = {format_number(exponent)}", xlabel="φ(prior), normalised")
    right.set_ylabel("φ(ground truth), normalised" if compressed else "φ(ground truth), norm.")
    numbers = {"title": results.title, "exponent": exponent, "pixels": int(depth.size), "spread": spread}
    if compressed:
        numbers["beyond_panel_d"] = _show_calibrated(fourth, _calibrated(results, exponent)[both], depth, groups)
    figure.legend(*middle.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return Drawing(figure, {**numbers, **groups.to_dict()})


def unit_coordinate(values: Vector, exponent: float) -> Vector:
    """The response coordinate of positive values, shifted and scaled to [0, 1]; 0 for all if they are equal.

    With x = log z between a and b, (phi(z) - phi(e^a)) / (phi(e^b) - phi(e^a)) is evaluated from the end at which the
    power is largest, so that it does not overflow at any exponent.

    Examples
    --------
    >>> unit_coordinate(np.array([1.0, 2.0, 4.0]), -1.0).round(6).tolist()
    [0.0, 0.666667, 1.0]
    >>> unit_coordinate(np.array([1e-3, 1.0, 1e3]), -200.0).tolist()
    [0.0, 1.0, 1.0]
    """
    x = np.log(values)
    low, high = float(x.min()), float(x.max())
    if high == low:
        return np.zeros_like(x)
    if abs(exponent) * (high - low) < 1e-9:
        return np.asarray((x - low) / (high - low))
    if exponent < 0:
        return np.asarray(np.expm1(exponent * (x - low)) / math.expm1(exponent * (high - low)))
    return np.asarray(1 - np.expm1(exponent * (x - high)) / math.expm1(exponent * (low - high)))


def point_picture(
    x: Vector, y: Vector, labels: NDArray[np.int8], ends: tuple[Window, ...], cells: int = _CELLS
) -> NDArray[np.float64]:
    """Points as an RGBA picture, (cells, cells, 4), row 0 at the bottom: mean colour, more opaque where denser.

    Markers would not do, since of millions of pixels the last ones would cover all others.
    """
    edges = [np.linspace(low, high, cells + 1) for low, high in ends]
    members = [labels == group for group in range(len(GROUP_COLOURS))]
    counts = np.stack([np.histogram2d(y[own], x[own], bins=edges[::-1])[0] for own in members])
    total = counts.sum(axis=0)
    picture = np.zeros((cells, cells, 4))
    some = total > 0
    picture[some, :3] = (counts[:, some] / total[some]).T @ _group_colours()
    picture[some, 3] = 0.6 + 0.4 * np.log1p(total[some]) / math.log1p(float(total.max(initial=0.0)))
    return picture


def _show_points(axes: Axes, x: Vector, y: Vector, groups: PointGroups) -> None:
    """Show all points; the axes end a little beyond the outermost ones."""
    ends = _window(x), _window(y)
    picture = point_picture(x, y, groups.labels, ends)
    axes.imshow(picture, extent=(*ends[0], *ends[1]), origin="lower", aspect="auto", interpolation="nearest")
    axes.set(xlim=ends[0], ylim=ends[1])


def _show_calibrated(axes: Axes, calibrated: Vector, depth: Vector, groups: PointGroups) -> int:
    """Show the true depth over the calibrated prior, both in metres, with identity; returns the points beyond the axes.

    The axis of the calibrated prior ends at twice the largest true depth, since a response may extrapolate far.
    """
    inside = (calibrated > 0) & (calibrated <= LARGEST_RATIO * depth.max())
    shown = PointGroups(groups.labels[inside], groups.lines, groups.ranges)
    if inside.any():
        _show_points(axes, calibrated[inside], depth[inside], shown)
    limits = axes.get_xlim(), axes.get_ylim()
    axes.plot(limits[1], limits[1], color="0.45", linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
    axes.set(xlim=limits[0], ylim=limits[1])
    axes.set(title="(d) the same, in metres", xlabel="prior after the response (m)", ylabel="ground truth (m)")
    return int(np.count_nonzero(~inside))


def _calibrated(results: ImageResults, exponent: float) -> Vector:
    """The prior after the response, (H, W) metres: as the run recorded it, or else fitted at the exponent."""
    recorded = results.predictions.get(RESPONSE)
    if recorded is not None:
        return np.asarray(recorded.depth, np.float64)
    response = fit_at_exponent(exponent, *results.pairs(), results.prior_range())
    return np.asarray(response(results.prior_depth()), np.float64)


def _window(values: Vector) -> Window:
    """Limits of an axis that leaves out no point."""
    low, high = float(values.min()), float(values.max())
    pad = 0.03 * (high - low) or 0.5
    return low - pad, high + pad


def _overlay(image: NDArray[np.uint8], both: NDArray[np.bool_], groups: PointGroups) -> NDArray[np.uint8]:
    """The image with the colours of the groups at half opacity."""
    picture = np.array(image, copy=True)
    picture[both] = np.rint(0.5 * picture[both] + 127.5 * _group_colours()[groups.labels])
    return picture


def _group_colours() -> NDArray[np.float64]:
    from matplotlib.colors import to_rgb

    return np.array([to_rgb(colour) for colour in GROUP_COLOURS])
