"""The general residual system: against a direct solver, its laws, its preconditioner, and how it takes bad input."""

from __future__ import annotations

from itertools import product

import numba
import numpy as np
import pytest
from scipy.sparse.linalg import spsolve

from leadline.base.errors import InputError
from leadline.core.options import ReconstructionOptions
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.multigrid.thin_plate import build_plate
from leadline.core.solve.multigrid.thin_plate_cycle import PlateCycle
from leadline.core.solve.reconstruction import reconstruct
from leadline.core.solve.system import STIFF, System
from support.operators import (
    EDGES,
    FREE,
    INVALID,
    MEASURED,
    code_of,
    edge_planes,
    edge_weights,
    free_pixels,
    generator,
    pad,
    pattern,
    system,
)

# The solves below stop at a residual of 1e-9; what that leaves of error depends on the smallest eigenvalue.
TIGHT = 1e-9
DIRECT = 1e-5  # of the largest residual
SYMMETRY = 3e-6  # float32 arithmetic on vectors of order one
SHAPES = [(1, 40), (33, 1), (2, 2), (3, 5), (40, 57)]
SOLVED = ["anchors", "holes", "one anchor"]
WEIGHTS = {  # data, bending
    "membrane": (1e-3, 0.0),
    "paper": (1e-3, 1e-3),
    "stiff": (1e-3, 1.0),
    "plate": (1e-3, 10.0),
    "stiffest": (1e-3, 100.0),
    "threshold": (1e-3, STIFF),
}
PRECISION = {
    "hard": lambda n, rng: np.full(n, np.inf),
    "soft": lambda n, rng: 10.0 ** rng.uniform(-1, 3, n),
    "mixed": lambda n, rng: np.where(rng.random(n) < 0.5, np.inf, 10.0 ** rng.uniform(-1, 3, n)),
    "faint": lambda n, rng: np.full(n, 1e-6),
    "firm": lambda n, rng: np.full(n, 1e6),
}
shapes = pytest.mark.parametrize("shape", SHAPES, ids="{0[0]}x{0[1]}".format)
solved = pytest.mark.parametrize("name", SOLVED)
precisions = pytest.mark.parametrize("kind", PRECISION)


def options_of(weights, tolerance=TIGHT, **rest):
    data, bending = WEIGHTS[weights]
    return ReconstructionOptions(weight_data=data, weight_laplacian=bending, tolerance=tolerance, **rest)


class Problem:
    """A pattern of pixels with measurements of the given kind on a graph with the given weights."""

    def __init__(self, name, shape, kind, edges):
        rng = generator("problem", name, shape, kind, edges)
        self.role, self.valid = pattern(name, shape), pattern(name, shape) != INVALID
        self.where = np.flatnonzero(self.role == MEASURED)
        self.values = rng.normal(0.05, 0.1, self.where.size)
        self.precision = PRECISION[kind](self.where.size, rng)
        self.edges = edge_weights(edges, shape)

    def system(self, options):
        return System(self.valid, self.where, options, edges=self.edges, precision=self.precision)

    def direct(self, options):
        """The same field by SuperLU, and where it is free."""
        hard = np.isinf(self.precision)
        role = self.role.copy()
        role.flat[self.where[~hard]] = FREE
        free = free_pixels(role)
        mass = np.zeros(role.size)
        mass[self.where[~hard]] = self.precision[~hard]
        grad = options.weight_gradient
        Q = system(role, options.weight_data / grad, options.weight_laplacian / grad, self.edges, mass)
        r, b = np.zeros(role.size), np.zeros(role.size)
        r[self.where[hard]] = self.values[hard]
        b[self.where[~hard]] = mass[self.where[~hard]] * self.values[~hard]
        if free.any():
            r[free] = spsolve(Q[free][:, free].tocsc(), (b - Q @ r)[free])
        return r, free


DIRECT_CASES = [
    (name, kind, weights)
    for name, kind, weights in product(SOLVED, PRECISION, ["membrane", "stiff", "plate"])
    # Every third pixel a hole and next to no measurement: it arrives, but after a thousand iterations.
    if (name, kind, weights) != ("holes", "faint", "plate")
]


@pytest.mark.parametrize(("name", "kind", "weights"), DIRECT_CASES)
@shapes
def test_solution_is_the_direct_one(shape, name, kind, weights):
    problem, options = Problem(name, shape, kind, "mild"), options_of(weights, max_iterations=2000)
    solution = problem.system(options).solve(problem.values)
    assert solution.status in (SolveStatus.CONVERGED, SolveStatus.NOTHING_TO_SOLVE)
    expected, free = problem.direct(options)
    error = (solution.interior.ravel() - expected)[free]
    np.testing.assert_allclose(error, 0.0, rtol=0, atol=DIRECT * np.abs(expected).max(initial=1e-12))


@pytest.mark.parametrize("weights", ["threshold", "stiffest"])
@precisions
def test_stiff_plates_and_hardly_any_bending(kind, weights):
    problem, options = Problem("anchors", (40, 57), kind, "mild"), options_of(weights, max_iterations=1000)
    solution = problem.system(options).solve(problem.values)
    assert solution.status is SolveStatus.CONVERGED
    expected, free = problem.direct(options)
    error = (solution.interior.ravel() - expected)[free]
    np.testing.assert_allclose(error, 0.0, rtol=0, atol=DIRECT * np.abs(expected).max())


@pytest.mark.parametrize("solver", ["multigrid", "jacobi"])
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("kind", ["hard", "mixed", "firm"])
def test_any_edge_weights_down_to_a_millionth(kind, edges, solver):
    """Here pixels hang on by 1e-6 or by the data weight alone, so the same residual is a larger error."""
    problem = Problem("anchors", (31, 33), kind, edges)
    options = options_of("stiff", tolerance=1e-9, max_iterations=3000, solver=solver)
    solution = problem.system(options).solve(problem.values)
    expected, free = problem.direct(options)
    error = (solution.interior.ravel() - expected)[free]
    np.testing.assert_allclose(error, 0.0, rtol=0, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("weights", ["paper", "plate"])
def test_hard_measurements_are_exact_and_soft_ones_lie_between(weights):
    problem = Problem("anchors", (40, 57), "mixed", "mild")
    field = problem.system(options_of(weights)).solve(problem.values).interior.ravel()[problem.where]
    hard = np.isinf(problem.precision)
    np.testing.assert_array_equal(field[hard], problem.values[hard])
    assert (field[~hard] != problem.values[~hard]).all()


def test_precision_runs_from_no_measurement_to_a_hard_one():
    problem, options = Problem("anchors", (40, 57), "hard", "mild"), options_of("stiff")
    hard = problem.system(options).solve(problem.values).interior
    size = np.abs(hard).max()
    firm, faint = (
        System(problem.valid, problem.where, options, edges=problem.edges, precision=np.full(problem.where.size, c))
        .solve(problem.values)
        .interior
        for c in (1e9, 1e-9)
    )
    np.testing.assert_allclose(firm, hard, rtol=0, atol=1e-5 * size)
    assert np.abs(faint).max() < 1e-4 * size


@pytest.mark.parametrize("turn", [np.flipud, np.fliplr, np.transpose, np.rot90], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["anchors", "holes"])
def test_flips_and_transposes_commute(name, turn):
    problem, options = Problem(name, (40, 57), "mixed", "mild"), options_of("stiff", tolerance=1e-12)
    number = np.full(problem.role.shape, -1)
    number.flat[problem.where] = np.arange(problem.where.size)
    turned = turn(number).ravel()
    there = np.flatnonzero(turned >= 0)
    order = turned[there]
    edges = tuple(turn(weight) for weight in problem.edges)
    edges = edges[::-1] if turn in (np.transpose, np.rot90) else edges
    valid = np.ascontiguousarray(turn(problem.valid))
    other = System(valid, there, options, edges=edges, precision=problem.precision[order]).solve(problem.values[order])
    field = problem.system(options).solve(problem.values).interior
    np.testing.assert_allclose(other.interior, turn(field), rtol=0, atol=1e-8 * np.abs(field).max())


@pytest.mark.parametrize("weights", ["paper", "plate"])
def test_a_system_serves_many_right_hand_sides(weights):
    problem, options = Problem("holes", (40, 57), "mixed", "mild"), options_of(weights, tolerance=1e-6)
    kept = problem.system(options)
    first = kept.solve(problem.values)
    kept.solve(generator("other").normal(size=problem.where.size))
    again, fresh = kept.solve(problem.values), problem.system(options).solve(problem.values)
    np.testing.assert_array_equal(again.field, first.field)
    np.testing.assert_array_equal(fresh.field, first.field)
    twice = kept.solve(2 * problem.values)
    np.testing.assert_array_equal(twice.field, 2 * first.field)
    assert twice.history == first.history


def test_a_warm_start_saves_iterations_and_changes_nothing_else():
    problem, options = Problem("anchors", (65, 60), "mixed", "mild"), options_of("plate", tolerance=1e-6)
    kept = problem.system(options)
    cold = kept.solve(problem.values)
    before = cold.interior.copy()
    assert kept.solve(problem.values, start=cold.interior).iterations == 0
    nearby = problem.values * 1.001
    warm, fresh = kept.solve(nearby, start=cold.interior), kept.solve(nearby)
    assert warm.status is SolveStatus.CONVERGED
    assert warm.residual <= options.tolerance
    assert warm.iterations < fresh.iterations
    np.testing.assert_allclose(warm.field, fresh.field, rtol=0, atol=1e-4 * np.abs(fresh.field).max())
    np.testing.assert_array_equal(cold.interior, before)


def test_reweighting_is_a_system_with_other_precisions():
    problem, options = Problem("holes", (40, 57), "soft", "mild"), options_of("plate", tolerance=1e-6)
    other = problem.precision[::-1].copy()
    changed = problem.system(options).reweighted(other).solve(problem.values)
    fresh = System(problem.valid, problem.where, options, edges=problem.edges, precision=other).solve(problem.values)
    np.testing.assert_array_equal(changed.field, fresh.field)


def test_a_component_with_soft_measurements_only_is_solved_and_one_without_any_keeps_the_calibrated_map():
    valid = np.ones((30, 31), bool)
    valid[:, [10, 20]] = False
    where = np.array([5, 31 + 15])  # one in the first part, one in the second
    options = options_of("stiff")
    field = System(valid, where, options, precision=np.array([np.inf, 2.0])).solve(np.array([0.1, 0.2])).interior
    assert (np.abs(field[:, :10]) > 0).all()
    assert (field[:, 11:20] > 0).all()
    assert not field[:, 20:].any()
    assert not field[:, 10].any()


@pytest.mark.parametrize("precision", [None, np.zeros(0)])
def test_nothing_measured_is_nothing_to_solve(precision):
    for weights in ("paper", "plate"):
        nothing = System(np.ones((9, 8), bool), np.zeros(0, int), options_of(weights), precision=precision)
        solution = nothing.solve(np.zeros(0))
        assert solution.status is SolveStatus.NOTHING_TO_SOLVE
        assert not solution.field.any()


def test_the_papers_system_needs_a_byte_per_pixel():
    valid, where = np.ones((9, 8), bool), np.array([3, 40])
    assert System(valid, where, ReconstructionOptions()).operator.edges is None
    assert System(valid, where, ReconstructionOptions(), precision=np.array([np.inf, np.inf])).operator.edges is None
    assert System(valid, where, ReconstructionOptions(weight_laplacian=1.0)).operator.edges is not None


def test_targets_replace_the_measured_residual_and_exact_says_what_is_written_back():
    problem = Problem("holes", (31, 33), "soft", "mild")
    t = np.where(problem.valid, np.float32(2), np.float32(np.nan))
    measured = np.full(problem.where.size, 3.0)
    exact = generator("exact").random(problem.where.size) < 0.5
    options = options_of("stiff", tolerance=1e-6)
    system_ = problem.system(options)
    depth, _ = reconstruct(
        t, problem.where, measured, options, edges=problem.edges, precision=problem.precision,
        targets=problem.values, exact=exact,
    )  # fmt: skip
    field = system_.solve(problem.values).interior
    np.testing.assert_allclose(
        depth.flat[problem.where], np.where(exact, 3.0, 2.0 * np.exp(field.flat[problem.where])), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"precision": np.ones(3)}, "`precision` must hold a positive number for each of the 2"),
        ({"precision": np.array([1.0, 0.0])}, "`precision` must hold a positive number"),
        ({"precision": np.array([1.0, np.nan])}, "`precision` must hold a positive number"),
        ({"edges": (np.ones((9, 8)), np.ones((8, 8)))}, r"`edges` must have shape \(9, 7\) towards the right"),
        ({"edges": (np.ones((9, 7)), np.ones((9, 8)))}, r"`edges` must have shape \(8, 8\) towards the lower"),
        ({"edges": (np.ones((9, 7)), np.zeros((8, 8)))}, "`edges` must be above 0 and at most 1"),
        ({"edges": (np.full((9, 7), np.nan), np.ones((8, 8)))}, "`edges` must be above 0 and at most 1"),
        ({"edges": (np.full((9, 7), 1.5), np.ones((8, 8)))}, "`edges` must be above 0 and at most 1"),
    ],
)
def test_bad_weights_are_refused_in_one_sentence(wrong, said):
    with pytest.raises(InputError, match=said):
        System(np.ones((9, 8), bool), np.array([3, 40]), ReconstructionOptions(), **wrong)


def test_edges_beside_invalid_pixels_do_not_count():
    problem = Problem("holes", (31, 33), "mixed", "mild")
    options = options_of("stiff", tolerance=1e-6)
    across, down = (weight.copy() for weight in problem.edges)
    across[~(problem.valid[:, :-1] & problem.valid[:, 1:])] = np.nan
    down[~(problem.valid[:-1] & problem.valid[1:])] = -1
    other = System(problem.valid, problem.where, options, edges=(across, down), precision=problem.precision)
    expected = problem.system(options).solve(problem.values).field
    np.testing.assert_array_equal(other.solve(problem.values).field, expected)


# --- the preconditioner --------------------------------------------------------------------------------------------


def plate_cycle(role, edges, bending, rng):
    mass = pad(np.where(rng.random(role.size) < 0.1, 10.0 ** rng.uniform(-2, 3, role.size), 1e-3), role.shape)
    mass *= code_of(role) > 0
    return PlateCycle(build_plate(code_of(role), edge_planes(role, edge_weights(edges, role.shape)), mass, bending))


@pytest.mark.parametrize("bending", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("name", ["open", "anchors", "holes"])
@pytest.mark.parametrize("shape", [(13, 18), (35, 5), (1, 60)], ids=str)
def test_cycle_is_symmetric_and_positive_definite(shape, name, bending):
    role = pattern(name, shape)
    free = free_pixels(role)
    cycle = plate_cycle(role, "mild", bending, generator("cycle", shape, name, bending))
    cycle.damping = 0.5  # as low as the solver would go should it meet such a system; tried below
    columns = []
    for pixel in np.flatnonzero(free):
        unit = np.zeros(role.size)
        unit[pixel] = 1.0
        z, dot = cycle(pad(unit, shape))
        assert dot == pytest.approx(float(z[1:-1, 1:-1].ravel()[pixel]), rel=1e-12)
        assert not z[1:-1, 1:-1].ravel()[~free].any(), "a pixel without an equation was moved"
        columns.append(z[1:-1, 1:-1].ravel()[free])
    B = np.array(columns, float)
    np.testing.assert_allclose(B, B.T, rtol=0, atol=SYMMETRY * np.abs(B).max())
    assert np.linalg.eigvalsh((B + B.T) / 2).min() > 0


def test_cycle_remembers_nothing():
    role = pattern("holes", (67, 45))
    rng = generator("memory")
    cycle = plate_cycle(role, "mild", 10.0, rng)
    r, other = (pad(rng.normal(size=role.size) * free_pixels(role), role.shape) for _ in range(2))
    first = cycle(r)[0].copy()
    cycle(1e6 * other)
    cycle.scratch[:] = 3.0
    np.testing.assert_array_equal(cycle(r)[0], first)


def test_a_cycle_that_overshoots_is_damped_and_the_solve_goes_on(monkeypatch):
    """Every other edge a millionth, and bending alone: the bound on the smoother's step does not hold."""
    problem, options = Problem("anchors", (40, 57), "hard", "wild"), options_of("stiffest", 1e-6, max_iterations=2000)
    asked = []
    monkeypatch.setattr(PlateCycle, "relax", lambda self, relax=PlateCycle.relax: asked.append(1) or relax(self))
    solution = problem.system(options).solve(problem.values)
    assert asked
    assert solution.status is SolveStatus.CONVERGED
    assert solution.residual <= 1e-6


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare with one")
@pytest.mark.parametrize("shape", [(131, 20), (301, 165)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape):
    problem, options = Problem("holes", shape, "mixed", "mild"), options_of("stiff", 1e-6)
    results = []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            solution = problem.system(options).solve(problem.values)
            results.append((solution.field, solution.history))
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
