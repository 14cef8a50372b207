"""A fit that leaves out what the neighbours contradict."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.core import neighbours, pipeline
from leadline.core.neighbours import MIN_NEIGHBOURS, Neighbours
from leadline.core.options import CompletionOptions, FitOptions
from leadline.core.pipeline import MIN_SCREENED, align, complete

SHAPE = (120, 160)
ALL_PAIRS = CompletionOptions.paper()
SCREENED = CompletionOptions.paper(fit=FitOptions.paper(screen_outliers=True))


def room(rng, wrong=0.0):
    """A slope behind a box, a prior that bends it, measurements on a grid, and which of them are wrong."""
    row, column = np.indices(SHAPE)
    depth = 2.0 + 0.02 * row + 0.01 * column
    depth[40:90, 60:100] = 1.4
    prior = depth**0.7 * np.exp(0.02 * np.sin(row / 17.0))
    sparse = np.zeros(SHAPE)
    sparse[4::6, 4::6] = depth[4::6, 4::6]
    where = np.flatnonzero(sparse)
    chosen = rng.choice(where, int(wrong * where.size), replace=False)
    sparse.flat[chosen] *= rng.choice([0.3, 3.0], chosen.size)
    return prior, sparse, depth, np.isin(where, chosen)


def error(calibrated, depth):
    return float(np.mean(np.abs(calibrated - depth) / depth))


def test_without_wrong_measurements_little_is_left_out(rng):
    prior, sparse, depth, _ = room(rng)
    all_pairs, screened = align(prior, sparse, options=ALL_PAIRS), align(prior, sparse, options=SCREENED)
    assert screened.fit.count == all_pairs.fit.count
    assert np.mean(screened.fit.weights) > 0.75
    assert error(screened.calibrated, depth) == pytest.approx(error(all_pairs.calibrated, depth), rel=0.1)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_wrong_measurements_have_no_part_in_the_fit(rng, share):
    prior, sparse, depth, wrong = room(rng, share)
    screened = align(prior, sparse, options=SCREENED)
    weights = screened.fit.weights
    assert weights.shape == wrong.shape
    assert weights[wrong].mean() < 0.2  # a few have wrong neighbours that agree with them
    assert weights[~wrong].mean() > 0.8
    clean = np.where(np.isin(np.arange(sparse.size).reshape(SHAPE), np.flatnonzero(sparse)[wrong]), 0.0, sparse)
    assert error(screened.calibrated, depth) < 1.4 * error(align(prior, clean, options=ALL_PAIRS).calibrated, depth)
    assert error(align(prior, sparse, options=ALL_PAIRS).calibrated, depth) > 1.5 * error(screened.calibrated, depth)


def test_what_is_left_out_of_the_fit_is_in_the_depth(rng):
    prior, sparse, _, wrong = room(rng, 0.1)
    result = complete(prior, sparse, options=CompletionOptions.best())
    assert (result.fit.weights[wrong] == 0).mean() > 0.8
    measured = sparse > 0
    np.testing.assert_array_equal(result.depth[measured], sparse[measured])


def test_few_measurements_are_all_taken(rng):
    prior, sparse, _, _ = room(rng)
    rest = np.flatnonzero(sparse)[MIN_SCREENED:]
    sparse.flat[rest] = 0.0
    sparse.flat[np.flatnonzero(sparse)[7]] *= 3.0
    one, other = (align(prior, sparse, options=options).fit for options in (ALL_PAIRS, SCREENED))
    assert one.response == other.response
    assert other.weights.all()


def test_grids_are_distinguished_from_scattered_points_and_lines(rng):
    shape = (120, 160)
    row, column = np.indices(shape)
    grid = (row % 8 == 4) & (column % 8 == 4)
    uneven = np.zeros(shape, np.bool_)
    uneven[np.ix_(np.arange(1, 119, 2.5).astype(int), np.arange(1, 159, 2.5).astype(int))] = True
    lines = (row % 12 == 6) & (column % 3 == 1)
    scattered = rng.random(shape) < 0.02
    found = [Neighbours(np.flatnonzero(pattern), shape).on_grid for pattern in (grid, uneven, lines, scattered)]
    assert found == [True, True, False, False]


def test_neighbours_against_explicit_loops(rng):
    shape = (40, 50)
    where = np.sort(rng.choice(shape[0] * shape[1], 150, replace=False))
    values = rng.standard_normal(where.size)
    rows, columns = np.divmod(where, shape[1])
    neighbours = Neighbours(where, shape)
    errors, around = neighbours.compare(values)
    reaches = []
    for k in range(where.size):
        away = np.maximum(abs(rows - rows[k]), abs(columns - columns[k]))
        reach = np.sort(away)[MIN_NEIGHBOURS]  # the first is itself
        reaches.append(reach)
        others = values[(away <= reach) & (np.arange(where.size) != k)]
        median = np.median(others)
        assert errors[k] == pytest.approx(abs(values[k] - median))
        assert around[k] == pytest.approx(np.sort(abs(others - median))[-3])
    assert neighbours.spacing == int(np.median(reaches))
    np.testing.assert_allclose(neighbours.isolation, np.maximum(1.0, np.array(reaches) / (2 * neighbours.spacing)))
    half = np.arange(where.size) % 2 == 0
    errors, _ = neighbours.compare(values, half)
    for k in range(where.size):
        away = np.maximum(abs(rows - rows[k]), abs(columns - columns[k]))
        others = values[(away <= reaches[k]) & (np.arange(where.size) != k) & half]
        assert errors[k] == pytest.approx(abs(values[k] - np.median(others)) if others.size else 0.0)


def test_where_most_pixels_are_measured_the_neighbours_are_the_eight_around(rng):
    shape = (30, 40)
    where = np.flatnonzero(rng.random(shape) < 0.7)
    found = Neighbours(where, shape)
    assert found.nearest.shape[1] == 8
    rows, columns = np.divmod(where, shape[1])
    for k in range(where.size):
        around = np.flatnonzero(np.maximum(abs(rows - rows[k]), abs(columns - columns[k])) == 1)
        nearest = found.nearest[k, : found.counts[k]]
        assert set(around) <= set(nearest)  # with fewer than four of them there are others, farther away
        assert around.size < MIN_NEIGHBOURS or around.size == nearest.size


def test_cells_find_the_same_neighbours_as_rings_of_pixels(rng, monkeypatch):
    """At random places, in a dense block beside single ones, and on a line."""
    scattered = rng.random((60, 90)) < 0.03
    clustered = scattered.copy()
    clustered[10:25, 30:60] = True
    for pattern in (scattered, clustered, rng.random((1, 200)) < 0.1):
        where = np.flatnonzero(pattern)
        found = []
        for dense in (0, np.inf):
            monkeypatch.setattr(neighbours, "DENSE", dense)
            squares = Neighbours(where, pattern.shape)
            found.append((squares.nearest, squares.isolation, neighbours.nearest_others(where, pattern.shape, 7)))
            found[-1][0][np.arange(found[-1][0].shape[1]) >= squares.counts[:, None]] = -1  # not set
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_of_very_many_measurements_a_sample_is_fitted(rng, monkeypatch):
    prior, sparse, depth, wrong = room(rng, 0.1)
    everything = align(prior, sparse, options=SCREENED)
    monkeypatch.setattr(pipeline, "MAX_SCREENED", 300)
    sample = align(prior, sparse, options=SCREENED)
    used = np.isfinite(sample.fit.weights)
    assert used.sum() == 300 < used.size == sample.fit.count
    assert sample.fit.weights[used & wrong].mean() < 0.2
    assert sample.fit.weights[used & ~wrong].mean() > 0.8
    assert sample.fit.to_dict()["outliers"] == (sample.fit.weights[used] == 0).sum()
    assert error(sample.calibrated, depth) < 1.2 * error(everything.calibrated, depth)
    np.testing.assert_array_equal(complete(prior, sparse).depth[sparse > 0], sparse[sparse > 0])
