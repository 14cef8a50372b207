"""The residual solve for a batch: systems chosen by the core, solved on the device or by the compiled solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from leadline.base.errors import InputError, param
from leadline.base.jit import numba_lock
from leadline.core.adaptive import MIN_EDGE_WEIGHT, Adapted, adapt
from leadline.core.inputs import Pairs
from leadline.core.neighbours import MIN_NEIGHBOURS
from leadline.core.noise import measurement_weights
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import kernels
from leadline.core.solve.cg import DEFAULT_MAX_ITERATIONS, SolveStatus
from leadline.core.solve.system import System as CompiledSystem
from leadline.torch.align import Aligned
from leadline.torch.shapes import Batch
from leadline.torch.solve import SelfAdjointSolve, Solution, System, solve
from leadline.torch.stencils import Graph, unit_graph

Backend = Literal["auto", "core", "tensor"]
SOLVE_STATUSES = tuple(SolveStatus)


@dataclass(frozen=True)
class Reconstructed:
    """Depth of a batch with the result of each solve."""

    depth: Tensor  # (B, H, W) m, NaN where the prior is invalid and nothing was measured
    iterations: Tensor  # (B,) int64
    residual: Tensor  # (B,)
    status: Tensor  # (B,) uint8, index into SOLVE_STATUSES


@dataclass(frozen=True)
class _Item:
    """The system of one image: its description on the host, and its inputs as tensors with gradients."""

    options: ReconstructionOptions
    pairs: Pairs
    valid: np.ndarray[Any, np.dtype[np.bool_]]
    edges: tuple[Any, Any] | None
    weights: Any  # (n,) float64, infinite for hard measurements
    targets: Any  # (n,) float64
    exact: Any  # (n,) bool: returned bit for bit
    adapted: Adapted | None

    def compiled(self, edges: tuple[Any, Any] | None) -> CompiledSystem:
        return CompiledSystem(self.valid, self.pairs.where, self.options, edges=edges, weights=self.weights)


def reconstruct_batch(
    batch: Batch, aligned: Aligned, options: ReconstructionOptions, backend: Backend, *, flow: bool, check_every: int
) -> Reconstructed:
    """Solve each image's residual system and form the depth, with gradients by one adjoint solve."""
    host = torch.where(aligned.usable, torch.exp(aligned.log_t), torch.full_like(aligned.log_t, torch.nan))
    maps = host.detach().float().cpu().numpy()
    fields, depths, counts, residuals, statuses = [], [], [], [], []
    compiled = backend == "core" or (
        backend == "auto" and batch.prior.device.type == "cpu" and batch.prior.dtype == torch.float32
    )
    if not compiled:
        _require_multigrid(options)
    items = [_choose(pairs, maps[k], options) if pairs.count else None for k, (_, pairs) in enumerate(aligned.items)]
    if compiled:
        solved = [_solve_compiled(batch, aligned, k, item, flow) for k, item in enumerate(items)]
    else:
        solved = _solve_tensors(batch, aligned, items, flow, check_every)
    for k, (field, count, residual, status) in enumerate(solved):
        fields.append(field)
        counts.append(count)
        residuals.append(residual)
        statuses.append(status)
        depths.append(_depth(batch, aligned, k, items[k], field))
    device = batch.prior.device
    codes = [SOLVE_STATUSES.index(status) for status in statuses]
    return Reconstructed(
        torch.stack(depths),
        torch.tensor(counts, dtype=torch.int64, device=device),
        torch.tensor(residuals, dtype=torch.float64, device=device),
        torch.tensor(codes, dtype=torch.uint8, device=device),
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
    done, limit = (SOLVE_STATUSES.index(status) for status in (SolveStatus.CONVERGED, SolveStatus.ITERATION_LIMIT))
    status = torch.where(solution.residual <= options.tolerance, done, limit).to(torch.uint8)
    return Reconstructed(depth, solution.iterations, solution.residual, status)


def _require_multigrid(options: ReconstructionOptions) -> None:
    if options.solver != "multigrid":
        raise InputError(
            f"{param('reconstruction.solver', options.solver)} exists in the compiled solver only; use 'multigrid'."
        )


def _choose(pairs: Pairs, calibrated: Any, options: ReconstructionOptions) -> _Item:
    """The system of one image, as the core chooses it."""
    weights = np.full(pairs.count, np.inf)
    with numba_lock():
        if pairs.log_sigma is not None:
            residuals = np.log(pairs.measured / calibrated.flat[pairs.where])
            screening = options.weight_data / options.weight_gradient
            weights = measurement_weights(residuals, pairs.log_sigma, pairs.where, pairs.shape, screening)
        exact = np.isinf(weights)
        valid = np.isfinite(calibrated)
        if options.system != "adaptive":
            targets = np.log(pairs.measured.astype(np.float64) / calibrated.flat[pairs.where].astype(np.float64))
            return _Item(options, pairs, valid, None, weights, targets, exact, None)
        neighbours = pairs.neighbours if pairs.count > MIN_NEIGHBOURS else None
        adapted = adapt(calibrated, pairs.where, pairs.measured, neighbours)
    chosen = replace(options, system="fixed", weight_data=adapted.screening, weight_laplacian=adapted.stiffness)
    weights = np.minimum(weights, adapted.weights)
    return _Item(chosen, pairs, valid, adapted.edges, weights, adapted.targets, exact, adapted)


def _solve_compiled(batch: Batch, aligned: Aligned, k: int, item: _Item | None, flow: bool) -> tuple[Any, ...]:
    """One image by the compiled solver, forward and adjoint."""
    if item is None:
        return _nothing(aligned.log_t[k])
    with numba_lock():
        solution = item.compiled(item.edges).solve(item.targets)
    facts = (solution.iterations, solution.residual, solution.status)
    field = torch.from_numpy(np.ascontiguousarray(solution.interior))
    if not (torch.is_grad_enabled() and _needs_gradient(batch, aligned)):
        return field, *facts
    system, fixed, rhs, _ = _tensors(batch, aligned, k, item, flow)
    at = torch.where(system.free, field[None], fixed)
    # The compiled operator of the paper's system takes no right-hand side; with unit edges the general one does.
    height, width = item.valid.shape
    edges = item.edges or (np.ones((height, width - 1), np.float32), np.ones((height - 1, width), np.float32))

    def adjoint(gradient: Tensor) -> Tensor:
        with numba_lock():
            solved = item.compiled(edges).solve_rhs(gradient[0].numpy())
        return torch.from_numpy(np.ascontiguousarray(solved.interior))[None]

    correction = SelfAdjointSolve.apply(system.residual(at, rhs), adjoint)  # type: ignore[no-untyped-call]
    return (at + correction)[0], *facts


def _solve_tensors(
    batch: Batch, aligned: Aligned, items: list[_Item | None], flow: bool, check_every: int
) -> list[tuple[Any, ...]]:
    """All images of the batch at once, as tensor operations."""
    present = [k for k, item in enumerate(items) if item is not None]
    results: list[tuple[Any, ...]] = [_nothing(log_t) for log_t in aligned.log_t]
    if not present:
        return results
    parts = [_tensors(batch, aligned, k, item, flow) for k in present if (item := items[k]) is not None]
    systems = [part[0] for part in parts]
    graphs = [system.graph for system in systems]
    system = System(
        torch.cat([system.free for system in systems]),
        torch.cat([system.valid for system in systems]),
        Graph(torch.cat([graph.right for graph in graphs]), torch.cat([graph.down for graph in graphs])),
        torch.cat([system.mass for system in systems]),
        torch.cat([system.bending for system in systems]),
    )
    fixed, rhs, guess = (torch.cat(tensors) for tensors in list(zip(*parts, strict=True))[1:])
    options = next(item.options for item in items if item is not None)
    limit = options.max_iterations or DEFAULT_MAX_ITERATIONS["multigrid"]
    solution = solve(
        system, fixed, rhs, guess, tolerance=options.tolerance, max_iterations=limit, check_every=check_every
    )
    statuses = _statuses(solution, options.tolerance, limit)
    for place, k in enumerate(present):
        facts = (int(solution.iterations[place]), float(solution.residual[place]), statuses[place])
        results[k] = (solution.field[place], *facts)
    return results


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


def _tensors(batch: Batch, aligned: Aligned, k: int, item: _Item, flow: bool) -> tuple[System, Tensor, Tensor, Tensor]:
    """The system of one image as tensors, its fixed values, right-hand side and initial guess; (1, H, W) each."""
    device, work = batch.prior.device, batch.prior.dtype
    compiled = item.compiled(item.edges)  # only its roles and its share of the initial guess are used
    code = torch.as_tensor(compiled.operator.code[1:-1, 1:-1].copy(), device=device)[None]
    valid = torch.as_tensor(item.valid, device=device)[None]
    free = code >= kernels.FREE
    graph = unit_graph(valid, work)
    log_t = aligned.log_t[k]
    if item.adapted is not None:
        right, down = (
            _adaptive_edges(log_t, valid[0], item.adapted) if flow else _held(item.adapted.edges, device, work)
        )
        graph = Graph(graph.right * right, graph.down * down)
    data, bending = (
        torch.full((1, 1, 1), value / item.options.weight_gradient, dtype=work, device=device)
        for value in (item.options.weight_data, item.options.weight_laplacian)
    )
    where = torch.as_tensor(item.pairs.where, device=device)
    hard = torch.as_tensor(np.isinf(item.weights), device=device)
    weights = torch.as_tensor(np.where(np.isinf(item.weights), 0.0, item.weights), device=device)
    if batch.noise is not None:  # the scale of the weights is held constant, their dependence on the noise is not
        sigma = batch.noise[k].flatten()[where].double()
        weights = weights * torch.where(sigma.detach() > 0, (sigma.detach() / sigma.clamp(min=1e-300)) ** 2, 1.0)
    targets = _targets(batch, log_t, valid[0], k, item, where)

    def scatter(values: Tensor) -> Tensor:
        empty = torch.zeros(log_t.numel(), dtype=torch.float64, device=device)
        return empty.scatter(0, where, values).view(1, *log_t.shape)

    mass = data * (code > 0).to(work) + scatter(weights).to(work)
    system = System(free, valid, graph, mass, bending)
    fixed = scatter(torch.where(hard, targets, torch.zeros_like(targets)))
    with torch.no_grad():
        soft = scatter(weights * targets)
        guess = soft / torch.where(soft != 0, system.diagonal().double(), torch.ones_like(soft))
    return system, fixed, scatter(weights * targets), guess


def _targets(batch: Batch, log_t: Tensor, valid: Tensor, k: int, item: _Item, where: Tensor) -> Tensor:
    """Log residual at each measurement, at its pixel or over the cell that the core chose."""
    log_s = torch.log(batch.sparse[k].flatten()[where].double())
    cell = 1 if item.adapted is None else item.adapted.cell
    if cell == 1:
        reference = log_t.flatten()[where]
    else:
        t = torch.where(valid, torch.exp(log_t), torch.zeros_like(log_t))
        sums, counts = (
            avg_pool2d(pad(part[None, None], (cell // 2,) * 4), cell, 1, divisor_override=1)[0, 0]
            for part in (t, valid.double())
        )
        reference = torch.log(sums.flatten()[where] / counts.flatten()[where])
    return log_s - reference


def _adaptive_edges(log_t: Tensor, valid: Tensor, adapted: Adapted) -> tuple[Tensor, Tensor]:
    """The edge weights of the adaptive system as functions of t; the mean gradient they are relative to is held."""
    t = torch.where(valid, torch.exp(log_t), torch.full_like(log_t, torch.nan))

    def squared(a: Tensor, b: Tensor) -> Tensor:
        ratio = 2.0 * (a - b) / (a + b)
        return torch.where(torch.isnan(ratio.detach()), torch.zeros_like(ratio), ratio) ** 2

    across, down = squared(t[:, 1:], t[:, :-1]), squared(t[1:], t[:-1])
    energy = 0.5 * (pad(across, (0, 1)) + pad(across, (1, 0)) + pad(down, (0, 0, 0, 1)) + pad(down, (0, 0, 1, 0)))
    inverse = 0.5 / adapted.contrast**2 if adapted.contrast > 0 else 0.0
    right = 1.0 / (1.0 + (energy[:, 1:] + energy[:, :-1]) * inverse)
    lower = 1.0 / (1.0 + (energy[1:] + energy[:-1]) * inverse)
    return right.clamp(min=MIN_EDGE_WEIGHT)[None], lower.clamp(min=MIN_EDGE_WEIGHT)[None]


def _held(edges: tuple[Any, Any], device: torch.device, work: torch.dtype) -> tuple[Tensor, Tensor]:
    right, down = (torch.as_tensor(weights, dtype=work, device=device)[None] for weights in edges)
    return right, down


def _depth(batch: Batch, aligned: Aligned, k: int, item: _Item | None, field: Tensor) -> Tensor:
    """t exp(r) with the exact measurements written back."""
    inputs, pairs = aligned.items[k]
    depth = torch.exp(aligned.log_t[k] + field).to(batch.sparse.dtype)
    depth = torch.where(aligned.usable[k], depth, torch.full_like(depth, torch.nan))
    exact = np.zeros(batch.prior.shape[1:], np.bool_)
    exact.flat[inputs.unpaired] = True
    if item is not None:
        exact.flat[pairs.where[item.exact]] = True
    return torch.where(torch.as_tensor(exact, device=depth.device), batch.sparse[k], depth)


def _nothing(log_t: Tensor) -> tuple[Any, ...]:
    return torch.zeros_like(log_t), 0, 0.0, SolveStatus.NOTHING_TO_SOLVE


def _needs_gradient(batch: Batch, aligned: Aligned) -> bool:
    return any(t is not None and t.requires_grad for t in (aligned.log_t, batch.sparse, batch.noise))
