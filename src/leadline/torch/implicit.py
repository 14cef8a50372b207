"""The fitted parameters as differentiable functions of prior and measurements, by the implicit function theorem.

The estimator returns theta* where the gradient G(theta, data) of its objective vanishes. So
d theta = -H^-1 dG with H the Hessian in theta, both formed here by automatic differentiation of the objective.

Held constant is what the estimator decided on the way: which pairs were screened out; tau, the error of the prior in
the noise model; and the weight and the support of the penalty on the parameters. The estimator determines tau by
bisections to 1 / 4096 in an alternation that stops at a change of one per cent, and the weight at an end point that is
not iterated to convergence: as functions of the data both have steps, and their derivatives would be rounding error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.core.fit.estimator import Fit, FitStatus
from leadline.core.fit.normal_equations import CAUCHY, GEMAN_MCCLURE, HUBER
from leadline.core.fit.robust import GAIN_GROWTH, GAIN_SPREAD, Reweighted, Shrinkage
from leadline.torch.response import is_near, log_response

# Parameters (exponent, log gain, offset) that each status estimated; the others have fixed values. Statuses that are
# not listed estimated all of them.
_ESTIMATED = {
    FitStatus.UNBOUNDED_EXPONENT: (False, True, True),
    FitStatus.FIXED_COORDINATE: (False, True, True),
    FitStatus.SCALE_ONLY: (False, False, True),
    FitStatus.ANTI_CORRELATED: (False, False, True),
    FitStatus.NO_MEASUREMENTS: (False, False, False),
}
_FALLBACKS = (FitStatus.FIXED_COORDINATE, FitStatus.SCALE_ONLY, FitStatus.ANTI_CORRELATED)
_POLISH = 1e-5  # largest Newton step, relative to the parameters, that is added to their values
_LARGEST_CONDITION = 1e14  # of the scaled Hessian: beyond it the derivative is rounding error


@dataclass(frozen=True)
class ItemFit:
    """The fit of one image, and its pairs as tensors that carry gradients."""

    fit: Fit
    squared: bool  # whether the fallbacks are those of the squared loss; other losses use medians
    log_prior: Tensor  # (n,) log h at the measured pixels
    depth: Tensor  # (n,) m
    sigma: Tensor | None  # (n,) m

    @property
    def centre(self) -> float:
        return self.fit.response.centred[0]

    def is_near(self, prior_range: tuple[float, float]) -> bool:
        """Whether the short formula of the response holds over the whole prior."""
        if not self.fit.count:
            return False
        centre, gain, offset = self.fit.response.centred
        low, high = (math.log(end) - math.log(centre) for end in prior_range)
        return is_near((low, high), self.fit.response.exponent, gain, offset)

    def parameters(self) -> Tensor:
        """(exponent, log gain, offset) about the centre, (3,) float64, without gradients."""
        _, gain, offset = self.fit.response.centred
        values = [self.fit.response.exponent, gain, offset]
        theta = torch.tensor(values, dtype=torch.float64, device=self.depth.device)
        return torch.stack((theta[0], torch.log(theta[1]), theta[2]))

    def differentiable(self) -> tuple[Tensor, bool]:
        """The same with gradients, and whether they could be formed."""
        theta = self.parameters()
        fallback = self.fit.status in _FALLBACKS
        estimated = torch.tensor(_ESTIMATED.get(self.fit.status, (True,) * 3), device=theta.device)
        inputs = (self.log_prior, self.depth, self.sigma)
        if self.fit.status is FitStatus.NO_MEASUREMENTS or (fallback and not self.squared):
            return theta, False
        if not any(x is not None and x.requires_grad for x in inputs):
            return theta, True
        at = theta.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.objective(at), at, create_graph=True)
        rows = [torch.autograd.grad(part, at, retain_graph=True)[0] for part in gradient.unbind()]
        identity = torch.eye(3, dtype=theta.dtype, device=theta.device)
        both = estimated[:, None] & estimated
        hessian = torch.where(both, torch.stack(rows).detach(), identity)
        scale = torch.rsqrt(torch.diagonal(hessian).abs().clamp(min=1e-300))
        scaled = hessian * scale[:, None] * scale
        if not bool(torch.isfinite(scaled).all()):
            return theta, False
        condition = torch.linalg.cond(scaled)
        if not bool(torch.isfinite(condition) & (condition < _LARGEST_CONDITION)):
            return theta, False
        step = scale * torch.linalg.solve(scaled, scale * torch.where(estimated, gradient, torch.zeros_like(theta)))
        # The estimator stops where the cost no longer falls, at the square root of the parameters' accuracy. Where it
        # is close, this Newton step completes the descent; elsewhere only its derivative is used.
        close = step.detach().abs().max() < _POLISH * (1.0 + theta.abs().max())
        return theta - (step if bool(close) else step - step.detach()), True

    def objective(self, theta: Tensor) -> Tensor:
        """What the estimator minimised, as a function of theta, (3,), and of the data."""
        response, objective = self.fit.response, self.fit.objective
        x = self.log_prior.double() - math.log(self.centre)
        log_t = log_response(x, *theta.unbind())
        log_depth = torch.log(self.depth.double()) - math.log(response.scale)
        if self.fit.status is FitStatus.FIXED_COORDINATE or (objective is not None and objective.in_logs):
            residual = log_depth - log_t
        else:
            residual = torch.exp(log_depth) - torch.exp(log_t)
        kept = torch.as_tensor(self.fit.weights > 0, device=theta.device)
        if objective is None or self.fit.status in _FALLBACKS:
            return (residual[kept] ** 2).sum()
        z = residual[kept] * self._inverse_sigma(objective, kept)
        cost = _loss(z, objective.loss, objective.width).sum()
        return cost if objective.penalty is None else cost + _penalty(objective.penalty, theta)

    def _inverse_sigma(self, objective: Reweighted, kept: Tensor) -> Tensor:
        """1 / sqrt(sigma^2 + tau^2) of each pair; tau is held constant."""
        constant = torch.as_tensor(objective.inverse_sigma, device=kept.device)
        if self.sigma is None or objective.variance is None:
            return constant
        tau2 = constant**-2 - torch.as_tensor(objective.variance, device=kept.device)
        unit = self.depth.double()[kept] if objective.in_logs else self.fit.response.scale
        return torch.rsqrt((self.sigma.double()[kept] / unit) ** 2 + tau2)


def _loss(z: Tensor, loss: int, width: float) -> Tensor:
    u = (z / width) ** 2
    if loss == HUBER:
        return torch.where(u <= 1, z * z, 2 * width * z.abs() - width * width)
    if loss == CAUCHY:
        return width * width * torch.log1p(u)
    return z * z / (1 + u) if loss == GEMAN_MCCLURE else z * z


def _penalty(penalty: Shrinkage, theta: Tensor) -> Tensor:
    exponent, log_gain, offset = theta.unbind()
    total = (exponent / penalty.spread) ** 2 + ((torch.exp(log_gain) - 1.0) / GAIN_SPREAD) ** 2

    def local_gain(x: float) -> Tensor:
        excess = (1.0 + exponent * offset) * torch.exp(-log_gain) - 1.0
        return -torch.log1p(torch.clamp(excess * torch.exp(-exponent * x), min=-1.0 + 1e-15))

    for edge, end in zip(penalty.edges, penalty.domain, strict=True):
        growth = torch.clamp(local_gain(end) - local_gain(edge), min=0.0) / GAIN_GROWTH
        total = total + growth**2
    return penalty.weight * total
