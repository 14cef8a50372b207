"""The prior brought to metres, as tensors with gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leadline.base.errors import InputError, param, require_choice
from leadline.core.fit.calibration import SMALLEST
from leadline.core.fit.estimator import FitStatus
from leadline.core.inputs import Inputs, Pairs, check_inputs
from leadline.core.options import CompletionOptions
from leadline.core.pipeline import fit_pairs, remove_outliers
from leadline.torch.estimator import estimate, fixed_coordinate
from leadline.torch.implicit import ItemFit
from leadline.torch.response import log_response, paper_parameters
from leadline.torch.shapes import Batch

Kind = Literal["depth", "disparity", "log_depth"]
Mode = Literal["response", "depth", "log", "disparity"]
Loss = Literal["squared", "cauchy"]

FIT_STATUSES = tuple(FitStatus)
EXPONENTS: dict[str, float] = {"depth": 1.0, "log": 0.0, "disparity": -1.0}
_CAUCHY_WIDTH = 2.385  # in standard deviations: 95 % efficient for normal noise
_NORMAL_MEDIAN = 0.6745
_REWEIGHTINGS = 20
_FIXED_FIT_STEPS = 24  # Levenberg-Marquardt steps when the number of iterations is fixed


@dataclass(frozen=True)
class Aligned:
    """A batch of calibrated maps with the parameters of their responses, all with gradients.

    Attributes
    ----------
    log_t : (B, H, W) float64
        Logarithm of the calibrated prior in metres; zero where it is invalid.
    usable : (B, H, W) bool
        Pixels with a valid prior, in images with a measurement.
    exponent, gain, offset, scale : (B,) float64
        The paper's parameters.
    rmse : (B,)
        Root mean square residual of the pairs in metres.
    status : (B,) uint8
        Index into `FIT_STATUSES`.
    differentiable : (B,) bool
        False where the gradient of the parameters could not be formed; it is zero there.
    items : tuple of (Inputs, Pairs)
        The inputs of each image on the host and the pairs that were used; empty with a fixed number of iterations.
    """

    log_t: Tensor
    usable: Tensor
    exponent: Tensor
    gain: Tensor
    offset: Tensor
    scale: Tensor
    rmse: Tensor
    status: Tensor
    differentiable: Tensor
    items: tuple[tuple[Inputs, Pairs], ...] = ()


def relative_depth(values: Tensor, kind: Kind, valid: Tensor) -> tuple[Tensor, Tensor]:
    """log h, zero where it is not usable, and where it is usable."""
    require_choice("kind", kind, Kind)
    if kind == "log_depth":
        usable = torch.isfinite(values) & valid
        return torch.where(usable, values, torch.zeros_like(values)).double(), usable
    wide = values.double()  # in float32 the smallest valid prior would be zero
    usable = (wide >= SMALLEST) & torch.isfinite(wide) & valid
    logs = torch.log(torch.where(usable, wide, torch.ones_like(wide)))
    return (-logs if kind == "disparity" else logs), usable


def align_batch(batch: Batch, kind: Kind, options: CompletionOptions) -> Aligned:
    """Fit each image's response in the compiled core, with gradients by implicit differentiation."""
    log_h, usable = relative_depth(batch.prior, kind, batch.valid)
    hosts = torch.where(usable, torch.exp(log_h), torch.full_like(log_h, torch.nan)).detach().cpu().numpy()
    if batch.prior.dtype == torch.float32:
        hosts = hosts.astype("float32")
    sparse = torch.where(batch.valid, batch.sparse, torch.zeros_like(batch.sparse)).detach().cpu().numpy()
    noise = None if batch.noise is None else batch.noise.detach().cpu().numpy()
    parts, items = [], []
    for k, host in enumerate(hosts):
        inputs = check_inputs(host, sparse[k], noise=None if noise is None else noise[k])
        pairs, _ = remove_outliers(inputs.pairs, options.outliers)
        fit = fit_pairs(pairs, options.fit)
        where = torch.as_tensor(pairs.where, device=log_h.device)
        sigma = None if batch.noise is None else batch.noise[k].flatten()[where]
        item = ItemFit(fit, log_h[k].flatten()[where], batch.sparse[k].flatten()[where], sigma)
        parts.append((item, *item.differentiable()))
        items.append((inputs, pairs))
    theta = torch.stack([part[1] for part in parts])

    def per_item(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=log_h.device)

    responses = [item.fit.response for item, _, _ in parts]
    centre = per_item([item.centre for item, _, _ in parts])
    scale = per_item([response.scale for response in responses])
    empty = [item.fit.status is FitStatus.NO_MEASUREMENTS for item, _, _ in parts]
    means = [
        torch.exp(torch.log(item.depth.double()).mean()) if not none else scale[k]
        for k, ((item, _, _), none) in enumerate(zip(parts, empty, strict=True))
    ]
    usable = usable & ~torch.tensor(empty, device=log_h.device)[:, None, None]
    status = [FIT_STATUSES.index(item.fit.status) for item, _, _ in parts]
    return _assemble(
        log_h,
        usable,
        theta,
        centre,
        scale,
        torch.stack(means),
        per_item([item.fit.rmse for item, _, _ in parts]),
        torch.tensor(status, dtype=torch.uint8, device=log_h.device),
        torch.tensor([formed for _, _, formed in parts], device=log_h.device),
        tuple(items),
    )


def align_fixed_steps(batch: Batch, kind: Kind, options: CompletionOptions) -> Aligned:
    """The paper's least squares with a fixed number of steps, on tensors alone; differentiable by unrolling."""
    if not options.fit.least_squares or options.outliers != "keep":
        raise InputError(
            f"{param('iterations')} fixes the number of steps, which only {param('options', 'paper')} and its fit by "
            "least squares allow: the other fits look at their residuals to decide what to do next."
        )
    log_h, usable = relative_depth(batch.prior, kind, batch.valid)
    measured = batch.measured & usable
    weights = measured.double().flatten(1)
    count = weights.sum(-1)
    enough = count > 0
    depth = torch.where(measured, batch.sparse, torch.ones_like(batch.sparse)).double()
    total = count.clamp(min=1.0)
    centre_log = (weights * log_h.flatten(1)).sum(-1) / total
    scale_log = (weights * torch.log(depth).flatten(1)).sum(-1) / total
    x = torch.where(usable, log_h - centre_log[:, None, None], torch.zeros_like(log_h)).flatten(1)
    ends = torch.stack((x.amin(-1), x.amax(-1)), dim=-1)
    scaled = (depth / torch.exp(scale_log)[:, None, None]).flatten(1)
    theta, settled = estimate(x, scaled, weights, ends, _FIXED_FIT_STEPS)
    identity = torch.zeros_like(theta)
    theta = torch.where(enough[:, None], theta, identity)
    t = torch.exp(log_response(x, *(part[:, None] for part in theta.unbind(-1))))
    rmse = torch.sqrt((weights * (t - scaled) ** 2).sum(-1) / total) * torch.exp(scale_log)
    found, limit, none = (
        FIT_STATUSES.index(status)
        for status in (FitStatus.CONVERGED, FitStatus.ITERATION_LIMIT, FitStatus.NO_MEASUREMENTS)
    )
    status = torch.where(enough, torch.where(settled, found, limit), none).to(torch.uint8)
    centre, scale = torch.exp(centre_log), torch.exp(scale_log)
    usable = usable & enough[:, None, None]
    return _assemble(log_h, usable, theta, centre, scale, scale, rmse, status, torch.ones_like(enough))


def align_coordinate(batch: Batch, kind: Kind, mode: Mode, loss: Loss) -> Aligned:
    """Gain and offset in one fixed coordinate, by least squares or by a reweighted fit whose last weights are held."""
    log_h, usable = relative_depth(batch.prior, kind, batch.valid)
    measured = batch.measured & usable
    flat = measured.double().flatten(1)
    total = flat.sum(-1).clamp(min=1.0)
    logs = torch.log(torch.where(measured, batch.sparse, torch.ones_like(batch.sparse)).double()).flatten(1)
    centre_log = ((flat * log_h.flatten(1)).sum(-1) / total).detach()
    scale_log = ((flat * logs).sum(-1) / total).detach()
    x, y = log_h.flatten(1) - centre_log[:, None], logs - scale_log[:, None]
    exponent = torch.full_like(total, EXPONENTS[mode])
    weights = flat
    if loss == "cauchy":
        with torch.no_grad():
            for _ in range(_REWEIGHTINGS):
                gain, offset = fixed_coordinate(x, y, weights, exponent)
                residual = y - log_response(x, exponent[:, None], torch.log(gain)[:, None], offset[:, None])
                size = torch.where(measured.flatten(1), residual.abs(), torch.full_like(residual, torch.nan))
                spread = torch.nanmedian(size, dim=-1).values / _NORMAL_MEDIAN
                weights = flat / (1.0 + (residual / (_CAUCHY_WIDTH * spread.clamp(min=1e-9))[:, None]) ** 2)
                weights = torch.where(torch.isfinite(weights), weights, torch.zeros_like(weights))
    gain, offset = fixed_coordinate(x, y, weights, exponent)
    usable_gain = gain > 0
    theta = torch.stack((exponent, torch.log(torch.where(usable_gain, gain, torch.ones_like(gain))), offset), dim=-1)
    t = torch.exp(log_response(x, *(part[:, None] for part in theta.unbind(-1))) + scale_log[:, None])
    squares = torch.where(measured.flatten(1), (t - torch.exp(logs)) ** 2, torch.zeros_like(t))
    codes = [
        FIT_STATUSES.index(status)
        for status in (FitStatus.CONVERGED, FitStatus.ANTI_CORRELATED, FitStatus.NO_MEASUREMENTS)
    ]
    status = torch.where(flat.sum(-1) == 0, codes[2], torch.where(usable_gain, codes[0], codes[1])).to(torch.uint8)
    usable = usable & (usable_gain & (flat.sum(-1) > 0))[:, None, None]
    scale = torch.exp((flat * logs).sum(-1) / total)
    rmse = torch.sqrt(squares.sum(-1) / total)
    centre = torch.exp(centre_log)
    return _assemble(
        log_h, usable, theta, centre, torch.exp(scale_log), scale, rmse, status, torch.ones_like(usable_gain)
    )


def _assemble(
    log_h: Tensor,
    usable: Tensor,
    theta: Tensor,
    centre: Tensor,
    scale: Tensor,
    mean: Tensor,
    rmse: Tensor,
    status: Tensor,
    differentiable: Tensor,
    items: tuple[tuple[Inputs, Pairs], ...] = (),
) -> Aligned:
    exponent, log_gain, offset = theta.unbind(-1)
    # Invalid pixels get the centre, where every map is defined: a NaN would spread through the parameters' gradients.
    x = torch.where(usable, log_h - torch.log(centre)[:, None, None], torch.zeros_like(log_h))
    log_t = log_response(x, *(part[:, None, None] for part in (exponent, log_gain, offset)))
    log_t = log_t + torch.log(scale)[:, None, None]
    defined = usable & torch.isfinite(log_t.detach())
    log_t = torch.where(defined, log_t, torch.zeros_like(log_t))
    gain, shift = paper_parameters(exponent, log_gain, offset, centre, scale, mean)
    return Aligned(log_t, defined, exponent, gain, shift, mean, rmse, status, differentiable, items)
