"""Scores against hand-computed cases and an implementation in explicit loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.bench.metrics import depth_scores, normal_scores, normals, relative_error
from leadline.geometry.cameras import Camera

EXACT = 1e-12  # a handful of float64 operations on numbers near 1
SMALL_ANGLE_RTOL = 1e-3  # float64 cancellation in differences of depths that differ by 1e-9
CAMERA = Camera(3, 3, 2.0, 4.0, 1.0, 1.0)
ALL = np.ones((3, 3), bool)


def normals_by_loops(depth, camera):
    height, width = depth.shape
    result = np.full((height, width, 3), np.nan)

    def point(row, column):
        z = depth[row, column]
        return np.array([(column - camera.cx) / camera.fx * z, (row - camera.cy) / camera.fy * z, z])

    for row in range(1, height - 1):
        for column in range(1, width - 1):
            around = [(row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column)]
            if not all(np.isfinite(depth[place]) and depth[place] > 0 for place in around):
                continue
            right, left, below, above = (point(*place) for place in around)
            cross = np.cross(right - left, below - above)
            length = np.linalg.norm(cross)
            if length == 0:
                continue
            ray = np.array([(column - camera.cx) / camera.fx, (row - camera.cy) / camera.fy, 1.0])
            result[row, column] = cross / length * (-1 if cross @ ray > 0 else 1)
    return result


def test_depth_scores_by_hand():
    reference = np.array([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0], [np.nan, 0.0, 2.0]])
    prediction = np.array([[1.0, 3.0, 3.0], [2.5, np.nan, -1.0], [1.0, 1.0, 2.2]])
    mask = ALL.copy()
    mask[2, 2] = False
    # Scored: (1, 1), (3, 2), (3, 4), (2.5, 1); ratios 1, 1.5, 1.333, 2.5.
    scores = depth_scores(prediction, reference, mask)
    assert scores.absrel == pytest.approx((0 + 1 / 2 + 1 / 4 + 1.5) / 4, abs=EXACT)
    assert scores.mae == pytest.approx((0 + 1 + 1 + 1.5) / 4, abs=EXACT)
    assert scores.rmse == pytest.approx(math.sqrt((0 + 1 + 1 + 2.25) / 4), abs=EXACT)
    assert (scores.delta1, scores.delta2, scores.delta3) == (0.25, 0.75, 0.75)
    assert (scores.support, scores.missing) == (4, 2)
    assert not scores.failed


def test_delta_is_strict_at_its_bound():
    assert depth_scores(np.array([[1.25]]), np.array([[1.0]]), np.array([[True]])).delta1 == 0.0


def test_empty_mask_is_nan_and_counted():
    scores = depth_scores(np.ones((3, 3)), np.ones((3, 3)), ~ALL)
    assert scores.failed
    assert (scores.support, scores.missing) == (0, 0)
    assert all(math.isnan(value) for value in (scores.absrel, scores.mae, scores.rmse, scores.delta1, scores.delta3))
    angles = normal_scores(np.ones((3, 3)), np.ones((3, 3)), CAMERA, ~ALL)
    assert angles.failed
    assert math.isnan(angles.mean_deg)
    assert math.isnan(angles.median_deg)


def test_a_prediction_that_is_all_missing_fails_with_its_count():
    scores = depth_scores(np.full((3, 3), np.inf), np.ones((3, 3)), ALL)
    assert scores.failed
    assert scores.missing == 9


def test_float32_sums_do_not_drift():
    reference = np.full((1000, 1000), 3.0, np.float32)
    scores = depth_scores(reference + np.float32(0.125), reference, np.ones(reference.shape, bool))
    assert scores.mae == 0.125


def test_relative_error_by_hand():
    found = relative_error(np.array([[1.0, 3.0, np.nan, -1.0]]), np.array([[2.0, 2.0, 1.0, 1.0]]))
    np.testing.assert_array_equal(found, [[0.5, 0.5, np.nan, np.nan]])
    with pytest.raises(InputError, match="shape"):
        relative_error(np.ones((2, 2)), np.ones((2, 3)))


def test_normal_of_a_wall_faces_the_camera():
    found = normals(np.full((3, 3), 2.0), CAMERA)
    np.testing.assert_array_equal(found[1, 1], [0, 0, -1])
    assert np.isnan(found).sum() == 8 * 3


def test_normal_of_a_slope_by_hand():
    """z = 1 and 3 left and right, 2 above and below: points (-.5, 0, 1), (1.5, 0, 3), (0, -.5, 2), (0, .5, 2)."""
    depth = np.array([[9.0, 2.0, 9.0], [1.0, 7.0, 3.0], [9.0, 2.0, 9.0]])
    # (2, 0, 2) x (0, 1, 0) = (-2, 0, 2), turned towards the camera: (2, 0, -2).
    np.testing.assert_allclose(normals(depth, CAMERA)[1, 1], np.array([1, 0, -1]) / math.sqrt(2), atol=EXACT)


def test_angle_between_wall_and_slope_by_hand():
    slope = np.array([[9.0, 2.0, 9.0], [1.0, 7.0, 3.0], [9.0, 2.0, 9.0]])
    scores = normal_scores(slope, np.full((3, 3), 2.0), CAMERA, ALL)
    assert scores.support == 1
    assert scores.mean_deg == pytest.approx(45.0, abs=1e-10)
    assert scores.median_deg == scores.mean_deg


def test_obtuse_angle_by_hand():
    """z = 1 and 9 left and right give (8, 0, -5); mirrored, (-8, 0, -5): twice atan(8/5) apart."""
    slope = np.array([[9.0, 2.0, 9.0], [1.0, 7.0, 9.0], [9.0, 2.0, 9.0]])
    scores = normal_scores(slope, slope[:, ::-1], CAMERA, ALL)
    assert scores.mean_deg == pytest.approx(2 * math.degrees(math.atan(8 / 5)), abs=1e-10)


def test_mean_and_median_differ_as_they_should():
    camera = Camera(5, 3, 2.0, 4.0, 2.0, 1.0)
    wall = np.full((3, 5), 2.0)
    bent = wall.copy()
    bent[1, 4] = 4.0  # tilts the last of the three inner pixels alone
    scores = normal_scores(bent, wall, camera, np.ones((3, 5), bool))
    tilt = math.degrees(math.atan2(2.0, 4.0))  # from (0, 0, 2) to (4, 0, 4)
    assert scores.support == 3
    assert scores.median_deg == 0.0
    assert scores.mean_deg == pytest.approx(tilt / 3, abs=1e-10)


def test_normal_needs_its_four_neighbours_and_not_itself():
    for row, column in [(0, 1), (1, 0), (1, 2), (2, 1)]:
        depth = np.full((3, 3), 2.0)
        depth[row, column] = np.nan
        assert np.isnan(normals(depth, CAMERA)).all()
    for row, column in [(1, 1), (0, 0), (2, 2)]:
        depth = np.full((3, 3), 2.0)
        depth[row, column] = 0.0
        assert np.isfinite(normals(depth, CAMERA)[1, 1]).all()


@given(height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_normals_equal_loops(height, width, seed):
    rng = np.random.default_rng(seed)
    depth = rng.uniform(0.2, 8.0, (height, width))
    depth[rng.random(depth.shape) < 0.1] = rng.choice([np.nan, np.inf, 0.0, -2.0])
    camera = Camera(width, height, *rng.uniform(1, 20, 2), *rng.uniform(-2, 12, 2))
    np.testing.assert_allclose(normals(depth, camera), normals_by_loops(depth, camera), atol=1e-9)


def test_validity_is_that_of_both():
    one, other = np.full((5, 5), 2.0), np.full((5, 5), 2.0)
    one[0, 1], other[4, 3] = np.nan, np.nan  # each costs the inner pixel next to it
    camera = Camera(5, 5, 2.0, 2.0, 2.0, 2.0)
    assert normal_scores(one, other, camera, np.ones((5, 5), bool)).support == 7


def test_tiny_angles_are_not_rounded_away():
    """A wall tilted by 1e-9 rad; the arc cosine of the dot product would give 0."""
    camera = Camera(3, 3, 1.0, 1.0, 1.0, 1.0)
    tilt = 1e-9
    tilted = np.ones((3, 3)) + tilt * (np.arange(3) - 1.0)
    expected = math.degrees(tilt)
    assert normal_scores(tilted, np.ones((3, 3)), camera, ALL).mean_deg == pytest.approx(expected, rel=SMALL_ANGLE_RTOL)


def test_wrong_inputs_are_named():
    ones = np.ones((3, 3))
    with pytest.raises(InputError, match="`prediction`"):
        depth_scores(np.ones((3, 4)), ones, ALL)
    with pytest.raises(InputError, match="`mask`"):
        depth_scores(ones, ones, ones)
    with pytest.raises(InputError, match="`camera`"):
        normals(np.ones((4, 3)), CAMERA)
