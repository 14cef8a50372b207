"""Projection: against pycolmap's own, see-through removal against its slow twin, range limits, rotated images."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, ColmapCamera, RayCamera
from leadline.geometry.grids import rotate90
from leadline.geometry.poses import as_transform, invert_transform, rigid_transform, transform_points
from leadline.geometry.projection import (
    default_see_through_radius,
    min_pool,
    project,
    project_around_image,
    see_through,
    z_buffer,
)

pycolmap = pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")

WIDTH, HEIGHT = 80, 46
LENS = (60.0, 61.0, 39.0, 24.0, 0.06, -0.02, 0.002, -0.003)
CAMERA = ColmapCamera("OPENCV", WIDTH, HEIGHT, LENS)
PINHOLE = Camera(WIDTH, HEIGHT, 60.0, 61.0, 38.5, 23.5)
LENSES = {
    "SIMPLE_PINHOLE": (60.0, 39.0, 24.0),
    "PINHOLE": (60.0, 61.0, 39.0, 24.0),
    "SIMPLE_RADIAL": (60.0, 39.0, 24.0, 0.06),
    "RADIAL": (60.0, 39.0, 24.0, 0.06, -0.01),
    "OPENCV": LENS,
    "OPENCV_FISHEYE": (60.0, 61.0, 39.0, 24.0, 0.05, -0.02, 0.003, -0.001),
    "FULL_OPENCV": (*LENS, 0.01, 0.02, -0.01, 0.003),
    "RADIAL_FISHEYE": (60.0, 39.0, 24.0, 0.05, -0.02),
    "THIN_PRISM_FISHEYE": (60.0, 61.0, 39.0, 24.0, 0.05, -0.02, 0.001, -0.002, 0.001, 0.0, 0.002, -0.001),
}
DEPTH_RTOL = 1e-6  # one rounding to float32


POSE = rigid_transform(Rotation.from_rotvec(0.2 * np.array([1, 2, 3]) / np.sqrt(14)), (0.1, -0.2, 0.3))


def z_buffer_by_loops(points, transform, camera, size):
    model = pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))
    depth = np.full((size[1], size[0]), np.nan, np.float32)
    for point in points:
        seen = transform[:3, :3] @ point + transform[:3, 3]
        place = model.img_from_cam(seen) if seen[2] > 0 else None
        if place is not None:
            column, row = (int(np.floor(v)) for v in place * size / (camera.width, camera.height))
            if 0 <= column < size[0] and 0 <= row < size[1] and not depth[row, column] <= seen[2]:
                depth[row, column] = seen[2]
    return depth


@pytest.mark.parametrize("model", LENSES)
@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (40, 23)])
def test_z_buffer_is_that_of_pycolmaps_projection(model, size):
    camera = ColmapCamera(model, WIDTH, HEIGHT, LENSES[model])
    rng = np.random.default_rng(5)
    # Some beside the image, none so far that the polynomials fold back; some behind the camera.
    seen = rng.uniform((-1, -0.7, 1), (1, 0.7, 1), (3000, 3)) * rng.uniform(-1, 5, (3000, 1))
    points = transform_points(seen, invert_transform(POSE))
    expected = z_buffer_by_loops(points, POSE, camera, size)
    found = z_buffer(points, POSE, camera.scaled(*size))
    assert 0.2 < np.isfinite(expected).mean() < 0.95
    np.testing.assert_allclose(found, expected, rtol=DEPTH_RTOL)


def test_z_buffer_does_not_depend_on_threads_or_order():
    points = np.random.default_rng(6).uniform((-3, -2, 0.5), (3, 2, 5), (20_001, 3)).astype(np.float32)
    found = z_buffer(points, np.eye(4), CAMERA)
    np.testing.assert_array_equal(z_buffer(points[::-1].copy(), np.eye(4), CAMERA), found)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        np.testing.assert_array_equal(z_buffer(points, np.eye(4), CAMERA), found)
    finally:
        numba.set_num_threads(threads)


def test_points_the_lens_folds_back_are_left_out():
    """u (1 - 0.2 u^2) is 0 at u = sqrt 5: a point 66 degrees off the axis would land in the middle."""
    camera = ColmapCamera("SIMPLE_RADIAL", WIDTH, HEIGHT, (60.0, 39.0, 24.0, -0.2))
    depth = z_buffer(np.array([[np.sqrt(5.0), 0.0, 1.0]]), np.eye(4), camera)
    assert np.isnan(depth).all()
    depth = z_buffer(np.array([[0.1, 0.0, 1.0], [np.nan, 0, 1]]), np.eye(4), camera)
    assert np.isfinite(depth).sum() == 1


def test_wrong_points_are_named():
    for camera in (CAMERA, ColmapCamera("OPENCV_FISHEYE", WIDTH, HEIGHT, LENSES["OPENCV_FISHEYE"])):
        with pytest.raises(InputError, match="`points`"):
            z_buffer(np.ones((3, 1)), np.eye(4), camera)


def test_cameras_that_cannot_project_are_refused():
    with pytest.raises(InputError, match="`camera` is given by its rays alone"):
        z_buffer(np.ones((1, 3)), np.eye(4), RayCamera(np.zeros((2, 2, 2))))


def test_wall_behind_a_grid_of_points_is_removed():
    """Near points on every third pixel of a rectangle, before a wall: inside it the wall goes, outside it stays."""
    depth = np.full((40, 50), 6.0, np.float32)
    depth[10:29:3, 12:40:3] = 2.0
    hidden = see_through(depth, 3, 1.05)
    inside = np.zeros_like(hidden)
    inside[10:29, 12:40] = True
    np.testing.assert_array_equal(hidden, inside & (depth == 6.0))
    # A radius below the spacing does not bridge it.
    assert not see_through(depth, 1, 1.05).any()


@pytest.mark.parametrize("radius", [1, 3, 8])
def test_background_beside_an_edge_or_corner_stays(radius):
    rows, columns = np.indices((40, 50))
    for near in (columns < 20, rows < 20, rows + columns < 45, (rows < 20) | (columns < 20)):
        for flip in (1, -1):
            depth = np.where(near, 2.0, 6.0)[::flip, ::flip]
            assert not see_through(depth, radius, 1.05).any()


def test_steep_planes_stay():
    camera = Camera(50, 40, 40.0, 40.0, 25.0, 20.0)
    rays = camera.points(np.ones((40, 50)))
    for normal in ((-1.5, 0, 1), (0, -1.9, 1), (0.8, 0.8, 1), (-1.0, 0.7, 1)):
        depth = 3 / (rays @ np.array(normal, float))
        depth[depth <= 0] = np.nan
        assert np.nanmax(depth) / np.nanmin(depth) > 3
        assert not see_through(depth, 4, 1.01).any()


@given(height=st.integers(1, 9), width=st.integers(1, 9), radius=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_kernels_equal_their_slow_twins(height, width, radius, seed):
    rng = np.random.default_rng(seed)
    depth = rng.choice([1.0, 1.04, 1.2, 3.0, np.nan, np.inf, 0.0, -1.0], (height, width))
    valid = np.where(np.isfinite(depth) & (depth > 0), depth, np.inf)
    hidden, pooled = np.zeros((height, width), bool), np.full((height, width), np.nan)
    for i in range(height):
        for j in range(width):
            up, left = max(i - radius, 0), max(j - radius, 0)
            rows, columns = (slice(up, i + 1), slice(i, i + radius + 1)), (slice(left, j + 1), slice(j, j + radius + 1))
            quadrants = [valid[r, c].min() for r in rows for c in columns]
            hidden[i, j] = valid[i, j] < np.inf and max(quadrants) < valid[i, j] / 1.05
            pooled[i, j] = min(quadrants) if min(quadrants) < np.inf else np.nan
    np.testing.assert_array_equal(see_through(depth, radius, 1.05), hidden)
    np.testing.assert_array_equal(min_pool(depth, radius), pooled)


def test_wrong_radii_are_named():
    with pytest.raises(InputError, match="`radius`"):
        see_through(np.ones((2, 2)), 0, 1.05)
    with pytest.raises(InputError, match="`ratio`"):
        see_through(np.ones((2, 2)), 1, 1.0)
    with pytest.raises(InputError, match="`radius`"):
        min_pool(np.ones((2, 2)), -1)


def some_points(rng, count=4000):
    return rng.uniform((-1, -0.7, 1), (1, 0.7, 1), (count, 3)) * rng.uniform(-1, 5, (count, 1))


def test_a_pinhole_is_that_of_colmap_half_a_pixel_away(rng):
    points = some_points(rng)
    lens = ColmapCamera("PINHOLE", WIDTH, HEIGHT, (60.0, 61.0, 39.0, 24.0))
    assert lens.pinhole() == PINHOLE
    ours, theirs = (z_buffer(points, np.eye(4), camera) for camera in (PINHOLE, lens))
    np.testing.assert_array_equal(ours, theirs)
    # And a measured pixel's own point comes back to it.
    again = z_buffer(PINHOLE.points(ours)[np.isfinite(ours)], np.eye(4), PINHOLE)
    np.testing.assert_allclose(again, ours, rtol=DEPTH_RTOL)


def test_limits_are_distances_from_the_camera(rng):
    points = some_points(rng)
    whole = project(points, POSE, PINHOLE, see_through_radius=0)
    cut = project(points, POSE, PINHOLE, min_range=1.0, max_range=3.0, see_through_radius=0)
    ranges = np.linalg.norm(transform_points(points, POSE), axis=1)
    inside = (ranges >= 1) & (ranges <= 3)
    assert cut.in_range == inside.sum() < whole.in_range == len(points)
    np.testing.assert_array_equal(cut.depth, project(points[inside], POSE, PINHOLE, see_through_radius=0).depth)
    with pytest.raises(InputError, match="`min_range`"):
        project(points, POSE, PINHOLE, min_range=3.0, max_range=3.0)


def test_removed_points_are_reported():
    depth = np.full((HEIGHT, WIDTH), np.nan)
    depth[::2, ::2] = 6.0
    depth[11:31:3, 20:50:3] = 2.0
    points = PINHOLE.points(depth)[np.isfinite(depth)]
    found = project(points, np.eye(4), PINHOLE)
    assert found.see_through_radius == default_see_through_radius(depth) == 4  # 1.75 times a spacing of about 1.9
    assert found.covered == np.isfinite(depth).sum()
    gone = np.isfinite(found.removed)
    assert gone.sum() > 50
    assert (np.isfinite(found.depth) ^ gone == np.isfinite(depth)).all()
    assert (found.removed[gone] == 6).all()
    assert not gone[:8].any()
    assert not gone[34:].any()
    kept = project(points, np.eye(4), PINHOLE, see_through_radius=0)
    np.testing.assert_allclose(kept.depth, depth, rtol=DEPTH_RTOL)
    assert np.isnan(kept.removed).all()


@pytest.mark.parametrize("camera", [PINHOLE, CAMERA, ColmapCamera("OPENCV_FISHEYE", 80, 46, LENSES["OPENCV_FISHEYE"])])
@pytest.mark.parametrize("threads", [1, 2])
def test_points_in_the_image_are_counted(camera, threads):
    """Three in one pixel, one beside the image, one behind the camera; and one that is too far."""
    seen = np.array([[0.0, 0, 2], [0, 0, 3], [0, 0, 4], [0.5, 0, 2], [50, 0, 2], [0, 0, -2], [0.2, 0, 9]])
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        found = project(seen, np.eye(4), camera, max_range=8.0, see_through_radius=0)
    finally:
        numba.set_num_threads(before)
    assert (found.in_range, found.in_image, found.covered) == (5, 4, 2)  # 50 m to the side is out of range, too
    assert found.out_of_range[np.isfinite(found.out_of_range)].tolist() == [9.0]
    assert np.isnan(project(seen, np.eye(4), camera).out_of_range).all()


def test_points_around_the_image():
    """Points on a wider grid, without those inside; a lens is not known out there."""
    wall = np.full((HEIGHT, WIDTH), 3.0)
    shifted = PINHOLE.points(wall).reshape(-1, 3) - (5 * 3.0 / 60.0, 0, 0)  # five columns to the left
    around = project_around_image(shifted, np.eye(4), PINHOLE, 8)
    assert around.shape == (HEIGHT + 16, WIDTH + 16)
    rows, columns = np.nonzero(np.isfinite(around))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, HEIGHT + 7, 3, 7)
    lens = project_around_image(shifted, np.eye(4), CAMERA, 8)
    assert lens.shape == around.shape
    assert np.isnan(lens).all()


@pytest.mark.parametrize("turns", [-1, 0, 1, 2])
def test_rotated_images(rng, turns):
    """Rotating the depth map equals projecting into the rotated camera."""
    points = some_points(rng)
    straight = z_buffer(points, np.eye(4), PINHOLE)
    angle = -turns * np.pi / 2  # counter-clockwise as one sees it, with y pointing down
    turned = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]).round()
    found = z_buffer(points @ turned.T, np.eye(4), PINHOLE.rotated(turns))
    np.testing.assert_array_equal(found, rotate90(straight, turns))


def test_only_rigid_transforms_are_projected_with():
    for broken, fault in (
        (np.zeros((4, 4)), "singular"),
        (np.diag([1.0, 1, -1, 1]), "mirrors"),
        (np.diag([2.0, 2, 2, 1]), "determinant is 8"),
        (np.eye(3), "4x4 or 3x4"),
        (np.full((4, 4), np.nan), "finite"),
        (np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 2, 3, 1]]), "transposed"),
    ):
        with pytest.raises(InputError, match=fault):
            project(np.ones((1, 3)), broken, PINHOLE)
    np.testing.assert_array_equal(as_transform(np.eye(4)[:3]), np.eye(4))
