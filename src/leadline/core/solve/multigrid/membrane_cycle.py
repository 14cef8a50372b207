"""One V-cycle of the multigrid hierarchy: z = B r, with B a symmetric approximation of S^-1.

Down: smooth from zero, take the residual, carry it to the next level. Up: add the coarse correction,
smooth again. The smoother is a polynomial of degree two in the operator, the same before and after,
which keeps B symmetric, as conjugate gradients require. Each half of a level is a single pass over
memory: the rows in flight (smoothed, residual) live in small rings.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.jit import STENCIL, SUM, compiled
from leadline.core.solve.kernels import DEGREE, FREE, ROWS, blocks, clear
from leadline.core.solve.multigrid.membrane import (  # fmt: skip
    BLOCK,
    CENTRE,
    LEFT_0,
    LEFT_2,
    MID_0,
    MID_1,
    MID_2,
    MID_3,
    SERIAL,
    TOP_0,
    TOP_1,
    Hierarchy,
    build,
)

# Chebyshev's polynomial of degree two over the part of the spectrum of D^-1 S that the next level cannot
# represent, [1/2, 2] for a five-point stencil: it damps that part by 1 / T_2(5/3) = 0.22.
_THETA, _DELTA = 1.25, 0.75
_RHO_0 = _DELTA / _THETA
_RHO_1 = 1 / (2 / _RHO_0 - _RHO_0)
_LINEAR = (1 + _RHO_0 * _RHO_1) / _THETA + 2 * _RHO_1 / _DELTA
_QUADRATIC = 2 * _RHO_1 / (_DELTA * _THETA)


class VCycle:
    """Callable z = B r on padded float32 arrays; returns z, owned by this object, and r . z."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy
        shape = hierarchy.code.shape
        self._smoothed = np.zeros(shape, np.float32)
        self._result = np.zeros(shape, np.float32)
        self._dots = np.zeros(blocks(shape[0] - 2))
        self.scratch = self._smoothed  # of no meaning between two cycles

    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        levels = self.hierarchy.levels
        for depth in range(len(levels)):
            self._half(False, depth, r)
        right, _, solution = levels[-1].vectors
        np.dot(self.hierarchy.inverse, right.ravel(), out=solution.ravel())
        for depth in reversed(range(len(levels))):
            self._half(True, depth, r)
        return self._result, float(self._dots.sum())

    def relax(self) -> bool:
        return False

    def _half(self, up: bool, depth: int, r: NDArray[np.float32]) -> None:
        """Between the level `depth`, 0 being the image, and the one below it."""
        below = self.hierarchy.levels[depth]
        if depth == 0:
            b, x, out, code, operator = r, self._smoothed, self._result, self.hierarchy.code, _NO_OPERATOR
        else:
            here = self.hierarchy.levels[depth - 1]
            b, x, out, code, operator = *here.vectors, NO_CODE, here.operator
        count = blocks(b.shape[0] - 2) if up else (below.operator.shape[1] - 3) // BLOCK + 1
        run = _half_parallel if b.size >= SERIAL else _half_serial
        data = np.float32(self.hierarchy.data)
        run(up, count, b, x, code, operator, data, below.transfer, below.vectors, out, self._dots)


def warm_up() -> None:
    """Compile, or load from the cache, the set-up and the cycle, for images small and large."""
    for height, width in ((20, 20), (240, 200)):
        code = np.zeros((height + 2, width + 2), np.uint8)
        code[1:-1, 1:-1] = FREE + 4
        VCycle(build(code, 1e-3))(np.zeros(code.shape, np.float32))


_NO_OPERATOR = np.zeros((4, 1, 1), np.float32)
NO_CODE = np.zeros((1, 1), np.uint8)


@compiled(fastmath=STENCIL)
def _fine_row(above, row, below, code, data, out):
    """S x on one row of the finest level; x is zero wherever a pixel is not free."""
    for j in range(1, row.size - 1):
        x = row[j]
        value = ((x - above[j]) + (x - below[j])) + ((x - row[j - 1]) + (x - row[j + 1]))
        value += (data - np.float32(4 - (code[j] & DEGREE))) * x
        out[j] = value if code[j] >= FREE else np.float32(0)


@compiled(fastmath=STENCIL)
def _coarse_row(above, row, below, operator, i, out):
    """S x on one row of a coarse level of unit diagonal."""
    east, south, south_east, south_west = operator[0, i], operator[1, i], operator[2, i], operator[3, i]
    north, north_west, north_east = operator[1, i - 1], operator[2, i - 1], operator[3, i - 1]
    for j in range(1, row.size - 1):
        cross = (east[j] * row[j + 1] + east[j - 1] * row[j - 1]) + (south[j] * below[j] + north[j] * above[j])
        slant = south_east[j] * below[j + 1] + north_west[j - 1] * above[j - 1]
        slant += south_west[j] * below[j - 1] + north_east[j + 1] * above[j + 1]
        out[j] = row[j] - (cross + slant)


@compiled(fastmath=STENCIL)
def _apply_row(above, row, below, code, operator, data, i, out):
    if code.shape[0] > 1:
        _fine_row(above, row, below, code[i], data, out)
    else:
        _coarse_row(above, row, below, operator, i, out)


@compiled(fastmath=STENCIL)
def _coefficients(code, data):
    """Of the smoother M = linear I - quadratic S. The finest level is scaled by its interior diagonal."""
    scale = 1.0 / (4.0 + data) if code.shape[0] > 1 else 1.0
    return np.float32(_LINEAR * scale), np.float32(_QUADRATIC * scale * scale)


@compiled()
def copy_row(row, out):
    for j in range(row.size):
        out[j] = row[j]


@compiled(fastmath=STENCIL)
def _smooth_row(linear, quadratic, row, applied, out):
    for j in range(row.size):
        out[j] = linear * row[j] - quadratic * applied[j]


@compiled(fastmath=STENCIL)
def restrict_row(above, row, below, transfer, i, out):
    """One coarse row of P^T r, from the three fine rows around it."""
    centre, top_0, top_1 = transfer[CENTRE, i], transfer[TOP_0, i], transfer[TOP_1, i]
    left_0, left_2 = transfer[LEFT_0, i], transfer[LEFT_2, i - 1]
    mid_0, mid_1 = transfer[MID_0, i], transfer[MID_1, i]
    mid_2, mid_3 = transfer[MID_2, i - 1], transfer[MID_3, i - 1]
    for j in range(1, out.size - 1):
        m = 2 * j - 1
        value = centre[j] * row[m] + (top_0[j] * row[m + 1] + top_1[j - 1] * row[m - 1])
        value += left_0[j] * below[m] + (mid_0[j] * below[m + 1] + mid_1[j - 1] * below[m - 1])
        value += left_2[j] * above[m] + (mid_2[j] * above[m + 1] + mid_3[j - 1] * above[m - 1])
        out[j] = value


@compiled(fastmath=STENCIL)
def correct_row(row, transfer, coarse, i, out):
    """One fine row of x + P e."""
    k = (i + 1) // 2
    e = coarse[k]
    if i % 2 == 1:
        centre, top_0, top_1 = transfer[CENTRE, k], transfer[TOP_0, k], transfer[TOP_1, k]
        for j in range(1, e.size - 1):
            m = 2 * j - 1
            out[m] = row[m] + centre[j] * e[j]
            out[m + 1] = row[m + 1] + (top_0[j] * e[j] + top_1[j] * e[j + 1])
    else:
        below = coarse[k + 1]
        left_0, left_2 = transfer[LEFT_0, k], transfer[LEFT_2, k]
        mid_0, mid_1, mid_2, mid_3 = transfer[MID_0, k], transfer[MID_1, k], transfer[MID_2, k], transfer[MID_3, k]
        for j in range(1, e.size - 1):
            m = 2 * j - 1
            out[m] = row[m] + (left_0[j] * e[j] + left_2[j] * below[j])
            middle = (mid_0[j] * e[j] + mid_1[j] * e[j + 1]) + (mid_2[j] * below[j] + mid_3[j] * below[j + 1])
            out[m + 1] = row[m + 1] + middle


@compiled(fastmath=STENCIL)
def _residual_row(b, x, code, operator, data, i, applied, out):
    """Row i of b - S x, with x a ring of three rows."""
    _apply_row(x[(i - 1) % 3], x[i % 3], x[(i + 1) % 3], code, operator, data, i, applied)
    for j in range(out.size):
        out[j] = b[i, j] - applied[j]


@compiled(fastmath=SUM)
def _finish_row(linear, quadratic, y, residual, applied, b, out):
    total = 0.0
    for j in range(out.size):
        value = y[j] + (linear * residual[j] - quadratic * applied[j])
        out[j] = value
        total += np.float64(b[j]) * np.float64(value)
    return total


@compiled()
def _down_block(block, b, code, operator, data, transfer, x, coarse):
    """A block owns whole coarse rows and recomputes its halo."""
    height, width = b.shape[0] - 2, b.shape[1]
    linear, quadratic = _coefficients(code, data)
    first = 1 + block * BLOCK
    last = min(first + BLOCK, coarse.shape[0] - 1)
    applied = np.zeros(width, np.float32)
    smooth = np.zeros((3, width), np.float32)
    residual = np.zeros((3, width), np.float32)
    for i in range(2 * first - 3, 2 * last):
        row = smooth[i % 3]
        if 1 <= i <= height:
            _apply_row(b[i - 1], b[i], b[i + 1], code, operator, data, i, applied)
            _smooth_row(linear, quadratic, b[i], applied, row)
            if 2 * first - 1 <= i < 2 * last - 1:
                copy_row(row, x[i])
        else:
            clear(row)
        k = i - 1  # the row whose two neighbours are now smoothed
        if k < 2 * first - 2:
            continue
        row = residual[k % 3]
        if 1 <= k <= height:
            _residual_row(b, smooth, code, operator, data, k, applied, row)
        else:
            clear(row)
        if k % 2 == 0 and k >= 2 * first:
            restrict_row(residual[(k - 2) % 3], residual[(k - 1) % 3], row, transfer, k // 2, coarse[k // 2])


@compiled()
def _up_block(block, b, x, code, operator, data, transfer, coarse, out):
    height, width = b.shape[0] - 2, b.shape[1]
    linear, quadratic = _coefficients(code, data)
    first = 1 + block * ROWS
    last = min(first + ROWS, height + 1)
    applied = np.zeros(width, np.float32)
    corrected = np.zeros((3, width), np.float32)
    residual = np.zeros((3, width), np.float32)
    total = 0.0
    for i in range(first - 2, last + 2):
        if 1 <= i <= height:
            correct_row(x[i], transfer, coarse, i, corrected[i % 3])
        else:
            clear(corrected[i % 3])
        k = i - 1  # the row whose two neighbours are now corrected
        if k < first - 1:
            continue
        if 1 <= k <= height:
            _residual_row(b, corrected, code, operator, data, k, applied, residual[k % 3])
        else:
            clear(residual[k % 3])
        k -= 1  # the row whose two neighbours now have their residual
        if k < first:
            continue
        above, row, below = residual[(k - 1) % 3], residual[k % 3], residual[(k + 1) % 3]
        _apply_row(above, row, below, code, operator, data, k, applied)
        total += _finish_row(linear, quadratic, corrected[k % 3], row, applied, b[k], out[k])
    return total


@compiled()
def _half_block(up, block, b, x, code, operator, data, transfer, coarse, out, dots):
    """Half a level, one block of it.

    Down: x = M b, and the coarse right-hand side P^T (b - S x). Up: out = y + M (b - S y) with
    y = x + P e, e the coarse solution, and the sum of b out over the block in `dots`.
    """
    if up:
        dots[block] = _up_block(block, b, x, code, operator, data, transfer, coarse[2], out)
    else:
        _down_block(block, b, code, operator, data, transfer, x, coarse[0])


@compiled(parallel=True)
def _half_parallel(up, count, b, x, code, operator, data, transfer, coarse, out, dots):
    # One parallel loop serves both halves, as each costs most of a second to compile.
    for block in prange(count):
        _half_block(up, np.int64(block), b, x, code, operator, data, transfer, coarse, out, dots)


@compiled()
def _half_serial(up, count, b, x, code, operator, data, transfer, coarse, out, dots):
    for block in range(count):
        _half_block(up, block, b, x, code, operator, data, transfer, coarse, out, dots)
