"""Depth files: every format round-trips, bad files are explained in one sentence, guessed units come with a note."""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from leadline.base.errors import FileError, InputError
from leadline.io import DEPTH_SUFFIXES, UNITS, read_depth, read_values, write_depth, write_ply
from leadline.io.depth import write_sigma
from leadline.io.files import atomic_write
from support.paths import DATA

pytestmark = pytest.mark.filterwarnings("error")

FLOAT_FORMS = (".npy", ".npz", ".exr", ".pfm", ".tif", ".tiff", ".h5", ".hdf5", ".bin")
WRITABLE = (".png", *FLOAT_FORMS)
SIZES = ((1, 1), (1, 7), (5, 1), (3, 5), (37, 53))
PACKAGES = {".exr": "OpenEXR", ".tif": "tifffile", ".tiff": "tifffile", ".h5": "h5py", ".hdf5": "h5py", ".mat": "h5py"}

HALF_A_COUNT = 0.5 + 1e-6  # of the unit: rounding to nearest, plus float32 of metres over float64 of counts
LOG_STEP = 1e-4  # relative: half of ln(far / near) / 65533 is below 4e-5 for the 100:1 range used here
INDEX_DIGITS = 2e-3  # relative: index.json rounds to 1 mm, and percentiles of float16 maps to half a step


def need(suffix: str) -> None:
    if suffix in PACKAGES:
        pytest.importorskip(PACKAGES[suffix], reason=f"{suffix} needs leadline[files]")


def sample(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Depth of 0.5 to 50 m with every kind of missing pixel where there is room."""
    depth = np.exp(np.random.default_rng(seed).uniform(np.log(0.5), np.log(50.0), shape)).astype(np.float32)
    for index, missing in enumerate((np.nan, 0.0, -1.0, np.inf)):
        if index + 1 < depth.size:
            depth.flat[index + 1] = missing
    return depth


def cleaned(depth: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(np.nan))


def save_png(path: Path, values: np.ndarray, **texts: str) -> Path:
    info = PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    Image.fromarray(values).save(path, pnginfo=info)
    return path


# Round trips ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("suffix", FLOAT_FORMS)
def test_float_forms_keep_every_bit(tmp_path: Path, suffix: str, shape: tuple[int, int]) -> None:
    need(suffix)
    depth, path = sample(shape), tmp_path / f"depth{suffix}"
    before = depth.copy()
    write_depth(path, depth)
    back = read_depth(path, "m")
    np.testing.assert_array_equal(back.values, cleaned(depth))
    np.testing.assert_array_equal(depth, before)
    assert back.values.dtype == np.float32
    assert back.values.flags.c_contiguous
    assert back.values.flags.writeable
    assert (back.unit, back.guessed, back.note, back.path) == ("m", False, None, path)


@pytest.mark.parametrize("suffix", FLOAT_FORMS)
def test_invalid_values_of_float_formats(tmp_path: Path, suffix: str) -> None:
    need(suffix)
    path = tmp_path / f"depth{suffix}"
    write_depth(path, [[2.0, 0.0, np.nan]])
    expected = [[2.0, 0.0, 0.0]] if suffix == ".bin" else [[2.0, np.nan, np.nan]]
    np.testing.assert_array_equal(read_values(path), np.array(expected, np.float32))


@pytest.mark.parametrize("suffix", FLOAT_FORMS)
def test_float_forms_take_a_unit(tmp_path: Path, suffix: str) -> None:
    need(suffix)
    path = tmp_path / f"depth{suffix}"
    write_depth(path, [[1.5, 2.0]], "mm")
    np.testing.assert_array_equal(read_values(path), np.array([[1500.0, 2000.0]], np.float32))
    np.testing.assert_allclose(read_depth(path, "mm").values, [[1.5, 2.0]], rtol=1e-6)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("unit", ["mm", "cm", "kitti", "vkitti", "0.002", 0.0015, "ibims"])
def test_png_rounds_to_nearest(tmp_path: Path, unit: str | float, shape: tuple[int, int]) -> None:
    depth, path = np.minimum(sample(shape), np.float32(49.9)), tmp_path / "depth.png"
    write_depth(path, depth, unit)
    back = read_depth(path, unit)
    metres = UNITS.get(str(unit)) or float(unit)
    np.testing.assert_array_equal(np.isnan(back.values), ~(depth > 0))
    kept = depth > 0
    assert np.abs(back.values[kept].astype(float) - depth[kept]).max() <= HALF_A_COUNT * metres + 4e-6
    assert read_values(path).dtype == np.float32


@settings(deadline=None, max_examples=50)
@given(code=st.integers(1, 65534), unit=st.sampled_from([name for name in UNITS if name != "moge-log"]))
def test_codes_survive_metres(code: int, unit: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("codes")
    path = save_png(folder / "a.png", np.array([[code, 0, 65535]], np.uint16))
    depth = read_depth(path, unit).values
    assert np.isnan(depth[0, 1:]).all()  # 0 is missing, 65535 is a full counter
    write_depth(folder / "b.png", depth, unit)
    np.testing.assert_array_equal(read_values(folder / "b.png"), np.array([[code, 0, 0]], np.float32))


@pytest.mark.parametrize("shape", SIZES)
def test_log_coded_png(tmp_path: Path, shape: tuple[int, int]) -> None:
    depth, path = sample(shape), tmp_path / "depth.png"
    write_depth(path, depth, "moge-log")
    for unit in (None, "moge-log"):
        back = read_depth(path, unit)
        np.testing.assert_allclose(back.values, cleaned(depth), rtol=LOG_STEP)
        assert (back.unit, back.guessed, back.note) == ("moge-log", False, None)
    np.testing.assert_allclose(read_values(path), cleaned(depth), rtol=LOG_STEP)
    assert read_depth(path, "mm").unit != "moge-log"  # what a person states outranks the file


def test_log_code_by_hand(tmp_path: Path) -> None:
    path = save_png(
        tmp_path / "a.png", np.array([[0, 1, 65534, 65535, 1 + 65533 // 2]], np.uint16), near="1.0", far="100"
    )
    np.testing.assert_allclose(read_depth(path).values, [[np.nan, 1, 100, np.nan, 10]], rtol=LOG_STEP)
    path = save_png(tmp_path / "b.png", np.array([[1, 65534]], np.uint16), near="1", far="100", unit="0.5")
    np.testing.assert_allclose(read_depth(path).values, [[0.5, 50]], rtol=1e-6)


@pytest.mark.parametrize("texts", [{"near": "2", "far": "1"}, {"near": "x", "far": "1"}, {"near": "nan", "far": "1"}])
def test_log_code_with_a_bad_range(tmp_path: Path, texts: dict[str, str]) -> None:
    path = save_png(tmp_path / "a.png", np.ones((2, 2), np.uint16), **texts)
    with pytest.raises(FileError, match="are no range"):
        read_depth(path)


def test_log_code_must_be_in_the_file(tmp_path: Path) -> None:
    path = save_png(tmp_path / "a.png", np.ones((2, 2), np.uint16))
    with pytest.raises(FileError, match="near and far"):
        read_depth(path, "moge-log")
    with pytest.raises(InputError, match="PNG only"):
        write_depth(tmp_path / "a.npy", np.ones((2, 2)), "moge-log")


def test_empty_map_is_written_and_read(tmp_path: Path) -> None:
    for name, unit in (("a.png", None), ("b.png", "moge-log"), ("c.npy", None)):
        write_depth(tmp_path / name, np.zeros((2, 3)), unit)
        assert np.isnan(read_depth(tmp_path / name).values).all()


def test_suffix_in_any_case(tmp_path: Path) -> None:
    write_depth(tmp_path / "A.PNG", [[1.0]])
    assert read_depth(str(tmp_path / "A.PNG"), "MM").unit == "mm"


# Units ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["metre", "", "-1", "0", "nan", 0, -0.1, np.inf, True, "1e400"])
def test_bad_units_list_the_good_ones(tmp_path: Path, unit: Any) -> None:
    path = save_png(tmp_path / "a.png", np.ones((2, 2), np.uint16))
    with pytest.raises(InputError, match="mm, cm, m, kitti"):
        read_depth(path, unit)
    with pytest.raises(InputError, match="mm, cm, m, kitti"):
        write_depth(path, np.ones((2, 2)), unit)


def test_recorded_unit_can_be_given_back(tmp_path: Path) -> None:
    path = save_png(tmp_path / "a.png", np.full((2, 2), 4000, np.uint16))
    first = read_depth(path, 0.00025)
    assert first.unit == "0.00025 m"
    assert first.values[0, 0] == 1
    np.testing.assert_array_equal(read_depth(path, first.unit).values, first.values)


@pytest.mark.parametrize(
    ("median", "spread", "coverage", "unit"),
    [
        (2000, 1.5, 0.9, "mm"),  # a room from a depth camera
        (1500, 1.2, 0.001, "mm"),  # a few points of it
        (600, 1.3, 1.0, "mm"),  # a table top
        (3500, 4.6, 0.04, "kitti"),  # a street sweep, 14 m in the middle and 63 m at the end
        (2900, 14.0, 0.002, "kitti"),
        (7500, 3.9, 0.7, "tum"),  # a desk at 1.5 m
        (12000, 3.0, 0.8, "tum"),
        (1700, 9.6, 0.9, "mm"),  # a hall with a few far pixels
    ],
)
def test_guess_follows_magnitude(tmp_path: Path, median: int, spread: float, coverage: float, unit: str) -> None:
    rng = np.random.default_rng(1)
    sigma = np.log(spread) / 2.326  # so that the 99th percentile is `spread` times the median
    values = np.clip(median * np.exp(sigma * rng.standard_normal((200, 300))), 1, 65000).astype(np.uint16)
    values[rng.uniform(size=values.shape) > coverage] = 0
    back = read_depth(save_png(tmp_path / "a.png", values))
    assert (back.unit, back.guessed) == (unit, True)
    assert f"guessed as {unit} " in str(back.note)
    assert "set `unit` if that is wrong" in str(back.note)


def test_floats_are_metres_unless_absurd(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.full((3, 3), 150.0))
    assert (read_depth(path).unit, read_depth(path).guessed) == ("m", False)
    np.save(path, np.full((3, 3), 1500.0))
    back = read_depth(path)
    assert (back.unit, back.guessed, back.values[0, 0]) == ("mm", True, 1.5)
    assert "1.5 to 1.5 m" in str(back.note)
    assert read_depth(path, "m").values[0, 0] == 1500
    np.save(path, np.full((3, 3), 0.002))
    back = read_depth(path)
    assert (back.unit, back.guessed) == ("m", True)
    assert "relative" in str(back.note)


def test_too_far_for_16_bits_names_a_unit(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    for largest, advice in (
        (80.5, "'kitti'"),
        (300.0, "'cm'"),
        (7000.0, "unit of the measurements right"),
        (1e6, r"\.npy"),
    ):
        with pytest.raises(InputError, match=rf"reaches {re.escape(f'{largest:.6g}')} m.*{advice}"):
            write_depth(path, [[1.0, largest]])
    assert not list(tmp_path.iterdir())
    write_depth(path, [[65.534]])
    with pytest.raises(InputError, match=r"65\.535"):
        write_depth(path, [[65.535]])  # the count 65535 would be read as missing


# Clouds, whole outputs -------------------------------------------------------------------------------------


def test_ply(tmp_path: Path) -> None:
    points = np.array([[1.0, 2, 3], [np.nan, 0, 0], [4, 5, 6], [1e300, 0, 0], [0, -np.inf, 0]])
    colours = np.arange(15, dtype=np.uint8).reshape(5, 3)
    write_ply(tmp_path / "a.ply", points, colours)
    header, body = (tmp_path / "a.ply").read_bytes().split(b"end_header\n")
    assert header.decode().splitlines() == [
        "ply",
        "format binary_little_endian 1.0",
        "element vertex 2",
        *(f"property float {axis}" for axis in "xyz"),
        *(f"property uchar {colour}" for colour in ("red", "green", "blue")),
    ]
    assert body == struct.pack("<3f3B", 1, 2, 3, 0, 1, 2) + struct.pack("<3f3B", 4, 5, 6, 6, 7, 8)
    for bad_points, bad_colours in (
        (points[0], colours),
        (points, colours[:2]),
        (points, colours / 255),
        (points[:, :2], colours[:, :2]),
    ):
        with pytest.raises(InputError, match=r"\(N, 3\)|uint8"):
            write_ply(tmp_path / "b.ply", bad_points, bad_colours)
    assert not (tmp_path / "b.ply").exists()


def test_outputs_are_whole_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "a.npy"
    target.write_bytes(b"old")

    def fail(temporary: Path) -> None:
        assert temporary.parent == tmp_path
        assert temporary.suffix not in DEPTH_SUFFIXES
        temporary.write_bytes(b"half")
        assert target.read_bytes() == b"old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(target, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
    assert target.read_bytes() == b"old"

    def succeed(temporary: Path) -> None:
        temporary.write_bytes(b"new")

    atomic_write(target, succeed)
    assert target.read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_outputs_have_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_depth(tmp_path / "a.png", [[1.0]])
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a.png")]
    assert modes[0] == modes[1]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        write_depth(tmp_path / "none" / "a.png", [[1.0]])
    (tmp_path / "a.png").mkdir()
    with pytest.raises(FileError, match="folder"):
        write_depth(tmp_path / "a.png", [[1.0]])
    with pytest.raises(InputError, match=r"\(H, W\)"):
        write_depth(tmp_path / "b.png", [1.0, 2.0])

    def full(temporary: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="No space left"):
        atomic_write(tmp_path / "b.png", full)


# Real files ----------------------------------------------------------------------------------------------------------


def real_scenes() -> list[dict[str, Any]]:
    index = DATA / "index.json"
    return json.loads(index.read_text()) if index.exists() else []


def depth_entry(entry: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    folder = DATA / entry["name"]
    scene = json.loads((folder / "scene.json").read_text())
    stated = scene["reference"] if entry["depth_from"] == "reference" else scene["sparse"][0]
    return folder, stated


@pytest.mark.skipif(not real_scenes(), reason="the real scenes of ../shared/data are not here")
@pytest.mark.parametrize("entry", real_scenes(), ids=lambda entry: entry["name"])
def test_real_depth_matches_its_index(entry: dict[str, Any]) -> None:
    if entry["depth_from"] is None:
        pytest.skip("this scene has no metric depth")
    folder, stated = depth_entry(entry)
    path = folder / stated["file"]
    depth = read_depth(path, stated["metres_per_unit"], key=stated["key"]).values.copy()
    raw = read_values(path, key=stated["key"])
    assert raw.shape == depth.shape
    depth[np.isin(raw, np.array(stated["invalid"], dtype=raw.dtype))] = np.nan
    if stated.get("mask"):
        depth[~(read_values(folder / stated["mask"]) > 0)] = np.nan
    if stated.get("max_m"):
        depth[depth > stated["max_m"]] = np.nan
    found = depth[np.isfinite(depth)]
    np.testing.assert_allclose(found.size / depth.size, entry["coverage"], atol=1e-4)
    expected = [entry["depth_p1"], entry["depth_p50"], entry["depth_p99"]]
    np.testing.assert_allclose(np.percentile(found, (1, 50, 99)), expected, rtol=INDEX_DIGITS)


@pytest.mark.skipif(not real_scenes(), reason="the real scenes of ../shared/data are not here")
def test_guesses_on_real_files() -> None:
    """Every integer map in mm, KITTI's or TUM's unit is guessed right; every float map is taken as metres."""
    names = {UNITS[name]: name for name in ("mm", "kitti", "tum", "m")}
    wrong, seen = [], set()
    for entry in real_scenes():
        if entry["depth_from"] is None:
            continue
        folder, stated = depth_entry(entry)
        expected = names.get(stated["metres_per_unit"])
        back = read_depth(folder / stated["file"], key=stated["key"])
        assert back.guessed == (not folder.joinpath(stated["file"]).suffix.startswith(".np"))
        assert bool(back.note) == back.guessed
        seen.add(expected)
        if expected not in (None, back.unit):
            wrong.append((entry["name"], expected, str(back.note)))
    assert not wrong
    assert {"mm", "kitti", "tum", "m"} <= seen


def test_standard_deviations_of_zero_are_kept(tmp_path: Path) -> None:
    """In a depth map 0 is unknown; a standard deviation of 0 is that of an exact measurement."""
    sigma = np.array([[0.0, 0.5, np.nan]], np.float32)
    for name in ("a.npy", "a.npz", "a.pfm"):
        write_sigma(tmp_path / name, sigma)
        np.testing.assert_array_equal(read_values(tmp_path / name), sigma)
    with pytest.raises(InputError, match="cannot hold standard deviations"):
        write_sigma(tmp_path / "a.png", sigma)
