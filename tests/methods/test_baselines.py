"""KNN, LWLR and Poisson against explicit loops, exact cases, and inputs that leave them little to work with."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.core.prior import Prior
from leadline.methods import method
from support.baseline_problems import problem, seeded, smooth

BASELINES = ("knn", "lwlr", "poisson")

OUTPUT_RTOL = 1e-6  # float32 output of float64 arithmetic, twice its rounding and a margin
EXACT_RTOL = 1e-5  # an exact relation, seen through the cancellation of a least squares
SOLVE_RTOL = 2e-4  # log depth after conjugate gradients to a relative residual of 1e-5, on systems of some 200 cells


def knn_by_loops(relative: np.ndarray, sparse: np.ndarray, power: int = 2) -> np.ndarray:
    known = [tuple(at) for at in np.argwhere(np.isfinite(relative) & np.isfinite(sparse))]
    depth = np.where(np.isfinite(sparse), sparse, np.nan)
    for pixel in np.argwhere(np.isfinite(relative) & ~np.isfinite(sparse)):
        ranked = sorted((sum((pixel - at) ** 2), rank) for rank, at in enumerate(known))[:5]
        weights = np.array([square ** (-power / 4) for square, _ in ranked])  # they act squared
        weights /= weights.sum()
        x = np.array([1.0 / relative[known[rank]] for _, rank in ranked])
        y = np.array([1.0 / sparse[known[rank]] for _, rank in ranked])
        here = 1.0 / relative[tuple(pixel)]
        if np.ptp(x) < 1e-9:
            disparity = np.mean((weights**2 * y) / (weights**2).mean()) / x.mean() * here
        else:
            design = np.stack((x, np.ones_like(x)), axis=1) * weights[:, None]
            a, b = np.linalg.lstsq(design, y * weights, rcond=None)[0]
            disparity = a * here + b
        depth[tuple(pixel)] = 1.0 / disparity if disparity > 0 else np.nan
    return depth


@pytest.mark.parametrize("shape", [(17, 23), (1, 31), (29, 1), (24, 40)])
@pytest.mark.parametrize("pattern", ["grid", "random", "dense", "corner", "1", "3", "7"])
def test_knn_is_the_weighted_least_squares_of_the_five_nearest(shape, pattern):
    relative, sparse = problem(f"knn {shape} {pattern}", shape, pattern)
    if not (np.isfinite(sparse) & np.isfinite(relative)).any():
        sparse[-1, -1], relative[-1, -1] = 2.0, 1.0
    result = method("knn")(Prior(relative), sparse)
    expected = knn_by_loops(relative, sparse)
    np.testing.assert_allclose(result.depth, expected, rtol=EXACT_RTOL)
    assert result.parameters["failed"] == np.count_nonzero(np.isnan(expected) & np.isfinite(relative))


@pytest.mark.parametrize("pattern", ["grid", "random", "7"])
def test_knn_with_weights_that_are_not_squared(pattern):
    relative, sparse = problem(f"knn power {pattern}", (17, 23), pattern)
    result = method("knn")(Prior(relative), sparse, distance_power=1)
    np.testing.assert_allclose(result.depth, knn_by_loops(relative, sparse, power=1), rtol=EXACT_RTOL)


def test_knn_searches_far_from_a_cluster():
    # Far tiles, many empty ones between, and two clusters at nearly the same distance.
    relative = smooth(seeded("clusters"), (61, 83))
    sparse = np.full(relative.shape, np.nan)
    sparse[0:3, 0:3] = 2.0 * relative[0:3, 0:3] ** 1.1
    sparse[58:61, 80:83] = 3.0 * relative[58:61, 80:83]
    result = method("knn")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, knn_by_loops(relative, sparse), rtol=EXACT_RTOL)


@given(gain=st.floats(0.2, 5.0), offset=st.floats(0.01, 1.0), seed=st.integers(0, 2**32 - 1))
def test_knn_is_exact_where_the_prior_is_affine_in_disparity(gain, offset, seed):
    rng = np.random.default_rng(seed)
    relative = rng.uniform(0.5, 4.0, (14, 19))
    truth = 1.0 / (gain / relative + offset)
    sparse = np.where(rng.random(truth.shape) < 0.2, truth, 0.0)
    sparse[3, 4:6] = truth[3, 4:6]
    result = method("knn")(Prior(relative), sparse)
    # Five random neighbours may be nearly the same: their line is then exact to what is left of their difference.
    np.testing.assert_allclose(result.depth, truth, rtol=1e-4)
    assert result.status == "ok"


def test_knn_restores_measurements_bit_for_bit_also_without_a_prior():
    relative, sparse = problem("restore", (20, 30), "random")
    sparse = sparse.astype(np.float32)
    relative[5, 7], sparse[5, 7] = np.nan, 1.2345678
    result = method("knn")(Prior(relative), sparse)
    measured = np.isfinite(sparse)
    np.testing.assert_array_equal(result.depth[measured], sparse[measured])
    assert np.isnan(result.depth[np.isnan(relative) & ~measured]).all()


def test_knn_keeps_a_scale_where_its_neighbours_have_one_prior():
    relative = np.array([[2.0, 2.0, 2.0, 3.0, 1.0]])
    sparse = np.array([[4.0, 4.0, 4.0, np.nan, np.nan]])
    result = method("knn")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, [[4, 4, 4, 6, 2]], rtol=OUTPUT_RTOL)
    assert result.parameters == {"scale_only": 2.0, "failed": 0.0}


def test_knn_counts_non_positive_disparities_as_failed():
    relative = 1.0 / np.array([[1.0, 2.0, 0.4, 3.0]])
    sparse = 1.0 / np.array([[1.0, 3.0, np.nan, np.nan]])  # 1/s = 2/h - 1: -0.2 at the third, 5 at the fourth
    result = method("knn")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, [[1, 1 / 3, np.nan, 0.2]], rtol=OUTPUT_RTOL)
    assert result.status == "ok, but 1 of 4 pixels came out non-positive or infinite"


def lwlr_by_loops(relative: np.ndarray, sparse: np.ndarray, ridge: float = 0.0) -> np.ndarray:
    height, width = relative.shape
    at = np.argwhere(np.isfinite(relative) & np.isfinite(sparse))
    h, s = (values[at[:, 0], at[:, 1]] for values in (relative, sparse))
    if ridge:
        relative = np.polyval(np.polyfit(h, s, 1), relative)
        h = relative[at[:, 0], at[:, 1]]
    nodes = np.empty((24, 24, 2))
    for i in range(24):
        for j in range(24):
            place = np.array([i * (height - 1) / 23, j * (width - 1) / 23])
            weight = np.exp(-((at - place) ** 2).sum(axis=1) / (2 * (0.1 * max(height, width)) ** 2))
            root = np.sqrt(weight / weight.max())
            design = np.stack((h, np.ones_like(h)), axis=1)
            penalty = np.array([[0.0, math.sqrt(ridge / weight.max())]])
            rows, right = np.vstack((design * root[:, None], penalty)), np.append(s * root, 0.0)
            nodes[i, j] = np.linalg.lstsq(rows, right, rcond=None)[0]
    depth = np.full(relative.shape, np.nan)
    for v, u in np.argwhere(np.isfinite(relative)):
        y, x = v * 23 / max(height - 1, 1), u * 23 / max(width - 1, 1)
        i, j = min(int(y), 22), min(int(x), 22)
        top = nodes[i, j] + (x - j) * (nodes[i, j + 1] - nodes[i, j])
        bottom = nodes[i + 1, j] + (x - j) * (nodes[i + 1, j + 1] - nodes[i + 1, j])
        gain, offset = top + (y - i) * (bottom - top)
        value = gain * relative[v, u] + offset
        depth[v, u] = value if value > 0 else np.nan
    return depth


@pytest.mark.parametrize("shape", [(17, 23), (60, 41), (1, 57), (48, 1)])
@pytest.mark.parametrize("pattern", ["grid", "random", "dense"])
def test_lwlr_is_the_weighted_least_squares_of_each_node(shape, pattern):
    relative, sparse = problem(f"lwlr {shape} {pattern}", shape, pattern)
    result = method("lwlr")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, lwlr_by_loops(relative, sparse), rtol=EXACT_RTOL)


@pytest.mark.parametrize("shape", [(17, 23), (48, 1)])
@pytest.mark.parametrize("pattern", ["grid", "random"])
@pytest.mark.parametrize("ridge", [1.0, 30.0])
def test_lwlr_with_a_global_fit_and_a_ridge_on_the_offset(shape, pattern, ridge):
    relative, sparse = problem(f"ridge {shape} {pattern}", shape, pattern)
    result = method("lwlr")(Prior(relative), sparse, ridge=ridge)
    np.testing.assert_allclose(result.depth, lwlr_by_loops(relative, sparse, ridge), rtol=EXACT_RTOL)


@given(gain=st.floats(0.2, 5.0), offset=st.floats(0.0, 3.0), seed=st.integers(0, 2**32 - 1))
def test_lwlr_is_exact_where_the_prior_is_affine_in_depth(gain, offset, seed):
    rng = np.random.default_rng(seed)
    relative = rng.uniform(0.5, 4.0, (31, 22))
    truth = gain * relative + offset
    sparse = np.where(rng.random(truth.shape) < 0.2, truth, np.nan)
    sparse[3, 4:6] = truth[3, 4:6]
    result = method("lwlr")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, truth, rtol=EXACT_RTOL)
    assert result.status == "ok"
    assert result.parameters == {"scale_only": 0.0, "failed": 0.0}


def test_lwlr_keeps_a_scale_where_the_prior_is_constant():
    sparse = np.full((9, 9), np.nan)
    sparse[2, 3], sparse[7, 5] = 3.0, 3.0
    relative = np.full((9, 9), 0.7)
    relative[0, 0] = 1.4
    result = method("lwlr")(Prior(relative), sparse)
    expected = np.full((9, 9), 3.0)
    expected[0, 0] = 6.0
    np.testing.assert_allclose(result.depth, expected, rtol=OUTPUT_RTOL)
    assert result.parameters["scale_only"] == 24 * 24


def test_lwlr_counts_non_positive_depths_as_failed():
    relative = np.array([[1.0, 2.0, 3.0, 0.5]])
    sparse = np.array([[np.nan, 1.0, 3.0, np.nan]])  # s = 2 h - 3
    result = method("lwlr")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, [[np.nan, 1, 3, np.nan]], rtol=EXACT_RTOL)
    assert result.status.startswith("ok, but 2 of 4 pixels")


def published_problem() -> tuple[np.ndarray, np.ndarray]:
    """The small problem on which the public code of the three baselines was run."""
    rows, columns = np.indices((16, 24)).astype(float)
    relative = 1.5 + 0.05 * rows + 0.4 * np.sin(0.3 * columns) + (columns > 13)
    sparse = np.full(relative.shape, np.nan)
    for k in range(12):
        i, j = (5 * k + 3) % 16, (7 * k + 2) % 24
        sparse[i, j] = 2 * relative[i, j] ** 1.2 * (1 + 0.02 * np.cos(k))
    return relative, sparse


@pytest.mark.parametrize(
    ("name", "options", "rtol", "published"),
    [
        # PriorDA at 8c029cb, without its random noise.
        (
            "knn",
            {},
            1e-6,
            {(0, 0): 3.245508, (3, 7): 4.64332, (8, 13): 3.64382, (8, 14): 6.128617, (12, 20): 7.394414},
        ),
        # The NumPy code of the authors of LWLR, in FrozenRecon, with the nodes and the width of the paper.
        (
            "lwlr",
            {"ridge": 1.0},
            1e-6,
            {(0, 0): 3.263566, (0, 9): 3.696938, (0, 23): 6.61891, (15, 2): 5.918227, (15, 14): 7.094539},
        ),
        # LDCM at 9128cb9, max_resolution_ratio=0.25, with a tolerance of 1e-12 where ours is 1e-5.
        (
            "poisson",
            {},
            1e-5,
            {(0, 0): 4.231286, (3, 7): 4.483138, (8, 13): 4.498818, (8, 14): 4.652583, (12, 20): 6.959428},
        ),
    ],
)
def test_agrees_with_the_published_code(name, options, rtol, published):
    relative, sparse = published_problem()
    depth = method(name)(Prior(relative), sparse, **options).depth
    np.testing.assert_allclose([depth[at] for at in published], list(published.values()), rtol=rtol)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("knn", {"distance_power": 3}, "`distance_power` must be 1 or 2, got 3 instead"),
        ("lwlr", {"ridge": -1.0}, "`ridge` must be a finite number of at least 0, got -1.0 instead"),
        ("poisson", {"pyramid": "full"}, "`pyramid` must be one of"),
        ("poisson", {"sampling": "median"}, "`sampling` must be one of"),
        ("poisson", {"upsampling": "disparity"}, "`upsampling` must be one of"),
    ],
)
def test_an_unknown_option_is_an_error(name, options, message):
    with pytest.raises(InputError, match=message):
        method(name)(Prior(np.ones((3, 4))), np.ones((3, 4)), **options)


@pytest.mark.parametrize("name", BASELINES)
def test_no_usable_measurement_is_a_failed_result(name):
    relative = np.arange(1.0, 36.0).reshape(5, 7)
    result = method(name)(Prior(relative), np.zeros((5, 7)))
    assert result.status == "failed: no usable measurement"
    assert np.isnan(result.depth).all()
    assert result.depth.dtype == np.float32

    relative[2, 2] = np.nan
    sparse = np.zeros((5, 7))
    sparse[2, 2] = 3.0
    result = method(name)(Prior(relative), sparse)
    assert result.status == "failed: no usable measurement"
    assert np.isnan(result.depth[np.isfinite(relative)]).all()


@pytest.mark.parametrize("name", BASELINES)
def test_all_invalid_prior_is_a_status(name):
    result = method(name)(Prior(np.full((5, 7), np.nan)), np.ones((5, 7)))
    assert result.status.startswith("failed")


@pytest.mark.parametrize("name", BASELINES)
def test_one_measurement_gives_a_scale(name):
    relative = np.full((9, 13), 0.5)
    relative[:, 7:] = np.nan
    sparse = np.zeros((9, 13))
    sparse[4, 4] = 3.0
    result = method(name)(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth[:, :7], 3.0, rtol=OUTPUT_RTOL)
    assert np.isnan(result.depth[:, 7:]).all()
    assert result.status == "ok"


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e3])
def test_result_does_not_depend_on_the_unit_of_depth(name, factor):
    relative, sparse = problem("unit", (40, 52), "random")
    once, scaled = (method(name)(Prior(relative), sparse * by) for by in (1.0, factor))
    np.testing.assert_allclose(scaled.depth, factor * once.depth, rtol=EXACT_RTOL)


@pytest.mark.parametrize("name", BASELINES)
def test_result_does_not_depend_on_threads_or_repetition(name):
    relative, sparse = problem("threads", (70, 90), "random")
    before = relative.copy(), sparse.copy()
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = method(name)(Prior(relative), sparse)
    finally:
        numba.set_num_threads(threads)
    many = method(name)(Prior(relative), sparse)
    np.testing.assert_array_equal(one.depth, many.depth)
    assert one.parameters == many.parameters
    np.testing.assert_array_equal(before, (relative, sparse))


@pytest.mark.parametrize("name", ["lwlr", "poisson"])
def test_flips_and_transposes_commute(name):
    # Not KNN: of neighbours at one distance it takes the first.
    relative, sparse = problem("flips", (40, 64), "random")
    straight = method(name)(Prior(relative), sparse).depth
    for turn in (np.fliplr, np.flipud, np.transpose):
        turned = method(name)(Prior(turn(relative)), turn(sparse)).depth
        np.testing.assert_allclose(turned, turn(straight), rtol=SOLVE_RTOL)


@pytest.mark.parametrize("name", BASELINES)
def test_disparity_prior_is_read_as_such(name):
    relative, sparse = problem("disparity", (24, 32), "random")
    depth, disparity = (
        method(name)(prior, sparse).depth for prior in (Prior(relative), Prior(1.0 / relative, kind="disparity"))
    )
    np.testing.assert_allclose(disparity, depth, rtol=EXACT_RTOL)
