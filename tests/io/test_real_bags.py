"""A real LiDAR sweep through a real bag, with a real network, against a real reference.

The scene and the network lie beside the project and are not part of it; where they are absent this is skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.geometry.cameras import Camera
from leadline.io.depth import read_depth
from support.paths import SHARED

pytest.importorskip("rosbags", reason="needs the extra 'ros'")
pytest.importorskip("onnxruntime", reason="the network runs in onnxruntime")
from support.ros_recorder import Recorder, depth_of, read

KITTI = SHARED / "data" / "kitti_dc" / "2011_09_26_drive_0001_f005_cam02"
NETWORK = SHARED / "models" / "tcmonodepth_small.onnx"
pytestmark = pytest.mark.skipif(
    not (KITTI.is_dir() and NETWORK.is_file()), reason=f"needs {KITTI} and {NETWORK}, which are not there"
)
STAMP = 1_700_000_000 * 10**9
# 1.4 % was measured. The sweep is not compensated for the car's motion, or it would be less; a wrong half pixel or tf
# costs several times as much.
ABSREL = 0.02

group = LazyGroup(name="leadline", lazy={"bag": ("leadline.apps.bag:command", "")})


def quaternion(rotation: np.ndarray) -> tuple[float, ...]:
    """w, x, y, z of a rotation: the eigenvector of Bar-Itzhack's matrix, for any angle."""
    r = rotation
    matrix = np.array(
        [
            [r[0, 0] + r[1, 1] + r[2, 2], r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]],
            [r[2, 1] - r[1, 2], r[0, 0] - r[1, 1] - r[2, 2], r[1, 0] + r[0, 1], r[2, 0] + r[0, 2]],
            [r[0, 2] - r[2, 0], r[1, 0] + r[0, 1], r[1, 1] - r[0, 0] - r[2, 2], r[2, 1] + r[1, 2]],
            [r[1, 0] - r[0, 1], r[2, 0] + r[0, 2], r[2, 1] + r[1, 2], r[2, 2] - r[0, 0] - r[1, 1]],
        ]
    )
    return tuple(np.linalg.eigh(matrix)[1][:, 3])


@pytest.mark.parametrize("kind", ["drive.bag", "drive.mcap"])
def test_kitti_sweep(tmp_path: Path, kind: str) -> None:
    scene = json.loads((KITTI / "scene.json").read_text())
    lidar, intrinsics = scene["lidar"], scene["intrinsics"]
    to_camera = np.array(lidar["lidar_to_camera"])
    sweep = np.fromfile(KITTI / lidar["file"], np.float32).reshape(-1, 4)[:, :3]
    recorder = Recorder(tmp_path / kind)
    recorder.tf(STAMP, {"lidar": ("optical", quaternion(to_camera[:3, :3]), tuple(to_camera[:3, 3]))})
    recorder.info("/camera/camera_info", STAMP, Camera(**intrinsics))
    recorder.image("/camera/image", STAMP, np.asarray(Image.open(KITTI / scene["image"]).convert("RGB")), "rgb8")
    recorder.points("/lidar/points", STAMP, sweep)
    recorder.close()
    topics = ["--image", "/camera/image", "--camera-info", "/camera/camera_info", "--points", "/lidar/points"]
    files = [str(tmp_path / kind), "-o", str(tmp_path / "depth.mcap")]
    result = CliRunner().invoke(group, ["bag", *files, *topics, "--prior", f"onnx:{NETWORK}", "--no-cache"])
    assert result.exit_code == 0, result.output
    depth = depth_of(read(tmp_path / "depth.mcap")["/leadline/depth/image"][0][1])
    reference = read_depth(KITTI / scene["reference"]["file"], scene["reference"]["metres_per_unit"]).values
    known = np.isfinite(reference)
    assert np.mean(np.abs(depth / reference - 1)[known]) < ABSREL
