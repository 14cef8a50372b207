"""Surfaces of depth maps: what is joined and what is cut, winding and normals, and planes at grazing angles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, RayCamera
from leadline.geometry.surface import EdgeLimits, surface_from_depth

CAMERA = Camera(64, 48, 60.0, 60.0, 31.5, 23.5)


def plane_depth(normal: tuple[float, float, float], distance: float, camera: Camera = CAMERA) -> np.ndarray:
    """Depth of the plane n . x = -distance, whose normal points towards the camera; NaN behind it."""
    rays = camera.points(np.ones((camera.height, camera.width)))
    with np.errstate(divide="ignore"):
        depth = -distance / (rays @ np.array(normal))
    return np.where((depth > 0) & np.isfinite(depth), depth, np.nan)


def box_before_wall(ramp: tuple[float, ...] = ()) -> np.ndarray:
    """A box at 1 m in the middle of a wall at 2 m; `ramp` are the depths of pixels between the two, on all sides."""
    depth = np.full((48, 64), 2.0)
    for step, z in enumerate((*ramp, 1.0)):
        depth[12 + step : 36 - step, 20 + step : 44 - step] = z
    return depth


@pytest.mark.parametrize("ramp", [(), (1.5,), (1.7, 1.3), (1.8, 1.5, 1.2)])
def test_flying_pixels_are_left_out_and_nothing_else(ramp: tuple[float, ...]) -> None:
    depth = box_before_wall(ramp)
    found = surface_from_depth(depth, CAMERA)
    flying = np.flatnonzero((depth != 1.0) & (depth != 2.0))
    assert not set(flying.tolist()) & set(found.pixels.tolist())
    # The corners of the box's outline may lose a pixel; the two surfaces stay whole otherwise.
    assert len(found.pixels) >= depth.size - flying.size - 8
    z = found.points[found.triangles, 2]
    assert (z.max(axis=1) == z.min(axis=1)).all()  # no triangle between box and wall
    everything = surface_from_depth(depth, CAMERA, edges=None)
    assert len(everything.pixels) == depth.size
    assert len(everything.triangles) == 2 * 47 * 63


@pytest.mark.parametrize("height", [1.5, 0.4])
def test_a_floor_seen_at_grazing_angles_is_not_cut(height: float) -> None:
    camera = Camera(160, 120, 300.0, 300.0, 79.5, 20.0)
    depth = plane_depth((0.0, -1.0, 0.0), height, camera)
    # One row of pixels spans 1 / (v - cy) of the depth there: steps above the limit begin 21 rows below the horizon.
    floor = np.zeros(depth.shape, bool)
    floor[42:] = True
    found = surface_from_depth(depth, camera)
    assert np.isin(np.flatnonzero(floor), found.pixels).all()
    angles = np.degrees(np.arccos(-np.einsum("ij,ij->i", found.normals, found.points)
                                  / np.linalg.norm(found.points, axis=1)))  # fmt: skip
    assert angles.max() > 85  # beyond the limit of the angle: only its being a plane keeps it


def test_a_plane_that_a_sensor_rounds_is_not_cut() -> None:
    camera = Camera(160, 120, 500.0, 500.0, 79.5, -200.0)
    depth = plane_depth((0.0, -1.0, -0.1), 1.2, camera)
    step = 0.012 * np.nanmax(depth)  # as of a structured-light camera at five metres
    rounded = np.round(depth / step) * step
    assert np.unique(rounded).size > 5
    assert len(surface_from_depth(rounded, camera).pixels) == depth.size


@given(
    st.tuples(*(st.floats(-0.8, 0.8) for _ in range(2)), st.just(-1.0)),
    st.floats(0.1, 50.0),
    st.integers(0, 2**32 - 1),
)
def test_normals_and_winding_of_a_plane(normal: tuple[float, float, float], distance: float, seed: int) -> None:
    unit = np.array(normal) / np.linalg.norm(normal)
    depth = plane_depth(tuple(unit), distance)
    depth[np.random.default_rng(seed).random(depth.shape) < 0.3] = np.nan
    found = surface_from_depth(depth, CAMERA, edges=None)
    assert set(found.pixels.tolist()) == set(np.flatnonzero(np.isfinite(depth)).tolist())
    used = np.unique(found.triangles)
    np.testing.assert_allclose(found.normals[used], np.broadcast_to(unit, (used.size, 3)), atol=1e-4)
    a, b, c = (found.points[found.triangles[:, k]].astype(float) for k in range(3))
    assert (np.cross(b - a, c - a) @ unit > 0).all()  # counter-clockwise as the camera sees them
    np.testing.assert_allclose(np.linalg.norm(found.normals, axis=1), 1, atol=1e-6)


def test_points_are_those_of_the_camera_and_texture_coordinates_those_of_the_pixels() -> None:
    rays = CAMERA.points(np.ones((48, 64)))[..., :2].astype(np.float32)
    rays[0, :5] = np.nan  # a lens without rays in a corner
    depth = np.full((48, 64), 2.0, np.float32)
    found = surface_from_depth(depth, RayCamera(rays))
    assert found.pixels[0] == 5
    np.testing.assert_array_equal(found.points, RayCamera(rays).points(depth).reshape(-1, 3)[found.pixels].astype("f4"))
    across, down = found.texture_coordinates()[-1]
    assert (across, down) == pytest.approx((63.5 / 64, 47.5 / 48))


@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (48, 1)])
def test_a_line_of_pixels_has_points_and_no_triangles(shape: tuple[int, int]) -> None:
    camera = Camera(shape[1], shape[0], 60.0, 60.0, 0.0, 0.0)
    found = surface_from_depth(np.ones(shape), camera, edges=None)
    assert len(found.points) == max(shape)
    assert found.triangles.shape == (0, 3)
    assert surface_from_depth(np.ones(shape), camera).points.shape == (0, 3)
    assert surface_from_depth(np.full(shape, np.nan), camera).points.shape == (0, 3)


def test_wrong_sizes_and_limits_are_refused() -> None:
    with pytest.raises(InputError, match="must have the size 5 x 4"):
        surface_from_depth(np.ones((4, 5)), CAMERA)
    for limits in ({"max_step": 0.0}, {"max_angle": 91.0}):
        with pytest.raises(InputError, match=next(iter(limits))):
            EdgeLimits(**limits)
