"""One V-cycle on the levels of plate.py: z = B r, with B a symmetric approximation of Q^-1, Q = A + N + A K A.

Chebyshev's polynomial in Q would need a degree of four to damp what the next level cannot represent, since squaring A
squares the ratio of its eigenvalues; that is six products with A. A polynomial in A itself does as well with two. With
d above all row sums of A, so that the eigenvalues y of A / d lie between 0 and 1, and b = K d, it is

    p(y) = c ((m - y)^2 + e),    m = 0.89,    c = C u,    e = E_0 + E_1 u + E_5 u^5,    u = 1 / (1 + b / B),

within 40 % of 1 / (b y^2 + y) on [1/5, 1] for every b: a plate at large b, a membrane at small. Where b varies from
pixel to pixel the smoother is the sum of squares that stays symmetric and positive,

    M = (m - A/d)^T c/d (m - A/d) + c e/d.

Masses slow it down through d; see `_step_row` in plate.py. Each half of a level is a single pass over memory: the rows
in flight live in small rings.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numpy.typing import NDArray

from leadline.base.jit import STENCIL, SUM, compiled
from leadline.core.solve.kernels import EAST, FREE, ROOT, SOUTH, SOUTH_EAST, SOUTH_WEST, clear, weighted_row
from leadline.core.solve.multigrid.membrane import SERIAL, planes
from leadline.core.solve.multigrid.membrane_cycle import copy_row, correct_row, restrict_row
from leadline.core.solve.multigrid.thin_plate import NO_CODE, Plate, build_plate

# Fitted to the best polynomials over b; C is 0.85 of that, so that at anchors and steps of the edge weights, where
# A K A exceeds its own square, the smoother still converges.
_CENTRE = np.float32(0.89)
_GAIN, _TURN = np.float32(6.2), np.float32(4.5)  # C, B
_FLOOR, _RISE, _TIP = np.float32(0.03), np.float32(0.024), np.float32(0.096)  # E_0, E_1, E_5
_LEAST_DAMPING = 0.1  # a cycle that is not definite with steps as small as this never will be
_BLOCK = 64  # rows that one thread takes at a time: with four of halo on either side, more than for a membrane
_TINY = np.float32(1e-30)  # where there is neither step nor bending


class PlateCycle:
    """Callable z = B r on padded float32 arrays; returns z, owned by this object, and r . z.

    `damping` scales the smoother's steps. No bound on Q keeps M from overshooting where edge weights are wild; `relax`
    then lowers it.
    """

    def __init__(self, plate: Plate) -> None:
        self.plate = plate
        self.damping = 1.0
        shape = plate.code.shape
        self._smoothed = np.zeros(shape, np.float32)
        self._result = np.zeros(shape, np.float32)
        self._dots = np.zeros(_count(self._result))
        self.scratch = self._smoothed  # of no meaning between two cycles

    def __call__(self, r: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
        depths = range(len(self.plate.transfers))
        for depth in depths:
            self._half(False, depth, r)
        right, _, solution = self.plate.levels[-1].vectors
        solution[:] = (self.plate.inverse @ right.ravel()).reshape(right.shape)
        for depth in reversed(depths):
            self._half(True, depth, r)
        return self._result, float(self._dots.sum())

    def relax(self) -> bool:
        self.damping /= 2
        return self.damping > _LEAST_DAMPING

    def _half(self, up: bool, depth: int, r: NDArray[np.float32]) -> None:
        """Between the level `depth`, 0 being the image, and the one below it."""
        level, below = self.plate.levels[depth : depth + 2]
        b, x, out = (r, self._smoothed, self._result) if depth == 0 else level.vectors
        code = NO_CODE if depth else self.plate.code
        count = _count(b)
        run = _half_parallel if b.size >= SERIAL else _half_serial
        run(
            up, count, b, x, code, level.edges, level.mass, level.bend, level.step, np.float32(self.damping),
            self.plate.transfers[depth], below.vectors, out, self._dots,
        )  # fmt: skip


def _count(b: NDArray[np.float32]) -> int:
    """Blocks of a level, which are also whole blocks of `_BLOCK` / 2 rows of the one below it."""
    return int(b.shape[0] - 3) // _BLOCK + 1


def warm_up() -> None:
    """Compile, or load from the cache, the set-up and the cycle, for images small and large."""
    for height, width in ((20, 20), (240, 200)):
        code = np.zeros((height + 2, width + 2), np.uint8)
        code[1:-1, 1:-1] = FREE + 4
        edges = planes(3, (height, width))
        edges[EAST, 1:-1, 1:-3] = edges[SOUTH, 1:-2, 1:-2] = 1
        mass = np.full(code.shape, 1e-3, np.float32)
        PlateCycle(build_plate(code, edges, mass, 1.0))(np.zeros_like(mass))


@compiled(fastmath=STENCIL)
def _scale_row(b, step, out):
    for j in range(b.size):
        out[j] = step[j] * b[j]


@compiled(fastmath=STENCIL)
def _apply_row(above, row, below, edges, i, out):
    """(A x) on one row of the image or, with eight neighbours, of a level below it."""
    if edges.shape[0] == 3:
        weighted_row(above, row, below, edges, i, out)
        return
    diagonal, east, south, north = edges[ROOT, i], edges[EAST, i], edges[SOUTH, i], edges[SOUTH, i - 1]
    south_east, south_west = edges[SOUTH_EAST, i], edges[SOUTH_WEST, i]
    north_west, north_east = edges[SOUTH_EAST, i - 1], edges[SOUTH_WEST, i - 1]
    for j in range(1, row.size - 1):
        cross = (east[j] * row[j + 1] + east[j - 1] * row[j - 1]) + (south[j] * below[j] + north[j] * above[j])
        slant = south_east[j] * below[j + 1] + north_west[j - 1] * above[j - 1]
        slant += south_west[j] * below[j - 1] + north_east[j + 1] * above[j + 1]
        out[j] = diagonal[j] * row[j] - (cross + slant)


@compiled(fastmath=STENCIL)
def _inner_row(b, applied, step, bend, damping, share, out):
    """c/d (m b - A (b / d)), and the share u of the membrane, which `_outer_row` needs again."""
    for j in range(b.size):
        u = _TURN * step[j] / (_TURN * step[j] + (bend[j] + _TINY))
        share[j] = u
        out[j] = damping * _GAIN * u * step[j] * (_CENTRE * b[j] - applied[j])


@compiled(fastmath=STENCIL)
def _outer_row(base, b, inner, applied, step, damping, share, out):
    """base + m v - A v / d + c e/d b, with v from `_inner_row`."""
    for j in range(b.size):
        u = share[j]
        square = u * u
        floor = _FLOOR + u * (_RISE + _TIP * (square * square))
        smoothed = (_CENTRE * inner[j] - step[j] * applied[j]) + damping * _GAIN * u * step[j] * floor * b[j]
        out[j] = base[j] + smoothed


@compiled(fastmath=STENCIL)
def _residual_row(b, x, tension, bent, mass, out):
    """b - Q x, with A x and A K A x at hand."""
    for j in range(b.size):
        out[j] = b[j] - ((tension[j] + mass[j] * x[j]) + bent[j])


@compiled(fastmath=SUM)
def _masked_dot(b, code, i, out):
    """The sum of b out over a row; on the image, what is not free is set to zero."""
    total = 0.0
    if code.shape[0] > 1:
        row = code[i]
        for j in range(out.size):
            out[j] = out[j] if row[j] >= FREE else np.float32(0)
    for j in range(out.size):
        total += np.float64(b[j]) * np.float64(out[j])
    return total


@compiled()
def _stress_row(x, edges, bend, i, tension, bending):
    """A x and K A x on row i, from a ring of three or more rows of x."""
    n = x.shape[0]
    _apply_row(x[(i - 1) % n], x[i % n], x[(i + 1) % n], edges, i, tension)
    _scale_row(tension, bend, bending)


@compiled()
def _down_block(block, b, edges, mass, bend, step, damping, transfer, x, coarse):
    """A block owns whole coarse rows and recomputes its halo. Stages: b/d, u, x, A x, residual, each a row behind."""
    height, width = b.shape[0] - 2, b.shape[1]
    nine = bend.shape[0] > 1
    first = 1 + block * (_BLOCK // 2)
    last = min(first + _BLOCK // 2, coarse.shape[0] - 1)
    applied, nothing = np.zeros(width, np.float32), np.zeros(width, np.float32)
    rings = np.zeros((7, 3, width), np.float32)
    scaled, share, inner, smooth = rings[0], rings[1], rings[2], rings[3]
    tension, bending, residual = rings[4], rings[5], rings[6]
    start = 2 * first - 6
    for i in range(start, 2 * last + 3):
        if 1 <= i <= height:
            _scale_row(b[i], step[i], scaled[i % 3])
        else:
            clear(scaled[i % 3])
        k = i - 1
        if k > start:
            if 1 <= k <= height:
                _apply_row(scaled[(k - 1) % 3], scaled[k % 3], scaled[i % 3], edges, k, applied)
                _inner_row(b[k], applied, step[k], bend[k if nine else 0], damping, share[k % 3], inner[k % 3])
            else:
                clear(inner[k % 3])
        k = i - 2
        if k > start + 1:
            row = smooth[k % 3]
            if 1 <= k <= height:
                _apply_row(inner[(k - 1) % 3], inner[k % 3], inner[(k + 1) % 3], edges, k, applied)
                _outer_row(nothing, b[k], inner[k % 3], applied, step[k], damping, share[k % 3], row)
                if 2 * first - 1 <= k < 2 * last - 1:
                    copy_row(row, x[k])
            else:
                clear(row)
        k = i - 3
        if k > start + 2:
            if 1 <= k <= height:
                _stress_row(smooth, edges, bend[k if nine else 0], k, tension[k % 3], bending[k % 3])
            else:
                clear(bending[k % 3])
        k = i - 4
        if k > start + 3:
            row = residual[k % 3]
            if 1 <= k <= height:
                _apply_row(bending[(k - 1) % 3], bending[k % 3], bending[(k + 1) % 3], edges, k, applied)
                _residual_row(b[k], smooth[k % 3], tension[k % 3], applied, mass[k], row)
            else:
                clear(row)
            if k % 2 == 0 and k >= 2 * first:
                restrict_row(residual[(k - 2) % 3], residual[(k - 1) % 3], row, transfer, k // 2, coarse[k // 2])


@compiled()
def _up_block(block, b, x, code, edges, mass, bend, step, damping, transfer, coarse, out):
    """The stages: y = x + P e, A y, residual and residual/d, u, y + M residual, each a row behind."""
    height, width = b.shape[0] - 2, b.shape[1]
    nine = bend.shape[0] > 1
    first = 1 + block * _BLOCK
    last = min(first + _BLOCK, height + 1)
    applied = np.zeros(width, np.float32)
    corrected = np.zeros((5, width), np.float32)
    rings = np.zeros((6, 3, width), np.float32)
    tension, bending, residual = rings[0], rings[1], rings[2]
    scaled, share, inner = rings[3], rings[4], rings[5]
    total = 0.0
    for i in range(first - 4, last + 4):
        if 1 <= i <= height:
            correct_row(x[i], transfer, coarse, i, corrected[i % 5])
        else:
            clear(corrected[i % 5])
        k = i - 1
        if k > first - 4:
            if 1 <= k <= height:
                _stress_row(corrected, edges, bend[k if nine else 0], k, tension[k % 3], bending[k % 3])
            else:
                clear(bending[k % 3])
        k = i - 2
        if k > first - 3:
            if 1 <= k <= height:
                _apply_row(bending[(k - 1) % 3], bending[k % 3], bending[(k + 1) % 3], edges, k, applied)
                _residual_row(b[k], corrected[k % 5], tension[k % 3], applied, mass[k], residual[k % 3])
                _scale_row(residual[k % 3], step[k], scaled[k % 3])
            else:
                clear(scaled[k % 3])
        k = i - 3
        if k > first - 2:
            if 1 <= k <= height:
                _apply_row(scaled[(k - 1) % 3], scaled[k % 3], scaled[(k + 1) % 3], edges, k, applied)
                _inner_row(
                    residual[k % 3], applied, step[k], bend[k if nine else 0], damping, share[k % 3], inner[k % 3]
                )
            else:
                clear(inner[k % 3])
        k = i - 4
        if k > first - 1:
            row = residual[k % 3]
            _apply_row(inner[(k - 1) % 3], inner[k % 3], inner[(k + 1) % 3], edges, k, applied)
            _outer_row(corrected[k % 5], row, inner[k % 3], applied, step[k], damping, share[k % 3], out[k])
            total += _masked_dot(b[k], code, k, out[k])
    return total


@compiled()
def _half_block(up, block, b, x, code, edges, mass, bend, step, damping, transfer, coarse, out, dots):
    """Half a level, one block of it.

    Down: x = M b, and the coarse right-hand side P^T (b - Q x). Up: out = y + M (b - Q y) with y = x + P e, e the
    coarse solution, and the sum of b out over the block in `dots`.
    """
    if up:
        dots[block] = _up_block(block, b, x, code, edges, mass, bend, step, damping, transfer, coarse[2], out)
    else:
        _down_block(block, b, edges, mass, bend, step, damping, transfer, x, coarse[0])


@compiled(parallel=True)
def _half_parallel(up, count, b, x, code, edges, mass, bend, step, damping, transfer, coarse, out, dots):
    for block in prange(count):
        _half_block(up, np.int64(block), b, x, code, edges, mass, bend, step, damping, transfer, coarse, out, dots)


@compiled()
def _half_serial(up, count, b, x, code, edges, mass, bend, step, damping, transfer, coarse, out, dots):
    for block in range(count):
        _half_block(up, block, b, x, code, edges, mass, bend, step, damping, transfer, coarse, out, dots)
