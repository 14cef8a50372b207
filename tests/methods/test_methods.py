"""The registry, the fixed coordinates, and the wrapped pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.bench.metrics import depth_scores
from leadline.bench.observations import CASES, observe
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
from leadline.core.prior import Prior
from leadline.datasets.rendered import network_like_prior, render
from leadline.methods import METHODS, method, run_method

FIT_RTOL = 1e-5  # float32 output of a float64 fit
COORDINATES = {
    "gdisp": (np.reciprocal, np.reciprocal),
    "gmetric": (np.positive, np.positive),
    "glog": (np.log, np.exp),
}


@pytest.fixture(scope="module")
def scene():
    return render(96, 72)


@pytest.fixture(scope="module")
def prior(scene):
    return Prior(network_like_prior(scene.reference))


def test_every_name_resolves_to_a_callable():
    own = ["raw", "gdisp", "gmetric", "glog", "knn", "lwlr", "poisson", "response", "ours", "best"]
    lines = ["scale", "ransac-metric", "ransac-disp", "lad-metric", "lad-disp"]
    points = ["delaunay", "natural-neighbour", "ip-basic", "joint-bilateral", "guided-filter", "bilateral-solver"]
    classical = [*lines, *points, "colourisation", "kriging", "integrator"]
    systems = ["priorda", "ldcm", "any2full", "promptda", "omni-dc", "marigold-dc", "testpromptdc"]
    assert list(METHODS) == [*own, *classical, "predictions", *systems]
    assert all(callable(method(f"{name}:x" if facts.argument else name)) for name, facts in METHODS.items())


def test_unknown_name_suggests_close_matches():
    with pytest.raises(InputError, match=r"there is no method 'gdips'; did you mean 'gdisp'.*\?"):
        method("gdips")
    with pytest.raises(InputError, match="choose one of any2full"):
        method("zzz")


@pytest.mark.parametrize("name", list(COORDINATES))
@given(gain=st.floats(0.2, 5.0), offset=st.floats(0.01, 1.0), seed=st.integers(0, 2**32 - 1))
def test_exact_relation_is_recovered(name, gain, offset, seed):
    forward, inverse = COORDINATES[name]
    rng = np.random.default_rng(seed)
    relative = rng.uniform(0.5, 4.0, (12, 14))
    truth = inverse(gain * forward(relative) + offset)
    if name == "gdisp":
        assert (truth > 0).all()
    sparse = np.where(rng.random(truth.shape) < 0.3, truth, np.nan)
    sparse[0, :3] = truth[0, :3]
    result = method(name)(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, truth, rtol=FIT_RTOL)
    assert result.status == "ok"
    assert result.parameters == pytest.approx({"gain": gain, "offset": offset}, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", list(COORDINATES))
def test_fit_is_the_least_squares_of_its_coordinate(name, scene, prior):
    forward, _ = COORDINATES[name]
    sparse = observe(scene.reference, "distributed").sparse
    at = np.isfinite(sparse)
    x, y = forward(prior.depth()[at].astype(np.float64)), forward(sparse[at].astype(np.float64))
    gain, offset = np.linalg.lstsq(np.stack((x, np.ones_like(x)), axis=1), y, rcond=None)[0]
    assert method(name)(prior, sparse).parameters == pytest.approx({"gain": gain, "offset": offset}, rel=1e-6)


def test_an_inverse_that_is_undefined_anywhere_on_the_prior_is_a_failure():
    relative = np.array([[1.0, 2.0, 3.0, 0.5]])
    sparse = np.array([[np.nan, 1.0, 3.0, np.nan]])  # s = 2 h - 3: -1 at h = 1, -2 at h = 0.5
    result = method("gmetric")(Prior(relative), sparse)
    assert result.failed
    assert np.isnan(result.depth).all()
    assert "no positive finite depth at some valid pixels" in result.status
    assert result.parameters == pytest.approx({"gain": 2.0, "offset": -3.0, "undefined": 2.0})
    # Only valid pixels of the prior count.
    valid = np.array([[False, True, True, False]])
    masked = method("gmetric")(Prior(relative, valid=valid), sparse)
    np.testing.assert_allclose(masked.depth, [[np.nan, 1, 3, np.nan]], rtol=FIT_RTOL)
    dropped = method("gmetric")(Prior(relative), sparse, undefined="drop")
    np.testing.assert_allclose(dropped.depth, [[np.nan, 1, 3, np.nan]], rtol=FIT_RTOL)
    assert dropped.status.startswith("ok, but 2 of 4 pixels")
    assert not dropped.failed


@pytest.mark.parametrize("name", list(COORDINATES))
def test_a_gain_that_is_not_positive_is_a_failure(name):
    relative = np.linspace(1.0, 2.0, 12).reshape(3, 4)
    falling = 4.0 - relative
    result = method(name)(Prior(relative), falling)
    assert result.failed
    assert "gain" in result.status
    assert result.parameters["gain"] < 0
    accepted = method(name)(Prior(relative), falling, undefined="drop")
    assert not accepted.failed
    assert np.isfinite(accepted.depth).all()
    level = method(name)(Prior(relative), np.full((3, 4), 2.0))  # the gain is 0
    assert level.failed
    with pytest.raises(InputError, match="undefined"):
        method(name)(Prior(relative), falling, undefined="ignore")


def test_results_say_whether_their_iterations_converged(scene, prior):
    sparse = observe(scene.reference, "distributed").sparse
    assert method("response")(prior, sparse).converged is True
    assert method("ours")(prior, sparse).converged is True
    assert method("glog")(prior, sparse).converged is None  # it has no iterations
    short = CompletionOptions.paper(fit=FitOptions.paper(max_iterations=1))
    assert method("response")(prior, sparse, options=short).converged is False
    assert method("ours")(prior, sparse, options=short).converged is False
    early = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(max_iterations=1))
    assert method("response")(prior, sparse, options=early).converged is True
    assert method("ours")(prior, sparse, options=early).converged is False


def test_zero_nan_and_inf_are_not_measurements_and_invalid_prior_is_not_predicted():
    relative = np.array([[1.0, 2.0, 3.0, 4.0, np.nan]])
    sparse = np.array([[2.0, 0.0, np.inf, 8.0, 5.0]])
    valid = np.array([[True, True, False, True, True]])
    result = method("gmetric")(Prior(relative, valid=valid), sparse)
    np.testing.assert_allclose(result.depth, [[2, 4, np.nan, 8, np.nan]], rtol=FIT_RTOL)


@pytest.mark.parametrize("name", list(COORDINATES))
@pytest.mark.parametrize("measured", [0, 1])
def test_too_few_measurements_fail_with_a_reason(name, measured):
    sparse = np.zeros((3, 3))
    sparse.flat[:measured] = 2.0
    result = method(name)(Prior(np.arange(1.0, 10.0).reshape(3, 3)), sparse)
    assert np.isnan(result.depth).all()
    assert result.status == "failed: fewer than two usable measurements"


@pytest.mark.parametrize("name", list(COORDINATES))
def test_constant_prior_fails_with_a_reason(name):
    result = method(name)(Prior(np.full((3, 3), 2.0)), np.arange(1.0, 10.0).reshape(3, 3))
    assert np.isnan(result.depth).all()
    assert "constant" in result.status


def test_disparity_prior_is_read_as_such():
    disparity = np.array([[1.0, 0.5, 0.25, -1.0]])
    result = method("gdisp")(Prior(disparity, kind="disparity"), np.array([[2.0, 4.0, np.nan, np.nan]]))
    np.testing.assert_allclose(result.depth, [[2, 4, 8, np.nan]], rtol=FIT_RTOL)


def test_raw_is_the_prior_itself(scene, prior):
    result = method("raw")(prior, observe(scene.reference, "outer").sparse)
    np.testing.assert_array_equal(result.depth, prior.depth())
    assert result.status.startswith("ok")


@pytest.mark.parametrize("case", CASES)
def test_response_and_ours_are_the_pipeline_stages(scene, prior, case):
    from leadline.core.pipeline import complete

    observed = observe(scene.reference, case)
    completion = complete(prior, observed.sparse, options="paper")
    response, ours = (method(name)(prior, observed.sparse) for name in ("response", "ours"))
    np.testing.assert_array_equal(response.depth, completion.calibrated)
    np.testing.assert_array_equal(ours.depth, completion.depth)
    assert response.depth.dtype == ours.depth.dtype == np.float32
    measured = np.isfinite(observed.sparse)
    np.testing.assert_array_equal(ours.depth[measured], observed.sparse[measured])
    assert str(completion.fit.status) == response.status
    assert str(completion.reconstruction.status) in ours.status
    assert set(ours.parameters) == {"exponent", "gain", "offset", "scale"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["knn", "lwlr", "poisson"])
def test_rendered_scene_is_predicted_where_there_is_a_prior(name, case, scene, prior):
    result = run_method(method(name), prior, observe(scene.reference, case).sparse)
    assert result.status.startswith("ok")
    assert result.seconds > 0
    missing = np.count_nonzero(np.isnan(result.depth) & np.isfinite(prior.depth()))
    assert missing == result.parameters.get("failed", 0)


def test_the_residual_helps_where_measurements_are_spread(scene, prior):
    observed = observe(scene.reference, "distributed")
    response, ours = (
        depth_scores(method(name)(prior, observed.sparse).depth, scene.reference, observed.scored).absrel
        for name in ("response", "ours")
    )
    assert ours < response
