"""The system that an image's own measurements choose: what it is made of, and which image chooses what."""

from __future__ import annotations

import json
import math

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.bench.metrics import depth_scores
from leadline.bench.observations import observe
from leadline.core.adaptive import (
    MAX_STIFFNESS,
    MAX_WEIGHT,
    MIN_EDGE_WEIGHT,
    OUTLIER_SCALE,
    TRIMMED_SHARE,
    adapt,
    full_weight_signal,
)
from leadline.core.options import CompletionOptions, ReconstructionOptions
from leadline.core.pipeline import complete
from leadline.core.solve.system import System
from leadline.datasets.scene_folders import SceneFolders
from support.paths import DATA

ROUNDING = 1e-6  # the calibrated map and the edge weights are float32
EXACT = 1e-12  # float64 sums in another order


def scene(rng, shape=(90, 120)):
    """A calibrated map with a slope, a step and holes, and measurements on a jittered grid."""
    row, column = np.indices(shape)
    t = (2.0 + 0.01 * row + (column > 50) + 0.02 * rng.standard_normal(shape)).astype(np.float32)
    t[rng.random(shape) < 0.05] = np.nan
    measured = np.zeros(shape, bool)
    measured[4::8, 3::9] = True
    where = np.flatnonzero(measured & np.isfinite(t))
    return t, where, t.flat[where] * np.exp(0.1 + 0.05 * rng.standard_normal(where.size))


def street(blur=0):
    """Two sharp depths with an oblique border, optionally blurred along rows, and the depth that is measured."""
    row, column = np.indices((120, 160))
    depth = np.where(column + 0.3 * row > 96.4, 6.0, 2.0)
    shifted = [np.where(column + k + 0.3 * row > 96.4, 6.0, 2.0) for k in range(-blur, blur + 1)]
    return np.mean(shifted, axis=0).astype(np.float32), (depth * np.exp(0.4 + 0.1 * row / 120)).astype(np.float32)


def measurements(depth, averaged):
    """On the benchmark's grid: the mean depth of each cell, or the depth of its middle pixel."""
    sparse = observe(depth, "distributed").sparse
    where = np.flatnonzero(np.isfinite(sparse))
    return where, (sparse if averaged else depth).flat[where].astype(np.float64)


def neighbours(where, width, k):
    """By brute force: the others in the smallest square around k that holds four, and its half-width."""
    row, column = np.divmod(where, width)
    away = np.maximum(abs(row - row[k]), abs(column - column[k]))
    reach = np.sort(away)[4]
    inside = away <= reach
    inside[k] = False
    return inside, reach


def mean_without_outliers(errors):
    return max(np.mean(np.sort(errors)[: errors.size - int(TRIMMED_SHARE * errors.size)]), 0.1 * np.mean(errors))


@pytest.mark.parametrize("averaged", [False, True])
def test_what_is_chosen_is_what_is_said(rng, averaged):
    t, where, measured = scene(rng)
    height, width = t.shape
    if averaged:
        row, column = np.divmod(where, width)
        windows = [t[max(r - 4, 0) : r + 5, max(c - 4, 0) : c + 5] for r, c in zip(row, column, strict=True)]
        measured = np.array([np.nanmean(w, dtype=np.float64) for w in windows]) * np.exp(0.1 + row / 500)
        measured[7] *= 5  # and a gross outlier
    found = adapt(t, where, measured)
    sets = [neighbours(where, width, k) for k in range(where.size)]
    assert found.spacing == np.median([reach for _, reach in sets]) == 9
    half = (found.spacing - 1) // 2
    means, spreads = [], []
    for row, column in zip(*np.divmod(where, width), strict=True):
        window = t[max(row - half, 0) : row + half + 1, max(column - half, 0) : column + half + 1].astype(np.float64)
        means.append(np.nanmean(window))
        spreads.append(np.nanstd(window) / means[-1])
    residuals = {1: np.log(measured / t.flat[where]), 2 * half + 1: np.log(measured / np.array(means))}
    errors = {
        side: np.array([abs(y[k] - np.median(y[inside])) for k, (inside, _) in enumerate(sets)])
        for side, y in residuals.items()
    }
    assert found.cell == min(errors, key=lambda side: errors[side].mean()) == (2 * half + 1 if averaged else 1)
    assert found.roughness == pytest.approx(mean_without_outliers(errors[found.cell]), rel=EXACT)
    np.testing.assert_allclose(found.targets, residuals[found.cell], rtol=0, atol=EXACT)
    signal = (mean_without_outliers(abs(found.targets)) / found.roughness) ** 2 - 1
    y = found.targets
    around = np.array([np.sort(abs(y[inside] - np.median(y[inside])))[-3] for inside, _ in sets])
    odd = errors[found.cell] / (OUTLIER_SCALE * found.roughness + 2 * around)
    wanted = MAX_WEIGHT * min(1, signal / full_weight_signal(found.spacing)) / (1 + odd**2) ** 2
    if averaged:
        wanted = wanted / (1 + (np.array(spreads) / found.roughness) ** 2)
    np.testing.assert_allclose(found.weights, wanted, rtol=ROUNDING)
    mean_distance = math.sqrt(height * width / where.size)
    assert found.stiffness == max(found.spacing, mean_distance) ** 2
    assert found.screening == 1 / (height**2 + width**2)


def test_edge_weights(rng):
    t, where, measured = scene(rng)
    found = adapt(t, where, measured)
    log = np.pad(np.log(t.astype(np.float64)), 1, mode="edge")
    centre, height, width = log[1:-1, 1:-1], *t.shape
    sides = [log[1 + i : 1 + i + height, 1 + j : 1 + j + width] for i, j in ((0, 1), (0, -1), (1, 0), (-1, 0))]
    steps = np.nan_to_num(np.array([side - centre for side in sides]))
    squares = (steps**2).sum(axis=0) / 2
    # Relative differences stand for those of the logarithms.
    assert found.contrast == pytest.approx(np.sqrt(squares[np.isfinite(t)]).mean(), rel=1e-2)
    pairs = squares[:, :-1] + squares[:, 1:], squares[:-1] + squares[1:]
    for pair, weight in zip(pairs, found.edges, strict=True):
        assert weight.dtype == np.float32
        known = pair < 0.01  # where the two agree to 1e-3
        np.testing.assert_allclose(weight[known], 1 / (1 + pair[known] / 2 / found.contrast**2), rtol=6e-3)


def test_edge_weights_have_a_floor():
    t = np.full((60, 80), 2.0, np.float32)
    t[:, 40:] = 9.0  # the only contrast there is, so that it is some hundred times the mean
    across, down = adapt(t, np.array([0]), np.array([2.0])).edges
    np.testing.assert_array_equal(across[:, 39], np.float32(MIN_EDGE_WEIGHT))
    assert (np.delete(across, [38, 39, 40], axis=1) == 1).all()
    assert (np.delete(down, [39, 40], axis=1) == 1).all()
    assert (down[:, 39:41] < 0.01).all()  # whichever way an edge runs, it loosens all ties of its pixels


def test_an_averaging_sensor_is_told_from_one_of_points():
    prior, depth = street()
    found = adapt(prior, *measurements(depth, averaged=True))
    assert (found.spacing, found.cell) == (8, 7)
    assert adapt(prior, *measurements(depth, averaged=False)).cell == 1


def test_a_sharp_prior_leaves_measurements_on_its_edges_alone_and_a_blurred_one_does_not():
    sharp, depth = street()
    blurred, _ = street(blur=24)
    held = {}
    for name, prior in (("sharp", sharp), ("blurred", blurred)):
        where, measured = measurements(depth, averaged=True)
        found = adapt(prior, where, measured)
        row, column = np.divmod(where, prior.shape[1])
        near = abs(column + 0.3 * row - 96.4) < 2
        held[name] = found.weights[near] / MAX_WEIGHT
        assert np.median(found.weights) > 0.9 * MAX_WEIGHT
    assert held["blurred"].min() > 100 * held["sharp"].max()


def test_a_gross_outlier_loses_its_influence_and_a_thin_object_keeps_it(rng):
    t = np.full((120, 120), 3.0, np.float32)
    row, column = np.indices(t.shape)
    where = np.flatnonzero((row % 8 == 4) & (column % 8 == 4))
    field = (0.3 + 0.1 * np.sin(row / 20) + 0.01 * rng.standard_normal(t.shape)).flat[where]
    thin = column.flat[where] == 60
    field[thin] -= 0.1  # a pole in front
    wrong = rng.choice(np.flatnonzero(~thin), 8, replace=False)
    field[wrong] += 1.5
    found = adapt(t, where, 3.0 * np.exp(field))
    assert found.weights[wrong].max() < 0.02 * MAX_WEIGHT
    assert found.weights[thin & ~np.isin(np.arange(where.size), wrong)].min() > 0.5 * MAX_WEIGHT


def test_residuals_without_a_trend_draw_little(rng):
    t = np.full((80, 80), 3.0, np.float32)
    where = np.flatnonzero((np.indices(t.shape) % 8 == 4).all(axis=0))
    noise = 0.02 * rng.standard_normal(where.size)
    assert adapt(t, where, 3.0 * np.exp(noise)).weights.max() < 0.1 * MAX_WEIGHT
    assert np.median(adapt(t, where, 3.0 * np.exp(0.4 + noise)).weights) > 0.9 * MAX_WEIGHT


def test_the_unit_of_depth_cancels(rng):
    t, where, measured = scene(rng)
    one, other = adapt(t, where, measured), adapt(t * np.float32(1024), where, measured * 1024)
    np.testing.assert_allclose(other.targets, one.targets, atol=EXACT)
    np.testing.assert_allclose(other.weights, one.weights, rtol=EXACT)
    for a, b in zip(one.edges, other.edges, strict=True):
        np.testing.assert_array_equal(a, b)


def test_resolution_cancels():
    """Twice the pixels and the same measurements: the plate bends over the same share of the image."""
    row, column = np.indices((192, 256)) / 2
    fine = (2 + 0.01 * row + np.sin(column / 9)).astype(np.float32)
    t = np.ascontiguousarray(fine[::2, ::2])
    sparse = np.zeros(t.shape, bool)
    sparse[4::8, 4::8] = True
    coarse_where = np.flatnonzero(sparse)
    r, c = np.divmod(coarse_where, 128)
    measured = t.flat[coarse_where] * np.exp(0.2 + r / 500)
    one, two = adapt(t, coarse_where, measured), adapt(fine, (2 * r) * 256 + 2 * c, measured)
    assert two.spacing == 2 * one.spacing
    assert two.stiffness == 4 * one.stiffness
    assert two.screening == one.screening / 4
    assert two.contrast == pytest.approx(one.contrast / 2, rel=0.02)  # one row and column of differences fewer


@pytest.mark.parametrize("turn", [np.flipud, np.fliplr, np.transpose])
def test_flips_and_transposes_commute(rng, turn):
    t, where, measured = scene(rng)
    index = np.full(t.shape, -1)
    index.flat[where] = np.arange(where.size)
    turned = np.ascontiguousarray(turn(index))
    order = turned[turned >= 0]
    one = adapt(t, where, measured)
    other = adapt(np.ascontiguousarray(turn(t)), np.flatnonzero(turned >= 0), measured[order])
    np.testing.assert_allclose(other.targets, one.targets[order], atol=EXACT)
    np.testing.assert_allclose(other.weights, one.weights[order], rtol=1e-9)
    across, down = one.edges[::-1] if turn is np.transpose else one.edges
    np.testing.assert_allclose(other.edges[0], turn(across), rtol=ROUNDING)
    np.testing.assert_allclose(other.edges[1], turn(down), rtol=ROUNDING)


@pytest.mark.parametrize("count", [0, 1, 4, 5])
@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (3, 3), (40, 30)])
def test_few_measurements(count, shape):
    t = np.full(shape, 2.0, np.float32)
    where = np.arange(min(count, t.size)) * (t.size // 5)
    found = adapt(t, where, np.full(where.size, 3.0))
    assert math.isnan(found.roughness) == (where.size < 5)
    assert found.cell == 1
    np.testing.assert_allclose(found.targets, math.log(1.5))
    np.testing.assert_array_equal(found.weights, MAX_WEIGHT)
    assert 0 < found.stiffness <= MAX_STIFFNESS
    assert all((weights == 1).all() for weights in found.edges)
    json.dumps(found.to_dict())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 3), st.floats(0.002, 1))
def test_everything_stays_within_its_bounds(seed, contrast, share):
    rng = np.random.default_rng(seed)
    t = np.exp(contrast * rng.standard_normal((24, 31))).astype(np.float32)
    t[rng.random(t.shape) < 0.1] = np.nan
    where = np.flatnonzero((rng.random(t.shape) < share) & np.isfinite(t))
    measured = np.exp(rng.standard_normal(where.size))
    before = t.copy(), where.copy(), measured.copy()
    found = adapt(t, where, measured)
    assert np.isfinite(found.targets).all()
    assert ((found.weights > 0) & (found.weights <= MAX_WEIGHT)).all()
    for weights in found.edges:
        assert ((weights >= np.float32(MIN_EDGE_WEIGHT)) & (weights <= 1)).all()
    for array, copy in zip((t, where, measured), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_the_same_bits_on_any_number_of_threads(rng):
    t, where, measured = scene(rng, (200, 300))
    threads = numba.get_num_threads()
    found = []
    try:
        for count in (1, threads):
            numba.set_num_threads(count)
            found.append(adapt(t, where, measured))
    finally:
        numba.set_num_threads(threads)
    one, other = found
    assert one.to_dict() == other.to_dict()
    np.testing.assert_array_equal(one.weights, other.weights)
    np.testing.assert_array_equal(one.edges[0], other.edges[0])


def reconstructed(t, where, measured):
    """Depth by the chosen system, measurements written back."""
    found = adapt(t, where, measured)
    options = ReconstructionOptions.paper(weight_data=found.screening, weight_laplacian=found.stiffness, tolerance=1e-4)
    system = System(np.isfinite(t), where, options, edges=found.edges, weights=found.weights)
    solution = system.solve(found.targets)
    depth = np.exp(found.flattened(np.log(t)) + solution.interior)
    depth.flat[where] = measured
    return depth, found


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the scenes in {DATA}, which are not there")
@pytest.mark.parametrize("strong", [False, True])
def test_real_scenes_are_completed_better_than_by_the_papers_system(strong):
    """The same calibrated map, the paper's system against the chosen one, with a poor prior and with a good one.

    The poor prior knows nothing: a plane fitted to the reference. The good one is nine tenths of the way from there, in
    logarithms, to the reference. Reached when this was written: geometric means 0.59 and 0.16, worst 0.67 and 0.23.
    """
    scenes = SceneFolders(DATA)
    ratios = []
    for name in ("middlebury2014/motorcycle_q", "nyuv2/basement_00000", "tum_rgbd/fr2_desk_1"):
        reference = scenes.load(name).reference
        observed = observe(reference, "distributed")
        known = np.isfinite(reference)
        row, column = np.indices(reference.shape)
        design = np.stack([np.ones(reference.shape), row / 480, column / 640], axis=-1)
        log = np.log(np.where(known, reference, 1.0)).astype(np.float64)
        plane = design @ np.linalg.lstsq(design[known], log[known], rcond=None)[0]
        prior = np.exp(plane if not strong else np.where(known, 0.1 * plane + 0.9 * log, plane)).astype(np.float32)
        paper = complete(prior, observed.sparse, options=CompletionOptions.paper())
        where = np.flatnonzero(np.isfinite(observed.sparse) & np.isfinite(paper.calibrated))
        depth, _ = reconstructed(paper.calibrated, where, observed.sparse.flat[where].astype(np.float64))
        theirs, ours = (depth_scores(d, reference, observed.scored).absrel for d in (paper.depth, depth))
        ratios.append(ours / theirs)
    assert np.exp(np.mean(np.log(ratios))) < (0.2 if strong else 0.65)
    assert max(ratios) < (0.3 if strong else 0.75)
