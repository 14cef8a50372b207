"""One V-cycle on the membrane hierarchy, with Chebyshev's polynomial of degree two as the smoother.

See cycle.py for the course of the cycle, and membrane.py for the system S.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.jit import STENCIL, SUM, compiled
from leadline.core.solve.kernels import DEGREE, FREE, ROWS_PER_BLOCK, block_count, zero_row
from leadline.core.solve.multigrid.cycle import VCycle
from leadline.core.solve.multigrid.galerkin import COARSE_ROWS, coarse_block_count
from leadline.core.solve.multigrid.levels import NO_CODE, SERIAL_BELOW, Planes, copy_row, nine_point_row
from leadline.core.solve.multigrid.membrane import MembraneHierarchy
from leadline.core.solve.multigrid.transfers import add_prolongation_row, restrict_row

# Chebyshev's polynomial of degree two over the part of the spectrum of D^-1 S that the next level cannot represent,
# [1/2, 2] for a five-point stencil: it damps that part by 1 / T_2(5/3) = 0.22.
_THETA, _DELTA = 1.25, 0.75
_RHO_0 = _DELTA / _THETA
_RHO_1 = 1 / (2 / _RHO_0 - _RHO_0)
_LINEAR = (1 + _RHO_0 * _RHO_1) / _THETA + 2 * _RHO_1 / _DELTA
_QUADRATIC = 2 * _RHO_1 / (_DELTA * _THETA)


class MembraneCycle(VCycle):
    """The preconditioner of the paper's system."""

    def __init__(self, hierarchy: MembraneHierarchy) -> None:
        super().__init__(hierarchy, ROWS_PER_BLOCK)
        self._data = np.float32(hierarchy.data)

    def _visit(self, upward: bool, depth: int, vectors: tuple[NDArray[np.float32], ...] | Planes) -> None:
        level, coarse = self._hierarchy.levels[depth : depth + 2]
        rhs, smoothed, solution = vectors
        code = NO_CODE if depth else self._hierarchy.code
        count = block_count(rhs.shape[0] - 2) if upward else coarse_block_count(coarse.vectors.shape[1] - 2)
        run = _visit_parallel if rhs.size >= SERIAL_BELOW else _visit_serial
        run(
            upward, count, rhs, smoothed, code, level.edges, self._data,
            coarse.prolongation, coarse.vectors, solution, self._dots,
        )  # fmt: skip


@compiled(fastmath=STENCIL)
def _image_row(above, row, below, code, data, out):
    """Compute one row of S x on the image; x must be zero wherever a pixel is not free."""
    for j in range(1, row.size - 1):
        x = row[j]
        value = ((x - above[j]) + (x - below[j])) + ((x - row[j - 1]) + (x - row[j + 1]))
        value += (data - np.float32(4 - (code[j] & DEGREE))) * x
        out[j] = value if code[j] >= FREE else np.float32(0)


@compiled(fastmath=STENCIL)
def _apply_row(above, row, below, code, edges, data, i, out):
    """Compute row i of S x on the image (with its code) or on a coarse level (with its edges)."""
    if code.shape[0] > 1:
        _image_row(above, row, below, code[i], data, out)
    else:
        nine_point_row(above, row, below, edges, None, i, out)


@compiled(fastmath=STENCIL)
def _coefficients(code, data):
    """Return linear and quadratic of the smoother M = linear I - quadratic S.

    The image, unlike the coarse levels, has no unit diagonal: its interior diagonal scales the coefficients.
    """
    scale = 1.0 / (4.0 + data) if code.shape[0] > 1 else 1.0
    return np.float32(_LINEAR * scale), np.float32(_QUADRATIC * scale * scale)


@compiled(fastmath=STENCIL)
def _smooth_row(linear, quadratic, row, applied, out):
    """Compute one row of M b from one row of b and of S b."""
    for j in range(row.size):
        out[j] = linear * row[j] - quadratic * applied[j]


@compiled(fastmath=STENCIL)
def _residual_row(b, x, code, edges, data, i, applied, out):
    """Compute row i of b - S x, with x in a ring buffer of three rows."""
    _apply_row(x[(i - 1) % 3], x[i % 3], x[(i + 1) % 3], code, edges, data, i, applied)
    for j in range(out.size):
        out[j] = b[i, j] - applied[j]


@compiled(fastmath=SUM)
def _finish_row(linear, quadratic, y, residual, applied, b, out):
    """Compute one row of y + M r, and return its product with b."""
    total = 0.0
    for j in range(out.size):
        value = y[j] + (linear * residual[j] - quadratic * applied[j])
        out[j] = value
        total += np.float64(b[j]) * np.float64(value)
    return total


@compiled()
def _smooth_and_restrict_block(block, b, code, edges, data, weights, x, coarse):
    """Compute x = M b and the coarse right-hand side P^T (b - S x); a block owns whole coarse rows.

    The rows of the halo are computed again by the neighbouring block.
    """
    height, width = b.shape[0] - 2, b.shape[1]
    linear, quadratic = _coefficients(code, data)
    first = 1 + block * COARSE_ROWS
    last = min(first + COARSE_ROWS, coarse.shape[0] - 1)
    applied = np.zeros(width, np.float32)
    smooth = np.zeros((3, width), np.float32)
    residual = np.zeros((3, width), np.float32)
    for i in range(2 * first - 3, 2 * last):
        row = smooth[i % 3]
        if 1 <= i <= height:
            _apply_row(b[i - 1], b[i], b[i + 1], code, edges, data, i, applied)
            _smooth_row(linear, quadratic, b[i], applied, row)
            if 2 * first - 1 <= i < 2 * last - 1:
                copy_row(row, x[i])
        else:
            zero_row(row)
        k = i - 1  # the last row whose two neighbours have been smoothed
        if k < 2 * first - 2:
            continue
        row = residual[k % 3]
        if 1 <= k <= height:
            _residual_row(b, smooth, code, edges, data, k, applied, row)
        else:
            zero_row(row)
        if k % 2 == 0 and k >= 2 * first:
            restrict_row(residual[(k - 2) % 3], residual[(k - 1) % 3], row, weights, k // 2, coarse[k // 2])


@compiled()
def _correct_and_smooth_block(block, b, x, code, edges, data, weights, coarse, out):
    """Compute out = y + M (b - S y) with y = x + P e, e the coarse solution; return the product of b and out."""
    height, width = b.shape[0] - 2, b.shape[1]
    linear, quadratic = _coefficients(code, data)
    first = 1 + block * ROWS_PER_BLOCK
    last = min(first + ROWS_PER_BLOCK, height + 1)
    applied = np.zeros(width, np.float32)
    corrected = np.zeros((3, width), np.float32)
    residual = np.zeros((3, width), np.float32)
    total = 0.0
    for i in range(first - 2, last + 2):
        if 1 <= i <= height:
            add_prolongation_row(x[i], weights, coarse, i, corrected[i % 3])
        else:
            zero_row(corrected[i % 3])
        k = i - 1  # the last row whose two neighbours have been corrected
        if k < first - 1:
            continue
        if 1 <= k <= height:
            _residual_row(b, corrected, code, edges, data, k, applied, residual[k % 3])
        else:
            zero_row(residual[k % 3])
        k -= 1  # the last row whose two neighbours have their residual
        if k < first:
            continue
        above, row, below = residual[(k - 1) % 3], residual[k % 3], residual[(k + 1) % 3]
        _apply_row(above, row, below, code, edges, data, k, applied)
        total += _finish_row(linear, quadratic, corrected[k % 3], row, applied, b[k], out[k])
    return total


@compiled()
def _visit_block(upward, block, b, x, code, edges, data, weights, coarse, out, dots):
    if upward:
        dots[block] = _correct_and_smooth_block(block, b, x, code, edges, data, weights, coarse[2], out)
    else:
        _smooth_and_restrict_block(block, b, code, edges, data, weights, x, coarse[0])


# One parallel loop serves both directions, because each parallel loop costs most of a second to compile.
@compiled(parallel=True)
def _visit_parallel(upward, count, b, x, code, edges, data, weights, coarse, out, dots):
    for block in prange(count):
        _visit_block(upward, np.int64(block), b, x, code, edges, data, weights, coarse, out, dots)


@compiled()
def _visit_serial(upward, count, b, x, code, edges, data, weights, coarse, out, dots):
    for block in range(count):
        _visit_block(upward, block, b, x, code, edges, data, weights, coarse, out, dots)
