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
from leadline.torch import shapes  # noqa: E402

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


def test_a_large_batch_is_completed_in_parts_with_the_same_result_and_gradients(monkeypatch):
    priors, sparses = (torch.tensor(np.stack(maps)) for maps in zip(scene(1), scene(2), scene(3), strict=True))
    batch, height, width = priors.shape
    found = []
    for most in (shapes.PART_BYTES, 2 * priors[0].nbytes):  # all at once; two images and one
        monkeypatch.setattr(shapes, "PART_BYTES", most)
        prior, sparse = priors.clone().requires_grad_(), sparses.clone().requires_grad_()
        edges = torch.full((batch, height, width - 1), 0.5), torch.full((batch, height - 1, width), 0.8)
        result = lt.complete(prior, sparse, noise=0.05, edges=edges)
        result.depth.nansum().backward()
        found.append((result.depth.detach(), result.exponent, result.gradient_status, prior.grad, sparse.grad))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=0, atol=0, equal_nan=True)


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


def test_what_cannot_be_done_is_said():
    prior, sparse = (torch.tensor(values) for values in scene(7))
    with pytest.raises(InputError, match=r"`sparse` must have the prior's shape \(45, 62\), got \(45, 61\)"):
        lt.complete(prior, sparse[:, :-1])
    with pytest.raises(InputError, match="`prior` must be a tensor of shape"):
        lt.complete(prior.numpy(), sparse)
    with pytest.raises(InputError, match="`valid` must be a boolean tensor"):
        lt.complete(prior, sparse, sparse)
    with pytest.raises(InputError, match="`backend='core'` is for float32 tensors on the CPU"):
        lt.complete(prior.double(), sparse.double(), backend="core")
    with pytest.raises(InputError, match="`noise` must be a number or a tensor"):
        lt.complete(prior, sparse, noise="small")
    with pytest.raises(InputError, match=r"`edges` must have shapes \(1, 45, 61\) and \(1, 44, 62\)"):
        lt.complete(prior, sparse, edges=(prior, prior))
    with pytest.raises(InputError, match="`edges` must be above 0 and at most 1"):
        lt.complete(prior, sparse, edges=(2 * torch.ones(45, 61), torch.ones(44, 62)), backend="tensor")
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


@pytest.mark.parametrize("options", ["best", "paper"])
def test_autocast_does_not_reach_the_solve(options):
    prior, sparse = (torch.tensor(values) for values in scene(9))
    expected = lt.complete(prior, sparse, options=options, backend="tensor").depth
    with torch.autocast("cpu", torch.bfloat16):
        result = lt.complete(prior, sparse, options=options, backend="tensor").depth
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", ["core", "tensor"])
def test_edge_weights_of_one_are_those_of_the_paper(backend):
    prior, sparse = scene(10)
    ones = torch.ones(prior.shape[0], prior.shape[1] - 1), torch.ones(prior.shape[0] - 1, prior.shape[1])
    inputs = torch.tensor(prior), torch.tensor(sparse)
    result = lt.complete(*inputs, edges=ones, options="paper", backend=backend)
    assert_same(result.depth, leadline.complete(prior, sparse, options="paper").depth, sparse)
    cut = ones[0].clone()
    cut[:, 30] = 1e-3
    assert not torch.allclose(lt.complete(*inputs, edges=(cut, ones[1]), options="paper").depth, result.depth)


@pytest.mark.filterwarnings("ignore::leadline.base.errors.InputWarning")  # of the core, about anti-correlation
@pytest.mark.parametrize("mode", ["depth", "log", "disparity"])
def test_fallbacks_of_fixed_coordinates(mode):
    prior, sparse = (torch.tensor(values) for values in scene(11, holes=False))
    one, opposite = torch.zeros_like(sparse), torch.where(sparse > 0, 5.0 / prior, 0.0)
    one[3, 4] = 2.0
    batch = torch.stack((sparse, torch.zeros_like(sparse), one, opposite))
    result = lt.align(prior.expand_as(batch), batch, mode=mode)
    wanted = (FitStatus.CONVERGED, FitStatus.NO_MEASUREMENTS, FitStatus.SCALE_ONLY, FitStatus.ANTI_CORRELATED)
    assert tuple(lt.FIT_STATUSES[code] for code in result.status.tolist()) == wanted
    assert torch.isnan(result.calibrated[1]).all()
    torch.testing.assert_close(result.calibrated[2], prior * (2.0 / prior[3, 4]))
    expected = leadline.align(prior.numpy(), opposite.numpy(), options="paper").calibrated
    torch.testing.assert_close(result.calibrated[3], torch.tensor(expected))


@pytest.mark.full
def test_four_million_pixels():
    prior, sparse = scene(12, shape=(2048, 2048), stride=8)
    expected = leadline.complete(prior, sparse, options="paper").depth
    result = lt.complete(torch.tensor(prior), torch.tensor(sparse), options="paper", backend="tensor")
    assert_same(result.depth, expected, sparse)
