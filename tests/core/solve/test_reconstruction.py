"""The reconstruction: agreement with a direct solver, its laws, and how it reports failures."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import spsolve

from leadline.core.options import CompletionOptions, ReconstructionOptions
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.reconstruction import reconstruct
from leadline.core.solve.system import System
from support.operators import FREE, INVALID, MEASURED, free_pixels, generator, laplacian, pattern, shape_id, system

DIRECT = 1e-5  # of the largest residual, at the paper's weights and the default tolerance of 1e-6
OTHER_DIRECT = 1e-4  # other weights make the system worse conditioned, and the same residual a larger error
TIGHT = ReconstructionOptions.paper(tolerance=1e-11)
TIGHT_DIRECT = 1e-8

SHAPES = [(1, 1), (1, 40), (3, 5), (65, 34)]
MORE_SHAPES = [(33, 1), (2, 2), (31, 33), (40, 57)]
SOLVED = ["anchors", "holes", "stripes", "one anchor"]
WEIGHTS = {
    "paper": ReconstructionOptions.paper(),
    "stiff": ReconstructionOptions.paper(weight_laplacian=1.0),
    "membrane": ReconstructionOptions.paper(weight_laplacian=0.0),
    "long range": ReconstructionOptions.paper(weight_data=1e-6),
    "short range": ReconstructionOptions.paper(weight_data=10.0),
    "negligible data weight": ReconstructionOptions.paper(weight_data=1e-12),
}
every_shape = pytest.mark.parametrize(
    "shape",
    [*SHAPES, *(pytest.param(shape, marks=pytest.mark.full) for shape in MORE_SHAPES)],
    ids=shape_id,
)
solved = pytest.mark.parametrize("name", SOLVED)
solvers = pytest.mark.parametrize("solver", ["multigrid", "jacobi"])


def problem(role, *key):
    """Return a calibrated map and measurements (float64) that differ from it by some random per cent."""
    rng = generator(role.shape, *key)
    t = np.where(role == INVALID, np.nan, rng.uniform(1.0, 5.0, role.shape)).astype(np.float32)
    where = np.flatnonzero(role == MEASURED)
    return t, where, t.flat[where].astype(float) * np.exp(rng.normal(0.05, 0.1, where.size))


def residual_field(depth, t):
    """Return r = log D - log t, zero at invalid pixels."""
    return np.nan_to_num(np.log(depth.astype(float) / t.astype(float))).ravel()


def direct(role, t, where, measured, options):
    """Return the residual field solved by SuperLU from the matrix of Appendix A."""
    grad = options.weight_gradient
    Q = system(role, options.weight_data / grad, options.weight_laplacian / grad)
    free = free_pixels(role)
    r = np.zeros(role.size)
    r[where] = np.log(measured / t.flat[where].astype(float))
    if free.any():
        r[free] = spsolve(Q[free][:, free].tocsc(), -(Q[free][:, where] @ r[where]))
    return r


@pytest.mark.parametrize("options", WEIGHTS.values(), ids=WEIGHTS)
@solved
@every_shape
def test_solution_equals_the_direct_one(shape, name, options):
    role = pattern(name, shape)
    t, where, measured = problem(role, name)
    depth, result = reconstruct(t, where, measured, options)
    assert result.converged
    assert result.residual <= options.tolerance
    expected = direct(role, t, where, measured, options)
    tolerance = DIRECT if options is WEIGHTS["paper"] else OTHER_DIRECT
    atol = tolerance * np.abs(expected).max(initial=1e-12)
    np.testing.assert_allclose(residual_field(depth, t), expected, rtol=0, atol=atol)


# Iterations, sum of |r|, and r at two pixels, recorded with the first version of the paper's configuration.
RECORDED = {
    ("holes", (37, 22)): (17, 35.3099146, -0.0215709526, 0.0957859165),
    ("anchors", (131, 77)): (5, 593.956716, 0.0978096755, 0.0140704699),
    ("stripes", (65, 60)): (10, 185.618434, 0.0108188774, 0.0295903293),
    ("one anchor", (67, 90)): (5, 3.60641659, 0.000745929091, 0.000409252134),
}


@pytest.mark.parametrize(("name", "shape"), RECORDED)
def test_the_papers_configuration_gives_the_recorded_results(name, shape):
    """The bits are equal on one machine; the vector units of another round float32 differently, by some 1e-7."""
    role = pattern(name, shape)
    t, where, measured = problem(role, "record")
    depth, result = reconstruct(t, where, measured, CompletionOptions.paper().reconstruction)
    r, free = residual_field(depth, t), np.flatnonzero(free_pixels(role))
    iterations, *expected = RECORDED[name, shape]
    assert result.iterations == iterations
    found = [np.abs(r).sum(), r[free[free.size // 3]], r[free[2 * free.size // 3]]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@solvers
@solved
def test_a_tighter_tolerance_reduces_the_error(name, solver):
    role = pattern(name, (40, 57))
    t, where, measured = problem(role, name)
    options = ReconstructionOptions.paper(tolerance=TIGHT.tolerance, solver=solver, max_iterations=5000)
    depth, result = reconstruct(t, where, measured, options)
    assert result.status is SolveStatus.CONVERGED
    expected = direct(role, t, where, measured, options)
    np.testing.assert_allclose(residual_field(depth, t), expected, rtol=0, atol=TIGHT_DIRECT * np.abs(expected).max())


@solvers
@solved
def test_reported_residual_is_the_true_one(name, solver):
    role = pattern(name, (40, 57))
    t, where, measured = problem(role, name)
    options = ReconstructionOptions.paper(solver=solver)
    field = np.zeros(role.size)
    field[where] = np.log(measured / t.flat[where])
    Q, free = system(role, 1e-3, 1e-3), free_pixels(role)
    size = np.linalg.norm((Q @ field)[free])
    solution = System(role != INVALID, where, options).solve(field[where])
    left = np.linalg.norm((Q @ solution.interior.ravel())[free])
    assert solution.residual == pytest.approx(left / size, rel=1e-5)
    assert solution.history[0] == 1.0
    assert solution.history[-1] == solution.residual
    assert len(solution.history) == solution.iterations + 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@solved
@every_shape
def test_measured_pixels_are_exact_and_invalid_ones_nan(shape, name, dtype):
    role = pattern(name, shape)
    t, where, measured = problem(role, name)
    measured = measured.astype(dtype)
    before = t.copy(), where.copy(), measured.copy()
    depth, _ = reconstruct(t, where, measured, ReconstructionOptions.paper())
    assert depth.dtype == dtype
    np.testing.assert_array_equal(depth.flat[where], measured)
    np.testing.assert_array_equal(np.isnan(depth), role == INVALID)
    assert (depth[role != INVALID] > 0).all()
    for ours, theirs in zip((t, where, measured), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@solvers
@pytest.mark.parametrize("name", ["anchors", "holes", "full", "empty", "open"])
def test_measurements_equal_to_the_calibrated_map_leave_it_unchanged(name, solver):
    role = pattern(name, (33, 20))
    t, where, _ = problem(role, name)
    depth, result = reconstruct(t, where, t.flat[where], ReconstructionOptions.paper(solver=solver))
    np.testing.assert_array_equal(depth, t)
    assert result.status is SolveStatus.NOTHING_TO_SOLVE
    assert result.converged
    assert (result.iterations, result.residual, result.history) == (0, 0.0, ())


def test_every_pixel_measured_leaves_nothing_to_solve():
    t, where, measured = problem(pattern("full", (33, 20)))
    depth, result = reconstruct(t, where, measured, ReconstructionOptions.paper())
    np.testing.assert_array_equal(depth.ravel(), measured)
    assert result.converged
    assert "differs from the calibrated prior next to a pixel that has to be filled" in str(result.status)


@solvers
@pytest.mark.parametrize("data", [1e-3, 1e-9])
@pytest.mark.parametrize("wall", [slice(29, 30), slice(30, 31), slice(26, 37)], ids=str)
def test_component_without_a_measurement_keeps_the_calibrated_map(wall, data, solver):
    """Bit for bit, also behind a wall of one pixel, and with a data weight too small to hold it in place."""
    role = pattern("holes", (60, 60))
    role[wall] = INVALID  # all measurements are above it
    role[wall.start :][role[wall.start :] == MEASURED] = FREE
    role[5:8, 5:8] = INVALID
    role[6, 6] = FREE  # a valid pixel without neighbours
    t, where, measured = problem(role, "components")
    options = ReconstructionOptions.paper(solver=solver, weight_data=data, max_iterations=1000)
    depth, result = reconstruct(t, where, measured.astype(np.float32), options)
    assert result.converged
    _, label = connected_components(laplacian(role))
    observed = np.isin(label, label[where]).reshape(role.shape)
    assert not observed[6, 6]
    assert not observed[wall.stop :].any()
    np.testing.assert_array_equal(depth[~observed], t[~observed])
    moved = observed & (role == FREE)
    assert (depth[moved] != t[moved]).mean() > 0.9


def test_an_isolated_measured_pixel_has_no_influence():
    role = pattern("anchors", (20, 20))
    role[4:7, 4:7] = INVALID
    role[5, 5] = MEASURED
    t, where, measured = problem(role, "lone")
    measured[where == 5 * 20 + 5] *= 1000.0
    depth, _ = reconstruct(t, where, measured, TIGHT)
    expected = direct(role, t, where, measured, TIGHT)
    atol = TIGHT_DIRECT * np.abs(expected[free_pixels(role)]).max()
    error = (residual_field(depth, t) - expected)[free_pixels(role)]
    np.testing.assert_allclose(error, 0.0, rtol=0, atol=atol)


@pytest.mark.parametrize("turn", [np.flipud, np.fliplr, np.transpose, np.rot90], ids=lambda f: f.__name__)
@solved
def test_flips_and_transposes_commute(name, turn):
    """Coarse levels keep even rows and columns, so a flip changes the hierarchy, but must not change the solution."""
    role = pattern(name, (40, 57))
    t, where, measured = problem(role, name)
    image = np.full(role.shape, np.nan)
    image.flat[where] = measured
    turned = np.ascontiguousarray(turn(image))
    there = np.flatnonzero(np.isfinite(turned))
    depth, _ = reconstruct(t, where, measured, TIGHT)
    other, _ = reconstruct(np.ascontiguousarray(turn(t)), there, turned.flat[there], TIGHT)
    np.testing.assert_allclose(other, turn(depth), rtol=1e-8)


@solvers
def test_solution_is_linear_in_the_measured_residual(solver):
    """Twice the residual gives the same run to the last bit, because powers of two do not round."""
    role = pattern("holes", (65, 34))
    where = np.flatnonzero(role == MEASURED)
    values = generator("linear").normal(size=where.size)
    system_ = System(role != INVALID, where, ReconstructionOptions.paper(solver=solver))
    once, twice = system_.solve(values), system_.solve(2 * values)
    np.testing.assert_array_equal(twice.field, 2 * once.field)
    assert twice.history == once.history


def test_only_the_ratios_of_the_weights_matter():
    role = pattern("holes", (40, 57))
    t, where, measured = problem(role, "ratio")
    once, _ = reconstruct(t, where, measured, ReconstructionOptions.paper())
    paper = CompletionOptions.paper().reconstruction
    eight = ReconstructionOptions.paper(
        weight_gradient=8 * paper.weight_gradient,
        weight_data=8 * paper.weight_data,
        weight_laplacian=8 * paper.weight_laplacian,
    )
    np.testing.assert_array_equal(reconstruct(t, where, measured, eight)[0], once)


@solved
def test_membrane_stays_between_its_measurements(name):
    """Without the bending term the system obeys a maximum principle; the data term moves r towards zero."""
    role = pattern(name, (40, 57))
    t, where, measured = problem(role, name)
    depth, _ = reconstruct(t, where, measured, ReconstructionOptions.paper(weight_laplacian=0.0, tolerance=1e-10))
    given = np.log(measured / t.flat[where])
    r = residual_field(depth, t)
    assert r.max() <= max(given.max(), 0.0) + 1e-9
    assert r.min() >= min(given.min(), 0.0) - 1e-9


# --- failures ------------------------------------------------------------------------------------------------------


@solvers
def test_iteration_limit_returns_the_last_iterate(solver):
    role = pattern("anchors", (65, 60))
    t, where, measured = problem(role, "limit")
    exact = direct(role, t, where, measured, TIGHT)
    errors = []
    for limit in (1, 2, 3):
        options = ReconstructionOptions.paper(solver=solver, max_iterations=limit)
        depth, result = reconstruct(t, where, measured, options)
        assert result.status is SolveStatus.ITERATION_LIMIT
        assert not result.converged
        assert result.iterations == limit
        assert options.tolerance < result.residual < 1.0
        assert "raise `reconstruction.max_iterations`" in str(result.status)
        np.testing.assert_array_equal(depth.flat[where], measured)
        errors.append(np.linalg.norm(residual_field(depth, t) - exact))
    assert np.linalg.norm(exact) > errors[0] > errors[1] > errors[2]


@solvers
@pytest.mark.parametrize("tolerance", [1e-9, 1e-13, 1e-18, 1e-40, 1e-300])
def test_a_tolerance_out_of_reach_gives_a_status_and_the_best_solution(tolerance, solver):
    role = pattern("holes", (40, 57))
    t, where, measured = problem(role, "tolerance")
    options = ReconstructionOptions.paper(tolerance=tolerance, solver=solver, max_iterations=2000)
    _, result = reconstruct(t, where, measured, options)
    expected = SolveStatus.CONVERGED if tolerance >= 1e-13 else SolveStatus.STAGNATED
    assert result.status is expected
    assert result.residual <= max(tolerance, 1e-14)  # far below float32: the solution and its true residual are float64


@solvers
@pytest.mark.parametrize(
    "weights",
    [(1.0, 1e300, 0.0), (1.0, 1e300, 1e-3), (1e-300, 1e-3, 1e-3), (1.0, 1e38, 0.0), (1.0, 3e38, 1e-3),
     (1.0, 1e-3, 1e38), (1.0, 5e-324, 0.0), (1e300, 1e-300, 0.0), (1e-20, 1e-20, 1e20), (1.0, 1e-3, 1e300)],
    ids=str,
)  # fmt: skip
def test_absurd_weights_give_a_status_and_a_map(weights, solver):
    role = pattern("holes", (33, 30))
    t, where, measured = problem(role, "absurd")
    grad, data, lap = weights
    options = ReconstructionOptions.paper(weight_gradient=grad, weight_data=data, weight_laplacian=lap, solver=solver)
    depth, result = reconstruct(t, where, measured, options)
    assert result.converged or "look for extreme values" in str(result.status) or not result.residual <= 1e-6
    np.testing.assert_array_equal(np.isfinite(depth), role != INVALID)
    np.testing.assert_array_equal(depth.flat[where], measured)


@pytest.mark.parametrize("data", 10.0 ** np.arange(-12, 13, 3))
@solved
def test_every_data_weight_converges(name, data):
    """With a large one, coarse pixels in holes have tiny equations, and scaling these amplified rounding errors."""
    role = pattern(name, (67, 90))
    t, where, measured = problem(role, name)
    _, result = reconstruct(t, where, measured, ReconstructionOptions.paper(weight_data=data))
    assert result.status is SolveStatus.CONVERGED
