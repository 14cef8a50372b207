"""The paper's grid, to the pixel."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.bench.observations import CASES, central_rectangle, observe

MEAN_RTOL = 1e-6  # a float64 mean stored as float32


def observe_by_loops(reference, stride):
    """The definition in exact arithmetic: cell and anchor of each pixel one by one."""
    height, width = reference.shape
    sparse = np.full(reference.shape, np.nan)

    def axis(size):
        count = max(1, int(Fraction(size) / Fraction(stride) + Fraction(1, 2)))
        pitch = Fraction(size, count)
        members = [[u for u in range(size) if k * pitch <= u + Fraction(1, 2) < (k + 1) * pitch] for k in range(count)]
        return [(pixels, int((k + Fraction(1, 2)) * pitch)) for k, pixels in enumerate(members)]

    for rows, anchor_row in axis(height):
        for columns, anchor_column in axis(width):
            found = [
                reference[y, x] for y in rows for x in columns if np.isfinite(reference[y, x]) and reference[y, x] > 0
            ]
            if found:
                sparse[anchor_row, anchor_column] = np.mean(found)
    return sparse


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    stride=st.sampled_from([1.0, 2.0, 3.25, 7.5, 50.0]),
    data=st.data(),
)
def test_grid_equals_its_definition(height, width, stride, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    reference = rng.uniform(0.5, 9.0, (height, width))
    reference[rng.random((height, width)) < 0.4] = rng.choice([np.nan, np.inf, 0.0, -1.0])
    sparse = observe(reference, "distributed", stride=stride).sparse
    np.testing.assert_allclose(sparse, observe_by_loops(reference, stride), rtol=MEAN_RTOL)


@given(height=st.integers(1, 60), width=st.integers(1, 60))
def test_cases_fit_together(height, width):
    reference = np.random.default_rng([height, width]).uniform(1, 5, (height, width)).astype(np.float32)
    every, central, outer = (observe(reference, case) for case in CASES)
    inside = np.zeros(reference.shape, bool)
    inside[central_rectangle(height, width)] = True
    assert inside.sum() == (height // 2) * (width // 2)
    np.testing.assert_array_equal(central.sparse, np.where(inside, np.nan, every.sparse))
    np.testing.assert_array_equal(outer.sparse, np.where(inside, every.sparse, np.nan))
    np.testing.assert_array_equal(central.scored, inside)
    np.testing.assert_array_equal(outer.scored, ~inside)
    np.testing.assert_array_equal(every.scored, np.isnan(every.sparse))
    for observed in (every, central, outer):
        assert not (observed.scored & np.isfinite(observed.sparse)).any()


def test_sizes_of_the_grid():
    observed = observe(np.ones((480, 640)), "distributed")
    rows, columns = (np.flatnonzero(np.isfinite(observed.sparse).any(axis=axis)) for axis in (1, 0))
    assert (len(rows), len(columns)) == (64, 85)
    assert rows[:4].tolist() == [3, 11, 18, 26]
    assert (columns[0], columns[-1]) == (3, 636)
    assert observed.sparse.dtype == np.float32


def test_cells_of_seven_and_eight_pixels():
    """One axis of 15 pixels has the cells 0..6 and 7..14."""
    ramp = np.arange(1.0, 16.0)[None]
    sparse = observe(ramp, "distributed").sparse[0]
    assert sparse[3] == np.mean(np.arange(1, 8))
    assert sparse[11] == np.mean(np.arange(8, 16))
    assert np.isfinite(sparse).sum() == 2


def test_a_smaller_image_than_a_cell_has_one_anchor_in_its_middle():
    sparse = observe(np.full((3, 3), 2.0), "distributed").sparse
    assert np.argwhere(np.isfinite(sparse)).tolist() == [[1, 1]]


def test_invalid_anchor_pixel_is_measured_but_never_scored():
    reference = np.full((15, 15), 2.0)
    reference[3, 3] = np.nan
    observed = observe(reference, "distributed")
    assert observed.sparse[3, 3] == 2.0
    assert not observed.scored[3, 3]


def test_a_cell_without_reference_gives_no_anchor_and_no_score():
    reference = np.full((15, 15), 2.0)
    reference[:7, :7] = 0.0
    observed = observe(reference, "distributed")
    assert np.isnan(observed.sparse[3, 3])
    assert np.isfinite(observed.sparse).sum() == 3
    assert not observed.scored[:7, :7].any()


@pytest.mark.parametrize(
    ("size", "expected"), [(4, (1, 3)), (5, (1, 3)), (6, (1, 4)), (7, (2, 5)), (960, (240, 720)), (1, (0, 0))]
)
def test_rectangle_of_even_and_odd_sizes(size, expected):
    rows, columns = central_rectangle(size, size)
    assert (rows.start, rows.stop) == (columns.start, columns.stop) == expected


def test_reference_is_left_alone():
    reference = np.random.default_rng(0).uniform(1, 2, (20, 20))
    before = reference.copy()
    observe(reference, "central")
    np.testing.assert_array_equal(reference, before)


@pytest.mark.parametrize(
    ("changes", "named"), [({"case": "middle"}, "case"), ({"stride": 0.5}, "stride"), ({"stride": np.nan}, "stride")]
)
def test_wrong_arguments_are_named(changes, named):
    with pytest.raises(InputError, match=f"`{named}`"):
        observe(np.ones((9, 9)), **{"case": "outer", **changes})
