"""Cameras and extrinsics from files, and sweeps compensated for motion."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.base.errors import FileError, InputError
from leadline.geometry.cameras import Camera
from leadline.geometry.lenses import ColmapCamera
from leadline.geometry.motion import Trajectory, azimuth_time, compensate, compensate_along
from leadline.geometry.poses import inverse, moved, rotation_of
from leadline.io.cameras import camera_record, read_camera, read_extrinsics, read_kitti, read_trajectory

TRANSFORM = np.array([[0.0, -1, 0, 0.1], [0, 0, -1, -0.2], [1, 0, 0, 0.3], [0, 0, 0, 1]])
QUATERNION = (0.5, 0.5, -0.5, 0.5)  # the same rotation
EXACT = 1e-12  # sums of a few products of numbers of order one
SIZE = {"width": 64, "height": 48}
PINHOLE = {**SIZE, "fx": 50.0, "fy": 51.0, "cx": 31.5, "cy": 23.5}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_cameras_from_json(tmp_path):
    assert read_camera(write(tmp_path / "a.json", PINHOLE)) == Camera(64, 48, 50.0, 51.0, 31.5, 23.5)
    lens = {**PINHOLE, "model": "OPENCV", "params": [0.1, -0.2, 0.003, 0.004]}
    camera = read_camera(write(tmp_path / "b.json", lens))
    # Half a pixel is added at this border and nowhere else.
    assert camera == ColmapCamera("OPENCV", 64, 48, (50.0, 51.0, 32.0, 24.0, 0.1, -0.2, 0.003, 0.004))
    for known in (camera, Camera(64, 48, 50.0, 51.0, 31.5, 23.5)):
        assert read_camera(write(tmp_path / "c.json", camera_record(known))) == known
    # A model with one focal length is written as the one that says the same with two.
    simple = ColmapCamera("RADIAL_FISHEYE", 64, 48, (50.0, 32.0, 24.0, 0.1, 0.2))
    again = read_camera(write(tmp_path / "d.json", camera_record(simple)))
    assert again == ColmapCamera("OPENCV_FISHEYE", 64, 48, (50.0, 50.0, 32.0, 24.0, 0.1, 0.2, 0.0, 0.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a JSON object"),
        ("[1, 2]", "must be a JSON object"),
        ({**SIZE, "fx": 1}, "'fy'"),
        ({**PINHOLE, "fx": -1}, "fx and fy must be positive"),
        ({**PINHOLE, "model": "KANNALA"}, "must be one of"),
        ({**PINHOLE, "model": "OPENCV", "params": [1]}, "must be 8 finite numbers"),
        ({**PINHOLE, "model": "SIMPLE_RADIAL", "params": [0.1]}, "say it as OPENCV"),
        ({**PINHOLE, "width": 0}, "between 1 and"),
        ("[" * 100_000, "must be a JSON object"),
    ],
)
def test_what_is_no_camera_is_explained(tmp_path, content, message):
    with pytest.raises((FileError, InputError), match=f"cam.json: .*{message}"):
        read_camera(write(tmp_path / "cam.json", content))
    with pytest.raises(FileError, match="cannot be read"):
        read_camera(tmp_path / "none.json")


def test_extrinsics_in_every_form(tmp_path):
    rotation, translation = TRANSFORM[:3, :3].tolist(), TRANSFORM[:3, 3].tolist()
    named = {"qw": 0.5, "qx": 0.5, "qy": -0.5, "qz": 0.5}
    car = np.eye(4)
    car[:3, 3] = (1.0, 2.0, 3.0)
    camera_to_car = (car @ inverse(TRANSFORM)).tolist()
    for content in (
        TRANSFORM.tolist(),
        TRANSFORM[:3].tolist(),
        {"lidar_to_camera": TRANSFORM.tolist()},
        {"rotation": rotation, "translation": translation},
        {"rotation": QUATERNION, "translation": translation},
        {"rotation": named, "translation": dict(zip("xyz", translation, strict=True))},
        {"inverse": {"matrix": inverse(TRANSFORM).tolist()}},
        {"chain": [car.tolist(), {"inverse": camera_to_car}]},
    ):
        found = read_extrinsics(write(tmp_path / "T.json", content))
        np.testing.assert_allclose(found, TRANSFORM, atol=EXACT, err_msg=str(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "is not JSON"),
        ("3", "must be a 4x4 or 3x4"),
        ({"pose": []}, "must be a 4x4 or 3x4"),
        ([[1, 2], [3, 4]], "finite numbers"),
        ([[0] * 4] * 4, "it is singular"),
        (np.diag([1.0, 1, -1, 1]).tolist(), "mirrors"),
        ({"rotation": [2, 0, 0, 0], "translation": [0, 0, 0]}, "of length 1"),
        ({"rotation": [1, 0, 0], "translation": [0, 0, 0]}, "extrinsics must be|4x4"),
        ({"rotation": [1, 0, 0, 0], "translation": [0, 0]}, "extrinsics must be"),
        ({"chain": 3}, "extrinsics must be"),
    ],
)
def test_what_is_no_transform_is_explained(tmp_path, content, message):
    with pytest.raises((FileError, InputError), match=rf"T\.json: .*({message})"):
        read_extrinsics(write(tmp_path / "T.json", content))


def test_kitti_files(tmp_path):
    write(
        tmp_path / "calib_cam_to_cam.txt",
        "S_rect_02: 64 48\nR_rect_00: 1 0 0 0 1 0 0 0 1\nP_rect_02: 50 0 31 5 0 51 23 10.2 0 0 1 0.1\n",
    )
    numbers = " ".join(str(value) for value in TRANSFORM[:3, :3].ravel())
    velodyne = write(tmp_path / "calib_velo_to_cam.txt", f"calib_time: now\nR: {numbers}\nT: 0.1 -0.2 0.3\n")
    camera, transform = read_kitti(tmp_path)
    assert camera == Camera(64, 48, 50.0, 51.0, 31.0, 23.0)
    # P = K [I | b]: b = ((5 - 31 * 0.1) / 50, (10.2 - 23 * 0.1) / 51, 0.1)
    expected = TRANSFORM.copy()
    expected[:3, 3] += (1.9 / 50, 7.9 / 51, 0.1)
    np.testing.assert_allclose(transform, expected, atol=EXACT)
    with pytest.raises(FileError, match="S_rect_03"):
        read_kitti(tmp_path, 3)
    write(velodyne, "R: 1 0 0\nT: 0 0 0\n")
    with pytest.raises(FileError, match="'R' with 9 numbers"):
        read_kitti(tmp_path)
    with pytest.raises(FileError, match=r"calib_cam_to_cam\.txt: cannot be read"):
        read_kitti(tmp_path / "none")


RECTIFIED = rotation_of((np.sqrt(1 - 3e-4), 0.01, -0.01, 0.01))
PROJECTION = "50 0 31 5 0 51 23 10.2 0 0 1 0.1"


def words(matrix):
    return " ".join(f"{value:.12e}" for value in np.ravel(matrix))


@pytest.mark.parametrize(
    ("lines", "rectified"),
    [
        (("P2: {p}", "R0_rect: {r}", "Tr_velo_to_cam: {t}", "Tr_imu_to_velo: {t}", ""), True),  # object
        (("P2: {p}", "R_rect {r}", "Tr_velo_cam {t}", "Tr_imu_velo {t}"), True),  # tracking
        (("P2: {p}", "Tr: {t}"), False),  # odometry
    ],
    ids=["object", "tracking", "odometry"],
)
def test_the_one_file_of_kittis_benchmarks(tmp_path, lines, rectified):
    content = "\n".join(lines).format(p=PROJECTION, r=words(RECTIFIED), t=words(TRANSFORM[:3]))
    camera, transform = read_kitti(write(tmp_path / "000042.txt", content), size=(64, 48))
    assert camera == Camera(64, 48, 50.0, 51.0, 31.0, 23.0)
    turned = np.eye(4)
    turned[:3, :3] = RECTIFIED if rectified else np.eye(3)
    expected = turned @ TRANSFORM
    expected[:3, 3] += (1.9 / 50, 7.9 / 51, 0.1)
    np.testing.assert_allclose(transform, expected, atol=1e-10)  # of the digits written
    with pytest.raises(InputError, match="give one of them with --image"):
        read_kitti(tmp_path / "000042.txt")
    with pytest.raises(FileError, match="'P1' with 12 numbers"):
        read_kitti(tmp_path / "000042.txt", 1, (64, 48))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "'Tr_velo_to_cam' with 12 numbers"),
        (f"P2: {PROJECTION}\nTr_velo_to_cam: {words(TRANSFORM[:3])}", "'R0_rect' with 9 numbers"),
        (f"P2: {PROJECTION}\nTr: 1 2 3", "'Tr' with 12 numbers"),
        (f"P2: {PROJECTION}\nTr: {words(np.zeros((3, 4)))}", "it is singular"),
        (f"P2: {words(np.zeros((3, 4)))}\nTr: {words(TRANSFORM[:3])}", "P2 is singular"),
        (f"P2: a b c\nTr: {words(TRANSFORM[:3])}", "'P2' with 12 numbers"),
    ],
)
def test_what_is_no_calibration_is_explained(tmp_path, content, message):
    with pytest.raises((FileError, InputError), match=rf"calib\.txt: .*{message}"):
        read_kitti(write(tmp_path / "calib.txt", content), size=(64, 48))


def test_azimuth_times_run_once_around():
    angles = np.radians([0, -90, -179, 179, 90])
    points = np.stack((np.cos(angles), np.sin(angles), angles), axis=1)
    np.testing.assert_allclose(azimuth_time(points, 0.36), [0, 0.09, 0.179, -0.179, -0.09], atol=EXACT)
    np.testing.assert_allclose(azimuth_time(points, 0.36, clockwise=False), [0, -0.09, -0.179, 0.179, 0.09], atol=EXACT)
    np.testing.assert_allclose(azimuth_time(points, 0.36, zero_azimuth=90), [0.09, 0.18, -0.091, -0.089, 0], atol=EXACT)
    with pytest.raises(InputError, match="`period`"):
        azimuth_time(points, 0.0)


twists = st.tuples(*[st.floats(-20, 20)] * 3, *[st.floats(-3, 3)] * 3)


@given(twist=twists, seed=st.integers(0, 100))
def test_compensation_is_a_static_world_seen_from_a_moving_sensor(twist, seed):
    """Fixed points, each seen at its own time from the pose that small steps of the motion lead to, come back."""
    generator = np.random.default_rng(seed)
    world, time = generator.uniform(-50, 50, (5, 3)), generator.uniform(-0.1, 0.1, 5)
    velocity, turn_rate = np.array(twist[:3]), np.array(twist[3:])
    seen = np.empty_like(world)
    for place, (point, t) in enumerate(zip(world, time, strict=True)):
        pose, count = np.eye(4), 4000
        step = np.eye(4)
        half = turn_rate * t / count / 2
        step[:3, :3] = rotation_of((np.sqrt(1 - half @ half), *half))
        # Midpoint rule, so that the error falls with the square of the step: below 1e-6 m here.
        step[:3, 3] = rotation_of((np.sqrt(1 - half @ half / 4), *(half / 2))) @ velocity * t / count
        pose = np.linalg.matrix_power(step, count)
        seen[place] = moved(point[None], inverse(pose))[0]
    found = compensate(seen, time, velocity=tuple(velocity), turn_rate=tuple(turn_rate))
    np.testing.assert_allclose(found, world, atol=1e-5)


@given(seed=st.integers(0, 100))
def test_trajectories_bring_points_back_too(seed):
    generator = np.random.default_rng(seed)
    quaternions = generator.normal(size=(4, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1)[:, None]
    times = np.cumsum(generator.uniform(0.1, 1, 4))
    track = Trajectory(times, generator.normal(0, 9, (4, 3)), quaternions * generator.choice([-1, 1], (4, 1)))
    world, when = generator.uniform(-9, 9, (6, 3)), generator.uniform(times[0], times[-1], 6)
    turns, places = track.at(when)
    seen = np.stack([rotation_of(tuple(q)).T @ (x - p) for q, p, x in zip(turns, places, world, strict=True)])
    at = float(times[1])
    found = compensate_along(seen, when, track, at)
    # At a knot the pose is the given one.
    expected = (world - track.positions[1]) @ rotation_of(tuple(quaternions[1]))
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("sign", [1, -1], ids=["same sign", "other sign"])
def test_halfway_between_two_poses_lies_halfway(sign):
    """The shorter way round: q and -q are one rotation."""
    quarter = sign * np.sqrt(0.5)
    quaternions = np.array([[1.0, 0, 0, 0], [quarter, 0, 0, quarter]])
    track = Trajectory(np.array([0.0, 1.0]), np.array([[0.0, 0, 0], [2, 0, 0]]), quaternions)
    (turned,), (place,) = track.at(np.array([0.5]))
    np.testing.assert_allclose(turned, (np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)), atol=EXACT)
    np.testing.assert_allclose(place, (1, 0, 0), atol=EXACT)


def test_float32_clouds_stay_float32():
    points = np.array([[50.0, 1.0, 2.0]], np.float32)
    found = compensate(points, np.array([0.05]), velocity=(10.0, 0, 0), turn_rate=(0, 0, 0.1))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], (50.5 - 0.005, 1.25, 2.0), atol=2e-3)
    with pytest.raises(InputError, match="`velocity`"):
        compensate(points, np.zeros(1), velocity=(1.0, 2.0))
    with pytest.raises(InputError, match="`time`"):
        compensate(points, np.zeros(2), velocity=(1.0, 2.0, 3.0))
    with pytest.raises(InputError, match="some points have no time"):
        compensate(points, np.array([np.nan]), velocity=(1.0, 2.0, 3.0))


def test_trajectories_from_files(tmp_path):
    path = write(tmp_path / "poses.txt", "# time x y z qx qy qz qw\n0 0 0 0 0 0 0 1\n\n1 10 0 0 0 0 1 0\n")
    track = read_trajectory(path)
    np.testing.assert_array_equal(track.quaternions[1], (0, 0, 0, 1))
    np.testing.assert_allclose(track.at(np.array([0.25]))[1], [[2.5, 0, 0]])
    with pytest.raises(InputError, match="Do the two clocks agree"):
        track.at(np.array([1.5e9]))
    for content, message in {
        "0 0 0": "eight numbers",
        "a b c": "each line",
        "0 0 0 0 0 0 0 1": "two poses",
        "1 0 0 0 0 0 0 1\n0 0 0 0 0 0 0 1": "must increase",
        "": "eight numbers",
    }.items():
        with pytest.raises(FileError, match=f"poses.txt: .*{message}"):
            read_trajectory(write(path, content))
