"""The Poisson baseline against explicit loops and in exact cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

import leadline.methods.poisson
from leadline.core.prior import Prior
from leadline.methods import method
from support.baseline_problems import problem

SOLVE_RTOL = 2e-4  # log depth after conjugate gradients to a relative residual of 1e-5, on systems of some 200 cells


def poisson_by_loops(
    relative: np.ndarray, sparse: np.ndarray, sampling: str = "point", upsampling: str = "depth"
) -> np.ndarray:
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
                middle = [
                    aligned[min(v, height - 1), min(u, width - 1)]
                    for v in (4 * i + 1, 4 * i + 2)
                    for u in (4 * j + 1, 4 * j + 2)
                ]
                chosen = middle if sampling == "point" and np.isfinite(middle).any() else aligned[block]
                prior[i, j] = math.log(np.nanmean(chosen))
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
        forward, back = (math.exp, float) if upsampling == "depth" else (float, math.exp)
        result[v, u] = back(sum(w * forward(x[number[cell]]) for cell, w in shares.items()) / sum(shares.values()))
    return result


@pytest.mark.parametrize("shape", [(37, 50), (64, 48), (1, 60), (41, 3)])
@pytest.mark.parametrize("pattern", ["grid", "random", "corner"])
def test_poisson_is_the_minimiser_at_a_quarter_of_the_resolution(shape, pattern):
    relative, sparse = problem(f"poisson {shape} {pattern}", shape, pattern)
    result = method("poisson")(Prior(relative), sparse)
    np.testing.assert_allclose(result.depth, poisson_by_loops(relative, sparse), rtol=SOLVE_RTOL)
    assert result.status == "ok"
    assert result.parameters["residual"] <= 1e-5


@pytest.mark.parametrize("pyramid", ["to_full", "to_quarter"])
@pytest.mark.parametrize("sampling", ["point", "mean"])
@pytest.mark.parametrize("upsampling", ["depth", "log"])
def test_poisson_in_every_reading(pyramid, sampling, upsampling):
    relative, sparse = problem("readings", (37, 50), "random")
    readings = {"sampling": sampling, "upsampling": upsampling}
    result = method("poisson")(Prior(relative), sparse, pyramid=pyramid, **readings)
    np.testing.assert_allclose(result.depth, poisson_by_loops(relative, sparse, **readings), rtol=SOLVE_RTOL)


@pytest.mark.parametrize(("pyramid", "cells"), [("to_full", "8 and 4"), ("to_quarter", "32 and 16 and 8 and 4")])
def test_poisson_solves_the_levels_of_its_pyramid(monkeypatch, pyramid, cells):
    monkeypatch.setattr(leadline.methods.poisson, "ITERATION_LIMITS", (1, 2, 3, 4))
    relative, sparse = problem("levels", (96, 128), "7")
    result = method("poisson")(Prior(relative), sparse, pyramid=pyramid)
    assert result.status == f"ok, but stopped at the limit of steps at cells of {cells} pixels"
    assert result.parameters["iterations"] == {"to_full": 2, "to_quarter": 4}[pyramid]
    assert result.converged is False


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
    # An exponential ramp, whose log is linear, so that cells bend it little: the mean over a cell is the same factor
    # everywhere. Cells of four pixels without a ragged border.
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
