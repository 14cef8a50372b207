"""The residual solve for a batch: systems chosen by the core, solved on the device or by the compiled solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from leadline.base.errors import InputError, param
from leadline.core.inputs import Inputs, Pairs
from leadline.core.options import ReconstructionOptions
from leadline.core.pipeline import choose_system
from leadline.core.solve import kernels
from leadline.core.solve.cg import DEFAULT_MAX_ITERATIONS, SolveStatus
from leadline.core.solve.nested import Half
from leadline.core.solve.reconstruction import ResidualProblem
from leadline.core.solve.resolution import MIN_SHARE
from leadline.core.solve.system import System as CompiledSystem
from leadline.core.solve.system import unobserved
from leadline.torch.align import Aligned
from leadline.torch.problem import Problem, item_problem
from leadline.torch.results import SOLVE_STATUSES
from leadline.torch.shapes import Batch
from leadline.torch.solve import Solution, System, self_adjoint_solve, solve, without_failures
from leadline.torch.stencils import Graph, halve_map, interpolate, unit_graph

Backend = Literal["auto", "core", "tensor"]


@dataclass(frozen=True)
class Reconstructed:
    """Depth of a batch with the result of each solve."""

    depth: Tensor  # (B, H, W) m, NaN where the prior is invalid and nothing was measured
    iterations: Tensor  # (B,) int64
    residual: Tensor  # (B,)
    status: Tensor  # (B,) uint8, index into SOLVE_STATUSES


@dataclass(frozen=True)
class _Item:
    """The measurements of one image and the system that the core chose for it."""

    inputs: Inputs
    pairs: Pairs
    chosen: ResidualProblem
    edges: tuple[Any, Any] | None  # the caller's edge weights, or those that were chosen
    screening: float  # weight of the residual itself before the adaptive choice

    def compiled(self) -> CompiledSystem:
        return CompiledSystem(
            self.chosen.valid, self.chosen.where, self.chosen.options, edges=self.edges, weights=self.chosen.weights
        )


@dataclass(frozen=True)
class _Solved:
    """The field of one image, on the grid of its system, and how it was reached."""

    field: Tensor
    iterations: int
    residual: float
    status: SolveStatus


def reconstruct_batch(
    batch: Batch, aligned: Aligned, options: ReconstructionOptions, backend: Backend, *, flow: bool, check_every: int
) -> Reconstructed:
    """Solve each image's residual system and form the depth, with gradients by one adjoint solve."""
    maps = aligned.calibrated.detach().float().cpu().numpy()
    compiled = backend == "core" or (
        backend == "auto" and batch.prior.device.type == "cpu" and batch.prior.dtype == torch.float32
    )
    if not compiled:
        _require_multigrid(options)
    _require_edge_range(batch)
    items = [_choose(batch, k, *item, maps[k], options) for k, item in enumerate(aligned.items)]
    if compiled:
        solved = [_solve_compiled(batch, aligned, k, item, flow) for k, item in enumerate(items)]
    else:
        solved = _solve_tensors(batch, aligned, items, flow, check_every)
    depths = [_depth(batch, aligned, k, items[k], item.field, flow) for k, item in enumerate(solved)]
    device = batch.prior.device
    return Reconstructed(
        torch.stack(depths),
        torch.tensor([item.iterations for item in solved], dtype=torch.int64, device=device),
        torch.tensor([item.residual for item in solved], dtype=torch.float64, device=device),
        torch.tensor([SOLVE_STATUSES.index(item.status) for item in solved], dtype=torch.uint8, device=device),
    )


def reconstruct_fixed_steps(
    batch: Batch, aligned: Aligned, options: ReconstructionOptions, iterations: int
) -> Reconstructed:
    """The paper's system with a fixed number of conjugate gradient steps, on tensors alone."""
    if options.system != "fixed" or batch.noise is not None:
        raise InputError(
            f"{param('iterations')} fixes the number of steps, which only {param('options', 'paper')} without "
            f"{param('noise')} allows: other systems are chosen from the values of each image."
        )
    _require_multigrid(options)
    work = batch.prior.dtype
    valid = aligned.usable
    measured = batch.measured & valid
    graph = unit_graph(valid, work)
    free = valid & ~measured & (graph.degree() > 0)
    if batch.edges is not None:
        graph = Graph(graph.right * batch.edges[0], graph.down * batch.edges[1])
    data, bending = (
        torch.full((valid.shape[0], 1, 1), value / options.weight_gradient, dtype=work, device=valid.device)
        for value in (options.weight_data, options.weight_laplacian)
    )
    system = System(free, valid, graph, data * valid.to(work), bending)
    log_s = torch.log(torch.where(measured, batch.sparse, torch.ones_like(batch.sparse)).double())
    fixed = torch.where(measured, log_s - aligned.log_t, torch.zeros_like(log_s))
    zero = torch.zeros_like(fixed)
    solution = solve(system, fixed, zero, zero, tolerance=0.0, max_iterations=iterations + 1, iterations=iterations)
    depth = torch.exp(aligned.log_t + solution.field).to(batch.sparse.dtype)
    depth = torch.where(valid, depth, torch.full_like(depth, torch.nan))
    depth = torch.where(batch.measured, batch.sparse, depth)
    done, limit, nothing, broken = (
        torch.full_like(solution.iterations, SOLVE_STATUSES.index(status), dtype=torch.uint8)
        for status in (
            SolveStatus.CONVERGED,
            SolveStatus.ITERATION_LIMIT,
            SolveStatus.NOTHING_TO_SOLVE,
            SolveStatus.BROKE_DOWN,
        )
    )
    status = torch.where(solution.residual <= options.tolerance, done, limit)
    status = torch.where(torch.isfinite(solution.residual), status, broken)
    status = torch.where((solution.residual == 0) & (solution.iterations == 0), nothing, status)
    return Reconstructed(depth, solution.iterations, solution.residual, status)


def _require_multigrid(options: ReconstructionOptions) -> None:
    if options.solver != "multigrid":
        raise InputError(
            f"{param('reconstruction.solver', options.solver)} exists in the compiled solver only; use 'multigrid'."
        )


def _require_edge_range(batch: Batch) -> None:
    """Weights of edges must be in (0, 1]; with a fixed number of iterations no value is read, and nothing checked."""
    for part in batch.edges or ():
        if not bool(((part > 0) & (part <= 1)).all()):
            raise InputError(f"{param('edges')} must be above 0 and at most 1 everywhere.")


def _choose(
    batch: Batch, k: int, inputs: Inputs, pairs: Pairs, calibrated: Any, options: ReconstructionOptions
) -> _Item | None:
    """The system of one image as the core chooses it; None without a measurement."""
    if pairs.count == 0:
        return None
    chosen = choose_system(pairs, calibrated, options, halve=batch.edges is None)
    edges: tuple[Any, Any] | None = chosen.edges
    if batch.edges is not None:
        right, down = (part[k].detach().float().cpu().numpy() for part in batch.edges)
        edges = (right, down)
    return _Item(inputs, pairs, chosen, edges, options.weight_data / options.weight_gradient)


def _solve_compiled(batch: Batch, aligned: Aligned, k: int, item: _Item | None, flow: bool) -> _Solved:
    """One image by the compiled solver, forward and adjoint."""
    if item is None:
        return _nothing(aligned.log_t[k])
    compiled = item.compiled()
    estimate = item.chosen.estimate
    solution = compiled.solve(
        item.chosen.targets, start=None if estimate is None else compiled.padded_field(estimate.residual)
    )
    field = torch.from_numpy(solution.interior.astype(np.float64))
    if torch.is_grad_enabled() and _needs_gradient(batch, aligned):
        problem = _problem(batch, aligned, k, item, compiled, flow)
        at = torch.where(problem.system.free, field[None], problem.fixed)
        residual = problem.system.residual(at, problem.rhs)
        field = (at + self_adjoint_solve(residual, _CompiledAdjoint(item, compiled)))[0]
    return _Solved(field, solution.iterations, solution.residual, solution.status)


class _CompiledAdjoint:
    """The solve of the backward pass. It releases the system, and makes a new one if there is another pass."""

    def __init__(self, item: _Item, system: CompiledSystem) -> None:
        self._item = item
        self._system: CompiledSystem | None = system

    def __call__(self, gradient: Tensor) -> Tensor:
        system, self._system = self._system or self._item.compiled(), None
        solution = system.solve_rhs(gradient[0].numpy())
        field = torch.from_numpy(solution.interior.astype(np.float64))[None]
        return without_failures(field, torch.tensor([solution.residual]))


def _solve_tensors(
    batch: Batch, aligned: Aligned, items: list[_Item | None], flow: bool, check_every: int
) -> list[_Solved]:
    """All images of the batch whose systems have the same resolution at once, as tensor operations."""
    results = [_nothing(log_t) for log_t in aligned.log_t]
    present = [(k, item) for k, item in enumerate(items) if item is not None]
    for shape in {item.chosen.valid.shape for _, item in present}:
        group = [(k, item) for k, item in present if item.chosen.valid.shape == shape]
        for (k, _), solved in zip(group, _solve_group(batch, aligned, group, flow, check_every), strict=True):
            results[k] = solved
    return results


def _solve_group(
    batch: Batch, aligned: Aligned, present: list[tuple[int, _Item]], flow: bool, check_every: int
) -> list[_Solved]:
    """The images with these numbers, whose systems have the same resolution, at once."""
    # Of the compiled systems only the roles of the pixels are used, which they find by connected components.
    problem = Problem.stack([_problem(batch, aligned, k, item, item.compiled(), flow) for k, item in present])
    options = present[0][1].chosen.options
    limit = options.max_iterations or DEFAULT_MAX_ITERATIONS["multigrid"]
    solution = solve(
        problem.system,
        problem.fixed,
        problem.rhs,
        problem.guess,
        problem.start,
        tolerance=options.tolerance,
        max_iterations=limit,
        check_every=check_every,
    )
    iterations, residuals = solution.iterations.tolist(), solution.residual.tolist()
    statuses = _statuses(solution, options.tolerance, limit)
    return [_Solved(*values) for values in zip(solution.field, iterations, residuals, statuses, strict=True)]


def _statuses(solution: Solution, tolerance: float, limit: int) -> list[SolveStatus]:
    def status(iterations: int, residual: float) -> SolveStatus:
        if residual == 0.0 and iterations == 0:
            return SolveStatus.NOTHING_TO_SOLVE
        if residual <= tolerance:
            return SolveStatus.CONVERGED
        if not residual < float("inf"):
            return SolveStatus.BROKE_DOWN
        return SolveStatus.ITERATION_LIMIT if iterations >= limit else SolveStatus.STAGNATED

    return [status(*pair) for pair in zip(solution.iterations.tolist(), solution.residual.tolist(), strict=True)]


def _problem(batch: Batch, aligned: Aligned, k: int, item: _Item, compiled: CompiledSystem, flow: bool) -> Problem:
    code = torch.as_tensor(compiled.operator.code[1:-1, 1:-1].copy(), device=batch.prior.device)
    return item_problem(
        aligned.log_t[k],
        aligned.usable[k],
        batch.sparse[k],
        None if batch.noise is None else batch.noise[k],
        None if batch.edges is None else (batch.edges[0][k], batch.edges[1][k]),
        item.pairs,
        item.chosen,
        free=code >= kernels.FREE,
        connected=code > 0,
        work=batch.prior.dtype,
        screening=item.screening,
        flow=flow,
    )


def _depth(batch: Batch, aligned: Aligned, k: int, item: _Item | None, field: Tensor, flow: bool) -> Tensor:
    """t exp(r) with the exact measurements written back."""
    inputs, pairs = aligned.items[k]
    if item is not None and item.chosen.half is not None:
        field = _interpolated(aligned, k, item.chosen.half, field, flow)
    depth = torch.exp(aligned.log_t[k] + field).to(batch.sparse.dtype)
    depth = torch.where(aligned.usable[k], depth, torch.full_like(depth, torch.nan))
    exact = np.zeros(batch.prior.shape[1:], np.bool_)
    exact.flat[inputs.unpaired] = True
    if item is not None:
        exact.flat[pairs.where[item.chosen.exact]] = True
    return torch.where(torch.as_tensor(exact, device=depth.device), batch.sparse[k], depth)


def _interpolated(aligned: Aligned, k: int, half: Half, field: Tensor, flow: bool) -> Tensor:
    """The residual of an image from that at half its resolution; the weights of pixels flow or are held constant."""
    pairs, valid, log_t = aligned.items[k][1], aligned.usable[k], aligned.log_t[k]
    t = torch.exp(log_t if flow else log_t.detach())
    known = torch.as_tensor(np.isfinite(half.grid.calibrated), device=t.device)
    fine = interpolate(field, halve_map(t, valid), known, t, float(half.grid.similarity), MIN_SHARE)
    alone = torch.as_tensor(unobserved(valid.cpu().numpy(), pairs.where), device=t.device)
    return torch.where(alone, torch.zeros_like(fine), fine)


def _nothing(log_t: Tensor) -> _Solved:
    return _Solved(torch.zeros_like(log_t), 0, 0.0, SolveStatus.NOTHING_TO_SOLVE)


def _needs_gradient(batch: Batch, aligned: Aligned) -> bool:
    tensors = (aligned.log_t, batch.sparse, batch.noise, *(batch.edges or ()))
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)
