"""Real frames with poses through COLMAP's own triangulation, ``leadline colmap --consistent`` and ``leadline fuse``."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import group
from leadline.geometry.poses import invert_transform
from support.paths import MODELS, SHARED

FRAMES = SHARED / "views" / "7scenes"
NETWORK = MODELS / "tcmonodepth_small.onnx"
STEP, COUNT = 2, 6  # every second of the stored frames, and how many
FEATURES = 1000
pytestmark = [
    pytest.mark.skipif(not (FRAMES.is_dir() and NETWORK.is_file()), reason=f"needs the frames in {FRAMES}"),
    pytest.mark.skipif(find_spec("pycolmap") is None, reason="needs the extra 'colmap'"),
    pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs the extra 'onnx'"),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures and a COLMAP model in metres, triangulated with the known poses."""
    import pycolmap

    pycolmap.logging.minloglevel = 2
    folder = tmp_path_factory.mktemp("real")
    (folder / "images").mkdir()
    (folder / "sparse" / "0").mkdir(parents=True)
    for path in sorted(FRAMES.glob("*.color.jpg"))[: STEP * COUNT : STEP]:
        shutil.copy(path, folder / "images" / f"{path.name.split('.')[0]}.jpg")
    matrix = np.loadtxt(FRAMES / "camera-intrinsics.txt")
    numbers = (matrix[0, 0], matrix[1, 1], matrix[0, 2] + 0.5, matrix[1, 2] + 0.5)
    reader = pycolmap.ImageReaderOptions(camera_model="PINHOLE", camera_params=",".join(map(str, numbers)))
    extraction = pycolmap.FeatureExtractionOptions(num_threads=2, use_gpu=False)
    extraction.sift.max_num_features = FEATURES
    matching = pycolmap.FeatureMatchingOptions(num_threads=2, use_gpu=False)
    database = folder / "database.db"
    mode = pycolmap.CameraMode.SINGLE
    pycolmap.extract_features(
        database, folder / "images", camera_mode=mode, reader_options=reader, extraction_options=extraction
    )
    pycolmap.match_exhaustive(database, matching_options=matching)
    known = pycolmap.Reconstruction()
    with pycolmap.Database.open(database) as opened:
        for camera in opened.read_all_cameras():
            known.add_camera_with_trivial_rig(camera)
        for image in opened.read_all_images():
            transform = invert_transform(np.loadtxt(FRAMES / f"{Path(image.name).stem}.pose.txt"))
            u, _, v = np.linalg.svd(transform[:3, :3])  # the file has few digits
            transform[:3, :3] = u @ v
            listed = pycolmap.Image(name=image.name, camera_id=image.camera_id, image_id=image.image_id)
            known.add_image_with_trivial_frame(listed, pycolmap.Rigid3d(transform[:3]))
    pycolmap.triangulate_points(known, database, folder / "images", folder / "sparse" / "0", clear_points=True)
    for path in (folder / "images").iterdir():  # half the size takes a quarter of the time; the camera is scaled
        Image.open(path).resize((320, 240), Image.Resampling.BOX).save(path)
    return folder


def run(*arguments: str) -> str:
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_depth_of_real_pictures_agrees_and_is_not_worse(scene: Path) -> None:
    out = scene / "out"
    where = ["--images", str(scene / "images"), "--prior", f"onnx:{NETWORK}", "-o", str(out), "--min-track", "2"]
    output = run("colmap", str(scene / "sparse" / "0"), *where, "--consistent", "--rounds", "2")
    assert f"{COUNT} done" in output
    assert "the camera was scaled from 640x480" in output
    content = json.loads((out / "views.json").read_text())
    disagreement = [part["disagreement"] for part in content["rounds"] if part["disagreement"] is not None]
    assert disagreement[-1] < 0.5 * disagreement[0]
    errors: dict[str, list[float]] = {"alone/{}.npy": [], "{}_depth.npy": []}
    for view in content["views"]:
        counts = np.asarray(Image.open(FRAMES / f"{view['name']}.depth.png"))[::2, ::2].astype(np.float64)
        reference = np.where((counts > 0) & (counts < 10_000), counts / 1000, np.nan)
        for pattern, found in errors.items():
            found.append(float(np.nanmean(np.abs(np.load(out / pattern.format(view["name"])) / reference - 1))))
    alone, together = (np.mean(found) for found in errors.values())
    assert together < 1.02 * alone
    assert together < 0.2  # the points themselves are wrong by a tenth


@pytest.mark.skipif(find_spec("open3d") is None, reason="needs the extra 'mesh'")
def test_real_depth_is_fused(scene: Path) -> None:
    """Also the sensor's own depth, in the layout of 7-Scenes."""
    frames = scene / "frames"
    frames.mkdir()
    chosen = [path.name.split(".")[0] for path in sorted(FRAMES.glob("*.pose.txt"))[:COUNT]]
    for path in (FRAMES / "camera-intrinsics.txt", *(path for stem in chosen for path in FRAMES.glob(f"{stem}.*"))):
        shutil.copy(path, frames / path.name)
    output = run("fuse", str(frames), "-o", str(scene / "reference.ply"), "--max-depth", "4", "--voxel", "0.03")
    assert f"\n{COUNT} pictures: " in output
    assert (scene / "reference.ply").stat().st_size > 100_000
