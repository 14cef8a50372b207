"""Binned percentiles, distances, gain curves, the fit at a fixed exponent, and the profile over exponents."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.core.fit.estimator import fit_response
from leadline.core.fit.response import Response
from leadline.report.diagnostics.curves import (
    FIXED_EXPONENTS,
    binned_percentiles,
    distance_to_measurement,
    exponent_profile,
    fit_at_exponent,
    gain_curve,
)

ROUNDING = 1e-9  # error of sums of a few thousand float64 numbers of order one
DIFFERENCES = 1e-6  # relative error of central differences with the step below
STEP = 1e-5
SAME_MINIMUM = 1e-6  # relative: two minimisers of one cost, of which each stops at its own tolerance


def test_binned_percentiles_are_those_of_each_group():
    along = np.repeat([1.0, 2.0, 3.0], 101)
    values = np.concatenate((np.linspace(0, 1, 101), np.linspace(10, 11, 101), np.full(101, np.nan)))
    found = binned_percentiles(along, values)
    np.testing.assert_allclose(found.at, [1, 2])
    np.testing.assert_allclose(found.median, [0.5, 10.5])
    np.testing.assert_allclose(found.low, [0.16, 10.16])
    np.testing.assert_allclose(found.high, [0.84, 10.84])
    np.testing.assert_array_equal(found.counts, [101, 101])
    assert binned_percentiles(along[:20], values[:20]).at.size == 0


def test_distance_to_measurement_is_the_smallest_of_all_distances(rng):
    measured = rng.random((17, 23)) < 0.02
    measured[3, 5] = True
    rows, columns = np.indices(measured.shape)
    y, x = np.nonzero(measured)
    every = np.hypot(rows.reshape(-1, 1) - y, columns.reshape(-1, 1) - x).min(axis=1)
    np.testing.assert_allclose(distance_to_measurement(measured).ravel(), every, atol=ROUNDING)
    assert np.isinf(distance_to_measurement(np.zeros((4, 4), dtype=bool))).all()


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


def noisy_pairs(rng, count=400, exponent=-2.0):
    h = np.sort(rng.uniform(1.0, 4.0, count))
    s = Response(exponent, 0.8, 0.05, 2.0)(h) * np.exp(rng.normal(0, 0.02, count))
    return h, s


def test_at_exponent_one_it_is_least_squares_in_depth(rng):
    h, s = noisy_pairs(rng)
    slope, intercept = np.polyfit(h, s, 1)
    np.testing.assert_allclose(fit_at_exponent(1.0, h, s)(h), slope * h + intercept, rtol=1e-9)


@pytest.mark.parametrize("exponent", [-6.0, -1.0, 0.0, 2.5])
def test_gain_and_offset_are_a_minimum(rng, exponent):
    h, s = noisy_pairs(rng)
    found = fit_at_exponent(exponent, h, s)
    centre, gain, offset = found.centred

    def cost(gain, offset):
        return float(((Response.from_centred(centre, exponent, gain, offset, found.scale)(h) - s) ** 2).sum())

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
    assert set(FIXED_EXPONENTS.values()) <= set(profile.exponents)
    assert (profile.rmse >= fit.rmse * (1 - SAME_MINIMUM)).all()
    mae = float(np.abs(fit_at_exponent(0.0, h, s)(h) - s).mean())
    assert profile.at(0.0)[1] == pytest.approx(mae, rel=SAME_MINIMUM)
    assert profile.to_dict()["fixed_coordinates"]["log depth"]["exponent"] == 0.0


def test_a_fit_at_a_fixed_exponent_maps_the_whole_prior(rng):
    """The best line through these pairs is negative for the nearest prior: one that is not must be found instead."""
    h = rng.uniform(1.0, 4.0, 200)
    s, ends = 2 * h - 1.5, (0.01, 40.0)
    for exponent in (-8.0, -1.0, 0.0, 1.0, 8.0):
        assert fit_at_exponent(exponent, h, s, ends).feasible(*ends)
    assert fit_at_exponent(1.0, h, s)(h) == pytest.approx(s)
    with pytest.raises(InputError, match="pair"):
        fit_at_exponent(1.0, np.array([]), np.array([]))
    with pytest.raises(InputError, match="the prior is the same at all measurements"):
        fit_at_exponent(1.0, np.array([2.0]), np.array([3.0]), (1.0, 4.0))
