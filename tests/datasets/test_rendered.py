"""The rendered room: exact geometry, determinism, and a prior whose faults are the ones it claims."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.metrics import normals
from leadline.datasets.rendered import network_like_prior, render, renderer
from leadline.datasets.rendered.desk import DESK
from leadline.datasets.rendered.room import ROOM
from leadline.datasets.rendered.solids import Solid
from leadline.datasets.rendered.street import STREET

FLOAT32_METRES = 2e-6  # half a unit in the last place of a float32 depth below 8 m, carried through one rotation
ORDER_SLACK = 1e-6  # float32 rounding of a prior around 0.3


@pytest.fixture(scope="module")
def scene():
    return render(160, 120)


def world_points(scene):
    """Reference points in world axes, (3, H, W), by the inverse of the camera's two rotations."""
    x, y, z = np.moveaxis(scene.camera.points(scene.reference.astype(np.float64)), -1, 0)
    pitch, yaw = ROOM.pitch, ROOM.yaw
    up, ahead = -math.cos(pitch) * y + math.sin(pitch) * z, math.cos(pitch) * z + math.sin(pitch) * y
    world = np.stack((math.cos(yaw) * x + math.sin(yaw) * ahead, up, math.cos(yaw) * ahead - math.sin(yaw) * x))
    return world + np.array(ROOM.eye)[:, None, None]


def test_scene_is_complete_and_of_the_asked_size(scene):
    assert scene.image.shape == (120, 160, 3)
    assert scene.image.dtype == np.uint8
    assert scene.reference.shape == (120, 160)
    assert scene.reference.dtype == np.float32
    assert (scene.camera.width, scene.camera.height) == (160, 120)
    assert (scene.camera.cx, scene.camera.cy) == (79.5, 59.5)
    assert np.isfinite(scene.reference).all()
    assert 1 < scene.reference.min() < 2.5 < 6 < scene.reference.max() < 7.5


def test_every_point_lies_in_the_room_and_many_on_its_faces(scene):
    points = world_points(scene)
    for axis in range(3):
        assert points[axis].min() >= ROOM.low[axis] - FLOAT32_METRES
        assert points[axis].max() <= ROOM.high[axis] + FLOAT32_METRES
    # Depth along the ray instead of along the axis, or a camera half a pixel off, would leave no plane flat.
    assert np.mean(np.abs(points[1] - 0.0) < FLOAT32_METRES) > 0.1  # floor
    assert np.mean(np.abs(points[2] - ROOM.high[2]) < FLOAT32_METRES) > 0.1  # back wall


def test_floor_and_back_wall_are_perpendicular(scene):
    points, found = world_points(scene), normals(scene.reference, scene.camera)
    floor = np.nanmedian(found[np.abs(points[1]) < FLOAT32_METRES], axis=0)
    wall = np.nanmedian(found[np.abs(points[2] - ROOM.high[2]) < FLOAT32_METRES], axis=0)
    assert abs(floor @ wall) < 1e-3  # of unit vectors from float32 depth differences
    assert floor[1] < -0.9  # y is down, so a floor's normal points to -y


def test_same_arguments_same_bits_and_another_seed_another_room():
    first, second, other = render(64, 48, seed=3), render(64, 48, seed=3), render(64, 48, seed=4)
    np.testing.assert_array_equal(first.image, second.image)
    np.testing.assert_array_equal(first.reference, second.reference)
    assert (first.reference != other.reference).any()


def test_depth_of_a_pixel_does_not_depend_on_the_picture_around_it():
    """Pixel centres of an odd size three times smaller are centres of the larger one: the same rays, the same depth."""
    small, large = render(40, 30), render(120, 90)
    np.testing.assert_allclose(large.reference[1::3, 1::3], small.reference, rtol=1e-6)


@pytest.mark.parametrize("shape", ["box", "sphere", "cylinder"])
def test_solids_are_hit_where_they_are(shape):
    solid = Solid(shape, (0.0, 0.0, 5.0), (1.0, 2.0, 1.0), "plain", (1, 1, 1))
    ways = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1e-9, 0.0, -1.0]]).T
    hits = solid.hit(np.zeros((3, 1)), ways, renderer._inverse(ways))
    assert hits[0] == pytest.approx(4.0)
    assert np.isinf(hits[1:]).all()  # above it, and behind the origin


@pytest.mark.parametrize("setting", [ROOM, STREET, DESK], ids=lambda setting: setting.name)
def test_bounds_hold_every_part(setting):
    for group in setting.furnish(np.random.default_rng(0)):
        centre, half = group.bound
        for solid in group.solids:
            radius = solid.half[0]
            reach = {"box": solid.half, "sphere": (radius,) * 3, "cylinder": (radius, solid.half[1], radius)}
            for axis in range(3):
                tip = np.zeros((3, 1))
                tip[axis] = reach[solid.shape][axis]
                point = group.world(np.array(solid.centre)[:, None] + tip)[:, 0]
                point += (group.place[0], 0.0, group.place[1])
                assert (np.abs(point - centre) <= half).all()


def test_the_sky_has_no_depth_and_the_road_is_flat():
    scene = render(160, 120, kind="street")
    sky = np.isnan(scene.reference)
    assert 0.05 < sky.mean() < 0.2
    assert not sky[60:].any()
    assert scene.image[sky].mean(axis=0)[2] > 150  # blue
    assert 3 < np.nanmin(scene.reference) < 5 < 50 < np.nanmax(scene.reference) < 90
    down = scene.camera.points(scene.reference)[110, 60:100] @ (0, math.cos(STREET.pitch), -math.sin(STREET.pitch))
    np.testing.assert_allclose(down, STREET.eye[1], rtol=1e-5)


def test_a_depth_camera_sees_through_the_glass_on_the_desk():
    scene = render(160, 120, kind="desk")
    seen = scene.sparse["sensor"].values
    glass = seen != scene.reference
    assert 0.05 < glass.mean() < 0.3
    assert (seen[glass] > scene.reference[glass]).all()
    assert np.isfinite(scene.reference).all()
    assert 0.5 < scene.reference.min() < scene.reference.max() < 2.5


def test_an_unknown_kind_raises():
    with pytest.raises(InputError, match="`kind` must be one of"):
        render(64, 48, kind="forest")


@pytest.mark.parametrize("size", [(1, 48), (64, 0)])
def test_too_small_an_image_raises(size):
    with pytest.raises(InputError, match="must be at least 2, got"):
        render(*size)


def test_prior_is_deterministic_positive_and_relative(scene):
    prior = network_like_prior(scene.reference)
    assert prior.dtype == np.float32
    assert prior.shape == scene.reference.shape
    assert (prior > 0).all()
    np.testing.assert_array_equal(prior, network_like_prior(scene.reference))
    assert (prior != network_like_prior(scene.reference, seed=1)).any()


def test_prior_leaves_its_argument_alone_and_unknown_pixels_unknown(scene):
    depth = scene.reference.copy()
    depth[5:9, 10:30], depth[20, 20], depth[21, 21] = np.nan, 0.0, np.inf
    before = depth.copy()
    prior = network_like_prior(depth)
    np.testing.assert_array_equal(depth, before)
    np.testing.assert_array_equal(np.isfinite(prior), np.isfinite(depth) & (depth > 0))
    with pytest.raises(InputError, match="at least one finite positive"):
        network_like_prior(np.full((4, 4), np.nan))


def test_prior_response_is_monotone_apart_from_the_slow_warp():
    """Along a column the warp of a one-column-per-depth map is shared by equal rows, so compare one row with itself."""
    depth = np.repeat(np.linspace(1, 8, 400)[None], 3, axis=0)
    flat = np.full_like(depth, 3.0)  # its prior is the warp (times a constant): the same seed, the same shape
    response = network_like_prior(depth)[1].astype(np.float64) / network_like_prior(flat)[1]
    assert (np.diff(response) > -ORDER_SLACK).all()


@pytest.mark.parametrize("coordinate", [np.reciprocal, np.positive, np.log])
def test_no_fixed_coordinate_fits_the_prior(scene, coordinate):
    x = coordinate(network_like_prior(scene.reference).astype(np.float64)).ravel()
    y = coordinate(scene.reference.astype(np.float64)).ravel()
    residual = y - np.polyval(np.polyfit(x, y, 1), x)
    assert np.std(residual) > 0.03 * np.std(y)


def test_prior_has_soft_edges():
    step = np.where(np.arange(640) < 320, 2.0, 4.0) * np.ones((480, 1))
    row = network_like_prior(step)[240].astype(np.float64)
    near, far = row[300], row[340]
    between = (row > near + 0.1 * (far - near)) & (row < far - 0.1 * (far - near))
    assert 2 <= between[310:330].sum() <= 12
