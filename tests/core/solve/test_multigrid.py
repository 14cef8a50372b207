"""The hierarchy against its definitions, the V-cycle against explicit matrices, and what CG needs of it."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from leadline.core.solve.multigrid.membrane import COARSEST, SERIAL, build
from leadline.core.solve.multigrid.membrane_cycle import VCycle
from support.operators import (
    PATTERNS,
    SHAPES,
    code_of,
    free_pixels,
    generator,
    levels,
    pad,
    pattern,
    screened,
    sizes_of,
    stored_levels,
    v_cycle,
)

SCALED = 5e-7  # float32 rounding over up to seven levels, times what cancels
CYCLE = 1e-4  # without anchors the coarsest level is definite only by the data weight: 6e-8 of rounding over 1e-3
SYMMETRY = 2e-6  # float32 arithmetic on vectors of order one
DATA = 1e-3
WEIGHTS = (1e-3, 0.7)
# Error left by one cycle in the energy norm and the worst direction. Plain bilinear weights, or a coarse operator that
# does not see the anchors, leave 0.5 and more. Where every third pixel is a hole the coarse grid sees little.
CONTRACTION = {"holes": 0.95, "stripes": 0.8}
SMOOTH_CONTRACTION = 0.25

every_shape = pytest.mark.parametrize("shape", SHAPES, ids="{0[0]}x{0[1]}".format)
every_pattern = pytest.mark.parametrize("name", PATTERNS)


def dense_cycle(role, data):
    """B column by column from the compiled cycle, (n, n) over all pixels."""
    cycle = VCycle(build(code_of(role), data))
    free = free_pixels(role)
    matrix = np.zeros((role.size, role.size))
    for pixel in np.flatnonzero(free):
        unit = np.zeros(role.size)
        unit[pixel] = 1.0
        matrix[:, pixel] = cycle(pad(unit, role.shape))[0][1:-1, 1:-1].ravel()
    return matrix


@every_shape
def test_sizes_halve_down_to_the_coarsest(shape):
    sizes = sizes_of(build(code_of(pattern("open", shape)), DATA))
    assert tuple(sizes[0]) == shape
    assert len(sizes) >= 2
    np.testing.assert_array_equal(sizes[1:], (sizes[:-1] + 1) // 2)
    assert sizes[-1].prod() <= COARSEST
    assert all(size.prod() > COARSEST for size in sizes[1:-1])


@pytest.mark.parametrize("data", WEIGHTS)
@every_pattern
@every_shape
def test_levels_follow_from_their_definitions(shape, name, data):
    """Interpolation by Dendy's rule, the Galerkin product P^T S P, and their scaling, on every level."""
    role = pattern(name, shape)
    hierarchy = build(code_of(role), data)
    expected = levels(role, data, sizes_of(hierarchy))
    for level, (ours, theirs) in enumerate(zip(stored_levels(hierarchy), expected[1:], strict=True), 1):
        tolerance = SCALED * theirs.cancellation
        wrong = np.abs(ours.transfer.toarray() - theirs.transfer.toarray()) > tolerance
        assert not wrong.any(), f"transfer to level {level}: {np.argwhere(wrong)[:5].tolist()}"
        # Rows without an equation are empty in the definition and have a unit diagonal in the store.
        operator = theirs.operator.toarray()
        operator += np.diag(operator.diagonal() == 0)
        wrong = np.abs(ours.operator.toarray() - operator) > np.maximum.outer(tolerance, tolerance)
        assert not wrong.any(), f"operator of level {level}: {np.argwhere(wrong)[:5].tolist()}"


@pytest.mark.parametrize("data", WEIGHTS)
@every_pattern
@every_shape
def test_cycle_is_the_explicit_one(shape, name, data):
    role = pattern(name, shape)
    hierarchy = build(code_of(role), data)
    expected = v_cycle(levels(role, data, sizes_of(hierarchy)), data)
    cycle = VCycle(hierarchy)
    free = free_pixels(role)
    for trial in range(3):
        r = pad(generator(shape, name, trial).normal(size=role.size) * free, shape)
        kept = r.copy()
        z, dot = cycle(r)
        by_hand = expected @ r[1:-1, 1:-1].ravel().astype(float)
        np.testing.assert_allclose(z, pad(by_hand, shape, float), rtol=0, atol=CYCLE * np.abs(by_hand).max(initial=1.0))
        assert dot == pytest.approx(float((z.astype(float) * r).sum()), rel=1e-12)
        assert not z[1:-1, 1:-1].ravel()[~free].any(), "a pixel without an equation was moved"
        np.testing.assert_array_equal(r, kept)


@pytest.mark.parametrize("shape", [(13, 18), (1, 60), (35, 5), (2, 2)], ids=str)
@pytest.mark.parametrize("name", ["open", "one anchor", "anchors", "holes", "stripes"])
def test_cycle_is_symmetric_positive_definite_and_contracts(shape, name):
    role = pattern(name, shape)
    free = free_pixels(role)
    B = dense_cycle(role, DATA)[np.ix_(free, free)]
    np.testing.assert_allclose(B, B.T, rtol=0, atol=SYMMETRY * np.abs(B).max())
    assert np.linalg.eigvalsh((B + B.T) / 2).min() > 0
    # Eigenvalues of B S: a preconditioner that fits has them near one.
    half = np.linalg.cholesky(screened(role, DATA).toarray()[np.ix_(free, free)])
    spectrum = np.linalg.eigvalsh(half.T @ ((B + B.T) / 2) @ half)
    assert np.abs(1 - spectrum).max() < CONTRACTION.get(name, SMOOTH_CONTRACTION)


@pytest.mark.parametrize("name", ["one anchor", "anchors", "holes", "stripes"])
@pytest.mark.parametrize("data", [1e-8, 1e-5, 1e-3, 10.0, 1e6])
def test_cycle_stays_definite_at_any_data_weight(name, data):
    role = pattern(name, (40, 33))
    cycle = VCycle(build(code_of(role), data))
    rng = generator("definite", name, data)
    free = free_pixels(role)
    r, other = (pad(rng.normal(size=role.size) * free, role.shape) for _ in range(2))
    z, dot = cycle(r)
    assert dot > 0
    across = float((z.astype(float) * other).sum())
    size = float(np.linalg.norm(z.astype(float)) * np.linalg.norm(other.astype(float)))
    z, dot = cycle(other)
    assert dot > 0
    back = float((z.astype(float) * r).sum())
    assert across == pytest.approx(back, abs=10 * SYMMETRY * size)


def test_cycle_remembers_nothing():
    """Rings and work vectors are reused; the same residual must give the same bits after any other."""
    role = pattern("holes", (67, 45))
    cycle = VCycle(build(code_of(role), DATA))
    rng = generator("memory")
    r, other = (pad(rng.normal(size=role.size) * free_pixels(role), role.shape) for _ in range(2))
    first = cycle(r)[0].copy()
    cycle(1e6 * other)
    cycle.scratch[:] = 3.0  # the solver keeps Q p there
    np.testing.assert_array_equal(cycle(r)[0], first)


def test_parallel_passes_compute_what_the_serial_ones_do():
    """The same image with and without an empty lower half, which makes it large enough for several threads."""
    role = pattern("holes", (160, 140))
    large = np.concatenate([role, np.zeros((130, 140), np.uint8)])
    assert role.size < SERIAL / 1.5 < SERIAL < large.size
    hierarchies = [build(code_of(image), DATA) for image in (role, large)]
    assert len(hierarchies[0].levels) == len(hierarchies[1].levels)  # or the cycles would differ
    small, big = (hierarchy.levels[0].transfer for hierarchy in hierarchies)
    np.testing.assert_array_equal(big[:, :80], small[:, :80])
    assert not big[:, 81:].any()
    r = pad(generator("parallel").normal(size=role.size) * free_pixels(role), role.shape)
    z, dot = VCycle(hierarchies[0])(r)
    other, other_dot = VCycle(hierarchies[1])(np.pad(r, ((0, 130), (0, 0))))
    np.testing.assert_allclose(other[:162], z, rtol=0, atol=SYMMETRY * np.abs(z).max())
    assert other_dot == pytest.approx(dot, rel=SYMMETRY)
    assert not other[162:].any()


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare with one")
@pytest.mark.parametrize("shape", [(131, 20), (301, 165)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape):
    role = pattern("holes", shape)
    r = pad(generator("threads", shape).normal(size=role.size) * free_pixels(role), shape)
    results = []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            hierarchy = build(code_of(role), DATA)
            z, dot = VCycle(hierarchy)(r)
            stored = [array for level in hierarchy.levels for array in (level.operator, level.transfer)]
            results.append((*stored, hierarchy.inverse, z, dot))
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
