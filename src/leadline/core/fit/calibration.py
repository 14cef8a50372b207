"""The calibrated map t(h) over an image (eq:dense), evaluated without composing phi and its inverse."""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.jit import EXACT, called_by_kernels, compiled, parallel_loop
from leadline.core.fit.elementary import exp, expm1, log, log1p

# Below this magnitude of the exponent its products underflow, and the map equals that of exponent 0 in all digits.
TINY = 1e-150
LOG, LOG1P, SUM, DIFFERENCE = range(4)  # formulas for the map, see Response.kernel_args
MAX_CANCELLATION = 100.0  # largest ratio of the terms of w to 1 + w for which log1p(w) is used
SMALLEST = float(np.finfo(np.float64).tiny)  # valid priors are normal, positive and finite
# The range of valid priors as bit patterns, from the lowest up to infinity. Positive floats have the order of their
# bits, and comparisons of integers vectorise, while those of floats that may be NaN do not.
VALID_BITS = {4: (1, 0x7F800000), 8: (1 << 52, 0x7FF << 52)}


def contiguous(values: FloatArray) -> FloatArray:
    """`values` in C order and writeable, because kernels are compiled for such arrays; copied only if needed."""
    return values if values.flags.c_contiguous and values.flags.writeable else np.array(values, order="C")


@called_by_kernels(fastmath=EXACT)
def _prior_row(h, log_centre, x):
    """x = log(h / centre), NaN where the prior is invalid."""
    for j in range(h.size):
        value = np.float64(h[j])
        usable = value >= SMALLEST and value < np.inf
        x[j] = log(value) - log_centre if usable else np.nan


@called_by_kernels(fastmath=EXACT)
def _log_row(x, gain, offset):
    for j in range(x.size):
        x[j] = gain * x[j] + offset


@called_by_kernels(fastmath=EXACT)
def _log1p_row(x, exponent, gain, offset):
    for j in range(x.size):
        x[j] = log1p(gain * expm1(exponent * x[j]) + exponent * offset) * (1.0 / exponent)


@called_by_kernels(fastmath=EXACT)
def _sum_row(x, exponent, log_gain, rest):
    """log(e^a + e^b) = max + log(1 + e^-|a - b|)."""
    for j in range(x.size):
        a = log_gain + exponent * x[j]
        x[j] = (max(a, rest) + log1p(exp(-abs(a - rest)))) * (1.0 / exponent)


@called_by_kernels(fastmath=EXACT)
def _difference_row(x, exponent, log_gain, rest):
    """log(e^a - e^b) = a + log(1 - e^(b - a)), NaN outside the domain a > b."""
    for j in range(x.size):
        a = log_gain + exponent * x[j]
        gap = rest - a
        inside = (a + log(max(-expm1(gap), SMALLEST))) * (1.0 / exponent)
        x[j] = inside if gap < 0.0 else np.nan


@called_by_kernels(fastmath=EXACT)
def _depth_row(x, log_scale, out):
    for j in range(x.size):
        # Clamped to what float32 can hold, so that the result is positive and finite for any valid prior.
        out[j] = exp(min(max(x[j] + log_scale, -87.0), 87.0)) if x[j] == x[j] else np.nan


@parallel_loop()
def calibrate(i, h, out, formula, exponent, gain, offset, rest, log_centre, log_scale):
    """Row i of t from h, both (H, W); `Response.kernel_args` gives the other arguments."""
    x = np.empty(h.shape[1])
    _prior_row(h[i], log_centre, x)
    if formula == LOG:
        _log_row(x, gain, offset)
    elif formula == LOG1P:
        _log1p_row(x, exponent, gain, offset)
    elif formula == SUM:
        _sum_row(x, exponent, gain, rest)
    else:
        _difference_row(x, exponent, gain, rest)
    _depth_row(x, log_scale, out[i])


@compiled()
def valid_bits(bits, lowest, infinity):
    """Smallest and largest valid bit pattern, and the number of valid ones."""
    low, high, count = infinity, lowest, 0
    for k in range(bits.size):
        valid = lowest <= bits[k] < infinity
        low = min(low, bits[k] if valid else infinity)
        high = max(high, bits[k] if valid else lowest)
        count += valid
    return low, high, count
