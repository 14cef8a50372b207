"""The estimator: normal equations, recovery, covariance, invariances, and what it converges to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from leadline.core.fit import descent
from leadline.core.fit.curve import from_centred, to_centred
from leadline.core.fit.descent import StopReason
from leadline.core.fit.estimator import FitStatus, fit_response
from leadline.core.fit.normal_equations import CHUNK
from leadline.core.fit.response import Response, forward
from leadline.core.options import FitOptions
from support import pair_twins
from support.differences import central_jacobian
from support.matrix import parametrize

TWIN = 1e-10  # kernel against composition, whose 1 + w is above 1e-3 here
SAME_MAP = 1e-9  # the same descent in other units or another order: only rounding differs
SAME_MINIMUM = 1e-6  # two descents to one minimum: its bottom is flat, a relative decrease of 1e-12 is 1e-6 in a step
EXACT_MAP = 1e-9  # exact data: residuals stop at rounding level, the map between the pairs follows
CHAIN = 1e-8  # the twin's derivatives by the chain rule, which cancels
ENDS = (-0.6, 0.6)
GAIN = 0.9
EXPONENTS = [-20.0, -11.4, -3.0, -1.0, -1e-7, 0.0, 1e-3, 0.5, 1.0, 2.7, 7.7, 20.0]


def equations(x, depth, centred, ends):
    """The compiled sums at these (exponent, log gain, offset): cost, J^T r, J^T J in (exponent, q1, q2)."""
    theta = from_centred(np.asarray(centred, float), ends)
    return descent.Problem(x, depth, ends, ends)(theta)


def everywhere(exponent):
    """An offset with which the map of gain GAIN is defined for every prior: c = 1 - gain + exponent offset > 0."""
    return math.copysign(0.3, exponent) / max(1.0, abs(exponent))


def synthetic(rng, exponent, count=200, noise=0.0, spread=0.35):
    """Pairs on a map of the given exponent, with a prior on its own scale; noise in metres."""
    h = 7.0 * np.exp(rng.uniform(-spread, spread, count))
    response = Response.from_centred(7.0, exponent, GAIN, everywhere(exponent), 2.5)
    return h, response(h) + noise * rng.standard_normal(count), response


def centred_theta(fit):
    """The estimator's own parameters, with the pairs in its own units."""
    centre, gain, offset = fit.response.centred
    return np.array([fit.response.exponent, math.log(gain), offset]), centre, fit.response.scale


# Normal equations


@pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, CHUNK + 1, 1300])
@pytest.mark.parametrize("exponent", [-6.0, -1.0, -1e-3, 1e-9, 0.0, 0.029, 0.5, 1.0, 6.0])
def test_normal_equations_equal_their_plain_twin(count, exponent, rng):
    x, depth, offset = rng.uniform(-0.6, 0.6, count), rng.uniform(0.5, 2.0, count), everywhere(exponent)
    centred = np.array([exponent, math.log(GAIN), offset])
    cost, gradient, matrix = equations(x, depth, centred, ENDS)
    true_cost, plain_gradient, plain_matrix = pair_twins.pair_equations(np.exp(x), depth, exponent, GAIN, offset)
    slopes = to_centred(from_centred(centred, ENDS), ENDS)[1]
    true_gradient, true_matrix = slopes.T @ plain_gradient, slopes.T @ plain_matrix @ slopes
    norms = np.sqrt(np.diag(matrix))  # of the Jacobian's columns
    assert cost == pytest.approx(true_cost, rel=TWIN)
    assert (np.abs(gradient - true_gradient) <= CHAIN * norms * math.sqrt(true_cost)).all()
    assert (np.abs(matrix - true_matrix) <= CHAIN * np.outer(norms, norms)).all()


@pytest.mark.parametrize("exponent", [-300.0, -20.0, -5.0, -1.0, -0.02, 0.0, 1e-12, 0.05, 1.0, 5.0, 20.0, 300.0])
def test_jacobian_matches_differences(exponent, rng):
    none = np.zeros(1)  # with depth zero a single pair's sums are t^2 and -t times each derivative
    theta, step = np.array([exponent, -0.4, 0.3]), 1e-5
    for x in np.append(rng.uniform(*ENDS, 20), 0.0):
        problem = descent.Problem(np.array([x]), none, ENDS, ENDS)
        cost, products, matrix = problem(theta)
        jacobian = products / -math.sqrt(cost)
        assert np.abs(matrix - np.outer(jacobian, jacobian)).max() <= TWIN * np.abs(matrix).max()
        differences = central_jacobian(lambda at, p=problem: np.array([-math.sqrt(p(at)[0])]), theta, step)
        # Derivatives grow with the exponent: (300 * 1e-5)^2, and rounding over the step.
        assert np.abs(jacobian - differences[0]).max() <= 1e-5 * np.abs(jacobian).max() + 1e-10


@pytest.mark.parametrize("exponent", [7.7, -11.4, -20.0, 20.0, -1.0])
def test_kernel_and_response_evaluate_the_same_map(exponent, rng):
    # Where composing loses every digit the fit must still measure the map that it hands out.
    for gain, offset in ((1.0, 0.0), (1.3, 0.5 / exponent), (1e6, (1e6 - 0.5) / exponent)):
        response = Response(exponent, gain, offset, 1.0)
        low = 0.0 if gain > 1e3 else -2.0
        for x in rng.uniform(low, 2.0, 50) * np.sign(exponent):
            ends = (
                min(low * np.sign(exponent), 2.0 * np.sign(exponent)),
                max(low * np.sign(exponent), 2.0 * np.sign(exponent)),
            )
            t = math.sqrt(equations(np.array([x]), np.zeros(1), (exponent, math.log(gain), offset), ends)[0])
            assert t == pytest.approx(float(response(math.exp(x))), rel=1e-11)  # exp(x) itself rounds, times 20


# Recovery


@parametrize("exponent", EXPONENTS, quick=(-11.4, -1.0, 0.0, 0.5, 7.7))
def test_exact_pairs_give_back_their_map(exponent, rng):
    h, s, truth = synthetic(rng, exponent)
    fit = fit_response(h, s)
    assert fit.status is FitStatus.CONVERGED
    assert np.abs(fit.response(h) / s - 1).max() < EXACT_MAP
    assert fit.rmse < EXACT_MAP
    assert fit.response.exponent == pytest.approx(exponent, abs=1e-5)
    paper = Response(truth.exponent, truth.gain, truth.offset, truth.scale)
    assert fit.response.gain == pytest.approx(paper.gain, rel=1e-4)  # the gain does not depend on the scale


@pytest.mark.parametrize("exponent", [-2.0, 0.0, 1.5])
def test_covariance_covers(exponent, rng):
    # z-scores of 300 draws: their standard deviation has a standard error of 4 %, their mean one of 6 %.
    # Little noise, because jointly the three are bound so tightly that more bends the valley they lie in.
    draws, noise = 300, 2e-5
    scores, distances = [], []
    for _ in range(draws):
        h, s, truth = synthetic(rng, exponent, 150, noise)
        fit = fit_response(h, s)
        # The truth in this draw's units: phi about another scale is an affine function of phi.
        shift = float(forward(fit.response.scale, exponent, truth.scale))
        offset = (truth.offset + (truth.gain - 1) * shift) / (fit.response.scale / truth.scale) ** exponent
        error = np.array(
            [
                fit.response.exponent - exponent,
                math.log(fit.response.gain / truth.gain),
                fit.response.offset - offset,
            ]
        )
        scores.append(error / np.sqrt(np.diag(fit.covariance)))
        distances.append(error @ np.linalg.solve(fit.covariance, error))
    scores = np.array(scores)
    assert np.abs(scores.mean(axis=0)).max() < 0.25
    assert (np.abs(scores.std(axis=0) - 1) < 0.15).all()
    assert np.mean(distances) == pytest.approx(3.0, rel=0.2)  # chi-squared of three, jointly


@settings(max_examples=25)
@given(st.floats(-6, 6), st.floats(-3, 3), st.sampled_from([EXPONENTS[2], -1.0, 0.5, 2.7]))
def test_units_do_not_matter(prior_power, depth_power, exponent):
    h, s, _ = synthetic(np.random.default_rng(11), exponent, 80, 0.02)
    prior_factor, depth_factor = 10.0**prior_power, 10.0**depth_power
    plain = fit_response(h, s)
    scaled = fit_response(h * prior_factor, s * depth_factor)
    assert scaled.status is plain.status
    assert scaled.response.exponent == pytest.approx(plain.response.exponent, abs=SAME_MINIMUM)
    assert np.abs(scaled.response(h * prior_factor) / depth_factor / plain.response(h) - 1).max() < SAME_MAP
    assert scaled.rmse == pytest.approx(plain.rmse * depth_factor, rel=1e-9)


def test_order_of_the_pairs_does_not_matter(rng):
    h, s, _ = synthetic(rng, -1.4, 1000, 0.05)
    fit = fit_response(h, s)
    for order in (np.argsort(h), np.arange(h.size)[::-1], rng.permutation(h.size)):
        other = fit_response(h[order], s[order])
        assert other.rmse == pytest.approx(fit.rmse, rel=1e-9)
        assert np.abs(other.response(h) / fit.response(h) - 1).max() < SAME_MAP


@pytest.mark.parametrize("count", [descent.SUBSET, descent.SUBSET + 1, 3 * descent.SUBSET + 5])
def test_starting_on_a_subset_reaches_the_same_minimum(count, rng, monkeypatch):
    h, s, _ = synthetic(rng, 1.8, count, 0.1)
    fit = fit_response(h, s)
    monkeypatch.setattr(descent, "SUBSET", 10**9)
    full = fit_response(h, s)
    assert fit.count == count
    assert fit.rmse == pytest.approx(full.rmse, rel=1e-9)
    assert np.abs(fit.response(h) / full.response(h) - 1).max() < SAME_MINIMUM


def test_a_subset_that_misleads_does_not_win(rng, monkeypatch):
    count = 3 * descent.SUBSET
    misled = np.arange(0, count, 3)
    monkeypatch.setattr(
        descent.Problem, "subset", lambda p: descent.Problem(p.x[misled], p.depth[misled], p.domain, p.ends)
    )
    for exponent in (-2.0, 1.0, 2.3):
        h = np.exp(rng.normal(0, 0.5, count))
        s = (h**exponent + 0.3) ** (1 / exponent) * np.exp(rng.normal(0, 0.02, count))
        s[misled] = 5 * (h[misled] ** 6 + 0.1) ** (1 / 6)
        fit = fit_response(h, s)
        assert fit.rmse <= min(error for error in fixed_coordinate_errors(h, s, (h.min(), h.max())) if error)


@pytest.mark.parametrize("count", [descent.SUBSET + 1, 5 * descent.SUBSET - 3, 100_003])
def test_a_subset_is_spread_evenly_and_has_no_stride(count):
    x = np.arange(count, dtype=float)
    chosen = descent.Problem(x, x, (0.0, 1.0)).subset().x
    step = -(-count // descent.SUBSET)
    assert descent.SUBSET / 2 <= chosen.size <= descent.SUBSET
    assert (np.diff(chosen) > 0).all()
    assert np.diff(np.append(chosen, count)).max() <= 3 * step
    columns = np.bincount(chosen.astype(int) % step, minlength=step)  # of a grid as wide as the stride
    assert columns.min() > 0.8 * chosen.size / step - 3


# What it converges to


def fixed_coordinate_errors(h, s, ends):
    """RMSE in metres of ordinary least squares in metric depth, log depth and disparity; None where undefined."""
    errors = []
    for to, back in ((np.asarray, np.asarray), (np.log, np.exp), (np.reciprocal, np.reciprocal)):
        design = np.stack((to(h), np.ones(h.size)), axis=1)
        gain, shift = np.linalg.lstsq(design, to(s), rcond=None)[0]
        over_range = gain * to(np.array(ends)) + shift
        usable = gain > 0 and (to is np.log or (over_range > 0).all())
        errors.append(math.sqrt(np.mean((back(gain * to(h) + shift) - s) ** 2)) if usable else None)
    return errors


def problems(rng, count):
    for _ in range(count):
        exponent, size = rng.uniform(-4, 4), int(rng.choice([6, 30, 300]))
        h = np.exp(rng.normal(0, rng.uniform(0.1, 0.8), size))
        s = (h**exponent + rng.uniform(0, 1)) ** (1 / exponent) * np.exp(rng.normal(0, rng.uniform(0.01, 0.3), size))
        yield h, s, (h.min() * rng.uniform(0.3, 1), h.max() * rng.uniform(1, 3))


def test_never_worse_than_a_fixed_coordinate_and_never_uphill(rng):
    compared = 0
    for h, s, ends in problems(rng, 150):
        fit = fit_response(h, s, ends)
        for error in fixed_coordinate_errors(h, s, ends):
            if error is not None:
                compared += 1
                assert fit.rmse <= error * (1 + 1e-12)
        assert (np.diff(fit.history) <= 0).all()  # costs fall; their roots may round to the same number
        if fit.descents:
            assert fit.history[-1] == fit.descents[-1].rmse == fit.rmse
            assert (fit.status is FitStatus.ITERATION_LIMIT) == (fit.descents[-1].stopped is StopReason.ITERATION_LIMIT)
    assert compared > 300


def test_the_best_is_stationary(rng):
    checked = 0
    for h, s, ends in problems(rng, 200):
        fit = fit_response(h, s, ends)
        # Where the pairs say next to nothing about the exponent the descent ends on a plateau, not at a minimum.
        if not fit.covariance[0, 0] < 1 or fit.descents[-1].stopped is StopReason.DOMAIN_EDGE:
            continue
        theta, centre, scale = centred_theta(fit)
        x = np.log(h / centre)
        cost, gradient, matrix = equations(x, s / scale, theta, (x.min(), x.max()))
        # The decrease that a full Gauss-Newton step still promises, as a share of the cost.
        assert gradient @ np.linalg.solve(matrix, gradient) <= 1e-7 * cost
        checked += 1
    assert checked > 40


def test_scipy_finds_the_same_minimum(rng):
    for exponent in (-2.0, -1.0, 0.3, 1.0, 2.5):
        h, s, _ = synthetic(rng, exponent, 120, 0.05)
        fit = fit_response(h, s)
        theta, centre, scale = centred_theta(fit)

        def residuals(at, h=h / centre, s=s / scale):
            r = pair_twins.residuals(h, s, at[0], math.exp(at[1]), at[2])
            return np.where(np.isnan(r), 1e3, r)

        best = min(
            (
                least_squares(residuals, (start, 0.3, 0.1), xtol=1e-14, ftol=1e-14, gtol=1e-14)
                for start in (-1, 0.01, 1)
            ),
            key=lambda result: result.cost,
        )
        assert fit.rmse <= scale * math.sqrt(2 * best.cost / h.size) * (1 + 1e-9)
        assert theta == pytest.approx(best.x, rel=1e-4, abs=1e-5)


def test_every_start_is_tried_and_told(rng):
    h, s, _ = synthetic(rng, 0.7, 100, 0.05)
    fit = fit_response(h, s, options=FitOptions.paper(starts=(-1.0, 0.0, 1.0, 2.0)))
    assert [descent.start for descent in fit.descents[:-1]] == [-1.0, 0.0, 1.0, 2.0]
    assert fit.descents[-1].rmse <= min(descent.rmse for descent in fit.descents)
    assert all(descent.iterations > 0 for descent in fit.descents)


def test_the_iteration_limit_is_a_status(rng):
    h, s, _ = synthetic(rng, 3.0, 50, 0.3)
    fit = fit_response(h, s, options=FitOptions.paper(max_iterations=1))
    assert fit.status is FitStatus.ITERATION_LIMIT
    assert fit.rmse <= min(error for error in fixed_coordinate_errors(h, s, (h.min(), h.max())) if error is not None)
    assert np.isfinite(fit.response(h)).all()
