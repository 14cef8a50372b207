"""`align` and `complete` for tensors: batches, any device, gradients.

Each image's fit, and the weights that the adaptive preset chooses, come from the compiled core, which reads the
measured pixels and (for the adaptive weights) a copy of the calibrated map on the host. That takes a few milliseconds
per image and happens before the solve. Calibration and solve are tensor operations on the inputs' device; float32
tensors on the CPU take the compiled solver, which is faster there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leadline.base.errors import InputError, NotConverged, param, require_choice
from leadline.core.fit.estimator import FitStatus
from leadline.core.options import CompletionOptions, FitOptions, as_options
from leadline.core.solve.cg import SolveStatus
from leadline.torch.align import (
    FIT_STATUSES,
    Aligned,
    Kind,
    Loss,
    Mode,
    align_batch,
    align_coordinate,
    align_fixed_steps,
)
from leadline.torch.reconstruct import SOLVE_STATUSES, Backend, reconstruct_batch, reconstruct_fixed_steps
from leadline.torch.shapes import Batch, as_batch


@dataclass(frozen=True)
class Alignment:
    """The prior in metres and its response. Maps have the prior's shape; other tensors are (B,), or () for one map.

    Attributes
    ----------
    calibrated : tensor
        t in metres, NaN where the prior is invalid.
    exponent, gain, offset, scale : tensors, float64
        The paper's lambda, alpha, beta and s_0.
    rmse : tensor, float64
        Root mean square residual of the fit in metres.
    status : tensor, uint8
        Index into `FIT_STATUSES`; `messages` gives the sentences.
    differentiable : tensor, bool
        False where the parameters do not determine a gradient, e.g. on a plateau of the cost. It is zero there.
    """

    calibrated: Tensor
    exponent: Tensor
    gain: Tensor
    offset: Tensor
    scale: Tensor
    rmse: Tensor
    status: Tensor
    differentiable: Tensor

    @property
    def messages(self) -> list[str]:
        """The status of each item as a sentence."""
        return [str(FIT_STATUSES[code]) for code in self.status.reshape(-1).tolist()]


@dataclass(frozen=True)
class Completed(Alignment):
    """Dense metric depth, and how it was obtained.

    Attributes
    ----------
    depth : tensor
        Metres; equal to the measurement, bit for bit, where there is one that is taken as exact.
    solve_status : tensor, uint8
        Index into `SOLVE_STATUSES`.
    iterations : tensor, int64
        Conjugate gradient steps.
    residual : tensor, float64
        True relative residual at the end.
    """

    depth: Tensor
    solve_status: Tensor
    iterations: Tensor
    residual: Tensor

    @property
    def messages(self) -> list[str]:
        """The statuses of fit and solve of each item as sentences."""
        solves = [str(SOLVE_STATUSES[code]) for code in self.solve_status.reshape(-1).tolist()]
        return [f"fit {fit}; solve {solve}" for fit, solve in zip(super().messages, solves, strict=True)]


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
        Raise `NotConverged` if any item took a fallback.

    Examples
    --------
    >>> prior = torch.linspace(1.0, 2.0, 48).reshape(1, 6, 8)
    >>> fit = align(prior, 3.0 * prior, mode="depth")
    >>> bool(torch.allclose(fit.calibrated, 3.0 * prior))
    True
    """
    require_choice("mode", mode, Mode)
    require_choice("loss", loss, Loss)
    batch = as_batch(prior, sparse, valid, None)
    with torch.autocast(prior.device.type, enabled=False):
        if mode == "response":
            fit = FitOptions.paper(loss=loss, residual="metric" if loss == "squared" else "log")
            aligned = align_batch(batch, kind, CompletionOptions.paper(fit=fit))
        else:
            aligned = align_coordinate(batch, kind, mode, loss)
    result = Alignment(**_alignment(batch, aligned))
    if strict:
        _require_converged(result.messages, aligned.status, None)
    return result


def complete(
    prior: Tensor,
    sparse: Tensor,
    valid: Tensor | None = None,
    *,
    noise: Tensor | float | None = None,
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
    options : "best", "paper" or CompletionOptions
    iterations : int, optional
        Take exactly this many solver steps and look at no value on the way, so that `torch.compile(fullgraph=True)`
        accepts the call; 8 are enough for 1e-6. Only with ``options="paper"``.
    backend : {"auto", "core", "tensor"}
        The compiled solver for float32 tensors on the CPU, or tensor operations. "auto" takes the faster one.
    flow : bool
        Let gradients flow through the edge weights of the adaptive system. By default they are held constant, as are
        its other choices: the screened outliers, the weights and the spacing of the measurements.
    check_every : int
        Solver steps between two checks for convergence, each of which waits for the device.

    Raises
    ------
    InputError
        If shapes, types or devices do not fit together.
    NotConverged
        Only with ``options.strict``: an item took a fallback or its solve stopped early.

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
    batch = as_batch(prior, sparse, valid, noise)
    if backend == "core" and (batch.prior.device.type != "cpu" or batch.prior.dtype != torch.float32):
        raise InputError(
            f"{param('backend', 'core')} is for float32 tensors on the CPU, got {batch.prior.dtype} on "
            f"{batch.prior.device}."
        )
    if backend == "core" and iterations is not None:
        raise InputError(f"{param('iterations')} is for tensor operations, and {param('backend')} is 'core'; give one.")
    with torch.autocast(batch.prior.device.type, enabled=False):
        if iterations is not None:
            aligned = align_fixed_steps(batch, kind, options)
            solved = reconstruct_fixed_steps(batch, aligned, options.reconstruction, iterations)
        else:
            aligned = align_batch(batch, kind, options)
            solved = reconstruct_batch(
                batch, aligned, options.reconstruction, backend, flow=flow, check_every=check_every
            )
    result = Completed(
        **_alignment(batch, aligned),
        depth=batch.unbatch(solved.depth),
        solve_status=batch.unbatch_items(solved.status),
        iterations=batch.unbatch_items(solved.iterations),
        residual=batch.unbatch_items(solved.residual),
    )
    if options.strict and iterations is None:
        _require_converged(result.messages, aligned.status, solved.status)
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


def _alignment(batch: Batch, aligned: Aligned) -> dict[str, Tensor]:
    t = torch.where(aligned.usable, torch.exp(aligned.log_t), torch.full_like(aligned.log_t, torch.nan))
    names = ("exponent", "gain", "offset", "scale", "rmse", "status", "differentiable")
    items = {name: batch.unbatch_items(getattr(aligned, name)) for name in names}
    return {"calibrated": batch.unbatch(t.to(batch.prior.dtype)), **items}


def _require_converged(messages: list[str], fit: Tensor, solve: Tensor | None) -> None:
    good = fit == FIT_STATUSES.index(FitStatus.CONVERGED)
    if solve is not None:
        fine = [SOLVE_STATUSES.index(s) for s in (SolveStatus.CONVERGED, SolveStatus.NOTHING_TO_SOLVE)]
        good = good & torch.isin(solve, torch.tensor(fine, dtype=solve.dtype, device=solve.device))
    bad = [f"item {k}: {messages[k]}" for k in torch.nonzero(~good).flatten().tolist()]
    if bad:
        raise NotConverged(f"strict: {'. '.join(bad)}.")
