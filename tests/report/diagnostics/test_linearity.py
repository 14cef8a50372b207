"""Linearity of predicted over true depth: hand-made cases, and invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.report.diagnostics.linearity import depth_window, measure_linearity, sample_held_out

ROUNDING = 1e-9  # error of sums of a few thousand float64 numbers of order one


def everywhere(shape):
    return np.ones(shape, dtype=bool)


def column(values):
    return np.asarray(values, np.float64)[np.newaxis]


def test_a_perfect_prediction_has_no_trend_and_r_one():
    depth = column(np.linspace(1.0, 3.0, 5000))
    found = measure_linearity(depth, depth, everywhere(depth.shape))
    assert found.trend_cm == 0
    assert found.mae == 0
    assert found.pearson == pytest.approx(1, abs=ROUNDING)
    np.testing.assert_array_equal(found.path_predicted, found.path_reference)


def test_a_shift_of_ten_centimetres_is_a_trend_error_of_ten_centimetres():
    depth = column(np.linspace(1.0, 3.0, 5000))
    found = measure_linearity(depth + 0.1, depth, everywhere(depth.shape))
    assert found.pearson == pytest.approx(np.corrcoef(found.predicted, found.reference)[0, 1], abs=ROUNDING)
    assert found.trend_cm == pytest.approx(10, abs=1e-6)
    assert found.mae == pytest.approx(0.1, abs=ROUNDING)
    assert found.pearson == pytest.approx(1, abs=ROUNDING)


def test_trend_weighs_bins_and_not_pixels():
    """1000 pixels that are right and 40 that are 0.2 m off: two bins, so 10 cm."""
    predicted = np.concatenate((np.full(1000, 1.02), np.full(40, 1.52)))
    reference = np.concatenate((np.full(1000, 1.02), np.full(40, 1.72)))
    found = measure_linearity(column(predicted), column(reference), everywhere((1, 1040)), window=(1.0, 2.0))
    assert found.bins == 2
    assert found.trend_cm == pytest.approx(10, abs=1e-6)


@pytest.mark.parametrize(("count", "bins"), [(29, 1), (30, 2)])
def test_a_bin_needs_thirty_samples_and_leaves_a_gap(count, bins):
    predicted = np.concatenate((np.full(40, 1.02), np.full(count, 1.22)))
    found = measure_linearity(column(predicted), column(predicted), everywhere((1, predicted.size)), window=(1.0, 2.0))
    assert found.bins == bins
    assert found.predicted.size == (40 if bins == 1 else 70)
    assert not found.few_displayed
    assert np.isnan(found.path_predicted).sum() == (0 if bins == 1 else 3)  # the bins at 1.05, 1.10 and 1.15


def test_points_far_from_their_bins_median_are_not_displayed_but_count_for_mae():
    offsets = np.concatenate((np.linspace(-0.01, 0.01, 99), [0.5]))
    predicted = np.full(100, 1.52)
    found = measure_linearity(column(predicted), column(1.52 + offsets), everywhere((1, 100)), window=(1.0, 3.0))
    assert found.predicted.size == 99
    assert found.reference.max() < 1.6
    assert found.mae == pytest.approx(np.abs(offsets).mean(), abs=ROUNDING)


def test_the_sample_is_six_thousand_of_the_held_out_pixels_and_the_same_for_every_prediction(rng):
    reference = rng.uniform(1, 3, (120, 100))
    reference[0] = np.nan
    scored = rng.random(reference.shape) < 0.8
    places = sample_held_out(reference, scored)
    assert places.size == 6000
    assert np.unique(places).size == 6000
    assert scored.flat[places].all()
    assert np.isfinite(reference.flat[places]).all()
    np.testing.assert_array_equal(places, sample_held_out(reference, scored))
    few = sample_held_out(reference[:5], scored[:5])
    np.testing.assert_array_equal(few, np.flatnonzero(scored[:5] & np.isfinite(reference[:5])))


def test_pixels_outside_the_window_or_without_a_prediction_are_left_out():
    reference = np.linspace(1.0, 2.0, 1000)
    predicted = reference.copy()
    predicted[:100] = np.nan
    found = measure_linearity(column(predicted), column(reference), everywhere((1, 1000)), window=(1.5, 1.8))
    assert found.sampled == 900
    assert found.predicted.min() >= 1.5
    assert found.reference.max() <= 1.8
    low, high = depth_window(column(reference), everywhere((1, 1000)))
    assert (low, high) == pytest.approx((1.01, 1.99), abs=1e-3)


def test_no_held_out_pixel_is_an_input_error():
    with pytest.raises(InputError, match="no held-out pixel"):
        depth_window(np.ones((3, 3)), np.zeros((3, 3), dtype=bool))
    with pytest.raises(InputError, match="bin_width"):
        measure_linearity(np.ones((3, 3)), np.ones((3, 3)), everywhere((3, 3)), bin_width=0.0)


def test_too_few_pixels_for_a_bin_give_nan_and_no_crash():
    found = measure_linearity(column([1.0, 2.0]), column([1.0, 2.0]), everywhere((1, 2)), window=(1.0, 2.0))
    assert (found.bins, found.path_predicted.size, found.predicted.size, found.sampled) == (0, 0, 0, 2)
    assert found.few_displayed
    assert math.isnan(found.trend_cm)
    assert math.isnan(found.pearson)
