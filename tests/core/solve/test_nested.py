"""Edges and start of the adaptive system from coarser grids."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.core.options import ReconstructionOptions
from leadline.core.solve import nested, reconstruction
from leadline.core.solve.nested import Estimate, Grid, estimate_residual, mean_slope
from leadline.core.solve.reconstruction import reconstruct

SHAPE = (192, 256)  # more than COARSEST pixels, so that there are two grids
OPTIONS = ReconstructionOptions(system="fixed", weight_laplacian=8.0)


def textured(rng, shape=SHAPE):
    """A calibrated map that knows nothing of the scene but is not quite flat."""
    row, column = np.indices(shape)
    return (3.0 + 0.05 * np.sin(row / 17) * np.cos(column / 23) + 0.002 * rng.standard_normal(shape)).astype(np.float32)


def error(depth, found):
    return float(np.mean(np.abs(found - depth) / depth))


def without_estimate(monkeypatch, *arguments):
    with monkeypatch.context() as patch:
        patch.setattr(reconstruction, "estimate_residual", lambda grid: None)
        return reconstruct(*arguments)


def test_an_edge_that_the_prior_misses_becomes_a_step(rng, monkeypatch):
    t = textured(rng)
    row, column = np.indices(SHAPE)
    depth = np.where((row - 90) ** 2 + (column - 120) ** 2 < 60**2, 2.0, 4.0)
    where = np.flatnonzero((row % 8 == 4) & (column % 8 == 4))
    arguments = t, where, depth.flat[where], ReconstructionOptions()
    found, statistics = reconstruct(*arguments)
    smooth, before = without_estimate(monkeypatch, *arguments)
    np.testing.assert_array_equal(found.flat[where], depth.flat[where])
    assert error(depth, found) < 0.85 * error(depth, smooth)
    assert statistics.converged
    assert statistics.iterations < before.iterations  # it starts from the coarser solution


def test_a_slope_without_measurements_stays_a_slope(rng, monkeypatch):
    """A wall at an angle, measured on both sides of a gap, where the only gradients are those of the wall."""
    t = textured(rng)
    row, column = np.indices(SHAPE)
    depth = np.exp(np.interp(column, (70, 190), (0.7, 1.6)))  # flat, then a slope, then flat
    where = np.flatnonzero((row % 8 == 4) & (column % 8 == 4) & (abs(column - 130) > 55))
    arguments = t, where, depth.flat[where], ReconstructionOptions()
    wall = abs(column - 130) < 50

    def on_wall(found):
        return error(depth[wall], found[wall])

    found, smooth = reconstruct(*arguments)[0], without_estimate(monkeypatch, *arguments)[0]
    monkeypatch.setattr(nested, "mean_slope", lambda depth, window: np.zeros_like(depth))
    monkeypatch.setattr(nested, "EVERYTHING", 0.0)
    stepped = reconstruct(*arguments)[0]
    assert on_wall(found) < 1.06 * on_wall(smooth)
    assert on_wall(stepped) > 1.2 * on_wall(found)


def test_a_lone_measurement_makes_no_edge_around_itself(rng, monkeypatch):
    """Many measurements of a table and one of the wall beside it, which is the only one that knows the wall."""
    row, column = np.indices(SHAPE)
    table = np.flatnonzero((row % 8 == 4) & (column % 8 == 4) & (column > 100))
    where = np.sort(np.append(table, 60 * SHAPE[1] + 20))
    targets = np.where(where % SHAPE[1] == 20, -0.7, 0.02 * rng.standard_normal(where.size))
    grid = Grid(textured(rng), where, targets, np.full(where.size, nested.MAX_WEIGHT), OPTIONS)

    def on_wall():
        return float(np.mean(estimate_residual(grid).residual[:, :60]))

    found = on_wall()
    monkeypatch.setattr(nested, "EVERYTHING", 0.0)
    assert found < 10.0 * on_wall() < 0.0


def test_noise_makes_no_edges(rng, monkeypatch):
    row, column = np.indices(SHAPE)
    where = np.flatnonzero((row % 8 == 4) & (column % 8 == 4))
    depth = np.exp(1.0 + 0.1 * rng.standard_normal(where.size))
    arguments = textured(rng), where, depth, ReconstructionOptions()
    found = reconstruct(*arguments)[0]
    monkeypatch.setattr(nested, "NOT_EDGES", 0.0)
    assert error(np.exp(1.0), found) < 0.98 * error(np.exp(1.0), reconstruct(*arguments)[0])


def test_counts_of_measurements_around_each_pixel(rng):
    where = np.sort(rng.choice(30 * 41, 25, replace=False))
    found = nested._counts(where, (30, 41), 7)
    rows, columns = np.divmod(where, 41)
    for i, j in ((0, 0), (29, 40), (12, 3), (3, 20)):
        assert found[i, j] == np.count_nonzero((abs(rows - i) <= 3) & (abs(columns - j) <= 3))


def test_half_the_resolution():
    t = np.full((3, 4), 2.0, np.float32)
    t[0, :2] = np.nan
    t[1, 1], t[:2, 2:] = 3.0, np.nan
    where, targets, weights = np.array([4, 5, 9, 11]), np.array([0.1, 0.4, 0.2, 0.3]), np.array([1.0, 2.0, 800, 900])
    coarse = Grid(t, where, targets, weights, OPTIONS).halved()
    np.testing.assert_array_equal(coarse.calibrated, [[2.5, np.nan], [2.0, 2.0]])
    np.testing.assert_array_equal(coarse.where, [0, 2, 3])
    np.testing.assert_allclose(coarse.targets, [0.3, 0.2, 0.3])
    np.testing.assert_allclose(coarse.weights, [3.0, 800.0, 900.0])
    assert (coarse.options.weight_data, coarse.options.weight_laplacian) == (4e-3, 2.0)
    assert Grid(t, np.array([8, 9]), targets[:2], weights[2:], OPTIONS).halved().weights == nested.MAX_WEIGHT


def test_twice_the_resolution():
    """Linear fields are reproduced inside, and invalid pixels do not spread."""
    fine_row, fine_column = np.indices((11, 14))
    row, column = np.indices((6, 7))
    # The centre of coarse pixel k is at 2 k + 1/2 in fine pixels.
    coarse = Estimate((2 * row + 0.5 + 3 * (2 * column + 0.5)).astype(np.float32), np.ones((6, 7), np.float32))
    fine = coarse.refined((11, 14))
    inside = np.s_[1:-1, 1:-1]
    np.testing.assert_allclose(fine.residual[inside], (fine_row + 3 * fine_column)[inside], rtol=1e-6)
    np.testing.assert_array_equal(fine.slope, np.float32(0.25))
    coarse.residual[2, 3] = np.nan
    hole = np.isnan(coarse.refined((11, 14)).residual)
    assert hole.sum() == 4
    assert hole[4:6, 6:8].all()


def test_the_mean_slope_of_a_plane_is_its_slope_and_that_of_an_edge_is_small():
    row, column = np.indices((60, 80))
    plane = np.exp(0.01 * row - 0.02 * column).astype(np.float32)
    np.testing.assert_allclose(mean_slope(plane, 5)[3:-3, 3:-3], 0.01**2 + 0.02**2, rtol=1e-3)
    step = np.where(column < 40, 1.0, 2.0).astype(np.float32)
    assert mean_slope(step, 21).max() < 1.01 * (np.log(2) / 21) ** 2
    plane[20, 30] = np.nan
    assert np.isfinite(mean_slope(plane, 5)).all()


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (1, 30_000), (2, 15_000), (40, 30)])
def test_any_shape(shape):
    t = np.full(shape, 2.0, np.float32)
    t.flat[3] = np.nan
    where = np.array([0, 5, t.size - 1])
    estimate = estimate_residual(Grid(t, where, np.full(3, 0.1), np.full(3, 1000.0), OPTIONS))
    assert estimate is not None
    assert estimate.residual.shape == estimate.slope.shape == shape
    assert np.isfinite(estimate.residual[np.isfinite(t)]).all()


def test_a_breakdown_leaves_the_edges_of_the_prior(rng):
    t = textured(rng, (40, 50))
    targets = np.array([np.inf, 0.1])
    assert estimate_residual(Grid(t, np.array([5, 900]), targets, np.full(2, 1000.0), OPTIONS)) is None
