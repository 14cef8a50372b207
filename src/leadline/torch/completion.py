"""`align` and `complete` for tensors: batches, any device, gradients.

Each image's fit, and the weights that the adaptive preset chooses, come from the compiled core, which reads the
measured pixels and (for the adaptive weights) a copy of the calibrated map on the host. That takes a few milliseconds
per image and happens before the solve. Calibration and solve are tensor operations on the inputs' device; float32
tensors on the CPU take the compiled solver, which is faster there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from leadline.base.errors import InputError, NotConverged, param, require_choice
from leadline.core.fit.estimator import FitStatus
from leadline.core.options import CompletionOptions, FitOptions, as_options
from leadline.core.solve.cg import SolveStatus
from leadline.torch.align import Aligned, Kind, Loss, Mode, align_batch, align_coordinate, align_fixed_steps
from leadline.torch.reconstruct import Backend, Reconstructed, reconstruct_batch, reconstruct_fixed_steps
from leadline.torch.results import (
    FAILED,
    FIT_STATUSES,
    SOLVE_STATUSES,
    Alignment,
    Completed,
    FittedResponses,
)
from leadline.torch.shapes import Batch, as_batch

_RESPONSE_FIELDS = tuple(field.name for field in fields(FittedResponses))


def align(
    prior: Tensor,
    sparse: Tensor,
    mode: Mode = "response",
    *,
    valid: Tensor | None = None,
    kind: Kind = "depth",
    loss: Loss = "squared",
    strict: bool = False,
) -> Alignment:
    """The prior aligned to the measurements, differentiable in both.

    Parameters
    ----------
    prior : (H, W), (B, H, W) or (B, 1, H, W) tensor
        Relative depth; pixels that are NaN, infinite or not positive are invalid.
    sparse : tensor of the same shape
        Metres; 0, negative, NaN and inf mean "not measured".
    mode : {"response", "depth", "log", "disparity"}
        The paper's response, whose exponent is estimated, or gain and offset in one fixed coordinate.
    valid : bool tensor, optional
        False where neither prior nor measurement may be used.
    kind : {"depth", "disparity", "log_depth"}
        What the prior's values are.
    loss : {"squared", "cauchy"}
        Cauchy's loss limits the influence of outliers.
    strict : bool
        Raise `NotConverged` if any item took a fallback, and in the backward pass if a gradient cannot be formed.

    Examples
    --------
    >>> prior = torch.linspace(1.0, 2.0, 48).reshape(1, 6, 8)
    >>> fit = align(prior, 3.0 * prior, mode="depth")
    >>> bool(torch.allclose(fit.calibrated, 3.0 * prior))
    True
    """
    require_choice("mode", mode, Mode)
    require_choice("loss", loss, Loss)
    batch = as_batch(prior, sparse, valid)
    gradient_status = _formed(batch)
    batch = batch.guarded(gradient_status, strict)
    with _without_autocast(batch):
        if mode == "response":
            fit = FitOptions.paper(loss=loss, residual="metric" if loss == "squared" else "log")
            aligned = align_batch(batch, kind, CompletionOptions.paper(fit=fit))
        else:
            aligned = align_coordinate(batch, kind, mode, loss)
    gradient_status.copy_(aligned.responses.gradient_status)
    result = Alignment(**_alignment(batch, aligned, gradient_status))
    if strict:
        _require_converged(result.messages, aligned.responses.status, None)
    return result


def complete(
    prior: Tensor,
    sparse: Tensor,
    valid: Tensor | None = None,
    *,
    noise: Tensor | float | None = None,
    edges: tuple[Tensor, Tensor] | None = None,
    kind: Kind = "depth",
    options: CompletionOptions | str = "best",
    iterations: int | None = None,
    backend: Backend = "auto",
    flow: bool = False,
    check_every: int = 2,
) -> Completed:
    """Dense metric depth from a relative prior and sparse measurements, differentiable in both.

    Parameters
    ----------
    prior, sparse, valid, kind
        As for `align`.
    noise : float or tensor, optional
        Standard deviation of the measurements in metres, as for `leadline.complete`.
    edges : two tensors, optional
        Weights in (0, 1] of the residual's differences: (..., H, W - 1) towards the right and (..., H - 1, W) towards
        the lower neighbour, such as a network predicts. They replace the unit weights of ``paper`` and those that
        ``best`` chooses.
    options : "best", "paper" or CompletionOptions
    iterations : int, optional
        Take exactly this many solver steps and look at no value on the way, so that `torch.compile(fullgraph=True)`
        accepts the call; 8 are enough for 1e-6. Only with ``options="paper"``.
    backend : {"auto", "core", "tensor"}
        The compiled solver for float32 tensors on the CPU, or tensor operations. "auto" takes the faster one.
    flow : bool
        Let gradients flow through the weights that the adaptive system and the noise choose: those of the edges and
        those of the measurements. By default they are held constant. Choices that are discrete (the screened outliers,
        the spacing of the measurements, pixel or cell) and the scale of the residuals in the fit always are.
    check_every : int
        Solver steps between two checks for convergence, each of which waits for the device.

    Raises
    ------
    InputError
        If shapes, types or devices do not fit together.
    NotConverged
        Only with ``options.strict``: an item took a fallback or its solve stopped early, or the backward pass could not
        form a gradient.

    Examples
    --------
    >>> prior = torch.linspace(1.0, 2.0, 768).reshape(24, 32)
    >>> sparse = torch.zeros_like(prior)
    >>> sparse[::6, ::6] = 3.0 * prior[::6, ::6]
    >>> bool(torch.allclose(complete(prior, sparse).depth, 3.0 * prior, rtol=1e-3))
    True
    """
    require_choice("backend", backend, Backend)
    options = as_options(options)
    batch = as_batch(prior, sparse, valid, noise, edges)
    if backend == "core" and (batch.prior.device.type != "cpu" or batch.prior.dtype != torch.float32):
        raise InputError(
            f"{param('backend', 'core')} is for float32 tensors on the CPU, got {batch.prior.dtype} on "
            f"{batch.prior.device}."
        )
    if iterations is not None:
        _require_fixed_steps(backend, options, flow)
    gradient_status = _formed(batch)
    batch = batch.guarded(gradient_status, options.strict)
    parts = batch.parts() if iterations is None else [batch]
    with _without_autocast(batch):
        found = [_complete_part(part, kind, options, iterations, backend, flow, check_every) for part in parts]
    values = found[0] if len(found) == 1 else {name: torch.cat([part[name] for part in found]) for name in found[0]}
    values["gradient_status"] = gradient_status.copy_(values["gradient_status"])
    maps = {name: batch.unbatch(values[name]) for name in ("depth", "calibrated")}
    result = Completed(**{name: maps.get(name, batch.unbatch_items(value)) for name, value in values.items()})
    if options.strict:
        _require_converged(result.messages, values["status"], values["solve_status"])
    return result


class Completion(nn.Module):
    """`complete` as a module: ``Completion(options)(prior, sparse)`` returns a `Completed`.

    Examples
    --------
    >>> layer = Completion(options="paper", iterations=8)
    >>> prior = torch.linspace(1.0, 2.0, 768).reshape(1, 1, 24, 32)
    >>> layer(prior, 2.0 * prior).depth.shape
    torch.Size([1, 1, 24, 32])
    """

    def __init__(self, options: CompletionOptions | str = "best", **arguments: Any) -> None:
        super().__init__()
        self.options, self.arguments = as_options(options), arguments

    def forward(self, prior: Tensor, sparse: Tensor, valid: Tensor | None = None, **arguments: Any) -> Completed:
        return complete(prior, sparse, valid, options=self.options, **{**self.arguments, **arguments})

    def extra_repr(self) -> str:
        return f"options={self.options}"


def _complete_part(
    batch: Batch,
    kind: Kind,
    options: CompletionOptions,
    iterations: int | None,
    backend: Backend,
    flow: bool,
    check_every: int,
) -> dict[str, Tensor]:
    """The fields of `Completed` for some images of a batch, (B,) or (B, H, W) each."""
    if iterations is not None:
        aligned = align_fixed_steps(batch, kind, options)
        solved = reconstruct_fixed_steps(batch, aligned, options.reconstruction, iterations)
    else:
        aligned = align_batch(batch, kind, options)
        solved = reconstruct_batch(batch, aligned, options.reconstruction, backend, flow=flow, check_every=check_every)
    return {
        **{name: getattr(aligned.responses, name) for name in _RESPONSE_FIELDS},
        "gradient_status": _gradient_status(aligned, solved),
        "calibrated": aligned.calibrated.to(batch.prior.dtype),
        "depth": solved.depth,
        "solve_status": solved.status,
        "iterations": solved.iterations,
        "residual": solved.residual,
    }


def _require_fixed_steps(backend: Backend, options: CompletionOptions, flow: bool) -> None:
    """Refuse what the mode with a fixed number of iterations would ignore."""
    if backend == "core":
        raise InputError(f"{param('iterations')} is for tensor operations, and {param('backend')} is 'core'; give one.")
    if options.strict:
        raise InputError(f"{param('iterations')} reads no status, so {param('strict')} cannot raise.")
    if flow:
        raise InputError(f"{param('flow')} is for systems that are chosen by image; {param('iterations')} fixes one.")


def _without_autocast(batch: Batch) -> AbstractContextManager[Any]:
    """A context in which tensors keep their type; some devices, such as meta, know no autocast."""
    kind = batch.prior.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _formed(batch: Batch) -> Tensor:
    """A status of each item that says its gradients can be formed, for the backward pass to change."""
    return torch.zeros(batch.prior.shape[:1], dtype=torch.uint8, device=batch.prior.device)


def _gradient_status(aligned: Aligned, solved: Reconstructed) -> Tensor:
    formed = aligned.responses.gradient_status
    broken = solved.status == SOLVE_STATUSES.index(SolveStatus.BROKE_DOWN)
    return torch.where(broken, torch.full_like(formed, FAILED), formed)


def _alignment(batch: Batch, aligned: Aligned, gradient_status: Tensor) -> dict[str, Tensor]:
    items = {name: batch.unbatch_items(getattr(aligned.responses, name)) for name in _RESPONSE_FIELDS}
    items["gradient_status"] = batch.unbatch_items(gradient_status)
    return {**items, "calibrated": batch.unbatch(aligned.calibrated.to(batch.prior.dtype))}


def _require_converged(messages: list[str], fit: Tensor, solve: Tensor | None) -> None:
    good = fit == FIT_STATUSES.index(FitStatus.CONVERGED)
    if solve is not None:
        fine = [SOLVE_STATUSES.index(s) for s in (SolveStatus.CONVERGED, SolveStatus.NOTHING_TO_SOLVE)]
        good = good & torch.isin(solve, torch.tensor(fine, dtype=solve.dtype, device=solve.device))
    bad = [f"item {k}: {messages[k]}" for k in torch.nonzero(~good).flatten().tolist()]
    if bad:
        raise NotConverged(f"strict: {'. '.join(bad)}.")
