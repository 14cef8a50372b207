"""Pairs that cannot carry three parameters, far magnitudes, wide ranges: a status and a finite map, always."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.core.fit.descent import StopReason
from leadline.core.fit.estimator import FitStatus, fit_response
from leadline.core.fit.response import Response
from leadline.core.options import FitOptions
from support.degenerate_pairs import DEGENERATE, check_map, ramp
from support.matrix import parametrize


@parametrize(
    "factors", [(1.0, 1.0), (1e-30, 1.0), (1e30, 1e-30), (1e-30, 1e30)], quick=[(1.0, 1.0), (1e30, 1e-30)], ids=str
)
@parametrize("widen", [1.0, 1e3, 1e150], quick=(1.0, 1e150))
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_pairs_get_their_status_and_a_map_of_the_whole_range(name, widen, factors):
    prior, depth, status = DEGENERATE[name]
    h, s = np.array(prior) * factors[0], np.array(depth) * factors[1]
    ends = (h.min() / widen, h.max() * widen)
    fit = fit_response(h, s, ends)
    assert fit.status is status
    assert fit.count == h.size
    check_map(fit, h, s, ends)
    if status is not FitStatus.CONVERGED:
        assert np.isnan(fit.covariance).all()
    assert str(fit.status).startswith(status.name.lower())


def test_no_pairs():
    fit = fit_response(np.empty(0), np.empty(0))
    assert fit.status is FitStatus.NO_MEASUREMENTS
    assert fit.count == 0
    assert math.isnan(fit.rmse)
    assert all(map(math.isfinite, fit.response.to_dict().values()))


def test_scale_alone_is_least_squares_in_metres():
    h, s = ramp(1.0, 2.0), ramp(5.0, 1.0)
    fit = fit_response(h, s)
    assert fit.response(h) == pytest.approx(h * (h @ s) / (h @ h), rel=1e-12)


@parametrize("exponent", [-20.0, -5.0, -1.0, 0.0, 1e-3, 1.0, 5.0, 20.0], quick=(-20.0, 0.0, 5.0))
@parametrize(
    "factors", [(1e-30, 1.0), (1e30, 1.0), (1.0, 1e-30), (1e-30, 1e30)], quick=[(1e30, 1.0), (1e-30, 1e30)], ids=str
)
def test_far_scales_are_no_trouble(exponent, factors, rng):
    h = np.exp(rng.uniform(-0.35, 0.35, 60))
    offset = math.copysign(0.3, exponent) / max(1.0, abs(exponent))  # defined for every prior
    s = Response(exponent, 0.9, offset, 1.0)(h) + 0.005 * rng.standard_normal(60)
    h, s = h * factors[0], s * factors[1]
    ends = (h.min() / 2, h.max() * 2)
    fit = fit_response(h, s, ends)
    check_map(fit, h, s, ends)
    assert fit.rmse < 0.01 * factors[1]


def test_magnitudes_all_over_the_place(rng):
    for count in (4, 60):
        h, s = 10.0 ** rng.uniform(-30, 30, (2, count))
        for prior, depth in ((h, s), (np.sort(h), np.sort(s)), (np.sort(h), ramp(1, 2, count)), (ramp(1, 2, count), s)):
            fit = fit_response(prior, depth)
            assert fit.response.feasible(prior.min(), prior.max())
            assert np.isfinite(fit.response(prior)).all()


def test_the_dense_range_binds_where_the_pairs_do_not(rng):
    # Metric fits that go to zero above the lowest prior, disparity fits that reach infinity below the highest.
    at_the_edge = 0
    for trial in range(120):
        exponent = rng.choice([-1, 1]) * rng.uniform(0.5, 5)
        h = np.exp(rng.uniform(0, 1.2, int(rng.integers(5, 80))))
        powers = h**exponent
        s = (powers - rng.uniform(0.3, 0.95) * powers.min()) ** (1 / exponent)
        s *= np.exp(0.05 * rng.standard_normal(h.size) * (trial % 2))
        ends = (h.min() * rng.uniform(0.01, 1), h.max() * rng.uniform(1, 100))
        fit = fit_response(h, s, ends)
        check_map(fit, h, s, ends)
        at_the_edge += fit.descents[-1].stopped is StopReason.DOMAIN_EDGE
    assert at_the_edge > 20


def test_starts_that_cannot_map_the_range_leave_log_depth():
    h = ramp(1.0, 2.0)
    fit = fit_response(h, h - 0.9, (0.1, 3.0), FitOptions.paper(starts=(1.0, 5.0)))
    assert fit.status is FitStatus.CONVERGED
    assert {descent.start for descent in fit.descents} == {0.0}


@pytest.mark.parametrize("starts", [(1e-320,), (1e6, -1e6), (0.0, 300.0)])
def test_absurd_starts_do_no_harm(starts):
    h = ramp(1.0, 2.0)
    assert fit_response(h, h**1.5, (0.1, 3.0), FitOptions.paper(starts=starts)).rmse < 1e-6


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)])
def test_an_impossible_prior_range_is_refused(ends):
    with pytest.raises(InputError, match="prior_range"):
        fit_response(ramp(1.0, 2.0), ramp(1.0, 2.0), ends)
