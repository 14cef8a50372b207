"""The numbers of the linearity diagnostics, on hand cases and by their laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.bench.tables import OURS, RESPONSE
from leadline.core.fit.estimator import fit_response
from leadline.core.fit.response import Response
from leadline.core.prior import Prior
from leadline.methods import method
from leadline.report import diagnostics
from leadline.report.diagnosis import ADAPTIVE, SCALED, chosen_exponent, diagnose, scaled_prior_relation
from leadline.report.diagnostics import anchor_distance, band, gain_curve, held_out_sample, pearson, relation, window_of
from leadline.report.profile import MEMBERS, exponent_profile, fit_at
from leadline.report.regions import MARGIN, THRESHOLD, point_groups, ransac_line
from leadline.report.trial import Prediction, Trial

ROUNDING = 1e-9  # of sums of a few thousand float64 numbers of order one
SAME_MINIMUM = 1e-6  # relative: two minimisers of one cost, of which each stops at its own tolerance
DIFFERENCES = 1e-6  # relative error of central differences with the step below
STEP = 1e-5


def everywhere(shape):
    return np.ones(shape, dtype=bool)


def column(values):
    return np.asarray(values, np.float64)[np.newaxis]


# --- the relation ---------------------------------------------------------------------------------------------------


def test_a_perfect_prediction_has_no_trend_and_r_one():
    depth = column(np.linspace(1.0, 3.0, 5000))
    found = relation(depth, depth, everywhere(depth.shape))
    assert found.trend_cm == 0
    assert found.mae == 0
    assert found.pearson == pytest.approx(1, abs=ROUNDING)
    np.testing.assert_array_equal(found.path_predicted, found.path_reference)


def test_a_shift_of_ten_centimetres_is_a_trend_error_of_ten_centimetres():
    depth = column(np.linspace(1.0, 3.0, 5000))
    found = relation(depth + 0.1, depth, everywhere(depth.shape))
    assert found.trend_cm == pytest.approx(10, abs=1e-6)
    assert found.mae == pytest.approx(0.1, abs=ROUNDING)
    assert found.pearson == pytest.approx(1, abs=ROUNDING)


def test_trend_weighs_bins_and_not_pixels():
    """1000 pixels that are right and 40 that are 0.2 m off: two bins, so 10 cm."""
    predicted = np.concatenate((np.full(1000, 1.02), np.full(40, 1.52)))
    reference = np.concatenate((np.full(1000, 1.02), np.full(40, 1.72)))
    found = relation(column(predicted), column(reference), everywhere((1, 1040)), window=(1.0, 2.0))
    assert found.bins == 2
    assert found.trend_cm == pytest.approx(10, abs=1e-6)


@pytest.mark.parametrize(("count", "bins"), [(29, 1), (30, 2)])
def test_a_bin_needs_thirty_samples_and_leaves_a_gap(count, bins):
    predicted = np.concatenate((np.full(40, 1.02), np.full(count, 1.22)))
    found = relation(column(predicted), column(predicted), everywhere((1, predicted.size)), window=(1.0, 2.0))
    assert found.bins == bins
    assert found.predicted.size == (40 if bins == 1 else 70)
    assert not found.sparse
    assert np.isnan(found.path_predicted).sum() == (0 if bins == 1 else 3)  # the bins at 1.05, 1.10 and 1.15


def test_points_far_from_their_bins_median_are_not_displayed_but_count_for_mae():
    offsets = np.concatenate((np.linspace(-0.01, 0.01, 99), [0.5]))
    predicted = np.full(100, 1.52)
    found = relation(column(predicted), column(1.52 + offsets), everywhere((1, 100)), window=(1.0, 3.0))
    assert found.predicted.size == 99
    assert found.reference.max() < 1.6
    assert found.mae == pytest.approx(np.abs(offsets).mean(), abs=ROUNDING)


def test_the_sample_is_six_thousand_of_the_held_out_pixels_and_the_same_for_every_prediction(rng):
    reference = rng.uniform(1, 3, (120, 100))
    reference[0] = np.nan
    scored = rng.random(reference.shape) < 0.8
    places = held_out_sample(reference, scored)
    assert places.size == 6000
    assert np.unique(places).size == 6000
    assert scored.flat[places].all()
    assert np.isfinite(reference.flat[places]).all()
    np.testing.assert_array_equal(places, held_out_sample(reference, scored))
    few = held_out_sample(reference[:5], scored[:5])
    np.testing.assert_array_equal(few, np.flatnonzero(scored[:5] & np.isfinite(reference[:5])))


def test_what_lies_outside_the_window_or_was_not_predicted_is_left_out():
    reference = np.linspace(1.0, 2.0, 1000)
    predicted = reference.copy()
    predicted[:100] = np.nan
    found = relation(column(predicted), column(reference), everywhere((1, 1000)), window=(1.5, 1.8))
    assert found.sampled == 900
    assert found.predicted.min() >= 1.5
    assert found.reference.max() <= 1.8
    low, high = window_of(column(reference), everywhere((1, 1000)))
    assert (low, high) == pytest.approx((1.01, 1.99), abs=1e-3)


def test_without_a_held_out_pixel_it_says_so():
    with pytest.raises(InputError, match="no held-out pixel"):
        window_of(np.ones((3, 3)), np.zeros((3, 3), dtype=bool))
    with pytest.raises(InputError, match="bin_width"):
        relation(np.ones((3, 3)), np.ones((3, 3)), everywhere((3, 3)), bin_width=0.0)


def test_too_few_pixels_for_a_bin_give_nan_and_no_crash():
    found = relation(column([1.0, 2.0]), column([1.0, 2.0]), everywhere((1, 2)), window=(1.0, 2.0))
    assert (found.bins, found.path_predicted.size, found.predicted.size, found.sampled) == (0, 0, 0, 2)
    assert found.sparse
    assert math.isnan(found.trend_cm)
    assert math.isnan(found.pearson)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=20, unique=True), st.floats(0.1, 10), st.floats(-10, 10))
def test_pearson_is_numpys_and_does_not_see_scale_or_shift(values, scale, shift):
    a = np.array(values)
    b = np.sin(a) + 0.1 * a
    if np.ptp(a) < 1e-3 or np.ptp(b) < 1e-3:
        return
    assert pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-6)
    assert pearson(a * scale + shift, b) == pytest.approx(pearson(a, b), abs=1e-6)


# --- along depth and distance ---------------------------------------------------------------------------------------


def test_a_band_has_the_percentiles_of_its_groups():
    along = np.repeat([1.0, 2.0, 3.0], 101)
    values = np.concatenate((np.linspace(0, 1, 101), np.linspace(10, 11, 101), np.full(101, np.nan)))
    found = band(along, values, groups=2)
    np.testing.assert_allclose(found.at, [1, 2])
    np.testing.assert_allclose(found.median, [0.5, 10.5])
    np.testing.assert_allclose(found.low, [0.16, 10.16])
    np.testing.assert_allclose(found.high, [0.84, 10.84])
    np.testing.assert_array_equal(found.counts, [101, 101])
    assert band(along[:20], values[:20]).at.size == 0


def test_anchor_distance_is_the_least_of_all_distances(rng):
    measured = rng.random((17, 23)) < 0.02
    measured[3, 5] = True
    places = np.arange(measured.size)
    rows, columns = np.indices(measured.shape)
    y, x = np.nonzero(measured)
    every = np.hypot(rows.reshape(-1, 1) - y, columns.reshape(-1, 1) - x).min(axis=1)
    np.testing.assert_allclose(anchor_distance(measured, places), every, atol=ROUNDING)
    assert np.isinf(anchor_distance(np.zeros((4, 4), dtype=bool), np.arange(16))).all()


@pytest.mark.parametrize("exponent", [-3.0, -1.0, 0.0, 1.0, 4.0])
def test_the_gain_curve_is_the_derivative_of_the_response(exponent):
    prior = np.linspace(2.0, 6.0, 50)
    response = Response(exponent, 0.7, 0.1, 3.0)
    curve = gain_curve(response, prior)
    h = np.geomspace(2.0, 6.0, 200)
    slopes = (response(h * (1 + STEP)) - response(h * (1 - STEP))) / (2 * STEP * h)
    unit = math.exp(np.log(prior).mean()) / 3.0
    np.testing.assert_allclose(curve.slope, slopes * unit, rtol=DIFFERENCES)
    np.testing.assert_allclose(curve.depth, response(h), rtol=1e-12)
    with pytest.raises(InputError, match="no measurement"):
        gain_curve(response, np.array([]))


# --- the profile over the exponent ----------------------------------------------------------------------------------


def noisy_pairs(rng, count=400, exponent=-2.0):
    h = np.sort(rng.uniform(1.0, 4.0, count))
    s = Response(exponent, 0.8, 0.05, 2.0)(h) * np.exp(rng.normal(0, 0.02, count))
    return h, s


def test_at_exponent_one_it_is_least_squares_in_depth(rng):
    h, s = noisy_pairs(rng)
    slope, intercept = np.polyfit(h, s, 1)
    np.testing.assert_allclose(fit_at(1.0, h, s)(h), slope * h + intercept, rtol=1e-9)


@pytest.mark.parametrize("exponent", [-6.0, -1.0, 0.0, 2.5])
def test_gain_and_offset_are_a_minimum(rng, exponent):
    h, s = noisy_pairs(rng)
    found = fit_at(exponent, h, s)
    centre, gain, offset = found.centred

    def cost(gain, offset):
        return float(((Response.about(centre, exponent, gain, offset, found.scale)(h) - s) ** 2).sum())

    best = cost(gain, offset)
    small = 1e-5  # such that the cost changes by some 1e-10 of itself, far above its rounding
    for other in (
        (gain * (1 + small), offset),
        (gain * (1 - small), offset),
        (gain, offset + small),
        (gain, offset - small),
    ):
        assert cost(*other) > best


def test_the_profile_is_lowest_at_the_estimated_exponent_and_touches_the_fit(rng):
    h, s = noisy_pairs(rng)
    fit = fit_response(h, s)
    profile = exponent_profile(h, s, fit.response.exponent, held_out=(h, s))
    lowest = int(np.nanargmin(profile.rmse))
    assert profile.exponents[lowest] == fit.response.exponent
    assert profile.rmse[lowest] == pytest.approx(fit.rmse, rel=SAME_MINIMUM)
    assert set(MEMBERS.values()) <= set(profile.exponents)
    assert (profile.rmse >= fit.rmse * (1 - SAME_MINIMUM)).all()
    mae = float(np.abs(fit_at(0.0, h, s)(h) - s).mean())
    assert profile.at(0.0)[1] == pytest.approx(mae, rel=SAME_MINIMUM)
    assert profile.to_dict()["members"]["log depth"]["exponent"] == 0.0


def test_a_fit_at_a_fixed_exponent_maps_the_whole_prior(rng):
    """The best line through these pairs is negative for the nearest prior: one that is not must be found instead."""
    h = rng.uniform(1.0, 4.0, 200)
    s, ends = 2 * h - 1.5, (0.01, 40.0)
    for exponent in (-8.0, -1.0, 0.0, 1.0, 8.0):
        assert fit_at(exponent, h, s, ends).feasible(*ends)
    assert fit_at(1.0, h, s)(h) == pytest.approx(s)
    with pytest.raises(InputError, match="pair"):
        fit_at(1.0, np.array([]), np.array([]))


# --- point groups ---------------------------------------------------------------------------------------------------


def test_ransac_finds_the_line_of_most_points(rng):
    x = rng.uniform(0, 1, 3000)
    y = np.where(rng.random(3000) < 0.6, 2 * x + 1 + rng.uniform(-0.005, 0.005, 3000), rng.uniform(0, 4, 3000))
    line = ransac_line(x, y)
    assert line.slope == pytest.approx(2, abs=0.01)
    assert line.intercept == pytest.approx(1, abs=0.01)
    with pytest.raises(InputError, match="two different"):
        ransac_line(np.ones(5), np.arange(5.0))


def test_groups_follow_their_lines_and_not_their_first_ranks(rng):
    """Three bands: the nearest hundredth on a steep line that goes on into the second band's depths."""
    x = [rng.uniform(0.0, 0.2, 600), rng.uniform(0.3, 1.0, 12000), rng.uniform(0.3, 1.0, 12600)]
    y = [1.0 + 4 * x[0], 1.2 + 0.5 * x[1], 3.0 + x[2]]
    prior, depth = np.concatenate(x), np.concatenate(y) + rng.uniform(-0.003, 0.003, 25200)
    truth = np.repeat([0, 1, 2], [600, 12000, 12600])
    found = point_groups(prior, depth)
    assert [line.slope for line in found.lines] == pytest.approx([4, 0.5, 1], abs=0.1)
    seeded = depth <= np.percentile(depth, 1)
    near = found.labels == 0
    assert near.sum() > 1.25 * seeded.sum()  # it grew: 0.10 m of a line on which 0.8 m hold 600
    assert depth[near].max() <= found.ranges[0][1] + MARGIN + 1e-9  # but not farther than it may
    assert (truth[near] == 0).all()
    assert ((found.labels == 1) == (truth == 1)).mean() > 0.95
    assert found.to_dict()["sizes"] == np.bincount(found.labels, minlength=3).tolist()
    assert np.abs(depth - found.lines[1](prior))[found.labels == 1].max() < 10 * THRESHOLD


# --- all of it ------------------------------------------------------------------------------------------------------


def make_trial(rng, shape=(90, 120)):
    rows, columns = np.indices(shape)
    reference = (1.5 + 0.01 * rows + 0.005 * columns + 0.4 * (columns > 70)).astype(np.float32)
    prior = Prior((reference**1.7 * np.exp(rng.normal(0, 0.01, shape))).astype(np.float32))
    sparse = np.full(shape, np.nan, np.float32)
    sparse[4::8, 4::8] = reference[4::8, 4::8]
    predictions = {}
    for name, label in {"gmetric": "GMetric", "response": RESPONSE, "ours": OURS}.items():
        result = method(name)(prior, sparse)
        predictions[label] = Prediction(result.depth, result.parameters)
    image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    return Trial("made", image, prior, sparse, reference, np.isnan(sparse), None, predictions)


def test_a_diagnosis_has_every_part_and_the_methods_own_numbers(rng):
    trial = make_trial(rng)
    found = diagnose(trial)
    assert list(found.relations) == [SCALED, "GMetric", RESPONSE, OURS]
    for label in ("GMetric", RESPONSE, OURS):
        error = np.abs(trial.predictions[label].depth - trial.reference)[trial.scored]
        assert found.relations[label].mae == pytest.approx(float(error.mean()), rel=1e-6)
        assert found.residuals[label].at.size == diagnostics.GROUPS
    assert len({entry.window for entry in found.relations.values()}) == 1
    assert found.profile.chosen == trial.predictions[RESPONSE].parameters["exponent"]
    assert found.relations[RESPONSE].trend_cm < found.relations["GMetric"].trend_cm  # the prior is bent
    assert list(found.gains) == [*MEMBERS, ADAPTIVE]
    written = found.to_dict()
    assert written["exponent_profile"]["chosen"] == found.profile.chosen
    assert written["relations"][OURS]["trend_cm"] == found.relations[OURS].trend_cm


def test_without_a_recorded_exponent_it_is_estimated(rng):
    trial = make_trial(rng)
    recorded = trial.predictions[RESPONSE].parameters["exponent"]
    bare = Trial(
        **{**vars(trial), "predictions": {"GMetric": Prediction(trial.predictions["GMetric"].depth, {})}},
    )
    assert chosen_exponent(bare) == pytest.approx(recorded, rel=1e-3)


def test_the_prior_is_scaled_by_one_factor(rng):
    trial = make_trial(rng)
    ten = Trial(**{**vars(trial), "prior": Prior(trial.prior.values * 10)})
    first, second = scaled_prior_relation(trial), scaled_prior_relation(ten)
    np.testing.assert_allclose(first.predicted, second.predicted, rtol=1e-5)
    assert first.pearson == pytest.approx(second.pearson, abs=1e-6)


def test_no_measurement_with_a_prior_is_said(rng):
    trial = make_trial(rng)
    with pytest.raises(InputError, match="no measurement has a valid prior"):
        diagnose(Trial(**{**vars(trial), "sparse": np.full_like(trial.sparse, np.nan)}))
