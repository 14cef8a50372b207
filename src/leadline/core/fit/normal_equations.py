"""Residuals at the measured pairs and their normal equations, in one compiled pass (eq:prediction, eq:jacobian).

`curve_equations` are those of the fit, in the coordinates (exponent, q_1, q_2) of `curve`: for the paper's sum of
squares in metres, or for residuals in metres or in log depth, each divided by its standard deviation, under a robust
loss.
`log_rows` and `robust_residuals` evaluate a response from its parameters about a centre. With x = log(h / centre)
and q = log(t / scale), phi(h), g = t^exponent = 1 + exponent (gain phi(h) + offset), q = log(g) / exponent, and
d phi / d exponent = q^2 k(exponent q).
"""

from __future__ import annotations

import numpy as np

from leadline.base.jit import EXACT, SUM, called_by_kernels, compiled, inlined
from leadline.core.fit.calibration import MAX_CANCELLATION, TINY
from leadline.core.fit.elementary import exp, expm1, log, log1p

CHUNK = 512  # pairs per partial sum, so that their rows stay in the first-level cache
SQUARED, HUBER, CAUCHY, GEMAN_MCCLURE = range(4)


@inlined
def _bend(u, e):
    """k(u) = (u e^u - (e^u - 1)) / u^2, given e = e^u - 1; a short series where the difference cancels."""
    series = 0.5 + u * (1 / 3 + u * (1 / 8 + u * (1 / 30 + u * (1 / 144 + u * (1 / 840)))))
    small = abs(u) < 0.03
    safe = 1.0 if small else u
    return series if small else (u * (e + 1.0) - e) / (safe * safe)


@called_by_kernels(fastmath=EXACT)
def _predict(x, exponent, gain, offset, rest, response, power, q):
    """phi(h), t^exponent and log t of each pair; depths in units of the scale."""
    for i in range(x.size):
        u = exponent * x[i]
        e = expm1(u)
        safe = 1.0 if u == 0.0 else u
        response[i] = x[i] * (1.0 if u == 0.0 else e / safe)
        w = gain * e + exponent * offset
        accurate = w > -0.5 and abs(gain * e) + abs(exponent * offset) < MAX_CANCELLATION * (1.0 + w)
        # log(1 + w), or where that cancels, the sum of its two parts (see Response.kernel_args). The second part uses
        # exp(u) and not e + 1, which has lost the digits of a small power.
        g = 1.0 + w if accurate else max(gain * exp(u) + rest, 1e-300)
        lost = w - (g - 1.0) if accurate else 0.0  # rounding error of 1 + w, as in log1p
        power[i] = g
        q[i] = (log(g) + lost / g) * (1.0 / exponent)


@called_by_kernels(fastmath=EXACT)
def _predict_log(x, gain, offset, response, power, q):
    for i in range(x.size):
        response[i] = x[i]
        power[i] = 1.0
        q[i] = gain * x[i] + offset


@called_by_kernels(fastmath=SUM)
def _accumulate(rows, size, sums):
    r, a, b, c = rows[0], rows[1], rows[2], rows[3]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = s9 = 0.0
    for i in range(size):
        s0 += r[i] * r[i]
        s1 += a[i] * r[i]
        s2 += b[i] * r[i]
        s3 += c[i] * r[i]
        s4 += a[i] * a[i]
        s5 += a[i] * b[i]
        s6 += a[i] * c[i]
        s7 += b[i] * b[i]
        s8 += b[i] * c[i]
        s9 += c[i] * c[i]
    sums[0], sums[1], sums[2], sums[3], sums[4] = s0, s1, s2, s3, s4
    sums[5], sums[6], sums[7], sums[8], sums[9] = s5, s6, s7, s8, s9


@called_by_kernels(fastmath=EXACT)
def _differentiate_log(x, log_depth, response, power, q, exponent, gain, rows):
    """Residuals log s - log t and their derivatives in exponent, log gain, offset, as four rows."""
    residual, by_exponent, by_gain, by_offset = rows[0], rows[1], rows[2], rows[3]
    for i in range(x.size):
        ratio = 1.0 / power[i]
        curvature_t = q[i] * q[i] * _bend(exponent * q[i], power[i] - 1.0)
        curvature_h = x[i] * x[i] * _bend(exponent * x[i], exponent * response[i])
        residual[i] = log_depth[i] - q[i]
        by_exponent[i] = (curvature_t - gain * curvature_h) * ratio
        by_gain[i] = -gain * response[i] * ratio
        by_offset[i] = -ratio


@inlined
def _weight_and_loss(z, loss, width):
    """rho(z) and w = d rho / d z^2 of one standardised residual."""
    square = z * z
    u = square / (width * width)
    if loss == HUBER:
        inside = abs(z) <= width
        size = width if inside else abs(z)
        return width / size, square if inside else width * (2.0 * size - width)
    if loss == CAUCHY:
        return 1.0 / (1.0 + u), width * width * log1p(u)
    if loss == GEMAN_MCCLURE:
        return 1.0 / ((1.0 + u) * (1.0 + u)), square / (1.0 + u)
    return 1.0, square


@called_by_kernels(fastmath=SUM)
def _reweight(rows, inverse_sigma, loss, width):
    """Scale each pair's rows by 1 / sigma and the root of its weight, so that sums of products are weighted sums."""
    total = 0.0
    for i in range(inverse_sigma.size):
        weight, value = _weight_and_loss(rows[0, i] * inverse_sigma[i], loss, width)
        factor = inverse_sigma[i] * np.sqrt(weight)
        for k in range(4):
            rows[k, i] *= factor
        total += value
    return total


@called_by_kernels(fastmath=EXACT)
def _follow(x, numbers, q, by_exponent, by_other):
    """log t of each pair and its derivatives in the exponent and in q_o; that in q_m is 1 - by_other (see `curve`).

    dq / d exponent = (G' phi(x) + G phi'(x) - phi'(q)) / g, where ' is d / d exponent and x, q are relative to m. For
    larger exponents, where g may be tiny, it is (g' / g - log(g) / exponent) / exponent, which does not cancel there.
    """
    exponent, x_m, q_m, ratio, rest, ratio_slope, other, small = numbers
    for i in range(x.size):
        z = x[i] - x_m
        u = exponent * z
        e = expm1(u)
        w = ratio * e
        accurate = w > -0.5
        power = exp(u)
        g = 1.0 + w if accurate else max(ratio * power + rest, 1e-300)
        lost = w - (g - 1.0) if accurate else 0.0  # rounding error of 1 + w, as in log1p
        log_g = log(g) + lost / g
        above = log_g / exponent
        q[i] = q_m + above
        by_other[i] = other * e / g
        if small:
            curvature = ratio * z * z * _bend(u, e) - above * above * _bend(log_g, w)
            by_exponent[i] = (ratio_slope * e / exponent + curvature) / g
        else:
            by_exponent[i] = ((ratio_slope * e + ratio * z * power) / g - above) / exponent


@compiled()
def curve_rows(x, target, in_logs, numbers, rows):
    """Residuals and their derivatives in (exponent, q_1, q_2): rows of (4, n); q_1 is q_m for a negative exponent."""
    residual, by_exponent, by_1, by_2 = rows[0], rows[1], rows[2], rows[3]
    exponent = numbers[0]
    _follow(x, numbers, residual, by_exponent, by_2)
    for i in range(x.size):
        t = 1.0 if in_logs else exp(residual[i])
        residual[i] = target[i] - (residual[i] if in_logs else t)
        by_exponent[i] *= -t
        by_m = -t * (1.0 - by_2[i])
        by_o = -t * by_2[i]
        by_1[i] = by_o if exponent > 0.0 else by_m
        by_2[i] = by_m if exponent > 0.0 else by_o


@compiled()
def curve_equations(x, target, inverse_sigma, in_logs, loss, width, numbers, sums):
    """Per chunk of pairs: the losses, J^T W r, and the upper triangle of J^T W J, with W = weight / sigma^2.

    `target` is the depth, or with `in_logs` its logarithm; `width` is the scale of the loss in standard deviations, and
    `numbers` are the `CurveNumbers`. It runs on one thread, because starting others would take longer than the few
    thousand pairs of a frame.
    """
    for chunk in range(sums.shape[0]):
        part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        rows = np.empty((4, x[part].size))
        curve_rows(x[part], target[part], in_logs, numbers, rows)
        total = 0.0
        if loss != SQUARED or inverse_sigma.size > 0:
            total = _reweight(rows, inverse_sigma[part], loss, width)
        _accumulate(rows, rows.shape[1], sums[chunk])
        if loss != SQUARED or inverse_sigma.size > 0:
            sums[chunk, 0] = total


@compiled()
def log_rows(x, log_depth, exponent, gain, offset, rest, rows):
    """Residuals in log depth and their derivatives in exponent, log gain, offset: rows of (4, n), pair by pair."""
    response, power, q = np.empty(x.size), np.empty(x.size), np.empty(x.size)
    if abs(exponent) < TINY:
        _predict_log(x, gain, offset, response, power, q)
    else:
        _predict(x, exponent, gain, offset, rest, response, power, q)
    _differentiate_log(x, log_depth, response, power, q, exponent, gain, rows)


@compiled()
def robust_residuals(x, target, exponent, gain, offset, rest, in_logs, residual):
    """The residuals without derivatives, in units of the scale or in log depth."""
    response, power = np.empty(x.size), np.empty(x.size)
    if abs(exponent) < TINY:
        _predict_log(x, gain, offset, response, power, residual)
    else:
        _predict(x, exponent, gain, offset, rest, response, power, residual)
    for i in range(x.size):
        residual[i] = target[i] - (residual[i] if in_logs else np.exp(residual[i]))
