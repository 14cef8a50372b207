"""Gradients that are not finite become zero for their item, and its status says so.

All inputs that need gradients pass through one operation at the start, an identity whose backward pass sees the
gradients of all of them. Whatever fails in between (an adjoint solve, a loss at a pixel without depth) leaves a number
that is not finite, and is found there. Other items of the batch are not affected.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leadline.base.errors import NotConverged
from leadline.torch.results import FAILED, FORMED, GRADIENT_STATUSES


def guard(status: Tensor, strict: bool, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
    """The inputs, (B, ...) each, with guarded gradients where they need any.

    Parameters
    ----------
    status : (B,) uint8
        Index into `GRADIENT_STATUSES`. Items whose status is not `FORMED` when the backward pass arrives get zero
        gradients; the pass sets it to `FAILED` where a gradient is not finite.
    strict : bool
        Raise `NotConverged` in the backward pass in these cases. This waits for the device.
    """
    needed = [x for x in inputs if x is not None and x.requires_grad]
    if not (needed and torch.is_grad_enabled()):
        return inputs
    guarded = iter(_Guard.apply(status, strict, *needed))  # type: ignore[no-untyped-call]
    return tuple(next(guarded) if x is not None and x.requires_grad else x for x in inputs)


class _Guard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, status: Tensor, strict: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.status, ctx.strict = status, strict
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        status: Tensor = ctx.status
        finite = torch.ones_like(status, dtype=torch.bool)
        for gradient in gradients:
            if gradient is not None:
                finite = finite & torch.isfinite(gradient).flatten(1).all(-1)
        failed = torch.full_like(status, FAILED)
        status.copy_(torch.where(finite | (status != FORMED), status, failed))
        good = status == FORMED
        if ctx.strict and not bool(good.all()):
            bad = [f"item {k}: {GRADIENT_STATUSES[code]}" for k, code in enumerate(status.tolist()) if code != FORMED]
            raise NotConverged(f"strict: {'. '.join(bad)}.")
        return None, None, *(g if g is None else _only(good, g) for g in gradients)


def _only(good: Tensor, gradient: Tensor) -> Tensor:
    return torch.where(good.view(-1, *(1,) * (gradient.ndim - 1)), gradient, torch.zeros_like(gradient))
