"""`leadline complete` straight from a sensor: a cloud in place of a map, and maps with levels of confidence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.geometry.grids import scatter_nearest
from leadline.io.depth import read_depth
from support.cli_frames import SHAPE, leadline, make_maps, refused
from support.paths import ROOT

pytestmark = pytest.mark.usefixtures("here")
POINTS = "complete photo.jpg --points sweep.npy --camera cam.json --extrinsics T.json --prior prior.npy -o out"
TOF = "complete photo.jpg --sparse tof.png --unit mm --scatter-sparse --prior prior.npy -o out --format npy"
HALF_MILLIMETRE = 0.5e-3 + 1e-6


def test_points_give_the_depth_of_project_and_then_complete() -> None:
    """The same bits as with the two commands one after the other, if no format rounds in between."""
    result = leadline(f"{POINTS} --format npy")
    assert result.exit_code == 0, result.output
    project = "project sweep.npy --camera cam.json --extrinsics T.json --image photo.jpg -o sparse.npy"
    assert leadline(project).exit_code == 0
    two = "complete photo.jpg --sparse sparse.npy --unit m --prior prior.npy -o two --format npy"
    assert leadline(two).exit_code == 0
    np.testing.assert_array_equal(np.load("out/photo_depth.npy"), np.load("two/photo_depth.npy"))
    np.testing.assert_array_equal(np.load("out/photo_sparse.npy"), np.load("sparse.npy"))
    assert Path("out/photo_points.png").exists()
    sparse = make_maps(0)[1]
    known = np.isfinite(np.load("sparse.npy"))
    depth = np.load("out/photo_depth.npy")
    np.testing.assert_allclose(depth[known], sparse[known] * 1e-3, atol=2 * HALF_MILLIMETRE)
    assert "complete already" in leadline(f"{POINTS} --format npy").output


def test_a_camera_of_another_size_is_scaled_for_points() -> None:
    camera = json.loads(Path("cam.json").read_text(encoding="utf-8"))
    twice = {name: 2 * value for name, value in camera.items() if name not in ("cx", "cy")}
    twice |= {name: 2 * camera[name] + 0.5 for name in ("cx", "cy")}
    Path("cam.json").write_text(json.dumps(twice), encoding="utf-8")
    result = leadline(POINTS)
    assert result.exit_code == 0, result.output
    assert "camera was scaled" in result.output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{POINTS} --sparse lidar.png", "give one of --sparse"),
        ("complete photo.jpg --prior prior.npy -o out", "is relative depth already; give --sparse"),
        (f"{POINTS} --unit mm", "--unit is for --sparse, and --points is a cloud"),
        (f"{POINTS} --scatter-sparse", "--scatter-sparse is for --sparse"),
        (f"{POINTS} --confidence levels.png", "--confidence is for --sparse"),
        (f"{POINTS} --intrinsics 1,2,3,4", "give --camera in place of --intrinsics"),
        (f"{TOF} --kitti calib", "--kitti is for --points"),
        (f"{TOF} --extrinsics T.json", "--extrinsics is for --points"),
        (f"{TOF} --min-confidence 1", "add --confidence"),
        (f"{TOF} --confidence nowhere.png", "nowhere.png: there is no such file"),
        (f"{TOF} --confidence lidar.png", "is 32x24 and the sparse map 16x12"),
        (f"{TOF} --confidence levels.png --min-confidence 3", "(the largest is 2); lower --min-confidence"),
        (
            POINTS.replace("--camera cam.json ", ""),
            "a point cloud needs the camera of the image: give --camera cam.json",
        ),
        (POINTS.replace("sweep.npy", "sweep.pcd"), "sweep.pcd: there is no such file; did you mean 'sweep.npy'"),
        (POINTS.replace("sweep.npy", "depth"), "leadline colmap"),
        (POINTS.replace("--extrinsics T.json ", ""), "give the --extrinsics"),
    ],
)
def test_refusals_are_one_line(line: str, words: str) -> None:
    assert words in refused(line)


@pytest.mark.parametrize("least", [None, 0, 1, 2])
def test_confidence_leaves_measurements_out(least: int | None) -> None:
    chosen = "" if least is None else f" --min-confidence {least}"
    result = leadline(f"{TOF} --confidence levels.png{chosen}")
    assert result.exit_code == 0, result.output
    low, levels = read_depth("tof.png", "mm").values, np.asarray(Image.open("levels.png"))
    kept = np.where(levels >= (2 if least is None else least), low, np.nan)
    moved = scatter_nearest(kept, SHAPE)[0]
    record = json.loads(Path("out/photo.json").read_text(encoding="utf-8"))
    assert f", {np.isfinite(moved).sum()} measurements" in result.output
    np.testing.assert_array_equal(np.load("out/photo_depth.npy")[moved > 0], moved[moved > 0])
    gone = np.isfinite(low).sum() - np.isfinite(kept).sum()
    told = f"{gone} of {np.isfinite(low).sum()} measurements have a confidence below"
    assert (told in result.output) == (least != 0)
    assert record["inputs"]["confidence"]["path"] == "levels.png"


def test_another_confidence_or_level_is_another_frame() -> None:
    line = f"{TOF} --confidence levels.png"
    assert leadline(line).exit_code == 0
    assert "complete already" in leadline(line).output
    assert "the options changed (--min-confidence)" in leadline(f"{line} --min-confidence 1").output
    Image.fromarray(np.full((12, 16), 2, np.uint8)).save("levels.png")
    assert "the inputs changed (confidence)" in leadline(f"{line} --min-confidence 1").output


def test_folders_of_clouds_use_the_extrinsics() -> None:
    """The points of the cloud lie in the image only with them."""
    for name, kind in (("photo.jpg", "photos"), ("sweep.npy", "sweeps"), ("prior.npy", "predictions")):
        Path(kind).mkdir()
        shutil.copy(name, Path(kind) / f"a{Path(name).suffix}")
    line = "complete photos --points sweeps --camera cam.json --extrinsics T.json --prior predictions -o out"
    result = leadline(f"{line} --format npy")
    assert result.exit_code == 0, result.output
    assert leadline(f"{POINTS} --format npy").exit_code == 0
    np.testing.assert_array_equal(np.load("out/a_depth.npy"), np.load("out/photo_depth.npy"))


def test_folders_of_confidence() -> None:
    Path("levels").mkdir()
    for index in range(4):
        Image.fromarray(np.full(SHAPE, 2 if index else 1, np.uint8)).save(f"levels/f{index}.png")
    result = leadline("complete frames --sparse depth --prior priors --unit mm -o out --confidence levels")
    assert result.exit_code == 1
    assert (
        "f0: --confidence levels/f0.png: no measurement of depth/f0.png has a confidence of 2 or more" in result.output
    )
    assert "3 done, 0 skipped, 1 failed" in result.output


def test_depth_far_beyond_the_measurements_is_named() -> None:
    """1/z is affine in 1/prior, the near part is measured, and the far part goes to where 1/z is almost 0."""
    prior = np.geomspace(0.5, 9.99, SHAPE[1], dtype=np.float32) * np.ones((SHAPE[0], 1), np.float32)
    depth = 1 / (1 / prior - 0.1)
    np.save("prior.npy", prior)
    np.save("near.npy", np.where(prior < 2, depth, np.nan))
    line = "complete photo.jpg --sparse near.npy --unit m --prior prior.npy -o out"
    assert "the farthest measurement is 2.4 m" in refused(line)
    result = leadline(f"{line} --format npy")
    assert result.exit_code == 0
    farthest = np.load("out/photo_depth.npy").max()
    assert farthest > 1000 * 2.4
    assert f"note: the depth reaches {farthest:.3g} m" in result.output
    np.save("near.npy", depth)
    assert "farthest measurement" not in leadline(f"{line} --format npy").output


PAGE = ROOT / "docs" / "from-sensor.md"
_TEXT = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")  # continuation lines joined
LINES = [" ".join(line.split()) for line in _TEXT.splitlines() if line.startswith("leadline ")]


def write_page_files() -> None:
    """The files that the page's commands name: all are the measurements of `prepare` in another form."""
    points = np.load("sweep.npy")
    rows = np.concatenate((points, np.ones((len(points), 1))), axis=1).astype("<f4")
    rows.tofile("0000000005.bin")
    header = "VERSION 0.7\nFIELDS x y z i\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\n"
    header += f"WIDTH {len(points)}\nHEIGHT 1\nPOINTS {len(points)}\nDATA binary\n"
    Path("sweep.pcd").write_bytes(header.encode() + rows.tobytes())
    Path("calib").mkdir()
    height, width = SHAPE
    Path("calib/calib_cam_to_cam.txt").write_text(
        f"S_rect_02: {width} {height}\nR_rect_00: 1 0 0 0 1 0 0 0 1\nP_rect_02: 30 0 15.5 0 0 31 11.5 0 0 0 1 0\n"
    )
    Path("calib/calib_velo_to_cam.txt").write_text("R: 0 -1 0 0 0 -1 1 0 0\nT: 0 0 0\n")
    Path("lidar_to_camera.json").write_text(Path("T.json").read_text())
    Path("T.json").write_text(json.dumps(np.eye(4).tolist()))
    for name in ("depth.json", "color.json"):
        Path(name).write_text(Path("cam.json").read_text())
    Path("images").mkdir()
    for name in ("color.png", "0000000005.png", *(f"images/{k}.png" for k in range(3))):
        Image.open("photo.jpg").save(name)
    Image.open("lidar.png").save("depth.png")
    Image.fromarray(np.full(SHAPE, 2, np.uint8)).save("confidence.png")
    model = Path("sparse/0")
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text(f"1 PINHOLE {width} {height} 30 31 16 12\n")
    (model / "images.txt").write_text("".join(f"{k + 1} 1 0 0 0 0 0 0 1 {k}.png\n\n" for k in range(3)))
    seen = points[:, [1, 2, 0]] * (-1, -1, 1)
    lines = (f"{n + 1} {x} {y} {z} 9 9 9 0.5 1 {n} 2 {n} 3 {n}\n" for n, (x, y, z) in enumerate(seen))
    (model / "points3D.txt").write_text("".join(lines))


@pytest.mark.parametrize("line", LINES)
def test_the_commands_of_the_page_run_as_written(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the commands predict with an ONNX network")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_page_files()
    result = leadline(line.removeprefix("leadline "))
    assert result.exit_code == 0, result.output
    assert list(Path("out").glob("*_depth.*")) or Path("sparse.png").exists()


def test_the_page_has_each_sensor() -> None:
    assert {line.split()[1] for line in LINES} == {"complete", "project", "colmap"}
    for flag in ("--points", "--kitti", "--extrinsics", "--noise", "--confidence", "--scatter-sparse"):
        assert any(flag in line for line in LINES)
