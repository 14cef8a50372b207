"""The levels below an image and what carries residuals between them: set-up of the preconditioner.

The preconditioner solves S = A + data I on the free pixels, the five-point part of the system (the
Laplacian of the valid pixels, screened, with the measured ones eliminated). At the paper's weights S is
the whole system to within 1 %.

Why this coarsening: a measured pixel is a hole of one pixel in a smooth field. Coarsening that does not
see it (aggregation, plain bilinear weights) leaves an error that no smoother removes. Here the weights
of a fine pixel come from its own equation (Alcouffe et al. 1981; Dendy's black-box multigrid, 1982): next
to a measurement they sum to less than one, beside an invalid pixel they lean to the other side. The
coarse operator is the Galerkin product, assembled as an energy cell by cell: each fine edge lies in one
coarse cell and adds a (u - v)(u - v)^T, so it is symmetric and definite by construction, and a nine-point
stencil is no more than four edges and a mass.

A level keeps the pixels (2I, 2J). The cell (I, J) has the coarse pixels 0 = (I, J), 1 = (I, J+1),
2 = (I+1, J), 3 = (I+1, J+1) at its corners, and between them the fine pixels top (2I, 2J+1),
left (2I+1, 2J) and middle (2I+1, 2J+1). Coarse levels are scaled to a unit diagonal, so that a pixel
without an equation, measured or invalid, needs no mask: its row is empty and its value stays zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.jit import STENCIL, compiled
from leadline.core.solve.kernels import DEGREE, EAST, MASS, ROOT, SOUTH, SOUTH_EAST, SOUTH_WEST

CENTRE, TOP_0, TOP_1, LEFT_0, LEFT_2, MID_0, MID_1, MID_2, MID_3 = range(9)  # planes of a transfer
COARSEST = 16  # pixels of the level that is solved by a stored inverse
BLOCK = 16  # coarse rows that one thread takes at a time
# Levels of fewer pixels stay on one thread: waking the others takes as long, and far longer on a busy machine,
# where a parallel loop waits for its slowest thread.
SERIAL = 40_000
PHASES = 6  # of `_coarsen_block`
VANISHED = np.float32(1e-30)  # a diagonal whose inverse, times anything a level holds, is still a float32

Planes = NDArray[np.float32]


@dataclass(frozen=True)
class Level:
    """A level below the image, padded by one pixel of zeros."""

    operator: Planes  # (4, h, w): the scaled edges
    transfer: Planes  # (9, h, w): weights from this level to the next finer one
    vectors: Planes  # (3, h, w): right-hand side, before and after smoothing


@dataclass(frozen=True)
class Hierarchy:
    """All that a V-cycle needs."""

    code: NDArray[np.uint8]  # (H + 2, W + 2): the finest level, see kernels.py
    data: float
    levels: tuple[Level, ...]  # the finest first
    inverse: Planes  # of the coarsest level


def build(code: NDArray[np.uint8], data: float) -> Hierarchy:
    """The levels below the image that `code` describes, for S = A + data I."""
    size = (code.shape[0] - 2, code.shape[1] - 2)
    fine = planes(3, size)
    levels: list[Level] = []
    while not levels or size[0] * size[1] > COARSEST:
        size = halved(size)
        operator, transfer, vectors = (np.zeros((k, size[0] + 2, size[1] + 2), np.float32) for k in (4, 9, 3))
        coarse = planes(6, size)
        coarsen(range(1 if levels else 0, PHASES), code, data, fine, transfer, coarse, operator)
        levels.append(Level(operator, transfer, vectors))
        fine = coarse
    return Hierarchy(code, data, tuple(levels), _inverse(operator))


def planes(count: int, size: tuple[int, int]) -> Planes:
    """Zeros for the edges and masses of a level, padded."""
    # One column more than the padding: at odd widths the last cell looks two columns past its corner.
    return np.zeros((count, size[0] + 2, size[1] + 3), np.float32)


def halved(size: tuple[int, int]) -> tuple[int, int]:
    return (size[0] + 1) // 2, (size[1] + 1) // 2


def coarsen(
    phases: range,
    code: NDArray[np.uint8],
    data: float,
    fine: Planes,
    transfer: Planes,
    coarse: Planes,
    operator: Planes,
) -> None:
    """Run `phases` of `_coarsen_block`, each over all blocks of the coarse level, before the next."""
    count = (transfer.shape[1] - 3) // BLOCK + 1
    run = _coarsen_parallel if fine[0].size >= SERIAL else _coarsen_serial
    for phase in phases:
        run(phase, count, code, np.float32(data), fine, transfer, coarse, operator)


@compiled()
def _finest_row(above, row, below, data, east, south, mass):
    """Edges between free pixels have weight one; an edge to a measured pixel becomes mass."""
    for j in range(1, row.size - 1):
        free = np.float32(row[j] >> 3)
        to_east = free * np.float32(row[j + 1] >> 3)
        to_south = free * np.float32(below[j] >> 3)
        inside = to_east + to_south + free * (np.float32(row[j - 1] >> 3) + np.float32(above[j] >> 3))
        east[j] = to_east
        south[j] = to_south
        mass[j] = (free * np.float32(row[j] & DEGREE) - inside) + free * data


@compiled(fastmath=STENCIL)
def _share(weight, total):
    return weight / total if total > 0 else np.float32(0)


@compiled(fastmath=STENCIL)
def _border_row(fine, transfer, i):
    """Weights of the fine pixels on the lines between coarse ones: their equation, collapsed onto the line."""
    nine = fine.shape[0] > 3
    k = 2 * i - 1  # padded row of the fine pixels (2I, .)
    for j in range(1, transfer.shape[2] - 1):
        m = 2 * j - 1
        west, east = fine[EAST, k, m], fine[EAST, k, m + 1]
        north, south = fine[SOUTH, k, m], fine[SOUTH, k + 1, m]
        if nine:
            west += fine[SOUTH_WEST, k, m + 1] + fine[SOUTH_EAST, k - 1, m]
            east += fine[SOUTH_EAST, k, m + 1] + fine[SOUTH_WEST, k - 1, m + 2]
            north += fine[SOUTH_EAST, k, m - 1] + fine[SOUTH_WEST, k, m + 1]
            south += fine[SOUTH_EAST, k + 1, m] + fine[SOUTH_WEST, k + 1, m]
        across = west + east + fine[MASS, k, m + 1]
        along = north + south + fine[MASS, k + 1, m]
        transfer[CENTRE, i, j] = 1
        transfer[TOP_0, i, j] = _share(west, across)
        transfer[TOP_1, i, j] = _share(east, across)
        transfer[LEFT_0, i, j] = _share(north, along)
        transfer[LEFT_2, i, j] = _share(south, along)


@compiled(fastmath=STENCIL)
def _middle_row(fine, transfer, i):
    """Weights of the fine pixels in the middle of cells: their equation, with the borders' weights put in."""
    nine = fine.shape[0] > 3
    zero = np.float32(0)
    k = 2 * i
    for j in range(1, transfer.shape[2] - 1):
        m = 2 * j
        north, south = fine[SOUTH, k - 1, m], fine[SOUTH, k, m]
        west, east = fine[EAST, k, m - 1], fine[EAST, k, m]
        corner0, corner1, corner2, corner3 = zero, zero, zero, zero
        if nine:
            corner0, corner1 = fine[SOUTH_EAST, k - 1, m - 1], fine[SOUTH_WEST, k - 1, m + 1]
            corner2, corner3 = fine[SOUTH_WEST, k, m], fine[SOUTH_EAST, k, m]
        total = north + south + west + east + corner0 + corner1 + corner2 + corner3 + fine[MASS, k, m]
        corner0 += north * transfer[TOP_0, i, j] + west * transfer[LEFT_0, i, j]
        corner1 += north * transfer[TOP_1, i, j] + east * transfer[LEFT_0, i, j + 1]
        corner2 += south * transfer[TOP_0, i + 1, j] + west * transfer[LEFT_2, i, j]
        corner3 += south * transfer[TOP_1, i + 1, j] + east * transfer[LEFT_2, i, j + 1]
        transfer[MID_0, i, j] = _share(corner0, total)
        transfer[MID_1, i, j] = _share(corner1, total)
        transfer[MID_2, i, j] = _share(corner2, total)
        transfer[MID_3, i, j] = _share(corner3, total)


@compiled(fastmath=STENCIL)
def _edge(cell, a, d0, d1, d2, d3):
    """Add a d d^T to a cell's energy: six edges between its corners and what is left as mass on each."""
    e01, e02, e03, e12, e13, e23, m0, m1, m2, m3 = cell
    a0, a1, a2, a3 = a * d0, a * d1, a * d2, a * d3
    s = d0 + d1 + d2 + d3
    return (
        e01 - a0 * d1, e02 - a0 * d2, e03 - a0 * d3, e12 - a1 * d2, e13 - a1 * d3, e23 - a2 * d3,
        m0 + a0 * s, m1 + a1 * s, m2 + a2 * s, m3 + a3 * s,
    )  # fmt: skip


@compiled(fastmath=STENCIL)
def _cell_row(fine, transfer, i, out):
    """The energies of one row of cells. A cell owns its top and left border and all that is inside."""
    nine = fine.shape[0] > 3
    o = np.float32(0)
    one = np.float32(1)
    k = 2 * i - 1
    for j in range(1, transfer.shape[2] - 1):
        m = 2 * j - 1
        t0, t1 = transfer[TOP_0, i, j], transfer[TOP_1, i, j]
        b2, b3 = transfer[TOP_0, i + 1, j], transfer[TOP_1, i + 1, j]  # bottom: the top of the cell below
        l0, l2 = transfer[LEFT_0, i, j], transfer[LEFT_2, i, j]
        r1, r3 = transfer[LEFT_0, i, j + 1], transfer[LEFT_2, i, j + 1]
        c0, c1 = transfer[MID_0, i, j], transfer[MID_1, i, j]
        c2, c3 = transfer[MID_2, i, j], transfer[MID_3, i, j]
        cell = (o, o, o, o, o, o, fine[MASS, k, m], o, o, o)
        cell = _edge(cell, fine[MASS, k, m + 1], t0, t1, o, o)
        cell = _edge(cell, fine[MASS, k + 1, m], l0, o, l2, o)
        cell = _edge(cell, fine[MASS, k + 1, m + 1], c0, c1, c2, c3)
        cell = _edge(cell, fine[EAST, k, m], one - t0, -t1, o, o)
        cell = _edge(cell, fine[EAST, k, m + 1], t0, t1 - one, o, o)
        cell = _edge(cell, fine[SOUTH, k, m], one - l0, o, -l2, o)
        cell = _edge(cell, fine[SOUTH, k + 1, m], l0, o, l2 - one, o)
        cell = _edge(cell, fine[SOUTH, k, m + 1], t0 - c0, t1 - c1, -c2, -c3)
        cell = _edge(cell, fine[SOUTH, k + 1, m + 1], -c0, -c1, b2 - c2, b3 - c3)
        cell = _edge(cell, fine[EAST, k + 1, m], l0 - c0, -c1, l2 - c2, -c3)
        cell = _edge(cell, fine[EAST, k + 1, m + 1], -c0, r1 - c1, -c2, r3 - c3)
        if nine:
            cell = _edge(cell, fine[SOUTH_EAST, k, m], one - c0, -c1, -c2, -c3)
            cell = _edge(cell, fine[SOUTH_WEST, k, m + 1], t0 - l0, t1, -l2, o)
            cell = _edge(cell, fine[SOUTH_EAST, k, m + 1], t0, t1 - r1, o, -r3)
            cell = _edge(cell, fine[SOUTH_WEST, k, m + 2], -c0, one - c1, -c2, -c3)
            cell = _edge(cell, fine[SOUTH_EAST, k + 1, m], l0, o, l2 - b2, -b3)
            cell = _edge(cell, fine[SOUTH_WEST, k + 1, m + 1], -c0, -c1, one - c2, -c3)
            cell = _edge(cell, fine[SOUTH_EAST, k + 1, m + 1], -c0, -c1, -c2, one - c3)
            cell = _edge(cell, fine[SOUTH_WEST, k + 1, m + 2], o, r1, -b2, r3 - b3)
        for n in range(10):
            out[n, j] = cell[n]


@compiled(fastmath=STENCIL)
def _assemble_row(above, here, coarse, i):
    """Sum the energies of a row of cells and the one above it into the coarse level's edges and masses."""
    for j in range(1, here.shape[1] - 1):
        coarse[EAST, i, j] = here[0, j] + above[5, j]
        coarse[SOUTH, i, j] = here[1, j] + here[4, j - 1]
        coarse[SOUTH_EAST, i, j] = here[2, j]
        coarse[SOUTH_WEST, i, j] = here[3, j - 1]
        coarse[MASS, i, j] = (here[6, j] + here[7, j - 1]) + (above[8, j] + above[9, j - 1])


@compiled(fastmath=STENCIL)
def _root_row(coarse, i):
    """D^1/2, the diagonal being all edges of a pixel and its mass; zero, i.e. no equation, if that is next to none.

    A coarse pixel in a hole has only the weight that its surroundings give it, ever less with each level and with
    the size of the data weight: it would underflow, and its inverse overflow.
    """
    for j in range(1, coarse.shape[2] - 2):
        diagonal = coarse[MASS, i, j]
        diagonal += (coarse[EAST, i, j] + coarse[EAST, i, j - 1]) + (coarse[SOUTH, i, j] + coarse[SOUTH, i - 1, j])
        diagonal += coarse[SOUTH_EAST, i, j] + coarse[SOUTH_EAST, i - 1, j - 1]
        diagonal += coarse[SOUTH_WEST, i, j] + coarse[SOUTH_WEST, i - 1, j + 1]
        coarse[ROOT, i, j] = np.sqrt(diagonal) if diagonal > VANISHED else np.float32(0)


@compiled(fastmath=STENCIL)
def _scale_row(fine, coarse, operator, transfer, i):
    """Scale to a unit diagonal: operator = D^-1/2 S D^-1/2, transfer = D_fine^1/2 P D^-1/2."""
    nine = fine.shape[0] > 3
    one = np.float32(1)
    k = 2 * i - 1
    for j in range(1, operator.shape[2] - 1):
        m = 2 * j - 1
        s0, s1 = _share(one, coarse[ROOT, i, j]), _share(one, coarse[ROOT, i, j + 1])
        s2, s3 = _share(one, coarse[ROOT, i + 1, j]), _share(one, coarse[ROOT, i + 1, j + 1])
        operator[0, i, j] = coarse[EAST, i, j] * (s0 * s1)
        operator[1, i, j] = coarse[SOUTH, i, j] * (s0 * s2)
        operator[2, i, j] = coarse[SOUTH_EAST, i, j] * (s0 * s3)
        operator[3, i, j] = coarse[SOUTH_WEST, i, j] * (s0 * _share(one, coarse[ROOT, i + 1, j - 1]))
        centre, top, left, middle = one, one, one, one
        if nine:
            centre, top = fine[ROOT, k, m], fine[ROOT, k, m + 1]
            left, middle = fine[ROOT, k + 1, m], fine[ROOT, k + 1, m + 1]
        transfer[CENTRE, i, j] *= centre * s0
        transfer[TOP_0, i, j] *= top * s0
        transfer[TOP_1, i, j] *= top * s1
        transfer[LEFT_0, i, j] *= left * s0
        transfer[LEFT_2, i, j] *= left * s2
        transfer[MID_0, i, j] *= middle * s0
        transfer[MID_1, i, j] *= middle * s1
        transfer[MID_2, i, j] *= middle * s2
        transfer[MID_3, i, j] *= middle * s3


@compiled()
def _coarsen_block(phase, block, code, data, fine, transfer, coarse, operator):
    """One block's part in going from the edges and masses of one level to the next.

    The phases follow one another, each over all blocks: edges of the image (finest level only), weights on the
    borders of cells, weights in their middles, energies, diagonal, scaling.
    """
    first = 1 + block * BLOCK
    last = min(first + BLOCK, transfer.shape[1] - 1)
    if phase == 0:
        for i in range(2 * first - 1, min(2 * last - 1, code.shape[0] - 1)):
            _finest_row(code[i - 1], code[i], code[i + 1], data, fine[EAST, i], fine[SOUTH, i], fine[MASS, i])
    elif phase == 1:
        for i in range(first, last):
            _border_row(fine, transfer, i)
    elif phase == 2:
        for i in range(first, last):
            _middle_row(fine, transfer, i)
    elif phase == 3:
        ring = np.zeros((2, 10, transfer.shape[2]), np.float32)
        if first > 1:
            _cell_row(fine, transfer, first - 1, ring[(first - 1) % 2])
        for i in range(first, last):
            _cell_row(fine, transfer, i, ring[i % 2])
            _assemble_row(ring[(i - 1) % 2], ring[i % 2], coarse, i)
    elif phase == 4:
        for i in range(first, last):
            _root_row(coarse, i)
    else:
        for i in range(first, last):
            _scale_row(fine, coarse, operator, transfer, i)


@compiled(parallel=True)
def _coarsen_parallel(phase, count, code, data, fine, transfer, coarse, operator):
    # One parallel loop serves all phases, because each such loop costs most of a second to compile.
    for block in prange(count):
        _coarsen_block(phase, np.int64(block), code, data, fine, transfer, coarse, operator)


@compiled()
def _coarsen_serial(phase, count, code, data, fine, transfer, coarse, operator):
    for block in range(count):
        _coarsen_block(phase, block, code, data, fine, transfer, coarse, operator)


def _inverse(operator: Planes) -> Planes:
    """Dense inverse of a scaled level on its padded grid; rows without an equation are the identity."""
    _, height, width = operator.shape
    index = np.arange(height * width).reshape(height, width)
    matrix = np.eye(height * width)
    for plane, (down, right) in enumerate(((0, 1), (1, 0), (1, 1), (1, -1))):
        here = index[1:-1, 1:-1]
        there = index[1 + down : height - 1 + down, 1 + right : width - 1 + right]
        weight = operator[plane, 1:-1, 1:-1]
        matrix[here, there] -= weight
        matrix[there, here] -= weight
    return np.linalg.inv(matrix).astype(np.float32)
