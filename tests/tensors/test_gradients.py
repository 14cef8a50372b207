"""Gradients of the completion: against differences, between backends, of failed items, and their memory."""

from __future__ import annotations

import gc
import importlib
import weakref

import numpy as np
import pytest

from leadline.base.errors import NotConverged
from leadline.core.fit.estimator import fit_response
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
from leadline.core.solve import nested, reconstruction
from leadline.core.solve.system import System

torch = pytest.importorskip("torch")

import leadline.torch as lt  # noqa: E402
from leadline.torch.implicit import ItemFit  # noqa: E402
from leadline.torch.multigrid import Hierarchy  # noqa: E402

SHAPE = (9, 11)
TIGHT = {"tolerance": 1e-12}
ADAPTIVE = CompletionOptions.paper(reconstruction=ReconstructionOptions(**TIGHT))
PAPER = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(**TIGHT))
# The estimator stops where the cost no longer falls, so that differences of the whole completion carry noise.
WHOLE = {"atol": 2e-4, "rtol": 1e-3}


def problem(count=26, seed=1):
    """A prior, a mask of measured pixels, their depths, a mask with a hole, and standard deviations."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    prior = random(*SHAPE) + 1
    measured = torch.zeros(SHAPE, dtype=torch.bool)
    measured.view(-1)[torch.randperm(prior.numel(), generator=generator)[:count]] = True
    values = (2 * prior**1.3 + 0.05 * random(*SHAPE))[measured]
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[3:5, 4:6] = False
    return prior, measured, values, valid, 0.02 + 0.05 * random(count), random


def to_map(measured, values):
    return torch.zeros(SHAPE, dtype=torch.float64).masked_scatter(measured, values)


def check(function, *inputs, **tolerances):
    return torch.autograd.gradcheck(
        function, [x.clone().requires_grad_() for x in inputs], fast_mode=True, **tolerances
    )


@pytest.fixture
def held_estimate(monkeypatch):
    """The residual that the core estimates on coarser grids, from the first evaluation on; gradients hold it too."""
    estimate, found = reconstruction.estimate_residual, []

    def held(grid, **options):
        if not found:
            found.append(estimate(grid, **options))
        return found[0]

    monkeypatch.setattr(reconstruction, "estimate_residual", held)


@pytest.mark.usefixtures("held_estimate")
@pytest.mark.parametrize(("options", "flow"), [(PAPER, False), (ADAPTIVE, True)])
def test_prior_measurements_and_edge_weights(options, flow):
    """Hard measurements of the paper, and soft ones of the adaptive system, whose weights flow."""
    prior, measured, values, valid, _, random = problem()
    right, down = 0.2 + 0.7 * random(SHAPE[0], SHAPE[1] - 1), 0.2 + 0.7 * random(SHAPE[0] - 1, SHAPE[1])

    def depth(prior, values, *edges):
        out = lt.complete(prior, to_map(measured, values), valid, edges=edges or None, options=options, flow=flow)
        return torch.nan_to_num(out.depth)

    assert check(depth, prior, values, **WHOLE)
    assert check(depth, prior, values, right, down, **WHOLE)


@pytest.mark.usefixtures("held_estimate")
def test_a_solve_at_half_the_resolution(monkeypatch):
    """The measurements' way to the half grid and the solution's way back; what follows from the estimate is held."""
    monkeypatch.setattr(nested, "COARSEST", 20)
    monkeypatch.setattr(nested, "HALF_FROM", 1)
    monkeypatch.setattr(nested.Grid, "similarity", np.float32(40.0))
    interpolate_at, found = nested.Grid.interpolate_at, []

    def held(*arguments):
        if not found:
            found.append(interpolate_at(*arguments))
        return found[0]

    monkeypatch.setattr(nested.Grid, "interpolate_at", held)
    prior, measured, values, valid, *_ = problem()

    def depth(prior, values):
        out = lt.complete(prior, to_map(measured, values), valid, options=ADAPTIVE, flow=True)
        return torch.nan_to_num(out.depth)

    assert check(depth, prior, values, **WHOLE)
    assert len(found) == 1  # the half grid was used


def test_parameters_of_the_response():
    """Through exponent, gain, offset and scale, by the implicit function theorem on the fit."""
    prior, measured, values, valid, *_ = problem()

    def parameters(prior, values):
        fit = lt.align(prior, to_map(measured, values), valid=valid)
        return torch.stack((fit.exponent, fit.gain, fit.offset, fit.scale))

    assert check(parameters, prior, values, **WHOLE)


@pytest.mark.usefixtures("held_estimate")
@pytest.mark.parametrize("system", [PAPER, ADAPTIVE])
def test_noise_of_soft_measurements(system, monkeypatch):
    """The fit is held at one response, because its tau has steps; the weights of the solve flow."""
    prior, measured, values, _, sigma, _ = problem()
    held = fit_response(prior[measured].numpy(), values.numpy())
    monkeypatch.setattr(importlib.import_module("leadline.torch.align"), "fit_pairs", lambda pairs, options: held)
    monkeypatch.setattr(ItemFit, "differentiable", lambda item: (item.parameters(), True))

    def depth(prior, values, sigma):
        noise = to_map(measured, sigma)
        out = lt.complete(prior, to_map(measured, values), noise=noise, options=system, flow=True)
        return torch.nan_to_num(out.depth)

    assert check(depth, prior, values, sigma, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        FitOptions.paper(),
        FitOptions(),
        *(FitOptions.paper(loss=loss, residual="log") for loss in ("huber", "cauchy", "gnc")),
    ],
    ids=["paper", "best", "huber", "cauchy", "gnc"],
)
@pytest.mark.parametrize("noisy", [False, True])
def test_fits_with_held_scale(options, noisy):
    """theta as a function of prior, depth and noise, against the minimum of the same objective by Newton steps."""
    prior, measured, values, _, sigma, _ = problem()
    log_prior = torch.log(prior[measured])
    fit = fit_response(prior[measured].numpy(), values.numpy(), options=options, sigma=sigma.numpy() if noisy else None)
    inputs = [x.clone().requires_grad_() for x in (log_prior, values, *([sigma] if noisy else []))]

    def item(log_prior, depth, sigma=None):
        return ItemFit(fit, options.loss == "squared", log_prior, depth, sigma)

    theta, formed = item(*inputs).differentiable()
    assert formed
    step = [1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=x.dtype) for x in inputs]

    def minimum(sign):
        moved = item(*(x.detach() + sign * s for x, s in zip(inputs, step, strict=True)))
        at = theta.detach().clone()
        for _ in range(4):
            gradient = torch.autograd.functional.jacobian(moved.objective, at)
            at = at - torch.linalg.solve(torch.autograd.functional.hessian(moved.objective, at), gradient)
        return at

    expected = (minimum(1.0) - minimum(-1.0)) / 2
    for k in range(3):
        parts = torch.autograd.grad(theta[k], inputs, retain_graph=True)
        found = sum((g * s).sum() for g, s in zip(parts, step, strict=True))
        assert float(found) == pytest.approx(float(expected[k]), rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_both_backends_have_the_same_gradients(preset):
    prior, measured, values, valid, sigma, _ = problem()
    gradients = []
    for backend in ("core", "tensor"):
        inputs = [x.float().requires_grad_() for x in (prior, to_map(measured, values), to_map(measured, sigma))]
        out = lt.complete(*inputs[:2], valid, noise=inputs[2], options=preset, backend=backend, flow=True)
        torch.nan_to_num(out.depth).square().mean().backward()
        gradients.append([x.grad for x in inputs])
    for one, other in zip(*gradients, strict=True):
        assert torch.isfinite(one).all()
        assert one.abs().sum() > 0
        assert float((one - other).norm() / one.norm()) < 5e-3  # both adjoint solves stop at the options' tolerance


@pytest.mark.parametrize("backend", ["core", "tensor"])
def test_a_failed_item_has_a_status_and_zero_gradients_and_harms_no_other(backend):
    prior, measured, values, *_ = problem()
    sparse = to_map(measured, values).float()
    priors = torch.stack([prior.float()] * 3).requires_grad_()
    sparses = torch.stack([sparse, torch.zeros_like(sparse), sparse]).requires_grad_()
    out = lt.complete(priors, sparses, options="paper", backend=backend)
    loss = torch.nan_to_num(out.depth).square().mean(dim=(1, 2))
    bad = torch.tensor([1.0, 1.0, torch.nan])  # a loss that is not finite
    (loss * bad).sum().backward()
    statuses = [lt.GRADIENT_STATUSES[code] for code in out.gradient_status.tolist()]
    assert statuses == [lt.GradientStatus.FORMED, lt.GradientStatus.NOT_DETERMINED, lt.GradientStatus.FAILED]
    assert priors.grad[1:].abs().max() == sparses.grad[1:].abs().max() == 0
    alone = prior.float().requires_grad_()
    lt.complete(alone, sparse, options="paper", backend=backend).depth.square().mean().backward()
    torch.testing.assert_close(priors.grad[0], alone.grad, rtol=1e-4, atol=1e-7)


def test_strict_raises_in_the_backward_pass():
    prior, measured, values, *_ = problem()
    inputs = prior.float().requires_grad_(), to_map(measured, values).float()
    out = lt.complete(*inputs, options=CompletionOptions.paper(strict=True))
    with pytest.raises(NotConverged, match="item 0: failed"):
        (out.depth * torch.nan).sum().backward()


@pytest.mark.parametrize("backend", ["core", "tensor"])
def test_the_backward_pass_releases_the_hierarchy_and_can_be_repeated(backend, monkeypatch):
    made = []
    kind = System if backend == "core" else Hierarchy
    plain = kind.__init__

    def remember(self, *arguments, **options):
        plain(self, *arguments, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(kind, "__init__", remember)
    prior, measured, values, *_ = problem()
    prior = prior.float().requires_grad_()
    out = lt.complete(prior, to_map(measured, values).float(), backend=backend)
    assert any(reference() is not None for reference in made)
    out.depth.square().mean().backward(retain_graph=True)
    gc.collect()
    assert all(reference() is None for reference in made)  # although the result and its graph are alive
    first = prior.grad.clone()
    prior.grad = None
    out.depth.square().mean().backward()
    torch.testing.assert_close(prior.grad, first, rtol=1e-4, atol=1e-8)


def test_flow_changes_the_gradient_and_not_the_depth():
    prior, measured, values, *_ = problem()
    results = []
    for flow in (False, True):
        inputs = prior.clone().requires_grad_(), to_map(measured, values)
        out = lt.complete(*inputs, flow=flow)
        out.depth.square().mean().backward()
        results.append((out.depth.detach(), inputs[0].grad))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=0)
    assert float((results[0][1] - results[1][1]).norm() / results[0][1].norm()) > 1e-3
    assert np.isfinite(results[1][1].numpy()).all()
