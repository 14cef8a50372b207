"""Every compiled pass equals its explicit definition: pixel codes, operator, vector updates, depth correction."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from leadline.core.solve import kernels
from leadline.core.solve.cg import Jacobi, Operator
from support.operators import (
    FREE,
    INVALID,
    MEASURED,
    code_of,
    edge_planes,
    edge_weights,
    every_image,
    every_shape,
    free_pixels,
    generator,
    laplacian,
    pad,
    pattern,
    restrict_to,
    system,
)

FLOAT32 = 4e-7  # a dozen roundings of float32 (6e-8 each), relative to the largest number in play
FLOAT64_IN = 1e-7  # float64 arithmetic, but the result is stored as float32
SUMS = 1e-12  # sums of float32 products in float64
DATA, BENDING = 1e-3, 1e-3
HEAVY = 3.0  # a weight at which a wrong bending term cannot hide


@pytest.fixture
def all_threads_afterwards():
    yield
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


def apply(p, code, data, bending, sign=1.0):
    """Apply the kernel with its weights in the dtype of p, as the solver does."""
    number = p.dtype.type
    out = np.full(p.shape, 7, np.float32)
    out[[0, -1]] = out[:, [0, -1]] = 0
    count = kernels.block_count(p.shape[0] - 2)
    dots, squares = np.full(count, np.nan), np.full(count, np.nan)
    kernels.apply_operator[count](p, code, out, number(data), number(bending), number(sign), dots, squares)
    return out, dots, squares


def random_field(role, dtype, *key):
    """Return random values at valid pixels, measured ones included, and zero elsewhere and in the padding."""
    values = generator(role.shape, *key).normal(size=role.shape) * (role != INVALID)
    return pad(values, role.shape, dtype)


@every_image
def test_encode(shape, name):
    role = pattern(name, shape)
    degree = laplacian(role).diagonal().astype(int)
    around = np.pad(free_pixels(role).reshape(shape), 1)
    above, below, left, right = around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:]
    fixed = degree.reshape(shape) - above - below - left - right
    bits = 8 + 16 * (fixed % 4) + 64 * (left & right) + 128 * (above & below)
    expected = pad(degree + bits.ravel() * free_pixels(role), shape, np.uint8)
    np.testing.assert_array_equal(code_of(role), expected)


@every_image
def test_fix_unobserved(shape, name):
    for thin in (False, True):  # with and without a maze of thin walls
        role = pattern(name, shape)
        if thin:
            role[generator("walls", name, shape).random(shape) < 0.4] = INVALID
        _, label = connected_components(laplacian(role))
        reached = np.isin(label, label[role.ravel() == MEASURED]).reshape(shape)
        expected = np.where((role == FREE) & ~reached, MEASURED, role)
        padded = np.pad(role, 1)
        kernels.fix_unobserved(padded)
        np.testing.assert_array_equal(padded, np.pad(expected, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_image
def test_operator_is_the_explicit_matrix(shape, name, dtype):
    role = pattern(name, shape)
    code = code_of(role)
    p = random_field(role, dtype, name)
    before = p.copy(), code.copy()
    tolerance = FLOAT32 if dtype is np.float32 else FLOAT64_IN
    for data, bending, sign in ((DATA, BENDING, 1.0), (0.5, HEAVY, -1.0), (DATA, 0.0, 1.0)):
        out, dots, squares = apply(p, code, data, bending, sign)
        expected = sign * (system(role, data, bending) @ p[1:-1, 1:-1].ravel().astype(float)) * free_pixels(role)
        # Row sums of |Q| are at most 8 + data + 64 bending.
        size = (8 + data + 64 * bending) * np.abs(p).max()
        np.testing.assert_allclose(out, pad(expected, shape, float), rtol=0, atol=tolerance * size)
        # One partial sum per block of rows, whatever the number of threads.
        starts = np.arange(1, shape[0] + 1, kernels.ROWS_PER_BLOCK)
        per_row = (out.astype(float) * p).sum(axis=1), (out.astype(float) ** 2).sum(axis=1)
        for partial, rows in zip((dots, squares), per_row, strict=True):
            np.testing.assert_allclose(partial, np.add.reduceat(rows, starts), rtol=SUMS, atol=SUMS * size**2)
    np.testing.assert_array_equal(p, before[0])
    np.testing.assert_array_equal(code, before[1])


@pytest.mark.parametrize(("dtype", "edges"), [(np.float32, "wild"), (np.float64, "mild")])
@every_image
def test_weighted_operator_is_the_explicit_matrix(shape, name, dtype, edges):
    role = pattern(name, shape)
    code = code_of(role)
    weights = edge_weights(edges, shape)
    planes = edge_planes(role, weights)
    rng = generator("weighted", shape, name)
    mass = pad(rng.uniform(0.0, 2.0, role.size), shape)
    p = random_field(role, dtype, name)
    # Only the true residual, in float64, has a right-hand side; that of a search direction is a row of zeros.
    rhs = pad(rng.normal(size=role.size), shape, np.float64) if dtype is np.float64 else np.zeros((1, p.shape[1]))
    count = kernels.block_count(shape[0])
    for bending, sign in ((HEAVY, 1.0), (0.0, -1.0)):
        out = np.zeros(p.shape, np.float32)
        dots, squares = np.full(count, np.nan), np.full(count, np.nan)
        scale = dtype(bending), dtype(sign)
        kernels.apply_weighted_operator[count](p, code, planes, mass, rhs, out, *scale, dots, squares)
        masses = mass[1:-1, 1:-1].ravel().astype(float)
        expected = system(role, 0.0, bending, weights, masses) @ p[1:-1, 1:-1].ravel().astype(float)
        expected -= rhs[1:-1, 1:-1].ravel() if len(rhs) > 1 else 0.0
        expected *= sign * free_pixels(role)
        size = (10 + 64 * bending) * float(np.abs(p).max(initial=1.0))
        tolerance = FLOAT32 if dtype is np.float32 else FLOAT64_IN
        np.testing.assert_allclose(out, pad(expected, shape, float), rtol=0, atol=tolerance * size)
        assert dots.sum() == pytest.approx(float((out.astype(float) * p).sum()), rel=SUMS, abs=SUMS * size**2)
        assert squares.sum() == pytest.approx(float((out.astype(float) ** 2).sum()), rel=SUMS)


@pytest.mark.parametrize("name", ["anchors", "holes", "stripes"])
def test_operator_is_symmetric_and_positive_definite(name):
    """The matrix is read column by column from the kernel itself."""
    role = pattern(name, (9, 11))
    free = np.flatnonzero(free_pixels(role))
    code = code_of(role)
    columns = []
    for pixel in free:
        unit = np.zeros(role.size)
        unit[pixel] = 1.0
        columns.append(apply(pad(unit, role.shape, np.float64), code, DATA, HEAVY)[0][1:-1, 1:-1].ravel()[free])
    matrix = np.array(columns, float)
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=FLOAT64_IN * 8)
    assert np.linalg.eigvalsh(matrix).min() >= 0.99 * DATA
    explicit = restrict_to(system(role, DATA, HEAVY), free_pixels(role)).toarray()[np.ix_(free, free)]
    np.testing.assert_allclose(matrix, explicit, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["open", "holes", "stripes"])
def test_operator_sees_small_gradients_on_large_values(name):
    """A constant field has no gradient in float32 either: at 1e4 the spacing is 1e-3, and the data term is 1e-4."""
    role = pattern(name, (35, 23))
    p = pad(1e4 * (role != INVALID), role.shape)
    out, _, _ = apply(p, code_of(role), 1e-8, 1.0)
    expected = pad(1e-4 * free_pixels(role), role.shape)
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_jacobi_divides_by_the_diagonal():
    role = pattern("holes", (33, 12))
    code = code_of(role)
    r = random_field(role, np.float32, "jacobi") * (code >= kernels.FREE)
    z, dot = Jacobi(Operator(code, DATA, HEAVY))(r)
    diagonal = system(role, DATA, HEAVY).diagonal()
    free = free_pixels(role)
    expected = np.divide(r[1:-1, 1:-1].ravel(), diagonal, out=np.zeros(role.size), where=free)
    np.testing.assert_allclose(z, pad(expected, role.shape, float), rtol=FLOAT32)
    assert dot == pytest.approx(float((z.astype(float) * r).sum()), rel=SUMS)
    # The diagonal of a weighted graph comes from its edges.
    weights = edge_weights("mild", role.shape)
    mass = pad(generator("masses").uniform(0.0, 2.0, role.size), role.shape)
    weighted = Operator(code, 0.0, HEAVY, edge_planes(role, weights), mass)
    masses = mass[1:-1, 1:-1].ravel().astype(float)
    explicit = system(role, 0.0, HEAVY, weights, masses).diagonal().reshape(role.shape)
    inside = np.indices(role.shape).reshape(2, -1) + 1
    where = np.ravel_multi_index(tuple(inside), code.shape)
    np.testing.assert_allclose(weighted.diagonal(where), explicit.ravel(), rtol=1e-6)
    # Without edge weights it equals the closed form in the paper.
    degree = laplacian(role).diagonal()
    np.testing.assert_allclose(diagonal[free], (DATA + degree + HEAVY * (degree**2 + degree))[free], rtol=SUMS)


@every_shape
def test_update_solution(shape):
    rng = generator("update solution", shape)
    x = pad(rng.normal(size=shape), shape, np.float64)
    r, p, q = (pad(rng.normal(size=shape), shape) for _ in range(3))
    step = 0.37
    expected_x = x + step * p.astype(float)
    expected_r = r.astype(float) - step * q.astype(float)
    squares = np.full(kernels.block_count(shape[0]), np.nan)
    before = p.copy(), q.copy()
    kernels.update_solution[squares.size](x, r, p, q, step, squares)
    np.testing.assert_allclose(x, expected_x, rtol=0, atol=1e-15 * 8)  # the solution keeps all digits of float64
    np.testing.assert_allclose(r, expected_r, rtol=0, atol=FLOAT32 * 4)
    rows = (r.astype(float) ** 2).sum(axis=1)
    np.testing.assert_allclose(
        squares, np.add.reduceat(rows, np.arange(1, shape[0] + 1, kernels.ROWS_PER_BLOCK)), rtol=SUMS
    )
    np.testing.assert_array_equal(p, before[0])
    np.testing.assert_array_equal(q, before[1])


@every_shape
def test_update_direction(shape):
    rng = generator("update direction", shape)
    p, z = (pad(rng.normal(size=shape), shape) for _ in range(2))
    expected = z.astype(float) + 0.81 * p.astype(float)
    count = kernels.block_count(shape[0])
    kernels.update_direction[count](p, z, np.float32(0.81))
    np.testing.assert_allclose(p, expected, rtol=0, atol=FLOAT32 * 4)
    # A ratio of zero restarts: the old direction has no influence.
    kernels.update_direction[count](p, z, np.float32(0))
    np.testing.assert_array_equal(p, z)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_shape
def test_correct_depth(shape, dtype):
    rng = generator("correct depth", shape)
    t = rng.uniform(0.1, 100.0, shape).astype(np.float32)
    t[rng.random(shape) < 0.2] = np.nan
    field = pad(rng.uniform(-3, 3, shape), shape, np.float64)
    out = np.zeros(shape, dtype)
    kernels.correct_depth(t, field, out)
    expected = t.astype(float) * np.exp(field[1:-1, 1:-1])
    np.testing.assert_allclose(out, expected, rtol=FLOAT32 if dtype is np.float32 else 1e-15 * 8)
    # A residual of zero returns the calibrated prior bit for bit.
    kernels.correct_depth(t, np.zeros_like(field), out)
    np.testing.assert_array_equal(out, t)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare with one")
@pytest.mark.parametrize("shape", [(1, 9), (131, 40), (200, 33)])
def test_any_number_of_threads_gives_the_same_bits(shape, all_threads_afterwards):
    role = pattern("holes", shape)
    code = code_of(role)
    results = []
    for threads in (1, 2):
        numba.set_num_threads(threads)
        p = random_field(role, np.float32, "threads")
        q, dots, squares = apply(p, code, DATA, BENDING)
        x = p.astype(np.float64)
        kernels.update_solution[squares.size](x, p, q, q, 0.3, squares)
        results.append((q, dots, squares, x, p))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
