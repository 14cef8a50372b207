"""Motion compensation, trajectories and trees of moving frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import InputError
from leadline.geometry.poses import (
    FramePose,
    Trajectory,
    TransformTree,
    compensate_along_trajectory,
    compensate_motion,
    invert_transform,
    rotation_from_quaternion,
    time_from_azimuth,
    transform_points,
)

EXACT = 1e-12  # sums of a few products of numbers of order one


def test_time_from_azimuth_over_one_turn():
    angles = np.radians([0, -90, -179, 179, 90])
    points = np.stack((np.cos(angles), np.sin(angles), angles), axis=1)
    np.testing.assert_allclose(time_from_azimuth(points, 0.36), [0, 0.09, 0.179, -0.179, -0.09], atol=EXACT)
    np.testing.assert_allclose(
        time_from_azimuth(points, 0.36, clockwise=False), [0, -0.09, -0.179, 0.179, 0.09], atol=EXACT
    )
    with pytest.raises(InputError, match="`period`"):
        time_from_azimuth(points, 0.0)


TWISTS = st.tuples(*[st.floats(-20, 20)] * 3, *[st.floats(-3, 3)] * 3)


@given(twist=TWISTS, seed=st.integers(0, 100))
def test_compensated_points_of_a_static_world_are_static(twist, seed):
    """Fixed points, each seen at its own time from the pose that small steps of the motion lead to, come back."""
    generator = np.random.default_rng(seed)
    world, time = generator.uniform(-50, 50, (5, 3)), generator.uniform(-0.1, 0.1, 5)
    velocity, turn_rate = np.array(twist[:3]), np.array(twist[3:])
    seen = np.empty_like(world)
    for place, (point, t) in enumerate(zip(world, time, strict=True)):
        pose, count = np.eye(4), 4000
        step = np.eye(4)
        half = turn_rate * t / count / 2
        step[:3, :3] = rotation_from_quaternion((np.sqrt(1 - half @ half), *half)).as_matrix()
        # Midpoint rule, so that the error falls with the square of the step: below 1e-6 m here.
        step[:3, 3] = (
            rotation_from_quaternion((np.sqrt(1 - half @ half / 4), *(half / 2))).as_matrix() @ velocity * t / count
        )
        pose = np.linalg.matrix_power(step, count)
        seen[place] = transform_points(point[None], invert_transform(pose))[0]
    found = compensate_motion(seen, time, velocity=tuple(velocity), turn_rate=tuple(turn_rate))
    np.testing.assert_allclose(found, world, atol=1e-5)


@given(seed=st.integers(0, 100))
def test_compensation_along_a_trajectory(seed):
    generator = np.random.default_rng(seed)
    quaternions = generator.normal(size=(4, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1)[:, None]
    times = np.cumsum(generator.uniform(0.1, 1, 4))
    track = Trajectory(times, generator.normal(0, 9, (4, 3)), quaternions * generator.choice([-1, 1], (4, 1)))
    world, when = generator.uniform(-9, 9, (6, 3)), generator.uniform(times[0], times[-1], 6)
    rotations, positions = track.at(when)
    seen = rotations.inv().apply(world - positions)
    at = float(times[1])
    found = compensate_along_trajectory(seen, when, track, at)
    # At a knot the pose is the given one.
    expected = rotation_from_quaternion(quaternions[1]).inv().apply(world - track.positions[1])
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("sign", [1, -1], ids=["same sign", "other sign"])
def test_interpolation_takes_the_shorter_rotation(sign):
    """The shorter way round: q and -q are one rotation."""
    quarter = sign * np.sqrt(0.5)
    quaternions = np.array([[1.0, 0, 0, 0], [quarter, 0, 0, quarter]])
    track = Trajectory(np.array([0.0, 1.0]), np.array([[0.0, 0, 0], [2, 0, 0]]), quaternions)
    rotations, positions = track.at(np.array([0.5]))
    np.testing.assert_allclose(rotations.as_rotvec(), [[0, 0, np.pi / 4]], atol=EXACT)
    np.testing.assert_allclose(positions, [[1, 0, 0]], atol=EXACT)


def test_float32_points_stay_float32():
    points = np.array([[50.0, 1.0, 2.0]], np.float32)
    found = compensate_motion(points, np.array([0.05]), velocity=(10.0, 0, 0), turn_rate=(0, 0, 0.1))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], (50.5 - 0.005, 1.25, 2.0), atol=2e-3)
    with pytest.raises(InputError, match="`velocity`"):
        compensate_motion(points, np.zeros(1), velocity=(1.0, 2.0))
    with pytest.raises(InputError, match="`time`"):
        compensate_motion(points, np.zeros(2), velocity=(1.0, 2.0, 3.0))
    with pytest.raises(InputError, match="some points have no time"):
        compensate_motion(points, np.array([np.nan]), velocity=(1.0, 2.0, 3.0))


def pose(child: str, parent: str, seconds: float | None, x: float) -> FramePose:
    time = None if seconds is None else round(seconds * 1e9)
    return FramePose(child, parent, time, (x, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))


def test_transform_tree_interpolates_moving_frames():
    moving = [pose("arm", "base", second, 2.0 * second) for second in (1.0, 2.0)]
    tree = TransformTree([*moving, pose("tool", "arm", None, 0.5)])
    assert tree.frames == ("arm", "base", "tool")
    assert tree.between("tool", "base", 1_250_000_000)[0, 3] == pytest.approx(3.0)
    assert tree.between("base", "tool", 1_250_000_000)[0, 3] == pytest.approx(-3.0)
    with pytest.raises(InputError, match="tf of 'arm': `time` must lie within"):
        tree.between("tool", "base", 3 * 10**9)
    with pytest.raises(InputError, match=r"does not connect .* give `extrinsics`"):
        tree.between("tool", "elsewhere", 0)


def test_transform_tree_refuses_loops():
    loop = TransformTree([pose("a", "b", None, 0), pose("b", "a", None, 0)])
    with pytest.raises(InputError, match="loop"):
        loop.between("a", "c", 0)
