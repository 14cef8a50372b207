"""One scale or one robust line for the image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.core.prior import Prior
from leadline.methods import method

FIT_RTOL = 1e-5  # float32 output of a float64 fit
LINES = {
    "ransac-metric": np.positive,
    "ransac-disp": np.reciprocal,
    "lad-metric": np.positive,
    "lad-disp": np.reciprocal,
}


def line_problem(seed: int, coordinate) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A prior, the depth of an exact line in the coordinate, and measurements of which a fifth are outliers."""
    rng = np.random.default_rng(seed)
    relative = rng.uniform(0.5, 4.0, (12, 14))
    truth = coordinate(0.7 * coordinate(relative) + 0.3)
    sparse = np.where(rng.random(truth.shape) < 0.4, truth, np.nan)
    sparse[0, :3] = truth[0, :3]
    wrong = rng.random(truth.shape) < 0.2
    wrong[0, :3] = False
    return relative, truth, np.where(wrong, 3.0 * sparse, sparse)


@pytest.mark.parametrize("name", list(LINES))
@given(seed=st.integers(0, 2**32 - 1))
def test_line_is_exact_despite_outliers(name, seed):
    relative, truth, sparse = line_problem(seed, LINES[name])
    result = method(name)(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, truth, rtol=FIT_RTOL)
    assert result.parameters["gain"] == pytest.approx(0.7, rel=1e-6)
    assert result.parameters["offset"] == pytest.approx(0.3, rel=1e-6)


@pytest.mark.parametrize("count", [2, 3, 10, 11, 60])
@pytest.mark.parametrize("seed", range(4))
def test_least_absolute_deviations_reach_the_minimum_of_all_pairs(count, seed):
    """Some line through two of the points has the least sum, so trying all of them is exact."""
    rng = np.random.default_rng([count, seed])
    h = rng.uniform(1.0, 5.0, count)
    s = np.maximum(0.5 + 1.5 * h + rng.standard_t(1.5, count), 0.05)
    relative, sparse = h[None], s[None]
    result = method("lad-metric")(Prior(relative), sparse)
    sums = []
    for i in range(count):
        for j in range(i):
            gain = (s[i] - s[j]) / (h[i] - h[j])
            sums.append(np.abs(gain * (h - h[i]) + s[i] - s).sum())
    if result.failed:
        assert "not positive" in result.status
        return
    found = np.abs(result.parameters["gain"] * h + result.parameters["offset"] - s).sum()
    assert found == pytest.approx(min(sums), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("estimator", "gain"), [("median_ratio", 2.5), ("ratio_of_medians", 2.0), ("least_squares", 2.0)]
)
def test_scale_by_hand(estimator, gain):
    sparse = {
        "median_ratio": [2.0, 5.0, 10.4, np.nan, 9.0],  # ratios 2, 2.5 and 2.6
        "ratio_of_medians": [2.0, 6.0, 4.0, np.nan, 9.0],  # 4 over 2
        "least_squares": [2.0, 8.0, 6.0, np.nan, 9.0],  # (2 + 16 + 24) / (1 + 4 + 16)
    }[estimator]
    relative = np.array([[1.0, 2.0, 4.0, 8.0, np.nan]])
    result = method("scale")(Prior(relative), np.array([sparse]), estimator=estimator)
    np.testing.assert_allclose(result.depth, gain * relative, rtol=FIT_RTOL)
    assert result.parameters == pytest.approx({"gain": gain})


def test_ransac_repeats_itself_and_counts_inliers():
    relative, _, sparse = line_problem(7, np.reciprocal)
    results = [method("ransac-disp")(Prior(relative), sparse, trials=50) for _ in range(2)]
    np.testing.assert_array_equal(results[0].depth, results[1].depth)
    share = np.mean(np.abs(sparse / results[0].depth - 1)[np.isfinite(sparse)] < 0.05)
    assert results[0].parameters["inliers"] == pytest.approx(share)


@pytest.mark.parametrize("name", list(LINES))
def test_a_line_that_turns_depth_around_fails(name):
    result = method(name)(Prior(np.array([[1.0, 2.0, 3.0]])), np.array([[3.0, 2.0, 1.0]]))
    assert result.failed
    assert np.isnan(result.depth).all()
    assert "positive" in result.status


@pytest.mark.parametrize("name", list(LINES))
def test_too_few_measurements_or_a_constant_prior_fail(name):
    assert "fewer than two" in method(name)(Prior(np.ones((2, 2))), np.array([[1.0, 0], [0, 0]])).status
    assert "constant" in method(name)(Prior(np.ones((2, 2))), np.array([[1.0, 2.0], [0, 0]])).status


@pytest.mark.parametrize("name", ["gmetric", "lad-metric", "ransac-metric"])
def test_pixels_without_a_positive_depth_fail_the_image_or_are_counted(name):
    problem = Prior(np.array([[1.0, 2.0, 3.0, 0.5]])), np.array([[0.0, 1.0, 3.0, 0.0]])  # s = 2 h - 3
    failed = method(name)(*problem)
    assert failed.failed
    assert failed.parameters["undefined"] == 2
    result = method(name)(*problem, undefined="drop")
    np.testing.assert_allclose(result.depth, [[np.nan, 1, 3, np.nan]], rtol=FIT_RTOL)
    assert result.status.startswith("ok, but 2 of 4 pixels")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("scale", {"estimator": "mean"}, "`estimator` must be one of"),
        ("ransac-disp", {"trials": 0}, "`trials` must be a positive integer, got 0"),
        ("ransac-disp", {"tolerance": -1.0}, "`tolerance` must be a positive number"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(InputError, match=message):
        method(name)(Prior(np.ones((2, 2))), np.ones((2, 2)), **options)
