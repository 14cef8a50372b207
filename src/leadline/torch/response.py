"""The response map on tensors, differentiable in the prior and in its three parameters (eq:affine).

With x = log(h / centre), log(t / scale) = log(g) / exponent, g = gain e^(exponent x) + c, c = 1 - gain + exponent
offset. As in the compiled core, g - 1 is formed through expm1 where its two terms do not cancel, and as a sum of
logarithms elsewhere; composing the response with its inverse would lose most digits at exponents that occur.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SMALL_EXPONENT = 1e-5  # below it a series in the exponent is exact to 1e-10, and so is its derivative
_MAX_EXPONENT = 700.0  # of exp in float64
_CANCELLATION = 1e2  # of the terms of g - 1, relative to g: at most two digits may be lost


def log_response(x: Tensor, exponent: Tensor, log_gain: Tensor, offset: Tensor) -> Tensor:
    """log(t / scale) for x = log(h / centre); NaN where the map is not defined.

    All in float64; parameters broadcast against x.
    """
    small = exponent.abs() < _SMALL_EXPONENT
    power = torch.where(small, torch.ones_like(exponent), exponent)
    gain = torch.exp(log_gain)
    # Each branch gets harmless arguments where another one is taken: an infinite derivative times zero would be NaN.
    grown, shift = gain * torch.expm1(torch.clamp(power * x, max=_MAX_EXPONENT)), power * offset
    excess = grown + shift
    near = (excess > -0.5) & (excess < 1e3) & (grown.abs() + shift.abs() < _CANCELLATION * (1.0 + excess))
    constant = (1.0 - gain) + shift
    log_power = log_gain + power * x
    size = torch.log(torch.where(constant == 0, torch.ones_like(constant), constant).abs())
    positive, negative = constant > 0, constant < 0
    added = torch.logaddexp(log_power, torch.where(positive, size, log_power))
    defined = negative & (size < log_power)
    below = torch.where(defined, size - log_power, torch.full_like(log_power, -1.0))
    subtracted = log_power + torch.log1p(-torch.exp(below))
    far = torch.where(positive, added, torch.where(defined, subtracted, log_power))
    far = torch.where(negative & ~defined, torch.full_like(far, torch.nan), far)
    log_g = torch.where(near, torch.log1p(torch.where(near, excess, torch.zeros_like(excess))), far)
    affine = gain * x + offset
    series = affine + 0.5 * exponent * (gain * x * x - affine * affine)
    return torch.where(small, series, log_g / power)


def log_response_near(x: Tensor, exponent: Tensor, log_gain: Tensor, offset: Tensor) -> Tensor:
    """`log_response` for parameters and x for which `is_near` holds: a third of its operations."""
    excess = torch.exp(log_gain) * torch.expm1(exponent * x) + exponent * offset
    return torch.log1p(excess) / exponent


def is_near(ends: tuple[float, float], exponent: float, gain: float, offset: float) -> bool:
    """Whether g - 1 can be formed directly for all x between the ends; g is monotone, so the ends decide."""
    if abs(exponent) < _SMALL_EXPONENT or max(exponent * x for x in ends) > _MAX_EXPONENT:
        return False
    grown, shift = [gain * math.expm1(exponent * x) for x in ends], exponent * offset
    low, high = min(grown) + shift, max(grown) + shift
    return low > -0.5 and high < 1e3 and max(map(abs, grown)) + abs(shift) < _CANCELLATION * (1.0 + low)


def log_response_jacobian(x: Tensor, exponent: Tensor, log_gain: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """`log_response`, (..., n), and its derivatives in exponent, log gain and offset, (..., 3, n).

    They are those of eq:jacobian, divided by t.
    """
    value = log_response(x, exponent, log_gain, offset)
    small = exponent.abs() < _SMALL_EXPONENT
    power = torch.where(small, torch.ones_like(exponent), exponent)
    gain = torch.exp(log_gain)
    affine = gain * x + offset
    over_g = torch.exp(-power * value)  # 1 / g
    by_exponent = ((gain * x * torch.exp(power * x) + offset) * over_g - value) / power
    by_gain = gain * torch.expm1(power * x) * over_g / power
    derivatives = (
        torch.where(small, 0.5 * (gain * x * x - affine * affine), by_exponent),
        torch.where(small, gain * x * (1.0 + exponent * (0.5 * x - affine)), by_gain),
        torch.where(small, 1.0 - exponent * affine, over_g),
    )
    return value, torch.stack(derivatives, dim=-2)


def paper_parameters(
    exponent: Tensor, log_gain: Tensor, offset: Tensor, centre: Tensor, scale: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor]:
    """The paper's gain and offset, from the parameters about a centre.

    `centre` and `scale` are constants of the parametrisation. `mean` is the paper's s_0, the geometric mean of the
    measurements: equal to `scale`, but differentiable. The map fixes gain and c s_0^exponent, whatever s_0 is.
    """
    log_rho = torch.log(centre) - torch.log(scale)
    log_alpha = log_gain - exponent * log_rho
    drift = torch.log(scale) - torch.log(mean)  # zero in value
    small = exponent.abs() < _SMALL_EXPONENT
    power = torch.where(small, torch.ones_like(exponent), exponent)
    # rho^-exponent phi(rho), the shift of the origin from the centre to the scale.
    shift = torch.where(small, log_rho - 0.5 * exponent * log_rho**2, -torch.expm1(-power * log_rho) / power)
    alpha = torch.exp(log_alpha)
    beta = offset - torch.exp(log_gain) * shift
    return alpha, beta + (1.0 - alpha + exponent * beta) * drift  # the drift is zero: first order is exact
