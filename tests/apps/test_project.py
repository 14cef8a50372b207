"""`leadline project` as a person runs it: what it writes, what each option changes, and how it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.geometry.cameras import Camera
from leadline.geometry.grids import rotate90
from leadline.io.depth import read_depth, write_depth

WIDTH, HEIGHT = 96, 64
CAMERA = Camera(WIDTH, HEIGHT, 80.0, 80.0, 47.5, 31.5)
FORWARD = [[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]  # x forward, y left, z up, to a camera's axes
COUNT = 0.5e-3 + 1e-6  # half a millimetre, and float32

group = LazyGroup(name="leadline", lazy={"project": ("leadline.apps.project:command", "")})


def scene(step: int = 2) -> np.ndarray:
    """A wall with a box of points before it, every `step`-th pixel measured."""
    depth = np.full((HEIGHT, WIDTH), np.nan)
    depth[::step, ::step] = 8.0
    depth[17:47:3, 31:65:3] = 3.0
    return depth


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep in a LiDAR's axes, its camera, its extrinsics, and the picture."""
    points = CAMERA.points(scene())[np.isfinite(scene())] @ np.array(FORWARD)[:3, :3]
    np.save(tmp_path / "sweep.npy", points.astype(np.float32))
    intrinsics = {name: getattr(CAMERA, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
    (tmp_path / "cam.json").write_text(json.dumps(intrinsics))
    (tmp_path / "T.json").write_text(json.dumps(FORWARD))
    picture = np.full((HEIGHT, WIDTH, 3), 60, np.uint8)
    picture[17:47, 31:65] = 200
    Image.fromarray(picture).save(tmp_path / "photo.png")
    return tmp_path


def run(folder: Path, *extra: str, cloud: str = "sweep.npy", plain: bool = False, code: int = 0):
    named = () if plain else ("--camera", str(folder / "cam.json"), "--extrinsics", str(folder / "T.json"))
    arguments = ["project", str(folder / cloud), *named, "-o", str(folder / "sparse.png"), *map(str, extra)]
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == code, result.output
    if code == 2:
        assert result.output.startswith("error: ")
        assert result.output.count("\n") == 1
    return result


def test_depth_sidecar_and_picture(folder):
    result = run(folder, "--image", folder / "photo.png", "--no-see-through")
    depth = read_depth(folder / "sparse.png", "mm").values
    np.testing.assert_allclose(depth, scene(), atol=COUNT)
    record = json.loads((folder / "sparse.json").read_text())
    assert record["unit"] == "mm"
    nothing = dict.fromkeys(("low_confidence", "out_of_range", "outside", "hidden_in_pixel", "seen_through"), 0)
    assert record["points"] == {"read": np.isfinite(depth).sum(), **nothing, "pixels": np.isfinite(depth).sum()}
    assert record["cloud_to_camera"] == FORWARD
    assert record["camera"] == json.loads((folder / "cam.json").read_text())
    assert record["alignment"]["aligned"] is True
    with Image.open(folder / "sparse_points.png") as picture:
        colours = np.asarray(picture).reshape(-1, 3)
    assert ((colours.max(axis=1).astype(int) - colours.min(axis=1)) > 60).any()  # the points are the only colours
    assert "wrote" in result.output
    assert "note:" not in result.output


def test_what_shows_through_is_removed_unless_told(folder):
    run(folder)
    removed = read_depth(folder / "sparse.png", "mm").values
    inside = np.zeros((HEIGHT, WIDTH), bool)
    inside[17:45, 31:62] = True
    assert not np.isclose(removed[inside], 8).any()
    assert np.isclose(removed[~inside], 8).sum() > 1000
    counts = []
    for extra in (("--no-see-through",), ("--see-through-radius", "1"), ("--see-through-ratio", "4"), ()):
        run(folder, *extra)  # neither bridges a gap of three pixels, nor is the wall four times as far
        counts.append(np.isfinite(read_depth(folder / "sparse.png", "mm").values).sum())
    assert counts[0] == counts[1] == counts[2] > counts[3]


def coloured(path, colour):
    """How many pixels of a picture are of about this colour; tiles are resampled."""
    with Image.open(path) as picture:
        apart = np.abs(np.asarray(picture).astype(int) - colour).max(axis=-1)
    return int((apart < 12).sum())


def test_every_dropped_point_is_counted_and_drawn_by_reason(folder):
    """Behind the wall's near box, beyond the range, beside the picture, behind the camera, twice in a pixel."""
    seen = CAMERA.points(scene())[np.isfinite(scene())]
    far, near = seen[:7] * 2.0, seen[-1:] * 1.01  # the second lies behind another in its pixel
    beside, behind = seen[:5] - (30.0, 0, 0), seen[:3] * (1, 1, -1)
    level = np.concatenate((np.ones(len(seen) + 16), np.zeros(4)))
    doubted = seen[20:24] * 0.9
    points = np.concatenate((seen, far, near, beside, behind, doubted)) @ np.array(FORWARD)[:3, :3]
    np.savez(folder / "sweep.npz", points=points, confidence=level)
    extra = ("--max-range", 14, "--min-confidence", 1, "--image", folder / "photo.png")
    result = run(folder, *extra, cloud="sweep.npz")
    counts = json.loads((folder / "sparse.json").read_text())["points"]
    depth = read_depth(folder / "sparse.png", "mm").values
    assert counts["read"] == len(points)
    assert (counts["low_confidence"], counts["out_of_range"]) == (4, 7 + 5)  # those beside it are 30 m away
    assert (counts["outside"], counts["hidden_in_pixel"]) == (3, 1)
    assert counts["seen_through"] > 0
    assert counts["pixels"] == np.isfinite(depth).sum() == len(seen) - counts["seen_through"]
    assert sum(counts.values()) == 2 * len(points)  # each point is read, and is one of the others
    for words in ("4 of low confidence", "12 out of range", "3 outside the image", "1 behind"):
        assert words in result.output
    orange, blue, green, pink = (213, 94, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167)
    for colour in (orange, blue, pink):
        assert coloured(folder / "sparse_points.png", colour) > 0
    assert coloured(folder / "sparse_points.png", green) == 0  # nothing is near the picture and in front
    run(folder, "--no-see-through", "--image", folder / "photo.png")
    assert [coloured(folder / "sparse_points.png", colour) for colour in (orange, blue, pink)] == [0, 0, 0]
    beside = CAMERA.points(np.full((HEIGHT, WIDTH), 8.0))[:, 0] - (0.3, 0, 0)  # three columns beside the picture
    np.save(folder / "sweep.npy", np.concatenate((seen, beside)) @ np.array(FORWARD)[:3, :3])
    run(folder, "--no-see-through", "--image", folder / "photo.png")
    assert coloured(folder / "sparse_points.png", green) > 0


def test_a_radius_beyond_the_image_is_that_of_the_image(folder):
    run(folder, "--see-through-radius", 96)
    expected = read_depth(folder / "sparse.png", "mm").values
    run(folder, "--see-through-radius", 10**20)
    np.testing.assert_array_equal(read_depth(folder / "sparse.png", "mm").values, expected)


def test_limits_and_scale(folder):
    run(folder, "--max-range", 5)
    assert np.nanmax(read_depth(folder / "sparse.png", "mm").values) == pytest.approx(3, abs=COUNT)
    run(folder, "--min-range", 5)
    assert np.nanmin(read_depth(folder / "sparse.png", "mm").values) == pytest.approx(8, abs=COUNT)
    run(folder, "--scale", 0.1)
    assert np.nanmax(read_depth(folder / "sparse.png", "mm").values) == pytest.approx(0.8, abs=COUNT)


@pytest.mark.parametrize(("degrees", "turns"), [(90, -1), (180, 2), (270, 1)])
def test_turned_pictures(folder, degrees, turns):
    upright = rotate90(np.asarray(Image.open(folder / "photo.png")), turns)
    Image.fromarray(upright).save(folder / "turned.png")
    run(folder, "--rotate", degrees, "--image", folder / "turned.png", "--no-see-through")
    np.testing.assert_allclose(read_depth(folder / "sparse.png", "mm").values, rotate90(scene(), turns), atol=COUNT)
    record = json.loads((folder / "sparse.json").read_text())
    assert Camera(**record["camera"]) == CAMERA.rotated(turns)
    if turns != 2:
        run(folder, "--image", folder / "turned.png", code=2)  # without the turn the sizes do not fit


def test_a_smaller_picture_takes_a_scaled_camera(folder):
    Image.open(folder / "photo.png").resize((WIDTH // 2, HEIGHT // 2)).save(folder / "small.png")
    result = run(folder, "--image", folder / "small.png", "--no-see-through")
    assert "camera was scaled from 96x64 to the size of the image, 48x32" in result.output
    depth = read_depth(folder / "sparse.png", "mm").values
    assert depth.shape == (HEIGHT // 2, WIDTH // 2)
    # The half-pixel rule: pixels 2 u and 2 u + 1 become u, and the nearer stays.
    blocks = np.where(np.isfinite(scene()), scene(), np.inf).reshape(HEIGHT // 2, 2, WIDTH // 2, 2).min(axis=(1, 3))
    np.testing.assert_allclose(depth, np.where(np.isinf(blocks), np.nan, blocks), atol=COUNT)


def test_points_that_do_not_line_up(folder):
    """The box's picture lies 4 pixels beside and below its points: said in words, in the sidecar and as exit code."""
    picture = np.full((HEIGHT, WIDTH, 3), 60, np.uint8)
    picture[21:51, 35:69] = 200
    Image.fromarray(picture).save(folder / "photo.png")
    result = run(folder, "--image", folder / "photo.png", "--strict", code=1)
    assert "the points do not line up with the image" in result.output
    assert (folder / "sparse.png").exists()
    assert json.loads((folder / "sparse.json").read_text())["alignment"]["aligned"] is False
    run(folder, "--image", folder / "photo.png")


def test_motion(folder):
    """A point measured 0.1 s after the picture by a sensor that moves at 10 m/s lies 1 m farther ahead."""
    np.savez(folder / "timed.npz", points=np.array([[7.0, 0, 0], [8.0, 1, 0]]), time=np.array([100.1, 100.0]))
    run(folder, "--velocity", "10,0,0", "--at", 100, cloud="timed.npz")
    depth = read_depth(folder / "sparse.png", "mm").values
    assert sorted(depth[np.isfinite(depth)]) == pytest.approx([8.0, 8.0], abs=COUNT)
    (folder / "poses.txt").write_text("99 -10 0 0 0 0 0 1\n101 10 0 0 0 0 0 1\n")
    run(folder, "--trajectory", folder / "poses.txt", "--at", 100, cloud="timed.npz")
    again = read_depth(folder / "sparse.png", "mm").values
    np.testing.assert_array_equal(again, depth)
    # Half a turn of 0.2 s lies between straight ahead and straight back; the sides are a quarter, 0.05 s.
    np.save(folder / "side.npy", np.array([[10.0, 5.0, 0.0]]))
    angle = np.arctan2(5, 10) / (2 * np.pi)
    for extra, sign in (((), -1), (("--counter-clockwise",), 1)):
        run(folder, "--velocity", "10,0,0", "--period", 0.2, *extra, cloud="side.npy")
        assert np.nanmin(read_depth(folder / "sparse.png", "mm").values) == pytest.approx(
            10 + sign * 2 * angle, abs=COUNT
        )


@pytest.mark.parametrize("ranges", [False, True])
def test_a_depth_map_of_another_camera(folder, ranges):
    """A camera 0.5 m to the left sees a wall at 4 m; the picture's camera sees it 10 pixels to the left of there."""
    wall = np.full((HEIGHT, WIDTH), 4.0)
    stored = np.linalg.norm(CAMERA.points(wall), axis=-1) if ranges else wall
    write_depth(folder / "tof.npy", stored)
    shift = np.eye(4)
    shift[0, 3] = -0.5
    (folder / "T.json").write_text(json.dumps(shift.tolist()))
    extra = ("--range",) if ranges else ()
    run(folder, "--depth-camera", folder / "cam.json", "--depth-unit", "m", *extra, cloud="tof.npy")
    depth = read_depth(folder / "sparse.png", "mm").values
    assert np.isnan(depth[:, -9:]).all()
    np.testing.assert_allclose(depth[:, :-10], 4.0, atol=COUNT)


def test_a_depth_map_with_its_confidence(folder):
    """Of a map, only pixels of the level asked for become points."""
    wall = np.full((HEIGHT, WIDTH), 4.0)
    levels = np.indices(wall.shape)[1] % 3
    write_depth(folder / "tof.npy", wall)
    Image.fromarray(levels.astype(np.uint8)).save(folder / "levels.png")
    (folder / "T.json").write_text(json.dumps(np.eye(4).tolist()))
    named = ("--depth-camera", folder / "cam.json", "--depth-unit", "m", "--confidence", folder / "levels.png")
    for least in (0, 1, 2):
        run(folder, *named, "--min-confidence", least, cloud="tof.npy")
        depth = read_depth(folder / "sparse.png", "mm").values
        np.testing.assert_array_equal(np.isfinite(depth), levels >= least)
    assert "--min-confidence" in run(folder, *named, cloud="tof.npy", code=2).output
    Image.fromarray(levels[:5].astype(np.uint8)).save(folder / "levels.png")
    assert "depth's shape" in run(folder, *named, "--min-confidence", 1, cloud="tof.npy", code=2).output


def kitti_files(folder):
    """The sweep and its calibration as KITTI has them: raw, and in one file."""
    rows = np.load(folder / "sweep.npy")
    rows = np.concatenate((rows, np.ones((len(rows), 1))), axis=1).astype("<f4")
    for name in ("0000000005.bin", "000042.bin"):
        rows.tofile(folder / name)
    numbers, turn = "80 0 47.5 0 0 80 31.5 0 0 0 1 0", " ".join(str(v) for row in FORWARD[:3] for v in row[:3])
    (folder / "calib").mkdir()
    (folder / "calib" / "calib_cam_to_cam.txt").write_text(
        f"S_rect_02: {WIDTH} {HEIGHT}\nR_rect_00: 1 0 0 0 1 0 0 0 1\nP_rect_02: {numbers}\n"
    )
    (folder / "calib" / "calib_velo_to_cam.txt").write_text(f"R: {turn}\nT: 0 0 0\n")
    rows = " ".join(str(v) for row in FORWARD[:3] for v in row)
    (folder / "000042.txt").write_text(f"P2: {numbers}\nR0_rect: 1 0 0 0 1 0 0 0 1\nTr_velo_to_cam: {rows}\n")


def test_kittis_two_kinds_of_calibration_give_the_same(folder):
    kitti_files(folder)
    found = []
    for cloud, calibration in (("0000000005.bin", "calib"), ("000042.bin", "000042.txt")):
        extra = ("--kitti", folder / calibration, "--image", folder / "photo.png", "--no-see-through")
        run(folder, *extra, cloud=cloud, plain=True)
        found.append(read_depth(folder / "sparse.png", "mm").values)
    np.testing.assert_allclose(found[0], scene(), atol=COUNT)
    np.testing.assert_array_equal(found[0], found[1])
    extra = ("--kitti", folder / "000042.txt")
    assert "does not state the size of the images" in run(folder, *extra, cloud="000042.bin", plain=True, code=2).output


def test_examples_in_the_help_run(folder, monkeypatch):
    """Every line, on the fixture's sweep under the names that the lines have."""
    monkeypatch.chdir(folder)
    kitti_files(folder)
    points = np.load("sweep.npy")
    header = "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\n"
    header += f"WIDTH {len(points)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(points)}\nDATA binary\n"
    Path("sweep.pcd").write_bytes(header.encode() + points.astype("<f4").tobytes())
    shutil.copy("T.json", "lidar_to_camera.json")
    shutil.copy("cam.json", "tof.json")
    Path("T.json").write_text(json.dumps(np.eye(4).tolist()))
    write_depth("tof.png", scene(), "mm")
    Path("images").mkdir()
    Path("sparse/0").mkdir(parents=True)
    picture = Image.open("photo.png")
    for name in ("photo.jpg", "0000000005.png", "000042.png", "images/frame_0001.jpg"):
        picture.save(name)
    Path("sparse/0/cameras.txt").write_text(f"1 PINHOLE {WIDTH} {HEIGHT} 80 80 48 32\n")
    Path("sparse/0/images.txt").write_text("7 1 0 0 0 0 0 2 1 frame_0001.jpg\n\n")
    Path("sparse/0/points3D.txt").write_text("1 0 0 2 9 9 9 0.5 7 0\n2 0.5 0 3 9 9 9 4 7 1\n")
    text = CliRunner().invoke(group, ["project", "--help"], terminal_width=200).output
    lines = [line.split()[1:] for line in text.splitlines() if line.strip().startswith("leadline project")]
    assert len(lines) == 7
    for line in lines:
        Path(line[-1]).unlink(missing_ok=True)
        result = CliRunner().invoke(group, line)
        assert result.exit_code == 0, result.output
        assert np.isfinite(read_depth(line[-1], "mm" if line[-1].endswith("png") else "m").values).any()


def test_far_points_take_a_coarser_unit(folder):
    np.save(folder / "far.npy", np.array([[150.0, 0, 0], [5, 0, 0.5]]))
    result = run(folder, cloud="far.npy")
    assert "written in 1/256 m" in result.output
    assert np.nanmax(read_depth(folder / "sparse.png", "kitti").values) == 150
    run(folder, "--output-unit", "mm", cloud="far.npy", code=2)


def test_a_colmap_model_brings_camera_and_pose(folder):
    (folder / "cameras.txt").write_text(f"1 PINHOLE {WIDTH} {HEIGHT} 80 80 48 32\n")
    (folder / "images.txt").write_text("7 1 0 0 0 0 0 2 1 photo.png\n\n8 1 0 0 0 0 0 0 1 other.png\n\n")
    (folder / "points3D.txt").write_text("1 0 0 2 9 9 9 0.5 7 0 8 1\n2 0.5 0 3 9 9 9 4 7 1\n3 1 0 3 9 9 9 1 8 2\n")
    result = run(folder, "--image", folder / "photo.png", cloud=".", plain=True)
    assert "the unit of the COLMAP model is taken to be metres" in result.output
    depth = read_depth(folder / "sparse.png", "mm").values
    assert {tuple(map(int, place)): round(float(depth[tuple(place)]), 3) for place in np.argwhere(depth > 0)} == {
        (32, 48): 4.0,
        (32, 56): 5.0,
    }
    run(folder, "--colmap-image", "photo", "--min-confidence", 1, "--scale", 2, cloud=".", plain=True)
    depth = read_depth(folder / "sparse.png", "mm").values
    np.testing.assert_allclose(depth[np.isfinite(depth)], [8.0], atol=COUNT)
    assert "has no image" in run(folder, "--colmap-image", "nine", cloud=".", plain=True, code=2).output
    assert "say which of its images is meant" in run(folder, cloud=".", plain=True, code=2).output


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--kitti", "calib"), "leave out --camera"),
        (("--range",), "--depth-camera"),
        (("--confidence", "levels.png"), "--depth-camera"),
        (("--period", "0.1"), "moving sensor"),
        (("--velocity", "1,2"), "three numbers"),
        (("--velocity", "1,2,3"), "--period"),
        (("--counter-clockwise",), "--period"),
        (("--velocity", "1,0,0", "--trajectory", "a.txt"), "leave out --velocity"),
        (("--no-see-through", "--see-through-radius", "3"), "leave one"),
        (("--see-through-ratio", "1"), "above 1"),
        (("--min-range", "5", "--max-range", "4"), "--min-range must be at least 0"),
        (("--min-range", "50"), "no point lies within --min-range"),
        (("--min-confidence", "1"), "have no confidence"),
        (("--scale", "0"), "--scale"),
        (("--scale", "1e300"), "--scale must be a positive number of metres per unit, at most 1e+06"),
        (("--strict",), "--image"),
        (("--colmap-image", "a"), "COLMAP"),
        (("--key", "a"), "npz"),
        (("-o", "sparse.jpg"), "suffixes"),
        (("--output-unit", "feet"), "--output-unit must be one of"),
    ],
)
def test_refusals_are_one_line(folder, extra, message):
    assert message in run(folder, *extra, code=2).output
    assert not (folder / "sparse.png").exists()


def test_extrinsics_the_wrong_way_round_are_recognised(folder):
    backwards = np.linalg.inv(np.array(FORWARD, float))
    backwards[0, 3] = -30.0
    (folder / "T.json").write_text(json.dumps(np.linalg.inv(backwards).tolist()))
    points = CAMERA.points(scene())[np.isfinite(scene())] - backwards[:3, 3]
    np.save(folder / "sweep.npy", points @ backwards[:3, :3])
    assert 'try {"inverse"' in run(folder, code=2).output


def test_missing_extrinsics_are_named(folder):
    (folder / "T.json").unlink()
    result = run(folder, "--camera", folder / "cam.json", plain=True, code=2)
    assert "give the --extrinsics" in result.output
    np.save(folder / "sweep.npy", CAMERA.points(scene())[np.isfinite(scene())])  # in the camera's own frame
    result = run(folder, "--camera", folder / "cam.json", plain=True)
    assert "taken to be in the frame of the camera" in result.output


def test_inputs_are_never_overwritten(folder):
    cloud = folder / "sweep.npy"
    before = cloud.read_bytes()
    assert "would overwrite an input" in run(folder, "-o", cloud, code=2).output
    assert cloud.read_bytes() == before


def test_folders_and_files_that_are_no_cloud_are_one_line(folder):
    (folder / "model").mkdir()
    named = ("--image", folder / "photo.png")
    assert "model" in run(folder, *named, cloud="model", plain=True, code=2).output
    assert "none.pcd" in run(folder, cloud="none.pcd", code=2).output
    np.savez(folder / "two.npz", a=np.ones((3, 3)), b=np.ones((3, 3)))
    assert "Choose one with --key" in run(folder, cloud="two.npz", code=2).output
    np.save(folder / "flat.npy", np.ones(7))
    assert "(N, 3) or wider" in run(folder, cloud="flat.npy", code=2).output


def test_broken_files_are_one_line(folder):
    for name, content in (("sweep.npy", b"\x93NUMPY junk"), ("T.json", b"{}"), ("cam.json", b"[]")):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        assert name in run(folder, code=2).output
        (folder / name).write_bytes(before)
    (folder / "T.json").write_text(json.dumps([[0.0] * 4] * 4))
    assert "singular" in run(folder, code=2).output
