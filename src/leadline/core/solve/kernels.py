"""Compiled passes over the image: pixel codes, the operator Q, and the vector updates of conjugate gradients.

Passes address rows by their number, ``x[i, j]``, and do not make views of them: numba counts references to a view, with
an atomic operation that takes longer than a row of a coarse level and that threads contend for.

Arrays are padded by one pixel of zeros on every side, so that no loop has to test whether a neighbour exists. They are
float32, except for solutions with a small tolerance: in float32 they could not reach a residual of 1e-6. Differences
between neighbours are taken before they are summed, which keeps the rounding error relative to the gradient and not to
the value. Sums are formed in float64 per row and then per block of rows, so that the result does not depend on the
number of threads.

`code` describes a pixel in one byte: bits 0-2 hold its number of valid neighbours, and bit 3 is set if the pixel is
free, i.e. valid, not fixed, and with at least one neighbour. A free pixel has in bits 4-5 the number of its fixed
neighbours (0 for four), in bit 6 whether both its left and its right neighbour are free, and in bit 7 the same for the
upper and the lower one; image_interpolation.py uses them. If all edges have weight 1 and no measurement is soft, this
byte is the whole system. Otherwise `edges` holds planes of edge weights, one column wider than the other arrays:
``edges[EAST]`` and ``edges[SOUTH]`` are the weights to the next pixel in that direction, zero beside an invalid pixel.

``tests/support/operators.py`` defines every pass as an explicit matrix.
"""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import Float32Array, FloatArray
from leadline.base.jit import EXACT, STENCIL, SUM, called_by_kernels, compiled, parallel_loop
from leadline.core.fit.calibration import by_type, store_row
from leadline.core.fit.elementary import exp

INVALID_ROLE, FREE_ROLE, FIXED_ROLE, SOFT_ROLE = 0, 1, 2, 5  # bit 0: free; 2 and above: measured
FREE = 8  # bit 3 of a pixel's code; the code of a free pixel is at least this
DEGREE = 7  # mask of bits 0-2 of a pixel's code
FIXED_BITS, BESIDE_BIT, ABOVE_BIT = 4, 6, 7  # first bits of what else the code of a free pixel holds
EAST, SOUTH, SOUTH_EAST, SOUTH_WEST = range(4)  # planes of edge weights; the image has only the first two
# A block needs enough rows to amortise its halo, and an image enough blocks to share among threads.
ROWS_PER_BLOCK = 32
# The index of the row in a buffer of one row. For a literal 0, numba would compile the called function once more.
ONLY_ROW = np.int64(0)


def block_count(height: int) -> int:
    """Number of blocks of rows in an image, which is the length of its arrays of partial sums."""
    return (height + ROWS_PER_BLOCK - 1) // ROWS_PER_BLOCK


@called_by_kernels()
def _find_root(parent, run):
    while parent[run] != run:
        parent[run] = parent[parent[run]]
        run = parent[run]
    return run


@compiled()
def fix_unobserved(role):
    """Set every free pixel that no path of valid pixels connects to a measurement to `FIXED_ROLE`.

    The residual of these pixels is zero. The solver would make it zero only to within the tolerance divided by the data
    weight, because a coarse pixel on a thin wall belongs to both sides of the wall. Connected components are found by
    joining the horizontal runs of valid pixels in neighbouring rows (union-find), since there are far fewer runs than
    pixels.
    """
    height, width = role.shape
    count = 0
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            count += (role[i, j] > 0) & (role[i, j - 1] == 0)
    # Arrays of one type, because numba compiles their allocation for each type.
    rows = np.empty(height, np.int64)  # index of the first run in each row
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    observed, parent = np.empty(count, np.int64), np.empty(count, np.int64)
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
            parent[run] = run
            run += 1
    rows[height - 1] = count

    for i in range(2, height - 1):
        a, b = rows[i - 1], rows[i]
        while a < rows[i] and b < rows[i + 1]:
            if max(first[a], first[b]) <= min(last[a], last[b]):
                parent[_find_root(parent, a)] = _find_root(parent, b)
            if last[a] < last[b]:
                a += 1
            else:
                b += 1
    for run in range(count):
        observed[_find_root(parent, run)] |= observed[run]
    for i in range(1, height - 1):
        for run in range(rows[i], rows[i + 1]):
            if not observed[_find_root(parent, run)]:
                for j in range(first[run], last[run] + 1):
                    role[i, j] = FIXED_ROLE


@called_by_kernels()
def _encode_row(above, row, below, out):
    for j in range(1, row.size - 1):
        degree = (above[j] > 0) + (below[j] > 0) + (row[j - 1] > 0) + (row[j + 1] > 0)
        degree *= row[j] > 0
        up, down, left, right = above[j] & 1, below[j] & 1, row[j - 1] & 1, row[j + 1] & 1  # whether they are free
        fixed = (degree - (up + down + left + right)) & 3
        bits = FREE + (fixed << FIXED_BITS) + ((left & right) << BESIDE_BIT) + ((up & down) << ABOVE_BIT)
        # A valid pixel without neighbours has no edge that could carry a residual to it: its residual stays zero.
        out[j] = degree + bits * (row[j] & 1) * (degree > 0)


@compiled()
def encode(role, code):
    """Fill `code` from the padded roles."""
    for i in range(1, role.shape[0] - 1):
        _encode_row(role[i - 1], role[i], role[i + 1], code[i])


@called_by_kernels(fastmath=STENCIL)
def _laplacian_row(x, i, code, out, k):
    """Compute row i of A x as row k of `out`, with A the unweighted graph Laplacian; x is zero at invalid pixels."""
    for j in range(1, x.shape[1] - 1):
        degree = code[i, j] & DEGREE
        p = x[i, j]
        value = ((p - x[i - 1, j]) + (p - x[i + 1, j])) + ((p - x[i, j - 1]) + (p - x[i, j + 1]))
        value -= np.float32(4 - degree) * p
        out[k, j] = value if degree > 0 else np.float32(0)


@called_by_kernels(fastmath=STENCIL)
def weighted_laplacian_row(x, above, row, below, edges, i, out, k):
    """Compute row i of A x, with A the Laplacian of the image's weighted graph, as row k of `out`.

    `above`, `row` and `below` are the numbers of the three rows in `x`, which may be a ring buffer.
    """
    for j in range(1, out.shape[1] - 1):
        p = x[row, j]
        across = edges[EAST, i, j] * (p - x[row, j + 1]) + edges[EAST, i, j - 1] * (p - x[row, j - 1])
        out[k, j] = across + (edges[SOUTH, i, j] * (p - x[below, j]) + edges[SOUTH, i - 1, j] * (p - x[above, j]))


@called_by_kernels()
def zero_row(x, i):
    for j in range(x.shape[1]):
        x[i, j] = 0


@called_by_kernels(fastmath=SUM)
def _operator_row(ring, above, row, below, p, i, code, out, data, laplacian, sign):
    """Compute row i of Q p from three rows of A p, for edges of weight 1."""
    dot = 0.0
    square = 0.0
    for j in range(1, p.shape[1] - 1):
        bend = (code[i, j] & DEGREE) * ring[row, j]
        bend -= (ring[above, j] + ring[below, j]) + (ring[row, j - 1] + ring[row, j + 1])
        value = np.float32(sign * (ring[row, j] + data * p[i, j] + laplacian * bend))
        value = value if code[i, j] >= FREE else np.float32(0)
        out[i, j] = value
        dot += np.float64(value) * p[i, j]
        square += np.float64(value) * np.float64(value)
    return dot, square


@called_by_kernels(fastmath=SUM)
def _weighted_operator_row(ring, row, bend, p, mass, rhs, i, code, out, laplacian, sign):
    """Compute row i of Q p - rhs from a row of A p and a row of A^2 p."""
    n = i if rhs.shape[0] > 1 else 0
    dot = 0.0
    square = 0.0
    for j in range(1, p.shape[1] - 1):
        value = (ring[row, j] + mass[i, j] * p[i, j] + laplacian * bend[0, j]) - rhs[n, j]
        value = np.float32(sign * value)
        value = value if code[i, j] >= FREE else np.float32(0)
        out[i, j] = value
        dot += np.float64(value) * p[i, j]
        square += np.float64(value) * np.float64(value)
    return dot, square


@parallel_loop()
def apply_operator(block, p, code, out, data, laplacian, sign, dots, squares):
    """Compute out = sign (A + data I + laplacian A^2) p on the free pixels and zero elsewhere, for edges of weight 1.

    Per block of rows, `dots` receives the sum of p out and `squares` the sum of out^2. A^2 runs over all valid pixels,
    so A p is needed at fixed pixels too. Its rows are held in a ring buffer of three, so that the whole operator reads
    and writes each array once. p is a search direction or, for the true residual, the solution, and the arithmetic
    uses its type.
    """
    height = p.shape[0] - 2
    first = 1 + block * ROWS_PER_BLOCK
    ring = np.zeros((3, p.shape[1]), p.dtype)  # the last three rows of A p
    dot = 0.0
    square = 0.0
    for i in range(first - 1, min(first + ROWS_PER_BLOCK, height + 1) + 1):
        if 1 <= i <= height:
            _laplacian_row(p, i, code, ring, i % 3)
        else:
            zero_row(ring, i % 3)
        k = i - 1  # the row for which A p is now known on both neighbouring rows
        if k >= first:
            sums = _operator_row(ring, (k - 1) % 3, k % 3, i % 3, p, k, code, out, data, laplacian, sign)
            dot += sums[0]
            square += sums[1]
    dots[block] = dot
    squares[block] = square


@parallel_loop()
def apply_weighted_operator(block, p, code, edges, mass, rhs, out, laplacian, sign, dots, squares):
    """Compute out = sign ((A + mass + laplacian A^2) p - rhs), with A the Laplacian of the weighted graph.

    `mass` and `rhs` have one number per pixel; `rhs` may have a single row, that of all pixels. All else is as in
    `apply_operator`.
    """
    height = p.shape[0] - 2
    first = 1 + block * ROWS_PER_BLOCK
    ring = np.zeros((3, p.shape[1]), p.dtype)
    bend = np.zeros((1, p.shape[1]), p.dtype)
    dot = 0.0
    square = 0.0
    for i in range(first - 1, min(first + ROWS_PER_BLOCK, height + 1) + 1):
        if 1 <= i <= height:
            weighted_laplacian_row(p, i - 1, i, i + 1, edges, i, ring, i % 3)
        else:
            zero_row(ring, i % 3)
        k = i - 1
        if k >= first:
            weighted_laplacian_row(ring, (k - 1) % 3, k % 3, i % 3, edges, k, bend, ONLY_ROW)
            sums = _weighted_operator_row(ring, k % 3, bend, p, mass, rhs, k, code, out, laplacian, sign)
            dot += sums[0]
            square += sums[1]
    dots[block] = dot
    squares[block] = square


@called_by_kernels(fastmath=SUM)
def _update_solution_row(x, r, p, q, step, i):
    total = 0.0
    step32 = np.float32(step)
    for j in range(x.shape[1]):
        x[i, j] += step * p[i, j]
        value = r[i, j] - step32 * q[i, j]
        r[i, j] = value
        total += np.float64(value) * np.float64(value)
    return total


@parallel_loop()
def update_solution(block, x, r, p, q, step, squares):
    """Compute x += step p and r -= step q; `squares` receives the sum of r^2 per block of rows."""
    first = 1 + block * ROWS_PER_BLOCK
    total = 0.0
    for i in range(first, min(first + ROWS_PER_BLOCK, x.shape[0] - 1)):
        total += _update_solution_row(x, r, p, q, step, i)
    squares[block] = total


@parallel_loop(fastmath=STENCIL)
def update_direction(block, p, z, ratio):
    """Compute p = z + ratio p."""
    first = 1 + block * ROWS_PER_BLOCK
    for i in range(first, min(first + ROWS_PER_BLOCK, p.shape[0] - 1)):
        for j in range(p.shape[1]):
            p[i, j] = z[i, j] + ratio * p[i, j]


def correct_depth(calibrated: Float32Array, field: FloatArray, out: FloatArray) -> None:
    """Fill `out` with D = t exp(r) from the unpadded t and the padded r."""
    _correct_depth_row[len(out)](calibrated, field, *by_type(out))


@parallel_loop(fastmath=EXACT)
def _correct_depth_row(i, calibrated, field, single, double):
    x = np.empty(calibrated.shape[1])
    for j in range(x.size):
        x[j] = calibrated[i, j] * exp(np.float64(field[i + 1, j + 1]))
    store_row(x, single, double, i)
