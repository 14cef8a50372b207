"""Arguments of any accepted shape and type as one batch, and results back in the shape of the arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leadline.base.errors import InputError, param
from leadline.torch.guard import guard

PART_BYTES = 16_000_000
"""Bytes of a map that a CPU takes at once, or a single image. The C library returns blocks of 32 MB and more to the
system after each operation, and the page faults of the next one take longer than the work."""


@dataclass(frozen=True)
class Batch:
    """The arguments of `align` and `complete` as (B, H, W) tensors on one device.

    Attributes
    ----------
    prior, sparse : (B, H, W) float32 or float64
    valid : (B, H, W) bool
        The caller's mask; all True by default.
    noise : (B, H, W) or None
        Standard deviation of each measurement in metres.
    edges : (B, H, W - 1) and (B, H - 1, W), or None
        Weights towards the right and the lower neighbour.
    unbatch : callable
        Brings a (B, H, W) map to the shape of the prior.
    unbatch_items : callable
        Brings a (B,) tensor to shape () for a single map, and leaves it alone for a batch.
    """

    prior: Tensor
    sparse: Tensor
    valid: Tensor
    noise: Tensor | None
    edges: tuple[Tensor, Tensor] | None
    unbatch: Callable[[Tensor], Tensor]
    unbatch_items: Callable[[Tensor], Tensor]

    @property
    def measured(self) -> Tensor:
        """Where there is a measurement, (B, H, W) bool."""
        return (self.sparse > 0) & torch.isfinite(self.sparse) & self.valid

    def guarded(self, status: Tensor, strict: bool) -> Batch:
        """The same batch, whose gradients are zero for an item where they are not finite; see `guard`."""
        right, down = self.edges or (None, None)
        prior, sparse, noise, right, down = guard(status, strict, self.prior, self.sparse, self.noise, right, down)
        edges = None if right is None or down is None else (right, down)
        return replace(self, prior=prior, sparse=sparse, noise=noise, edges=edges)  # type: ignore[arg-type]

    def parts(self) -> list[Batch]:
        """The batch in parts of a few images on a CPU, and as it is on other devices."""
        images = max(1, PART_BYTES // (self.prior[0].numel() * self.prior.element_size()))
        if self.prior.device.type != "cpu" or len(self.prior) <= images:
            return [self]
        unknown = [None] * -(-len(self.prior) // images)
        maps = zip(*(torch.split(part, images) for part in (self.prior, self.sparse, self.valid)), strict=True)
        noise = unknown if self.noise is None else torch.split(self.noise, images)
        edges = unknown if self.edges is None else zip(*(torch.split(part, images) for part in self.edges), strict=True)
        return [
            replace(self, prior=prior, sparse=sparse, valid=valid, noise=sigma, edges=pair)
            for (prior, sparse, valid), sigma, pair in zip(maps, noise, edges, strict=True)
        ]


def as_batch(
    prior: Tensor,
    sparse: Tensor,
    valid: Tensor | None,
    noise: Tensor | float | None = None,
    edges: tuple[Tensor, Tensor] | None = None,
) -> Batch:
    """Check shapes, types and devices, and bring everything to (B, H, W).

    Raises
    ------
    InputError
        If an argument is not a tensor of the right shape or type.
    """
    if not isinstance(prior, Tensor) or prior.ndim not in (2, 3, 4) or (prior.ndim == 4 and prior.shape[1] != 1):
        got = tuple(prior.shape) if isinstance(prior, Tensor) else type(prior).__name__
        raise InputError(f"{param('prior')} must be a tensor of shape (H, W), (B, H, W) or (B, 1, H, W), got {got}.")
    if prior.numel() == 0:
        raise InputError(f"{param('prior')} must not be empty, got shape {tuple(prior.shape)}.")
    shape = prior.shape
    values = _as_map(prior, "prior", prior)
    noise_map = None
    if noise is not None:
        if isinstance(noise, Tensor):
            noise_map = _as_map(noise.expand(shape) if noise.ndim == 0 else noise, "noise", prior)
        elif isinstance(noise, (int, float)):
            noise_map = torch.full_like(values, float(noise))
        else:
            raise InputError(f"{param('noise')} must be a number or a tensor in metres, got {type(noise).__name__}.")
    mask = torch.ones_like(values, dtype=torch.bool) if valid is None else _as_mask(valid, prior)
    single = prior.ndim == 2
    return Batch(
        values,
        _as_map(sparse, "sparse", prior),
        mask,
        noise_map,
        None if edges is None else _as_edges(edges, values),
        lambda maps: maps.reshape(shape),
        lambda items: items.squeeze(0) if single else items,
    )


def _as_map(tensor: Tensor, name: str, like: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise InputError(f"{param(name)} must be a tensor, got {type(tensor).__name__} instead.")
    if tensor.shape != like.shape:
        raise InputError(
            f"{param(name)} must have the prior's shape {tuple(like.shape)}, got {tuple(tensor.shape)} instead."
        )
    if tensor.device != like.device:
        raise InputError(f"{param(name)} must be on the prior's device {like.device}, got {tensor.device} instead.")
    if tensor.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise InputError(f"{param(name)} must hold real numbers, got {tensor.dtype} instead.")
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    return wide.reshape(-1, *like.shape[-2:])


def _as_edges(edges: tuple[Tensor, Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
    batch, height, width = values.shape
    if not (isinstance(edges, tuple) and len(edges) == 2 and all(isinstance(part, Tensor) for part in edges)):
        raise InputError(f"{param('edges')} must be two tensors: weights to the right and to the lower neighbour.")
    shapes = (batch, height, width - 1), (batch, height - 1, width)
    for part, shape in zip(edges, shapes, strict=True):
        if part.shape[-2:] != shape[1:] or part.numel() != math.prod(shape):
            raise InputError(f"{param('edges')} must have shapes {shapes[0]} and {shapes[1]}, got {tuple(part.shape)}.")
        if part.device != values.device or not part.is_floating_point():
            raise InputError(
                f"{param('edges')} must hold real numbers on the prior's device {values.device}, got {part.dtype} on "
                f"{part.device}."
            )
    right, down = (part.reshape(shape).to(values.dtype) for part, shape in zip(edges, shapes, strict=True))
    return right, down


def _as_mask(valid: Tensor, like: Tensor) -> Tensor:
    if not isinstance(valid, Tensor) or valid.dtype != torch.bool:
        got = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise InputError(f"{param('valid')} must be a boolean tensor, got {got} instead. Compare it first: mask > 0.")
    if valid.shape != like.shape:
        raise InputError(
            f"{param('valid')} must have the prior's shape {tuple(like.shape)}, got {tuple(valid.shape)} instead."
        )
    return valid.reshape(-1, *like.shape[-2:])
