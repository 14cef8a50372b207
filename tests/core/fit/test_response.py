"""The response family and its fused map: laws, 50-digit accuracy, derivatives, domain."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.core.fit.calibration import DIFFERENCE, LOG, LOG1P, SUM
from leadline.core.fit.response import Response, exponent_slope, forward
from support.differences import central_jacobian
from support.pair_twins import inverse, slope

EPS = float(np.finfo(float).eps)
ACCURATE = 1e-12  # relative, promised for |exponent| <= 20 and depths of 0.1 to 200 m
DIGITS = 50
# Errors of a well-made evaluation in units of EPS times its condition number: log h, log(centre), their difference
# of up to log 2000, and the logarithm, exponential and scale that follow.
ROUNDINGS = 50.0

depths = st.floats(0.1, 200.0)
tiny = st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1.0, 1.0]), st.floats(-323.0, -1.0))
exponents = st.one_of(st.floats(-20.0, 20.0), tiny, st.sampled_from([0.0, 5e-324, -1.0, 1.0, -20.0, 20.0]))


# The oracle: the paper's formulas as they stand, with 50 digits beyond what a small exponent cancels.


def oracle_digits(exponent):
    return DIGITS + (2 * max(0, -int(math.log10(abs(exponent)))) if exponent else 0)


def oracle_phi(z, exponent, scale):
    z, lam, scale = map(mpmath.mpf, (z, exponent, scale))
    return mpmath.log(z / scale) if lam == 0 else ((z / scale) ** lam - 1) / lam


def oracle_inverse(u, exponent, scale):
    u, lam, scale = map(mpmath.mpf, (u, exponent, scale))
    if lam == 0:
        return scale * mpmath.exp(u)
    return scale * (1 + lam * u) ** (1 / lam) if 1 + lam * u > 0 else mpmath.nan


def oracle_exponent_slope(z, exponent, scale):
    z, lam, scale = map(mpmath.mpf, (z, exponent, scale))
    q = mpmath.log(z / scale)
    power = (z / scale) ** lam
    return q**2 / 2 if lam == 0 else (lam * power * q - (power - 1)) / lam**2


def oracle_map(response, h):
    """t of the Response's own float64 parameters."""
    centre, gain, offset = response.centred
    with mpmath.workdps(oracle_digits(response.exponent)):
        u = mpmath.mpf(gain) * oracle_phi(h, response.exponent, centre) + mpmath.mpf(offset)
        return oracle_inverse(u, response.exponent, response.scale)


def relative_error(got, true):
    if mpmath.isnan(true) or math.isnan(got):
        return 0.0 if mpmath.isnan(true) and math.isnan(got) else math.inf
    return float(abs(mpmath.mpf(float(got)) - true) / abs(true)) if true else abs(float(got))


def triples(rng, count):
    """(depth, exponent, scale): all magnitudes, every third exponent near zero, some depths next to the scale."""
    for i in range(count):
        z, scale = np.exp(rng.uniform(math.log(0.1), math.log(200.0), 2))
        exponent = rng.uniform(-20, 20) if i % 3 else rng.choice([-1, 1]) * 10.0 ** rng.uniform(-60, 0)
        if i % 7 == 0:
            z = scale * (1 + rng.choice([-1, 1]) * 10.0 ** rng.uniform(-15, -1))
        yield float(z), float(exponent), float(scale)


# Laws


@given(depths, exponents, depths)
def test_inverse_undoes_forward(z, exponent, scale):
    v = exponent * math.log(z / scale)
    condition = abs(math.expm1(v)) * math.exp(-v) / abs(exponent) if abs(v) > 1e-3 else 1.0
    assume(condition < 1e-3 / EPS)  # beyond it float64 cannot tell 1 + exponent phi from zero
    back = float(inverse(forward(z, exponent, scale), exponent, scale))
    assert back == pytest.approx(z, rel=16 * EPS * (10 + abs(v)) * max(1.0, condition))


@given(depths, depths, exponents, depths)
def test_forward_preserves_order(a, b, exponent, scale):
    a, b = sorted((a, b))
    low, high = forward([a, b], exponent, scale)
    assert low <= high
    resolved = exponent * math.log(a / scale) > -20 and exponent * math.log(b / scale) > -20
    if b > a * (1 + 1e-5) and resolved:  # else phi is within rounding of its limit -1 / exponent
        assert low < high


@given(depths, depths)
def test_members_are_metric_log_and_disparity(z, scale):  # eq:special
    condition = 1 + scale / abs(z - scale) if z != scale else 1.0  # of the plain differences on the right
    assert float(forward(z, 1.0, scale)) == pytest.approx(z / scale - 1, rel=8 * EPS * condition)
    assert float(forward(z, 0.0, scale)) == pytest.approx(math.log(z / scale), rel=8 * EPS * condition)
    assert float(forward(z, -1.0, scale)) == pytest.approx(1 - scale / z, rel=8 * EPS * (condition + z / scale))


@given(depths, st.floats(1e-320, 1e-3), depths)
def test_continuous_through_exponent_zero(z, exponent, scale):
    q = math.log(z / scale)
    bound = exponent * q * q * math.exp(abs(exponent * q)) / 2 + 4 * EPS * (1 + abs(q))  # mean value theorem
    for signed in (exponent, -exponent):
        assert abs(float(forward(z, signed, scale)) - q) <= bound
        near_inverse = float(inverse(q, signed, scale))
        assert abs(math.log(near_inverse / z)) <= bound * math.exp(abs(exponent * q)) * 4 + 16 * EPS


@given(depths, depths, st.floats(-1e-3, 1e-3), st.floats(0.1, 10), st.floats(-2, 2))
def test_map_is_continuous_through_exponent_zero(h, scale, exponent, gain, offset):
    x, t0 = math.log(h / scale), gain * math.log(h / scale) + offset
    assume(abs(exponent) * (gain * x * x + abs(t0) + t0 * t0) < 0.1)
    t = float(Response(exponent, gain, offset, scale)(h))
    assert abs(math.log(t / scale) - t0) <= 2 * abs(exponent) * (gain * x * x + t0 * t0) + 64 * EPS * (1 + abs(t0))


@given(depths, depths, exponents, st.floats(0.01, 100), st.floats(-5, 5), depths)
def test_map_preserves_order(a, b, exponent, gain, offset, scale):
    low, high = np.sort([a, b])
    response = Response(exponent, gain, offset, scale)
    assume(response.feasible(low, high))
    t = response(np.array([low, high]))
    assert t[0] <= t[1] * (1 + ROUNDINGS * EPS)


# Accuracy


def test_family_has_twelve_digits(rng):
    worst = dict.fromkeys(("forward", "slope", "exponent_slope", "inverse"), 0.0)
    outside = 0
    for z, exponent, scale in triples(rng, 2000):
        u = float(forward(z, exponent, scale))
        with mpmath.workdps(oracle_digits(exponent)):
            true = {
                "forward": oracle_phi(z, exponent, scale),
                "slope": (mpmath.mpf(z) / mpmath.mpf(scale)) ** mpmath.mpf(exponent) / mpmath.mpf(z),
                "exponent_slope": oracle_exponent_slope(z, exponent, scale),
                "inverse": oracle_inverse(u, exponent, scale),  # of the float64 u, rounded as it is
            }
            got = {
                "forward": u,
                "slope": float(slope(z, exponent, scale)),
                "exponent_slope": float(exponent_slope(z, exponent, scale)),
                "inverse": float(inverse(u, exponent, scale)),
            }
            outside += bool(mpmath.isnan(true["inverse"]))
            for name, value in got.items():
                worst[name] = max(worst[name], relative_error(value, true[name]))
    assert max(worst.values()) < ACCURATE, worst
    assert outside > 10  # rounding puts some u beyond the domain: there both said NaN


@pytest.mark.parametrize("exponent", [-3.0, -7.0, -11.0, 3.0, 7.0, -20.0, 10.0])
def test_inverse_at_the_last_float_of_its_domain(exponent):
    # 1 + exponent u is some 1e-17 here, which the rounded product would call zero.
    for u in (-1 / exponent, np.nextafter(-1 / exponent, 0.0), np.nextafter(-1 / exponent, 2.0 * -exponent)):
        with mpmath.workdps(DIGITS):
            true = oracle_inverse(u, exponent, 2.0)
        assert relative_error(float(inverse(u, exponent, 2.0)), true) < ACCURATE


@pytest.mark.parametrize("exponent", [7.7, -11.4, -20.0, 20.0, -1.0, 1e-3])
def test_identity_map_keeps_all_digits_where_composing_loses_them(exponent):
    scale = 3.0
    h = np.geomspace(0.1, 200.0, 400)
    assert np.abs(Response(exponent, 1.0, 0.0, scale)(h) / h - 1).max() < ACCURATE
    naive = inverse(forward(h, exponent, scale), exponent, scale)
    if abs(exponent) > 2:  # what the fused evaluation is for: six digits, thirteen, or the number itself
        assert not np.nanmax(np.abs(naive / h - 1)) < 1e6 * ACCURATE or np.isnan(naive).any()


def maps(rng, count):
    """Maps that take a range of priors in 0.1 to 200 onto depths in 0.1 to 200, through its two ends."""
    while count:
        exponent = rng.uniform(-20, 20) if count % 3 else rng.choice([-1, 1]) * 10.0 ** rng.uniform(-60, 0)
        (h1, h2), (t1, t2) = np.sort(np.exp(rng.uniform(math.log(0.1), math.log(200.0), (2, 2))))
        scale = math.sqrt(t1 * t2)
        a, b = forward([h1, h2], exponent, math.sqrt(h1 * h2)), forward([t1, t2], exponent, scale)
        gain = (b[1] - b[0]) / (a[1] - a[0])
        response = Response.from_centred(
            math.sqrt(h1 * h2), float(exponent), float(gain), float(b[0] - gain * a[0]), scale
        )
        if response.feasible(h1, h2):
            count -= 1
            yield response, np.append(np.geomspace(h1, h2, 5), (h1, h2))


def test_every_way_of_the_fused_map_is_accurate(rng):
    seen = dict.fromkeys((LOG, LOG1P, SUM, DIFFERENCE), 0)
    extra = [(Response(exponent, 1.3, 0.2, 4.0), np.geomspace(0.1, 200.0, 9)) for exponent in (0.0, 1e-160, -5e-324)]
    for response, h in [*maps(rng, 200), *extra]:
        # A relative change of h comes out multiplied by d log t / d log h: honest accuracy is in these units.
        allowed = ROUNDINGS * EPS * np.maximum(1.0, response.log_slope(h))
        for prior, together, bound in zip(h, response(h), allowed, strict=True):
            true = oracle_map(response, float(prior))
            # The way is chosen for a range, so one value alone may be evaluated otherwise than among others.
            for value, ends in ((together, (h.min(), h.max())), (response(prior), (prior, prior))):
                way = response.kernel_args(ends)[0]
                assert relative_error(float(value), true) < bound, (way, response, prior)
                seen[way] += bound < ACCURATE
    assert min(seen.values()) > 20, seen  # each way was held to twelve digits often enough


@pytest.mark.parametrize("exponent", [0.5, 1.0, 7.7, -1.0, -11.4, 20.0, -20.0])
@pytest.mark.parametrize("distance", [1e-2, 1e-5, 1e-8, 1e-11])
def test_next_to_the_domain_boundary_the_error_is_the_condition_number(exponent, distance):
    # g = h^exponent - 1/2 vanishes at h = 2^(-1/exponent); near it d log t / d log h = h^exponent / g = 1 / distance.
    response = Response(exponent, 1.0, -0.5 / exponent, 1.0)
    h = 2.0 ** (-1 / exponent) * (1 + distance / exponent)
    condition = 1 / distance
    assert float(response.log_slope(h)) == pytest.approx(condition, rel=0.1)
    assert relative_error(float(response(h)), oracle_map(response, h)) < ROUNDINGS * EPS * condition / abs(exponent)


def test_a_map_about_a_centre_is_the_papers_map(rng):
    compared = 0
    for response, h in maps(rng, 300):
        plain = Response(response.exponent, response.gain, response.offset, response.scale)
        _, gain, offset = response.centred
        # c = 1 - gain + exponent offset carries the rounding of both, relative to the power that it meets.
        size = 1 + gain + plain.gain + abs(response.exponent) * (abs(offset) + abs(plain.offset))
        power = np.exp(response.exponent * np.log(response(h) / response.scale))
        condition = np.max(size / power) * (1 / max(abs(response.exponent), 1.0)) + np.max(response.log_slope(h))
        if condition < 1e4:
            compared += 1
            assert np.abs(plain(h) / response(h) - 1).max() < ROUNDINGS * EPS * condition
    assert compared > 100


# Derivatives


# Tolerances are the two errors of a fourth-order difference: step^4 times a fifth derivative, and rounding / step.


@given(depths, st.floats(-20, 20) | tiny, depths)
def test_derivatives_match_differences(z, exponent, scale):
    q = math.log(z / scale)
    v = exponent * q
    noise = 50 * EPS * (math.exp(v) + (1 + abs(v)) * abs(float(forward(z, exponent, scale))))

    step = 1e-4 * max(1.0, abs(math.log(z)))
    got = central_jacobian(lambda at: forward(np.exp(at), exponent, scale), np.array([math.log(z)]), 1e-4)
    truncation = (step * exponent) ** 4 * math.exp(v) / 10
    assert abs(got[0, 0] - z * float(slope(z, exponent, scale))) <= truncation + noise / step

    step = 1e-4 * max(1.0, abs(exponent))
    got = central_jacobian(lambda at: forward([z], float(at[0]), scale), np.array([exponent]), 1e-4)
    truncation = (step * q) ** 4 * q * q * max(1.0, math.exp(v)) / 100
    assert abs(got[0, 0] - float(exponent_slope(z, exponent, scale))) <= truncation + noise / step


def test_log_slope_matches_differences(rng):
    for response, priors in maps(rng, 100):
        for h in priors[1:4]:  # inside the range, so that the steps stay in the domain
            gain = float(response.log_slope(h))
            step = 1e-3 / (1 + abs(response.exponent) * (1 + gain))  # the gain itself bends at this rate
            at = np.array([math.log(h)])
            got = central_jacobian(lambda v, r=response: np.log(r(np.exp(v))), at, step / max(1.0, abs(at[0])))
            assert abs(got[0, 0] - gain) <= 1e-9 * gain + ROUNDINGS * EPS * max(1.0, gain) / step


# Domain, types, shapes


@given(exponents, st.floats(1e-3, 1e3), st.floats(-20, 20), depths, depths, st.floats(1e-3, 1e3))
def test_feasible_means_finite_and_infeasible_means_nan(exponent, gain, offset, scale, low, ratio):
    high = low * max(ratio, 1 / ratio)
    response = Response(exponent, gain, offset, scale)
    ends = response(np.array([low, high]))
    if response.feasible(low, high):
        assert np.isfinite(response(np.geomspace(low, high, 17))).all()
        assert (ends > 0).all()
        assert np.isfinite(ends).all()
    else:
        end = 0 if exponent > 0 else 1
        with mpmath.workdps(DIGITS):
            power = (mpmath.mpf((low, high)[end]) / mpmath.mpf(scale)) ** mpmath.mpf(exponent)
            g = 1 + mpmath.mpf(exponent) * (gain * (power - 1) / mpmath.mpf(exponent) + mpmath.mpf(offset))
        assert g < 1e-10 * gain * power  # truly outside, or within the margin
        if g < -1e-10 * gain * power:
            assert np.isnan(ends[end])


@pytest.mark.parametrize("exponent", [0.3, 1.0, 3.7, 20.0, -0.3, -1.0, -3.7, -20.0])
def test_feasible_means_finite_also_within_rounding_of_the_boundary(exponent, rng):
    # The estimator walks up to the boundary when the best map lies beyond it, so these ranges do occur.
    response = Response.from_centred(2.9, exponent, 1.7, -0.9 / exponent, 3.3)
    boundary = 2.9 * (1.6 / 1.7) ** (1 / exponent)  # g = 1.7 (h / centre)^exponent - 1.6
    admitted = 0
    for distance in np.concatenate((10.0 ** rng.uniform(-16, -9, 2000), [0.0])):
        end = boundary * math.exp(distance / exponent * rng.choice([-1, 1]))
        if response.feasible(end, end):
            admitted += 1
            assert np.isfinite(float(response(end)))
    assert 0 < admitted < 1001  # one side only, and not that all of it


def test_shapes_and_types_are_kept_and_the_argument_is_not_touched(rng):
    response = Response(-1.3, 0.8, 0.1, 2.0)
    prior = rng.uniform(1, 9, (6, 5, 4))
    full = response(prior)
    assert full.shape == prior.shape
    assert np.array_equal(response(prior[::2, :, ::-1]), full[::2, :, ::-1])
    single = response(prior.astype(np.float32))
    assert single.dtype == np.float32
    assert np.abs(single / full - 1).max() < 4 * np.finfo(np.float32).eps
    assert response(3.0).shape == ()
    assert float(response(3)) == float(response([3.0])[0])
    assert response(np.empty(0)).shape == (0,)
    assert response(np.empty((3, 0))).shape == (3, 0)
    locked = prior.copy()
    locked.flags.writeable = False
    assert np.array_equal(response(locked), full)


def test_invalid_priors_are_nan_and_extreme_ones_stay_finite():
    invalid = np.array([0.0, -1.0, np.nan, np.inf, -np.inf, 5e-324])
    for exponent in (-20.0, -1.0, 0.0, 1e-9, 1.0, 20.0):
        response = Response(exponent, 1.0, 0.0, 1.0)
        assert np.isnan(response(invalid)).all()
        assert np.isnan(response.log_slope(invalid)).all()
        far = response(np.array([2.3e-308, 1e-30, 1e30, 1.7e308]))
        assert np.isfinite(far).all()
        assert (far > 0).all()


def test_parameters_that_leave_float64_saturate_and_the_map_does_not_need_them():
    for exponent in (-20.0, 20.0):
        for centre in (1e-30, 1e30):
            response = Response.from_centred(centre, exponent, 1.0, 0.0, 2.0)
            assert float(response(centre * 1.5)) == pytest.approx(3.0, rel=ACCURATE)


@pytest.mark.parametrize("bad", [{"gain": 0.0}, {"gain": -1.0}, {"scale": 0.0}, {"scale": math.inf}])
@pytest.mark.parametrize("also", [{}, {"exponent": math.nan}, {"offset": math.inf}])
def test_impossible_parameters_are_refused(bad, also):
    with pytest.raises(InputError, match="gain and scale must be positive"):
        Response(**({"exponent": 1.0, "gain": 1.0, "offset": 0.0, "scale": 1.0} | bad | also))
