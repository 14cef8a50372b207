"""The whole of complete(): what must come out, what must not matter, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leadline
from leadline.base.errors import InputError, NotConverged
from leadline.core.fit.estimator import FitStatus
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
from leadline.core.pipeline import Completion, complete
from leadline.core.solve.cg import SolveStatus
from support.operators import bent_scene

SHAPE = (50, 67)
STORED = 3e-7  # float32 priors and results, a few roundings apart
SOLVED = 3e-5  # two runs that stop at 1e-6 on different sides
BYTES_PER_PIXEL = {"paper": 60, "best": 110}  # in addition to the inputs
TIGHT = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(tolerance=1e-10))


PRIOR, SPARSE, DEPTH = bent_scene(SHAPE)
HIT = SPARSE > 0


@pytest.fixture(scope="module")
def plain() -> Completion:
    return complete(PRIOR, SPARSE)


def test_result_is_what_the_documentation_says(plain):
    assert leadline.complete is complete
    assert plain.depth.dtype == plain.calibrated.dtype == np.float32
    assert plain.depth.shape == plain.calibrated.shape == SHAPE
    np.testing.assert_array_equal(plain.depth[HIT], SPARSE[HIT])
    assert np.isfinite(plain.depth).all()
    assert (plain.depth > 0).all()
    assert plain.fit.status is FitStatus.CONVERGED
    assert plain.fit.count == HIT.sum()
    assert plain.reconstruction.converged
    assert (plain.unpaired, plain.invalid) == (0, 0)
    error = np.abs(plain.depth - DEPTH)[~HIT].mean()
    assert error < 0.7 * np.abs(plain.calibrated - DEPTH)[~HIT].mean()


# --- edges ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (2, 2), (1, 90), (90, 1), (3, 400), (400, 3)], ids=str)
def test_any_shape(shape):
    prior, sparse, _ = bent_scene(shape, share=0.4, seed=1)
    sparse.flat[-1] = 2.0
    result = complete(prior, sparse)
    assert np.isfinite(result.depth).all()
    np.testing.assert_array_equal(result.depth[sparse > 0], sparse[sparse > 0])
    turned = complete(prior.T, sparse.T)
    np.testing.assert_allclose(turned.depth.T, result.depth, rtol=SOLVED)


def test_no_measurement_gives_nothing_and_says_so():
    for prior, sparse in ((PRIOR, 0 * SPARSE), (PRIOR, np.nan * SPARSE)):
        result = complete(prior, sparse)
        assert np.isnan(result.depth).all()
        assert np.isnan(result.calibrated).all()
        assert result.fit.status is FitStatus.NO_MEASUREMENTS
        assert result.reconstruction.iterations == 0
        assert "no measured pixel" in str(result)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_prior_leaves_the_measurements(dtype):
    result = complete(np.full(SHAPE, np.nan, dtype), SPARSE)
    np.testing.assert_array_equal(result.depth, np.where(HIT, SPARSE, np.nan))
    assert (result.unpaired, result.invalid) == (HIT.sum(), PRIOR.size)
    assert result.fit.status is FitStatus.NO_MEASUREMENTS


def test_every_pixel_measured():
    np.testing.assert_array_equal(complete(PRIOR, DEPTH).depth, DEPTH)
    result = complete(PRIOR, DEPTH, options="paper")
    np.testing.assert_array_equal(result.depth, DEPTH)
    assert result.reconstruction.status is SolveStatus.NOTHING_TO_SOLVE


def test_strict_raises_what_lenient_reports():
    lenient = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(max_iterations=1))
    stopped = complete(PRIOR, SPARSE, options=lenient)
    assert stopped.reconstruction.status is SolveStatus.ITERATION_LIMIT
    assert "(1 iteration, residual" in str(stopped)
    with pytest.raises(NotConverged, match=r"solve is iteration_limit .*max_iterations"):
        complete(PRIOR, SPARSE, options=CompletionOptions.paper(reconstruction=lenient.reconstruction, strict=True))
    with pytest.raises(NotConverged, match="no_measurements"):
        complete(PRIOR, 0 * SPARSE, options=CompletionOptions.paper(strict=True))
    with pytest.raises(NotConverged, match=r"fit is iteration_limit .*`fit.max_iterations`"):
        complete(PRIOR, SPARSE, options=CompletionOptions.paper(fit=FitOptions.paper(max_iterations=1), strict=True))
    complete(PRIOR, SPARSE, options=CompletionOptions.paper(strict=True))


def test_the_default_is_best(plain):
    for options in ("best", CompletionOptions.best(), CompletionOptions()):
        np.testing.assert_array_equal(complete(PRIOR, SPARSE, options=options).depth, plain.depth)


def test_presets_by_name():
    paper = complete(PRIOR, SPARSE, options=CompletionOptions.paper())
    np.testing.assert_array_equal(complete(PRIOR, SPARSE, options="paper").depth, paper.depth)


@pytest.mark.parametrize("options", ["papers", None, FitOptions(), 3], ids=str)
def test_other_options_are_one_clear_error(options):
    with pytest.raises(InputError, match="`options` must be 'best', 'paper' or a CompletionOptions, got"):
        complete(PRIOR, SPARSE, options=options)


def test_a_changed_option_changes_the_default_preset():
    assert CompletionOptions(outliers="single") == replace(CompletionOptions.best(), outliers="single")
    assert CompletionOptions.paper(outliers="single") == replace(CompletionOptions.paper(), outliers="single")
    assert FitOptions(loss="cauchy") == replace(CompletionOptions.best().fit, loss="cauchy")
    with pytest.raises(InputError, match=r"`reconstruction.weight_data` needs `reconstruction.system='fixed'`"):
        ReconstructionOptions(weight_data=1e-4)
    assert ReconstructionOptions(system="fixed", weight_data=1e-4).weight_data == 1e-4


@pytest.mark.parametrize("extreme", [1e-300, 1e-37, 1e30, 1e37, 1e300])
def test_extreme_measurements_give_a_map_and_no_warning(extreme):
    sparse = SPARSE.astype(np.float64)
    sparse[tuple(np.argwhere(HIT)[5])] = extreme
    result = complete(PRIOR, sparse)
    assert np.isfinite(result.depth).all()
    np.testing.assert_array_equal(result.depth[HIT], sparse[HIT])


# --- what must not matter ------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(st.sampled_from([1e-3, 0.0254, 0.3048, 4.0, 1000.0, 65536.0]), st.integers(0, 3))
def test_unit_of_the_measurements_scales_the_depth(unit, seed):
    prior, sparse, _ = bent_scene(SHAPE, seed=seed)
    sparse = sparse.astype(np.float64)
    metres, other = complete(prior, sparse, options=TIGHT), complete(prior, sparse * unit, unit="m", options=TIGHT)
    np.testing.assert_allclose(other.depth, unit * metres.depth, rtol=SOLVED)
    assert other.fit.response.exponent == pytest.approx(metres.fit.response.exponent, rel=1e-4, abs=1e-6)


@settings(max_examples=12)
@given(st.sampled_from([1e-250, 1e-30, 1e-3, 0.7, 1024.0, 1e30, 1e250]), st.integers(0, 3))
def test_scale_of_the_prior_changes_nothing(factor, seed):
    prior, sparse, _ = bent_scene(SHAPE, seed=seed)
    prior = prior.astype(np.float64)
    one, other = complete(prior, sparse, options=TIGHT), complete(prior * factor, sparse, options=TIGHT)
    np.testing.assert_allclose(other.depth, one.depth, rtol=SOLVED)


@pytest.mark.parametrize("turn", [np.flipud, np.fliplr, np.transpose, np.rot90], ids=lambda f: f.__name__)
def test_turning_the_image_turns_the_depth(turn):
    one, other = complete(PRIOR, SPARSE, options=TIGHT), complete(turn(PRIOR), turn(SPARSE), options=TIGHT)
    np.testing.assert_allclose(other.depth, turn(one.depth), rtol=STORED * 10)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads to compare with one")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_number_of_threads_does_not_change_a_bit(dtype):
    """Large enough that every parallel loop has several blocks."""
    prior, sparse, _ = bent_scene((331, 453), seed=2)
    results = []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            for solver in ("multigrid", "jacobi"):
                options = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(solver=solver))
                results.append(complete(prior.astype(dtype), sparse.astype(dtype), options=options))
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    for one, two in zip(results[:2], results[2:], strict=True):
        np.testing.assert_array_equal(one.depth, two.depth)
        np.testing.assert_array_equal(one.calibrated, two.calibrated)
        assert one.reconstruction == two.reconstruction
        assert str(one) == str(two)


def test_calls_from_several_threads_at_once():
    scenes = [bent_scene((120 + k, 150), seed=k)[:2] for k in range(6)]
    alone = [complete(*pair).depth for pair in scenes]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            for expected, result in zip(alone, pool.map(lambda pair: complete(*pair), scenes), strict=True):
                np.testing.assert_array_equal(result.depth, expected)


# --- what it says, and what it costs -------------------------------------------------------------------------------


def test_text_and_dictionary(plain):
    text = str(plain)
    assert f"67 x 50 pixels, {HIT.sum()} measurements" in text
    assert f"exponent {plain.fit.response.exponent:.4g}" in text
    assert f"({plain.reconstruction.iterations} iteration" in text
    assert max(map(len, text.splitlines())) < 200
    values = json.loads(json.dumps(plain.to_dict()))
    assert values["reconstruction"]["residual"] == plain.reconstruction.residual
    assert values["reconstruction"]["converged"] is True
    assert values["fit"]["status"] == "converged"
    assert values["options"]["reconstruction"]["weight_data"] == 1e-3
    assert values["unpaired"] == 0


MEMORY = """
import re
import numpy as np
from leadline.core.pipeline import complete
from leadline.core.compilation import warm_up
warm_up(PRESET)
y, x = np.indices((2048, 2048), dtype=np.float32, sparse=True)
prior = 1 + x / 900 + y / 700
sparse = np.zeros_like(prior)
sparse[3::8, 3::8] = np.sqrt(prior[3::8, 3::8]) * (1 + 0.1 * np.sin(x[:, 3::8] / 50))
prior[:100] = np.nan
# Not ru_maxrss, which a process inherits from its parent.
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
result = complete(prior, sparse, options=PRESET)
assert result.reconstruction.converged
print((peak() - before) / prior.size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark from /proc")
@pytest.mark.parametrize("preset", ["paper", "best"])
def test_memory_stays_bounded(preset):
    environment = os.environ | {"PYTHONPATH": str(Path(leadline.__file__).parents[1])}
    # In a process of its own first: compiling takes more memory than a completion and would hide it.
    for program in (
        f"from leadline.core.compilation import warm_up; warm_up('{preset}')",
        f"PRESET = '{preset}'\n{MEMORY}",
    ):
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
        )
        assert run.returncode == 0, run.stderr
    assert 20 < float(run.stdout) <= BYTES_PER_PIXEL[preset]
