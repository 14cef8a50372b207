"""The prior brought to metres, as tensors with gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from leadline.base.errors import InputError, param, require_choice
from leadline.core.fit.calibration import SMALLEST
from leadline.core.fit.estimator import MIN_LOG_RANGE, FitStatus
from leadline.core.inputs import Inputs, Pairs, check_inputs
from leadline.core.options import CompletionOptions
from leadline.core.pipeline import fit_pairs, remove_outliers
from leadline.torch.estimator import PairMaps, estimate, fixed_coordinate, scale_only
from leadline.torch.implicit import ItemFit
from leadline.torch.response import log_response, log_response_near, paper_parameters
from leadline.torch.results import FIT_STATUSES, FORMED, NOT_DETERMINED, FittedResponses
from leadline.torch.shapes import Batch

Kind = Literal["depth", "disparity", "log_depth"]
Mode = Literal["response", "depth", "log", "disparity"]
Loss = Literal["squared", "cauchy"]

EXPONENTS: dict[str, float] = {"depth": 1.0, "log": 0.0, "disparity": -1.0}
_CAUCHY_WIDTH = 2.385  # in standard deviations: 95 % efficient for normal noise
_NORMAL_MEDIAN = 0.6745
_REWEIGHTINGS = 20


@dataclass(frozen=True)
class Aligned:
    """A batch of calibrated maps with their responses, all with gradients.

    Attributes
    ----------
    log_t : (B, H, W) float64
        Logarithm of the calibrated prior in metres; zero where it is invalid.
    usable : (B, H, W) bool
        Pixels with a valid prior, in images with a measurement.
    responses : FittedResponses
    items : tuple of (Inputs, Pairs)
        The inputs of each image on the host and the pairs that were used; empty with a fixed number of iterations.
    """

    log_t: Tensor
    usable: Tensor
    responses: FittedResponses
    items: tuple[tuple[Inputs, Pairs], ...] = ()

    @property
    def calibrated(self) -> Tensor:
        """t in metres, (B, H, W) float64, NaN where it is invalid."""
        return torch.where(self.usable, torch.exp(self.log_t), torch.full_like(self.log_t, torch.nan))


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
    relative = batch.prior.detach() if kind == "depth" else torch.exp(log_h.detach()).to(batch.prior.dtype)
    hosts = torch.where(usable, relative, torch.full_like(relative, torch.nan)).cpu().numpy()
    sparse = torch.where(batch.valid, batch.sparse, torch.zeros_like(batch.sparse)).detach().cpu().numpy()
    noise = None if batch.noise is None else batch.noise.detach().cpu().numpy()
    fits, thetas, formed, items = [], [], [], []
    for k, host in enumerate(hosts):
        inputs = check_inputs(host, sparse[k], noise=None if noise is None else noise[k])
        pairs, _ = remove_outliers(inputs.pairs, options.outliers)
        fit = fit_pairs(pairs, options.fit)
        where = torch.as_tensor(pairs.where, device=log_h.device)
        sigma = None if batch.noise is None else batch.noise[k].flatten()[where]
        squared = options.fit.loss == "squared"
        item = ItemFit(fit, squared, log_h[k].flatten()[where], batch.sparse[k].flatten()[where], sigma)
        theta, determined = item.differentiable()
        fits.append(item)
        thetas.append(theta)
        formed.append(FORMED if determined else NOT_DETERMINED)
        items.append((inputs, pairs))

    def per_item(values: list[Any], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=log_h.device)

    scale = per_item([item.fit.response.scale for item in fits])
    means = [torch.log(item.depth.double()).mean().exp() if item.fit.count else scale[k] for k, item in enumerate(fits)]
    empty = per_item([item.fit.count == 0 for item in fits], torch.bool)
    return _assemble(
        log_h,
        usable & ~empty[:, None, None],
        torch.stack(thetas),
        centre=per_item([item.centre for item in fits]),
        scale=scale,
        mean=torch.stack(means),
        rmse=per_item([item.fit.rmse for item in fits]),
        status=per_item([FIT_STATUSES.index(item.fit.status) for item in fits], torch.uint8),
        gradient_status=per_item(formed, torch.uint8),
        items=tuple(items),
        near=all(item.is_near(pairs.prior_range) for item, (_, pairs) in zip(fits, items, strict=True)),
    )


def align_fixed_steps(batch: Batch, kind: Kind, options: CompletionOptions) -> Aligned:
    """The paper's least squares with a fixed number of steps, on tensors alone."""
    if not options.fit.least_squares or options.outliers != "keep":
        raise InputError(
            f"{param('iterations')} fixes the number of steps, which only {param('options', 'paper')} and its fit by "
            "least squares allow: the other fits look at their residuals to decide what to do next."
        )
    log_h, usable = relative_depth(batch.prior, kind, batch.valid)
    pairs, centre_log, scale_log = _pair_maps(batch, log_h, usable)
    theta, status = estimate(pairs)
    return _aligned(batch, log_h, usable, pairs, theta, status, (centre_log, scale_log))


def align_coordinate(batch: Batch, kind: Kind, mode: Mode, loss: Loss) -> Aligned:
    """Gain and offset in one fixed coordinate, by least squares or by a reweighted fit whose last weights are held.

    With fewer than two distinct pairs, or with anti-correlated ones, only the scale is fitted, as by the core.
    """
    log_h, usable = relative_depth(batch.prior, kind, batch.valid)
    pairs, centre_log, scale_log = _pair_maps(batch, log_h, usable)
    x, y, weights = pairs.x, pairs.log_depth, pairs.weights
    exponent = torch.full_like(centre_log, EXPONENTS[mode])
    if loss == "cauchy":
        with torch.no_grad():
            weights = _cauchy_weights(pairs.detached(), exponent)
    gain, offset = fixed_coordinate(x, y, weights, exponent)
    none = pairs.weights.sum(-1) == 0
    flat = torch.zeros_like(none)
    for values in (x, y):
        low, high = pairs.range(values.detach())
        flat = flat | (high - low < MIN_LOG_RANGE)
    rising = (gain > 0) & ~flat
    line = torch.stack((exponent, torch.log(torch.where(rising, gain, torch.ones_like(gain))), offset), dim=-1)
    zero = torch.zeros_like(offset)
    theta = torch.where(rising[:, None], line, torch.stack((zero, zero, scale_only(pairs)), dim=-1))
    theta = torch.where(none[:, None], torch.zeros_like(theta), theta)
    found, flat_code, opposite, nothing = (
        torch.full_like(none, FIT_STATUSES.index(status), dtype=torch.uint8)
        for status in (
            FitStatus.CONVERGED,
            FitStatus.SCALE_ONLY,
            FitStatus.ANTI_CORRELATED,
            FitStatus.NO_MEASUREMENTS,
        )
    )
    status = torch.where(none, nothing, torch.where(flat, flat_code, torch.where(rising, found, opposite)))
    return _aligned(batch, log_h, usable, pairs, theta, status, (centre_log, scale_log))


def _aligned(
    batch: Batch,
    log_h: Tensor,
    usable: Tensor,
    pairs: PairMaps,
    theta: Tensor,
    status: Tensor,
    means: tuple[Tensor, Tensor],
) -> Aligned:
    """The result of a fit to all pairs of a batch at once; `means` are the logarithms that `_pair_maps` returns."""
    centre, scale = map(torch.exp, means)
    none = pairs.weights.sum(-1) == 0
    rmse = torch.sqrt(pairs.mean((_mapped(pairs, theta) - torch.exp(pairs.log_depth)) ** 2)) * scale
    return _assemble(
        log_h,
        usable & ~none[:, None, None],
        theta,
        centre=centre,
        scale=scale,
        mean=_geometric_mean(batch, pairs),
        rmse=torch.where(none, torch.full_like(rmse, torch.nan), rmse),
        status=status,
        gradient_status=NOT_DETERMINED * none.to(torch.uint8),
    )


def _cauchy_weights(pairs: PairMaps, exponent: Tensor) -> Tensor:
    """Weights of the pairs, (B, n), under Cauchy's loss, by reweighted fits to at most MAX_COARSE_PAIRS of them."""
    few = pairs.coarse()
    weights = few.weights

    def residuals(of: PairMaps) -> Tensor:
        return of.log_depth - log_response(of.x, exponent[:, None], torch.log(gain)[:, None], offset[:, None])

    def reweighted(of: PairMaps) -> Tensor:
        result = of.weights / (1.0 + (residuals(of) / width[:, None]) ** 2)
        return torch.where(torch.isfinite(result), result, torch.zeros_like(result))

    for _ in range(_REWEIGHTINGS):
        gain, offset = fixed_coordinate(few.x, few.log_depth, weights, exponent)
        size = torch.where(few.weights > 0, residuals(few).abs(), torch.full_like(few.x, torch.nan))
        width = _CAUCHY_WIDTH * (torch.nanmedian(size, dim=-1).values / _NORMAL_MEDIAN).clamp(min=1e-9)
        weights = reweighted(few)
    return reweighted(pairs)


def _pair_maps(batch: Batch, log_h: Tensor, usable: Tensor) -> tuple[PairMaps, Tensor, Tensor]:
    """The pairs about their geometric means, and the logarithms of these means, which are held constant."""
    measured = batch.measured & usable
    weights = measured.double().flatten(1)
    total = weights.sum(-1).clamp(min=1.0)
    logs = torch.log(torch.where(measured, batch.sparse, torch.ones_like(batch.sparse)).double()).flatten(1)
    centre_log = ((weights * log_h.flatten(1)).sum(-1) / total).detach()
    scale_log = ((weights * logs).sum(-1) / total).detach()
    x = torch.where(usable, log_h - centre_log[:, None, None], torch.zeros_like(log_h)).flatten(1)
    ends = torch.stack((x.amin(-1), x.amax(-1)), dim=-1).detach()
    log_depth = torch.where(measured.flatten(1), logs - scale_log[:, None], torch.zeros_like(logs))
    return PairMaps(x, log_depth, weights, ends), centre_log, scale_log


def _geometric_mean(batch: Batch, pairs: PairMaps) -> Tensor:
    """The paper's s_0 in metres, (B,), with gradients."""
    measured = (pairs.weights > 0).view_as(batch.sparse)
    logs = torch.log(torch.where(measured, batch.sparse, torch.ones_like(batch.sparse)).double())
    return torch.exp(pairs.mean(logs.flatten(1)))


def _mapped(pairs: PairMaps, theta: Tensor) -> Tensor:
    """t / scale at every pixel, (B, n), without gradients."""
    return torch.exp(log_response(pairs.x.detach(), *(part[:, None] for part in theta.detach().unbind(-1))))


def _assemble(
    log_h: Tensor,
    usable: Tensor,
    theta: Tensor,
    *,
    centre: Tensor,
    scale: Tensor,
    mean: Tensor,
    rmse: Tensor,
    status: Tensor,
    gradient_status: Tensor,
    items: tuple[tuple[Inputs, Pairs], ...] = (),
    near: bool = False,
) -> Aligned:
    exponent, log_gain, offset = theta.unbind(-1)
    # Invalid pixels get the centre, where every map is defined: a NaN would spread through the parameters' gradients.
    x = torch.where(usable, log_h - torch.log(centre)[:, None, None], torch.zeros_like(log_h))
    evaluate = log_response_near if near else log_response
    log_t = evaluate(x, *(part[:, None, None] for part in (exponent, log_gain, offset)))
    log_t = log_t + torch.log(scale)[:, None, None]
    defined = usable & torch.isfinite(log_t.detach())
    log_t = torch.where(defined, log_t, torch.zeros_like(log_t))
    gain, shift = paper_parameters(exponent, log_gain, offset, centre, scale, mean)
    responses = FittedResponses(exponent, gain, shift, mean, rmse, status, gradient_status)
    return Aligned(log_t, defined, responses, items)
