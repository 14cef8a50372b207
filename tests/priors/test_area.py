"""Area interpolation: exact shares, and the numbers of OpenCV's INTER_AREA."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.priors.area import area_weights, resize_area

ROUNDING = 2e-6  # sums of a few float32 numbers

# Printed by cv2.resize(..., interpolation=cv2.INTER_AREA) of OpenCV 5.0.0 for float32 arrays.
STRIPES = np.tile(np.array([255, 0], np.uint8), 5)[None]
STRIPES_ON_7 = [178.5, 153.0, 76.5, 127.5, 178.5, 102.0, 76.5]
MAP = np.array([[0, 50, 100, 150, 200], [250, 200, 150, 100, 50], [10, 20, 30, 40, 50]], np.float32)
MAP_ON_2X3 = [[90.0, 116.66667, 143.33333], [86.0, 70.0, 54.0]]


def plain(values: np.ndarray, count: int) -> np.ndarray:
    """The mean of a row of pixels over each of `count` equal intervals, by integration of the step function."""
    borders = np.linspace(0, values.size, count + 1)
    integral = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    at = np.interp(borders, np.arange(values.size + 1), integral)
    return np.diff(at) / np.diff(borders)


def test_numbers_of_opencv() -> None:
    np.testing.assert_allclose(resize_area(STRIPES, (1, 7))[0], STRIPES_ON_7, rtol=ROUNDING)
    np.testing.assert_allclose(resize_area(STRIPES.T, (7, 1))[:, 0], STRIPES_ON_7, rtol=ROUNDING)
    np.testing.assert_allclose(resize_area(MAP, (2, 3)), MAP_ON_2X3, rtol=ROUNDING)


def test_pillow_s_box_filter_is_not_area_interpolation() -> None:
    from PIL import Image

    box = np.asarray(Image.fromarray(STRIPES).resize((7, 1), Image.Resampling.BOX))[0]
    assert box[:3].tolist() == [255, 128, 0]
    assert np.abs(box - resize_area(STRIPES, (1, 7))[0]).max() > 76


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_each_pixel_is_the_mean_over_its_interval(size: int, count: int, seed: int) -> None:
    row = np.random.default_rng(seed).uniform(0, 255, size).astype(np.float32)
    np.testing.assert_allclose(resize_area(row[None], (1, count))[0], plain(row, count), rtol=ROUNDING)
    weights = area_weights(size, count)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=ROUNDING)
    np.testing.assert_allclose(weights.sum(axis=0), count / size, rtol=ROUNDING)  # no source pixel counts more


@pytest.mark.parametrize("shape", [(33, 47), (20, 47), (33, 21), (12, 31), (50, 60)])
def test_colours_and_axes_are_independent(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    image = rng.integers(0, 256, (33, 47, 3), dtype=np.uint8)
    kept = image.copy()
    found = resize_area(image, shape)
    assert (found.shape, found.dtype) == ((*shape, 3), np.float32)
    for channel in range(3):
        rows = np.stack([plain(column, shape[0]) for column in image[..., channel].T], axis=1)
        np.testing.assert_allclose(found[..., channel], [plain(row, shape[1]) for row in rows], rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(image, kept)
