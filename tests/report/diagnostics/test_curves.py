"""Binned percentiles, distances to measurements and gain curves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.core.fit.response import Response
from leadline.report.diagnostics.curves import binned_percentiles, distance_to_measurement, gain_curve

ROUNDING = 1e-9  # error of sums of a few thousand float64 numbers of order one
DIFFERENCES = 1e-6  # relative error of central differences with the step below
STEP = 1e-5


def test_binned_percentiles_are_those_of_each_group():
    along = np.repeat([1.0, 2.0, 3.0], 101)
    values = np.concatenate((np.linspace(0, 1, 101), np.linspace(10, 11, 101), np.full(101, np.nan)))
    found = binned_percentiles(along, values, groups=2)
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
    with pytest.raises(InputError, match="no measurement"):
        gain_curve(response, np.array([]))
