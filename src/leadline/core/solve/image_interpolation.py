"""The interpolation between the image and the next level of the membrane, computed where it is used.

With edges of weight 1 the weights of galerkin.py follow from the codes of the pixels. Before they are scaled, with n
free and f fixed neighbours of a fine pixel and h = 1 or 2 free ones among the two coarse pixels that it lies between,

    T = 1 / (h + f + data)                for a pixel on the border of a cell, top T or left L,
    (T + L) / (n + f + data)              for the pixel in the middle and the corner between T and L.

A weight to a coarse pixel that is not free is not zero here, but the scale of that pixel is. Only these scales are
stored. The weights would take eight bytes per pixel, a fifth of all that a completion needs, and reading them takes as
long as computing them.
"""

from __future__ import annotations

import numpy as np

from leadline.base.jit import STENCIL, called_by_kernels, inlined, multiply_add
from leadline.core.solve.kernels import ABOVE_BIT, BESIDE_BIT, DEGREE, FIXED_BITS, FREE


@inlined
def _border_weight(code, bit, data):
    """The weight of both coarse neighbours of a pixel on the border of a cell, T or L; `bit` says which two they are.

    It is the same for both, and 0 if the pixel is not free.
    """
    across = np.float32(np.int32(1 + ((code >> bit) & 1))) + (np.float32(np.int32((code >> FIXED_BITS) & 3)) + data)
    return np.float32(1) / across if code >= FREE else np.float32(0)


@inlined
def _middle_total(code, data):
    """The total n + f + data of the pixel in the middle of a cell; infinite if that is not free."""
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
        value = s * fine[row, m]
        value += multiply_add(east * s, fine[row, m + 1], (west * s) * fine[row, m - 1])
        value += (south * s) * fine[below, m]
        value += multiply_add(south_east * s, fine[below, m + 1], (south_west * s) * fine[below, m - 1])
        value += (north * s) * fine[above, m]
        value += multiply_add(north_east * s, fine[above, m + 1], (north_west * s) * fine[above, m - 1])
        out[i, j] = value


@called_by_kernels(fastmath=STENCIL)
def add_to_image_row(x, k, code, data, scale, coarse, i, out, row):
    """Compute the image's row i of x + P e, with row k of `x` and `coarse` the correction e, as a row of `out`."""
    n = (i + 1) // 2
    if i % 2 == 1:
        for j in range(1, coarse.shape[1] - 1):
            m = 2 * j - 1
            s0, s1 = scale[0, n, j], scale[0, n, j + 1]
            top = _border_weight(code[i, m + 1], BESIDE_BIT, data)
            out[row, m] = x[k, m] + s0 * coarse[n, j]
            out[row, m + 1] = x[k, m + 1] + multiply_add(top * s0, coarse[n, j], (top * s1) * coarse[n, j + 1])
    else:
        for j in range(1, coarse.shape[1] - 1):
            m = 2 * j - 1
            s0, s1, s2, s3 = scale[0, n, j], scale[0, n, j + 1], scale[0, n + 1, j], scale[0, n + 1, j + 1]
            top = _border_weight(code[i - 1, m + 1], BESIDE_BIT, data)
            bottom = _border_weight(code[i + 1, m + 1], BESIDE_BIT, data)
            left = _border_weight(code[i, m], ABOVE_BIT, data)
            right = _border_weight(code[i, m + 2], ABOVE_BIT, data)
            total = _middle_total(code[i, m + 1], data)
            out[row, m] = x[k, m] + multiply_add(left * s0, coarse[n, j], (left * s2) * coarse[n + 1, j])
            w0, w1 = ((top + left) / total) * s0, ((top + right) / total) * s1
            w2, w3 = ((bottom + left) / total) * s2, ((bottom + right) / total) * s3
            upper = multiply_add(w0, coarse[n, j], w1 * coarse[n, j + 1])
            lower = multiply_add(w2, coarse[n + 1, j], w3 * coarse[n + 1, j + 1])
            out[row, m + 1] = x[k, m + 1] + (upper + lower)
