"""The data sets of depth completion on trees in their exact layouts: crops, stored measurements, missing files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from leadline.base.errors import FileError, InputError, LeadlineError
from leadline.bench.observations import simulate
from leadline.datasets import DATASETS, dataset
from leadline.datasets.completion.sweeps import remove_behind, thin_lines
from leadline.datasets.tree_check import check_tree
from leadline.geometry.cameras import Camera
from support import completion_trees as made
from support import trees
from support.cli_frames import leadline

HALF = {"kitti": 0.5 / 256 + 1e-6, "mm": 0.5e-3 + 1e-6, "float": 1e-5}  # metres: half a count, or float32

# Name, maker of the tree, options, unit of the depth, label of the stored measurements.
TREES: dict[str, tuple[str, Callable[[Path], dict], dict[str, object], str, str | None]] = {
    "nyu": ("nyu", made.nyu, {"size": None, "crop": None}, "float", None),
    "nyu-labelled": ("nyu-labelled", made.nyu_labelled, {"size": None, "crop": None}, "float", None),
    "nyu-conti": ("nyu-conti", made.nyu_conti, {}, "float", "500"),
    "kitti-dc": ("kitti-dc", made.kitti_selection, {}, "kitti", "lidar"),
    "kitti-dc-val": ("kitti-dc-val", made.kitti_validation, {"crop": None}, "kitti", "lidar"),
    "kitti-dc-val-joined": (
        "kitti-dc-val",
        lambda root: made.kitti_validation(root, split_parts=False),
        {"crop": None},
        "kitti",
        "lidar",
    ),
    "void": ("void", made.void, {}, "kitti", "vio"),
    "void-150": ("void", lambda root: made.void(root, 150), {"density": 150}, "kitti", "vio"),
    "ddad": ("ddad", made.ddad, {}, "kitti", "lidar"),
    "scannet": ("scannet", made.scannet, {}, "mm", None),
    "uniformat": ("uniformat", made.uniformat, {}, "float", "dep"),
}


# Files without which there is no list of images, so that the missing file is an error and not an entry of the report.
LISTING = ("nyu_img_gt.h5", "splits.mat")


@pytest.fixture(params=TREES)
def tree(request, tmp_path):
    name, make, options, unit, label = TREES[request.param]
    frames = make(tmp_path)
    return dataset(name, tmp_path, **options), frames, HALF[unit], label


def test_loader_returns_what_the_files_hold(tree):
    data, frames, tolerance, label = tree
    assert data.names() == list(frames)
    for name, frame in frames.items():
        scene = data.load(name)
        assert scene.name == name
        lossy = data.files(name)[0].suffix == ".jpg"
        assert np.abs(scene.image.astype(int) - frame.image).max() <= (2 if lossy else 0)
        assert_allclose(scene.reference, frame.depth, rtol=1e-6, atol=tolerance)  # NaN must agree
        assert list(scene.sparse) == ([] if label is None else [label])
        if label is not None:
            values = scene.sparse[label].values
            assert values.dtype == np.float32
            assert_allclose(values, frame.sparse, rtol=1e-6, atol=tolerance)
        assert (scene.camera.width, scene.camera.height) == scene.image.shape[1::-1]
        assert all(path.is_file() for path in data.files(name))


def test_every_file_is_needed_and_named(tree):
    """Each file that `files` lists is needed: without it, or cut short, the error names it."""
    data, _, _, _ = tree
    name = data.names()[0]
    for path in data.files(name):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(LeadlineError, match=re.escape(str(path))):
            data.names() and data.load(name)
        if path.name not in LISTING and len(data.files(name)) > 1:
            assert path in check_tree(data, reads=0).missing
        for damaged in (b"", b"\xff?" if path.suffix == ".txt" else content[: len(content) // 2]):
            path.write_bytes(damaged)
            if path.name == "splits.mat" and damaged:
                continue  # the table of a test split is so short that half of it may hold what is needed
            with pytest.raises(LeadlineError, match=re.escape(str(path))):
                data.names() and data.load(name)
        path.write_bytes(content)
    assert data.load(name).name == name


def test_depth_limits(tree):
    data, frames, _, _ = tree
    limited = type(data)(data.root, **{**_options(data), "max_depth": 4.0})
    name = next(iter(frames))
    free, capped = data.load(name).reference, limited.load(name).reference
    assert_array_equal(capped, np.where(free <= 4.0, free, np.nan))


def _options(data):
    return {key: getattr(data, key) for key in ("size", "crop", "density") if hasattr(data, key)}


# ---- NYU


@pytest.mark.parametrize("kind", ["nyu", "nyu-labelled"])
def test_nyu_is_resized_then_cropped_at_the_centre(kind, tmp_path):
    name, make, _, _, _ = TREES[kind]
    frames = make(tmp_path)
    data = dataset(name, tmp_path)
    image = next(iter(frames))
    scene, frame = data.load(image), frames[image]
    assert scene.image.shape == (228, 304, 3)
    assert scene.reference.shape == (228, 304)
    # torchvision's Resize(240) and CenterCrop((228, 304)) of PIL images: bilinear with averaging, then rows 6 to 233
    # and columns 8 to 311.
    box = (8, 6, 312, 234)
    bilinear = Image.Resampling.BILINEAR
    assert_array_equal(scene.image, np.array(Image.fromarray(frame.image).resize((320, 240), bilinear).crop(box)))
    depth = Image.fromarray(frame.depth.astype(np.float32)).resize((320, 240), bilinear).crop(box)
    assert_array_equal(scene.reference, np.array(depth))
    # Half the published focal length and principal point, minus the crop, as in NLSPN and OMNI-DC.
    expected = (518.85790117450188 / 2, 519.46961112127485 / 2, 325.58244941119034 / 2 - 8, 253.73616633400465 / 2 - 6)
    camera = scene.camera
    assert_allclose((camera.fx, camera.fy, camera.cx, camera.cy), expected, rtol=1e-12)
    nearest = dataset(name, tmp_path, resize="nearest").load(image)
    assert_array_equal(nearest.image, frame.image[1::2, 1::2][6:234, 8:312])
    whole = dataset(name, tmp_path, crop=None).load(image)
    assert whole.image.shape == (240, 320, 3)


def test_nyu_equals_the_loader_of_nlspn(tmp_path):
    """Image, ground truth and 500 points of the first image, obtained with NLSPN's data/nyu.py and torchvision 0.29."""
    made.nyu(tmp_path)
    scene = dataset("nyu", tmp_path).load("00001")
    points = simulate(scene, "randperm:500", dataset="nyu").sparse
    depths = (np.nan_to_num(values).astype("<f4") for values in (scene.reference, points))
    digests = [hashlib.sha256(values.tobytes()).hexdigest()[:16] for values in (scene.image, *depths)]
    assert digests == ["e698699c145771d4", "777c8e90d65e4b8d", "c4994f889bdd214f"]


def test_nyu_averages_missing_depth_as_zeros(tmp_path):
    """As published evaluations do: a hole makes its neighbours nearer, and only what is left at 0 is missing."""
    depth = np.full((480, 640), 2.0, np.float32)
    depth[100:110] = 0
    arrays = {"rgb": np.zeros((3, 480, 640), np.uint8), "depth": depth}
    made.save_hdf5(tmp_path / "val" / "official" / "00001.h5", arrays)
    reference = dataset("nyu", tmp_path, crop=None).load("00001").reference
    assert np.isnan(reference[51:54]).all()
    assert ((reference[50] > 0) & (reference[50] < 2)).all()


def test_nyu_labelled_has_the_official_split_and_both_depths(tmp_path):
    made.nyu_labelled(tmp_path)
    filled, raw = (dataset("nyu-labelled", tmp_path, depth=kind, size=None, crop=None) for kind in ("filled", "raw"))
    assert filled.names() == ["0002", "0004"]
    assert_allclose(raw.load("0004").reference, filled.load("0004").reference + 1, rtol=1e-6)
    with pytest.raises(FileError, match=r"nyu_depth_v2_labeled.mat: has no entry 99"):
        filled.load("0100")
    with pytest.raises(InputError, match="numbers as names"):
        filled.load("x")


# ---- KITTI


def test_kitti_sweep_is_thinned_before_the_top_is_removed(tmp_path):
    frames = made.kitti_selection(tmp_path)
    name = next(iter(frames))
    whole = dataset("kitti-dc", tmp_path).load(name)
    cropped = dataset("kitti-dc", tmp_path, lines=16, crop_top=10).load(name)
    thinned = thin_lines(whole.sparse["lidar"].values, whole.camera, 16)
    assert_array_equal(cropped.sparse["lidar"].values, thinned[10:])
    assert_array_equal(cropped.image, whole.image[10:])
    assert_array_equal(cropped.reference, whole.reference[10:])
    fx, fy, cx, cy = made.KITTI_K
    assert whole.camera == Camera(60, 24, fx, fy, cx, cy)
    assert cropped.camera == Camera(60, 14, fx, fy, cx, cy - 10)


def test_kitti_validation_is_cropped_at_the_bottom(tmp_path):
    frames = made.kitti_validation(tmp_path)
    left, right = frames
    data = dataset("kitti-dc-val", tmp_path, crop=[61, 20])
    scene = data.load(left)
    assert_array_equal(scene.image, frames[left].image[11:, 2:63])  # round((66 - 61) / 2) is 2, to even
    fx, fy, cx, cy = made.KITTI_K
    assert scene.camera == Camera(61, 20, fx, fy, cx - 2, cy - 11)
    assert data.load(right).camera.fx == fx + 1  # the other camera has a matrix of its own
    with pytest.raises(FileError, match="is 66x31, smaller than the crop"):
        dataset("kitti-dc-val", tmp_path).load(left)


def test_thinned_sweeps_and_filters_are_subsets():
    rng = np.random.default_rng(0)
    sparse = np.where(rng.random((40, 60)) < 0.3, rng.uniform(2, 30, (40, 60)), np.nan).astype(np.float32)
    camera = Camera(60, 40, 50.0, 50.0, 29.5, 19.5)
    assert_array_equal(thin_lines(sparse, camera, 64), sparse)
    counts = []
    for lines in (32, 16, 8, 4, 1):
        thinned = thin_lines(sparse, camera, lines)
        kept = np.isfinite(thinned)
        assert_array_equal(thinned[kept], sparse[kept])
        counts.append(int(kept.sum()))
    assert counts == sorted(counts, reverse=True)
    assert np.isnan(thin_lines(np.full((3, 4), np.nan), camera, 8)).all()
    one = np.full((3, 4), np.nan)
    one[1, 1] = 2.0
    assert_array_equal(thin_lines(one, camera, 8), one.astype(np.float32))
    for wrong in (0, 65, 2.5, True):
        with pytest.raises(InputError, match="`lines`"):
            thin_lines(sparse, camera, wrong)
    filtered = remove_behind(sparse)
    kept = np.isfinite(filtered)
    assert_array_equal(filtered[kept], sparse[kept])
    assert 0 < kept.sum() < np.isfinite(sparse).sum()
    flat = np.where(np.isfinite(sparse), np.float32(5.0), np.float32(np.nan))
    assert_array_equal(remove_behind(flat), flat)
    for options in ({"window": 4}, {"window": 0}, {"threshold": 0.0}):
        with pytest.raises(InputError, match=next(iter(options))):
            remove_behind(sparse, **options)


# ---- VOID, ScanNet, ARKit


def test_void_densities_and_ranges(tmp_path):
    made.void(tmp_path)
    with pytest.raises(FileError, match=r"void_500/test_image.txt"):
        dataset("void", tmp_path, density=500).names()
    with pytest.raises(InputError, match="`density` must be one of"):
        dataset("void", tmp_path, density=100)
    name = dataset("void", tmp_path).names()[0]
    free = dataset("void", tmp_path).load(name).reference
    limited = dataset("void", tmp_path, min_depth=2.0, max_depth=5.0).load(name).reference
    assert_array_equal(limited, np.where((free >= 2) & (free <= 5), free, np.nan))
    stored = dataset("void", tmp_path, validity=False).load(name).sparse["vio"].values
    assert stored[0, 0] == 999 / 256  # which the validity map does not have
    short = tmp_path / "void_release" / "void_1500" / "test_sparse_depth.txt"
    short.write_text(short.read_text().splitlines()[0], encoding="utf-8")
    with pytest.raises(FileError, match=r"test_sparse_depth.txt: lists 1 files, but test_image.txt lists 2"):
        dataset("void", tmp_path).names()


def test_scannet_without_and_with_a_list(tmp_path):
    frames = made.scannet(tmp_path)
    listed = tmp_path / "scannet_decotr_split.txt"
    assert dataset("scannet", tmp_path).names() == list(frames)
    listed.write_text("scene0708_01/300\n", encoding="utf-8")
    assert dataset("scannet", tmp_path).names() == ["scene0708_01/0300"]
    listed.unlink()
    assert dataset("scannet", tmp_path).names() == sorted(frames)
    with pytest.raises(FileError, match=r"other.txt"):
        dataset("scannet", tmp_path, split=tmp_path / "other.txt").names()
    listed.write_text("scene0708_01\n", encoding="utf-8")
    with pytest.raises(FileError, match="must have one <scene>/<number> a line, got 'scene0708_01'"):
        dataset("scannet", tmp_path).names()


def test_arkit_low_resolution_depth_is_a_stored_map(tmp_path):
    trees.arkit(tmp_path, frames=1)
    name = "41069021/41069021_8.000"
    with pytest.raises(LeadlineError, match=r"lowres_depth"):
        dataset("arkit-lowres", tmp_path, size=None).load(name)
    values = np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000
    levels = np.array([[2, 2, 2, 2], [1, 1, 1, 1], [0, 0, 0, 2]], np.uint8)
    for video in trees.ARKIT_VIDEOS:
        folder = tmp_path / "Validation" / video
        trees.save_png(folder / "lowres_depth" / f"{video}_8.000.png", values)
        trees.save_png(folder / "confidence" / f"{video}_8.000.png", levels)
    data = dataset("arkit-lowres", tmp_path, size=None)
    stored = data.load(name).sparse["lowres"].values
    assert_allclose(stored, np.where(values > 0, values / 1000, np.nan))
    sure = dataset("arkit-lowres", tmp_path, size=None, min_confidence=2).load(name).sparse["lowres"].values
    assert_array_equal(sure, np.where(levels == 2, stored, np.nan))
    turned = dataset("arkit-lowres", tmp_path, size=None, upright=True).load(name)
    assert_array_equal(turned.sparse["lowres"].values, np.rot90(stored, -1))  # the sky is on the left
    assert dataset("arkit", tmp_path, size=None).load(name).sparse == {}
    assert check_tree(data, reads=None).sound
    with pytest.raises(InputError, match="`min_confidence`"):
        dataset("arkit-lowres", tmp_path, min_confidence=3)


# ---- uniformat


def test_uniformat_cameras(tmp_path):
    for folder, matrix, expected in (
        ("KITTIDC_test_LiDAR_8", np.array([700.0, 701.0, 20.0, 13.0]), Camera(40, 26, 700.0, 701.0, 20.0, 13.0)),
        ("ETH3D_SfM_Indoor_test", np.eye(3), Camera(40, 26, 425.0, 425.0, 320.0, 240.0)),
        ("iBims_test_2150", np.eye(3), Camera(40, 26, 490.0, 490.0, 320.0, 240.0)),
        ("DIODE_Indoor_test_100", np.eye(3), None),
    ):
        root = tmp_path / folder
        root.mkdir()
        depth = np.ones((26, 40), np.float32)
        content = {"gt": depth, "rgb": np.zeros((26, 40, 3), np.uint8), "dep": depth, "K": matrix}
        np.save(root / "000000.npy", content)
        assert dataset("uniformat", root).load("000000").camera == expected
        assert dataset("uniformat", root).name == f"uniformat-{folder.lower()}"


# ---- ETH3D with points


def test_eth3d_points_are_projected_into_the_reduced_image(tmp_path):
    pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")
    width, height = 96, 72
    lens = (70.0, 70.5, 47.0, 36.5, 0.02, 0.01, 1e-4, -1e-4, 0.0, 0.0, 0.0, 0.0)
    frames = made.eth3d_sfm(tmp_path, width, height, lens)
    ((name, frame),) = frames.items()
    data = dataset("eth3d-sfm", tmp_path, size=(10, 8))
    assert data.names() == [name]
    scene = data.load(name)
    # 80x64 of 96x72: rows 4 to 67, columns 8 to 87, in blocks of 8x8.
    blocks = frame.depth[4:68, 8:88].reshape(8, 8, 10, 8)
    assert_allclose(scene.reference, np.nanmean(blocks, axis=(1, 3)), rtol=1e-5)
    assert scene.image.shape == (8, 10, 3)
    assert (scene.camera.width, scene.camera.height) == (10, 8)
    # Obtained with projectptsto2D of OMNI-DC's read_write_colmap_model.py, its 480x640 replaced by this size.
    sparse = scene.sparse["sfm"].values
    assert set(zip(*(axis.tolist() for axis in np.nonzero(np.isfinite(sparse))), strict=True)) == OMNI_SFM.keys()
    assert_allclose([sparse[place] for place in OMNI_SFM], list(OMNI_SFM.values()), atol=2e-6)
    assert dataset("eth3d-sfm", tmp_path, part="indoor", size=(10, 8)).names() == [name]
    with pytest.raises(FileError, match="one of the scenes courtyard"):
        dataset("eth3d-sfm", tmp_path, part="outdoor", split="val").names()
    points = tmp_path / "kicker/dslr_calibration_jpg/points3D.txt"
    points.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(FileError, match=r"points3D.txt: has no point \d+, which images.txt lists for DSC_6500.JPG"):
        data.load(name)
    points.unlink()
    assert points in check_tree(data, reads=0).missing
    with pytest.raises(FileError, match="too small"):
        dataset("eth3d-sfm", tmp_path).load(name)


OMNI_SFM = {
    **{(0, 7): 2.130756, (0, 9): 2.233240, (1, 6): 3.773105, (1, 7): 2.953199, (1, 8): 2.624860, (2, 4): 3.500233},
    **{(2, 6): 6.052422, (2, 7): 4.013109, (2, 8): 3.937086, (3, 4): 5.216923, (3, 5): 3.006449, (3, 6): 5.874049},
    **{(3, 7): 4.095368, (3, 8): 3.440044, (4, 4): 3.734856, (4, 5): 5.123500, (4, 6): 4.397613, (4, 7): 5.516895},
    **{(4, 8): 3.878558, (5, 4): 3.818185, (5, 5): 2.380484, (5, 6): 4.167170, (5, 7): 4.222142, (6, 5): 3.561275},
    **{(6, 7): 2.948945, (6, 8): 2.174947},
}


# ---- the command


def test_check_command_says_what_is_missing(tmp_path):
    made.kitti_selection(tmp_path)
    half = leadline(f"datasets check kitti-dc {tmp_path} --read all --data-option lines=64")
    assert half.exit_code == 1
    assert "measured   'lidar' in 2 of 2" in half.output
    assert half.output.endswith("absent     998 images of 1000 are not in this folder at all\nnot complete\n")
    for file in (tmp_path / "depth_selection/val_selection_cropped/velodyne_raw").iterdir():
        file.unlink()
    result = leadline(f"datasets check kitti-dc {tmp_path}")
    assert result.exit_code == 1
    assert "images     2 (the published evaluation has 1000)" in result.output
    assert "missing    2 files" in result.output
    assert "velodyne_raw_0000000005_image_02.png" in result.output
    void = DATASETS["void"]
    assert (void.absent(2, ["density"]), void.absent(2, ["split"]), void.absent(900)) == (798, 0, 0)
