"""Depth carried from one view to another: planes against their equation, occlusion, lenses, and bad input."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, CameraModel, ColmapCamera, RayCamera
from leadline.geometry.poses import rigid_transform, rotation_from_quaternion
from leadline.geometry.reprojection import carry_depth, sample_map

CAMERA = Camera(64, 48, 60.0, 62.0, 31.0, 24.5)
OTHER = Camera(80, 50, 75.0, 74.0, 39.0, 25.0)
FISHEYE = ColmapCamera("OPENCV_FISHEYE", 64, 48, (60.0, 60.0, 32.0, 24.0, 0.02, 0.0, 0.0, 0.0))
RADIAL = ColmapCamera("SIMPLE_RADIAL", 64, 48, (60.0, 32.0, 24.0, -0.05))
MOVED = rigid_transform(rotation_from_quaternion((0.9995, 0.02, -0.02, 0.01)), (0.1, -0.05, -0.2))


def plane(camera: CameraModel, normal: np.ndarray, offset: float) -> np.ndarray:
    """Depth of the plane n . x = offset."""
    return offset / (camera.points(np.ones((camera.height, camera.width))) @ normal)


@pytest.mark.parametrize(
    ("source", "target"), [(CAMERA, CAMERA), (CAMERA, OTHER), (OTHER, CAMERA), (RADIAL, CAMERA), (FISHEYE, FISHEYE)]
)
def test_a_plane_is_carried_to_where_its_equation_says(source, target):
    normal, offset = np.array([0.3, -0.2, 1.0]), 2.5
    moved = MOVED[:3, :3] @ normal
    expected = plane(target, moved, offset + moved @ MOVED[:3, 3])
    carried = carry_depth(plane(source, normal, offset), source, target, MOVED)
    found = np.isfinite(carried.depth)
    assert found.mean() > 0.6
    np.testing.assert_allclose(
        carried.depth[found], expected[found], rtol=3e-4
    )  # the iteration ends at 1e-3, with less than a third of that left
    assert (np.isfinite(carried.rows) == found).all()
    # The positions are those of the same points in the source.
    points = target.points(expected).reshape(-1, 3) - MOVED[:3, 3]
    pixels = source.project(points @ MOVED[:3, :3]).reshape(*expected.shape, 2)
    np.testing.assert_allclose(carried.columns[found], pixels[..., 0][found], atol=0.01)
    np.testing.assert_allclose(carried.rows[found], pixels[..., 1][found], atol=0.01)


def test_the_identity_changes_nothing(rng):
    depth = rng.uniform(1.0, 9.0, (48, 64)).astype(np.float32)
    depth[10:20, 30:40] = np.nan
    depth[0, 0], depth[1, 1] = 0.0, np.inf
    carried = carry_depth(depth, CAMERA, CAMERA, np.eye(4))
    measured = np.isfinite(depth) & (depth > 0)
    np.testing.assert_allclose(carried.depth[measured], depth[measured], rtol=1e-5)
    assert np.isnan(carried.depth[~measured]).all()
    np.testing.assert_allclose(carried.sample(depth)[measured], depth[measured], rtol=1e-5)


def test_a_hidden_surface_is_not_carried():
    """A near square in front of a wall: beside it the second camera sees wall that the first one did not."""
    depth = np.full((48, 64), 4.0)
    depth[16:32, 24:40] = 1.0
    sideways = np.eye(4)
    sideways[0, 3] = -0.2  # the second camera is 0.2 m to the right: 12 px at 1 m, 3 px at 4 m
    carried = carry_depth(depth, CAMERA, CAMERA, sideways).depth
    assert np.abs(carried[np.isfinite(carried)][:, None] - [1.0, 4.0]).min(axis=1).max() < 1e-5
    np.testing.assert_allclose(carried[16:32, 13:27], 1.0, rtol=1e-5)
    assert np.isnan(carried[18:30, 29:36]).all()  # hidden from the first view
    np.testing.assert_allclose(carried[18:30, 39:55], 4.0, rtol=1e-5)
    assert np.isnan(carried[:, 62:]).all()  # outside the first view


def test_no_gaps_where_the_camera_comes_closer():
    forward = np.eye(4)
    forward[2, 3] = -0.5
    carried = carry_depth(np.full((48, 64), 2.0), CAMERA, CAMERA, forward).depth
    np.testing.assert_allclose(carried, 1.5, rtol=1e-5)


def test_samples_do_not_mix_the_two_sides_of_an_edge():
    values = np.array([[1.0, 1.02, 3.0, np.nan]])
    at = np.array([[0.25, 1.4, 1.6, 2.3, 2.6, -0.1, 3.1]])
    expected = [[1.005, 1.02, 3.0, 3.0, np.nan, np.nan, np.nan]]
    np.testing.assert_allclose(sample_map(values, np.zeros_like(at), at), expected, rtol=1e-6)


def test_bad_input_gets_one_sentence():
    depth = np.ones((48, 64))
    for arguments, expected in (
        ((depth[1:], CAMERA, CAMERA, np.eye(4)), "size of its camera, 64 x 48, got 64 x 47"),
        ((depth, CAMERA, CAMERA, np.diag([1.0, 1.0, -1.0, 1.0])), "mirrors"),
        ((depth, RayCamera(np.zeros((48, 64, 2), np.float32)), CAMERA, np.eye(4)), "cannot project"),
    ):
        with pytest.raises(InputError, match=expected):
            carry_depth(*arguments)
