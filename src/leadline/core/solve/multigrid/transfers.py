"""Interpolation weights between a level and the next finer one, and their use: restriction and prolongation.

The cell (I, J) has the coarse pixels 0 = (I, J), 1 = (I, J+1), 2 = (I+1, J), 3 = (I+1, J+1) at its corners, and between
them the fine pixels top (2I, 2J+1), left (2I+1, 2J) and middle (2I+1, 2J+1).

A measured pixel is a hole of one pixel in a smooth field. If the interpolation does not account for it (aggregation,
plain bilinear weights), it leaves an error that no smoother removes. Here the weights of a fine pixel come from its own
equation (Alcouffe et al. 1981; black-box multigrid, Dendy 1982): next to a measurement they sum to less than one, and
beside an invalid pixel they favour the valid side.
"""

from __future__ import annotations

import numpy as np

from leadline.base.jit import STENCIL, compiled
from leadline.core.solve.kernels import EAST, SOUTH, SOUTH_EAST, SOUTH_WEST

# Planes of a prolongation: the fine pixel, and the corner of the cell that the weight belongs to.
CENTRE, TOP_0, TOP_1, LEFT_0, LEFT_2, MIDDLE_0, MIDDLE_1, MIDDLE_2, MIDDLE_3 = range(9)


@compiled(fastmath=STENCIL)
def divide_or_zero(weight, total):
    return weight / total if total > 0 else np.float32(0)


@compiled(fastmath=STENCIL)
def border_weights_row(edges, mass, weights, i):
    """Compute the weights of the fine pixels on the borders of row i of cells.

    Such a pixel lies between two coarse ones. Its equation is summed across the line that joins them.
    """
    nine_point = edges.shape[0] > 2
    k = 2 * i - 1  # padded row of the fine pixels (2I, .)
    for j in range(1, weights.shape[2] - 1):
        m = 2 * j - 1
        west, east = edges[EAST, k, m], edges[EAST, k, m + 1]
        north, south = edges[SOUTH, k, m], edges[SOUTH, k + 1, m]
        if nine_point:
            west += edges[SOUTH_WEST, k, m + 1] + edges[SOUTH_EAST, k - 1, m]
            east += edges[SOUTH_EAST, k, m + 1] + edges[SOUTH_WEST, k - 1, m + 2]
            north += edges[SOUTH_EAST, k, m - 1] + edges[SOUTH_WEST, k, m + 1]
            south += edges[SOUTH_EAST, k + 1, m] + edges[SOUTH_WEST, k + 1, m]
        across = west + east + mass[k, m + 1]
        along = north + south + mass[k + 1, m]
        weights[CENTRE, i, j] = 1
        weights[TOP_0, i, j] = divide_or_zero(west, across)
        weights[TOP_1, i, j] = divide_or_zero(east, across)
        weights[LEFT_0, i, j] = divide_or_zero(north, along)
        weights[LEFT_2, i, j] = divide_or_zero(south, along)


@compiled(fastmath=STENCIL)
def middle_weights_row(edges, mass, weights, i):
    """Compute the weights of the fine pixels in the middle of row i of cells.

    The values of such a pixel's neighbours, which lie on the borders, are substituted into its equation.
    """
    nine_point = edges.shape[0] > 2
    zero = np.float32(0)
    k = 2 * i
    for j in range(1, weights.shape[2] - 1):
        m = 2 * j
        north, south = edges[SOUTH, k - 1, m], edges[SOUTH, k, m]
        west, east = edges[EAST, k, m - 1], edges[EAST, k, m]
        corner0, corner1, corner2, corner3 = zero, zero, zero, zero
        if nine_point:
            corner0, corner1 = edges[SOUTH_EAST, k - 1, m - 1], edges[SOUTH_WEST, k - 1, m + 1]
            corner2, corner3 = edges[SOUTH_WEST, k, m], edges[SOUTH_EAST, k, m]
        total = north + south + west + east + corner0 + corner1 + corner2 + corner3 + mass[k, m]
        corner0 += north * weights[TOP_0, i, j] + west * weights[LEFT_0, i, j]
        corner1 += north * weights[TOP_1, i, j] + east * weights[LEFT_0, i, j + 1]
        corner2 += south * weights[TOP_0, i + 1, j] + west * weights[LEFT_2, i, j]
        corner3 += south * weights[TOP_1, i + 1, j] + east * weights[LEFT_2, i, j + 1]
        weights[MIDDLE_0, i, j] = divide_or_zero(corner0, total)
        weights[MIDDLE_1, i, j] = divide_or_zero(corner1, total)
        weights[MIDDLE_2, i, j] = divide_or_zero(corner2, total)
        weights[MIDDLE_3, i, j] = divide_or_zero(corner3, total)


@compiled(fastmath=STENCIL)
def restrict_row(above, row, below, weights, i, out):
    """Compute the coarse row i of the restriction P^T r from the three fine rows around it."""
    centre, top_0, top_1 = weights[CENTRE, i], weights[TOP_0, i], weights[TOP_1, i]
    left_0, left_2 = weights[LEFT_0, i], weights[LEFT_2, i - 1]
    middle_0, middle_1 = weights[MIDDLE_0, i], weights[MIDDLE_1, i]
    middle_2, middle_3 = weights[MIDDLE_2, i - 1], weights[MIDDLE_3, i - 1]
    for j in range(1, out.size - 1):
        m = 2 * j - 1
        value = centre[j] * row[m] + (top_0[j] * row[m + 1] + top_1[j - 1] * row[m - 1])
        value += left_0[j] * below[m] + (middle_0[j] * below[m + 1] + middle_1[j - 1] * below[m - 1])
        value += left_2[j] * above[m] + (middle_2[j] * above[m + 1] + middle_3[j - 1] * above[m - 1])
        out[j] = value


@compiled(fastmath=STENCIL)
def add_prolongation_row(row, weights, coarse, i, out):
    """Compute the fine row i of x + P e, with `row` one row of x and `coarse` the coarse correction e."""
    k = (i + 1) // 2
    e = coarse[k]
    if i % 2 == 1:
        centre, top_0, top_1 = weights[CENTRE, k], weights[TOP_0, k], weights[TOP_1, k]
        for j in range(1, e.size - 1):
            m = 2 * j - 1
            out[m] = row[m] + centre[j] * e[j]
            out[m + 1] = row[m + 1] + (top_0[j] * e[j] + top_1[j] * e[j + 1])
    else:
        below = coarse[k + 1]
        left_0, left_2 = weights[LEFT_0, k], weights[LEFT_2, k]
        middle_0, middle_1 = weights[MIDDLE_0, k], weights[MIDDLE_1, k]
        middle_2, middle_3 = weights[MIDDLE_2, k], weights[MIDDLE_3, k]
        for j in range(1, e.size - 1):
            m = 2 * j - 1
            out[m] = row[m] + (left_0[j] * e[j] + left_2[j] * below[j])
            upper = middle_0[j] * e[j] + middle_1[j] * e[j + 1]
            lower = middle_2[j] * below[j] + middle_3[j] * below[j + 1]
            out[m + 1] = row[m + 1] + (upper + lower)
