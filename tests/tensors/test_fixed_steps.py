"""A fixed number of iterations: no value is read, nothing crosses devices, and the graph can be exported."""

from __future__ import annotations

import numpy as np
import pytest

import leadline
from leadline.base.errors import InputError
from leadline.core.options import CompletionOptions

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import leadline.torch as lt  # noqa: E402
from leadline.torch import estimator  # noqa: E402

RELATIVE = 1e-4  # against the core, which stops at another residual
SMALL = (12, 16)
TINY = (6, 6)  # one coarse level


def scene(shape=(45, 62), stride=4, seed=0, hole=True):
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    prior = (1.0 + 0.02 * rows + 0.3 * np.sin(columns / 9.0 + seed)).astype(np.float32)
    depth = 2.5 * prior**1.2 * np.exp(0.03 * np.sin(rows / 7.0)).astype(np.float32)
    sparse = np.zeros_like(prior)
    sparse[1::stride, 2::stride] = depth[1::stride, 2::stride]
    if hole:
        prior[4:6, 3:5] = np.nan
    return torch.tensor(prior), torch.tensor(sparse)


class Depth(torch.nn.Module):
    """The outputs that an exported graph returns."""

    def __init__(self, iterations=8):
        super().__init__()
        self.completion = lt.Completion(options="paper", iterations=iterations)

    def forward(self, prior, sparse):
        out = self.completion(prior, sparse)
        return out.depth, out.exponent, out.status


class Watch(TorchDispatchMode):
    """Refuses operations that wait for the device or read a value there, and counts the others."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = str(function)
        assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "equal.default"))
        result = function(*arguments, **(options or {}))
        devices = {
            x.device.type for x in torch.utils._pytree.tree_leaves((arguments, result)) if isinstance(x, torch.Tensor)
        }
        assert len(devices) <= 1, f"{name} on {devices}"
        self.count += 1
        return result


def test_no_value_is_read_and_no_constant_crosses_devices():
    """Tensors on the meta device have no values: reading one, and a shape that depends on one, are errors."""
    prior, sparse = (torch.empty(2, 1, 24, 31, device="meta", requires_grad=True) for _ in range(2))
    with Watch() as watch:
        out = lt.complete(prior, sparse, options="paper", iterations=2)
        out.depth.sum().backward()
    assert out.depth.shape == prior.grad.shape == sparse.grad.shape == (2, 1, 24, 31)
    assert {out.depth.device.type, out.status.device.type, out.exponent.device.type} == {"meta"}
    assert watch.count > 1000


def test_the_watch_finds_what_it_looks_for():
    for wrong in (lambda x: bool(x.any()), lambda x: x * torch.ones(3), lambda x: x * torch.tensor(2.0)):
        with pytest.raises((AssertionError, RuntimeError)), Watch():
            wrong(torch.empty(3, device="meta"))


@pytest.mark.filterwarnings("ignore::leadline.base.errors.InputWarning")  # of the core, about anti-correlation
def test_statuses_and_fallbacks_are_those_of_the_core():
    prior, sparse = (t.numpy() for t in scene(SMALL, hole=False))
    nothing, one, two, flat, opposite = (np.zeros_like(sparse) for _ in range(5))
    one[3, 4], two[3, 4], two[8, 11] = 2.0, 2.0, 3.0
    flat[::4, ::4] = 2.0
    opposite[::4, ::4] = 1.0 / prior[::4, ::4]
    sparses = np.stack([sparse, nothing, one, two, flat, opposite])
    batch = torch.tensor(np.stack([prior] * len(sparses))), torch.tensor(sparses)
    result = lt.complete(*batch, options="paper", iterations=8)
    for k, single in enumerate(sparses):
        expected = leadline.complete(prior, single, options="paper")
        assert lt.FIT_STATUSES[int(result.status[k])] is expected.fit.status
        torch.testing.assert_close(result.depth[k], torch.tensor(expected.depth), rtol=RELATIVE, atol=0, equal_nan=True)
    statuses = {lt.FIT_STATUSES[code] for code in result.status.tolist()}
    assert len(statuses) == 5


def test_more_pairs_than_the_coarse_descents_use():
    prior, sparse = scene((130, 150), stride=1, hole=False)
    result = lt.complete(prior, sparse, options="paper", iterations=2)
    expected = leadline.complete(prior.numpy(), sparse.numpy(), options="paper")
    assert float(result.exponent) == pytest.approx(expected.fit.response.exponent, abs=1e-6)


def test_gradients_agree_with_differences():
    generator = torch.Generator().manual_seed(3)
    shape = (6, 7)
    prior = torch.rand(shape, generator=generator, dtype=torch.float64) + 1
    measured = torch.rand(shape, generator=generator) < 0.35
    values = (2 * prior**1.3 * (1 + 0.02 * torch.rand(shape, generator=generator, dtype=torch.float64)))[measured]
    valid = torch.ones(shape, dtype=torch.bool)
    valid[2, 3] = False
    right = 0.2 + 0.8 * torch.rand(6, 6, generator=generator, dtype=torch.float64)
    down = 0.2 + 0.8 * torch.rand(5, 7, generator=generator, dtype=torch.float64)

    def depth(prior, values, right, down):
        sparse = torch.zeros(shape, dtype=torch.float64).masked_scatter(measured, values)
        out = lt.complete(prior, sparse, valid, edges=(right, down), options="paper", iterations=24)
        return torch.nan_to_num(out.depth)

    inputs = [t.clone().requires_grad_() for t in (prior, values, right, down)]
    assert torch.autograd.gradcheck(depth, inputs, atol=1e-5, rtol=1e-3, fast_mode=True)


@pytest.fixture
def few_fit_steps(monkeypatch):
    """Tracing takes time in proportion to the number of operations, of which the fit's steps are all alike."""
    monkeypatch.setattr(estimator, "COARSE_STEPS", 2)
    monkeypatch.setattr(estimator, "FINE_STEPS", 1)


@pytest.mark.usefixtures("few_fit_steps")
def test_one_graph_without_breaks():
    prior, sparse = scene(TINY, stride=2)
    module = Depth(iterations=2)
    graph = torch.compile(module, fullgraph=True, backend="eager")
    for plain, compiled in zip(module(prior, sparse), graph(prior, sparse), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.usefixtures("few_fit_steps")
def test_the_compiled_graph_has_the_same_gradients():
    prior, sparse = scene(TINY, stride=2)

    def depth(prior, sparse):
        return lt.complete(prior, sparse, options="paper", iterations=5).depth

    gradients = []
    for function in (depth, torch.compile(depth, fullgraph=True, backend="aot_eager")):
        inputs = [t.nan_to_num().clone().requires_grad_() for t in (prior, sparse)]
        function(*inputs).nan_to_num().square().mean().backward()
        gradients.append([t.grad for t in inputs])
    for plain, compiled in zip(*gradients, strict=True):
        assert plain.abs().sum() > 0
        torch.testing.assert_close(compiled, plain)


@pytest.mark.filterwarnings("ignore")  # of the exporter itself
@pytest.mark.usefixtures("few_fit_steps")
def test_the_exported_graph_gives_the_same_depth_in_onnxruntime(tmp_path):
    pytest.importorskip("onnxscript", reason="torch exports through it")
    onnxruntime = pytest.importorskip("onnxruntime")
    module = Depth(iterations=1).eval()
    prior, sparse = (t[None, None] for t in scene(TINY, stride=2))
    program = torch.onnx.export(
        module, (prior, sparse), dynamo=True, optimize=False, verbose=False, input_names=["prior", "sparse"]
    )
    program.save(str(tmp_path / "completion.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "completion.onnx"), providers=["CPUExecutionProvider"])
    other, other_sparse = (t[None, None] for t in scene(TINY, seed=1, stride=3))  # not the values of the export
    depth, exponent, status = session.run(None, {"prior": other.numpy(), "sparse": other_sparse.numpy()})
    expected = module(other, other_sparse)
    np.testing.assert_allclose(depth, expected[0].numpy(), rtol=1e-5)
    np.testing.assert_allclose(exponent, expected[1].numpy(), atol=1e-5)
    np.testing.assert_array_equal(status, expected[2].numpy())


def test_what_a_fixed_number_of_steps_cannot_do_is_said():
    prior, sparse = scene()
    for options, extra, message in (
        ("best", {}, "`iterations` fixes the number of steps"),
        (CompletionOptions.paper(strict=True), {}, "`strict` cannot raise"),
        ("paper", {"flow": True}, "`flow` is for systems that are chosen by image"),
        ("paper", {"backend": "core"}, "`iterations` is for tensor operations"),
        ("paper", {"noise": 0.1}, "without `noise`"),
    ):
        with pytest.raises(InputError, match=message):
            lt.complete(prior, sparse, options=options, iterations=8, **extra)
