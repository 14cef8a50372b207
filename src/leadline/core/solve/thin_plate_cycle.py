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

import numpy as np
from numba import prange

from leadline.base.arrays import Float32Array
from leadline.base.jit import STENCIL, SUM, compiled
from leadline.core.solve.galerkin import add_prolongation_row, restrict_row
from leadline.core.solve.kernels import FREE, weighted_laplacian_row, zero_row
from leadline.core.solve.multigrid import NO_CODE, SERIAL_BELOW, Planes, VCycle, copy_row, nine_point_row
from leadline.core.solve.thin_plate import DIAGONAL, ThinPlateHierarchy

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


class ThinPlateCycle(VCycle):
    """The preconditioner of the general system.

    `damping_factor` scales the steps of the smoother. With extreme edge weights no bound on Q prevents the smoother
    from overshooting; `increase_damping` then halves the factor.
    """

    def __init__(self, hierarchy: ThinPlateHierarchy) -> None:
        super().__init__(hierarchy, _BLOCK_ROWS)
        self._levels = hierarchy.levels
        self.damping_factor = 1.0

    def increase_damping(self) -> bool:
        self.damping_factor /= 2
        return self.damping_factor > _SMALLEST_DAMPING_FACTOR

    def _visit(self, upward: bool, depth: int, vectors: tuple[Float32Array, ...] | Planes) -> None:
        level, coarse = self._levels[depth : depth + 2]
        rhs, smoothed, solution = vectors
        code = NO_CODE if depth else self._hierarchy.code
        # A block of rows is also a whole block of half as many rows on the coarse level.
        count = (rhs.shape[0] - 3) // _BLOCK_ROWS + 1
        run = _visit_parallel if rhs.size >= SERIAL_BELOW else _visit_serial
        run(
            upward, count, rhs, smoothed, code, level.edges, level.mass, level.bending, level.step,
            np.float32(self.damping_factor), coarse.prolongation, coarse.vectors, solution, self._dots,
        )  # fmt: skip


@compiled(fastmath=STENCIL)
def _scale_row(b, step, out):
    for j in range(b.size):
        out[j] = step[j] * b[j]


@compiled(fastmath=STENCIL)
def _apply_row(above, row, below, edges, i, out):
    """Compute row i of A x, on the image (five-point stencil) or on a coarse level (nine-point stencil)."""
    if edges.shape[0] == 2:
        weighted_laplacian_row(above, row, below, edges, i, out)
    else:
        nine_point_row(above, row, below, edges, edges[DIAGONAL, i], i, out)


@compiled(fastmath=STENCIL)
def _inner_row(b, applied, step, bending, damping, membrane, out):
    """Compute v = c/d (m b - A (b / d)), and u, which `_outer_row` needs again, in `membrane`."""
    for j in range(b.size):
        u = _B * step[j] / (_B * step[j] + (bending[j] + _TINY))
        membrane[j] = u
        out[j] = damping * _C * u * step[j] * (_M * b[j] - applied[j])


@compiled(fastmath=STENCIL)
def _outer_row(base, b, inner, applied, step, damping, membrane, out):
    """Compute base + M b = base + m v - A v / d + c e/d b, with v from `_inner_row`."""
    for j in range(b.size):
        u = membrane[j]
        square = u * u
        e = _E_0 + u * (_E_1 + _E_5 * (square * square))
        smoothed = (_M * inner[j] - step[j] * applied[j]) + damping * _C * u * step[j] * e * b[j]
        out[j] = base[j] + smoothed


@compiled(fastmath=STENCIL)
def _residual_row(b, x, tension, bent, mass, out):
    """Compute one row of b - Q x from `tension`, a row of A x, and `bent`, a row of A K A x."""
    for j in range(b.size):
        out[j] = b[j] - ((tension[j] + mass[j] * x[j]) + bent[j])


@compiled(fastmath=SUM)
def _masked_dot(b, code, i, out):
    """Return the sum of b out over row i; on the image, pixels of `out` that are not free are set to zero first."""
    total = 0.0
    if code.shape[0] > 1:
        row = code[i]
        for j in range(out.size):
            out[j] = out[j] if row[j] >= FREE else np.float32(0)
    for j in range(out.size):
        total += np.float64(b[j]) * np.float64(out[j])
    return total


@compiled()
def _stress_row(x, edges, bending, i, tension, moment):
    """Compute row i of A x (`tension`) and of K A x (`moment`) from a ring buffer of three or more rows of x."""
    n = x.shape[0]
    _apply_row(x[(i - 1) % n], x[i % n], x[(i + 1) % n], edges, i, tension)
    _scale_row(tension, bending, moment)


@compiled()
def _smooth_and_restrict_block(block, b, edges, mass, bending, step, damping, weights, x, coarse):
    """Compute x = M b and the coarse right-hand side P^T (b - Q x); a block owns whole coarse rows.

    The stages b/d, v, x, A x and residual each follow one row behind the stage before. The rows of the halo are
    computed again by the neighbouring block.
    """
    height, width = b.shape[0] - 2, b.shape[1]
    varies = bending.shape[0] > 1
    first = 1 + block * (_BLOCK_ROWS // 2)
    last = min(first + _BLOCK_ROWS // 2, coarse.shape[0] - 1)
    applied, nothing = np.zeros(width, np.float32), np.zeros(width, np.float32)
    rings = np.zeros((7, 3, width), np.float32)
    scaled, membrane, inner, smooth = rings[0], rings[1], rings[2], rings[3]
    tension, moment, residual = rings[4], rings[5], rings[6]
    start = 2 * first - 6
    for i in range(start, 2 * last + 3):
        if 1 <= i <= height:
            _scale_row(b[i], step[i], scaled[i % 3])
        else:
            zero_row(scaled[i % 3])
        k = i - 1
        if k > start:
            if 1 <= k <= height:
                _apply_row(scaled[(k - 1) % 3], scaled[k % 3], scaled[i % 3], edges, k, applied)
                _inner_row(b[k], applied, step[k], bending[k if varies else 0], damping, membrane[k % 3], inner[k % 3])
            else:
                zero_row(inner[k % 3])
        k = i - 2
        if k > start + 1:
            row = smooth[k % 3]
            if 1 <= k <= height:
                _apply_row(inner[(k - 1) % 3], inner[k % 3], inner[(k + 1) % 3], edges, k, applied)
                _outer_row(nothing, b[k], inner[k % 3], applied, step[k], damping, membrane[k % 3], row)
                if 2 * first - 1 <= k < 2 * last - 1:
                    copy_row(row, x[k])
            else:
                zero_row(row)
        k = i - 3
        if k > start + 2:
            if 1 <= k <= height:
                _stress_row(smooth, edges, bending[k if varies else 0], k, tension[k % 3], moment[k % 3])
            else:
                zero_row(moment[k % 3])
        k = i - 4
        if k > start + 3:
            row = residual[k % 3]
            if 1 <= k <= height:
                _apply_row(moment[(k - 1) % 3], moment[k % 3], moment[(k + 1) % 3], edges, k, applied)
                _residual_row(b[k], smooth[k % 3], tension[k % 3], applied, mass[k], row)
            else:
                zero_row(row)
            if k % 2 == 0 and k >= 2 * first:
                restrict_row(residual[(k - 2) % 3], residual[(k - 1) % 3], row, weights, k // 2, coarse[k // 2])


@compiled()
def _correct_and_smooth_block(block, b, x, code, edges, mass, bending, step, damping, weights, coarse, out):
    """Compute out = y + M (b - Q y) with y = x + P e, e the coarse solution; return the product of b and out.

    The stages y, A y, residual r and r/d, v, and y + M r each follow one row behind the stage before.
    """
    height, width = b.shape[0] - 2, b.shape[1]
    varies = bending.shape[0] > 1
    first = 1 + block * _BLOCK_ROWS
    last = min(first + _BLOCK_ROWS, height + 1)
    applied = np.zeros(width, np.float32)
    corrected = np.zeros((5, width), np.float32)
    rings = np.zeros((6, 3, width), np.float32)
    tension, moment, residual = rings[0], rings[1], rings[2]
    scaled, membrane, inner = rings[3], rings[4], rings[5]
    total = 0.0
    for i in range(first - 4, last + 4):
        if 1 <= i <= height:
            add_prolongation_row(x[i], weights, coarse, i, corrected[i % 5])
        else:
            zero_row(corrected[i % 5])
        k = i - 1
        if k > first - 4:
            if 1 <= k <= height:
                _stress_row(corrected, edges, bending[k if varies else 0], k, tension[k % 3], moment[k % 3])
            else:
                zero_row(moment[k % 3])
        k = i - 2
        if k > first - 3:
            if 1 <= k <= height:
                _apply_row(moment[(k - 1) % 3], moment[k % 3], moment[(k + 1) % 3], edges, k, applied)
                _residual_row(b[k], corrected[k % 5], tension[k % 3], applied, mass[k], residual[k % 3])
                _scale_row(residual[k % 3], step[k], scaled[k % 3])
            else:
                zero_row(scaled[k % 3])
        k = i - 3
        if k > first - 2:
            if 1 <= k <= height:
                _apply_row(scaled[(k - 1) % 3], scaled[k % 3], scaled[(k + 1) % 3], edges, k, applied)
                stiffness = bending[k if varies else 0]
                _inner_row(residual[k % 3], applied, step[k], stiffness, damping, membrane[k % 3], inner[k % 3])
            else:
                zero_row(inner[k % 3])
        k = i - 4
        if k > first - 1:
            row = residual[k % 3]
            _apply_row(inner[(k - 1) % 3], inner[k % 3], inner[(k + 1) % 3], edges, k, applied)
            _outer_row(corrected[k % 5], row, inner[k % 3], applied, step[k], damping, membrane[k % 3], out[k])
            total += _masked_dot(b[k], code, k, out[k])
    return total


@compiled()
def _visit_block(upward, block, b, x, code, edges, mass, bending, step, damping, weights, coarse, out, dots):
    if upward:
        dots[block] = _correct_and_smooth_block(
            block, b, x, code, edges, mass, bending, step, damping, weights, coarse[2], out
        )
    else:
        _smooth_and_restrict_block(block, b, edges, mass, bending, step, damping, weights, x, coarse[0])


@compiled(parallel=True)
def _visit_parallel(upward, count, b, x, code, edges, mass, bending, step, damping, weights, coarse, out, dots):
    for block in prange(count):
        _visit_block(
            upward, np.int64(block), b, x, code, edges, mass, bending, step, damping, weights, coarse, out, dots
        )


@compiled()
def _visit_serial(upward, count, b, x, code, edges, mass, bending, step, damping, weights, coarse, out, dots):
    for block in range(count):
        _visit_block(upward, block, b, x, code, edges, mass, bending, step, damping, weights, coarse, out, dots)
