"""Slow, plain statements of what the kernels compute, for tests and for readers.

Measured pairs (eq:prediction, eq:jacobian): `normal_equations.normal_equations` computes in one fused pass what
stands here as the paper writes it, with the prior in units of its centre and the depth in units of the scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.core.response import exponent_slope, forward, inverse, slope

Array = NDArray[np.float64]


def predict(prior: Array, exponent: float, gain: float, offset: float) -> Array:
    """t = phi^-1(gain phi(h) + offset), eq:prediction, by composition: it loses the digits of a small 1 + w."""
    return inverse(gain * forward(prior, exponent, 1.0) + offset, exponent, 1.0)


def residuals(prior: Array, depth: Array, exponent: float, gain: float, offset: float) -> Array:
    """r = s - t, shape (n,)."""
    return depth - predict(prior, exponent, gain, offset)


def jacobian(prior: Array, exponent: float, gain: float, offset: float) -> Array:
    """Derivatives of the residuals in (exponent, log gain, offset), shape (n, 3), eq:jacobian."""
    t = predict(prior, exponent, gain, offset)
    by_exponent = exponent_slope(t, exponent, 1.0) - gain * exponent_slope(prior, exponent, 1.0)
    by_log_gain = -gain * forward(prior, exponent, 1.0)
    by_offset = -np.ones_like(t)
    return np.stack((by_exponent, by_log_gain, by_offset), axis=1) / slope(t, exponent, 1.0)[:, np.newaxis]


def pair_equations(
    prior: Array, depth: Array, exponent: float, gain: float, offset: float
) -> tuple[float, Array, Array]:
    """Sum of squared residuals, J^T r and J^T J."""
    r = residuals(prior, depth, exponent, gain, offset)
    J = jacobian(prior, exponent, gain, offset)
    return float(r @ r), J.T @ r, J.T @ J
