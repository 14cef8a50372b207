"""The tensor multigrid and conjugate gradients against the compiled ones, and their gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.core.options import ReconstructionOptions
from leadline.core.solve.system import System as CompiledSystem

torch = pytest.importorskip("torch")

from leadline.torch.solve import System, solve  # noqa: E402
from leadline.torch.stencils import Graph, unit_graph  # noqa: E402

# Both work in float32 and stop at the same residual; they differ by the order of their sums.
FIELD_TOLERANCE = 1e-6


def problem(shape, bending, *, soft, seed=0):
    """A compiled system with its targets, and the same as tensors: system, fixed values, right-hand side, guess."""
    rng = np.random.default_rng(seed)
    height, width = shape
    valid = np.ones(shape, bool)
    if min(shape) > 12:
        valid[height // 3 : height // 2, width // 2 : width // 2 + 5] = False
    where = np.flatnonzero(valid)[3::13]
    targets = 0.1 * np.sin(where / 97.0)
    weights = np.where(rng.random(where.size) < 0.3, np.inf, rng.uniform(1, 1000, where.size)) if soft else None
    edges = None
    if soft:
        edges = (
            rng.uniform(0.1, 1, (height, width - 1)).astype(np.float32),
            rng.uniform(0.1, 1, (height - 1, width)).astype(np.float32),
        )
    options = ReconstructionOptions.paper(weight_laplacian=bending)
    compiled = CompiledSystem(valid, where, options, edges=edges, weights=weights)

    mask = torch.tensor(valid)[None]
    graph = unit_graph(mask)
    if edges is not None:
        graph = Graph(graph.right * torch.tensor(edges[0]), graph.down * torch.tensor(edges[1]))
    c = np.zeros(shape)
    c.flat[where] = 0.0 if weights is None else np.where(np.isinf(weights), 0.0, weights)
    values = np.zeros(shape)
    values.flat[where] = targets
    hard = np.zeros(shape, bool)
    hard.flat[where] = True if weights is None else np.isinf(weights)
    free = torch.tensor(valid & ~hard)[None]
    mass = torch.tensor(np.where(valid, 1e-3, 0.0) + c, dtype=torch.float32)[None]
    system = System(free, mask, graph, mass, torch.full((1, 1, 1), bending))
    fixed, rhs = torch.tensor(values * hard)[None], torch.tensor(c * values)[None]
    guess = torch.where(rhs != 0, rhs / system.diagonal().double(), torch.zeros_like(rhs))
    return compiled, targets, (system, fixed, rhs, guess)


@pytest.mark.parametrize("shape", [(1, 40), (37, 1), (5, 7), (48, 64), (61, 83)])
@pytest.mark.parametrize(("bending", "soft"), [(1e-3, False), (1.0, True), (14.0, True)])
def test_tensor_solver_reaches_the_compiled_solution(shape, bending, soft):
    compiled, targets, (system, fixed, rhs, guess) = problem(shape, bending, soft=soft)
    expected = compiled.solve(targets)
    solution = solve(system, fixed, rhs, guess, tolerance=1e-6, max_iterations=200)
    assert float(solution.residual) <= 1e-6
    assert int(solution.iterations) <= expected.iterations + 3
    assert np.abs(solution.field[0].numpy() - expected.interior).max() <= FIELD_TOLERANCE


def test_a_batch_equals_its_items():
    parts = [problem((29, 34), bending, soft=True, seed=seed)[2] for seed, bending in enumerate((0.5, 3.0, 14.0))]
    systems = [part[0] for part in parts]
    stacked = System(
        torch.cat([system.free for system in systems]),
        torch.cat([system.valid for system in systems]),
        Graph(
            torch.cat([system.graph.right for system in systems]), torch.cat([system.graph.down for system in systems])
        ),
        torch.cat([system.mass for system in systems]),
        torch.cat([system.bending for system in systems]),
    )
    together = solve(
        stacked, *(torch.cat(part) for part in list(zip(*parts, strict=True))[1:]), tolerance=1e-5, max_iterations=99
    )
    for k, (system, fixed, rhs, guess) in enumerate(parts):
        alone = solve(system, fixed, rhs, guess, tolerance=1e-5, max_iterations=99)
        assert int(together.iterations[k]) == int(alone.iterations)
        torch.testing.assert_close(together.field[k], alone.field[0], rtol=0, atol=1e-7)


def test_gradients_agree_with_differences():
    torch.manual_seed(0)
    shape = (2, 6, 7)
    valid = torch.ones(shape, dtype=torch.bool)
    valid[0, 2:4, 3:5] = False
    free = valid.clone()
    free[:, 0, 0] = free[:, 5, 5] = False
    unit = unit_graph(valid, torch.float64)
    right, down = (0.8 * torch.rand_like(edges) + 0.1 for edges in (unit.right, unit.down))
    mass = torch.full(shape, 1e-2, dtype=torch.float64)
    mass[:, 4, 4] = 3.0
    rhs = torch.zeros(shape, dtype=torch.float64)
    rhs[:, 4, 4] = 0.6
    inputs = (torch.randn_like(rhs), rhs, right, down, mass, torch.full((2, 1, 1), 2.0, dtype=torch.float64))

    def field(fixed, rhs, right, down, mass, bending):
        system = System(free, valid, Graph(right * unit.right, down * unit.down), mass, bending)
        solution = solve(
            system, fixed * (valid & ~free), rhs, torch.zeros_like(rhs), tolerance=1e-13, max_iterations=200
        )
        return solution.field * valid

    assert torch.autograd.gradcheck(
        field, [t.clone().requires_grad_() for t in inputs], atol=1e-6, rtol=1e-4, fast_mode=True
    )
