"""The calibrated map t(h) over an image (eq:dense), evaluated without composing phi and its inverse."""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import Float32Array, Float64Array, FloatArray
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
_NO_SINGLES, _NO_DOUBLES = np.empty((0, 0), np.float32), np.empty((0, 0))


def contiguous(values: FloatArray) -> FloatArray:
    """`values` in C order and writeable, because kernels are compiled for such arrays; copied only if needed."""
    return values if values.flags.c_contiguous and values.flags.writeable else np.array(values, order="C")


def calibrate(h: FloatArray, out: FloatArray, *numbers: float) -> None:
    """Fill `out` with t from h, both (H, W) and float32 or float64; `Response.kernel_args` gives the numbers."""
    _calibrate_row[len(out)](*by_type(h), *by_type(out), *numbers)


def by_type(values: FloatArray) -> tuple[Float32Array, Float64Array]:
    """`values` in the place of its type, and in the other one an empty array.

    A kernel that takes both is compiled once, and not once for each combination of types.
    """
    return (values, _NO_DOUBLES) if values.dtype == np.float32 else (_NO_SINGLES, values)  # type: ignore[return-value]


@parallel_loop(fastmath=EXACT)
def _calibrate_row(
    i, single, double, out_single, out_double, formula, exponent, gain, offset, rest, log_centre, log_scale
):
    """Row i of t from h, each given by its type (`by_type`)."""
    width = max(single.shape[1], double.shape[1])
    x = np.empty(width)
    if single.size > 0:
        for j in range(width):
            x[j] = single[i, j]
    else:
        for j in range(width):
            x[j] = double[i, j]
    for j in range(width):  # log(h / centre), NaN where the prior is invalid
        usable = x[j] >= SMALLEST and x[j] < np.inf
        x[j] = log(x[j]) - log_centre if usable else np.nan
    if formula == LOG:
        for j in range(width):
            x[j] = gain * x[j] + offset
    elif formula == LOG1P:
        for j in range(width):
            x[j] = log1p(gain * expm1(exponent * x[j]) + exponent * offset) * (1.0 / exponent)
    elif formula == SUM:  # log(e^a + e^b) = max + log(1 + e^-|a - b|)
        for j in range(width):
            a = gain + exponent * x[j]
            x[j] = (max(a, rest) + log1p(exp(-abs(a - rest)))) * (1.0 / exponent)
    else:  # log(e^a - e^b) = a + log(1 - e^(b - a)), NaN outside the domain a > b
        for j in range(width):
            a = gain + exponent * x[j]
            gap = rest - a
            inside = (a + log(max(-expm1(gap), SMALLEST))) * (1.0 / exponent)
            x[j] = inside if gap < 0.0 else np.nan
    for j in range(width):
        # Clamped to what float32 can hold, so that the result is positive and finite for any valid prior.
        x[j] = exp(min(max(x[j] + log_scale, -87.0), 87.0)) if x[j] == x[j] else np.nan
    store_row(x, out_single, out_double, i)


@called_by_kernels()
def store_row(x, single, double, i):
    """Write float64 numbers to row i of the one of two arrays that is not empty."""
    if single.size > 0:
        for j in range(x.size):
            single[i, j] = x[j]
    else:
        for j in range(x.size):
            double[i, j] = x[j]


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
