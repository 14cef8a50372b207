"""Sharp depth edges: steps from ramps, slopes and noise left alone, sides that an earlier frame decides."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import uniform_filter

from leadline.geometry.depth_edges import EDGE_HEIGHT, sharpen_edges
from support.depth_edges import sharpen


def unknown(depth: np.ndarray) -> np.ndarray:
    return np.full_like(depth, np.nan)


def blurred_step(shape=(40, 60), height=1.0) -> tuple[np.ndarray, np.ndarray]:
    step = np.ones(shape, np.float32)
    step[:, shape[1] // 2 :] += height
    return step, uniform_filter(step, 5, mode="nearest")


@pytest.mark.parametrize("shape", [(1, 1), (1, 17), (9, 5), (31, 47)])
def test_the_kernels_equal_their_twin(rng, shape):
    depth = (1.0 + (rng.random(shape) < 0.2) + 0.1 * rng.random(shape)).astype(np.float32)
    depth = uniform_filter(depth, 3)
    depth[rng.random(shape) < 0.1] = np.nan
    earlier = (depth * rng.uniform(0.8, 1.2, shape)).astype(np.float32)
    weights = rng.random(shape).astype(np.float32)
    np.testing.assert_allclose(sharpen_edges(depth, earlier, weights), sharpen(depth, earlier, weights), rtol=1e-5)


def test_a_blurred_step_becomes_sharp():
    step, depth = blurred_step()
    sharp = sharpen_edges(depth, unknown(depth), np.ones_like(depth))
    assert np.abs(sharp - step).mean() < 0.4 * np.abs(depth - step).mean()
    assert np.all((sharp >= depth.min()) & (sharp <= depth.max()))


def test_slopes_and_small_differences_stay(rng):
    columns = np.arange(80.0)
    slope = np.tile(2.0 + 0.1 * columns, (30, 1)).astype(np.float32)  # 0.3 of the depth within 7 pixels at its left end
    np.testing.assert_array_equal(
        sharpen_edges(slope, unknown(slope), np.ones_like(slope))[:, 15:-15], slope[:, 15:-15]
    )
    noise = (2.0 * (1.0 + 0.1 * EDGE_HEIGHT * rng.random((30, 80)))).astype(np.float32)
    np.testing.assert_array_equal(sharpen_edges(noise, unknown(noise), np.ones_like(noise)), noise)


def test_an_earlier_frame_decides_between_two_sides_but_only_these():
    step, depth = blurred_step()
    moved = np.roll(step, 1, axis=1)
    moved[:, 0] = 1.0
    one = np.ones_like(depth)
    before, alone = sharpen_edges(depth, moved, one), sharpen_edges(depth, unknown(depth), one)
    middle = step.shape[1] // 2
    assert before[0, middle] < alone[0, middle] - 0.2
    np.testing.assert_array_equal(sharpen_edges(depth, 3.0 * step, one), alone)
    np.testing.assert_array_equal(sharpen_edges(depth, moved, 0.0 * one), depth)
