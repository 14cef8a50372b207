"""One V-cycle on the thin-plate hierarchy, with a polynomial in A as the smoother of Q = A + N + A K A.

`VCycle` describes the steps of the cycle, and thin_plate.py the system Q.

A Chebyshev polynomial in Q would need degree four to damp what the next level cannot represent, since squaring A
squares the ratio of its eigenvalues; that is six products with A. A polynomial in A itself does as well with two
products. Let d be at least the row sum of |A|, so that the eigenvalues y of A / d lie between 0 and 1, and b = K d.
The polynomial is

    p(y) = c ((m - y)^2 + e),    m = 0.89,    c = C u,    e = E_0 + E_1 u + E_5 u^5,    u = 1 / (1 + b / B),

which is within 40 % of 1 / (b y^2 + y) on [1/5, 1] for every b: large b is a thin plate, small b (u near 1) a membrane.
Where b varies between pixels, the smoother is a sum of squares, which stays symmetric and positive definite:

    M = (m - A/d)^T c/d (m - A/d) + c e/d.

Masses reduce its step 1 / d; see `_step_row` in thin_plate.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from leadline.base.arrays import Float32Array
from leadline.base.jit import STENCIL, SUM, called_by_kernels, inlined, parallel_loop
from leadline.core.solve.galerkin import add_prolongation_row, halo_row, restrict_row
from leadline.core.solve.kernels import (
    EAST,
    FREE,
    ONLY_ROW,
    SOUTH,
    SOUTH_EAST,
    SOUTH_WEST,
    weighted_laplacian_row,
    zero_row,
)
from leadline.core.solve.multigrid import NO_CODE, NO_MAP, VCycle, copy_row
from leadline.core.solve.thin_plate import ThinPlateHierarchy

# Constants of the polynomial, fitted to the best polynomials over b. C is 0.85 of the fitted value, so that the
# smoother still converges at measurements and at steps of the edge weights, where A K A exceeds the square it is
# modelled by.
_M = np.float32(0.89)
_C, _B = np.float32(6.2), np.float32(4.5)
_E_0, _E_1, _E_5 = np.float32(0.03), np.float32(0.024), np.float32(0.096)
_TINY = np.float32(1e-30)  # avoids 0 / 0 at a pixel that has neither a step nor bending
_SMALLEST_DAMPING_FACTOR = 0.1  # even smaller steps would not make the cycle positive definite
# Rows that one thread processes at a time. With four rows of halo on either side, more are needed than for a membrane.
_BLOCK_ROWS = 64
_HALO = 4  # rows that a block reads on either side on the way up


class ThinPlateCycle(VCycle):
    """The preconditioner of the general system.

    `damping_factor` scales the steps of the smoother. With extreme edge weights no bound on Q prevents the smoother
    from overshooting; `increase_damping` then halves the factor.
    """

    def __init__(self, hierarchy: ThinPlateHierarchy) -> None:
        super().__init__(hierarchy, _BLOCK_ROWS, _HALO)
        self._levels = hierarchy.levels
        self.damping_factor = 1.0

    def increase_damping(self) -> bool:
        self.damping_factor /= 2
        return self.damping_factor > _SMALLEST_DAMPING_FACTOR

    def _smooth_and_restrict(self, depth: int, rhs: Float32Array, solution: Float32Array) -> None:
        coarse = self._levels[depth + 1].vectors[0]
        # A block of rows is also a whole block of half as many rows on the coarse level.
        blocks = self._block_count(rhs)
        _visit[blocks](True, rhs, solution, NO_MAP, NO_CODE, *self._system(depth), coarse, self._dots)

    def _correct_and_smooth(self, depth: int, rhs: Float32Array, solution: Float32Array, halo: Float32Array) -> None:
        coarse = self._levels[depth + 1].vectors[1]
        code, blocks = NO_CODE if depth else self._hierarchy.code, self._block_count(rhs)
        _visit[blocks](False, rhs, solution, halo, code, *self._system(depth), coarse, self._dots)

    def _block_count(self, rhs: Float32Array) -> int:
        return (len(rhs) - 3) // _BLOCK_ROWS + 1

    def _system(self, depth: int) -> tuple[Any, ...]:
        """Arguments of the kernels that describe a level and the transfer to the next."""
        level, coarse = self._levels[depth : depth + 2]
        damping = np.float32(self.damping_factor)
        return level.edges, level.mass, level.bending, level.step, damping, coarse.prolongation


@called_by_kernels(fastmath=STENCIL)
def _scale_row(x, i, factor, j, out, k):
    """Compute the product of row i of `x` and row j of `factor` as row k of `out`."""
    for m in range(out.shape[1]):
        out[k, m] = factor[j, m] * x[i, m]


@inlined
def _nine_point_row(x, above, row, below, edges, i, out, k):
    """Compute row i of A x on a coarse level as row k of `out`; the other rows are numbers of rows in `x`."""
    for j in range(1, out.shape[1] - 1):
        p = x[row, j]
        cross = edges[EAST, i, j] * (p - x[row, j + 1]) + edges[EAST, i, j - 1] * (p - x[row, j - 1])
        cross += edges[SOUTH, i, j] * (p - x[below, j]) + edges[SOUTH, i - 1, j] * (p - x[above, j])
        slant = edges[SOUTH_EAST, i, j] * (p - x[below, j + 1])
        slant += edges[SOUTH_EAST, i - 1, j - 1] * (p - x[above, j - 1])
        slant += edges[SOUTH_WEST, i, j] * (p - x[below, j - 1])
        slant += edges[SOUTH_WEST, i - 1, j + 1] * (p - x[above, j + 1])
        out[k, j] = cross + slant


@called_by_kernels(fastmath=STENCIL)
def _apply_row(x, above, row, below, edges, i, out, k):
    """Compute row i of A x, on the image (five-point stencil) or on a coarse level (nine-point stencil), as row k."""
    if edges.shape[0] == 2:
        weighted_laplacian_row(x, above, row, below, edges, i, out, k)
    else:
        _nine_point_row(x, above, row, below, edges, i, out, k)


@called_by_kernels(fastmath=STENCIL)
def _inner_row(b, row, applied, step, bending, i, damping, membrane, inner, k):
    """Compute v = c/d (m b - A (b / d)), and u, which `_outer_row` needs again, in `membrane`."""
    stiffness = i if bending.shape[0] > 1 else 0
    for j in range(b.shape[1]):
        u = _B * step[i, j] / (_B * step[i, j] + (bending[stiffness, j] + _TINY))
        membrane[k, j] = u
        inner[k, j] = damping * _C * u * step[i, j] * (_M * b[row, j] - applied[0, j])


@called_by_kernels(fastmath=STENCIL)
def _outer_row(b, row, inner, membrane, k, applied, step, i, damping, out, n):
    """Compute M b = m v - A v / d + c e/d b, with v from `_inner_row`."""
    for j in range(b.shape[1]):
        u = membrane[k, j]
        square = u * u
        e = _E_0 + u * (_E_1 + _E_5 * (square * square))
        out[n, j] = (_M * inner[k, j] - step[i, j] * applied[0, j]) + damping * _C * u * step[i, j] * e * b[row, j]


@called_by_kernels(fastmath=STENCIL)
def _residual_row(b, i, x, row, tension, bent, mass, out, k):
    """Compute row i of b - Q x from `tension`, a row of A x, and `bent`, a row of A K A x."""
    for j in range(b.shape[1]):
        out[k, j] = b[i, j] - ((tension[k, j] + mass[i, j] * x[row, j]) + bent[0, j])


@called_by_kernels(fastmath=SUM)
def _finish_row(x, row, b, code, i, out):
    """Add a row of x to row i of `out` and return its product with b; on the image, pixels that are not free are 0."""
    total = 0.0
    if code.shape[0] > 1:
        for j in range(out.shape[1]):
            out[i, j] = out[i, j] + x[row, j] if code[i, j] >= FREE else np.float32(0)
            total += np.float64(b[i, j]) * np.float64(out[i, j])
    else:
        for j in range(out.shape[1]):
            out[i, j] += x[row, j]
            total += np.float64(b[i, j]) * np.float64(out[i, j])
    return total


@called_by_kernels()
def _corrected_row(x, halo, block, weights, coarse, i, out, row):
    """Compute row i of x + P e for a block of rows that overwrites x, as a row of `out`; zero outside of the image.

    Beyond the block, rows of x may be overwritten already. The halo holds copies of them (`VCycle`).
    """
    height = x.shape[0] - 2
    first = 1 + block * _BLOCK_ROWS
    if i < 1 or i > height:
        zero_row(out, row)
    elif first <= i < first + _BLOCK_ROWS:
        add_prolongation_row(x, i, weights, coarse, i, out, row)
    else:
        add_prolongation_row(halo, halo_row(block, _BLOCK_ROWS, _HALO, height, i), weights, coarse, i, out, row)


@parallel_loop()
def _visit(block, down, b, x, halo, code, edges, mass, bending, step, damping, weights, coarse, dots):
    """Visit a level on the way down or up. One kernel has both, because they share most of what is compiled."""
    if down:
        _smooth_and_restrict(block, b, x, edges, mass, bending, step, damping, weights, coarse)
    else:
        _correct_and_smooth(block, b, x, halo, code, edges, mass, bending, step, damping, weights, coarse, dots)


@called_by_kernels()
def _smooth_and_restrict(block, b, x, edges, mass, bending, step, damping, weights, coarse):
    """Compute x = M b and the coarse right-hand side P^T (b - Q x); a block owns whole coarse rows.

    The stages b/d, v, x, A x and residual each follow one row behind the stage before, in ring buffers of three rows.
    The rows of the halo are computed again by the neighbouring block.
    """
    height, width = b.shape[0] - 2, b.shape[1]
    first = 1 + block * (_BLOCK_ROWS // 2)
    last = min(first + _BLOCK_ROWS // 2, coarse.shape[0] - 1)
    applied = np.zeros((1, width), np.float32)
    rings = np.zeros((7, 3, width), np.float32)
    scaled, membrane, inner, smooth = rings[0], rings[1], rings[2], rings[3]
    tension, moment, residual = rings[4], rings[5], rings[6]
    start = 2 * first - 6
    for i in range(start, 2 * last + 3):
        # Places in the rings of the rows i, i - 1 and i - 2, and with them of i - 3, i - 4 and i - 5.
        r0, r1, r2 = i % 3, (i - 1) % 3, (i - 2) % 3
        if 1 <= i <= height:
            _scale_row(b, i, step, i, scaled, r0)
        else:
            zero_row(scaled, r0)
        k = i - 1
        if k > start:
            if 1 <= k <= height:
                _apply_row(scaled, r2, r1, r0, edges, k, applied, ONLY_ROW)
                _inner_row(b, k, applied, step, bending, k, damping, membrane, inner, r1)
            else:
                zero_row(inner, r1)
        k = i - 2
        if k > start + 1:
            if 1 <= k <= height:
                _apply_row(inner, r0, r2, r1, edges, k, applied, ONLY_ROW)
                _outer_row(b, k, inner, membrane, r2, applied, step, k, damping, smooth, r2)
                if 2 * first - 1 <= k < 2 * last - 1:
                    copy_row(smooth, r2, x, k)
            else:
                zero_row(smooth, r2)
        k = i - 3
        if k > start + 2:
            if 1 <= k <= height:
                _apply_row(smooth, r1, r0, r2, edges, k, tension, r0)
                _scale_row(tension, r0, bending, k if bending.shape[0] > 1 else 0, moment, r0)
            else:
                zero_row(moment, r0)
        k = i - 4
        if k > start + 3:
            if 1 <= k <= height:
                _apply_row(moment, r2, r1, r0, edges, k, applied, ONLY_ROW)
                _residual_row(b, k, smooth, r1, tension, applied, mass, residual, r1)
            else:
                zero_row(residual, r1)
            if k % 2 == 0 and k >= 2 * first:
                restrict_row(residual, r0, r2, r1, weights, k // 2, coarse)


@called_by_kernels()
def _correct_and_smooth(block, b, x, halo, code, edges, mass, bending, step, damping, weights, coarse, dots):
    """Overwrite x by y + M (b - Q y) with y = x + P e, e the coarse solution; `dots` gets b . x.

    The stages y, A y, residual r and r/d, v, and y + M r each follow one row behind the stage before.
    """
    height, width = b.shape[0] - 2, b.shape[1]
    first = 1 + block * _BLOCK_ROWS
    last = min(first + _BLOCK_ROWS, height + 1)
    applied = np.zeros((1, width), np.float32)
    corrected = np.zeros((6, width), np.float32)  # five rows are in use at a time
    rings = np.zeros((6, 3, width), np.float32)
    tension, moment, residual = rings[0], rings[1], rings[2]
    scaled, membrane, inner = rings[3], rings[4], rings[5]
    total = 0.0
    for i in range(first - _HALO, last + _HALO):
        r0, r1, r2 = i % 3, (i - 1) % 3, (i - 2) % 3
        c0, c1, c2, c4 = i % 6, (i - 1) % 6, (i - 2) % 6, (i - 4) % 6
        _corrected_row(x, halo, block, weights, coarse, i, corrected, c0)
        k = i - 1
        if k > first - 4:
            if 1 <= k <= height:
                _apply_row(corrected, c2, c1, c0, edges, k, tension, r1)
                _scale_row(tension, r1, bending, k if bending.shape[0] > 1 else 0, moment, r1)
            else:
                zero_row(moment, r1)
        k = i - 2
        if k > first - 3:
            if 1 <= k <= height:
                _apply_row(moment, r0, r2, r1, edges, k, applied, ONLY_ROW)
                _residual_row(b, k, corrected, c2, tension, applied, mass, residual, r2)
                _scale_row(residual, r2, step, k, scaled, r2)
            else:
                zero_row(scaled, r2)
        k = i - 3
        if k > first - 2:
            if 1 <= k <= height:
                _apply_row(scaled, r1, r0, r2, edges, k, applied, ONLY_ROW)
                _inner_row(residual, r0, applied, step, bending, k, damping, membrane, inner, r0)
            else:
                zero_row(inner, r0)
        k = i - 4
        if k > first - 1:
            _apply_row(inner, r2, r1, r0, edges, k, applied, ONLY_ROW)
            _outer_row(residual, r1, inner, membrane, r1, applied, step, k, damping, x, k)
            total += _finish_row(corrected, c4, b, code, k, x)
    dots[block] = total
