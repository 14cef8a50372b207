"""Plots of the diagnostics show their numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb

from leadline.base.errors import InputError
from leadline.bench.tables import FIXED, OURS, RESPONSE
from leadline.core.fit.response import forward
from leadline.methods import MethodResult
from leadline.report.colour import ABOVE, colourise, round_up
from leadline.report.diagnostics import SCALED_PRIOR, diagnose, group_plot
from leadline.report.diagnostics import plots as diagnostic_plots
from leadline.report.figures.plotting import BLUE, ORANGE

ROUNDING = 1e-9  # absolute, of coordinates between 0 and 1: powers up to 1e6 of the two scales cancel


def lines(axes):
    return {line.get_label(): np.array(line.get_data()) for line in axes.get_lines()}


def test_linearity_plot_has_the_points_and_the_error_maps(recomputed):
    found = diagnose(recomputed, bin_width=0.2)
    figure = diagnostic_plots.plot_linearity(recomputed, found.linearity)
    columns = len(found.linearity)
    for axes, (name, entry) in zip(figure.axes[columns:], found.linearity.items(), strict=False):
        drawn = lines(axes)
        np.testing.assert_array_equal(drawn["held-out pixels"], (entry.predicted, entry.reference))
        np.testing.assert_array_equal(drawn["local median"], (entry.path_predicted, entry.path_reference))
        assert drawn["identity"][0].tolist() == drawn["identity"][1].tolist() == list(entry.window)
        assert f"r = {entry.pearson:.4f}" in axes.get_title(loc="left")
        assert (f"MAE {entry.mae:.3f} m" in axes.get_title(loc="left")) == (name != SCALED_PRIOR)
    every = np.concatenate([np.abs(p.depth - recomputed.reference).ravel() for p in recomputed.predictions.values()])
    for axes, name in zip(figure.axes[1:columns], recomputed.predictions, strict=True):
        error = np.abs(recomputed.predictions[name].depth - recomputed.reference)
        high = round_up(float(np.nanpercentile(every, 95)))
        expected = colourise(error, low=0.0, high=high, scheme="error")
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), expected)


def test_the_response_plot_draws_the_profile_and_marks_the_exponents(recomputed):
    found = diagnose(recomputed)
    left, right = diagnostic_plots.plot_response(found).axes
    drawn = lines(right)
    np.testing.assert_array_equal(drawn["RMSE at the measurements"][1], found.profile.rmse)
    for name, exponent in {"disparity": -1.0, "log depth": 0.0, "depth": 1.0, "adaptive": found.profile.chosen}.items():
        assert drawn[name][0].tolist() == [exponent, exponent]
        assert drawn[name][1].tolist() == list(found.profile.at(exponent))
        np.testing.assert_array_equal(lines(left)[name], (found.gains[name].depth, found.gains[name].slope))


def test_the_error_plot_draws_the_bands(recomputed):
    found = diagnose(recomputed)
    left, right = diagnostic_plots.plot_errors(found).axes
    for name in (*FIXED, RESPONSE, OURS):
        np.testing.assert_array_equal(lines(left)[name], (found.residuals[name].at, found.residuals[name].median))
        np.testing.assert_array_equal(lines(right)[name], (found.distances[name].at, found.distances[name].median))
    assert len(right.collections) == 1  # the spread of ours alone: several would hide each other


def test_groups_draw_every_point_and_its_colour():
    x, y = np.array([0.05, 0.05, 0.95]), np.array([0.05, 0.05, 0.95])
    picture = group_plot.point_picture(x, y, np.array([0, 1, 0], np.int8), ((0.0, 1.0), (0.0, 1.0)), cells=10)
    assert (picture[..., 3] > 0).sum() == 2
    blue, orange = (np.array(to_rgb(colour)) for colour in (BLUE, ORANGE))
    np.testing.assert_allclose(picture[9, 9, :3], blue)
    np.testing.assert_allclose(picture[0, 0, :3], (blue + orange) / 2)
    assert picture[0, 0, 3] > picture[9, 9, 3]


def test_groups_need_pixels(recomputed):
    few = np.full_like(recomputed.reference, np.nan)
    few[:2] = recomputed.reference[:2]
    with pytest.raises(InputError, match="fewer than 300"):
        group_plot.plot_point_groups(replace(recomputed, reference=few))


def groups_at(recomputed, exponent, depth=None):
    depth = recomputed.reference if depth is None else depth
    found = {RESPONSE: MethodResult(depth, parameters={"exponent": exponent})}
    return group_plot.plot_point_groups(replace(recomputed, predictions=found))


def test_no_point_of_the_groups_is_left_out(recomputed):
    reference = recomputed.reference.copy()
    reference[0, 0] = 60.0  # farther than everything else
    drawing = groups_at(replace(recomputed, reference=reference), -1.0)
    _, middle, right = drawing.figure.axes
    assert middle.get_ylim()[0] < np.nanmin(reference) < np.nanmax(reference) < middle.get_ylim()[1]
    for axes in (middle, right):
        assert axes.get_xlim()[0] < 0 < 1 < axes.get_xlim()[1]
    assert right.get_ylim()[0] < 0 < 1 < right.get_ylim()[1]
    assert drawing.numbers["pixels"] == np.isfinite(reference).sum()


@pytest.mark.parametrize("exponent", [-76.0, -178.0, 120.0])
def test_an_extreme_exponent_is_drawn_as_it_is_and_again_in_metres(recomputed, exponent):
    drawing = groups_at(recomputed, exponent)
    *_, right, fourth = drawing.figure.axes
    assert right.get_title() == f"(c) response, λ = {exponent:.0f}".replace("-", "−")
    assert drawing.numbers["spread"] < group_plot.SMALLEST_SPREAD
    assert drawing.numbers["beyond_panel_d"] == 0
    assert (fourth.get_xlabel(), fourth.get_ylabel()) == ("prior after the response (m)", "ground truth (m)")
    picture = fourth.get_images()[0].get_array()
    rows, columns = np.nonzero(picture[..., 3])
    assert (rows == columns).all()  # the prediction given is the ground truth


def test_a_response_that_extrapolates_far_does_not_compress_the_panel_in_metres(recomputed):
    far = recomputed.reference.copy()
    far[:2] = 1e6
    drawing = groups_at(recomputed, -76.0, far)
    fourth = drawing.figure.axes[3]
    assert fourth.get_xlim()[1] < 3 * np.nanmax(recomputed.reference)
    assert drawing.numbers["beyond_panel_d"] == 2 * far.shape[1]


@pytest.mark.parametrize("exponent", [-11.4, -1.0, 0.0, 1.0, 7.66])
def test_unit_coordinates_are_the_response_coordinate_scaled_to_one(exponent):
    z = np.array([0.5, 1.0, 2.0, 3.5])
    expected = forward(z, exponent, 1.3)
    expected = (expected - expected[0]) / (expected[-1] - expected[0])
    np.testing.assert_allclose(group_plot.unit_coordinate(z, exponent), expected, atol=ROUNDING)
    assert group_plot.unit_coordinate(np.full(3, 2.0), exponent).tolist() == [0, 0, 0]


def test_an_error_scale_with_an_end_is_purple_beyond_it(recomputed):
    from matplotlib.figure import Figure

    errors = {"a": np.array([[0.0, 0.3, 0.31, np.nan]]), "b": np.array([[0.1, 5.0, 0.2, 0.3]])}
    row = Figure().subplots(1, 2)
    assert diagnostic_plots.show_errors(row, errors, ["a", "b"], high=0.3) == 0.3
    for axes, values in zip(row, errors.values(), strict=True):
        purple = (axes.get_images()[0].get_array() == ABOVE).all(axis=-1)
        np.testing.assert_array_equal(purple, values > 0.3)
    (bar,) = row[-1].child_axes
    assert [label.get_text() for label in bar.get_xticklabels()] == ["error 0", "> 0.3 m"]
    assert (np.asarray(bar.get_images()[1].get_array()) == ABOVE).all()


def test_the_linearity_plot_names_the_exponents(recomputed):
    found = diagnose(recomputed, bin_width=0.2)
    figure = diagnostic_plots.plot_linearity(recomputed, found.linearity)
    titles = [axes.get_title() for axes in figure.axes[: len(found.linearity)]]
    assert titles[:4] == ["image", "GDisp\nλ = −1", "GMetric\nλ = 1", "GLog\nλ = 0"]
