"""Edges and start of the adaptive system from coarser grids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leadline.core.adaptive import MAX_WEIGHT, edge_weights
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import nested, reconstruction
from leadline.core.solve.nested import Estimate, Grid, estimate_residual, mean_slope
from leadline.core.solve.reconstruction import reconstruct, residual_problem

SHAPE = (192, 256)  # more than COARSEST pixels, so that there are two grids
OPTIONS = ReconstructionOptions(system="fixed", weight_laplacian=8.0)


def textured(rng, shape=SHAPE):
    """A calibrated map that knows nothing of the scene but is not quite flat."""
    row, column = np.indices(shape)
    return (3.0 + 0.05 * np.sin(row / 17) * np.cos(column / 23) + 0.002 * rng.standard_normal(shape)).astype(np.float32)


def grid_of(t, where, targets, weights, options=OPTIONS):
    return Grid(t, where, targets, weights, options, *edge_weights(t))


def error(depth, found):
    return float(np.mean(np.abs(found - depth) / depth))


def without_estimate(monkeypatch, *arguments):
    with monkeypatch.context() as patch:
        patch.setattr(reconstruction, "estimate_residual", lambda grid, **_: None)
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
    arguments = t, where, depth.flat[where], ReconstructionOptions(tolerance=1e-6)  # a gap converges slowly
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
    grid = grid_of(textured(rng), where, targets, np.full(where.size, MAX_WEIGHT))

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


def test_a_coarse_solve_that_changes_nothing_is_the_last_one(rng, monkeypatch):
    """Where the first solve meets the tolerance of the second, the third would be the second once more."""
    row, column = np.indices(SHAPE)
    where = np.flatnonzero((row % 8 == 4) & (column % 8 == 4))
    targets = 0.1 * np.sin(row.flat[where] / 50) * np.cos(column.flat[where] / 60)
    grid = grid_of(textured(rng), where, targets, np.full(where.size, MAX_WEIGHT))
    solve, estimates = Grid.solve, []

    def recorded(self, before=None):
        estimates.append(solve(self, before))
        return estimates[-1]

    monkeypatch.setattr(Grid, "solve", recorded)
    found = estimate_residual(grid)
    assert [estimate.settled for estimate in estimates] == [False, True]
    monkeypatch.setattr(Grid, "solve", lambda self, before=None: replace(recorded(self, before), settled=False))
    again = estimate_residual(grid)
    assert len(estimates) == 5
    np.testing.assert_array_equal(again.residual, found.residual)
    np.testing.assert_array_equal(again.slope, found.slope)


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
    coarse = grid_of(t, where, targets, weights).halved()
    np.testing.assert_array_equal(coarse.calibrated, [[2.5, np.nan], [2.0, 2.0]])
    np.testing.assert_array_equal(coarse.where, [0, 2, 3])
    np.testing.assert_allclose(coarse.targets, [0.3, 0.2, 0.3])
    np.testing.assert_allclose(coarse.weights, [3.0, 800.0, 900.0])
    assert (coarse.options.weight_data, coarse.options.weight_laplacian) == (4e-3, 2.0)
    assert grid_of(t, np.array([8, 9]), targets[:2], weights[2:]).halved().weights == MAX_WEIGHT


def flat_grid(shape, contrast=0.1):
    t = np.full(shape, 2.0, np.float32)
    return Grid(t, np.array([0]), np.zeros(1), np.ones(1), OPTIONS, edge_weights(t)[0], contrast)


def test_twice_the_resolution():
    """Linear fields are reproduced inside, and invalid pixels do not spread."""
    fine_row, fine_column = np.indices((11, 14))
    row, column = np.indices((6, 7))
    image = flat_grid((11, 14))
    half = image.halved()
    # The centre of coarse pixel k is at 2 k + 1/2 in fine pixels.
    coarse = Estimate((2 * row + 0.5 + 3 * (2 * column + 0.5)).astype(np.float32), np.ones((6, 7), np.float32))
    fine = half.refine(coarse, image)
    inside = np.s_[1:-1, 1:-1]
    np.testing.assert_allclose(fine.residual[inside], (fine_row + 3 * fine_column)[inside], rtol=1e-6)
    np.testing.assert_allclose(fine.slope, 0.25, rtol=1e-6)
    where = np.array([0, 13, 15, 74, 153])
    at = half.interpolate_at(where, coarse.residual, image.calibrated)
    np.testing.assert_array_equal(at.astype(np.float32), fine.residual.flat[where])
    coarse.residual[2, 3] = half.calibrated[2, 3] = np.nan
    image.calibrated[4:6, 6:8] = np.nan
    hole = np.isnan(half.refine(coarse, image).residual)
    assert hole.sum() == 4
    assert hole[4:6, 6:8].all()


def test_a_field_is_interpolated_along_the_edges_of_the_map():
    """A field that has the edge of t, which runs through the middle of the half grid's pixels, keeps it."""
    column = np.indices((12, 16))[1]
    t = np.where(column < 7, 2.0, 4.0).astype(np.float32)
    image = grid_of(t, np.array([0]), np.zeros(1), np.ones(1))
    half = image.halved()
    field = np.where(np.arange(8) < 3, 0.0, 1.0) * np.ones((6, 1))
    field[:, 3] = 0.5  # its pixels are on both sides
    fine = half.interpolate(field.astype(np.float32), t)
    np.testing.assert_allclose(fine[:, [5, 8]], [[0.0, 1.0]] * 12, atol=0.03)
    plain = replace(half, contrast=0.0).interpolate(field.astype(np.float32), t)
    assert np.abs(plain - (column >= 7)).mean() > 1.2 * np.abs(fine - (column >= 7)).mean()


def test_edges_at_half_the_resolution():
    """Along a chain the resistances 1 / w add up: half of an edge, a whole one and half of one; chains are averaged.

    The average is at most ten times the weaker one.
    """
    rng = np.random.default_rng(3)
    image = flat_grid((5, 8))
    for part in image.edges:
        part[...] = rng.uniform(1e-3, 1.0, part.shape)
    across, down = image.edges
    found = image.halved().edges
    assert [part.shape for part in found] == [(3, 3), (2, 4)]

    def chain(a, b, c):
        return 2.0 / (0.5 / a + 1.0 / b + 0.5 / c)

    def beside(a, b):
        return min(0.5 * (a + b), 10.0 * min(a, b))

    np.testing.assert_allclose(found[0][1, 1], beside(chain(*across[2, 2:5]), chain(*across[3, 2:5])), rtol=1e-6)
    np.testing.assert_allclose(found[0][2, 0], chain(*across[4, :3]), rtol=1e-6)  # the last row has one chain
    np.testing.assert_allclose(found[1][0, 3], beside(chain(*down[:3, 6]), chain(*down[:3, 7])), rtol=1e-6)
    image.edges[1][:, 1] = 1e-3  # one of two columns is weak
    np.testing.assert_allclose(image.halved().edges[1][0, 0], 1e-2, rtol=1e-6)
    assert all((part == 1).all() for part in flat_grid((5, 8)).halved().edges)


def test_an_edge_on_the_border_of_pixels_of_the_half_grid_costs_no_iterations():
    """A box beside the measurements: six iterations if the columns along its edges were strong along themselves."""
    v, u = np.mgrid[0:1:240j, 0:1:320j]
    wall = np.minimum(5.0 + 0.5 * np.sin(4 * u) + 0.3 * v, 1.2 / np.maximum(v - 0.35, 0.01))
    depth = np.where((u > 0.6) & (u < 0.9) & (v > 0.5) & (v < 0.9), 1.6, wall)
    slow = 0.03 * np.cos(7 * u + 2 * v) * np.cos(3 * u - 6 * v) + 0.03 * np.log(depth) ** 2
    t = (depth * np.exp(slow)).astype(np.float32)
    row, column = np.indices(t.shape)
    where = np.flatnonzero((row % 8 == 4) & (column % 8 == 4) & (abs(row - 120) < 60) & (abs(column - 160) < 80))
    arguments = t, where, depth.astype(np.float32).flat[where], ReconstructionOptions()
    assert residual_problem(*arguments).half is not None
    assert reconstruct(*arguments)[1].iterations <= 3


LARGE = (300, 420)  # its half has more than COARSEST pixels


def sparse_scene(rng, spacing=10):
    """A map with an edge, and measurements that a smooth residual with the same edge explains."""
    row, column = np.indices(LARGE)
    side = column + 0.3 * row < 250
    t = np.where(side, 2.0, 3.0).astype(np.float32) * (1 + 0.02 * rng.standard_normal(LARGE).astype(np.float32))
    depth = t * np.exp(np.where(side, 0.1 * np.sin(row / 40), -0.1 + 0.1 * np.cos(column / 50)))
    where = np.flatnonzero((row % spacing == 4) & (column % spacing == 4))
    return t, where, depth.astype(np.float32)


def test_the_last_solve_at_half_the_resolution_agrees_with_that_of_the_image(rng, monkeypatch):
    t, where, depth = sparse_scene(rng)
    arguments = t, where, depth.flat[where], ReconstructionOptions()
    half, statistics = reconstruct(*arguments)
    assert residual_problem(*arguments).half is not None
    monkeypatch.setattr(nested, "HALF_FROM", 100)
    assert residual_problem(*arguments).half is None
    whole, _ = reconstruct(*arguments)
    assert statistics.converged
    np.testing.assert_array_equal(half.flat[where], depth.flat[where])
    assert error(depth, half) < 1.03 * error(depth, whole)
    assert np.median(np.abs(half / whole - 1)) < 1e-3


def test_dense_measurements_and_small_images_are_solved_at_full_resolution(rng):
    t, where, depth = sparse_scene(rng, spacing=5)
    assert residual_problem(t, where, depth.flat[where], ReconstructionOptions()).half is None
    t, where, depth = t[:130, :150].copy(), np.arange(0, 19_500, 313), depth[:130, :150]
    assert residual_problem(t, where, depth.ravel()[where], ReconstructionOptions()).half is None


def test_a_part_behind_a_gap_of_one_pixel_keeps_the_prior(rng):
    """The half grid has no gaps of one pixel, but a component without a measurement has a residual of zero."""
    t, where, depth = sparse_scene(rng)
    t[:, 101] = np.nan
    where = where[where % LARGE[1] > 102]
    arguments = t, where, depth.flat[where], ReconstructionOptions()
    assert residual_problem(*arguments).half is not None
    found, _ = reconstruct(*arguments)
    np.testing.assert_array_equal(found[:, :101], t[:, :101])
    assert np.isnan(found[:, 101]).all()
    assert np.isfinite(found[:, 102:]).all()


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
    estimate = estimate_residual(grid_of(t, where, np.full(3, 0.1), np.full(3, 1000.0)))
    assert estimate is not None
    assert estimate.residual.shape == estimate.slope.shape == shape
    assert np.isfinite(estimate.residual[np.isfinite(t)]).all()


def test_a_breakdown_leaves_the_edges_of_the_prior(rng):
    t = textured(rng, (40, 50))
    targets = np.array([np.inf, 0.1])
    assert estimate_residual(grid_of(t, np.array([5, 900]), targets, np.full(2, 1000.0))) is None
