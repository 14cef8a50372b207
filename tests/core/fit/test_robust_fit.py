"""Losses, residual kinds and noise: derivatives, twins, recovery under outliers, and what must not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.core.fit.curve import from_centred, to_centred
from leadline.core.fit.descent import Problem, fixed_coordinate
from leadline.core.fit.estimator import FitStatus, fit_response
from leadline.core.fit.normal_equations import CHUNK
from leadline.core.fit.response import Response
from leadline.core.fit.robust import LOSSES, Reweighted, fit_with_scale
from leadline.core.noise import Noise, sigma_at
from leadline.core.options import FitOptions
from support import pair_twins
from support.degenerate_pairs import DEGENERATE, check_map, ramp
from support.differences import central_jacobian
from support.matrix import parametrize

TWIN = 1e-8  # the twin's weights are differences of the loss: 1e-16 / 1e-6, and a second derivative times 1e-12
GRADIENT = 1e-7  # of a sum of some hundred losses against its differences
SAME_MAP = 1e-5  # fits that differ in rounding; fit and scale take turns to a hundredth, from scales that differ alike
CLEAN = 1.1  # how much worse than the fit without outliers a fit among them may be
GAIN = 0.9
ROBUST = [name for name in LOSSES if name != "squared"]
every_loss = pytest.mark.parametrize("loss", LOSSES)
every_residual = pytest.mark.parametrize("residual", ["metric", "log"])
every_exponent = parametrize("exponent", [-6.0, -1.0, -1e-3, 0.0, 0.5, 1.0, 6.0], quick=(-6.0, 0.0, 0.5))


def everywhere(exponent):
    """An offset with which the map of gain GAIN is defined for every prior."""
    return math.copysign(0.3, exponent) / max(1.0, abs(exponent))


def synthetic(rng, exponent, count=400, noise=0.0, spread=0.5):
    """Pairs on a map of the given exponent with relative noise, and the map."""
    h = 7.0 * np.exp(rng.uniform(-spread, spread, count))
    truth = Response.from_centred(7.0, exponent, GAIN, everywhere(exponent), 2.5)
    return h, truth(h) * np.exp(noise * rng.standard_normal(count)), truth


def spoiled(rng, s, share, kind):
    """The depths with a share of them grossly wrong: anywhere, too far, too near, or all at one depth."""
    s, wrong = s.copy(), rng.random(s.size) < share
    count = int(wrong.sum())
    s[wrong] = {
        "anywhere": rng.uniform(0.3 * s.min(), 3 * s.max(), count),
        "far": s[wrong] * rng.uniform(1.5, 4, count),
        "near": s[wrong] / rng.uniform(1.5, 4, count),
        "one depth": np.full(count, 2 * s.max()),
    }[kind]
    return s, wrong


def reweighted(rng, residual, loss, count, exponent):
    """A problem with residuals on both sides of where the loss bends, and a parameter."""
    x, depth = rng.uniform(-0.6, 0.6, count), rng.uniform(0.5, 2.0, count)
    problem = Problem(x, depth, (-0.7, 0.7))
    at = Reweighted.of(problem, np.log(depth), None, FitOptions.paper(residual=residual, loss=loss))
    at.inverse_sigma[:] = rng.uniform(1.0, 12.0, count)
    return at, from_centred(np.array([exponent, math.log(GAIN), everywhere(exponent)]), problem.ends)


# Kernels


@parametrize("count", [5, CHUNK, CHUNK + 1, 1300], quick=(5, CHUNK + 1))
@every_exponent
@every_residual
@every_loss
def test_normal_equations_equal_their_plain_twin(loss, residual, exponent, count, rng):
    at, theta = reweighted(rng, residual, loss, count, exponent)
    h, numbers = np.exp(at.plain.x), (exponent, GAIN, everywhere(exponent))
    if residual == "log":
        r, J = pair_twins.log_residuals(h, at.plain.depth, *numbers), pair_twins.log_jacobian(h, *numbers)
    else:
        r, J = pair_twins.residuals(h, at.plain.depth, *numbers), pair_twins.jacobian(h, *numbers)
    J = J @ to_centred(theta, at.ends)[1]
    cost, gradient, matrix = at(theta)
    true_cost, true_gradient, true_matrix = pair_twins.robust_equations(r, J, at.inverse_sigma, loss)
    norms = np.sqrt(np.diag(true_matrix))
    assert cost == pytest.approx(true_cost, rel=TWIN)
    assert (np.abs(gradient - true_gradient) <= TWIN * norms * math.sqrt(at.floor + (r @ r) * 144)).all()
    assert (np.abs(matrix - true_matrix) <= TWIN * np.outer(norms, norms)).all()
    np.testing.assert_allclose(at.residuals(theta), r, rtol=0, atol=1e-12)


@every_exponent
@every_residual
@every_loss
def test_the_gradient_is_that_of_the_loss(loss, residual, exponent, rng):
    at, theta = reweighted(rng, residual, loss, 300, exponent)
    _, gradient, matrix = at(theta)
    differences = central_jacobian(lambda near: np.array([at(near)[0]]), theta, 1e-5)[0]
    scale = np.sqrt(np.diag(matrix)) * math.sqrt(at.target.size)
    assert (np.abs(2 * gradient - differences) <= GRADIENT * scale + 1e-5 * scale * (loss == "huber")).all()


@every_loss
def test_weights_are_the_slope_of_the_loss(loss, rng):
    at, theta = reweighted(rng, "log", loss, 500, 0.5)
    z, step = at.residuals(theta) * at.inverse_sigma, 1e-6
    slope = (pair_twins.losses(z + step, loss) - pair_twins.losses(z - step, loss)) / (4 * step * z)
    far = np.abs(z) > 1e-2
    np.testing.assert_allclose(at.weights(theta)[far], slope[far], atol=1e-6)
    if loss != "squared":
        assert 0 < at.weights(theta).min() < 0.5


@pytest.mark.parametrize(("loss", "share"), [("squared", 1.0), ("huber", 0.95), ("cauchy", 0.95), ("gnc", 0.95)])
def test_the_widths_cost_a_twentieth_on_normal_noise(loss, share):
    z = np.linspace(-12, 12, 200_001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    psi = np.gradient(pair_twins.losses(z, loss), z) / 2
    efficiency = (np.gradient(psi, z) * density).sum() ** 2 / (psi**2 * density).sum()
    assert efficiency == pytest.approx(share, abs=1e-3)


# Recovery


@parametrize("exponent", [-6.0, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0], quick=(-2.0, 0.0, 1.0))
@every_residual
@every_loss
def test_exact_pairs_give_back_their_map(loss, residual, exponent, rng):
    h, s, _ = synthetic(rng, exponent)
    fit = fit_response(h, s, options=FitOptions.paper(loss=loss, residual=residual))
    assert fit.status is FitStatus.CONVERGED
    assert np.abs(fit.response(h) / s - 1).max() < 1e-8
    assert fit.weights == pytest.approx(np.ones(h.size), abs=1e-3)


@pytest.mark.parametrize("kind", ["anywhere", "far", "near", "one depth"])
@pytest.mark.parametrize("loss", ["cauchy", "gnc"])
def test_three_wrong_in_ten_hardly_matter(loss, kind, rng):
    options = FitOptions.paper(loss=loss, residual="log")
    worse, found = [], []
    for exponent in (-3.0, -1.0, 0.0, 1.0, 2.0):
        for _ in range(4):
            h, s, truth = synthetic(rng, exponent, 1000, noise=0.03)
            dense = 7.0 * np.exp(np.linspace(-0.5, 0.5, 200))

            # Against what the clean map leaves at a held-out measurement: its own error and the noise.
            def error(fit, dense=dense, truth=truth):
                return math.sqrt(np.mean(np.log(fit.response(dense) / truth(dense)) ** 2) + 0.03**2)

            clean = error(fit_response(h, s, options=options))
            bad, _ = spoiled(rng, s, 0.3, kind)
            fit = fit_response(h, bad, options=options)
            worse.append(error(fit) / clean)
            far = np.abs(np.log(bad / s)) > 0.4
            found.append(np.median(fit.weights[far]) if far.any() else 0.0)
    assert max(worse) < CLEAN
    assert max(found) < 0.2


def test_least_squares_do_not_survive_what_the_others_do(rng):
    h, s, truth = synthetic(rng, -1.0, 1000, noise=0.03)
    bad, _ = spoiled(rng, s, 0.3, "far")
    squared, *others = (fit_response(h, bad, options=FitOptions.paper(loss=loss, residual="log")) for loss in LOSSES)
    errors = [float(np.abs(np.log(fit.response(h) / truth(h))).mean()) for fit in (squared, *others)]
    assert errors[0] > 3 * max(errors[2:])
    assert errors[0] > errors[1] > max(errors[2:])  # huber slows an outlier's pull, but does not end it


def test_a_start_of_least_absolute_errors_holds_among_outliers(rng):
    x = rng.uniform(-0.5, 0.5, 600)
    y = 0.8 * x + 0.1 + 0.01 * rng.standard_normal(600)
    y[rng.random(600) < 0.3] += 2.0
    _, log_gain, offset = fixed_coordinate(x, y, 0.0, (-0.5, 0.5), absolute=True)
    assert math.exp(log_gain) == pytest.approx(0.8, abs=0.05)
    assert offset == pytest.approx(0.1, abs=0.02)
    assert fixed_coordinate(x, y, 0.0, (-0.5, 0.5))[2] > 0.5


@pytest.mark.parametrize("loss", LOSSES)
def test_the_covariance_covers_among_outliers(loss, rng):
    # 120 draws: the standard deviation of their z-scores has a standard error of 6.5 %.
    scores = []
    for _ in range(120):
        h, s, truth = synthetic(rng, 0.5, 200, noise=0.002)
        # Some at the very place where a loss that fades bends downwards, which its curvature must see.
        s[::10] *= 1.0 if loss == "squared" else 1.012
        fit = fit_response(h, s, options=FitOptions.paper(loss=loss, residual="log"))
        scores.append((fit.response.exponent - truth.exponent) / math.sqrt(fit.covariance[0, 0]))
    assert np.std(scores) == pytest.approx(1.0, abs=0.2)


# What must not matter


@settings(max_examples=15)
@given(st.floats(-6, 6), st.floats(-3, 3), st.sampled_from(ROBUST), st.sampled_from(["metric", "log"]))
def test_units_do_not_matter(prior_power, depth_power, loss, residual):
    rng = np.random.default_rng(3)
    h, s, _ = synthetic(rng, 0.7, 120, 0.02)
    s, _ = spoiled(rng, s, 0.2, "anywhere")
    a, b = 10.0**prior_power, 10.0**depth_power
    options, sigma = FitOptions.paper(loss=loss, residual=residual, exponent_spread=2.0), 0.01 * s
    groups = np.arange(120) // 10
    plain = fit_response(h, s, options=options, sigma=sigma, groups=groups)
    scaled = fit_response(h * a, s * b, options=options, sigma=sigma * b, groups=groups)
    assert np.abs(scaled.response(h * a) / b / plain.response(h) - 1).max() < SAME_MAP
    np.testing.assert_allclose(scaled.weights, plain.weights, atol=1e-3)


@pytest.mark.parametrize("loss", ROBUST)
@parametrize("factors", [(1.0, 1.0), (1e30, 1e-30), (1e-30, 1e30)], quick=[(1.0, 1.0)], ids=str)
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_pairs_get_their_status(name, factors, loss):
    prior, depth, status = DEGENERATE[name]
    h, s = np.array(prior) * factors[0], np.array(depth) * factors[1]
    for residual in ("metric", "log"):
        options = FitOptions.paper(loss=loss, residual=residual, exponent_spread=1.0)
        fit = fit_response(h, s, (h.min() / 2, h.max() * 2), options)
        assert fit.status is status
        assert fit.weights.shape == h.shape
        check_map(fit, h, s, (h.min() / 2, h.max() * 2))


@every_loss
def test_magnitudes_all_over_the_place(loss, rng):
    for count in (4, 60):
        h, s = 10.0 ** rng.uniform(-30, 30, (2, count))
        for prior, depth in ((h, s), (np.sort(h), np.sort(s)), (np.sort(h), ramp(1, 2, count)), (ramp(1, 2, count), s)):
            for residual in ("metric", "log"):
                fit = fit_response(prior, depth, options=FitOptions.paper(loss=loss, residual=residual))
                assert fit.response.feasible(prior.min(), prior.max())
                assert np.isfinite(fit.response(prior)).all()


@pytest.mark.parametrize("loss", ROBUST)
def test_a_scale_alone_is_the_median(loss):
    h = ramp(1.0, 3.0, 41) ** 3  # skewed, so that the median of s / h is not that of s
    fit = fit_response(h, 9.0 / h, options=FitOptions.paper(loss=loss))
    assert fit.status is FitStatus.ANTI_CORRELATED
    assert fit.response(h) == pytest.approx(h * np.median(9.0 / h**2), rel=1e-9)


# Noise


def test_certain_measurements_count_for_more(rng):
    h, s, truth = synthetic(rng, -1.0, 600)
    sigma = np.where(np.arange(600) % 3, 0.3, 0.003)
    s = np.maximum(s + sigma * rng.standard_normal(600), 0.2)
    alike, told = (fit_response(h, s, sigma=given) for given in (None, sigma))
    errors = [float(np.abs(fit.response(h) / truth(h) - 1).mean()) for fit in (alike, told)]
    assert errors[1] < 0.2 * errors[0]


def test_equal_noise_is_no_noise_and_the_priors_error_is_added(rng):
    h, s, _ = synthetic(rng, -1.0, 500, noise=0.1)
    plain = fit_response(h, s)
    for sigma in (0.0, 1e-3, 0.5):
        told = fit_response(h, s, sigma=np.full(500, sigma))
        assert np.abs(told.response(h) / plain.response(h) - 1).max() < SAME_MAP
    # Far below what the prior is off by, differences of the noise hardly matter.
    told = fit_response(h, s, sigma=np.where(np.arange(500) % 2, 1e-3, 1e-5))
    assert np.abs(told.response(h) / plain.response(h) - 1).max() < 1e-3


def test_noise_in_metres_is_relative_in_log_depth():
    depth = np.array([0.5, 2.0, 4.0])
    sigma = np.array([0.1, 0.1, 0.4])
    for residual, expected in (("metric", sigma), ("log", sigma / depth)):
        problem = Problem(np.array([-1e-12, 0.0, 1e-12]), depth, (-1, 1))
        at = Reweighted.of(problem, np.log(depth), sigma, FitOptions.paper(residual=residual))
        np.testing.assert_allclose(at.variance, expected**2)
        # Residuals of zero leave the sensor's own share, and next to nothing besides.
        exact = replace(at, target=at.target * 0 + (0.0 if residual == "log" else 1.0))
        np.testing.assert_allclose(
            exact.rescaled(np.array([0.0, -1e-12, 1e-12])).inverse_sigma, 1 / expected, rtol=1e-6
        )


def test_the_scale_is_the_noise_and_not_the_outliers(rng):
    h, s, _ = synthetic(rng, -1.0, 4000, noise=0.05)
    x, y = np.log(h / 7.0), np.log(s / 2.5)
    for share in (0.0, 0.15, 0.3):
        bad = y + np.where(rng.random(4000) < share, 2.0, 0.0)
        at = Reweighted.of(Problem(x, np.exp(bad), (-1, 1)), bad, None, FitOptions.paper(loss="gnc", residual="log"))
        start = from_centred(fixed_coordinate(x, bad, 0.0, (-1, 1), absolute=True), at.ends)
        at, _, _, _ = fit_with_scale(at, start, 100)
        assert 1 / at.inverse_sigma[0] == pytest.approx(0.05, rel=0.12)


@pytest.mark.parametrize("wrong", [[1.0], np.full(40, -1.0), np.full(40, np.nan), np.ones((40, 1))], ids=str)
def test_impossible_noise_is_refused(wrong):
    with pytest.raises(InputError, match="sigma"):
        fit_response(ramp(1.0, 2.0), ramp(1.0, 2.0), sigma=np.asarray(wrong))


def test_a_sensor_model_and_a_map_of_noise():
    measured, where = np.array([1.0, 2.0]), np.array([1, 5])
    noise = Noise(constant=0.03, proportional=0.02, quadratic=0.01)
    np.testing.assert_allclose(sigma_at(noise, measured, where, (2, 3)), np.sqrt([0.0014, 0.0041]))
    chart = np.array([[np.nan, 0.1, 0.0], [0.0, 0.0, 0.4]])
    np.testing.assert_array_equal(sigma_at(chart, measured, where, (2, 3)), [0.1, 0.4])
    with pytest.raises(InputError, match="not at 1 of 2"):
        sigma_at(chart, measured, np.array([0, 5]), (2, 3))
    with pytest.raises(InputError, match=r"a map of shape \(2, 3\), got \(3, 2\)"):
        sigma_at(chart.T, measured, where, (2, 3))
    with pytest.raises(InputError, match="quadratic"):
        Noise(quadratic=-1.0)


def test_the_start_that_is_better_after_a_few_steps_leads_to_the_same_map(rng):
    h, s, _ = synthetic(rng, -1.0, noise=0.02)
    s = spoiled(rng, s, 0.1, "anywhere")[0]
    options = FitOptions.paper(residual="log", loss="cauchy", starts=(-1.0, 1.0))
    whole, brief = (fit_response(h, s, options=options, briefly=briefly) for briefly in (False, True))
    np.testing.assert_allclose(np.log(brief.response(h)), np.log(whole.response(h)), atol=1e-3)
    assert (len(brief.descents), len(whole.descents)) == (2, 3)
