"""The share of the prior's contrast that measurements confirm."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.core.contrast import MIN_PAIRS, confirmed_share, distance_to_bridge
from leadline.core.options import ReconstructionOptions
from leadline.core.solve import reconstruction
from leadline.core.solve.reconstruction import reconstruct

SHAPE = (96, 128)
ROW, COLUMN = np.indices(SHAPE)
GRID = np.flatnonzero((ROW % 6 == 3) & (COLUMN % 6 == 3))
SLANTED = np.exp(0.6 * COLUMN / SHAPE[1] + 0.2 * ROW / SHAPE[0])


def share(t, depth, where=GRID):
    t = t.astype(np.float32)
    return confirmed_share(t, where, np.log(t.flat[where].astype(np.float64)), np.log(depth.flat[where]))


def waves(size):
    """A prior whose contrast at the distance of the measurements is not that of any surface."""
    return np.exp(size * np.sin(ROW / 4.0) * np.cos(COLUMN / 5.0))


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_a_prior_that_is_right_keeps_all_contrast(rng, noise):
    depth = SLANTED * waves(0.05) * np.exp(noise * rng.standard_normal(SHAPE))
    assert share(2.0 * SLANTED * waves(0.05), depth) == 1.0


def test_contrast_that_is_not_there_is_not_used():
    flat = np.full(SHAPE, 3.0) * np.exp(0.01 * COLUMN / SHAPE[1])
    assert share(flat * waves(0.1), flat) < 0.1


def test_edges_and_outliers_do_not_decide(rng):
    """Half of the contrast is right within both surfaces, whatever the step between them and single wrong values."""
    t = waves(0.1) * np.where(COLUMN < 50, 1.0, 1.1)
    depth = np.sqrt(waves(0.1)) * np.where(COLUMN < 50, 1.0, 2.0)
    assert share(t, depth) == pytest.approx(0.5, abs=0.051)
    depth.flat[rng.choice(GRID, GRID.size // 12, replace=False)] *= 3.0
    assert share(t, depth) == pytest.approx(0.5, abs=0.11)


def test_too_few_pairs_decide_nothing():
    few = GRID[:: GRID.size // 12]
    assert few.size < MIN_PAIRS / 2
    assert share(waves(0.1), np.full(SHAPE, 3.0), few) == 1.0


def test_many_measurements_are_sampled(monkeypatch):
    every = np.arange(ROW.size)
    t, depth = waves(0.1), np.sqrt(waves(0.1))
    whole = share(t, depth, every)
    monkeypatch.setattr("leadline.core.contrast.MAX_MEASUREMENTS", 1000)
    assert share(t, depth, every) == pytest.approx(whole, abs=0.051)


def test_distance_to_bridge(rng):
    t = np.ones(SHAPE, np.float32)
    lines = np.flatnonzero(ROW % 16 == 8)
    scattered = np.sort(rng.choice(t.size, 120, replace=False))
    assert 3.5 < distance_to_bridge(t, GRID) < 6.5
    assert 8.0 < distance_to_bridge(t, lines) < 17.0  # the distance of the lines, not that along them
    assert distance_to_bridge(t, scattered) == pytest.approx(np.sqrt(t.size / 120), rel=0.3)
    outside = GRID[(GRID % SHAPE[1] < 30) | (GRID % SHAPE[1] > 98)]
    assert distance_to_bridge(t, outside) > 3 * distance_to_bridge(t, GRID)  # a hole
    t[:, 30:99] = np.nan
    assert distance_to_bridge(t, outside) < 8.0  # which does not count where nothing is to be completed


def test_a_wall_stays_flat_behind_a_prior_that_is_not(monkeypatch):
    wall = np.full(SHAPE, 3.0) * np.exp(0.01 * COLUMN / SHAPE[1])
    arguments = (wall * waves(0.1)).astype(np.float32), GRID, wall.flat[GRID], ReconstructionOptions()
    found, statistics = reconstruct(*arguments)
    assert statistics.adapted is not None
    assert statistics.adapted.share < 0.1
    monkeypatch.setattr("leadline.core.adaptive.confirmed_share", lambda *_: 1.0)
    before = reconstruct(*arguments)[0]
    errors = [np.mean(np.abs(depth - wall) / wall) for depth in (found, before)]
    assert errors[0] < 0.3 * errors[1]
    np.testing.assert_array_equal(found.flat[GRID], wall.flat[GRID])


def test_the_calibrated_map_is_not_changed():
    t = waves(0.1).astype(np.float32)
    copy = t.copy()
    problem = reconstruction.residual_problem(t, GRID, np.full(GRID.size, 3.0), ReconstructionOptions())
    assert problem.base is not t
    np.testing.assert_array_equal(t, copy)


def test_what_no_measurement_reaches_keeps_the_calibrated_map():
    t = waves(0.1).astype(np.float32)
    t[:, 116] = np.nan
    where = GRID[GRID % SHAPE[1] < 116]
    found, statistics = reconstruct(t, where, np.full(where.size, 3.0), ReconstructionOptions())
    assert statistics.adapted.share < 0.1
    np.testing.assert_allclose(found[:, 117:], t[:, 117:], rtol=1e-6)
