"""The membrane hierarchy and V-cycle equal explicit matrices and have the properties that CG needs."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from leadline.base.jit import SERIAL_BELOW
from leadline.core.solve.membrane import MembraneCycle, build_membrane
from leadline.core.solve.multigrid import COARSEST
from support.operators import (
    code_of,
    every_image,
    every_shape,
    explicit_levels,
    free_pixels,
    generator,
    level_sizes,
    membrane_system,
    pad,
    pattern,
    stored_levels,
    v_cycle,
)

SCALED = 5e-7  # float32 rounding over up to seven levels; multiplied by the cancellation
CYCLE = 1e-4  # Without measurements only the data weight makes the coarsest level definite: 6e-8 of rounding over 1e-3.
SYMMETRY = 2e-6  # float32 arithmetic on vectors of order one
DATA = 1e-3
WEIGHTS = (1e-3, 0.7)
# Largest factor that one cycle leaves of an error in the energy norm. Plain bilinear weights, or a coarse operator
# that ignores the measurements, leave 0.5 and more. If every third pixel is a hole, the coarse grid represents little.
CONTRACTION = {"holes": 0.95, "stripes": 0.8}
SMOOTH_CONTRACTION = 0.25


def dense_cycle(role, data):
    """Return B, (n, n) over all pixels, column by column from the compiled cycle."""
    cycle = MembraneCycle(build_membrane(code_of(role), data))
    free = free_pixels(role)
    matrix = np.zeros((role.size, role.size))
    for pixel in np.flatnonzero(free):
        unit = np.zeros(role.size)
        unit[pixel] = 1.0
        matrix[:, pixel] = cycle(pad(unit, role.shape))[0][1:-1, 1:-1].ravel()
    return matrix


@every_shape
def test_sizes_halve_down_to_the_coarsest(shape):
    sizes = level_sizes(build_membrane(code_of(pattern("open", shape)), DATA))
    assert tuple(sizes[0]) == shape
    assert len(sizes) >= 2
    np.testing.assert_array_equal(sizes[1:], (sizes[:-1] + 1) // 2)
    assert sizes[-1].prod() <= COARSEST
    assert all(size.prod() > COARSEST for size in sizes[1:-1])


@pytest.mark.parametrize("data", WEIGHTS)
@every_image
def test_levels_follow_from_their_definitions(shape, name, data):
    """Interpolation by Dendy's rule, the Galerkin product P^T S P, and their scaling, on every level."""
    role = pattern(name, shape)
    hierarchy = build_membrane(code_of(role), data)
    expected = explicit_levels(role, data, level_sizes(hierarchy))
    for level, (ours, theirs) in enumerate(zip(stored_levels(hierarchy), expected[1:], strict=True), 1):
        tolerance = SCALED * theirs.cancellation
        wrong = np.abs(ours.prolongation.toarray() - theirs.prolongation.toarray()) > tolerance
        assert not wrong.any(), f"prolongation from level {level}: {np.argwhere(wrong)[:5].tolist()}"
        # Rows without an equation are empty in the definition, but have a unit diagonal in the stored level.
        operator = theirs.operator.toarray()
        operator += np.diag(operator.diagonal() == 0)
        wrong = np.abs(ours.operator.toarray() - operator) > np.maximum.outer(tolerance, tolerance)
        assert not wrong.any(), f"operator of level {level}: {np.argwhere(wrong)[:5].tolist()}"


@pytest.mark.parametrize("data", WEIGHTS)
@every_image
def test_cycle_equals_the_explicit_matrix(shape, name, data):
    role = pattern(name, shape)
    hierarchy = build_membrane(code_of(role), data)
    expected = v_cycle(explicit_levels(role, data, level_sizes(hierarchy)), data)
    cycle = MembraneCycle(hierarchy)
    free = free_pixels(role)
    for trial in range(3):
        r = pad(generator(shape, name, trial).normal(size=role.size) * free, shape)
        before = r.copy()
        z, dot = cycle(r)
        explicit = expected @ r[1:-1, 1:-1].ravel().astype(float)
        np.testing.assert_allclose(
            z, pad(explicit, shape, float), rtol=0, atol=CYCLE * np.abs(explicit).max(initial=1.0)
        )
        assert dot == pytest.approx(float((z.astype(float) * r).sum()), rel=1e-12)
        assert not z[1:-1, 1:-1].ravel()[~free].any(), "a pixel without an equation was moved"
        np.testing.assert_array_equal(r, before)


@pytest.mark.parametrize("shape", [(13, 18), (1, 60), (35, 5), (2, 2)], ids=str)
@pytest.mark.parametrize("name", ["open", "one anchor", "anchors", "holes", "stripes"])
def test_cycle_is_symmetric_positive_definite_and_contracts(shape, name):
    role = pattern(name, shape)
    free = free_pixels(role)
    B = dense_cycle(role, DATA)[np.ix_(free, free)]
    np.testing.assert_allclose(B, B.T, rtol=0, atol=SYMMETRY * np.abs(B).max())
    assert np.linalg.eigvalsh((B + B.T) / 2).min() > 0
    # The eigenvalues of B S are near one for a good preconditioner.
    half = np.linalg.cholesky(membrane_system(role, DATA).toarray()[np.ix_(free, free)])
    spectrum = np.linalg.eigvalsh(half.T @ ((B + B.T) / 2) @ half)
    assert np.abs(1 - spectrum).max() < CONTRACTION.get(name, SMOOTH_CONTRACTION)


@pytest.mark.parametrize("name", ["one anchor", "anchors", "holes", "stripes"])
@pytest.mark.parametrize("data", [1e-8, 1e-5, 1e-3, 10.0, 1e6])
def test_cycle_stays_definite_at_any_data_weight(name, data):
    role = pattern(name, (40, 33))
    cycle = MembraneCycle(build_membrane(code_of(role), data))
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


def test_cycle_does_not_depend_on_earlier_calls():
    """Work vectors are reused; the same residual must give the same bits after any other."""
    role = pattern("holes", (67, 45))
    cycle = MembraneCycle(build_membrane(code_of(role), DATA))
    rng = generator("memory")
    r, other = (pad(rng.normal(size=role.size) * free_pixels(role), role.shape) for _ in range(2))
    first = cycle(r)[0].copy()
    cycle(1e6 * other)
    cycle.solution[1:-1, 1:-1] = 3.0  # the solver stores Q p there
    np.testing.assert_array_equal(cycle(r)[0], first)


def test_parallel_passes_compute_what_the_serial_ones_do():
    """The same image with and without an empty lower half, which makes it large enough for several threads."""
    role = pattern("holes", (160, 140))
    large = np.concatenate([role, np.zeros((130, 140), np.uint8)])
    assert role.size < SERIAL_BELOW / 1.5 < SERIAL_BELOW < large.size
    hierarchies = [build_membrane(code_of(image), DATA) for image in (role, large)]
    assert len(hierarchies[0].levels) == len(hierarchies[1].levels)  # or the cycles would differ
    small, big = (hierarchy.levels[1].prolongation for hierarchy in hierarchies)
    np.testing.assert_array_equal(big[:, :80], small[:, :80])
    assert not big[:, 81:].any()
    r = pad(generator("parallel").normal(size=role.size) * free_pixels(role), role.shape)
    z, dot = MembraneCycle(hierarchies[0])(r)
    other, other_dot = MembraneCycle(hierarchies[1])(np.pad(r, ((0, 130), (0, 0))))
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
            hierarchy = build_membrane(code_of(role), DATA)
            z, dot = MembraneCycle(hierarchy)(r)
            stored = [array for level in hierarchy.levels for array in (level.edges, level.prolongation)]
            results.append((*stored, hierarchy.inverse, z, dot))
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
