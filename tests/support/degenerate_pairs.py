"""Pairs that cannot determine three parameters, with the status that each must get."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.core.fit.estimator import FitStatus


def ramp(low, high, count=40):
    return np.linspace(low, high, count)


DEGENERATE = {
    "one pair": ([2.0], [4.0], FitStatus.SCALE_ONLY),
    "one pair, many times": ([2.0] * 9, [4.0] * 9, FitStatus.SCALE_ONLY),
    "two pairs": ([2.0, 3.0], [4.0, 9.0], FitStatus.FIXED_COORDINATE),
    "two pairs, falling": ([2.0, 3.0], [9.0, 4.0], FitStatus.ANTI_CORRELATED),
    "two pairs, many times": ([2.0, 3.0] * 20, [4.0, 9.0] * 20, FitStatus.FIXED_COORDINATE),
    "two priors": ([2.0, 3.0] * 20, ramp(1.0, 2.0), FitStatus.FIXED_COORDINATE),
    "two depths": (ramp(1.0, 2.0), np.repeat([4.0, 9.0], 20), FitStatus.FIXED_COORDINATE),
    "three pairs": ([1.0, 2.0, 3.0], np.sqrt([1.5, 3.0, 5.5]), FitStatus.CONVERGED),
    "constant prior": (np.ones(40), ramp(1.0, 2.0), FitStatus.SCALE_ONLY),
    "constant depth": (ramp(1.0, 2.0), np.full(40, 3.0), FitStatus.SCALE_ONLY),
    "constant to rounding": (1 + 1e-12 * ramp(0.0, 1.0), ramp(1.0, 2.0), FitStatus.SCALE_ONLY),
    "falling": (ramp(1.0, 2.0), ramp(5.0, 1.0), FitStatus.ANTI_CORRELATED),
    "equal": (ramp(1.0, 2.0), ramp(1.0, 2.0), FitStatus.CONVERGED),
}


def check_map(fit, h, s, ends):
    assert fit.response.feasible(*ends)
    dense = fit.response(np.append(np.geomspace(*ends, 300), ends))
    assert np.isfinite(dense).all()
    assert (dense > 0).all()
    assert fit.rmse == pytest.approx(math.sqrt(np.mean((fit.response(h) - s) ** 2)), rel=1e-6, abs=1e-13 * s.max())
