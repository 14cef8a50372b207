"""The loaders of depth completion on real samples, placed into the layouts of the data sets."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from scipy.io import savemat

from leadline.bench.observations import simulate
from leadline.datasets import Scene, dataset
from leadline.datasets.scene_folders import SceneFolders
from leadline.io.depth import read_depth
from support import completion_trees as made
from support import trees
from support.paths import DATA as SHARED

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the real scenes in ../shared/data are not here")

HALF_COUNT = 0.5 / 256 + 1e-6  # metres


def place(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(SHARED / source, target)


def same(found: Scene, expected: Scene, label: str = "lidar") -> None:
    assert_array_equal(found.image, expected.image)
    assert_array_equal(found.reference, expected.reference)
    assert_array_equal(found.sparse[label].values, expected.sparse[label].values)


def test_kitti_selection(tmp_path: Path) -> None:
    scene, name = "kitti_dc/ttaz_ex4_cyclist", "2011_09_26_drive_0000_sync_image_0000000000_image_02"
    folder = tmp_path / "val_selection_cropped"
    place(f"{scene}/rgb.png", folder / "image" / f"{name}.png")
    truth, sweep = (name.replace("_image_", mark, 1) for mark in ("_groundtruth_depth_", "_velodyne_raw_"))
    place(f"{scene}/depth.png", folder / "groundtruth_depth" / f"{truth}.png")
    place(f"{scene}/sparse_lidar.png", folder / "velodyne_raw" / f"{sweep}.png")
    expected = SceneFolders(SHARED).load(scene)
    camera = expected.camera
    made.save_text(
        folder / "intrinsics" / f"{name}.txt", f"{camera.fx} 0 {camera.cx} 0 {camera.fy} {camera.cy} 0 0 1\n"
    )
    found = dataset("kitti-dc", tmp_path).load(name)
    same(found, expected)
    assert found.image.shape == (352, 1216, 3)
    assert found.camera == camera
    thinned = dataset("kitti-dc", tmp_path, lines=8, crop_top=96).load(name)
    assert thinned.image.shape == (256, 1216, 3)  # as OMNI-DC prepares it
    assert np.isfinite(thinned.sparse["lidar"].values).sum() == 2472  # no point lies in the top 96 rows


def test_kitti_validation(tmp_path: Path) -> None:
    scene, drive = "kitti_dc/2011_09_26_drive_0001_f005_cam02", "2011_09_26_drive_0001_sync"
    raw = tmp_path / "kitti_raw" / "2011_09_26"
    place(f"{scene}/rgb.png", raw / drive / "image_02" / "data" / "0000000005.png")
    place(f"{scene}/calib_cam_to_cam.txt", raw / "calib_cam_to_cam.txt")
    for file, part, kind in (
        ("depth.png", "data_depth_annotated", "groundtruth"),
        ("sparse_lidar.png", "data_depth_velodyne", "velodyne_raw"),
    ):
        place(f"{scene}/{file}", tmp_path / part / "val" / drive / "proj_depth" / kind / "image_02" / "0000000005.png")
    expected, name = SceneFolders(SHARED).load(scene), f"{drive}/image_02/0000000005"
    whole = dataset("kitti-dc-val", tmp_path, crop=None).load(name)
    same(whole, expected)
    assert_allclose((whole.camera.fx, whole.camera.cx), (expected.camera.fx, expected.camera.cx))
    cropped = dataset("kitti-dc-val", tmp_path).load(name)
    assert_array_equal(cropped.reference, expected.reference[23:, 13:1229])


def test_nyu(tmp_path: Path) -> None:
    expected = SceneFolders(SHARED).load("nyuv2/basement_00000")
    arrays = {"rgb": expected.image.transpose(2, 0, 1), "depth": np.nan_to_num(expected.reference)}
    made.save_hdf5(tmp_path / "val" / "official" / "00001.h5", arrays)
    whole = dataset("nyu", tmp_path, size=None, crop=None).load("00001")
    assert_array_equal(whole.reference, expected.reference)
    scene = dataset("nyu", tmp_path).load("00001")
    assert scene.image.shape == (228, 304, 3)
    assert simulate(scene, "randperm:500", dataset="nyu").count == 500


def test_void(tmp_path: Path) -> None:
    scene = SceneFolders(SHARED).load("void/any2full_void_150_1")
    points = scene.sparse["vio"].values
    folder = tmp_path / "void_150" / "data" / "sequence"
    place("void/any2full_void_150_1/rgb.png", folder / "image" / "1.0.png")
    # The sample has no ground truth: the points themselves are in its place.
    for kind in ("sparse_depth", "ground_truth"):
        trees.save_png(folder / kind / "1.0.png", trees.counts(points, 1 / 256))
    trees.save_png(folder / "validity_map" / "1.0.png", (256 * np.isfinite(points)).astype(np.uint16))
    np.savetxt(folder / "K.txt", np.eye(3) * 500)
    for kind in ("image", "sparse_depth", "validity_map", "ground_truth", "intrinsics"):
        last = "K.txt" if kind == "intrinsics" else f"{kind}/1.0.png"
        made.save_text(tmp_path / "void_150" / f"test_{kind}.txt", f"void_150/data/sequence/{last}\n")
    found = dataset("void", tmp_path, density=150).load("sequence/1.0")
    assert_array_equal(found.image, scene.image)
    assert_allclose(found.sparse["vio"].values, points, atol=HALF_COUNT)  # NaN must agree
    assert simulate(found, "stored", dataset="void").count == 225


def test_ddad(tmp_path: Path) -> None:
    name, stem = "dgp_ddad_rig/scene_01_CAMERA_01", "0000000000"
    expected = SceneFolders(SHARED).load(name)
    (tmp_path / "rgb").mkdir()
    Image.fromarray(expected.image).save(tmp_path / "rgb" / f"{stem}.png")
    for kind in ("gt", "hints"):  # the sample has no denser reference
        place(f"{name}/lidar_depth_u16.png", tmp_path / kind / f"{stem}.png")
    camera = expected.camera
    made.save_text(
        tmp_path / "intrinsics" / f"{stem}.txt", f"{camera.fx} 0 {camera.cx} 0 {camera.fy} {camera.cy} 0 0 1"
    )
    found = dataset("ddad", tmp_path).load(stem)
    assert_array_equal(found.sparse["lidar"].values, expected.sparse["lidar"].values)
    assert found.camera == camera
    assert 0 < simulate(found, "stored+behind:7:1.5", dataset="ddad").count <= 4814


def test_arkit_pair(tmp_path: Path) -> None:
    scene, stem = "arkit/promptda_example", "41069021_305.244"
    folder = tmp_path / "Validation" / "41069021"
    expected = SceneFolders(SHARED).load(scene)
    (folder / "wide").mkdir(parents=True)
    Image.fromarray(expected.image).save(folder / "wide" / f"{stem}.png", compress_level=1)
    place(f"{scene}/lowres_arkit_depth.png", folder / "lowres_depth" / f"{stem}.png")
    low = read_depth(folder / "lowres_depth" / f"{stem}.png", "mm").values
    height, width = expected.image.shape[:2]
    rows, columns = np.arange(height) * low.shape[0] // height, np.arange(width) * low.shape[1] // width
    # The sample has no laser depth; the sensor's own, enlarged, is in its place.
    trees.save_png(folder / "highres_depth" / f"{stem}.png", trees.counts(low[np.ix_(rows, columns)], 1e-3))
    trees.save_png(folder / "confidence" / f"{stem}.png", np.full(low.shape, 2, np.uint8))
    found = dataset("arkit-lowres", tmp_path, size=(960, 720)).load(f"41069021/{stem}")
    assert_array_equal(found.sparse["lowres"].values, expected.sparse["arkit"].values)
    observations = simulate(found, "stored:lowres", dataset="arkit")
    assert observations.count == 49152
    # Each measurement lies on the surface that it was enlarged to.
    known = np.isfinite(observations.sparse)
    assert_allclose(observations.sparse[known], found.reference[known], atol=1e-3)


def test_ibims_has_the_points_of_marigold_dc(tmp_path: Path) -> None:
    """The points that Marigold-DC ships with this image, of which it also ships the masked ground truth."""
    folder = SHARED / "ibims1" / "atrium_plants"
    truth, shipped = (np.load(folder / file) for file in ("depth.npy", "sparse_1000.npy"))
    valid = (truth > 0).astype(np.uint8)
    image = np.asarray(Image.open(folder / "rgb.png").convert("RGB"))
    content = {"rgb": image, "depth": truth, "calib": np.eye(3), "mask_invalid": valid, "mask_transp": valid}
    (tmp_path / "ibims1_core_mat").mkdir()
    savemat(tmp_path / "ibims1_core_mat" / "atrium.mat", {"data": content})
    scene = dataset("ibims", tmp_path, max_depth=None).load("atrium")
    found = simulate(scene, "marigold:1000", dataset="ibims").sparse
    assert_array_equal(np.nan_to_num(found), shipped.astype(np.float32))


def test_diode(tmp_path: Path) -> None:
    name = "00019_00183_indoors_150_000"
    scan = tmp_path / "val" / "indoors" / "scene_00019" / "scan_00183"
    for file in ("rgb.png", "depth.npy", "depth_mask.npy"):
        suffix = ".png" if file == "rgb.png" else f"_{file}"
        place(f"diode_indoor/{name}/{file}", scan / f"{name}{suffix}")
    data = dataset("diode-indoor", tmp_path)
    found, expected = data.load(*data.names()), SceneFolders(SHARED).load(f"diode_indoor/{name}")
    assert_array_equal(found.image, expected.image)
    assert_array_equal(found.reference, expected.reference)
    assert simulate(found, "marigold:1000", dataset="diode").count == 1000
