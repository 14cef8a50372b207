"""The interpolation P between a level and the next finer one, and the coarse operator P^T A P.

The cell (I, J) has the coarse pixels 0 = (I, J), 1 = (I, J+1), 2 = (I+1, J), 3 = (I+1, J+1) at its corners, and between
them the fine pixels top (2I, 2J+1), left (2I+1, 2J) and middle (2I+1, 2J+1).

A measured pixel is a hole of one pixel in a smooth field. If the interpolation does not account for it (aggregation,
plain bilinear weights), it leaves an error that no smoother removes. Here the weights of a fine pixel come from its own
equation (Alcouffe et al. 1981; black-box multigrid, Dendy 1982): next to a measurement they sum to less than one, and
beside an invalid pixel they favour the valid side.

The product is assembled as an energy, cell by cell. Each fine edge of weight a lies in one coarse cell and adds
a (u - v)(u - v)^T to its energy, with u and v the interpolation weights of the edge's two ends. The coarse operator is
therefore symmetric and positive definite by construction, and its nine-point stencil is four edges and a mass.
"""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import Float32Array
from leadline.base.jit import STENCIL, called_by_kernels, multiply_add, parallel_loop
from leadline.core.solve.kernels import EAST, SOUTH, SOUTH_EAST, SOUTH_WEST
from leadline.core.solve.multigrid import Planes

# Planes of a prolongation: the fine pixel, and the corner of the cell that the weight belongs to. Without a ninth plane
# the weight from a coarse pixel to the fine one at its place is 1.
TOP_0, TOP_1, LEFT_0, LEFT_2, MIDDLE_0, MIDDLE_1, MIDDLE_2, MIDDLE_3, CENTRE = range(9)
COARSE_ROWS = 16  # coarse rows that one thread processes at a time
_BORDERS, _MIDDLES, _CELLS = range(3)  # phases of `_coarsen_block`


def coarsen(
    edges: Planes, mass: Float32Array, prolongation: Planes, coarse_edges: Planes, coarse_mass: Float32Array
) -> None:
    """Fill the interpolation to a level with these edges and masses, and the edges and masses of the coarse level."""
    count = coarse_block_count(prolongation.shape[1] - 2)
    arrays = edges, mass, prolongation, coarse_edges, coarse_mass
    for phase in (_BORDERS, _MIDDLES, _CELLS):
        _coarsen_block[count](phase, *arrays)


def coarse_block_count(height: int) -> int:
    """Return the number of blocks of `COARSE_ROWS` rows on a coarse level of this height."""
    return (height - 1) // COARSE_ROWS + 1


@called_by_kernels(fastmath=STENCIL)
def _add_edge(cell, a, d0, d1, d2, d3):
    """Add a d d^T to the energy of a cell: six edges between its corners, and the rest as a mass on each corner.

    `multiply_add` makes the result independent of which terms the compiler finds to be zero.
    """
    e01, e02, e03, e12, e13, e23, m0, m1, m2, m3 = cell
    a0, a1, a2, a3 = a * d0, a * d1, a * d2, a * d3
    s = d0 + d1 + d2 + d3
    return (
        multiply_add(-a0, d1, e01), multiply_add(-a0, d2, e02), multiply_add(-a0, d3, e03),
        multiply_add(-a1, d2, e12), multiply_add(-a1, d3, e13), multiply_add(-a2, d3, e23),
        multiply_add(a0, s, m0), multiply_add(a1, s, m1), multiply_add(a2, s, m2), multiply_add(a3, s, m3),
    )  # fmt: skip


@called_by_kernels(fastmath=STENCIL)
def _add_border_edge(e, m, n, a, d, f):
    """Do the same for an edge along the border between two corners, whose other terms are zero."""
    s = d + f
    return multiply_add(-(a * d), f, e), multiply_add(a * d, s, m), multiply_add(a * f, s, n)


@called_by_kernels(fastmath=STENCIL)
def _cell_row(edges, mass, weights, i, out):
    """Compute the energies of row i of cells. A cell owns its top and left border and everything inside."""
    nine_point = edges.shape[0] > 2
    o = np.float32(0)
    one = np.float32(1)
    k = 2 * i - 1
    for j in range(1, weights.shape[2] - 1):
        m = 2 * j - 1
        # Interpolation weights of the top, bottom (the top of the cell below), left, right and middle fine pixels.
        t0, t1 = weights[TOP_0, i, j], weights[TOP_1, i, j]
        b2, b3 = weights[TOP_0, i + 1, j], weights[TOP_1, i + 1, j]
        l0, l2 = weights[LEFT_0, i, j], weights[LEFT_2, i, j]
        r1, r3 = weights[LEFT_0, i, j + 1], weights[LEFT_2, i, j + 1]
        c0, c1 = weights[MIDDLE_0, i, j], weights[MIDDLE_1, i, j]
        c2, c3 = weights[MIDDLE_2, i, j], weights[MIDDLE_3, i, j]
        e01, m0, m1 = _add_border_edge(o, mass[k, m], o, mass[k, m + 1], t0, t1)
        e02, m0, m2 = _add_border_edge(o, m0, o, mass[k + 1, m], l0, l2)
        cell = _add_edge((e01, e02, o, o, o, o, m0, m1, m2, o), mass[k + 1, m + 1], c0, c1, c2, c3)
        e01, e02, e03, e12, e13, e23, m0, m1, m2, m3 = cell
        e01, m0, m1 = _add_border_edge(e01, m0, m1, edges[EAST, k, m], one - t0, -t1)
        e01, m0, m1 = _add_border_edge(e01, m0, m1, edges[EAST, k, m + 1], t0, t1 - one)
        e02, m0, m2 = _add_border_edge(e02, m0, m2, edges[SOUTH, k, m], one - l0, -l2)
        e02, m0, m2 = _add_border_edge(e02, m0, m2, edges[SOUTH, k + 1, m], l0, l2 - one)
        cell = e01, e02, e03, e12, e13, e23, m0, m1, m2, m3
        cell = _add_edge(cell, edges[SOUTH, k, m + 1], t0 - c0, t1 - c1, -c2, -c3)
        cell = _add_edge(cell, edges[SOUTH, k + 1, m + 1], -c0, -c1, b2 - c2, b3 - c3)
        cell = _add_edge(cell, edges[EAST, k + 1, m], l0 - c0, -c1, l2 - c2, -c3)
        cell = _add_edge(cell, edges[EAST, k + 1, m + 1], -c0, r1 - c1, -c2, r3 - c3)
        if nine_point:
            cell = _add_edge(cell, edges[SOUTH_EAST, k, m], one - c0, -c1, -c2, -c3)
            cell = _add_edge(cell, edges[SOUTH_WEST, k, m + 1], t0 - l0, t1, -l2, o)
            cell = _add_edge(cell, edges[SOUTH_EAST, k, m + 1], t0, t1 - r1, o, -r3)
            cell = _add_edge(cell, edges[SOUTH_WEST, k, m + 2], -c0, one - c1, -c2, -c3)
            cell = _add_edge(cell, edges[SOUTH_EAST, k + 1, m], l0, o, l2 - b2, -b3)
            cell = _add_edge(cell, edges[SOUTH_WEST, k + 1, m + 1], -c0, -c1, one - c2, -c3)
            cell = _add_edge(cell, edges[SOUTH_EAST, k + 1, m + 1], -c0, -c1, -c2, one - c3)
            cell = _add_edge(cell, edges[SOUTH_WEST, k + 1, m + 2], o, r1, -b2, r3 - b3)
        for n in range(10):
            out[n, j] = cell[n]


@called_by_kernels(fastmath=STENCIL)
def _assemble_row(above, here, edges, mass, i):
    """Sum the energies of row i of cells and of the row above it into the edges and masses of the coarse level."""
    for j in range(1, here.shape[1] - 1):
        edges[EAST, i, j] = here[0, j] + above[5, j]
        edges[SOUTH, i, j] = here[1, j] + here[4, j - 1]
        edges[SOUTH_EAST, i, j] = here[2, j]
        edges[SOUTH_WEST, i, j] = here[3, j - 1]
        mass[i, j] = (here[6, j] + here[7, j - 1]) + (above[8, j] + above[9, j - 1])


@parallel_loop(fastmath=STENCIL)
def _coarsen_block(block, phase, edges, mass, weights, coarse_edges, coarse_mass):
    """Run one phase on one block of coarse rows; a phase reads what the one before has written in other blocks."""
    first = 1 + block * COARSE_ROWS
    last = min(first + COARSE_ROWS, weights.shape[1] - 1)
    if phase == _BORDERS:
        for i in range(first, last):
            _border_weights_row(edges, mass, weights, i)
    elif phase == _MIDDLES:
        for i in range(first, last):
            _middle_weights_row(edges, mass, weights, i)
    else:
        ring = np.zeros((2, 10, weights.shape[2]), np.float32)  # energies of this row of cells and the one above
        for i in range(max(first - 1, 1), last):
            _cell_row(edges, mass, weights, i, ring[i % 2])
            if i >= first:
                _assemble_row(ring[(i - 1) % 2], ring[i % 2], coarse_edges, coarse_mass, i)


@called_by_kernels(fastmath=STENCIL)
def divide_or_zero(weight, total):
    return weight / total if total > 0 else np.float32(0)


@called_by_kernels(fastmath=STENCIL)
def _border_weights_row(edges, mass, weights, i):
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
        weights[TOP_0, i, j] = divide_or_zero(west, across)
        weights[TOP_1, i, j] = divide_or_zero(east, across)
        weights[LEFT_0, i, j] = divide_or_zero(north, along)
        weights[LEFT_2, i, j] = divide_or_zero(south, along)


@called_by_kernels(fastmath=STENCIL)
def _middle_weights_row(edges, mass, weights, i):
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


@called_by_kernels(fastmath=STENCIL)
def restrict_row(fine, above, row, below, weights, i, out):
    """Compute the coarse row i of the restriction P^T r from the three rows of `fine` around it."""
    scaled = weights.shape[0] > CENTRE
    for j in range(1, out.shape[1] - 1):
        m = 2 * j - 1
        value = weights[CENTRE, i, j] * fine[row, m] if scaled else fine[row, m]
        value += weights[TOP_0, i, j] * fine[row, m + 1] + weights[TOP_1, i, j - 1] * fine[row, m - 1]
        value += weights[LEFT_0, i, j] * fine[below, m]
        value += weights[MIDDLE_0, i, j] * fine[below, m + 1] + weights[MIDDLE_1, i, j - 1] * fine[below, m - 1]
        value += weights[LEFT_2, i - 1, j] * fine[above, m]
        value += weights[MIDDLE_2, i - 1, j] * fine[above, m + 1] + weights[MIDDLE_3, i - 1, j - 1] * fine[above, m - 1]
        out[i, j] = value


@called_by_kernels(fastmath=STENCIL)
def add_prolongation_row(x, k, weights, coarse, i, out, row):
    """Compute the fine row i of x + P e, with row k of `x` and `coarse` the coarse correction e, as a row of `out`."""
    n = (i + 1) // 2
    scaled = weights.shape[0] > CENTRE
    if i % 2 == 1:
        for j in range(1, coarse.shape[1] - 1):
            m = 2 * j - 1
            if scaled:
                out[row, m] = x[k, m] + weights[CENTRE, n, j] * coarse[n, j]
            else:
                out[row, m] = x[k, m] + coarse[n, j]
            top = weights[TOP_0, n, j] * coarse[n, j] + weights[TOP_1, n, j] * coarse[n, j + 1]
            out[row, m + 1] = x[k, m + 1] + top
    else:
        for j in range(1, coarse.shape[1] - 1):
            m = 2 * j - 1
            out[row, m] = x[k, m] + (weights[LEFT_0, n, j] * coarse[n, j] + weights[LEFT_2, n, j] * coarse[n + 1, j])
            upper = weights[MIDDLE_0, n, j] * coarse[n, j] + weights[MIDDLE_1, n, j] * coarse[n, j + 1]
            lower = weights[MIDDLE_2, n, j] * coarse[n + 1, j] + weights[MIDDLE_3, n, j] * coarse[n + 1, j + 1]
            out[row, m + 1] = x[k, m + 1] + (upper + lower)


@called_by_kernels()
def halo_row(block, block_rows, halo_rows, height, i):
    """Return the row of the halo (`VCycle`) that holds a copy of row i, which is outside of the block."""
    first = 1 + block * block_rows
    if i < first:
        return i - first + (2 * block - 1) * halo_rows
    return i - min(first + block_rows, height + 1) + (2 * block + 1) * halo_rows
