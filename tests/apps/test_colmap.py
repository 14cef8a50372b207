"""`leadline colmap` on a model that pycolmap wrote: its depth against the exact one, its exports as others read it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.datasets.rendered import network_like_prior, render
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.grids import rotate90
from leadline.geometry.poses import rotation_from_quaternion
from leadline.io.colmap import read_model, read_tracks
from leadline.io.views.maps import DepthMaps
from leadline.io.views.nerfstudio import write_nerfstudio
from leadline.io.views.splatting import write_3dgs

pycolmap = pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")

WIDTH, HEIGHT, FROM = 160, 120, 50
METRES = 0.4  # per unit of the model
ROUNDING = 3e-6  # float32 depth after a turn of the world and a change of unit
# Of the completed depth, on average: the made-up network's faults leave 0.4 to 0.8 % with this many points, and a wrong
# pose or outliers among the points several times that.
ACCURACY = 0.015

group = LazyGroup(name="leadline", lazy={"colmap": ("leadline.apps.colmap:command", "")})
SCENE = render(WIDTH, HEIGHT)
PRIOR = network_like_prior(SCENE.reference)
POSE = np.eye(4)  # of the full view in the world, in the model's unit
POSE[:3, :3], POSE[:3, 3] = rotation_from_quaternion((0.8, 0.2, -0.4, 0.4)).as_matrix(), (3.0, -2.0, 5.0)
QUARTER = np.array([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def views() -> dict[str, tuple[Camera, np.ndarray, dict[str, np.ndarray]]]:
    """By name: camera, pose, and the view's part of image, depth and prior; all exact, as the eye is the same."""
    assert SCENE.reference is not None
    assert isinstance(SCENE.camera, Camera)
    maps = {"image": SCENE.image, "depth": SCENE.reference, "prior": PRIOR}
    full = SCENE.camera
    crop = Camera(WIDTH - FROM, HEIGHT, full.fx, full.fy, full.cx - FROM, full.cy)
    turned = {name: np.ascontiguousarray(np.rot90(values)) for name, values in maps.items()}
    assert np.array_equal(turned["depth"], rotate90(SCENE.reference, 1))
    return {
        "left/full.png": (full, POSE, maps),
        "right/crop.png": (crop, POSE, {name: values[:, FROM:] for name, values in maps.items()}),
        "turned.png": (full.rotated(1), QUARTER @ POSE, turned),
        "poor.png": (full, POSE, maps),
    }


def write_scene(folder: Path, rng: np.random.Generator, *, text: bool = False) -> None:
    """Pictures, priors and a model with good points, wrong ones of large error, and wrong ones with short tracks."""
    model = pycolmap.Reconstruction()
    rows, columns = rng.integers(0, HEIGHT, 450), rng.integers(FROM + 1, WIDTH, 450)
    depth = SCENE.reference[rows, columns].astype(np.float64) / METRES
    good = np.arange(450) < 300
    depth[~good] *= 1.6
    seen = SCENE.camera.points(np.ones((HEIGHT, WIDTH)))[rows, columns] * depth[:, None]
    points = (seen - POSE[:3, 3]) @ POSE[:3, :3]
    names = list(views())
    for number, (name, (camera, pose, maps)) in enumerate(views().items(), start=1):
        for kind in ("image", "prior"):
            path = folder / f"{kind}s" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "image":
                Image.fromarray(maps["image"]).save(path)
            else:
                np.save(path.with_suffix(".npy"), maps["prior"])
        params = [camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5]
        size = {"width": camera.width, "height": camera.height}
        model.add_camera_with_trivial_rig(pycolmap.Camera(model="PINHOLE", params=params, camera_id=number, **size))
        image = pycolmap.Image(name=name, camera_id=number, image_id=number)
        image.points2D = pycolmap.Point2DList([pycolmap.Point2D((0.0, 0.0)) for _ in points])
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(pose[:3]))
    for index, point in enumerate(points):
        short = not good[index] and index % 2
        viewers = (1, 2) if short else (1, 2, 3, 4) if index < 3 else (1, 2, 3)
        track = pycolmap.Track(elements=[pycolmap.TrackElement(number, index) for number in viewers])
        added = model.add_point3D(point, track, np.zeros(3, np.uint8))
        model.points3D[added].error = 0.5 if good[index] or short else 9.0
    assert len(names) == model.num_reg_images()
    (folder / "sparse" / "0").mkdir(parents=True)
    (model.write_text if text else model.write_binary)(folder / "sparse" / "0")


@pytest.fixture
def scene(tmp_path: Path, rng: np.random.Generator) -> Path:
    write_scene(tmp_path, rng)
    return tmp_path


def run(folder: Path, *extra: str, code: int = 1, prior: str | None = None) -> Result:
    where = ["--images", str(folder / "images"), "--prior", prior or str(folder / "priors"), "-o", str(folder / "out")]
    result = CliRunner().invoke(group, ["colmap", str(folder / "sparse" / "0"), *where, *extra])
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def error_of(depth: np.ndarray, name: str) -> float:
    exact = views()[name][2]["depth"]
    assert depth.shape == exact.shape
    return float(np.mean(np.abs(depth / exact - 1)))


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_depth_of_every_image(tmp_path: Path, rng: np.random.Generator, text: bool) -> None:
    write_scene(tmp_path, rng, text=text)
    result = run(tmp_path, "--scale", str(METRES))
    assert "3 done, 0 skipped, 1 failed" in result.output
    assert "error: poor: has 3 usable points and --min-points is 10" in result.output
    assert not (tmp_path / "out" / "poor.json").exists()
    for name in ("left/full", "right/crop", "turned"):
        exact = views()[f"{name}.png"][2]["depth"]
        sparse = np.load(tmp_path / "out" / "sparse" / f"{name}.npy")
        measured = np.isfinite(sparse)
        assert 250 < measured.sum() <= 300
        # Each point came from its pixel's centre, so it returns to that pixel with that depth; wrong ones are gone.
        np.testing.assert_allclose(sparse[measured], exact[measured], rtol=ROUNDING)
        depth = np.load(tmp_path / "out" / f"{name}_depth.npy")
        assert error_of(depth, f"{name}.png") < ACCURACY
        assert np.array_equal(depth[measured], sparse[measured])
        sidecar = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert sidecar["units"]["depth"]["unit"] == "m"
    assert json.loads((tmp_path / "out" / "colmap.json").read_text())["scale"] == METRES


def test_without_a_scale_depth_is_in_the_models_unit(scene: Path) -> None:
    result = run(scene)
    assert "note: depth is in the unit of the model" in result.output
    assert error_of(METRES * np.load(scene / "out" / "turned_depth.npy"), "turned.png") < ACCURACY


def test_limits_let_wrong_points_in(scene: Path) -> None:
    """What the limits of track and error keep out is told apart by them alone."""
    model, tracks = read_model(scene / "sparse" / "0"), read_tracks(scene / "sparse" / "0")
    image = model.images["left/full.png"]
    counts = [
        len(tracks.seen_by(image, min_track=track, max_error=error)) for track, error in ((2, 99), (3, 99), (2, 1))
    ]
    assert counts == [450, 375, 375]
    assert len(tracks.seen_by(model.images["poor.png"])) == 3
    run(scene, "--scale", str(METRES), "--min-track", "2", "--max-error", "99")
    assert error_of(np.load(scene / "out" / "turned_depth.npy"), "turned.png") > 2 * ACCURACY


def test_resumes_and_redoes_what_changed(scene: Path) -> None:
    run(scene)
    assert "0 done, 3 skipped, 1 failed" in run(scene).output
    (scene / "out" / "turned.json").unlink()
    assert "1 done, 2 skipped, 1 failed" in run(scene).output
    result = run(scene, "--scale", "2")
    assert "3 done" in result.output
    assert "completed again: the inputs changed (sparse)" in result.output


def test_a_network_and_what_cannot_be_read(scene: Path) -> None:
    """One bad picture does not end the run."""
    (scene / "images" / "turned.png").write_bytes(b"not a picture")
    (scene / "images" / "poor.png").unlink()
    result = run(scene, prior="none")
    assert "2 done, 0 skipped, 2 failed" in result.output
    assert "error: turned: " in result.output
    assert "poor.png: no such file" in result.output


def test_pictures_smaller_than_the_model(scene: Path) -> None:
    for name in ("left/full.png", "poor.png"):
        image = Image.open(scene / "images" / name)
        image.resize((WIDTH // 2, HEIGHT // 2)).save(scene / "images" / name)
    np.save(scene / "priors" / "left" / "full.npy", PRIOR[::2, ::2])
    result = run(scene, "--scale", str(METRES), "--export", "nerfstudio")
    assert "left/full: the camera was scaled from 160x120 to the size of the image, 80x60." in result.output
    depth = np.load(scene / "out" / "left" / "full_depth.npy")
    assert np.median(np.abs(depth / SCENE.reference[::2, ::2] - 1)) < ACCURACY
    frames = json.loads((scene / "out" / "nerfstudio" / "transforms.json").read_text())["frames"]
    assert (frames[0]["w"], frames[0]["cx"], frames[0]["fl_x"]) == (80, 40.0, SCENE.camera.fx / 2)


def test_3dgs_reads_inverse_depth(scene: Path) -> None:
    """As the trainer does: code / 2^16 times scale plus offset, unless the scale is too far from the median of all."""
    result = run(scene, "--scale", str(METRES), "--export", "3dgs")
    assert "3dgs: 3 images in" in result.output
    folder = scene / "out" / "3dgs"
    parameters = json.loads((folder / "sparse" / "0" / "depth_params.json").read_text())
    assert sorted(parameters) == ["left/full", "poor", "right/crop", "turned"]
    middle = np.median([entry["scale"] for entry in parameters.values() if entry["scale"] > 0])
    # The trainer stops at a picture without a map, and ignores those of small scale.
    assert parameters.pop("poor") == {"scale": 0.0, "offset": 0.0}
    assert np.asarray(Image.open(folder / "depths" / "poor.png")).max() == 0
    for name, entry in parameters.items():
        codes = np.asarray(Image.open(folder / "depths" / f"{name}.png"))
        assert (codes.dtype, codes.max()) == (np.uint16, 65535)  # all codes are used
        assert 0.2 * middle < entry["scale"] < 5 * middle
        read = codes.astype(np.float32) / 2**16 * entry["scale"] + entry["offset"]
        units = np.load(scene / "out" / f"{name}_depth.npy") / METRES
        np.testing.assert_allclose(read, 1 / units, atol=0.51 * entry["scale"] / 2**16, rtol=1e-6)


def test_3dgs_scales_stay_near_their_median(scene: Path, tmp_path: Path) -> None:
    """An image with one very near pixel, and one with none near, are not thrown out by the trainer."""
    model = read_model(scene / "sparse" / "0")
    images = [model.images[name] for name in sorted(model.images)]
    depths = {image.name: np.full((4, 5), 2.0) for image in images}
    depths["left/full.png"][0, 0] = 0.01
    depths["turned.png"][:] = 1e3
    depths["turned.png"][0, 0] = np.nan
    notes = write_3dgs(tmp_path / "made", model, images, lambda image: DepthMaps(depths[image.name]))
    parameters = json.loads((tmp_path / "made" / "sparse" / "0" / "depth_params.json").read_text())
    scales = np.array([parameters[name]["scale"] for name in ("left/full", "turned", "poor")])
    np.testing.assert_allclose(scales / scales[2], (4, 0.25, 1))
    assert notes == ("3dgs: 1 pixels are nearer than a quarter of the median nearest depth and were clipped to it.",)
    assert np.asarray(Image.open(tmp_path / "made" / "depths" / "turned.png"))[0, 0] == 0


def test_nerfstudio_reads_depth_and_poses(scene: Path) -> None:
    """As its parser and data set do: counts times the factor is depth in the unit of the poses."""
    run(scene, "--scale", str(METRES), "--export", "nerfstudio")
    folder = scene / "out" / "nerfstudio"
    content = json.loads((folder / "transforms.json").read_text())
    assert content["depth_unit_scale_factor"] == 1e-3
    assert content["camera_model"] == "OPENCV"
    assert len(content["frames"]) == 3
    for frame in content["frames"]:
        assert (folder / frame["file_path"]).is_file()
        counts = np.asarray(Image.open(folder / frame["depth_file_path"]))
        assert (frame["w"], frame["h"]) == counts.shape[::-1]
        name = str(Path(frame["depth_file_path"]).relative_to("depths").with_suffix(""))
        units = np.load(scene / "out" / f"{name}_depth.npy") / METRES
        np.testing.assert_allclose(counts * 1e-3, units, atol=0.51e-3)
        pose = np.array(frame["transform_matrix"])
        world_to_camera = np.linalg.inv(pose @ np.diag([1, -1, -1, 1]))  # from OpenGL's axes to OpenCV's
        np.testing.assert_allclose(world_to_camera, views()[f"{name}.png"][1], atol=1e-12)
        assert frame["cx"] == views()[f"{name}.png"][0].cx + 0.5


def test_nerfstudio_extends_a_copy(scene: Path) -> None:
    given = {
        "fl_x": 1.0,
        "ply_file_path": "sparse_pc.ply",
        "train_filenames": ["images/turned.png", "images/poor.png"],
        "frames": [
            {"file_path": "images/turned.png", "mask_path": "masks/turned.png", "transform_matrix": [[1]]},
            {"file_path": "./images/poor.png", "transform_matrix": [[2]]},
            {"file_path": "images/other.png", "transform_matrix": [[3]]},
        ],
    }
    (scene / "transforms.json").write_text(json.dumps(given))
    before = (scene / "transforms.json").read_bytes()
    result = run(scene, "--export", "nerfstudio")
    assert "2 frames without depth are not in transforms.json" in result.output
    assert (scene / "transforms.json").read_bytes() == before
    content = json.loads((scene / "out" / "nerfstudio" / "transforms.json").read_text())
    frame = {
        "file_path": "../../images/turned.png",
        "mask_path": "../../masks/turned.png",
        "transform_matrix": [[1]],
        "depth_file_path": "depths/turned.png",
    }
    assert content["frames"] == [frame]
    assert content["train_filenames"] == ["../../images/turned.png"]
    assert (content["fl_x"], content["ply_file_path"]) == (1.0, "../../sparse_pc.ply")
    (scene / "transforms.json").write_text("{}")
    assert "cannot be read as a transforms.json of nerfstudio" in run(scene, "--export", "nerfstudio", code=2).output


@pytest.mark.parametrize(("farthest", "factor"), [(60.0, 1e-3), (700.0, 0.1), (0.3, 1e-5)])
def test_nerfstudio_unit_fits_the_depth(scene: Path, tmp_path: Path, farthest: float, factor: float) -> None:
    model = read_model(scene / "sparse" / "0")
    image = model.images["turned.png"]
    depth = np.array([[farthest, farthest / 10, np.nan]])
    notes = write_nerfstudio(tmp_path / "made", model, [image], lambda _: DepthMaps(depth), scene / "images")
    assert json.loads((tmp_path / "made" / "transforms.json").read_text())["depth_unit_scale_factor"] == factor
    assert any(f"--depth-unit-scale-factor {factor:g}" in note for note in notes) == (factor != 1e-3)
    counts = np.asarray(Image.open(tmp_path / "made" / "depths" / "turned.png"))
    np.testing.assert_allclose(counts[0] * factor, (farthest, farthest / 10, 0), atol=0.51 * factor)


def test_export_names_the_camera_type_of_the_model(scene: Path) -> None:
    model = pycolmap.Reconstruction(scene / "sparse" / "0")
    for camera in model.cameras.values():
        camera.model, camera.params = pycolmap.CameraModelId.SIMPLE_RADIAL, [60.0, 32.0, 24.0, 0.1]
    model.write_binary(scene / "sparse" / "0")
    assert "a camera of type SIMPLE_RADIAL" in " ".join(run(scene, "--export", "3dgs", code=2).output.split())


def test_distorted_model_is_projected_as_it_is_seen(scene: Path) -> None:
    """Depth lies on the distorted picture: each point where pycolmap puts it. 3DGS refuses such a model at once."""
    model = pycolmap.Reconstruction(scene / "sparse" / "0")
    lens = [SCENE.camera.fx, SCENE.camera.fy, WIDTH / 2, HEIGHT / 2, -0.12, 0.03, 0.002, -0.001]
    for camera in model.cameras.values():
        if (camera.width, camera.height) == (WIDTH, HEIGHT):
            camera.model, camera.params = pycolmap.CameraModelId.OPENCV, lens
    model.write_binary(scene / "sparse" / "0")
    assert "3dgs supports only PINHOLE" in run(scene, "--export", "3dgs", code=2).output
    assert not (scene / "out").exists()
    run(scene)
    sparse = np.load(scene / "out" / "sparse" / "left" / "full.npy")
    read = read_model(scene / "sparse" / "0")
    image = read.images["left/full.png"]
    points = read_tracks(scene / "sparse" / "0").seen_by(image, min_track=3, max_error=2.0)
    seen = points @ image.rotation.T + image.translation
    columns, rows = np.floor(ColmapCamera("OPENCV", WIDTH, HEIGHT, tuple(lens)).project(seen) + 0.5).T
    inside = (columns >= 0) & (columns < WIDTH) & (rows >= 0) & (rows < HEIGHT)
    expected = np.full((HEIGHT, WIDTH), np.inf)
    np.minimum.at(expected, (rows[inside].astype(int), columns[inside].astype(int)), seen[inside, 2])
    np.testing.assert_allclose(np.nan_to_num(sparse, nan=np.inf), expected, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--images", "nowhere"], "--images nowhere: there is no such folder"),
        (["--prior", "no/where"], "--prior no/where: there is no such folder"),
        (["--scale", "0"], "--scale must be a positive number"),
        (["--max-error", "-1"], "--max-error must be a positive number"),
        (["--device", "cpu"], "--device is for a prior that is predicted"),
        (["--transforms", "t.json"], "--transforms is for --export nerfstudio"),
    ],
)
def test_refusals_are_one_line(scene: Path, extra: list[str], words: str) -> None:
    result = run(scene, *extra, code=2)
    assert words in result.output
    assert result.output.count("\n") == 1


def test_damaged_models_are_one_line(scene: Path) -> None:
    path = scene / "sparse" / "0" / "points3D.bin"
    path.write_bytes(path.read_bytes()[:-40])
    assert "points3D.bin: cannot be read as a file of a COLMAP model" in run(scene, code=2).output
    path.unlink()
    assert "needs points3D.bin, or points3D.txt" in run(scene, code=2).output


def test_names_that_leave_the_folder_or_collide(scene: Path) -> None:
    model = pycolmap.Reconstruction(scene / "sparse" / "0")
    model.image(1).name, model.image(2).name = "../left.png", "turned.jpg"
    model.write_binary(scene / "sparse" / "0")
    result = run(scene)
    assert "'../left.png' points outside --images" in result.output
    assert result.output.count("is not the only image of that name") == 2


def test_examples_in_the_help_run(scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnxruntime", reason="an example predicts with an ONNX network")
    assert onnx is not None
    from support.onnx_model import write_onnx

    monkeypatch.chdir(scene)
    write_onnx(Path("model.onnx"))
    lines = CliRunner().invoke(group, ["colmap", "--help"]).output.splitlines()
    lines = [line.strip() for line in lines if line.strip().startswith("leadline colmap")]
    assert len(lines) == 5
    for line in lines:
        result = CliRunner().invoke(group, line.split()[1:])
        assert result.exit_code == 1, result.output  # one image has too few points
        assert "3 done" in result.output
        shutil.rmtree("out")
