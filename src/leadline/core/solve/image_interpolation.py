"""The interpolation P between the image and the next level of the membrane, computed where it is used.

With edges of weight 1 its weights follow from the codes of the pixels (kernels.py). Before the coarse pixels are scaled
to a unit diagonal (membrane.py), with n free and f fixed neighbours of a fine pixel, and with h of the two coarse
pixels that it lies between free, galerkin.py's weights are

    T = 1 / (h + f + data)             of a pixel on the border of a cell, top T or left L, to both coarse pixels,
    (T + L) / (n + f + data)           of the pixel in the middle to the corner between T and L.

To a coarse pixel that is not free they are zero. Here its scale is zero instead, so that h counts as 1 if it is 0. Only
the scales are stored. The weights would take 8 bytes per pixel, a sixth of what a completion needed with them, and to
read them takes about as long as to compute them.
"""

from __future__ import annotations

import numpy as np

from leadline.base.jit import STENCIL, called_by_kernels, inlined, multiply_add
from leadline.core.solve.kernels import ABOVE_BIT, BESIDE_BIT, DEGREE, FIXED_BITS, FREE


@inlined
def _border_weight(code, bit, data):
    """Return T or L of a pixel; `bit` of its code says whether both coarse pixels are free. 0 if it is not free."""
    across = np.float32(np.int32(1 + ((code >> bit) & 1))) + (np.float32(np.int32((code >> FIXED_BITS) & 3)) + data)
    return np.float32(1) / across if code >= FREE else np.float32(0)


@inlined
def _middle_total(code, data):
    """Return n + f + data of a pixel in the middle of a cell, infinite if it is not free."""
    fixed = np.int32((code >> FIXED_BITS) & 3)
    total = np.float32(np.int32(code & DEGREE) - fixed) + (np.float32(fixed) + data)
    return total if code >= FREE else np.float32(np.inf)


@called_by_kernels(fastmath=STENCIL)
def restrict_image_row(fine, above, row, below, code, data, scale, i, out):
    """Compute the coarse row i of the restriction P^T r from the three rows of `fine` around it."""
    k = 2 * i - 1
    for j in range(1, out.shape[1] - 1):
        m = 2 * j - 1
        s = scale[0, i, j]
        east = _border_weight(code[k, m + 1], BESIDE_BIT, data)
        west = _border_weight(code[k, m - 1], BESIDE_BIT, data)
        south = _border_weight(code[k + 1, m], ABOVE_BIT, data)
        north = _border_weight(code[k - 1, m], ABOVE_BIT, data)
        south_east = (east + south) / _middle_total(code[k + 1, m + 1], data)
        south_west = (west + south) / _middle_total(code[k + 1, m - 1], data)
        north_east = (east + north) / _middle_total(code[k - 1, m + 1], data)
        north_west = (west + north) / _middle_total(code[k - 1, m - 1], data)
        value = s * fine[row, m] + multiply_add(east * s, fine[row, m + 1], (west * s) * fine[row, m - 1])
        value += (south * s) * fine[below, m]
        value += multiply_add(south_east * s, fine[below, m + 1], (south_west * s) * fine[below, m - 1])
        value += (north * s) * fine[above, m]
        value += multiply_add(north_east * s, fine[above, m + 1], (north_west * s) * fine[above, m - 1])
        out[i, j] = value


@inlined
def _interpolate(first, scale_0, value_0, second, scale_1, value_1):
    """Return the share of two coarse pixels in a fine one, to which they have these weights."""
    return multiply_add(first * scale_0, value_0, (second * scale_1) * value_1)


@called_by_kernels(fastmath=STENCIL)
def add_to_image_row(x, k, code, data, scale, coarse, i, out, row):
    """Compute row i of x + P e on the image, with row k of `x` and `coarse` the correction e, as a row of `out`."""
    n = (i + 1) // 2
    if i % 2 == 1:
        for j in range(1, coarse.shape[1] - 1):
            m = 2 * j - 1
            s0, s1 = scale[0, n, j], scale[0, n, j + 1]
            top = _border_weight(code[i, m + 1], BESIDE_BIT, data)
            out[row, m] = x[k, m] + s0 * coarse[n, j]
            out[row, m + 1] = x[k, m + 1] + _interpolate(top, s0, coarse[n, j], top, s1, coarse[n, j + 1])
    else:
        for j in range(1, out.shape[1] // 2):
            m = 2 * j - 1
            s0, s1, s2, s3 = scale[0, n, j], scale[0, n, j + 1], scale[0, n + 1, j], scale[0, n + 1, j + 1]
            top = _border_weight(code[i - 1, m + 1], BESIDE_BIT, data)
            bottom = _border_weight(code[i + 1, m + 1], BESIDE_BIT, data)
            left = _border_weight(code[i, m], ABOVE_BIT, data)
            right = _border_weight(code[i, m + 2], ABOVE_BIT, data)
            total = _middle_total(code[i, m + 1], data)
            w0, w1 = (top + left) / total, (top + right) / total
            w2, w3 = (bottom + left) / total, (bottom + right) / total
            out[row, m] = x[k, m] + _interpolate(left, s0, coarse[n, j], left, s2, coarse[n + 1, j])
            upper = _interpolate(w0, s0, coarse[n, j], w1, s1, coarse[n, j + 1])
            lower = _interpolate(w2, s2, coarse[n + 1, j], w3, s3, coarse[n + 1, j + 1])
            out[row, m + 1] = x[k, m + 1] + (upper + lower)
        if out.shape[1] % 2 == 1:  # the last cell has no pixel in its middle
            j = coarse.shape[1] - 2
            m = 2 * j - 1
            left = _border_weight(code[i, m], ABOVE_BIT, data)
            between = _interpolate(left, scale[0, n, j], coarse[n, j], left, scale[0, n + 1, j], coarse[n + 1, j])
            out[row, m] = x[k, m] + between
