"""Noise of the measurements that the caller does not know, estimated from neighbours."""

from __future__ import annotations

import numpy as np
import pytest

import leadline
from leadline.core.neighbours import Neighbours
from leadline.core.noise import estimated_noise


@pytest.mark.parametrize("sigma", [0.0, 0.05, 0.1])
def test_noise_is_estimated_from_neighbours(rng, sigma):
    """A smooth residual with an edge, at scattered pixels: only what does not vanish at small distances is noise."""
    shape = (240, 320)
    where = np.sort(rng.choice(shape[0] * shape[1], 800, replace=False))
    row, column = np.divmod(where, shape[1])
    smooth = 0.1 * np.sin(row / 40) * np.cos(column / 50) + 0.3 * (column > 200)
    residuals = smooth + sigma * rng.standard_normal(where.size)
    found = estimated_noise(residuals, where, shape, Neighbours(where, shape))
    assert found == pytest.approx(sigma, rel=0.25, abs=1e-12)


def test_no_noise_is_estimated_on_a_grid_or_from_few(rng):
    shape = (120, 160)
    row, column = np.indices(shape)
    grid = np.flatnonzero((row % 6 == 3) & (column % 6 == 3))
    few = np.sort(rng.choice(row.size, 12, replace=False))
    for where in (grid, few):
        noise = 0.05 * rng.standard_normal(where.size)
        assert estimated_noise(noise, where, shape, Neighbours(where, shape)) == 0.0


def test_noise_that_is_not_stated_is_averaged(rng):
    """The completed surface is nearer to the scene than its measurements, which are still returned as they are."""
    shape = (120, 160)
    row, column = np.indices(shape)
    scene = 3.0 * np.exp(0.3 * row / 120 + 0.1 * np.sin(column / 30))
    sparse = np.full(shape, np.nan)
    where = np.sort(rng.choice(row.size, 500, replace=False))
    sparse.flat[where] = scene.flat[where] * np.exp(0.08 * rng.standard_normal(where.size))
    result = leadline.complete(scene, sparse)
    assert result.reconstruction.adapted.noise == pytest.approx(0.08, rel=0.3)
    unmeasured = np.isnan(sparse)
    assert np.mean(np.abs(result.depth / scene - 1)[unmeasured]) < 0.02
    np.testing.assert_array_equal(result.depth.flat[where], sparse.flat[where])
