"""Every loader on a small tree in its exact layout: what comes out, what is left out, and what a bad file says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from leadline.base.errors import FileError, InputError, LeadlineError
from leadline.datasets import DATASETS, Dataset, Scene, dataset
from leadline.datasets.downsampling import downsample_depth, downsample_image
from leadline.geometry.cameras import Camera, CameraModel, RayCamera
from leadline.geometry.grids import rotate90
from support import trees

FLOAT32 = 1e-6  # relative: stored as float32
HALF_MM, HALF_IBIMS = 0.5e-3 + 1e-6, 25 / 65535 + 1e-6  # metres: half a count of the PNG
LOG_STEP = 0.5 * np.log(trees.MOGE_RANGE[1] / trees.MOGE_RANGE[0]) / 65533 + FLOAT32  # relative: half a log code
JPEG_GREYS = 4  # at quality 100 and with full colour resolution, even of noise

ROUNDING = 1e-9  # pixels: double precision in the oracle, whole numbers in what is tested
FIXED_POINT = 1.0  # greys: Pillow divides by multiplying with a rounded reciprocal

FULL = {"size": None, "with_camera": False}
# Name, the tree's maker, options, half a step of the stored depth (absolute, relative), cap in metres.
TREES: dict[str, tuple[str, Callable[[Path], dict[str, trees.Frame]], dict[str, object], float, float, float]] = {
    "diode": ("diode-indoor", trees.diode, {}, 0, FLOAT32, np.inf),
    "diode-outdoor": ("diode-outdoor", lambda root: trees.diode(root, "outdoor"), {}, 0, FLOAT32, np.inf),
    "eth3d": ("eth3d", trees.eth3d, FULL, 0, FLOAT32, np.inf),
    "eth3d-repacked": ("eth3d", lambda root: trees.eth3d(root, repacked=True), FULL, 0, FLOAT32, np.inf),
    "ibims-raw": ("ibims", trees.ibims_raw, {}, HALF_IBIMS, FLOAT32, 10),
    "ibims-mat": ("ibims", trees.ibims_mat, {}, 0, FLOAT32, 10),
    "ibims-mat73": ("ibims", lambda root: trees.ibims_mat(root, hdf5=True), {}, 0, FLOAT32, 10),
    "arkit": ("arkit", trees.arkit, {"size": None, "frames": None, "upright": False}, HALF_MM, FLOAT32, 10),
    "moge": ("moge", trees.moge, {}, 0, LOG_STEP, np.inf),
    "marigold": ("marigold", trees.marigold, {}, 0, FLOAT32, np.inf),
    "scenes": ("scenes", trees.scenes, {}, HALF_MM, FLOAT32, np.inf),
}


def opened(kind: str, root: Path, **options: object) -> tuple[Dataset, dict[str, trees.Frame]]:
    name, make, defaults, *_ = TREES[kind]
    frames = make(root)
    return dataset(name, root, **{**defaults, **options}), frames


@pytest.mark.parametrize("kind", TREES)
def test_loader_returns_image_depth_and_camera_of_the_files(kind: str, tmp_path: Path) -> None:
    name, _, _, absolute, relative, cap = TREES[kind]
    data, frames = opened(kind, tmp_path)
    assert isinstance(data, Dataset)
    assert data.name.startswith(name)
    names = data.names()
    assert names == data.names()
    wanted = [key for key in frames if key != "set_b/bare"]  # the scene without a reference
    assert names == wanted if kind in ("moge", "arkit") else names == sorted(wanted)
    for key in names:
        scene, frame = data.load(key), frames[key]
        assert isinstance(scene, Scene)
        assert (scene.name, scene.image.dtype, scene.image.shape) == (key, np.uint8, frame.image.shape)
        lossy = "jpg" in data.files(key)[0].suffix.lower()
        assert np.abs(scene.image.astype(int) - frame.image).max() <= (JPEG_GREYS if lossy else 0)
        assert scene.reference is not None
        assert scene.reference.dtype == np.float32
        expected = np.where(frame.depth <= cap, frame.depth, np.nan)
        # A depth within half a count of the cap may be rounded across it.
        sure = ~(np.abs(frame.depth - cap) <= absolute)
        assert_array_equal(np.isfinite(scene.reference)[sure], np.isfinite(expected)[sure])
        both = np.isfinite(scene.reference) & np.isfinite(expected)
        assert_allclose(scene.reference[both], expected[both], rtol=relative, atol=absolute)
        assert both.sum() > 30
        assert all(path.is_file() for path in data.files(key))


@pytest.mark.parametrize("kind", TREES)
def test_load_reads_exactly_its_files(kind: str, tmp_path: Path) -> None:
    """Each file that `files` lists is needed: without it, or cut short, the error names it."""
    data, _ = opened(kind, tmp_path)
    name = data.names()[0]
    for path in data.files(name):
        content = path.read_bytes()
        path.unlink()
        if path.suffix != ".pincam":  # another frame's will do, see below
            with pytest.raises(LeadlineError, match=re.escape(str(path))):
                data.load(name)
        for damaged in (b"", b"\xff?" if path.suffix == ".txt" else content[: len(content) // 2]):
            path.write_bytes(damaged)
            with pytest.raises(LeadlineError, match=re.escape(str(path))):
                data.load(name)
        path.write_bytes(content)
    assert data.load(name).name == name


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("diode", "val/indoors/scene_00019/scan_00183/00019_00183_indoors_000_010_depth.npy"),
        ("diode", "val/indoors/scene_00019/scan_00183/00019_00183_indoors_000_010_depth_mask.npy"),
        ("ibims-raw", "ibims1_core_raw/depth/corridor_01.png"),
        ("ibims-raw", "ibims1_core_raw/mask_transp/corridor_01.png"),
        ("arkit", "Validation/41069021/highres_depth/41069021_8.000.png"),
        ("moge", "b/two/depth.png"),
        ("marigold", "gt/0000.npy"),
        ("scenes", "set_a/one/depth.png"),
        ("scenes", "set_a/one/mask.png"),
    ],
)
def test_wrong_shape_raises(kind: str, wrong: str, tmp_path: Path) -> None:
    data, _ = opened(kind, tmp_path)
    path = tmp_path / wrong
    if path.suffix == ".npy":
        np.save(path, np.ones((5, 7)))
    else:
        texts = {"near": "1", "far": "2"} if kind == "moge" else {}
        trees.save_png(path, np.ones((5, 7), dtype=np.uint16), **texts)
    with pytest.raises(FileError, match=re.escape(str(path)) + r".*7x5.*same size"):
        data.load(data.names()[0])


def test_wrong_sizes_of_raw_and_mat_files(tmp_path: Path) -> None:
    data, _ = opened("eth3d", tmp_path / "e")
    depth = data.files("office/DSC_0219")[1]
    depth.write_bytes(depth.read_bytes() + b"1234")
    with pytest.raises(FileError, match=r"DSC_0219.JPG: has 1540 bytes, but 24x16 pixels of float32 take 1536"):
        data.load("office/DSC_0219")
    (tmp_path / "i").mkdir()
    mat, _ = opened("ibims-mat", tmp_path / "i")
    from scipy.io import loadmat, savemat

    file = mat.files("corridor_01")[0]
    content = loadmat(file)["data"][0, 0]
    fields = {field: content[field] for field in content.dtype.names}
    savemat(file, {"data": {**fields, "mask_transp": np.ones((3, 3))}})
    with pytest.raises(FileError, match=r"corridor_01.mat: data.mask_transp must be numbers of shape \(16, 24\)"):
        mat.load("corridor_01")
    del fields["calib"]
    savemat(file, {"data": fields})
    with pytest.raises(FileError, match=r"has no field calib"):
        mat.load("corridor_01")
    savemat(file, {"other": 1.0})
    with pytest.raises(FileError, match="no variable `data`"):
        mat.load("corridor_01")


# ---- cameras


def test_cameras_are_those_of_the_files(tmp_path: Path) -> None:
    def camera(kind: str, **options: object) -> CameraModel | None:
        root = tmp_path / (kind + str(len(options)))
        root.mkdir()
        data, _ = opened(kind, root, **options)
        return data.load(data.names()[0]).camera

    w, h = trees.WIDTH, trees.HEIGHT
    assert camera("diode") == Camera(w, h, 886.81, 927.06, 511.5, 383.5)
    assert camera("diode", intrinsics=(1321.4, 1321.4, 511.5, 383.5)) == Camera(w, h, 1321.4, 1321.4, 511.5, 383.5)
    assert camera("diode-outdoor", intrinsics=None) is None
    assert camera("ibims-raw") == Camera(w, h, *trees.IBIMS_CALIB)
    assert camera("ibims-mat") == camera("ibims-mat73") == Camera(w, h, *trees.IBIMS_CALIB)
    assert camera("marigold") == Camera(w, h, 20.0, 21.0, 12.0, 8.0)
    assert camera("scenes") == Camera(w, h, 20, 21, 11.5, 7.5)
    # Normalised and from the corner: 0.5 of the width is the middle of the picture, between two pixels.
    assert camera("moge") == Camera(w, h, 0.75 * w, 1.1 * h, w / 2 - 0.5, 0.48 * h - 0.5)


def test_eth3d_has_the_rays_of_its_lens(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap", reason="rays of distorted lenses are pycolmap's")
    data, _ = opened("eth3d", tmp_path, with_camera=True, size=(6, 4))
    scene = data.load("courtyard/DSC_0286")
    assert scene.image.shape == (4, 6, 3)
    assert isinstance(scene.camera, RayCamera)
    lens = pycolmap.Camera(
        model="THIN_PRISM_FISHEYE", width=trees.WIDTH, height=trees.HEIGHT, params=list(trees.ETH3D_PARAMS)
    )
    # The middle of small pixel (column 4, row 1) in the large picture, in COLMAP's coordinates, from its corner.
    assert_allclose(scene.camera.rays[1, 4], lens.cam_from_img(np.array([4.5 * 4, 1.5 * 4])), rtol=1e-5)
    assert data.load("courtyard/DSC_0287").camera is scene.camera  # a million rays, computed once
    images = tmp_path / "courtyard" / "dslr_calibration_jpg" / "images.txt"
    images.write_text(images.read_text(encoding="utf-8").replace("DSC_0286", "DSC_9999"), encoding="utf-8")
    with pytest.raises(FileError, match=r"images.txt: does not list dslr_images/DSC_0286.JPG"):
        data.load("courtyard/DSC_0286")


@pytest.mark.parametrize("video", trees.ARKIT_VIDEOS)
def test_arkit_image_and_camera_are_rotated_together(video: str, tmp_path: Path) -> None:
    """A point's pixel, followed through resize and turn by hand, is where the turned camera sees it."""
    trees.arkit(tmp_path, frames=1)
    flat = dataset("arkit", tmp_path, size=None, upright=False).load(f"{video}/{video}_8.000")
    turned = dataset("arkit", tmp_path, size=None, upright=True).load(f"{video}/{video}_8.000")
    height, width = flat.image.shape[:2]
    assert (width, height) == (30, 22)
    fx, fy, cx, cy = trees.ARKIT_PINCAM
    assert isinstance(flat.camera, Camera)
    assert_allclose((flat.camera.fx, flat.camera.cx), (fx * 7.5, (cx + 0.5) * 7.5 - 0.5))
    assert_allclose((flat.camera.fy, flat.camera.cy), (fy * 22 / 3, (cy + 0.5) * 22 / 3 - 0.5))
    sky = trees.ARKIT_VIDEOS[video]
    # Where the side that holds the sky must be: the first row of the turned picture.
    side = {"Up": flat.image[0], "Left": flat.image[::-1, 0], "Right": flat.image[:, -1], "Down": flat.image[-1, ::-1]}
    assert_array_equal(turned.image[0], side[sky])
    assert flat.reference is not None
    assert turned.reference is not None
    assert turned.camera is not None
    # Distances between points do not change when a camera is turned about its axis.
    before, after = flat.camera.points(flat.reference), turned.camera.points(turned.reference)
    lengths = np.sort(np.linalg.norm(before, axis=-1).ravel())
    assert_allclose(np.sort(np.linalg.norm(after, axis=-1).ravel()), lengths, rtol=FLOAT32)
    assert_allclose(np.sort(after[..., 2].ravel()), np.sort(before[..., 2].ravel()))


def test_arkit_takes_four_frames_in_order_of_time(tmp_path: Path) -> None:
    trees.arkit(tmp_path, frames=6)
    names = dataset("arkit", tmp_path).names()
    first = [name.partition("_")[2] for name in names if name.startswith("41069021/")]
    assert first == ["8.000", "13.000", "15.500", "20.500"]  # of six, numbers 0, 2, 3 and 5
    assert len(names) == 4 * len(trees.ARKIT_VIDEOS)
    assert len(dataset("arkit", tmp_path, frames=1).names()) == len(trees.ARKIT_VIDEOS)
    assert len(dataset("arkit", tmp_path, frames=9).names()) == 6 * len(trees.ARKIT_VIDEOS)
    ends = dataset("arkit", tmp_path, selection="ends").names()
    assert [name.partition("_")[2] for name in ends[:4]] == ["8.000", "13.000", "15.500", "20.500"]
    ends = dataset("arkit", tmp_path, selection="ends", frames=3).names()
    # np.linspace(0, 5, 3) is 0, 2.5, 5, and round takes the even number.
    assert [name.partition("_")[2] for name in ends[:3]] == ["8.000", "13.000", "20.500"]
    assert len(dataset("arkit", tmp_path, selection="ends", frames=1).names()) == len(trees.ARKIT_VIDEOS)


def test_arkit_at_the_papers_size(tmp_path: Path) -> None:
    trees.arkit(tmp_path, frames=1, scale=600)  # 1200x900
    data = dataset("arkit", tmp_path)
    assert {data.load(name).image.shape for name in data.names()} == {(384, 512, 3)}  # rows by columns, none turned
    data = dataset("arkit", tmp_path, upright=True)
    upright, wide = data.load("41069021/41069021_8.000"), data.load("41069043/41069043_8.000")
    assert (upright.image.shape, wide.image.shape) == ((512, 384, 3), (384, 512, 3))
    assert isinstance(wide.camera, Camera)
    assert isinstance(upright.camera, Camera)
    assert (upright.camera.width, upright.camera.height) == (384, 512)
    assert_allclose(wide.camera.fx, trees.ARKIT_PINCAM[0] * 512 / 4)
    assert_allclose(upright.camera.fy, wide.camera.fx)
    assert np.nanmax(wide.reference) <= 10  # type: ignore[type-var]


def test_arkit_intrinsics_elsewhere_and_missing(tmp_path: Path) -> None:
    trees.arkit(tmp_path / "raw", frames=2)
    trees.arkit(tmp_path / "up", frames=2)
    name = "41069021/41069021_10.500"
    for folder in (tmp_path / "up").rglob("lowres_wide_intrinsics"):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert dataset("arkit", tmp_path / "up", size=None).load(name).camera is None
    data = dataset("arkit", tmp_path / "up", size=None, intrinsics=str(tmp_path / "raw"))
    assert data.load(name).camera is not None
    assert data.files(name)[-1].name == "41069021_10.510.pincam"  # ten milliseconds late
    data.files(name)[-1].unlink()
    with pytest.raises(FileError, match=r"41069021_10.500.pincam: no such file, nor one within"):
        data.load(name)
    table = tmp_path / "up" / "metadata.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("Left", "NA"), encoding="utf-8")
    with pytest.raises(FileError, match=r"metadata.csv: gives video 41069021 the sky_direction 'NA'.*upright=False"):
        dataset("arkit", tmp_path / "up", size=None, upright=True).load(name)


# ---- sizes


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 8), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_downsampled_depth_is_in_its_footprint(height: int, width: int, more: int, wider: int, seed: int) -> None:
    """Against a loop over all pixels: every value is one of the footprint's, and the nearest measured one."""
    generator = np.random.default_rng(seed)
    depth = np.where(generator.random((height + more, width + wider)) < 0.6, np.inf, 1.0)
    depth *= generator.uniform(1, 2, depth.shape).round(1)
    result = downsample_depth(depth, (height, width), "nearest-valid")
    plain = downsample_depth(depth, (height, width), "nearest")
    rows, columns = (np.arange(size) + 0.5 for size in depth.shape)
    for row, column in np.ndindex(height, width):
        scale_y, scale_x = depth.shape[0] / height, depth.shape[1] / width
        y, x = (row + 0.5) * scale_y, (column + 0.5) * scale_x
        away = (rows - y)[:, None] ** 2 + (columns - x)[None, :] ** 2
        # A centre on the border of two footprints may go to either.
        inside, strict = (
            (np.abs(rows - y) < scale_y / 2 + slack)[:, None] & (np.abs(columns - x) < scale_x / 2 + slack)[None, :]
            for slack in (ROUNDING, -ROUNDING)
        )
        assert plain[row, column] == depth[int(y + ROUNDING), int(x + ROUNDING)]
        measured = np.isfinite(depth)
        if not np.isfinite(result[row, column]):
            assert not (strict & measured).any()
        else:
            nearest = away[inside & (depth == result[row, column])].min()
            assert nearest <= away[strict & measured].min(initial=np.inf) + ROUNDING


def test_downsampled_depth_prefers_the_nearer_surface() -> None:
    block = np.full((4, 4), np.nan)
    block[1, 1], block[2, 2], block[0, 0] = 5.0, 3.0, 1.0  # two equally near the middle, one nearer in depth only
    assert downsample_depth(block, (1, 1), "nearest-valid") == 3.0
    assert downsample_depth(block, (1, 1), "nearest") == 3.0  # pixel (2, 2): the middle lies between four


def test_eth3d_downsampling_preserves_scan_points(tmp_path: Path) -> None:
    trees.eth3d(tmp_path)
    name = "courtyard/DSC_0286"
    kept = dataset("eth3d", tmp_path, size=(6, 4), with_camera=False).load(name).reference
    plain = dataset("eth3d", tmp_path, size=(6, 4), with_camera=False, depth_rule="nearest").load(name).reference
    assert np.isfinite(kept).mean() > 0.9 > np.isfinite(plain).mean()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_downsampled_images_are_means(height: int, width: int, factor: int) -> None:
    image = np.random.default_rng(factor).integers(0, 256, (height * factor, width * factor, 3), dtype=np.uint8)
    means = image.reshape(height, factor, width, factor, 3).mean(axis=(1, 3))
    exact = factor in (1, 2, 4)
    assert np.abs(downsample_image(image, (height, width)) - means).max() <= (0.5 if exact else FIXED_POINT)
    with pytest.raises(InputError, match="is larger than the image's"):
        downsample_image(image, (height * factor + 1, width))


@given(st.integers(0, 3), st.integers(1, 5), st.integers(1, 5))
def test_rotation_preserves_rays(turns: int, height: int, width: int) -> None:
    """A ray's length and its pixel's value stay together, and four quarters are none."""
    camera = Camera(width, height, 3.0, 4.0, 0.25, 1.5)  # whole in binary, so that nothing is rounded
    values = np.random.default_rng(turns).uniform(1, 2, (height, width))
    lengths = np.linalg.norm(camera.points(values), axis=-1)
    after = np.linalg.norm(camera.rotated(turns).points(rotate90(values, turns)), axis=-1)
    assert_allclose(after, rotate90(lengths, turns))
    assert camera.rotated(turns).rotated(-turns) == camera


def test_scene_folders_that_are_symbolic_links_are_found(tmp_path: Path) -> None:
    trees.scenes(tmp_path / "elsewhere")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere" / "set_a")
    (tmp_path / "elsewhere" / "set_a" / "again").symlink_to(tmp_path / "elsewhere")  # without end
    assert dataset("scenes", tmp_path / "data").names() == ["linked/one", "linked/two"]


# ---- options and caps


@pytest.mark.parametrize("kind", ["diode", "ibims-raw", "ibims-mat", "arkit", "moge", "marigold", "scenes", "eth3d"])
def test_the_depth_limit_can_be_changed(kind: str, tmp_path: Path) -> None:
    data, _ = opened(kind, tmp_path, max_depth=3.0)
    other = dataset(TREES[kind][0], tmp_path, **{**TREES[kind][2], "max_depth": None})
    name = data.names()[0]
    capped, free = data.load(name).reference, other.load(name).reference
    assert np.nanmax(capped) <= 3.0 < 14 < np.nanmax(free)  # type: ignore[operator]
    assert_array_equal(np.isfinite(capped), free <= 3.0)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["ibims-raw", "ibims-mat", "arkit"])
def test_depth_beyond_the_limit_is_dropped_or_clipped(kind: str, tmp_path: Path) -> None:
    dropped, _ = opened(kind, tmp_path, max_depth=3.0)
    clipped = dataset(TREES[kind][0], tmp_path, **{**TREES[kind][2], "max_depth": 3.0, "beyond": "clip"})
    free = dataset(TREES[kind][0], tmp_path, **{**TREES[kind][2], "max_depth": None})
    name = dropped.names()[0]
    without, limited, whole = (data.load(name).reference for data in (dropped, clipped, free))
    assert_array_equal(limited, np.minimum(whole, np.float32(3.0)))  # type: ignore[arg-type]
    assert_array_equal(without, np.where(whole <= 3.0, whole, np.nan))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ibims", {"beyond": "cut"}, "`beyond` must be one of drop, clip, got 'cut'"),
        ("arkit", {"beyond": "cut"}, "`beyond` must be one of drop, clip, got 'cut'"),
        ("arkit", {"selection": "random"}, "`selection` must be one of centred, ends"),
        ("ibims", {"max_depth": 0}, "`max_depth` must be a positive number or None, got 0"),
        ("ibims", {"format": "tar"}, "`format` must be one of auto, raw, mat, got 'tar'"),
        ("ibims", {"cap": 3}, "takes no option 'cap'; choose one of beyond, format, max_depth"),
        ("arkit", {"fold": "Test"}, "`fold` must be one of Validation, Training"),
        ("arkit", {"frames": 0}, "`frames` must be a positive"),
        ("arkit", {"size": [3]}, r"`size` must be \(width, height\)"),
        ("eth3d", {"size": [1.5, 2]}, r"`size` must be \(width, height\)"),
        ("eth3d", {"depth_rule": "mean"}, "`depth_rule` must be one of nearest, nearest-valid"),
        ("diode-indoor", {"intrinsics": (0, 1, 2, 3)}, "fx and fy must be positive"),
        ("moge", {"metres_per_unit": -1}, "`metres_per_unit` must be a positive"),
        ("diode", {}, "did you mean 'diode-indoor' or 'diode-outdoor'"),
    ],
)
def test_wrong_options_raise(name: str, options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        dataset(name, tmp_path, **options)


@pytest.mark.parametrize("name", DATASETS)
def test_empty_or_missing_folder_raises(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such folder"):
        dataset(name, tmp_path / "nowhere")
    with pytest.raises(FileError, match=re.escape(str(tmp_path))):
        dataset(name, tmp_path).names()


def test_every_data_set_says_where_it_comes_from() -> None:
    assert all(facts.needs and facts.source and facts.licence for facts in DATASETS.values())
