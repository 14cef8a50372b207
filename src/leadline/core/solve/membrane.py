"""The membrane: multigrid preconditioner of the paper's system, with S = A + data I on the free pixels.

S is the five-point part of the paper's system: the Laplacian of the valid pixels plus the data weight, with the
measured pixels eliminated. At the paper's weights S equals the whole system to within 1 %.

Levels below the image are scaled to a unit diagonal, so that a pixel without an equation (measured or invalid) needs no
mask: its row is empty and its value stays zero. The smoother is Chebyshev's polynomial of degree two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import Float32Array
from leadline.base.jit import STENCIL, SUM, called_by_kernels, inlined, parallel_loop
from leadline.core.solve import galerkin, multigrid
from leadline.core.solve.galerkin import COARSE_ROWS, add_prolongation_row, divide_or_zero, halo_row, restrict_row
from leadline.core.solve.image_interpolation import add_to_image_row, restrict_image_row
from leadline.core.solve.kernels import (
    DEGREE,
    EAST,
    FREE,
    ONLY_ROW,
    ROWS_PER_BLOCK,
    SOUTH,
    SOUTH_EAST,
    SOUTH_WEST,
    block_count,
    zero_row,
)
from leadline.core.solve.multigrid import NO_CODE, NO_MAP, NO_PLANES, SMALLEST_DIAGONAL, Level, Planes, copy_row

_HALO = 2  # rows that a block reads on either side on the way up
_IMAGE, _DIAGONAL, _SCALE = range(3)  # phases of `_set_up_block`
# Chebyshev's polynomial of degree two over the part of the spectrum of D^-1 S that the next level cannot represent,
# [1/2, 2] for a five-point stencil: it damps that part by 1 / T_2(5/3) = 0.22.
_THETA, _DELTA = 1.25, 0.75
_RHO_0 = _DELTA / _THETA
_RHO_1 = 1 / (2 / _RHO_0 - _RHO_0)
_LINEAR = (1 + _RHO_0 * _RHO_1) / _THETA + 2 * _RHO_1 / _DELTA
_QUADRATIC = 2 * _RHO_1 / (_DELTA * _THETA)


@dataclass(frozen=True)
class MembraneHierarchy(multigrid.Hierarchy):
    """Levels of the membrane. Coarse edges are scaled by the diagonal; those of the image follow from its code."""

    data: float


def build_membrane(code: NDArray[np.uint8], data: float) -> MembraneHierarchy:
    """Build the hierarchy for the image that `code` describes and this data weight."""
    height, width = code.shape[0] - 2, code.shape[1] - 2
    edges, mass = multigrid.edge_planes(2, (height, width)), multigrid.padded(1, (height, width))[0]
    root = NO_MAP
    _run(_IMAGE, code, data, edges, mass, root, root, NO_PLANES, NO_PLANES)
    levels = [Level(NO_PLANES, NO_PLANES, NO_PLANES)]
    for size in multigrid.coarse_sizes(height, width):
        prolongation, coarse_edges = multigrid.padded(8 if root is NO_MAP else 9, size), multigrid.edge_planes(4, size)
        coarse_mass, coarse_root = multigrid.padded(2, size)
        galerkin.coarsen(edges, mass, prolongation, coarse_edges, coarse_mass)
        # Assigned here, which frees the arrays of the finer level before more is allocated.
        edges, mass = coarse_edges, coarse_mass
        if root is NO_MAP:  # of the interpolation to the image only the scales are stored, see image_interpolation.py
            prolongation = multigrid.padded(1, size)
        level = Level(multigrid.padded(4, size), prolongation, multigrid.padded(2, size))
        for phase in (_DIAGONAL, _SCALE):
            _run(phase, NO_CODE, data, edges, mass, coarse_root, root, level.edges, prolongation)
        levels.append(level)
        root = coarse_root
    # A pixel without an equation has the row of the identity.
    matrix = np.eye(mass.size) - multigrid.adjacency(level.edges, mass.shape)
    return MembraneHierarchy(code, tuple(levels), np.linalg.inv(matrix).astype(np.float32), data)


def _run(phase: int, code: NDArray[np.uint8], data: float, edges: Planes, mass: Float32Array, *arrays: Planes) -> None:
    _set_up_block[block_count(mass.shape[0] - 2)](phase, code, np.float32(data), edges, mass, *arrays)


@called_by_kernels()
def _image_system_row(code, data, i, edges, mass):
    """Compute the edges and masses of the image: 1 between free pixels, and a mass of 1 for each fixed neighbour."""
    for j in range(1, code.shape[1] - 1):
        free = np.float32(code[i, j] >= FREE)
        to_east = free * np.float32(code[i, j + 1] >= FREE)
        to_south = free * np.float32(code[i + 1, j] >= FREE)
        inside = to_east + to_south + free * (np.float32(code[i, j - 1] >= FREE) + np.float32(code[i - 1, j] >= FREE))
        edges[EAST, i, j] = to_east
        edges[SOUTH, i, j] = to_south
        mass[i, j] = (free * np.float32(code[i, j] & DEGREE) - inside) + free * data


@called_by_kernels(fastmath=STENCIL)
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


@called_by_kernels(fastmath=STENCIL)
def _scale_row(edges, root, fine_root, scaled, weights, i):
    """Scale to a unit diagonal: S becomes D^-1/2 S D^-1/2, and P becomes D_fine^1/2 P D^-1/2."""
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
        if fine_root.shape[0] == 1:  # the image itself is not scaled, and its weights are not stored
            weights[0, i, j] = s0
        else:
            top, left, middle = fine_root[k, m + 1], fine_root[k + 1, m], fine_root[k + 1, m + 1]
            weights[galerkin.CENTRE, i, j] = fine_root[k, m] * s0
            weights[galerkin.TOP_0, i, j] *= top * s0
            weights[galerkin.TOP_1, i, j] *= top * s1
            weights[galerkin.LEFT_0, i, j] *= left * s0
            weights[galerkin.LEFT_2, i, j] *= left * s2
            weights[galerkin.MIDDLE_0, i, j] *= middle * s0
            weights[galerkin.MIDDLE_1, i, j] *= middle * s1
            weights[galerkin.MIDDLE_2, i, j] *= middle * s2
            weights[galerkin.MIDDLE_3, i, j] *= middle * s3


@parallel_loop()
def _set_up_block(block, phase, code, data, edges, mass, root, fine_root, scaled, weights):
    first = 1 + block * ROWS_PER_BLOCK
    for i in range(first, min(first + ROWS_PER_BLOCK, mass.shape[0] - 1)):
        if phase == _IMAGE:
            _image_system_row(code, data, i, edges, mass)
        elif phase == _DIAGONAL:
            _root_row(edges, mass, root, i)
        else:
            _scale_row(edges, root, fine_root, scaled, weights, i)


class MembraneCycle(multigrid.VCycle):
    """The preconditioner of the paper's system."""

    def __init__(self, hierarchy: MembraneHierarchy) -> None:
        super().__init__(hierarchy, ROWS_PER_BLOCK, _HALO)
        self._data = np.float32(hierarchy.data)

    def _smooth_and_restrict(self, depth: int, rhs: Float32Array, solution: Float32Array) -> None:
        coarse = self._hierarchy.levels[depth + 1].vectors[0]
        count = galerkin.coarse_block_count(coarse.shape[0] - 2)
        _smooth_and_restrict[count](rhs, *self._system(depth), solution, coarse)

    def _correct_and_smooth(self, depth: int, rhs: Float32Array, solution: Float32Array, halo: Float32Array) -> None:
        coarse = self._hierarchy.levels[depth + 1].vectors[1]
        count = block_count(rhs.shape[0] - 2)
        _correct_and_smooth[count](rhs, solution, halo, *self._system(depth), coarse, self._dots)

    def _system(self, depth: int) -> tuple[Any, ...]:
        """Arguments of the kernels that describe a level and the transfer to the next."""
        level, coarse = self._hierarchy.levels[depth : depth + 2]
        code = NO_CODE if depth else self._hierarchy.code
        return code, level.edges, self._data, coarse.prolongation


@inlined
def _image_product_row(x, above, row, below, code, data, i, out, k):
    """Compute row i of S x on the image; x must be zero wherever a pixel is not free."""
    for j in range(1, out.shape[1] - 1):
        p = x[row, j]
        value = ((p - x[above, j]) + (p - x[below, j])) + ((p - x[row, j - 1]) + (p - x[row, j + 1]))
        value += (data - np.float32(4 - (code[i, j] & DEGREE))) * p
        out[k, j] = value if code[i, j] >= FREE else np.float32(0)


@inlined
def _unit_diagonal_row(x, above, row, below, edges, i, out, k):
    """Compute row i of S x on a coarse level, whose diagonal is 1."""
    for j in range(1, out.shape[1] - 1):
        cross = edges[EAST, i, j] * x[row, j + 1] + edges[EAST, i, j - 1] * x[row, j - 1]
        cross += edges[SOUTH, i, j] * x[below, j] + edges[SOUTH, i - 1, j] * x[above, j]
        slant = edges[SOUTH_EAST, i, j] * x[below, j + 1] + edges[SOUTH_EAST, i - 1, j - 1] * x[above, j - 1]
        slant += edges[SOUTH_WEST, i, j] * x[below, j - 1] + edges[SOUTH_WEST, i - 1, j + 1] * x[above, j + 1]
        out[k, j] = x[row, j] - (cross + slant)


@called_by_kernels(fastmath=STENCIL)
def _apply_row(x, above, row, below, code, edges, data, i, out, k):
    """Compute row i of S x on the image (with its code) or on a coarse level (with its edges), as row k of `out`."""
    if code.shape[0] > 1:
        _image_product_row(x, above, row, below, code, data, i, out, k)
    else:
        _unit_diagonal_row(x, above, row, below, edges, i, out, k)


@called_by_kernels(fastmath=STENCIL)
def _coefficients(code, data):
    """Return linear and quadratic of the smoother M = linear I - quadratic S.

    The image, unlike the coarse levels, has no unit diagonal: its interior diagonal scales the coefficients.
    """
    scale = 1.0 / (4.0 + data) if code.shape[0] > 1 else 1.0
    return np.float32(_LINEAR * scale), np.float32(_QUADRATIC * scale * scale)


@called_by_kernels(fastmath=STENCIL)
def _smooth_row(linear, quadratic, b, i, applied, out, k):
    """Compute one row of M b from row i of b and a row of S b."""
    for j in range(b.shape[1]):
        out[k, j] = linear * b[i, j] - quadratic * applied[0, j]


@called_by_kernels(fastmath=STENCIL)
def _subtract_row(b, i, applied, out, k):
    """Compute a row of b - S x from a row of S x."""
    for j in range(b.shape[1]):
        out[k, j] = b[i, j] - applied[0, j]


@called_by_kernels(fastmath=SUM)
def _finish_row(linear, quadratic, y, residual, k, applied, b, i, out):
    """Compute row i of y + M r, and return its product with b."""
    total = 0.0
    for j in range(out.shape[1]):
        value = y[k, j] + (linear * residual[k, j] - quadratic * applied[0, j])
        out[i, j] = value
        total += np.float64(b[i, j]) * np.float64(value)
    return total


@called_by_kernels()
def _restrict_row(fine, above, row, below, code, data, weights, i, out):
    if code.shape[0] > 1:
        restrict_image_row(fine, above, row, below, code, data, weights, i, out)
    else:
        restrict_row(fine, above, row, below, weights, i, out)


@called_by_kernels()
def _add_prolongation_row(x, k, code, data, weights, coarse, i, out, row):
    if code.shape[0] > 1:
        add_to_image_row(x, k, code, data, weights, coarse, i, out, row)
    else:
        add_prolongation_row(x, k, weights, coarse, i, out, row)


@parallel_loop()
def _smooth_and_restrict(block, b, code, edges, data, weights, x, coarse):
    """Compute x = M b and the coarse right-hand side P^T (b - S x); a block owns whole coarse rows.

    The rows of the halo are computed again by the neighbouring block.
    """
    height, width = b.shape[0] - 2, b.shape[1]
    linear, quadratic = _coefficients(code, data)
    first = 1 + block * COARSE_ROWS
    last = min(first + COARSE_ROWS, coarse.shape[0] - 1)
    applied = np.zeros((1, width), np.float32)
    smooth = np.zeros((3, width), np.float32)
    residual = np.zeros((3, width), np.float32)
    for i in range(2 * first - 3, 2 * last):
        r0, r1, r2 = i % 3, (i - 1) % 3, (i - 2) % 3  # places in the rings of the rows i, i - 1 and i - 2
        if 1 <= i <= height:
            _apply_row(b, i - 1, i, i + 1, code, edges, data, i, applied, ONLY_ROW)
            _smooth_row(linear, quadratic, b, i, applied, smooth, r0)
            if 2 * first - 1 <= i < 2 * last - 1:
                copy_row(smooth, r0, x, i)
        else:
            zero_row(smooth, r0)
        k = i - 1  # the last row whose two neighbours have been smoothed
        if k < 2 * first - 2:
            continue
        if 1 <= k <= height:
            _apply_row(smooth, r2, r1, r0, code, edges, data, k, applied, ONLY_ROW)
            _subtract_row(b, k, applied, residual, r1)
        else:
            zero_row(residual, r1)
        if k % 2 == 0 and k >= 2 * first:
            _restrict_row(residual, r0, r2, r1, code, data, weights, k // 2, coarse)


@parallel_loop()
def _correct_and_smooth(block, b, x, halo, code, edges, data, weights, coarse, dots):
    """Overwrite x by y + M (b - S y) with y = x + P e, e the coarse solution; `dots` gets b . x."""
    height, width = b.shape[0] - 2, b.shape[1]
    linear, quadratic = _coefficients(code, data)
    first = 1 + block * ROWS_PER_BLOCK
    last = min(first + ROWS_PER_BLOCK, height + 1)
    applied = np.zeros((1, width), np.float32)
    corrected = np.zeros((3, width), np.float32)
    residual = np.zeros((3, width), np.float32)
    total = 0.0
    for i in range(first - 2, last + 2):
        r0, r1, r2 = i % 3, (i - 1) % 3, (i - 2) % 3
        if not 1 <= i <= height:
            zero_row(corrected, r0)
        elif first <= i < last:
            _add_prolongation_row(x, i, code, data, weights, coarse, i, corrected, r0)
        else:
            copied = halo_row(block, ROWS_PER_BLOCK, _HALO, height, i)
            _add_prolongation_row(halo, copied, code, data, weights, coarse, i, corrected, r0)
        k = i - 1  # the last row whose two neighbours have been corrected
        if k < first - 1:
            continue
        if 1 <= k <= height:
            _apply_row(corrected, r2, r1, r0, code, edges, data, k, applied, ONLY_ROW)
            _subtract_row(b, k, applied, residual, r1)
        else:
            zero_row(residual, r1)
        k -= 1  # the last row whose two neighbours have their residual
        if k < first:
            continue
        _apply_row(residual, r0, r2, r1, code, edges, data, k, applied, ONLY_ROW)
        total += _finish_row(linear, quadratic, corrected, residual, r2, applied, b, k, x)
    dots[block] = total
