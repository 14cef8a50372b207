"""The vectorisable exp, expm1, log and log1p against 50 digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from leadline.base.jit import EXACT
from leadline.core.fit import elementary

ULPS = 2.0  # "about one unit in the last place": reduction, polynomial and reconstruction round once each
LIMIT = 708.0  # arguments of the exponentials are clamped there
ROUND_TRIP = 4 * np.finfo(float).eps  # two functions of 2 ulp each
TRUTH = {"exp": mpmath.exp, "expm1": mpmath.expm1, "log": mpmath.log, "log1p": mpmath.log1p}
NAMES = sorted(TRUTH)


def over(function):
    """The function applied along an array, compiled as the kernels are that use it."""

    @njit(error_model="numpy", fastmath=EXACT)
    def loop(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    def call(x):
        x = np.atleast_1d(np.asarray(x, np.float64))
        out = np.empty_like(x)
        loop(x, out)
        return out

    return call


COMPILED = {name: over(getattr(elementary, name)) for name in NAMES}


def ulps(name, x):
    """Error of each value in units in the last place of the true one."""
    got = COMPILED[name](x)
    with mpmath.workdps(50):
        true = [TRUTH[name](mpmath.mpf(float(value))) for value in x]
        error = [abs(float(mpmath.mpf(float(g)) - t)) for g, t in zip(got, true, strict=True)]
    return np.array(error) / np.spacing(np.abs(np.array([float(t) for t in true])))


def signed(magnitudes):
    return np.concatenate((magnitudes, -magnitudes))


def arguments(name, rng):
    """Wide samples, and on purpose the neighbourhoods of zero, of one and of the borders of each reduction."""
    tiny = signed(10.0 ** rng.uniform(-300, -1, 400))
    borders = np.arange(-12, 13) * np.log(2) / 2
    borders = np.concatenate((borders, np.nextafter(borders, 1e3), np.nextafter(borders, -1e3)))
    if name in ("exp", "expm1"):
        return np.concatenate(
            (rng.uniform(-LIMIT, LIMIT, 600), rng.uniform(-2, 2, 600), tiny, borders, [-LIMIT, LIMIT])
        )
    if name == "log":
        roots = np.sqrt(2.0) ** np.arange(-9, 10)
        roots = np.concatenate((roots, np.nextafter(roots, 9e9), np.nextafter(roots, 0.0)))
        ends = [np.finfo(float).tiny, np.finfo(float).max]
        return np.concatenate((10.0 ** rng.uniform(-307, 308, 600), 1 + tiny, rng.uniform(0.5, 2, 600), roots, ends))
    return np.concatenate(
        (rng.uniform(-1, 1, 600), 10.0 ** rng.uniform(0, 300, 300), tiny, -1 + 2.0 ** -np.arange(1, 53))
    )


@pytest.mark.parametrize("name", NAMES)
def test_within_two_units_in_the_last_place(name, rng):
    x = arguments(name, rng)
    error = ulps(name, x)
    worst = int(np.argmax(error))
    assert error[worst] <= ULPS, f"{name}({x[worst]!r}) is {error[worst]:.2f} ulp off"


@pytest.mark.parametrize(("name", "at", "value"), [("exp", 0, 1), ("expm1", 0, 0), ("log", 1, 0), ("log1p", 0, 0)])
def test_exact_where_the_result_is(name, at, value):
    assert COMPILED[name](at)[0] == value


@pytest.mark.parametrize("name", [name for name in NAMES if name != "log"])
def test_nan_passes_through(name):
    assert np.isnan(COMPILED[name]([np.nan, 1.0, np.nan])).tolist() == [True, False, True]


def test_exponentials_stay_finite_and_positive_beyond_their_range():
    far = np.array([-np.inf, -1e300, -709.0, 709.0, 1e300, np.inf])
    limits = COMPILED["exp"]([-LIMIT, LIMIT]).repeat(3)
    assert np.array_equal(COMPILED["exp"](far), limits)
    assert (limits > 0).all()
    assert np.array_equal(COMPILED["expm1"](far), COMPILED["expm1"]([-LIMIT, LIMIT]).repeat(3))


@given(st.floats(-700, 700))
def test_log_undoes_exp(x):
    assert abs(COMPILED["log"](COMPILED["exp"](x))[0] - x) <= ROUND_TRIP * max(1.0, abs(x))


@given(st.floats(-0.6, 30) | st.floats(-1e-5, 1e-5) | st.floats(-1e-290, 1e-290).filter(lambda x: abs(x) > 1e-300))
def test_log1p_undoes_expm1(x):
    # To relative accuracy: where both are nearly the identity no digit of a small argument may be lost.
    condition = abs(np.expm1(x)) / np.exp(x) / abs(x) if x else 1.0
    assert abs(COMPILED["log1p"](COMPILED["expm1"](x))[0] - x) <= ROUND_TRIP * abs(x) * max(1.0, condition)
