"""The weights that the adaptive system and the noise choose, as differentiable functions of map and measurements.

The formulas are those of `leadline.core.adaptive` and `leadline.core.noise`, where they are explained. What is discrete
stays as the core chose it: the neighbours of each measurement, the spacing that follows from them (and with it the
stiffness), and whether a measurement is of a pixel or of a cell. So does the residual that the core estimates on
coarser grids before it chooses the edges, and what follows from it on the half grid. Medians and trimmed means are
differentiable almost everywhere; their gradients go to the values that were selected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from leadline.core import noise
from leadline.core.adaptive import (
    MAX_WEIGHT,
    MIN_EDGE_WEIGHT,
    MIN_SIGNAL_FACTOR,
    OUTLIER_SCALE,
    ROUNDING,
    TRIMMED_SHARE,
    full_weight_signal,
)
from leadline.core.neighbours import Neighbours, nearest_others
from leadline.core.solve.nested import Estimate
from leadline.torch.stencils import halve_edges, halve_map


def edge_weights(
    log_t: Tensor, valid: Tensor, estimate: Estimate | None, *, halve: bool = False
) -> tuple[Tensor, Tensor]:
    """Weights towards the right and the lower neighbour, (H, W - 1) and (H - 1, W), or at half the resolution.

    They follow from the gradient of t and, with the core's estimate of the residual, which is held constant, from that
    of the depth beyond its slope.
    """
    right, lower = _pair_weights(*_gradients(log_t, valid))
    if halve:
        right, lower = halve_edges(right, lower)
        log_t = torch.log(halve_map(torch.exp(log_t), valid))
        valid = halve_map(valid.to(log_t), torch.ones_like(valid)) > 0
    if estimate is None:
        return right, lower
    residual, slope = (torch.as_tensor(part, device=log_t.device) for part in (estimate.residual, estimate.slope))
    energy, contrast = _gradients(log_t + residual.nan_to_num(0.0).to(log_t), valid)
    steeper = _pair_weights((energy - slope.to(energy)).clamp(min=0.0), contrast)
    return torch.minimum(right, steeper[0]), torch.minimum(lower, steeper[1])


def _gradients(log_t: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Squared gradient at each pixel, and the mean gradient."""
    t = torch.where(valid, torch.exp(log_t), torch.ones_like(log_t))

    def squared(a: Tensor, b: Tensor, both: Tensor) -> Tensor:
        ratio = 2.0 * (a - b) / (a + b)
        return torch.where(both, ratio, torch.zeros_like(ratio)) ** 2

    across = squared(t[:, 1:], t[:, :-1], valid[:, 1:] & valid[:, :-1])
    down = squared(t[1:], t[:-1], valid[1:] & valid[:-1])
    energy = 0.5 * (pad(across, (0, 1)) + pad(across, (1, 0)) + pad(down, (0, 0, 0, 1)) + pad(down, (0, 0, 1, 0)))
    # The square root has no derivative at zero, where the energy has none either.
    steep = energy > 0
    size = torch.where(steep, torch.sqrt(torch.where(steep, energy, torch.ones_like(energy))), torch.zeros_like(energy))
    return energy, size.sum() / valid.sum().clamp(min=1)


def _pair_weights(energy: Tensor, contrast: Tensor) -> tuple[Tensor, Tensor]:
    flat = contrast.detach() == 0
    inverse = torch.where(flat, torch.zeros_like(contrast), 0.5 / torch.where(flat, 1.0, contrast) ** 2)
    right = 1.0 / (1.0 + (energy[:, 1:] + energy[:, :-1]) * inverse)
    lower = 1.0 / (1.0 + (energy[1:] + energy[:-1]) * inverse)
    return right.clamp(min=MIN_EDGE_WEIGHT), lower.clamp(min=MIN_EDGE_WEIGHT)


@dataclass(frozen=True)
class Cells:
    """Mean and relative standard deviation of t over the square cell around each measurement, (n,) each."""

    mean: Tensor
    variation: Tensor

    @classmethod
    def of(cls, log_t: Tensor, valid: Tensor, where: Tensor, side: int) -> Cells:
        """`where` are flat indices of the measured pixels, (n,), and `side` is odd."""
        height, width = log_t.shape
        offsets = torch.arange(side, device=log_t.device) - side // 2
        row = (where // width)[:, None, None] + offsets[:, None]
        column = (where % width)[:, None, None] + offsets
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(1)
        used = inside.flatten(1) & valid.flatten()[index]
        off = torch.expm1(log_t.flatten()[index] - log_t.flatten()[where][:, None])  # relative to the middle pixel
        off = torch.where(used, off, torch.zeros_like(off))
        count = used.sum(-1)
        mean = off.sum(-1) / count
        variance = (torch.where(used, off - mean[:, None], torch.zeros_like(off)) ** 2).sum(-1) / count
        varied = variance > 0
        deviation = torch.sqrt(torch.where(varied, variance, torch.ones_like(variance)))
        variation = torch.where(varied, deviation, torch.zeros_like(deviation)) / (1.0 + mean)
        return cls(torch.exp(log_t.flatten()[where]) * (1.0 + mean), variation)


def adaptive_weights(targets: Tensor, neighbours: Neighbours | None, variation: Tensor | None) -> Tensor:
    """Weight of each measurement from the log residuals `targets`, (n,); `variation` is given for cells only."""
    if neighbours is None:
        return torch.full_like(targets, MAX_WEIGHT)
    errors, spreads = compare(targets, neighbours)
    roughness = _trimmed_mean(errors).clamp(min=ROUNDING)
    signal = (_trimmed_mean(targets.abs()) / roughness) ** 2 - 1.0
    weights = MAX_WEIGHT * (signal / full_weight_signal(neighbours.spacing)).clamp(min=MIN_SIGNAL_FACTOR, max=1.0)
    scale = OUTLIER_SCALE * torch.as_tensor(neighbours.isolation, device=targets.device)
    weights = weights / (1.0 + (errors / (scale * roughness + 2.0 * spreads)) ** 2) ** 2
    return weights if variation is None else weights / (1.0 + (variation / roughness) ** 2)


def compare(values: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor]:
    """Distance of each value from the median of its neighbours' values, and the third largest distance of theirs."""
    nearest = torch.as_tensor(neighbours.nearest, device=values.device).long()
    counts = torch.as_tensor(neighbours.counts, device=values.device).long()[:, None]
    used = torch.arange(nearest.shape[1], device=values.device) < counts
    nearest = torch.where(used, nearest, torch.zeros_like(nearest))
    found = torch.where(used, values[nearest], torch.full_like(values, torch.inf)[:, None])
    ordered = found.sort(dim=-1).values
    median = 0.5 * (ordered.gather(1, (counts - 1) // 2) + ordered.gather(1, counts // 2))
    distances = torch.where(used, (values[nearest] - median).abs(), torch.full_like(median, -1.0))
    spread = distances.sort(dim=-1, descending=True).values.gather(1, counts.clamp(max=3) - 1)
    return (values - median.squeeze(1)).abs(), spread.squeeze(1)


def noise_weights(
    residuals: Tensor, log_sigma: Tensor, where: Tensor, shape: tuple[int, int], screening: float
) -> Tensor:
    """Weight kappa^2 / sigma^2 of each measurement, (n,); zero stands for a hard one, whose sigma is zero."""
    noisy = log_sigma.detach() > 0
    safe = torch.where(noisy, log_sigma, torch.ones_like(log_sigma))
    if where.numel() < noise.MIN_MEASUREMENTS or not bool(noisy.any()):
        return torch.zeros_like(log_sigma)
    nearest = torch.as_tensor(nearest_others(where.cpu().numpy(), shape, noise.PARTNERS), device=where.device).long()
    rows, columns = where // shape[1], where % shape[1]
    distance = torch.hypot(*((part[:, None] - part[nearest]).to(residuals.dtype) for part in (rows, columns)))
    resistance = (torch.log(distance) + 1.617) / math.pi
    both = log_sigma[:, None] ** 2 + log_sigma[nearest] ** 2
    from_pairs = ((residuals[:, None] - residuals[nearest]) ** 2 / noise.MEDIAN_SQUARE - both) / resistance
    per_variance = 4.0 * math.pi / max(math.log(32.0 / screening), 1.0)
    from_magnitudes = per_variance * (residuals**2 - log_sigma**2).mean()
    least = noise.MIN_VARIANCE_RATIO * _median(both / resistance)
    variance = torch.stack((_median(from_pairs), from_magnitudes, least)).max()
    weights = (variance / safe**2).clamp(noise.MIN_WEIGHT, noise.MAX_WEIGHT)
    return torch.where(noisy, weights, torch.zeros_like(weights))


def _median(values: Tensor) -> Tensor:
    ordered = values.flatten().sort().values
    count = ordered.numel()
    return 0.5 * (ordered[(count - 1) // 2] + ordered[count // 2])


def _trimmed_mean(errors: Tensor) -> Tensor:
    kept = errors.numel() - int(TRIMMED_SHARE * errors.numel())
    return torch.maximum(errors.sort().values[:kept].mean(), 0.1 * errors.mean())
