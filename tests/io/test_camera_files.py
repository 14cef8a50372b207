"""Files of cameras, extrinsics and trajectories."""

from __future__ import annotations

import json

import numpy as np
import pytest

from leadline.base.errors import FileError, InputError
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.poses import invert_transform, rotation_from_quaternion
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
    # COLMAP's convention has the first pixel's centre at 0.5.
    assert camera == ColmapCamera("OPENCV", 64, 48, (50.0, 51.0, 32.0, 24.0, 0.1, -0.2, 0.003, 0.004))
    for known in (camera, Camera(64, 48, 50.0, 51.0, 31.5, 23.5)):
        assert read_camera(write(tmp_path / "c.json", camera_record(known))) == known
    # A model with one focal length is written as the equivalent model with two.
    simple = ColmapCamera("RADIAL_FISHEYE", 64, 48, (50.0, 32.0, 24.0, 0.1, 0.2))
    again = read_camera(write(tmp_path / "d.json", camera_record(simple)))
    assert again == ColmapCamera("OPENCV_FISHEYE", 64, 48, (50.0, 50.0, 32.0, 24.0, 0.1, 0.2, 0.0, 0.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a camera"),
        ("[1, 2]", "must hold a JSON object"),
        ({**SIZE, "fx": 1}, "'fy'"),
        ({**PINHOLE, "fx": -1}, "fx and fy must be positive"),
        ({**PINHOLE, "model": "KANNALA"}, "must be one of"),
        ({**PINHOLE, "model": "OPENCV", "params": [1]}, "must be 8 finite numbers"),
        ({**PINHOLE, "model": "SIMPLE_RADIAL", "params": [0.1]}, "write OPENCV"),
        ({**PINHOLE, "width": 0}, "between 1 and"),
        ("[" * 100_000, "cannot be read as a camera"),
    ],
)
def test_invalid_cameras_are_explained(tmp_path, content, message):
    with pytest.raises((FileError, InputError), match=f"cam.json: .*{message}"):
        read_camera(write(tmp_path / "cam.json", content))
    with pytest.raises(FileError, match="no such file"):
        read_camera(tmp_path / "none.json")


def test_extrinsics_in_every_notation(tmp_path):
    rotation, translation = TRANSFORM[:3, :3].tolist(), TRANSFORM[:3, 3].tolist()
    named = {"qw": 0.5, "qx": 0.5, "qy": -0.5, "qz": 0.5}
    car = np.eye(4)
    car[:3, 3] = (1.0, 2.0, 3.0)
    camera_to_car = (car @ invert_transform(TRANSFORM)).tolist()
    for content in (
        TRANSFORM.tolist(),
        TRANSFORM[:3].tolist(),
        {"lidar_to_camera": TRANSFORM.tolist()},
        {"rotation": rotation, "translation": translation},
        {"rotation": QUATERNION, "translation": translation},
        {"rotation": named, "translation": dict(zip("xyz", translation, strict=True))},
        {"inverse": {"matrix": invert_transform(TRANSFORM).tolist()}},
        {"chain": [car.tolist(), {"inverse": camera_to_car}]},
    ):
        found = read_extrinsics(write(tmp_path / "T.json", content))
        np.testing.assert_allclose(found, TRANSFORM, atol=EXACT, err_msg=str(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "cannot be read as extrinsics"),
        ("3", "a 4x4 or 3x4 .*got int"),
        ({"pose": []}, "no matrix, lidar_to_camera"),
        ([[1, 2], [3, 4]], "finite numbers"),
        ([[0] * 4] * 4, "it is singular"),
        (np.diag([1.0, 1, -1, 1]).tolist(), "mirrors"),
        ({"rotation": [2, 0, 0, 0], "translation": [0, 0, 0]}, "of length 1"),
        ({"rotation": [1, 0, 0], "translation": [0, 0, 0]}, "cannot be read as extrinsics|4x4"),
        ({"rotation": [1, 0, 0, 0], "translation": [0, 0]}, "cannot be read as extrinsics"),
        ({"chain": 3}, "cannot be read as extrinsics"),
    ],
)
def test_invalid_transforms_are_explained(tmp_path, content, message):
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
    with pytest.raises(FileError, match=r"calib_cam_to_cam\.txt: no such file"):
        read_kitti(tmp_path / "none")


RECTIFIED = rotation_from_quaternion((np.sqrt(1 - 3e-4), 0.01, -0.01, 0.01)).as_matrix()
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
    with pytest.raises(InputError, match="does not state the size of the images"):
        read_kitti(tmp_path / "000042.txt")
    with pytest.raises(FileError, match="'P1' with 12 numbers"):
        read_kitti(tmp_path / "000042.txt", 1, (64, 48))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("P2: 1 2 3", "'Tr_velo_to_cam' with 12 numbers"),
        (f"P2: {PROJECTION}\nTr_velo_to_cam: {words(TRANSFORM[:3])}", "'R0_rect' with 9 numbers"),
        (f"P2: {PROJECTION}\nTr: 1 2 3", "'Tr' with 12 numbers"),
        (f"P2: {PROJECTION}\nTr: {words(np.zeros((3, 4)))}", "it is singular"),
        (f"P2: {words(np.zeros((3, 4)))}\nTr: {words(TRANSFORM[:3])}", "P2 is singular"),
        (f"P2: a b c\nTr: {words(TRANSFORM[:3])}", "'P2' with 12 numbers"),
    ],
)
def test_invalid_calibrations_are_explained(tmp_path, content, message):
    with pytest.raises((FileError, InputError), match=rf"calib\.txt: .*{message}"):
        read_kitti(write(tmp_path / "calib.txt", content), size=(64, 48))


def test_trajectories_from_files(tmp_path):
    path = write(tmp_path / "poses.txt", "# time x y z qx qy qz qw\n0 0 0 0 0 0 0 1\n\n1 10 0 0 0 0 1 0\n")
    track = read_trajectory(path)
    np.testing.assert_array_equal(track.quaternions[1], (0, 0, 0, 1))
    np.testing.assert_allclose(track.at(np.array([0.25]))[1], [[2.5, 0, 0]])
    with pytest.raises(InputError, match="Do the two clocks agree"):
        track.at(np.array([1.5e9]))
    for content, message in {
        "0 0 0": "eight numbers",
        "a b c": "on each line",
        "0 0 0 0 0 0 0 1": "two poses",
        "1 0 0 0 0 0 0 1\n0 0 0 0 0 0 0 1": "must increase",
        "# no pose": "eight numbers",
    }.items():
        with pytest.raises((FileError, InputError), match=f"poses.txt: .*{message}"):
            read_trajectory(write(path, content))
