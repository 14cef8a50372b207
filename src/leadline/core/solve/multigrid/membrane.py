"""Set-up of the membrane hierarchy, for S = A + data I on the free pixels.

S is the five-point part of the paper's system: the Laplacian of the valid pixels plus the data weight, with the
measured pixels eliminated. At the paper's weights S equals the whole system to within 1 %.

Levels below the image are scaled to a unit diagonal, so that a pixel without an equation (measured or invalid) needs no
mask: its row is empty and its value stays zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.jit import STENCIL, compiled
from leadline.core.solve.kernels import DEGREE, EAST, ROWS_PER_BLOCK, SOUTH, SOUTH_EAST, SOUTH_WEST, block_count
from leadline.core.solve.multigrid.galerkin import coarsen
from leadline.core.solve.multigrid.levels import (  # fmt: skip
    NO_CODE,
    NO_MAP,
    NO_PLANES,
    SERIAL_BELOW,
    SMALLEST_DIAGONAL,
    Hierarchy,
    Level,
    Planes,
    adjacency,
    coarse_sizes,
    edge_planes,
    padded,
)
from leadline.core.solve.multigrid.transfers import (  # fmt: skip
    CENTRE,
    LEFT_0,
    LEFT_2,
    MIDDLE_0,
    MIDDLE_1,
    MIDDLE_2,
    MIDDLE_3,
    TOP_0,
    TOP_1,
    divide_or_zero,
)

_IMAGE, _DIAGONAL, _SCALE = range(3)  # phases of `_set_up_block`


@dataclass(frozen=True)
class MembraneHierarchy(Hierarchy):
    """The edges of a coarse level are scaled by its diagonal; those of the image follow from its code."""

    data: float


def build_membrane(code: NDArray[np.uint8], data: float) -> MembraneHierarchy:
    """Build the hierarchy for the image that `code` describes and this data weight."""
    height, width = code.shape[0] - 2, code.shape[1] - 2
    edges, mass, root = edge_planes(2, (height, width)), padded(1, (height, width))[0], NO_MAP
    _run(_IMAGE, code, data, edges, mass, root, root, NO_PLANES, NO_PLANES)
    levels = [Level(NO_PLANES, NO_PLANES, NO_PLANES)]
    for size in coarse_sizes(height, width):
        level = Level(padded(4, size), padded(9, size), padded(3, size))
        coarse_edges, (coarse_mass, coarse_root) = edge_planes(4, size), padded(2, size)
        coarsen(edges, mass, level.prolongation, coarse_edges, coarse_mass)
        for phase in (_DIAGONAL, _SCALE):
            _run(phase, NO_CODE, data, coarse_edges, coarse_mass, coarse_root, root, level.edges, level.prolongation)
        levels.append(level)
        edges, mass, root = coarse_edges, coarse_mass, coarse_root
    # A pixel without an equation has the row of the identity.
    matrix = np.eye(mass.size) - adjacency(level.edges, mass.shape)
    return MembraneHierarchy(code, tuple(levels), np.linalg.inv(matrix).astype(np.float32), data)


def _run(
    phase: int, code: NDArray[np.uint8], data: float, edges: Planes, mass: NDArray[np.float32], *arrays: Planes
) -> None:
    run = _set_up_parallel if mass.size >= SERIAL_BELOW else _set_up_serial
    run(phase, code, np.float32(data), edges, mass, *arrays)


@compiled()
def _image_row(above, row, below, data, east, south, mass):
    """Compute the edges and masses of the image: an edge between free pixels weighs 1, one to a fixed pixel is mass."""
    for j in range(1, row.size - 1):
        free = np.float32(row[j] >> 3)
        to_east = free * np.float32(row[j + 1] >> 3)
        to_south = free * np.float32(below[j] >> 3)
        inside = to_east + to_south + free * (np.float32(row[j - 1] >> 3) + np.float32(above[j] >> 3))
        east[j] = to_east
        south[j] = to_south
        mass[j] = (free * np.float32(row[j] & DEGREE) - inside) + free * data


@compiled(fastmath=STENCIL)
def _root_row(edges, mass, root, i):
    """Compute the root of the diagonal, the sum of a pixel's edges and mass; 0 marks a pixel without an equation.

    A coarse pixel inside a hole has only the weight that its surroundings contribute. That weight shrinks with every
    level and with the data weight, until it would underflow and its inverse overflow.
    """
    for j in range(1, root.shape[1] - 1):
        diagonal = mass[i, j]
        diagonal += (edges[EAST, i, j] + edges[EAST, i, j - 1]) + (edges[SOUTH, i, j] + edges[SOUTH, i - 1, j])
        diagonal += edges[SOUTH_EAST, i, j] + edges[SOUTH_EAST, i - 1, j - 1]
        diagonal += edges[SOUTH_WEST, i, j] + edges[SOUTH_WEST, i - 1, j + 1]
        root[i, j] = np.sqrt(diagonal) if diagonal > SMALLEST_DIAGONAL else np.float32(0)


@compiled(fastmath=STENCIL)
def _scale_row(edges, root, fine_root, scaled, weights, i):
    """Scale to a unit diagonal: S becomes D^-1/2 S D^-1/2, and P becomes D_fine^1/2 P D^-1/2."""
    below_image = fine_root.shape[0] == 1  # the image itself is not scaled
    one = np.float32(1)
    k = 2 * i - 1
    for j in range(1, scaled.shape[2] - 1):
        m = 2 * j - 1
        s0, s1 = divide_or_zero(one, root[i, j]), divide_or_zero(one, root[i, j + 1])
        s2, s3 = divide_or_zero(one, root[i + 1, j]), divide_or_zero(one, root[i + 1, j + 1])
        scaled[EAST, i, j] = edges[EAST, i, j] * (s0 * s1)
        scaled[SOUTH, i, j] = edges[SOUTH, i, j] * (s0 * s2)
        scaled[SOUTH_EAST, i, j] = edges[SOUTH_EAST, i, j] * (s0 * s3)
        scaled[SOUTH_WEST, i, j] = edges[SOUTH_WEST, i, j] * (s0 * divide_or_zero(one, root[i + 1, j - 1]))
        centre, top, left, middle = one, one, one, one
        if not below_image:
            centre, top = fine_root[k, m], fine_root[k, m + 1]
            left, middle = fine_root[k + 1, m], fine_root[k + 1, m + 1]
        weights[CENTRE, i, j] *= centre * s0
        weights[TOP_0, i, j] *= top * s0
        weights[TOP_1, i, j] *= top * s1
        weights[LEFT_0, i, j] *= left * s0
        weights[LEFT_2, i, j] *= left * s2
        weights[MIDDLE_0, i, j] *= middle * s0
        weights[MIDDLE_1, i, j] *= middle * s1
        weights[MIDDLE_2, i, j] *= middle * s2
        weights[MIDDLE_3, i, j] *= middle * s3


@compiled()
def _set_up_block(phase, block, code, data, edges, mass, root, fine_root, scaled, weights):
    first = 1 + block * ROWS_PER_BLOCK
    for i in range(first, min(first + ROWS_PER_BLOCK, mass.shape[0] - 1)):
        if phase == _IMAGE:
            _image_row(code[i - 1], code[i], code[i + 1], data, edges[EAST, i], edges[SOUTH, i], mass[i])
        elif phase == _DIAGONAL:
            _root_row(edges, mass, root, i)
        else:
            _scale_row(edges, root, fine_root, scaled, weights, i)


@compiled(parallel=True)
def _set_up_parallel(phase, code, data, edges, mass, root, fine_root, scaled, weights):
    for block in prange(block_count(mass.shape[0] - 2)):
        _set_up_block(phase, np.int64(block), code, data, edges, mass, root, fine_root, scaled, weights)


@compiled()
def _set_up_serial(phase, code, data, edges, mass, root, fine_root, scaled, weights):
    for block in range(block_count(mass.shape[0] - 2)):
        _set_up_block(phase, block, code, data, edges, mass, root, fine_root, scaled, weights)
