"""Plots of the diagnostics show their numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb

from leadline.base.errors import InputError
from leadline.bench.tables import FIXED, OURS, RESPONSE
from leadline.methods import MethodResult
from leadline.report.colour import colourise, round_up
from leadline.report.diagnostics import SCALED_PRIOR, diagnose
from leadline.report.diagnostics import plots as diagnostic_plots
from leadline.report.figures.plotting import BLUE, ORANGE


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
    picture = diagnostic_plots.point_picture(x, y, np.array([0, 1, 0], np.int8), ((0.0, 1.0), (0.0, 1.0)), cells=10)
    assert (picture[..., 3] > 0).sum() == 2
    blue, orange = (np.array(to_rgb(colour)) for colour in (BLUE, ORANGE))
    np.testing.assert_allclose(picture[9, 9, :3], blue)
    np.testing.assert_allclose(picture[0, 0, :3], (blue + orange) / 2)
    assert picture[0, 0, 3] > picture[9, 9, 3]


def test_groups_need_pixels(recomputed):
    few = np.full_like(recomputed.reference, np.nan)
    few[:2] = recomputed.reference[:2]
    with pytest.raises(InputError, match="fewer than 300"):
        diagnostic_plots.plot_point_groups(replace(recomputed, reference=few))


def test_an_extreme_exponent_is_drawn_at_the_largest_one_and_noted(recomputed):
    extreme = replace(
        recomputed, predictions={RESPONSE: MethodResult(recomputed.reference, parameters={"exponent": -76.0})}
    )
    drawing = diagnostic_plots.plot_point_groups(extreme)
    right = drawing.figure.axes[2]
    assert drawing.numbers["drawn_exponent"] == -diagnostic_plots.LARGEST_DRAWN_EXPONENT
    assert right.get_title() == "(c) response, λ = −5"
    assert [text.get_text() for text in right.texts] == ["fitted λ = −76"]
