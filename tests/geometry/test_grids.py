"""Resizing and scattering of depth maps, zones of a zone sensor, masks by confidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.geometry.grids import (
    cell_means,
    grid_cells,
    mask_low_confidence,
    place_zones,
    resize_bilinear,
    scatter_nearest,
)

ROUNDING = 1e-12  # a few operations in float64 on values near 1
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def random_sparse(shape: tuple[int, int], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.where(generator.random(shape) < 0.6, generator.uniform(1, 5, shape), np.nan)


@given(sizes, sizes, st.integers(0, 100))
def test_scatter_is_the_plain_loop(given_shape: tuple[int, int], shape: tuple[int, int], seed: int) -> None:
    sparse = random_sparse(given_shape, seed)
    expected, lost = np.full(shape, np.nan), 0
    for row, column in np.argwhere(np.isfinite(sparse)):
        # The half-pixel rule in exact halves; a tie goes to the right or below.
        target = tuple(
            int(np.floor((2 * index + 1) * wanted / (2 * size)))
            for index, wanted, size in zip((row, column), shape, given_shape, strict=True)
        )
        lost += bool(np.isfinite(expected[target]))
        expected[target] = np.fmin(expected[target], sparse[row, column])
    moved, counted = scatter_nearest(sparse, shape)
    np.testing.assert_array_equal(moved, expected)
    assert counted == lost


@given(sizes, st.integers(0, 100))
def test_scatter_onto_the_same_grid_changes_nothing(shape: tuple[int, int], seed: int) -> None:
    sparse = random_sparse(shape, seed)
    moved, lost = scatter_nearest(sparse, shape)
    np.testing.assert_array_equal(moved, sparse)
    assert lost == 0


def test_scatter_leaves_out_what_was_not_measured() -> None:
    moved, lost = scatter_nearest(np.array([[0.0, -1.0, np.inf, np.nan]], dtype=np.float32), (1, 4))
    assert np.isnan(moved).all()
    assert moved.dtype == np.float32
    assert lost == 0


@given(sizes, st.integers(0, 100))
def test_resize_onto_the_same_grid_changes_nothing(shape: tuple[int, int], seed: int) -> None:
    values = random_sparse(shape, seed)
    np.testing.assert_array_equal(resize_bilinear(values, shape), values)


@given(sizes, sizes)
def test_resize_keeps_a_plane_between_the_outermost_centres(
    given_shape: tuple[int, int], shape: tuple[int, int]
) -> None:
    def plane(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return 1 + 0.3 * rows[:, None] - 0.2 * columns[None, :]

    positions = [
        np.clip((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0, size - 1)
        for wanted, size in zip(shape, given_shape, strict=True)
    ]
    values = plane(*(np.arange(size) for size in given_shape))
    np.testing.assert_allclose(resize_bilinear(values, shape), plane(*positions), rtol=0, atol=ROUNDING)


def test_resize_lets_unusable_values_take_no_part() -> None:
    values = np.array([[1.0, 0.0, 3.0]], dtype=np.float32)
    resized = resize_bilinear(values, (1, 6), values > 0)
    np.testing.assert_array_equal(resized, np.array([[1, np.nan, np.nan, np.nan, np.nan, 3]], dtype=np.float32))
    assert resized.dtype == np.float32


def test_low_confidence_is_not_measured():
    depth = np.array([[1.0, 2.0], [3.0, np.nan]], np.float32)
    kept = mask_low_confidence(depth, np.array([[2, 0], [1, 2]], np.uint8), 1)
    np.testing.assert_array_equal(kept, np.array([[1, np.nan], [3, np.nan]], np.float32))
    with pytest.raises(InputError, match="`confidence`"):
        mask_low_confidence(depth, np.zeros((1, 2)), 1)


def test_zones_lie_at_their_centres():
    boxes = [[0, 0, 4, 4], [0, 4, 4, 9], [4, 0, 4, 4], [-9, 0, 1, 4], [4, 4, 8, 8], [4, 0, 8, 4]]
    placed = place_zones([1, 2, 3, 4, 5, np.nan], boxes, (8, 9), valid=[1, 1, 1, 1, 0, 1])
    found = {(int(i), int(j)): float(placed[i, j]) for i, j in np.argwhere(np.isfinite(placed))}
    assert found == {(2, 2): 1.0, (2, 6): 2.0}
    # A whole grid of zones is the low-resolution map moved by the half-pixel rule.
    for k in (2, 3):
        rows, columns = np.indices((3, 4)).reshape(2, -1) * k
        zones = np.stack((rows, columns, rows + k, columns + k), axis=1)
        placed = place_zones(np.arange(1, 13), zones, (3 * k, 4 * k))
        np.testing.assert_array_equal(placed[k // 2 :: k, k // 2 :: k], np.arange(1, 13).reshape(3, 4))
    for bad in ({"boxes": [[0, 0, 1]]}, {"boxes": [[0, 0, 1, 1]], "valid": [1, 1]}):
        with pytest.raises(InputError, match=r"`boxes`|`valid`"):
            place_zones([1.0], shape=(2, 2), **bad)


@given(sizes, st.floats(1.0, 5.0), st.integers(0, 100))
def test_cell_means_are_the_plain_loop(shape: tuple[int, int], stride: float, seed: int) -> None:
    sparse = random_sparse(shape, seed)
    counts = [max(1, int(size / stride + 0.5)) for size in shape]
    groups: dict[tuple[int, ...], list[float]] = {}
    for pixel in np.argwhere(np.isfinite(sparse)):
        # The cell that contains the pixel's centre, in exact halves.
        cell = tuple((2 * int(u) + 1) * n // (2 * size) for u, n, size in zip(pixel, counts, shape, strict=True))
        groups.setdefault(cell, []).append(sparse[tuple(pixel)])
    means = cell_means(sparse, stride)
    assert means.shape == tuple(counts)
    assert np.count_nonzero(np.isfinite(means)) == len(groups)
    for cell, values in groups.items():
        assert means[cell] == pytest.approx(np.mean(values), rel=1e-6)  # float32


@given(st.integers(1, 400), st.floats(1.0, 20.0))
def test_each_cell_contains_its_central_pixel_and_no_pixel_is_in_two(size: int, stride: float) -> None:
    first, centre = grid_cells(size, stride)
    ends = np.append(first[1:], size)
    assert first[0] == 0
    assert (first <= centre).all()
    assert (centre < ends).all()
