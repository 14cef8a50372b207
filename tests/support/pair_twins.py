"""Slow NumPy twins of the kernels for measured pairs (eq:prediction, eq:jacobian).

They follow the paper's formulas, with the prior in units of its centre and the depth in units of the scale. The kernels
of `normal_equations` compute the same in one fused pass.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.core.fit.calibration import TINY
from leadline.core.fit.normal_equations import CAUCHY, GEMAN_MCCLURE, HUBER
from leadline.core.fit.response import exponent_slope, forward, one_plus_product
from leadline.core.fit.robust import LOSSES

Array = NDArray[np.float64]


def inverse(response: ArrayLike, exponent: float, scale: float) -> Array:
    """phi^-1(response), eq:inverse; NaN where 1 + exponent * response is not positive."""
    u = np.asarray(response, np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        high, low = one_plus_product(exponent, u)  # type: ignore[arg-type]
        w = exponent * u
        # log(1 + w) by log1p, but near w = -1 from the product with its rounding error.
        logarithm = np.where(w > -0.5, np.log1p(np.maximum(w, -0.5)), np.log(high) + low / high)
        q = np.where(np.abs(w) < TINY, u, logarithm / exponent if exponent else u)
        return np.where(high > 0, scale * np.exp(q), np.nan)


def slope(depth: ArrayLike, exponent: float, scale: float) -> Array:
    """d phi / d depth = scale^-exponent depth^(exponent - 1), eq:inverse."""
    z = np.asarray(depth, np.float64)
    return np.exp(exponent * np.log(z / scale)) / z


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


def losses(z: Array, name: str) -> Array:
    """rho of standardised residuals, shape (n,): z^2 for small z, each bounded or slowed in its own way beyond."""
    kind, k = LOSSES[name]
    if kind == HUBER:
        return np.where(np.abs(z) <= k, z * z, 2 * k * np.abs(z) - k * k)
    if kind == CAUCHY:
        return k * k * np.log1p((z / k) ** 2)
    return z * z / (1 + (z / k) ** 2) if kind == GEMAN_MCCLURE else z * z


def log_residuals(prior: Array, depth: Array, exponent: float, gain: float, offset: float) -> Array:
    """r = log s - log t, shape (n,)."""
    return np.log(depth / predict(prior, exponent, gain, offset))


def log_jacobian(prior: Array, exponent: float, gain: float, offset: float) -> Array:
    """Derivatives of `log_residuals` in (exponent, log gain, offset), shape (n, 3)."""
    return jacobian(prior, exponent, gain, offset) / predict(prior, exponent, gain, offset)[:, np.newaxis]


def robust_equations(
    residual: Array, jacobian: Array, inverse_sigma: Array, name: str, step: float = 1e-6
) -> tuple[float, Array, Array]:
    """Sum of losses, J^T W r and J^T W J, with the weight of each pair by differences: w = rho'(z) / (2 z)."""
    z = residual * inverse_sigma
    slope = (losses(z + step, name) - losses(z - step, name)) / (2 * step)
    w = inverse_sigma**2 * np.where(np.abs(z) > step, slope / (2 * np.where(z == 0, 1.0, z)), 1.0)
    return float(losses(z, name).sum()), jacobian.T @ (w * residual), (jacobian.T * w) @ jacobian
