"""Estimation of the response on tensors alone: a fixed number of Levenberg-Marquardt steps from several starts.

No value is read by the host and no shape depends on the data: pairs are whole maps with a mask, and an item that has
converged or cannot improve stays where it is. This is the estimator of the mode with a fixed number of iterations;
otherwise the compiled estimator of the core is used, which screens outliers and stops by itself.

The descents from the three starts use at most MAX_COARSE_PAIRS pairs, evenly chosen; the best of them is continued on
all pairs. The derivative of the result does not unroll the steps: it is that of one Newton step at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.core.fit.estimator import MIN_LOG_RANGE, FitStatus
from leadline.torch.response import log_response_jacobian
from leadline.torch.results import FIT_STATUSES

MAX_COARSE_PAIRS = 8192
COARSE_STEPS, FINE_STEPS = 12, 4
_STARTS = 3  # exponents -1, 0 and 1
_FIRST_DAMPING = 1e-4  # relative to the largest curvature
_STEP = 1e-4  # of the central differences that form the Hessian: exact to 1e-8, and of few operations
_SETTLED = 1e-6  # relative decrease of the cost in the last step below which the fit counts as converged


@dataclass(frozen=True)
class PairMaps:
    """The pairs of a batch as whole maps, flattened to (B, n), or as lists of fixed length.

    Attributes
    ----------
    x : (B, n)
        log(h / centre), finite everywhere.
    log_depth : (B, n)
        log(s / scale), finite everywhere.
    weights : (B, n)
        One for a pair, zero elsewhere.
    ends : (B, 2)
        x at the smallest and largest valid prior; the map must be defined between them.
    """

    x: Tensor
    log_depth: Tensor
    weights: Tensor
    ends: Tensor

    def coarse(self) -> PairMaps:
        """At most MAX_COARSE_PAIRS of them, at even distances in the order of the pixels."""
        count = self.x.shape[1]
        places = min(count, MAX_COARSE_PAIRS)
        paired = self.weights > 0
        rank = torch.cumsum(paired, dim=1) - 1
        total = paired.sum(dim=1, keepdim=True).clamp(min=1)
        slot = torch.where(total > places, rank * places // total, rank)
        slot = torch.where(paired, slot, torch.full_like(slot, places))
        number = torch.arange(1, count + 1, device=slot.device).expand_as(slot)
        # Several pairs may fall into one place; the largest index wins, on any device.
        chosen = torch.zeros_like(slot[:, :1]).expand(-1, places + 1)
        chosen = chosen.scatter_reduce(1, slot, number, "amax")[:, :places]
        index = (chosen - 1).clamp(min=0)
        weights = (chosen > 0).to(self.weights.dtype)
        return PairMaps(self.x.gather(1, index), self.log_depth.gather(1, index), weights, self.ends)

    def detached(self) -> PairMaps:
        return PairMaps(*(value.detach() for value in (self.x, self.log_depth, self.weights, self.ends)))

    def mean(self, values: Tensor) -> Tensor:
        """Mean of (B, n) values over the pairs, (B,)."""
        return (self.weights * values).sum(-1) / self.weights.sum(-1).clamp(min=1.0)

    def range(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest of (B, n) values over the pairs, (B,) each; infinite without pairs."""
        paired = self.weights > 0
        outside = torch.full_like(values, torch.inf)
        return torch.where(paired, values, outside).amin(-1), torch.where(paired, values, -outside).amax(-1)


def fixed_coordinate(x: Tensor, y: Tensor, weights: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """Gain and offset of the weighted least squares line between prior and depth in the coordinate of `exponent`.

    Parameters
    ----------
    x, y : (..., n)
        log(h / centre) and log(s / scale).
    weights : (..., n)
        Zero for pixels that are not measured.
    exponent : (...)
    """
    u, v = _coordinate(x, exponent), _coordinate(y, exponent)
    total = weights.sum(-1, keepdim=True).clamp(min=1e-300)
    u_mean, v_mean = ((weights * value).sum(-1, keepdim=True) / total for value in (u, v))
    covariance = (weights * (u - u_mean) * (v - v_mean)).sum(-1)
    variance = (weights * (u - u_mean) ** 2).sum(-1)
    gain = covariance / torch.where(variance > 0, variance, torch.ones_like(variance))
    return gain, v_mean.squeeze(-1) - gain * u_mean.squeeze(-1)


def scale_only(pairs: PairMaps) -> Tensor:
    """Offset of t = k h, (B,): gain one in log depth, with k from least squares in metres."""
    largest = pairs.x.amax(-1, keepdim=True).detach()
    h, s = torch.exp(pairs.x - largest), torch.exp(pairs.log_depth)
    total = (pairs.weights * h * h).sum(-1)
    empty = total == 0
    ratio = (pairs.weights * s * h).sum(-1) / torch.where(empty, torch.ones_like(total), total)
    return torch.log(torch.where(empty, torch.ones_like(ratio), ratio)) - largest.squeeze(-1)


def estimate(pairs: PairMaps) -> tuple[Tensor, Tensor]:
    """(exponent, log gain, offset) of each item, (B, 3), and the code of its status, (B,) uint8.

    They minimise the squares of depth - t. Where the pairs do not determine them, the fallbacks are those of the core:
    gain and offset in log depth with two distinct pairs; the scale alone with equal or anti-correlated values.
    """
    with torch.no_grad():
        held = pairs.detached()
        theta, settled, feasible = _descend_from_starts(held)
        low_x, high_x = held.range(held.x)
        low_y, high_y = held.range(held.log_depth)
        flat = (high_x - low_x < MIN_LOG_RANGE) | (high_y - low_y < MIN_LOG_RANGE)
        two = ~(_third_value(held, held.x, low_x, high_x) & _third_value(held, held.log_depth, low_y, high_y))
        none = held.weights.sum(-1) == 0
        line, _ = fixed_coordinate(held.x, held.log_depth, held.weights, torch.zeros_like(low_x))
        opposite = ~flat & ~feasible
        opposite = opposite | (~flat & two & ~(line > 0))
        few = two & ~flat & ~opposite
        one = flat | opposite
    theta = _with_gradient(pairs, theta, ~(few | one | none))
    zero = torch.zeros_like(theta[:, 0])
    gain, offset = fixed_coordinate(pairs.x, pairs.log_depth, pairs.weights, zero)
    log_gain = torch.log(torch.where(few, gain, torch.ones_like(gain)))
    theta = torch.where(few[:, None], torch.stack((zero, log_gain, offset), dim=-1), theta)
    theta = torch.where(one[:, None], torch.stack((zero, zero, scale_only(pairs)), dim=-1), theta)
    theta = torch.where(none[:, None], torch.zeros_like(theta), theta)
    codes = _codes(settled)
    status = torch.where(settled, codes[FitStatus.CONVERGED], codes[FitStatus.ITERATION_LIMIT])
    status = torch.where(few, codes[FitStatus.FIXED_COORDINATE], status)
    status = torch.where(flat, codes[FitStatus.SCALE_ONLY], status)
    status = torch.where(opposite, codes[FitStatus.ANTI_CORRELATED], status)
    return theta, torch.where(none, codes[FitStatus.NO_MEASUREMENTS], status)


def _codes(like: Tensor) -> dict[FitStatus, Tensor]:
    """The code of each status as a tensor on the device of `like`."""
    return {status: torch.full_like(like, FIT_STATUSES.index(status), dtype=torch.uint8) for status in FitStatus}


def _third_value(pairs: PairMaps, values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whether some pair has a value that is neither the smallest nor the largest."""
    other = (values != low[:, None]) & (values != high[:, None]) & (pairs.weights > 0)
    return other.any(-1)


def _descend_from_starts(pairs: PairMaps) -> tuple[Tensor, Tensor, Tensor]:
    """The best end point, (B, 3), whether it settled, and whether any start was feasible, (B,) each."""
    coarse = _unsqueezed(pairs.coarse())
    exponent = torch.arange(_STARTS, device=pairs.x.device).to(pairs.x.dtype) - (_STARTS // 2)
    exponent = exponent.expand(pairs.x.shape[0], -1)  # (B, S)
    gain, offset = fixed_coordinate(coarse.x, coarse.log_depth, coarse.weights, exponent)
    usable = gain > 0
    theta = torch.stack((exponent, torch.log(torch.where(usable, gain, torch.ones_like(gain))), offset), dim=-1)
    cost, _, _ = _normal_equations(coarse, theta)
    cost = torch.where(usable, cost, torch.full_like(cost, torch.inf))
    feasible = torch.isfinite(cost).any(-1)
    theta, cost, _ = _levenberg_marquardt(coarse, theta, cost, COARSE_STEPS)
    best = cost.argmin(dim=-1)
    theta = theta.gather(1, best[:, None, None].expand(-1, 1, 3))
    fine = _unsqueezed(pairs)
    cost, _, _ = _normal_equations(fine, theta)
    theta, _, decrease = _levenberg_marquardt(fine, theta, cost, FINE_STEPS)
    return theta.squeeze(1), decrease.squeeze(1) < _SETTLED, feasible


def _unsqueezed(pairs: PairMaps) -> PairMaps:
    """With an axis for the starts: (B, 1, n)."""
    return PairMaps(*(value.unsqueeze(1) for value in (pairs.x, pairs.log_depth, pairs.weights, pairs.ends)))


def _levenberg_marquardt(pairs: PairMaps, theta: Tensor, cost: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """theta after the steps, its cost, and the relative decrease of the cost in the last one."""
    _, gradient, matrix = _normal_equations(pairs, theta)
    damping = _FIRST_DAMPING * torch.diagonal(matrix, dim1=-2, dim2=-1).amax(-1)
    two, zero = torch.full_like(damping, 2.0), torch.zeros_like(damping)
    growth, decrease = two, torch.full_like(cost, torch.inf)
    identity = torch.eye(3, dtype=theta.dtype, device=theta.device)
    for _ in range(steps):
        step = -_solve3(matrix + damping[..., None, None] * identity, gradient)
        trial = theta + step
        new_cost, new_gradient, new_matrix = _normal_equations(pairs, trial)
        better = new_cost < cost
        product = (matrix * step.unsqueeze(-2)).sum(-1)
        expected = -(step * (2 * gradient + product)).sum(-1)
        positive = expected > 0
        quality = (cost - new_cost) / torch.where(positive, expected, torch.ones_like(expected))
        quality = torch.where(better & positive, quality, zero)
        damping = torch.where(better, damping * torch.clamp(1 - (2 * quality - 1) ** 3, min=1 / 3), damping * growth)
        growth = torch.where(better, two, 2 * growth)
        theta = torch.where(better[..., None], trial, theta)
        gradient = torch.where(better[..., None], new_gradient, gradient)
        matrix = torch.where(better[..., None, None], new_matrix, matrix)
        decrease = torch.where(better, (cost - new_cost) / cost, zero)
        cost = torch.where(better, new_cost, cost)
    return theta, cost, decrease


def _with_gradient(pairs: PairMaps, theta: Tensor, regular: Tensor) -> Tensor:
    """theta with its derivative in the pairs: theta - H^-1 (G - its value), G the gradient and H the Hessian.

    Items that are not regular, (B,) bool, use a fallback instead. Here they get parameters and a Hessian for which all
    numbers are finite, because a NaN in their unused gradient would reach the pairs.
    """
    if not (torch.is_grad_enabled() and (pairs.x.requires_grad or pairs.log_depth.requires_grad)):
        return theta
    held = pairs.detached()
    theta = torch.where(regular[:, None], theta, torch.zeros_like(theta))

    def gradient(at: Tensor) -> Tensor:
        return _normal_equations(_unsqueezed(held), at.unsqueeze(1))[1].squeeze(1)

    unit = torch.eye(3, dtype=theta.dtype, device=theta.device)
    with torch.no_grad():
        sides = [(gradient(theta + _STEP * unit[k]), gradient(theta - _STEP * unit[k])) for k in range(3)]
        columns = [(above - below) / (2 * _STEP) for above, below in sides]
        hessian = torch.where(regular[:, None, None], torch.stack(columns, dim=-1), unit)
    value = _normal_equations(_unsqueezed(pairs), theta.unsqueeze(1))[1].squeeze(1)
    return theta - _solve3(hessian, value - value.detach())


def _normal_equations(pairs: PairMaps, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of squares, J^T r and J^T J; the cost is infinite where the map is not defined over the whole prior."""
    parameters = [part.unsqueeze(-1) for part in theta.unbind(-1)]
    log_t, jacobian = log_response_jacobian(torch.cat((pairs.x, pairs.ends), dim=-1), *parameters)
    feasible = torch.isfinite(log_t[..., -2:]).all(-1)
    count = pairs.x.shape[-1]
    t, measured = torch.exp(log_t[..., :count]), pairs.weights > 0
    residual = torch.where(measured, torch.exp(pairs.log_depth) - t, torch.zeros_like(t))
    rows = torch.where(
        measured.unsqueeze(-2), -t.unsqueeze(-2) * jacobian[..., :count], torch.zeros_like(t[..., None, :])
    )
    cost = (residual * residual).sum(-1)
    gradient = (rows * residual.unsqueeze(-2)).sum(-1)
    matrix = rows @ rows.transpose(-1, -2)
    feasible = feasible & torch.isfinite(cost)
    return torch.where(feasible, cost, torch.full_like(cost, torch.inf)), gradient, matrix


def _coordinate(log_value: Tensor, exponent: Tensor) -> Tensor:
    """(e^(exponent q) - 1) / exponent, q at exponent 0."""
    exponent = exponent.unsqueeze(-1)
    small = exponent.abs() < 1e-5
    power = torch.where(small, torch.ones_like(exponent), exponent)
    return torch.where(small, log_value + 0.5 * exponent * log_value**2, torch.expm1(power * log_value) / power)


def _solve3(matrix: Tensor, right: Tensor) -> Tensor:
    """Solution of 3 x 3 systems by Cramer's rule: no host check, no library call, and three unknowns are few enough.

    Rows and columns are scaled to a unit diagonal first, since the exponent's curvature is smaller by orders.
    """
    scale = torch.rsqrt(torch.diagonal(matrix, dim1=-2, dim2=-1).abs().clamp(min=1e-300))
    a = matrix * scale[..., :, None] * scale[..., None, :]
    # Cofactors: products of the entries one and two rows and columns further, cyclically.
    twice = torch.cat((a, a), dim=-1)
    twice = torch.cat((twice, twice), dim=-2)

    def shifted(down: int, right: int) -> Tensor:
        return twice[..., down : down + 3, right : right + 3]

    cofactors = shifted(1, 1) * shifted(2, 2) - shifted(1, 2) * shifted(2, 1)
    determinant = (a * cofactors).sum(-1)[..., :1]
    singular = determinant == 0
    safe = torch.where(singular, torch.full_like(determinant, torch.nan), determinant)
    return (cofactors * (right * scale).unsqueeze(-1)).sum(-2) / safe * scale
