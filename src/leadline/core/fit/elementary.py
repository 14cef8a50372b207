"""exp, expm1, log and log1p that LLVM can vectorise, accurate to about one unit in the last place.

A call into libm prevents vectorisation of a loop, and these four functions are most of the cost of calibrating an
image. As plain arithmetic they run at memory speed on any instruction set, without a vector maths library. They are
valid for finite arguments, and `log` for normal positive ones. NaN propagates through all of them but `log`, which
reads bits and whose callers check for NaN.

The reductions are the classical ones: x = k ln 2 + r with a two-part ln 2 (Cody and Waite), and
log m = 2 artanh((m - 1) / (m + 1)) with m in [sqrt(1/2), sqrt(2)).
"""

from __future__ import annotations

import numpy as np

from leadline.base.jit import inlined

_LN2_HIGH = 6.93147180369123816490e-01  # ln 2 to 33 bits, so that k * _LN2_HIGH is exact
_LN2_LOW = 1.90821492927058770002e-10
_INVERSE_LN2 = 1.44269504088896338700
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding and subtracting it rounds to the nearest integer
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_EXP_LIMIT = 708.0  # beyond it 2**k leaves the normal range; arguments are clamped there


@inlined
def _expm1_reduced(r):
    """exp(r) - 1 for |r| <= ln(2) / 2: Taylor to r**13, whose remainder is below 1e-17."""
    p = 1 / 6227020800.0
    p = p * r + 1 / 479001600.0
    p = p * r + 1 / 39916800.0
    p = p * r + 1 / 3628800.0
    p = p * r + 1 / 362880.0
    p = p * r + 1 / 40320.0
    p = p * r + 1 / 5040.0
    p = p * r + 1 / 720.0
    p = p * r + 1 / 120.0
    p = p * r + 1 / 24.0
    p = p * r + 1 / 6.0
    p = p * r + 0.5
    return r + (r * r) * p


@inlined
def expm1(x):
    x = min(max(x, -_EXP_LIMIT), _EXP_LIMIT)
    k = (x * _INVERSE_LN2 + _ROUND) - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    power = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    return power * _expm1_reduced(r) + (power - 1.0)


@inlined
def exp(x):
    x = min(max(x, -_EXP_LIMIT), _EXP_LIMIT)
    k = (x * _INVERSE_LN2 + _ROUND) - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    power = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    return power * _expm1_reduced(r) + power


@inlined
def log(x):
    bits = np.float64(x).view(np.int64)
    k = (bits - np.int64(_SQRT_HALF_BITS)) >> 52
    f = np.int64(bits - (k << 52)).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 2 / 23.0
    p = p * z + 2 / 21.0
    p = p * z + 2 / 19.0
    p = p * z + 2 / 17.0
    p = p * z + 2 / 15.0
    p = p * z + 2 / 13.0
    p = p * z + 2 / 11.0
    p = p * z + 2 / 9.0
    p = p * z + 2 / 7.0
    p = p * z + 2 / 5.0
    p = p * z + 2 / 3.0
    exponent = np.float64(k)
    return exponent * _LN2_HIGH + ((2.0 * s + s * z * p) + exponent * _LN2_LOW)


@inlined
def log1p(x):
    u = 1.0 + x
    # A first-order correction compensates for the rounding error of 1 + x.
    return log(u) + (x - (u - 1.0)) / u
