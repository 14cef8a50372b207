"""The compiled passes over the image that conjugate gradients is made of.

Arrays are padded by one pixel of zeros on every side, so that no pass asks whether a neighbour exists,
and are float32 but for the solution: at 1e-6 a float32 solution would be the limit. Differences of
neighbours are taken before they are summed, which keeps the rounding error relative to the gradient
and not to the value. Sums are formed per row in float64 and per block of rows, so that the result does
not depend on the number of threads.

`code` describes a pixel in one byte: bits 0-2 its number of valid neighbours d_p, bit 3 set where it is
free (valid, with a neighbour, and not fixed). Where all edges weigh the same and no pixel has a mass of its own that
byte is the whole system. Otherwise `edges` holds planes of weights, one column wider than the other arrays: [EAST] and
[SOUTH] to the next pixel in that direction, zero beside an invalid pixel.
`tests/operators.py` states every pass as a matrix.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from leadline.base.jit import EXACT, STENCIL, SUM, compiled
from leadline.core.fit.elementary import exp

FREE = 8  # bit 3 of a pixel's code
DEGREE = 7  # mask of bits 0-2
EAST, SOUTH, MASS, SOUTH_EAST, SOUTH_WEST, ROOT = range(6)  # planes of a level; the finest has three
ROWS = 32  # rows per block: enough to amortise the halo, few enough to share among threads


@compiled()
def blocks(height):
    """Number of blocks of an image, which is the length of its partial sums."""
    return (height + ROWS - 1) // ROWS


@compiled()
def _root(parent, run):
    while parent[run] != run:
        parent[run] = parent[parent[run]]
        run = parent[run]
    return run


@compiled()
def fix_unobserved(role):
    """Turn the free pixels that no path of valid pixels joins to a measurement into fixed ones (role 2).

    Their residual is zero. Left to the solver it would be zero to within the tolerance divided by the data weight,
    since coarse pixels in a thin wall belong to both of its sides. Components are found by joining the runs of
    valid pixels of neighbouring rows, of which there are few.
    """
    height, width = role.shape
    count = 0
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            count += (role[i, j] > 0) & (role[i, j - 1] == 0)
    rows = np.zeros(height + 1, np.int64)  # first run of each row
    first, last = np.zeros(count, np.int32), np.zeros(count, np.int32)
    observed = np.zeros(count, np.bool_)
    run = 0
    for i in range(1, height - 1):
        rows[i] = run
        j = 1
        while j < width - 1:
            if role[i, j] == 0:
                j += 1
                continue
            first[run] = j
            roles = 0
            while role[i, j] > 0:  # the padding ends the last run of a row
                roles |= role[i, j]
                j += 1
            last[run] = j - 1
            observed[run] = roles >= 2
            run += 1
    rows[height - 1 :] = count

    parent = np.arange(count)
    for i in range(2, height - 1):
        a, b = rows[i - 1], rows[i]
        while a < rows[i] and b < rows[i + 1]:
            if max(first[a], first[b]) <= min(last[a], last[b]):
                parent[_root(parent, a)] = _root(parent, b)
            if last[a] < last[b]:
                a += 1
            else:
                b += 1
    for run in range(count):
        observed[_root(parent, run)] |= observed[run]
    for i in range(1, height - 1):
        for run in range(rows[i], rows[i + 1]):
            if not observed[_root(parent, run)]:
                role[i, first[run] : last[run] + 1] = 2


@compiled()
def _encode_row(above, row, below, out):
    for j in range(1, row.size - 1):
        degree = (above[j] > 0) + (below[j] > 0) + (row[j - 1] > 0) + (row[j + 1] > 0)
        degree *= row[j] > 0
        # A valid pixel without neighbours has no edge to carry a residual: it stays at zero.
        out[j] = degree + FREE * (row[j] & 1) * (degree > 0)


@compiled()
def encode(role, code):
    """Fill `code` from the padded roles: 0 invalid, 1 free, 2 fixed, 5 free and measured."""
    for i in range(1, role.shape[0] - 1):
        _encode_row(role[i - 1], role[i], role[i + 1], code[i])


@compiled(fastmath=STENCIL)
def _laplacian_row(above, row, below, code, out):
    """(A p) on one row of valid pixels, A the graph Laplacian; p must be zero at invalid pixels."""
    for j in range(1, row.size - 1):
        degree = code[j] & DEGREE
        p = row[j]
        value = ((p - above[j]) + (p - below[j])) + ((p - row[j - 1]) + (p - row[j + 1]))
        value -= np.float32(4 - degree) * p
        out[j] = value if degree > 0 else np.float32(0)


@compiled(fastmath=STENCIL)
def weighted_row(above, row, below, edges, i, out):
    """(A p) on one row of the image, A the Laplacian of its weighted graph."""
    east, south, north = edges[EAST, i], edges[SOUTH, i], edges[SOUTH, i - 1]
    for j in range(1, row.size - 1):
        p = row[j]
        across = east[j] * (p - row[j + 1]) + east[j - 1] * (p - row[j - 1])
        out[j] = across + (south[j] * (p - below[j]) + north[j] * (p - above[j]))


@compiled()
def clear(row):
    for j in range(row.size):
        row[j] = 0


@compiled(fastmath=SUM)
def _operator_row(above, row, below, p, code, out, data, laplacian, sign):
    dot = 0.0
    square = 0.0
    for j in range(1, row.size - 1):
        bend = (code[j] & DEGREE) * row[j] - ((above[j] + below[j]) + (row[j - 1] + row[j + 1]))
        value = np.float32(sign * (row[j] + data * p[j] + laplacian * bend))
        value = value if code[j] >= FREE else np.float32(0)
        out[j] = value
        dot += np.float64(value) * p[j]
        square += np.float64(value) * np.float64(value)
    return dot, square


@compiled()
def _operator_block(block, p, code, out, data, laplacian, sign, dots, squares):
    height = p.shape[0] - 2
    first = 1 + block * ROWS
    ring = np.zeros((3, p.shape[1]), p.dtype)
    dot = 0.0
    square = 0.0
    for i in range(first - 1, min(first + ROWS, height + 1) + 1):
        if 1 <= i <= height:
            _laplacian_row(p[i - 1], p[i], p[i + 1], code[i], ring[i % 3])
        else:
            clear(ring[i % 3])
        k = i - 1  # the row whose neighbours are both there
        if k >= first:
            above, row, below = ring[(k - 1) % 3], ring[k % 3], ring[i % 3]
            row_dot, row_square = _operator_row(above, row, below, p[k], code[k], out[k], data, laplacian, sign)
            dot += row_dot
            square += row_square
    dots[block] = dot
    squares[block] = square


@compiled(fastmath=SUM)
def _weighted_operator_row(row, bend, p, mass, pull, code, out, laplacian, sign):
    dot = 0.0
    square = 0.0
    for j in range(1, row.size - 1):
        value = row[j] + mass[j] * p[j] + laplacian * bend[j]
        if pull is not None:
            value -= pull[j]
        value = np.float32(sign * value)
        value = value if code[j] >= FREE else np.float32(0)
        out[j] = value
        dot += np.float64(value) * p[j]
        square += np.float64(value) * np.float64(value)
    return dot, square


@compiled()
def _weighted_block(block, p, code, edges, mass, pull, out, laplacian, sign, dots, squares):
    height = p.shape[0] - 2
    first = 1 + block * ROWS
    ring = np.zeros((3, p.shape[1]), p.dtype)
    bend = np.zeros(p.shape[1], p.dtype)
    dot = 0.0
    square = 0.0
    for i in range(first - 1, min(first + ROWS, height + 1) + 1):
        if 1 <= i <= height:
            weighted_row(p[i - 1], p[i], p[i + 1], edges, i, ring[i % 3])
        else:
            clear(ring[i % 3])
        k = i - 1
        if k >= first:
            row = ring[k % 3]
            weighted_row(ring[(k - 1) % 3], row, ring[i % 3], edges, k, bend)
            if pull is None:
                sums = _weighted_operator_row(row, bend, p[k], mass[k], None, code[k], out[k], laplacian, sign)
            else:
                sums = _weighted_operator_row(row, bend, p[k], mass[k], pull[k], code[k], out[k], laplacian, sign)
            dot += sums[0]
            square += sums[1]
    dots[block] = dot
    squares[block] = square


@compiled(parallel=True)
def apply_operator(p, code, edges, mass, pull, out, data, laplacian, sign, dots, squares):
    """out = sign (A + data I + laplacian A^2) p on the free pixels, zero elsewhere.

    Per block, `dots` receives the sum of p out and `squares` that of out^2. A^2 runs over all valid
    pixels, so A p is needed at measured pixels too; its rows live in a ring of three, and the whole
    operator reads and writes each array once. p may be float32 (a direction) or float64 (the solution,
    for the true residual): the arithmetic follows it.

    With `edges`, A is that of the weighted graph, and `mass`, one number per pixel, replaces the data weight; without,
    both are None. `pull`, or None, is subtracted in the brackets: the right-hand side that soft measurements give.
    """
    for block in prange(dots.size):
        if edges is None:
            _operator_block(np.int64(block), p, code, out, data, laplacian, sign, dots, squares)
        else:
            _weighted_block(np.int64(block), p, code, edges, mass, pull, out, laplacian, sign, dots, squares)


@compiled(fastmath=SUM)
def _advance_row(x, r, p, q, step):
    total = 0.0
    step32 = np.float32(step)
    for j in range(x.size):
        x[j] += step * p[j]
        value = r[j] - step32 * q[j]
        r[j] = value
        total += np.float64(value) * np.float64(value)
    return total


@compiled(parallel=True)
def advance(x, r, p, q, step, squares):
    """x += step p (in float64), r -= step q; per block the sum of r^2."""
    for block in prange(squares.size):
        first = 1 + block * ROWS
        total = 0.0
        for i in range(first, min(first + ROWS, x.shape[0] - 1)):
            total += _advance_row(x[i], r[i], p[i], q[i], step)
        squares[block] = total


@compiled(fastmath=STENCIL)
def _redirect_row(p, z, ratio):
    for j in range(p.size):
        p[j] = z[j] + ratio * p[j]


@compiled(parallel=True)
def redirect(p, z, ratio):
    """p = z + ratio p."""
    for i in prange(p.shape[0]):
        _redirect_row(p[i], z[i], ratio)


@compiled(fastmath=EXACT)
def _restore_row(calibrated, residual, out):
    for j in range(out.size):
        out[j] = calibrated[j] * exp(residual[j + 1])


@compiled(parallel=True)
def restore(calibrated, field, out):
    """D = t exp(r), from the unpadded t and the padded r."""
    for i in prange(out.shape[0]):
        _restore_row(calibrated[i], field[i + 1], out[i])
