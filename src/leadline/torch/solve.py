"""Conjugate gradients on a batch of residual systems, and the gradient of their solution by one more solve.

The field r minimises  sum w (r_p - r_q)^2 + sum c (r - g)^2 + data |r|^2 + bending |A r|^2  with r = g at the fixed
pixels. On the free pixels U that is Q_UU r_U = b - Q_UF r_F with Q = A + N + bending A^2, N holding the data weight and
c.

Its derivative needs no unrolling: with R the residual b - Q r of the equation, dr = Q_UU^-1 dR, and Q is symmetric. So
the solution is returned as r* + S(R), where R is recomputed from r* (a constant) and the differentiable inputs, and S
is an operation whose value is zero and whose gradient is a solve with the same hierarchy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leadline.torch.multigrid import Hierarchy, build_hierarchy
from leadline.torch.stencils import Graph

# The recursive residual is trusted until it has fallen this far, in float32; then the true one takes its place.
_TRUSTED_FALL = {torch.float32: 1e-6, torch.float64: 1e-13}
_RESTART_GAIN = 0.5  # smallest improvement by which a restart from the true residual is worth its cost
_MOST_RESTARTS = 8
ADJOINT_FAILED = 0.01  # relative residual of an adjoint solve above which its item gets no gradient


@dataclass(frozen=True)
class System:
    """A batch of residual systems: everything but the right-hand side.

    Attributes
    ----------
    free, valid : (B, H, W) bool
        Pixels to solve for; pixels between which there are differences.
    graph : Graph
        Edge weights, zero beside invalid pixels.
    mass : (B, H, W)
        Data weight plus the weights of soft measurements, in units of the gradient weight.
    bending : (B, 1, 1)
        Weight of the bending term.
    """

    free: Tensor
    valid: Tensor
    graph: Graph
    mass: Tensor
    bending: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Q x on the free pixels, zero elsewhere."""
        graph = self.graph if x.dtype == self.mass.dtype else self.graph.to(x.dtype)
        tension = graph.laplacian(x)
        bent = self.bending.to(x.dtype) * graph.laplacian(tension)
        value = tension + self.mass.to(x.dtype) * x + bent
        return torch.where(self.free, value, torch.zeros_like(value))

    def residual(self, field: Tensor, rhs: Tensor) -> Tensor:
        """b - Q r on the free pixels."""
        return torch.where(self.free, rhs, torch.zeros_like(rhs)) - self.apply(field)

    def diagonal(self) -> Tensor:
        """Diagonal of Q, (B, H, W)."""
        around = self.graph.around()
        edges = (around.east, around.west, around.south, around.north)
        total, squares = sum(edges), sum(edge * edge for edge in edges)
        return self.mass + total + self.bending * (total * total + squares)

    def detached(self) -> System:
        """The same system without gradients."""
        graph = Graph(self.graph.right.detach(), self.graph.down.detach())
        return System(self.free, self.valid, graph, self.mass.detach(), self.bending.detach())

    def hierarchy(self) -> Hierarchy:
        """The multigrid levels, without gradients: a preconditioner does not change the solution."""
        with torch.no_grad():
            return build_hierarchy(self.free, self.valid, self.graph, self.mass, self.bending)


@dataclass(frozen=True)
class Solution:
    """The field and, per item, the iterations and the true relative residual."""

    field: Tensor  # (B, H, W)
    iterations: Tensor  # (B,) int64
    residual: Tensor  # (B,)


def solve(
    system: System,
    fixed: Tensor,
    rhs: Tensor,
    guess: Tensor,
    start: Tensor | None = None,
    *,
    tolerance: float,
    max_iterations: int,
    iterations: int | None = None,
    check_every: int = 2,
) -> Solution:
    """The field for given values at the fixed pixels and a right-hand side, differentiable in all of them.

    Parameters
    ----------
    fixed : (B, H, W)
        Values at the fixed pixels; ignored elsewhere.
    rhs : (B, H, W)
        b: weight times value at soft measurements, zero elsewhere.
    guess : (B, H, W)
        Initial field at the free pixels. The tolerance is relative to its residual.
    start : (B, H, W), optional
        A field closer to the solution, from which the iteration starts in place of `guess`.
    tolerance : float
        Relative residual at which an item is done. It then no longer changes.
    iterations : int, optional
        Take exactly this many steps and never look at a value, so that the solve can be compiled to one graph.
    check_every : int
        Steps between two looks at whether all items are done, each of which waits for the device.
    """
    hierarchy = system.hierarchy()
    with torch.no_grad():
        field = torch.where(system.free, guess, fixed)
        reference = None
        if start is not None:
            reference = _norm(system.residual(field, rhs))
            field = torch.where(system.free, start, fixed)
        solution = _conjugate_gradients(
            system, hierarchy, field, rhs, tolerance, max_iterations, iterations, check_every, reference
        )
    if not torch.is_grad_enabled() or not _needs_gradient(system, fixed, rhs):
        return solution
    at = torch.where(system.free, solution.field, fixed)
    adjoint = _Adjoint(system.detached(), hierarchy, (tolerance, max_iterations, iterations, check_every))
    return Solution(at + self_adjoint_solve(system.residual(at, rhs), adjoint), solution.iterations, solution.residual)


class _Adjoint:
    """The solve of the backward pass. It releases the hierarchy, and builds it anew if there is another pass."""

    def __init__(self, system: System, hierarchy: Hierarchy, settings: tuple[Any, ...]) -> None:
        self._system, self._settings = system, settings
        self._hierarchy: Hierarchy | None = hierarchy

    def __call__(self, gradient: Tensor) -> Tensor:
        hierarchy = self._hierarchy or self._system.hierarchy()
        if not torch.compiler.is_compiling():  # a compiled graph has no attributes to change
            self._hierarchy = None
        solution = _conjugate_gradients(self._system, hierarchy, torch.zeros_like(gradient), gradient, *self._settings)
        return without_failures(solution.field, solution.residual)


def without_failures(field: Tensor, residual: Tensor) -> Tensor:
    """The adjoint field, NaN for the items whose solve failed; `guard` makes a zero gradient and a status of it."""
    good = (residual <= ADJOINT_FAILED)[:, None, None]
    return torch.where(good, field, torch.full_like(field, torch.nan))


def self_adjoint_solve(residual: Tensor, adjoint: Callable[[Tensor], Tensor]) -> Tensor:
    """Zero, with the gradient of Q_UU^-1 R: one solve with the gradient as right-hand side."""
    correction: Tensor = _SelfAdjointSolve.apply(residual, adjoint)  # type: ignore[no-untyped-call]
    return correction


def _needs_gradient(system: System, *tensors: Tensor) -> bool:
    graph = system.graph
    return any(tensor.requires_grad for tensor in (*tensors, graph.right, graph.down, system.mass, system.bending))


class _SelfAdjointSolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, adjoint: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.adjoint = adjoint
        return torch.zeros_like(residual)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        with torch.no_grad():
            return ctx.adjoint(gradient), None


def _conjugate_gradients(
    system: System,
    hierarchy: Hierarchy,
    field: Tensor,
    rhs: Tensor,
    tolerance: float,
    max_iterations: int,
    iterations: int | None,
    check_every: int,
    reference: Tensor | None = None,
) -> Solution:
    work = system.mass.dtype
    r = system.residual(field, rhs)
    size = _norm(r)
    one, zero = torch.ones_like(size), torch.zeros_like(size)
    reference = size if reference is None else reference  # the norm that residuals are relative to
    scale = torch.where(reference > 0, reference, one)
    r = r.to(work)
    norm = size / scale
    count = torch.zeros(size.shape, dtype=torch.int64, device=size.device)
    damping = torch.ones((*size.shape, 1, 1), dtype=work, device=size.device)
    for _ in range(1 if iterations is not None else _MOST_RESTARTS):
        started = norm
        target = torch.clamp(_TRUSTED_FALL[work] * started, min=tolerance)
        p = torch.zeros_like(r)
        alignment = zero
        for step in range(max_iterations if iterations is None else iterations):
            active = (norm > target) & (count < max_iterations)
            if iterations is None and step % check_every == 0 and not bool(active.any()):
                break
            z = hierarchy.cycle(r, damping)
            product = _dot(r, z)
            aligned = alignment > 0
            ratio = torch.where(aligned, product / torch.where(aligned, alignment, one), zero)
            p = z + ratio.to(work)[..., None, None] * p
            q = system.apply(p)
            curvature = _dot(p, q)
            definite = (curvature > 0) & (product > 0)
            # An indefinite cycle gets smaller steps, and the directions start anew.
            damping = torch.where((active & ~definite)[..., None, None], 0.5 * damping, damping)
            alignment = torch.where(definite, product, zero)
            advance = active & definite
            length = torch.where(advance, product / torch.where(definite, curvature, one), zero)[..., None, None]
            field = field + length.to(field.dtype) * p.to(field.dtype)
            r = r - length.to(work) * q
            norm = torch.where(advance, _norm(r) / scale, norm)
            count = count + active.to(count.dtype)
        true = system.residual(field, rhs)
        residual = _norm(true) / scale
        unfinished = (residual > tolerance) & (residual <= _RESTART_GAIN * started) & (count < max_iterations)
        if iterations is not None or not bool(unfinished.any()):
            break
        norm = torch.where(unfinished, residual, zero)
        r = true.to(work)
    return Solution(field, count, residual)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(-2, -1), dtype=_wide(a))


def _norm(a: Tensor) -> Tensor:
    return torch.sqrt((a * a).sum(dim=(-2, -1), dtype=_wide(a)))


def _wide(a: Tensor) -> torch.dtype:
    """Sums are formed in float64 where the device has it."""
    return torch.float32 if a.device.type == "mps" else torch.float64
