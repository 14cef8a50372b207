"""The compiled kernels behind regions, each against a plain implementation."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.core.regions import borders, candidates
from leadline.core.regions.cells import background, cell_medians


def test_cell_medians(rng):
    cell, values = rng.integers(0, 40, 300), rng.normal(size=(2, 300))
    medians = np.full((2, 50), np.nan)
    cell_medians(cell, values, medians)
    for k in range(50):
        inside = cell == k
        expected = np.median(values[:, inside], axis=1) if inside.any() else [np.nan, np.nan]
        np.testing.assert_array_equal(medians[:, k], expected)


def test_the_background_reproduces_a_plane_among_regions(rng):
    grid = (40, 60)
    cells = np.sort(rng.choice(2400, 1500, replace=False))
    rows, columns = np.divmod(cells, 60)
    plane = 0.1 + 0.002 * rows - 0.001 * columns
    bump = (rows > 10) & (rows < 18) & (columns > 20) & (columns < 32)
    values = plane + 1e-3 * rng.normal(size=1500) + 0.2 * bump
    np.testing.assert_allclose(background(values, cells, grid), plane, atol=1e-3)


def test_growth_equals_repeated_dilation(rng):
    d, log_t = rng.random((30, 40)), rng.random((30, 40))
    labels = np.zeros(d.shape, np.int32)
    count = candidates.grow(d, log_t, 0.9, 0.4, labels)
    inside = d > 0.9
    while True:
        grown = inside.copy()
        for row, column in np.argwhere(inside):
            part = np.s_[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
            low, high = np.minimum(d[part], d[row, column]), np.maximum(d[part], d[row, column])
            joined = (low > 0.9) | (abs(log_t[part] - log_t[row, column]) < 0.9)
            measured = abs(d[part] + log_t[part] - d[row, column] - log_t[row, column])
            similar, one_plane = low >= (1 - candidates.MAX_JUMP) * high, (low > 0.9) & (measured < 0.4)
            grown[part] |= (d[part] > 0.4) & (similar & joined | one_plane)
        if np.array_equal(grown, inside):
            break
        inside = grown
    np.testing.assert_array_equal(labels > 0, inside)
    assert labels.max() == count


def test_a_membrane_is_the_weighted_mean_of_its_neighbours(rng):
    values, known = rng.random((9, 12)), np.zeros((9, 12), np.bool_)
    known[[0, -1]], known[:, [0, -1]] = True, True
    first, second = candidates.neighbours(values.shape)
    weights = rng.uniform(0.1, 1.0, first.size)
    result = borders._membrane(values, weights, known, ~known).ravel()
    np.testing.assert_array_equal(result[known.ravel()], values[known])
    for cell in np.flatnonzero(~known):
        ends = np.concatenate([second[first == cell], first[second == cell]])
        own = np.concatenate([weights[first == cell], weights[second == cell]])
        assert result[cell] == pytest.approx(np.average(result[ends], weights=own), abs=1e-6)
    apart = borders._membrane(values, weights, np.zeros_like(known), ~known)  # connected with no known value
    np.testing.assert_allclose(apart[1:-1, 1:-1], values[1:-1, 1:-1].mean(), rtol=1e-4)


def test_surfaces_widen_to_the_nearest_along_continuous_paths(rng):
    log_s, log_t = rng.normal(0, 0.003, (2, 25, 30))
    log_s[rng.random(log_s.shape) < 0.1] = np.nan
    labels = np.zeros(log_s.shape, np.int32)
    labels[5, 5], labels[20, 25] = 1, 2
    expected, rounds = [labels == 1, labels == 2], 0
    widened = labels.copy()
    borders._widen(widened, log_s, log_t)

    def spread(reached):
        """The pixels from which one of `reached` is a neighbour on the same surface."""
        grown = np.zeros_like(reached)
        for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1)):
            step, other = (np.roll(values, shift, axis) - values for values in (log_s, log_t))
            with np.errstate(invalid="ignore"):
                smooth = (np.abs(step) < borders.SMOOTH) | (np.abs(step - other) < borders.SMOOTH)
            edge = np.zeros_like(reached)
            edge[(slice(None),) * axis + (0 if shift > 0 else -1,)] = True
            grown |= np.roll(reached, shift, axis) & smooth & ~edge
        return grown

    while True:
        free = ~(expected[0] | expected[1])
        new = [spread(one) & free for one in expected]
        assert (widened[new[0] & ~new[1]] == 1).all()
        assert (widened[new[1] & ~new[0]] == 2).all()
        if not (new[0] | new[1]).any():
            break
        expected = [one | (free & (widened == k) & (new[0] | new[1])) for k, one in enumerate(expected, 1)]
        rounds += 1
    assert rounds > 5
    np.testing.assert_array_equal(widened == 0, ~(expected[0] | expected[1]))
