"""The residual system of one image as tensors with gradients, from the choices of the core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leadline.core.adaptive import MAX_WEIGHT as LARGEST
from leadline.core.inputs import Pairs
from leadline.core.neighbours import MIN_NEIGHBOURS
from leadline.core.noise import MAX_WEIGHT, MIN_WEIGHT
from leadline.core.solve.nested import Half
from leadline.core.solve.reconstruction import ResidualProblem
from leadline.torch.solve import System
from leadline.torch.stencils import Graph, unit_graph
from leadline.torch.weights import Cells, adaptive_weights, edge_weights, noise_weights


@dataclass(frozen=True)
class Problem:
    """A batch of systems, their values at the fixed pixels and right-hand sides, and where the iteration starts.

    The tolerance is relative to the residual of `guess`. All are (B, H, W).
    """

    system: System
    fixed: Tensor
    rhs: Tensor
    guess: Tensor
    start: Tensor

    @classmethod
    def stack(cls, problems: list[Problem]) -> Problem:
        """The items of several batches as one."""
        systems = [problem.system for problem in problems]
        graphs = [system.graph for system in systems]
        system = System(
            torch.cat([system.free for system in systems]),
            torch.cat([system.valid for system in systems]),
            Graph(torch.cat([graph.right for graph in graphs]), torch.cat([graph.down for graph in graphs])),
            torch.cat([system.mass for system in systems]),
            torch.cat([system.bending for system in systems]),
        )
        values = ((problem.fixed, problem.rhs, problem.guess, problem.start) for problem in problems)
        return cls(system, *(torch.cat(parts) for parts in zip(*values, strict=True)))


def item_problem(
    log_t: Tensor,
    valid: Tensor,
    sparse: Tensor,
    noise: Tensor | None,
    edges: tuple[Tensor, Tensor] | None,
    pairs: Pairs,
    chosen: ResidualProblem,
    *,
    free: Tensor,
    connected: Tensor,
    work: torch.dtype,
    screening: float,
    flow: bool,
) -> Problem:
    """The problem of one image, differentiable in everything that is given as a tensor.

    Parameters
    ----------
    log_t, sparse, noise : (H, W)
        Logarithm of the calibrated map, measurements and their standard deviations in metres.
    valid : (H, W) bool
        Pixels with a calibrated map.
    edges : (H, W - 1) and (H - 1, W), optional
        The caller's edge weights, which replace those of the core.
    pairs, chosen
        The measurements and the system of the core, from the same values.
    free, connected : bool
        Pixels to solve for, and valid pixels with a neighbour, on the grid of the system.
    work : torch.dtype
        Type of the weights and of the work vectors.
    screening : float
        Weight of the residual itself from which the weights of noisy measurements follow.
    flow : bool
        Let gradients flow through the weights that the core chose; otherwise they are held constant.
    """
    device = log_t.device
    where = torch.as_tensor(pairs.where, device=device)
    cells = None
    if chosen.adapted is not None and chosen.adapted.cell > 1:
        cells = Cells.of(log_t, valid, where, chosen.adapted.cell)
    reference = log_t.flatten()[where] if cells is None else torch.log(cells.mean)
    depth = sparse.flatten()[where].double()
    targets = torch.log(depth) - reference
    log_sigma = None if noise is None else noise.flatten()[where].double() / depth
    if flow:
        residuals = torch.log(depth) - log_t.flatten()[where]
        noisy = None if log_sigma is None else noise_weights(residuals, log_sigma, where, pairs.shape, screening)
        weights = _flowing_weights(targets, noisy, pairs, chosen, cells)
    else:
        weights = _held_weights(log_sigma, pairs, chosen, device)
    if chosen.half is not None:
        targets, weights = _on_half_grid(targets, weights, chosen.half)
        where = torch.as_tensor(chosen.where, device=device)
    graph = _graph(log_t, valid, edges, chosen, work, flow)
    data, bending = (
        torch.full((1, 1, 1), value / chosen.options.weight_gradient, dtype=work, device=device)
        for value in (chosen.options.weight_data, chosen.options.weight_laplacian)
    )

    def scatter(values: Tensor) -> Tensor:
        empty = torch.zeros(chosen.valid.size, dtype=torch.float64, device=device)
        return empty.scatter(0, where, values).view(1, *chosen.valid.shape)

    mass = data * connected.to(work) + scatter(weights).to(work)
    system = System(free[None], torch.as_tensor(chosen.valid, device=device)[None], graph, mass, bending)
    hard = np.ones(chosen.where.size, np.bool_) if chosen.weights is None else np.isinf(chosen.weights)
    fixed = scatter(torch.where(torch.as_tensor(hard, device=device), targets, torch.zeros_like(targets)))
    rhs = scatter(weights * targets)
    with torch.no_grad():
        guess = rhs / torch.where(rhs != 0, system.diagonal().double(), torch.ones_like(rhs))
        start = guess
        if chosen.estimate is not None:
            start = torch.as_tensor(chosen.estimate.residual, device=device).nan_to_num(0.0).to(guess)[None]
    return Problem(system, fixed, rhs, guess, start)


def _on_half_grid(targets: Tensor, weights: Tensor, half: Half) -> tuple[Tensor, Tensor]:
    """Mean target and summed weight of the measurements in each measured pixel of the half grid."""
    place, shift = (torch.as_tensor(part, device=targets.device) for part in (half.place, half.shift))
    empty = torch.zeros(half.grid.calibrated.size, dtype=targets.dtype, device=targets.device)
    measured = torch.as_tensor(half.grid.where, device=targets.device)
    total = empty.scatter_add(0, place, weights)[measured]
    moments = empty.scatter_add(0, place, weights * (targets - shift))[measured]
    return moments / total, total.clamp(max=LARGEST)


def _held_weights(log_sigma: Tensor | None, pairs: Pairs, chosen: ResidualProblem, device: torch.device) -> Tensor:
    """The chosen weights, zero for hard measurements; of the noise only sigma itself is not held constant."""
    weights = np.full(pairs.count, np.inf) if chosen.weights is None else chosen.weights
    if chosen.half is not None:
        weights = chosen.half.weights
    soft = np.isfinite(weights)
    held = torch.as_tensor(np.where(soft, weights, 0.0), device=device)
    if log_sigma is None or pairs.log_sigma is None:
        return held
    limit = np.inf if chosen.adapted is None else chosen.adapted.weights
    from_noise = soft & (weights < limit) & (weights > MIN_WEIGHT) & (weights < MAX_WEIGHT)
    variance = torch.as_tensor(np.where(from_noise, weights * pairs.log_sigma**2, 0.0), device=device)
    used = torch.as_tensor(from_noise, device=device)
    return torch.where(used, variance / torch.where(used, log_sigma, torch.ones_like(log_sigma)) ** 2, held)


def _flowing_weights(
    targets: Tensor, noisy: Tensor | None, pairs: Pairs, chosen: ResidualProblem, cells: Cells | None
) -> Tensor:
    """The weights as functions of the residuals and of the weights from the noise; zero for hard measurements."""
    if chosen.adapted is None:
        return torch.zeros_like(targets) if noisy is None else noisy
    neighbours = pairs.neighbours if pairs.count > MIN_NEIGHBOURS else None
    weights = adaptive_weights(targets, neighbours, None if cells is None else cells.variation)
    # The zero of a hard measurement stands for an infinite weight, which is not below that of the adaptive system.
    return weights if noisy is None else torch.where(noisy > 0, torch.minimum(noisy, weights), weights)


def _graph(
    log_t: Tensor,
    valid: Tensor,
    edges: tuple[Tensor, Tensor] | None,
    chosen: ResidualProblem,
    work: torch.dtype,
    flow: bool,
) -> Graph:
    graph = unit_graph(torch.as_tensor(chosen.valid, device=log_t.device)[None], work)
    if edges is None and chosen.edges is None:
        return graph
    if edges is None and flow:
        edges = edge_weights(log_t, valid, chosen.estimate, halve=chosen.half is not None)
    elif edges is None:
        right, down = (torch.as_tensor(part, device=log_t.device) for part in chosen.edges or ())
        edges = (right, down)
    return Graph(graph.right * edges[0].to(work), graph.down * edges[1].to(work))
