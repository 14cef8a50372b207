"""Estimation of the response on tensors alone: a fixed number of Levenberg-Marquardt steps from several starts.

No value is read by the host and no shape depends on the data: pairs are whole maps with a mask, and an item that has
converged or cannot improve stays where it is. This is the estimator of the mode with a fixed number of iterations;
otherwise the compiled estimator of the core is used, which screens outliers and stops by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.torch.response import log_response, log_response_jacobian

STARTS = (-1.0, 0.0, 1.0)
_FIRST_DAMPING = 1e-4  # relative to the largest curvature
_SETTLED = 1e-6  # relative decrease of the cost in the last step below which the fit counts as converged


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


def estimate(x: Tensor, depth: Tensor, weights: Tensor, ends: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """(exponent, log gain, offset) that minimise the weighted squares of depth - t, (B, 3), and whether they settled.

    Parameters
    ----------
    x : (B, n)
        log(h / centre), finite everywhere.
    depth : (B, n)
        Measured depth in units of the scale, positive everywhere.
    weights : (B, n)
        Zero for pixels that are not measured.
    ends : (B, 2)
        x at the smallest and largest valid prior; the map must be defined between them.
    steps : int
        Levenberg-Marquardt steps from each start.
    """
    starts = torch.tensor(STARTS, dtype=x.dtype, device=x.device)
    exponent = starts.expand(x.shape[0], -1)  # (B, S)
    x, depth, weights, ends = (value.unsqueeze(1) for value in (x, depth, weights, ends))
    gain, offset = fixed_coordinate(x, torch.log(depth), weights, exponent)
    usable = gain > 0
    theta = torch.stack((exponent, torch.log(torch.where(usable, gain, torch.ones_like(gain))), offset), dim=-1)
    cost, gradient, matrix = _normal_equations(x, depth, weights, ends, theta)
    cost = torch.where(usable, cost, torch.full_like(cost, torch.inf))
    damping = _FIRST_DAMPING * torch.diagonal(matrix, dim1=-2, dim2=-1).amax(-1)
    growth = torch.full_like(damping, 2.0)
    identity = torch.eye(3, dtype=x.dtype, device=x.device)
    decrease = torch.full_like(cost, torch.inf)
    for _ in range(steps):
        step = -_solve3(matrix + damping[..., None, None] * identity, gradient)
        trial = theta + step
        new_cost, new_gradient, new_matrix = _normal_equations(x, depth, weights, ends, trial)
        better = new_cost < cost
        expected = -(step * (2 * gradient + (matrix @ step.unsqueeze(-1)).squeeze(-1))).sum(-1)
        quality = torch.where(
            better & (expected > 0), (cost - new_cost) / torch.where(expected > 0, expected, 1.0), 0.0
        )
        damping = torch.where(better, damping * torch.clamp(1 - (2 * quality - 1) ** 3, min=1 / 3), damping * growth)
        growth = torch.where(better, 2.0, 2 * growth)
        theta = torch.where(better[..., None], trial, theta)
        gradient = torch.where(better[..., None], new_gradient, gradient)
        matrix = torch.where(better[..., None, None], new_matrix, matrix)
        decrease = torch.where(better, (cost - new_cost) / cost, torch.zeros_like(cost))
        cost = torch.where(better, new_cost, cost)
    best = cost.argmin(dim=-1)
    settled = decrease.gather(1, best[:, None]).squeeze(1) < _SETTLED
    return theta.gather(1, best[:, None, None].expand(-1, 1, 3)).squeeze(1), settled


def _normal_equations(
    x: Tensor, depth: Tensor, weights: Tensor, ends: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of squares, J^T r and J^T J; the cost is infinite where the map is not defined over the whole prior."""
    parameters = [part.unsqueeze(-1) for part in theta.unbind(-1)]
    log_t, jacobian = log_response_jacobian(x, *parameters)
    t = torch.exp(log_t)
    measured = weights > 0
    residual = torch.where(measured, depth - t, torch.zeros_like(t))
    rows = [torch.where(measured, -t * part, torch.zeros_like(t)) for part in jacobian]
    cost = (weights * residual * residual).sum(-1)
    gradient = torch.stack([(weights * row * residual).sum(-1) for row in rows], dim=-1)
    entries = [[(weights * a * b).sum(-1) for b in rows] for a in rows]
    matrix = torch.stack([torch.stack(row, dim=-1) for row in entries], dim=-2)
    feasible = torch.isfinite(log_response(ends, *parameters)).all(-1) & torch.isfinite(cost)
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
    scale = torch.rsqrt(torch.diagonal(matrix, dim1=-2, dim2=-1).clamp(min=1e-300))
    a = matrix * scale[..., :, None] * scale[..., None, :]
    b = right * scale
    columns = list(a.unbind(-1))
    determinant = _triple(*columns)
    safe = torch.where(determinant.abs() > 0, determinant, torch.full_like(determinant, torch.nan))
    replaced = [[b if i == k else column for i, column in enumerate(columns)] for k in range(3)]
    return torch.stack([_triple(*three) / safe for three in replaced], dim=-1) * scale


def _triple(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    product: Tensor = torch.linalg.cross(b, c, dim=-1)
    return (a * product).sum(-1)
