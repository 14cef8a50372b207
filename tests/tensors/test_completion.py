"""`leadline.torch` against the NumPy core, item by item and in batches, with gradients."""

from __future__ import annotations

import numpy as np
import pytest

import leadline
from leadline.base.errors import InputError, NotConverged
from leadline.core.options import CompletionOptions, ReconstructionOptions

torch = pytest.importorskip("torch")

import leadline.torch as lt  # noqa: E402
from leadline.core.fit.estimator import FitStatus  # noqa: E402

# Both stop at the same residual and differ by the order of float32 sums.
RELATIVE, MEDIAN = 1e-4, 1e-5


def scene(seed=0, shape=(45, 62), stride=6, holes=True):
    """A prior with holes and measurements that a power of it explains up to a smooth residual."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    prior = (1.0 + 0.02 * rows + 0.3 * np.sin(columns / 9.0 + seed)).astype(np.float32)
    depth = 2.5 * prior**1.2 * np.exp(0.03 * np.sin(rows / 7.0)).astype(np.float32)
    sparse = np.zeros_like(prior)
    sparse[2::stride, 3::stride] = depth[2::stride, 3::stride] * (
        1 + 0.003 * rng.normal(size=depth[2::stride, 3::stride].shape)
    )
    if holes:
        prior[10:14, 20:31] = np.nan
    return prior, sparse


def assert_same(tensor, expected, sparse):
    result = tensor.detach().numpy()
    known = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(result), known)
    error = np.abs(result[known] / expected[known] - 1)
    assert error.max() <= RELATIVE
    assert np.median(error) <= MEDIAN
    measured = sparse > 0
    np.testing.assert_array_equal(result[measured], sparse[measured])


@pytest.mark.parametrize("backend", ["core", "tensor"])
@pytest.mark.parametrize("preset", ["best", "paper"])
def test_the_result_is_that_of_the_core(preset, backend):
    prior, sparse = scene()
    expected = leadline.complete(prior, sparse, options=preset)
    result = lt.complete(torch.tensor(prior), torch.tensor(sparse), options=preset, backend=backend)
    assert_same(result.depth, expected.depth, sparse)
    assert float(result.exponent) == pytest.approx(expected.fit.response.exponent, rel=1e-9)
    assert float(result.gain) == pytest.approx(expected.fit.response.gain, rel=1e-6)
    assert float(result.offset) == pytest.approx(expected.fit.response.offset, rel=1e-6, abs=1e-9)
    assert lt.FIT_STATUSES[int(result.status)] is expected.fit.status
    assert lt.SOLVE_STATUSES[int(result.solve_status)] is expected.reconstruction.status


@pytest.mark.parametrize("backend", ["core", "tensor"])
def test_a_batch_equals_its_items_and_a_bad_item_harms_no_other(backend):
    scenes = [scene(1), scene(2, stride=9), scene(3)]
    scenes[1] = (scenes[1][0], np.zeros_like(scenes[1][1]))  # nothing measured
    scenes[2] = (np.full_like(scenes[2][0], np.nan), scenes[2][1])  # no prior
    priors, sparses = (torch.tensor(np.stack(maps))[:, None] for maps in zip(*scenes, strict=True))
    result = lt.complete(priors, sparses, backend=backend)
    assert result.depth.shape == priors.shape
    expected = leadline.complete(*scenes[0])
    assert_same(result.depth[0, 0], expected.depth, scenes[0][1])
    statuses = [lt.FIT_STATUSES[code] for code in result.status.tolist()]
    assert statuses == [expected.fit.status, FitStatus.NO_MEASUREMENTS, FitStatus.NO_MEASUREMENTS]
    assert torch.isnan(result.depth[1]).all()
    np.testing.assert_array_equal(torch.nan_to_num(result.depth[2, 0]).numpy(), scenes[2][1])


@pytest.mark.parametrize("shape", [(1, 40), (33, 1), (37, 53)])
def test_any_shape(shape):
    prior, sparse = scene(shape=shape, holes=False, stride=3)
    sparse[:, ::5] = 2.0 * prior[:, ::5]
    expected = leadline.complete(prior, sparse, options="paper")
    result = lt.complete(torch.tensor(prior), torch.tensor(sparse), options="paper", backend="tensor")
    assert_same(result.depth, expected.depth, sparse)


def test_noise_and_masks_are_those_of_the_core():
    prior, sparse = scene(4)
    valid = np.ones(prior.shape, bool)
    valid[:, 40:45] = False
    expected = leadline.complete(prior, sparse, valid=valid, noise=0.05)
    for backend in ("core", "tensor"):
        result = lt.complete(
            torch.tensor(prior), torch.tensor(sparse), torch.tensor(valid), noise=0.05, backend=backend
        )
        np.testing.assert_allclose(result.depth.numpy(), expected.depth, rtol=RELATIVE)


@pytest.mark.parametrize("mode", ["depth", "log", "disparity"])
@pytest.mark.parametrize("loss", ["squared", "cauchy"])
def test_fixed_coordinates_recover_their_own_line(mode, loss):
    torch.manual_seed(0)
    prior = 1.0 + torch.rand(3, 20, 30, dtype=torch.float64)
    truth = {"depth": 2 * prior + 0.3, "log": 2 * prior**1.5, "disparity": 1 / (0.4 / prior + 0.1)}[mode]
    sparse = torch.where(torch.rand_like(prior) < 0.2, truth, torch.zeros_like(prior))
    if loss == "cauchy":
        wrong = (torch.rand_like(prior) < 0.1) & (sparse > 0)
        sparse = torch.where(wrong, 3 * sparse, sparse)
    result = lt.align(prior, sparse, mode=mode, loss=loss)
    torch.testing.assert_close(result.calibrated, truth, rtol=1e-6 if loss == "squared" else 1e-3, atol=0)


def test_gradients_of_the_whole_completion_agree_with_differences():
    generator = torch.Generator().manual_seed(1)
    shape = (10, 13)
    prior = torch.rand(shape, generator=generator, dtype=torch.float64) + 1
    measured = torch.zeros(shape, dtype=torch.bool)
    measured.view(-1)[torch.randperm(130, generator=generator)[:30]] = True
    noise = 0.05 * torch.rand(shape, generator=generator, dtype=torch.float64)
    values = (2 * prior**1.3 + noise)[measured]
    holes = torch.zeros(shape, dtype=torch.bool)
    holes[3:5, 4:6] = True
    options = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(tolerance=1e-12))

    def depth(prior, values):
        sparse = torch.zeros(shape, dtype=torch.float64).masked_scatter(measured, values)
        return torch.nan_to_num(lt.complete(prior, sparse, ~holes, options=options).depth)

    inputs = (prior.requires_grad_(), values.clone().requires_grad_())
    assert torch.autograd.gradcheck(depth, inputs, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_both_backends_have_the_same_gradients(preset):
    prior, sparse = scene(5)
    gradients = []
    for backend in ("core", "tensor"):
        inputs = [torch.tensor(values, requires_grad=True) for values in (np.nan_to_num(prior, nan=0.0), sparse)]
        out = lt.complete(*inputs, options=preset, backend=backend)
        torch.nan_to_num(out.depth).square().mean().backward()
        gradients.append([tensor.grad for tensor in inputs])
    for one, other in zip(*gradients, strict=True):
        assert torch.isfinite(one).all()
        assert float((one - other).norm() / one.norm()) < 5e-3  # both adjoint solves stop at the options' tolerance


def test_a_fixed_number_of_steps_compiles_to_one_graph_and_agrees():
    prior, sparse = (torch.tensor(values) for values in scene(6))
    expected = lt.complete(prior, sparse, options="paper")
    plain = lt.complete(prior, sparse, options="paper", iterations=8)
    assert lt.FIT_STATUSES[int(plain.status)] is FitStatus.CONVERGED
    torch.testing.assert_close(plain.depth, expected.depth, rtol=RELATIVE, atol=0, equal_nan=True)
    graph = torch.compile(
        lambda p, s: lt.complete(p, s, options="paper", iterations=8).depth, fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(graph(prior, sparse), plain.depth, rtol=1e-5, atol=0, equal_nan=True)


def test_what_cannot_be_done_is_said():
    prior, sparse = (torch.tensor(values) for values in scene(7))
    with pytest.raises(InputError, match=r"`sparse` must have the prior's shape \(45, 62\), got \(45, 61\)"):
        lt.complete(prior, sparse[:, :-1])
    with pytest.raises(InputError, match="`prior` must be a tensor of shape"):
        lt.complete(prior.numpy(), sparse)
    with pytest.raises(InputError, match="`valid` must be a boolean tensor"):
        lt.complete(prior, sparse, sparse)
    with pytest.raises(InputError, match="`iterations` fixes the number of steps"):
        lt.complete(prior, sparse, iterations=8)
    with pytest.raises(InputError, match="`backend='core'` is for float32 tensors on the CPU"):
        lt.complete(prior.double(), sparse.double(), backend="core")
    with pytest.raises(InputError, match="`iterations` is for tensor operations"):
        lt.complete(prior, sparse, options="paper", iterations=8, backend="core")
    jacobi = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(solver="jacobi"))
    with pytest.raises(InputError, match="exists in the compiled solver only"):
        lt.complete(prior, sparse, options=jacobi, backend="tensor")
    with pytest.raises(NotConverged, match="item 0: fit no_measurements"):
        lt.complete(prior, torch.zeros_like(sparse), options=CompletionOptions(strict=True))


def test_narrow_types_are_widened_and_integers_accepted():
    prior, sparse = scene(8, holes=False)
    result = lt.complete(torch.tensor(prior).bfloat16(), torch.tensor(sparse))
    assert result.depth.dtype == torch.float32
    assert lt.complete(torch.tensor(prior), torch.tensor(sparse).int()).depth.dtype == torch.float32
