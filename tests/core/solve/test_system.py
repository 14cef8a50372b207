"""The general residual system: agreement with a direct solver, symmetries, warm starts, damping and bad input."""

from __future__ import annotations

from itertools import product

import numba
import numpy as np
import pytest
from scipy.sparse.linalg import spsolve

from leadline.base.errors import InputError
from leadline.core.options import ReconstructionOptions
from leadline.core.solve.cg import SolveStatus
from leadline.core.solve.reconstruction import reconstruct
from leadline.core.solve.system import THIN_PLATE_FROM, System
from leadline.core.solve.thin_plate_cycle import ThinPlateCycle
from support.operators import (
    EDGES,
    FREE,
    INVALID,
    MEASURED,
    edge_weights,
    free_pixels,
    generator,
    pattern,
    shape_id,
    system,
)

# The solves below stop at a residual of 1e-9. The error that remains depends on the smallest eigenvalue.
TIGHT = 1e-9
DIRECT = 1e-5  # of the largest residual
SHAPES = [(1, 40), (3, 5), (40, 57)]
MORE_SHAPES = [(33, 1), (2, 2)]
SOLVED = ["anchors", "holes", "one anchor"]
SYSTEM_WEIGHTS = {  # data weight, bending weight
    "membrane": (1e-3, 0.0),
    "paper": (1e-3, 1e-3),
    "stiff": (1e-3, 1.0),
    "thin plate": (1e-3, 10.0),
    "stiffest": (1e-3, 100.0),
    "threshold": (1e-3, THIN_PLATE_FROM),
}
MEASUREMENT_WEIGHTS = {
    "hard": lambda n, rng: np.full(n, np.inf),
    "soft": lambda n, rng: 10.0 ** rng.uniform(-1, 3, n),
    "mixed": lambda n, rng: np.where(rng.random(n) < 0.5, np.inf, 10.0 ** rng.uniform(-1, 3, n)),
    "weak": lambda n, rng: np.full(n, 1e-6),
    "strong": lambda n, rng: np.full(n, 1e6),
}


def options_of(weights, tolerance=TIGHT, **rest):
    data, bending = SYSTEM_WEIGHTS[weights]
    return ReconstructionOptions.paper(weight_data=data, weight_laplacian=bending, tolerance=tolerance, **rest)


class Problem:
    """A pattern of pixels, measurement weights of one kind, and edge weights of one kind."""

    def __init__(self, name, shape, kind, edges):
        rng = generator("problem", name, shape, kind, edges)
        self.role, self.valid = pattern(name, shape), pattern(name, shape) != INVALID
        self.where = np.flatnonzero(self.role == MEASURED)
        self.values = rng.normal(0.05, 0.1, self.where.size)
        self.weights = MEASUREMENT_WEIGHTS[kind](self.where.size, rng)
        self.edges = edge_weights(edges, shape)

    def system(self, options):
        return System(self.valid, self.where, options, edges=self.edges, weights=self.weights)

    def direct(self, options):
        """Return the field solved by SuperLU, and the free pixels."""
        hard = np.isinf(self.weights)
        role = self.role.copy()
        role.flat[self.where[~hard]] = FREE
        free = free_pixels(role)
        mass = np.zeros(role.size)
        mass[self.where[~hard]] = self.weights[~hard]
        grad = options.weight_gradient
        Q = system(role, options.weight_data / grad, options.weight_laplacian / grad, self.edges, mass)
        r, b = np.zeros(role.size), np.zeros(role.size)
        r[self.where[hard]] = self.values[hard]
        b[self.where[~hard]] = mass[self.where[~hard]] * self.values[~hard]
        if free.any():
            r[free] = spsolve(Q[free][:, free].tocsc(), (b - Q @ r)[free])
        return r, free


def direct_cases():
    for shape, name, kind, weights in product(
        SHAPES + MORE_SHAPES, SOLVED, MEASUREMENT_WEIGHTS, ["membrane", "stiff", "thin plate"]
    ):
        # With a hole at every third pixel and negligible measurements this converges after a thousand iterations only.
        if (name, kind, weights) != ("holes", "weak", "thin plate"):
            common = shape in SHAPES and name != "one anchor" and kind in ("hard", "soft", "mixed")
            marks = () if common else pytest.mark.full
            yield pytest.param(shape, name, kind, weights, marks=marks, id=f"{shape_id(shape)}-{name}-{kind}-{weights}")


@pytest.mark.parametrize(("shape", "name", "kind", "weights"), list(direct_cases()))
def test_solution_equals_the_direct_one(shape, name, kind, weights):
    problem, options = Problem(name, shape, kind, "mild"), options_of(weights, max_iterations=2000)
    solution = problem.system(options).solve(problem.values)
    assert solution.status in (SolveStatus.CONVERGED, SolveStatus.NOTHING_TO_SOLVE)
    expected, free = problem.direct(options)
    error = (solution.interior.ravel() - expected)[free]
    np.testing.assert_allclose(error, 0.0, rtol=0, atol=DIRECT * np.abs(expected).max(initial=1e-12))


@pytest.mark.parametrize("weights", ["threshold", "stiffest"])
@pytest.mark.parametrize("kind", MEASUREMENT_WEIGHTS)
def test_extreme_bending_weights(kind, weights):
    problem, options = Problem("anchors", (40, 57), kind, "mild"), options_of(weights, max_iterations=1000)
    solution = problem.system(options).solve(problem.values)
    assert solution.status is SolveStatus.CONVERGED
    expected, free = problem.direct(options)
    error = (solution.interior.ravel() - expected)[free]
    np.testing.assert_allclose(error, 0.0, rtol=0, atol=DIRECT * np.abs(expected).max())


@pytest.mark.parametrize("solver", ["multigrid", "jacobi"])
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("kind", ["hard", "mixed", "strong"])
def test_edge_weights_down_to_a_millionth(kind, edges, solver):
    """Some pixels are held by 1e-6 or by the data weight alone, so the same residual means a larger error."""
    problem = Problem("anchors", (31, 33), kind, edges)
    options = options_of("stiff", tolerance=1e-9, max_iterations=3000, solver=solver)
    solution = problem.system(options).solve(problem.values)
    expected, free = problem.direct(options)
    error = (solution.interior.ravel() - expected)[free]
    np.testing.assert_allclose(error, 0.0, rtol=0, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("weights", ["paper", "thin plate"])
def test_hard_measurements_are_exact_and_soft_ones_lie_between(weights):
    problem = Problem("anchors", (40, 57), "mixed", "mild")
    field = problem.system(options_of(weights)).solve(problem.values).interior.ravel()[problem.where]
    hard = np.isinf(problem.weights)
    np.testing.assert_array_equal(field[hard], problem.values[hard])
    assert (field[~hard] != problem.values[~hard]).all()


def test_small_weights_have_no_effect_and_large_ones_are_hard_constraints():
    problem, options = Problem("anchors", (40, 57), "hard", "mild"), options_of("stiff")
    hard = problem.system(options).solve(problem.values).interior
    size = np.abs(hard).max()
    strong, weak = (
        System(problem.valid, problem.where, options, edges=problem.edges, weights=np.full(problem.where.size, c))
        .solve(problem.values)
        .interior
        for c in (1e9, 1e-9)
    )
    np.testing.assert_allclose(strong, hard, rtol=0, atol=1e-5 * size)
    assert np.abs(weak).max() < 1e-4 * size


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
    other = System(valid, there, options, edges=edges, weights=problem.weights[order]).solve(problem.values[order])
    field = problem.system(options).solve(problem.values).interior
    np.testing.assert_allclose(other.interior, turn(field), rtol=0, atol=1e-8 * np.abs(field).max())


@pytest.mark.parametrize("weights", ["paper", "thin plate"])
def test_a_system_serves_many_right_hand_sides(weights):
    problem, options = Problem("holes", (40, 57), "mixed", "mild"), options_of(weights, tolerance=1e-6)
    reused = problem.system(options)
    first = reused.solve(problem.values)
    reused.solve(generator("other").normal(size=problem.where.size))
    again, fresh = reused.solve(problem.values), problem.system(options).solve(problem.values)
    np.testing.assert_array_equal(again.field, first.field)
    np.testing.assert_array_equal(fresh.field, first.field)
    twice = reused.solve(2 * problem.values)
    np.testing.assert_array_equal(twice.field, 2 * first.field)
    assert twice.history == first.history


def test_a_warm_start_saves_iterations_only():
    problem, options = Problem("anchors", (65, 60), "mixed", "mild"), options_of("thin plate", tolerance=1e-6)
    reused = problem.system(options)
    cold = reused.solve(problem.values)
    before = cold.interior.copy()
    assert reused.solve(problem.values, start=cold.field.copy()).iterations == 0
    nearby = problem.values * 1.001
    warm, fresh = reused.solve(nearby, start=cold.field.copy()), reused.solve(nearby)
    assert warm.status is SolveStatus.CONVERGED
    assert warm.residual <= options.tolerance
    assert warm.iterations < fresh.iterations
    np.testing.assert_allclose(warm.field, fresh.field, rtol=0, atol=1e-4 * np.abs(fresh.field).max())
    np.testing.assert_array_equal(cold.interior, before)


def test_a_start_within_the_tolerance_needs_no_preconditioner(monkeypatch):
    problem, options = Problem("anchors", (65, 60), "mixed", "mild"), options_of("thin plate", tolerance=1e-4)
    start = problem.system(options).solve(problem.values).field
    unbuilt = problem.system(options)
    monkeypatch.setattr(unbuilt, "build_hierarchy", lambda: pytest.fail("the hierarchy was built"))
    solution = unbuilt.solve(problem.values, start=start)
    assert solution.field is start
    assert (solution.status, solution.iterations) == (SolveStatus.CONVERGED, 0)
    assert solution.residual <= options.tolerance


def test_a_field_in_float32_has_rounding_errors_only():
    problem, tolerance = Problem("anchors", (65, 60), "mixed", "mild"), 1e-4
    rough = problem.system(options_of("thin plate", tolerance=tolerance)).solve(problem.values)
    exact = problem.system(options_of("thin plate", tolerance=0.999 * tolerance)).solve(problem.values)
    assert (rough.field.dtype, exact.field.dtype) == (np.float32, np.float64)
    assert rough.iterations == exact.iterations
    np.testing.assert_allclose(rough.field, exact.field, rtol=0, atol=1e-5 * np.abs(exact.field).max())


def test_soft_measurements_make_a_component_observed():
    valid = np.ones((30, 31), bool)
    valid[:, [10, 20]] = False
    where = np.array([5, 31 + 15])  # one in the first part, one in the second
    options = options_of("stiff")
    field = System(valid, where, options, weights=np.array([np.inf, 2.0])).solve(np.array([0.1, 0.2])).interior
    assert (np.abs(field[:, :10]) > 0).all()
    assert (field[:, 11:20] > 0).all()
    assert not field[:, 20:].any()
    assert not field[:, 10].any()


@pytest.mark.parametrize("precision", [None, np.zeros(0)])
def test_without_measurements_there_is_nothing_to_solve(precision):
    for weights in ("paper", "thin plate"):
        nothing = System(np.ones((9, 8), bool), np.zeros(0, int), options_of(weights), weights=precision)
        solution = nothing.solve(np.zeros(0))
        assert solution.status is SolveStatus.NOTHING_TO_SOLVE
        assert not solution.field.any()


def test_the_papers_system_needs_one_byte_per_pixel():
    valid, where = np.ones((9, 8), bool), np.array([3, 40])
    assert System(valid, where, ReconstructionOptions.paper()).operator.edges is None
    assert (
        System(valid, where, ReconstructionOptions.paper(), weights=np.array([np.inf, np.inf])).operator.edges is None
    )
    assert System(valid, where, ReconstructionOptions.paper(weight_laplacian=1.0)).operator.edges is not None


def test_only_measurements_of_infinite_weight_are_written_back():
    problem = Problem("holes", (31, 33), "mixed", "mild")
    t = np.where(problem.valid, np.float32(2), np.float32(np.nan))
    measured = 2.0 * np.exp(problem.values)
    options = options_of("stiff", tolerance=1e-6)
    depth, _ = reconstruct(t, problem.where, measured, options, weights=problem.weights)
    system_ = System(problem.valid, problem.where, options, weights=problem.weights)
    field = system_.solve(np.log(measured / 2.0)).interior.flat[problem.where]
    hard = np.isinf(problem.weights)
    np.testing.assert_array_equal(depth.flat[problem.where][hard], measured[hard])
    np.testing.assert_allclose(depth.flat[problem.where][~hard], 2.0 * np.exp(field[~hard]), rtol=1e-12)
    assert (depth.flat[problem.where][~hard] != measured[~hard]).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weights": np.ones(3)}, "`weights` must hold a positive number for each of the 2"),
        ({"weights": np.array([1.0, 0.0])}, "`weights` must hold a positive number"),
        ({"weights": np.array([1.0, np.nan])}, "`weights` must hold a positive number"),
        ({"edges": (np.ones((9, 8)), np.ones((8, 8)))}, r"`edges` must have shape \(9, 7\) for the right"),
        ({"edges": (np.ones((9, 7)), np.ones((9, 8)))}, r"`edges` must have shape \(8, 8\) for the lower"),
        ({"edges": (np.ones((9, 7)), np.zeros((8, 8)))}, "`edges` must be above 0 and at most 1"),
        ({"edges": (np.full((9, 7), np.nan), np.ones((8, 8)))}, "`edges` must be above 0 and at most 1"),
        ({"edges": (np.full((9, 7), 1.5), np.ones((8, 8)))}, "`edges` must be above 0 and at most 1"),
    ],
)
def test_bad_weights_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        System(np.ones((9, 8), bool), np.array([3, 40]), ReconstructionOptions.paper(), **wrong)


def test_edges_beside_invalid_pixels_are_ignored():
    problem = Problem("holes", (31, 33), "mixed", "mild")
    options = options_of("stiff", tolerance=1e-6)
    across, down = (weight.copy() for weight in problem.edges)
    across[~(problem.valid[:, :-1] & problem.valid[:, 1:])] = np.nan
    down[~(problem.valid[:-1] & problem.valid[1:])] = -1
    other = System(problem.valid, problem.where, options, edges=(across, down), weights=problem.weights)
    expected = problem.system(options).solve(problem.values).field
    np.testing.assert_array_equal(other.solve(problem.values).field, expected)


def test_a_cycle_that_overshoots_is_damped_and_the_solve_goes_on(monkeypatch):
    """With edge weights down to a millionth and dominant bending, the bound on the smoother's step does not hold."""
    problem, options = Problem("anchors", (40, 57), "hard", "wild"), options_of("stiffest", 1e-6, max_iterations=2000)
    calls = []
    damp = ThinPlateCycle.increase_damping
    monkeypatch.setattr(ThinPlateCycle, "increase_damping", lambda self: calls.append(1) or damp(self))
    solution = problem.system(options).solve(problem.values)
    assert calls
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
