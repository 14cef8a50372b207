"""KNN, LWLR and Poisson against explicit loops, exact cases, and inputs that leave them little to work with."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.prior import Prior
from leadline.methods import method

BASELINES = ("knn", "lwlr", "poisson")

OUTPUT_RTOL = 1e-6  # float32 output of float64 arithmetic, twice its rounding and a margin
EXACT_RTOL = 1e-5  # an exact relation, seen through the cancellation of a least squares
SOLVE_RTOL = 2e-4  # log depth after conjugate gradients to a relative residual of 1e-5, on systems of some 200 cells


def seeded(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def smooth(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A relative depth with slopes, a step and some roughness."""
    rows, columns = np.indices(shape)
    slopes = 2.0 + rows / shape[0] + 0.5 * np.sin(3.0 * columns / shape[1])
    return slopes + (columns > shape[1] // 2) + 0.05 * rng.random(shape)


def anchors(rng: np.random.Generator, shape: tuple[int, int], pattern: str) -> np.ndarray:
    chosen = np.zeros(shape, bool)
    if pattern == "grid":  # nothing but ties
        chosen[min(1, shape[0] - 1) :: 4, min(2, shape[1] - 1) :: 4] = True
    elif pattern == "random":
        chosen = rng.random(shape) < 0.1
    elif pattern == "dense":
        chosen = rng.random(shape) < 0.8
    elif pattern == "corner":
        chosen[: max(shape[0] // 4, 1), : max(shape[1] // 4, 2)] = True
    else:
        chosen.flat[rng.choice(chosen.size, int(pattern), replace=False)] = True
    return chosen


def problem(name: str, shape: tuple[int, int], pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """A prior with holes and measurements that no curve explains."""
    rng = seeded(name)
    relative = smooth(rng, shape)
    chosen = anchors(rng, shape, pattern)
    sparse = np.where(chosen, 3.0 * relative**1.3 * np.exp(0.05 * rng.standard_normal(shape)), np.nan)
    if relative.size > 30:
        relative[rng.random(shape) < 0.05] = np.nan
    return relative, sparse


def knn_by_loops(relative: np.ndarray, sparse: np.ndarray) -> np.ndarray:
    known = [tuple(at) for at in np.argwhere(np.isfinite(relative) & np.isfinite(sparse))]
    depth = np.where(np.isfinite(sparse), sparse, np.nan)
    for pixel in np.argwhere(np.isfinite(relative) & ~np.isfinite(sparse)):
        ranked = sorted((sum((pixel - at) ** 2), rank) for rank, at in enumerate(known))[:5]
        weights = np.array([1.0 / math.sqrt(square) for square, _ in ranked])
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


def lwlr_by_loops(relative: np.ndarray, sparse: np.ndarray) -> np.ndarray:
    height, width = relative.shape
    at = np.argwhere(np.isfinite(relative) & np.isfinite(sparse))
    h, s = (values[at[:, 0], at[:, 1]] for values in (relative, sparse))
    nodes = np.empty((24, 24, 2))
    for i in range(24):
        for j in range(24):
            place = np.array([i * (height - 1) / 23, j * (width - 1) / 23])
            weight = np.exp(-((at - place) ** 2).sum(axis=1) / (2 * (0.1 * max(height, width)) ** 2))
            root = np.sqrt(weight / weight.max())
            design = np.stack((h, np.ones_like(h)), axis=1)
            nodes[i, j] = np.linalg.lstsq(design * root[:, None], s * root, rcond=None)[0]
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


def poisson_by_loops(relative: np.ndarray, sparse: np.ndarray) -> np.ndarray:
    """The minimiser at a quarter of the resolution, which is unique, by a dense least squares."""
    paired = np.isfinite(relative) & np.isfinite(sparse)
    gain, offset = np.polyfit(relative[paired], sparse[paired], 1)
    aligned = np.maximum(gain * relative + offset, 1e-3 * sparse[paired].min())
    height, width = relative.shape
    prior, depth = {}, {}
    for i in range(math.ceil(height / 4)):
        for j in range(math.ceil(width / 4)):
            block = np.s_[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
            if np.isfinite(aligned[block]).any():
                prior[i, j] = math.log(np.nanmean(aligned[block]))
                if np.isfinite(sparse[block]).any():
                    depth[i, j] = math.log(np.nanmean(sparse[block]))
    number = {cell: k for k, cell in enumerate(prior)}
    rows, right = [], []
    for i, j in prior:
        for other in ((i + 1, j), (i, j + 1)):
            if other in prior:
                row = np.zeros(len(prior))
                row[number[other]], row[number[i, j]] = 1.0, -1.0
                rows.append(row)
                right.append(np.clip(prior[other] - prior[i, j], -3.0, 3.0))
        if (i, j) in depth:
            row = np.zeros(len(prior))
            row[number[i, j]] = math.sqrt(5.0)
            rows.append(row)
            right.append(math.sqrt(5.0) * depth[i, j])
    x = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]
    result = np.full(relative.shape, np.nan)
    for v, u in np.argwhere(np.isfinite(relative)):
        y = min(max((v + 0.5) / 4 - 0.5, 0), math.ceil(height / 4) - 1)
        z = min(max((u + 0.5) / 4 - 0.5, 0), math.ceil(width / 4) - 1)
        shares = {
            (i, j): (1 - abs(y - i)) * (1 - abs(z - j))
            for i in {math.floor(y), math.ceil(y)}
            for j in {math.floor(z), math.ceil(z)}
            if (i, j) in prior
        }
        result[v, u] = math.exp(sum(w * x[number[cell]] for cell, w in shares.items()) / sum(shares.values()))
    return result


@pytest.mark.parametrize("shape", [(37, 50), (64, 48), (1, 60), (41, 3)])
@pytest.mark.parametrize("pattern", ["grid", "random", "corner"])
def test_poisson_is_the_minimiser_at_a_quarter_of_the_resolution(shape, pattern):
    relative, sparse = problem(f"poisson {shape} {pattern}", shape, pattern)
    result = method("poisson")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, poisson_by_loops(relative, sparse), rtol=SOLVE_RTOL)
    assert result.status == "ok"
    assert result.parameters["residual"] <= 1e-5


def test_poisson_leaves_holes_out_of_the_graph():
    relative, sparse = problem("holes", (48, 64), "random")
    relative[12:24, 20:44] = np.nan
    relative[4:8, 4:8] = np.nan  # one whole cell
    result = method("poisson")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, poisson_by_loops(relative, sparse), rtol=SOLVE_RTOL)


def test_poisson_clips_gradients_and_clamps_the_aligned_prior():
    relative = np.full((32, 32), 1.0)
    relative[:, 16:] = 2000.0
    relative[:, :4] = 0.5  # aligned below zero
    relative[:, 4:8] = 0.80208  # aligned to 3 mm, ten times the floor, so that the floor itself shows in a gradient
    sparse = np.full(relative.shape, np.nan)
    sparse[5, 10], sparse[20, 9], sparse[9, 28] = 0.3, 0.3, 3000.0
    result = method("poisson")(Prior(relative), sparse)
    assert result.parameters["clamped"] == 32 * 4
    # The step between the two halves is log 1e4 = 9.2 in the prior and clipped to 3.
    np.testing.assert_allclose(result.depth, poisson_by_loops(relative, sparse), rtol=SOLVE_RTOL)
    assert np.isfinite(result.depth).all()


def test_poisson_reproduces_a_prior_that_is_the_truth():
    # An exponential ramp, whose log is linear, so that neither the means of cells nor the upsampling bend it: the mean
    # over a cell is the same factor everywhere. Cells of four pixels without a ragged border.
    rows, columns = np.indices((64, 96))
    truth = 2.0 * np.exp(0.004 * rows + 0.002 * columns)
    result = method("poisson")(Prior(truth), np.where((rows + columns) % 5 == 0, truth, np.nan))
    inner = np.s_[2:-2, 2:-2]  # the outermost half cell is held at its centre's value
    # A cell's measurements are not at its centre: off by up to two pixels of slope.
    np.testing.assert_allclose(result.depth[inner], truth[inner], rtol=2 * (0.004 + 0.002))
    full = method("poisson")(Prior(truth), truth)
    np.testing.assert_allclose(full.depth[inner], truth[inner], rtol=SOLVE_RTOL)


def test_poisson_is_soft_at_the_measurements():
    relative = np.ones((32, 32))
    sparse = np.full((32, 32), np.nan)
    sparse[9, 9], sparse[21, 21] = 2.0, 4.0
    result = method("poisson")(Prior(relative), sparse)
    assert 2.0 < result.depth[9, 9] < result.depth[21, 21] < 4.0


def test_poisson_part_without_a_measurement_keeps_the_gradients():
    rows, _ = np.indices((64, 128))
    relative = np.exp(0.01 * rows)
    relative[:, 60:68] = np.nan
    sparse = np.full(relative.shape, np.nan)
    sparse[::8, 4:60:8] = 3.0 * relative[::8, 4:60:8]
    result = method("poisson")(Prior(relative), sparse)
    assert np.isfinite(result.depth[:, 68:]).all()
    slope = np.log(result.depth[50, 100] / result.depth[10, 100])
    assert slope == pytest.approx(0.4, abs=1e-3)


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
