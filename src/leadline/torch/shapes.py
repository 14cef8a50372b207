"""Arguments of any accepted shape and type as one batch, and results back in the shape of the arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.base.errors import InputError, param


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
    unbatch : callable
        Brings a (B, H, W) map to the shape of the prior.
    unbatch_items : callable
        Brings a (B,) tensor to shape () for a single map, and leaves it alone for a batch.
    """

    prior: Tensor
    sparse: Tensor
    valid: Tensor
    noise: Tensor | None
    unbatch: Callable[[Tensor], Tensor]
    unbatch_items: Callable[[Tensor], Tensor]

    @property
    def measured(self) -> Tensor:
        """Where there is a measurement, (B, H, W) bool."""
        return (self.sparse > 0) & torch.isfinite(self.sparse) & self.valid


def as_batch(prior: Tensor, sparse: Tensor, valid: Tensor | None, noise: Tensor | float | None) -> Batch:
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
        noise_map = noise if isinstance(noise, Tensor) and noise.ndim else torch.full_like(values, float(noise))
        noise_map = _as_map(noise_map.reshape(shape) if noise_map.shape != shape else noise_map, "noise", prior)
    mask = torch.ones_like(values, dtype=torch.bool) if valid is None else _as_mask(valid, prior)
    single = prior.ndim == 2
    return Batch(
        values,
        _as_map(sparse, "sparse", prior),
        mask,
        noise_map,
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


def _as_mask(valid: Tensor, like: Tensor) -> Tensor:
    if not isinstance(valid, Tensor) or valid.dtype != torch.bool:
        got = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise InputError(f"{param('valid')} must be a boolean tensor, got {got} instead. Compare it first: mask > 0.")
    if valid.shape != like.shape:
        raise InputError(
            f"{param('valid')} must have the prior's shape {tuple(like.shape)}, got {tuple(valid.shape)} instead."
        )
    return valid.reshape(-1, *like.shape[-2:])
