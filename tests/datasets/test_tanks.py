"""Tanks and Temples: a small tree in the exact layout, its poses, its laser scan and what shows through it."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import group
from leadline.base.errors import FileError, InputError
from leadline.bench.metrics import normals
from leadline.datasets import dataset, tanks
from leadline.datasets.far_pixel_audit import audit, check_scan
from leadline.datasets.reference_statistics import support
from leadline.datasets.tanks import EXCLUDED, SCENES, TanksAndTemples, read_alignment
from leadline.geometry.cameras import CameraModel, ColmapCamera, RayCamera
from leadline.geometry.poses import transform_points
from leadline.geometry.projection import z_buffer
from leadline.io.ply import read_ply, write_ply

pycolmap = pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")

WIDTH, HEIGHT = 80, 46  # of the calibration; frames are read at half of it
LENS = (60.0, 61.0, 39.0, 24.0, 0.06, -0.02, 0.002, -0.003)
CAMERA = ColmapCamera("OPENCV", WIDTH, HEIGHT, LENS)
# A scan point lies up to half a pixel from the centre whose ray the plane is cut with: 1/30 at half size, times the
# plane's slope of 0.4 or so.
PLANE_RTOL = 0.02
SCALE = 2.5  # of the alignment: one unit of the reconstruction is 2.5 m


def rotation(axis: tuple[float, float, float], angle: float) -> np.ndarray:
    x, y, z = np.array(axis) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


# A wall n . x = 5 in the camera's frame of every pose, in metres, seen by cameras of known pose.
NORMAL = np.array([0.3, -0.2, 1.0])
POSES = [
    (rotation((0.2, 1, 0.1), 0.3), np.array([0.2, -0.1, 0.4])),
    (rotation((1, 0, 0.3), -0.2), np.array([0, 0.3, 0])),
]
ALIGN = rotation((3, 1, -2), 1.1)
OFFSET = np.array([10.0, -4.0, 7.0])


def wall_points(near: bool) -> np.ndarray:
    """The first pose's wall in its camera's frame, several points a pixel; with a grid of near points before it."""
    fine = CAMERA.scaled(WIDTH * 3, HEIGHT * 3).rays()
    rays = fine.points(np.ones((fine.height, fine.width))).reshape(-1, 3)
    points = rays * (5 / (rays @ NORMAL))[:, None]
    if near:  # one point for every second pixel of a frame at half size, in a rectangle
        half = CAMERA.scaled(WIDTH // 2, HEIGHT // 2).rays()
        grid = half.points(np.full((half.height, half.width), 1.5))[6:17:2, 8:31:2].reshape(-1, 3)
        points = np.concatenate((points, grid))
    return points


def plane_depth(camera: CameraModel) -> np.ndarray:
    return 5 / (camera.points(np.ones((camera.height, camera.width))) @ NORMAL)


def make_scene(
    root: Path, scene: str = "Barn", *, binary: bool = True, near: bool = False, beside: bool = False
) -> Path:
    """One scene in the layout of the data set, with two frames; gives the folder of its calibration."""
    folder = root / "TNT_GOF" / "TrainingSet" / scene
    (folder / "images").mkdir(parents=True)
    (folder / "sparse" / "0").mkdir(parents=True)
    reconstruction = pycolmap.Reconstruction()
    camera = pycolmap.Camera(model="OPENCV", width=WIDTH, height=HEIGHT, params=list(LENS), camera_id=1)
    reconstruction.add_camera_with_trivial_rig(camera)
    for number, (turned, moved) in enumerate(POSES, start=1):
        name = f"{number:06d}.jpg"
        image = pycolmap.Image(name=name, camera_id=1, image_id=number)
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(turned), moved)
        reconstruction.add_image_with_trivial_frame(image, pose)
        pixels = np.random.default_rng(number).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / name)
    (reconstruction.write_binary if binary else reconstruction.write_text)(str(folder / "sparse" / "0"))

    # camera = R x + t in units of the reconstruction; scan = s A x + b.
    turned, moved = POSES[0]
    world = (wall_points(near) / SCALE - moved) @ turned
    scan = SCALE * world @ ALIGN.T + OFFSET
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = SCALE * ALIGN, OFFSET
    laser = folder if beside else root / scene
    laser.mkdir(exist_ok=True)
    write_ply(laser / f"{scene}.ply", scan, np.zeros(scan.shape, np.uint8))
    np.savetxt(laser / f"{scene}_trans.txt", matrix)
    return folder


@pytest.mark.parametrize("binary", [True, False])
def test_depth_is_in_metres_of_the_scan(tmp_path, binary):
    make_scene(tmp_path, binary=binary)
    data = TanksAndTemples(tmp_path)
    assert data.names() == ["Barn/000001", "Barn/000002"]
    assert all(path.is_file() for path in data.files("Barn/000001"))
    scene = data.load("Barn/000001")
    assert scene.image.shape == (HEIGHT // 2, WIDTH // 2, 3)
    assert scene.image.dtype == np.uint8
    assert isinstance(scene.camera, RayCamera)
    assert scene.reference.dtype == np.float32
    truth = plane_depth(scene.camera)
    np.testing.assert_allclose(scene.reference, truth, rtol=PLANE_RTOL)  # no hole: NaN would not be close
    assert truth.max() / truth.min() > 1 + 5 * PLANE_RTOL
    # The second camera stands elsewhere and sees another depth.
    other = data.load("Barn/000002").reference
    assert not np.allclose(other, truth, rtol=PLANE_RTOL, equal_nan=True)
    assert np.isfinite(other).any()


def test_normals_of_the_wall_are_constant(tmp_path):
    make_scene(tmp_path)
    camera = TanksAndTemples(tmp_path).load("Barn/000001").camera
    found = normals(plane_depth(camera), camera)[1:-1, 1:-1]
    truth = -NORMAL / np.linalg.norm(NORMAL)
    assert np.linalg.norm(np.cross(found, truth), axis=-1).max() < 1e-5  # float32 rays between neighbours 1/30 apart


def test_wall_behind_the_grid_is_removed_from_frames(tmp_path):
    make_scene(tmp_path, near=True)
    kept = TanksAndTemples(tmp_path).load("Barn/000001").reference  # off by default: the paper mentions no removal
    removed = TanksAndTemples(tmp_path, see_through_radius=3).load("Barn/000001").reference
    inside = np.zeros(kept.shape, bool)
    inside[6:17, 8:31] = True
    near = kept < 2
    assert near.sum() == 6 * 12
    np.testing.assert_array_equal(np.isnan(removed), inside & ~near)
    np.testing.assert_array_equal(removed[~inside], kept[~inside])
    # Every removed pixel lies between nearer ones, so it is a hole of the support. The published hole fractions of
    # Barn and Ignatius, at most .0001 in the median, leave no room for that.
    assert support(kept).hole_fraction == 0
    assert support(removed).holes == (inside & ~near).sum()


def test_sizes_depth_limits_and_full_resolution(tmp_path):
    make_scene(tmp_path)
    full = TanksAndTemples(tmp_path, scale=1.0).load("Barn/000001")
    assert full.reference.shape == (HEIGHT, WIDTH) == full.image.shape[:2]
    fine = TanksAndTemples(tmp_path).scan_projection("Barn/000001").fine
    np.testing.assert_array_equal(fine, full.reference)
    capped = TanksAndTemples(tmp_path, max_depth=5.0).load("Barn/000001").reference
    assert np.nanmax(capped) <= 5.0 < np.nanmax(fine)


def test_roots_and_places_of_the_scan(tmp_path):
    make_scene(tmp_path / "a")
    make_scene(tmp_path / "b", beside=True)
    expected = TanksAndTemples(tmp_path / "a").load("Barn/000001").reference
    for root in ("b", "b/TNT_GOF", "b/TNT_GOF/TrainingSet"):
        np.testing.assert_array_equal(TanksAndTemples(tmp_path / root).load("Barn/000001").reference, expected)


def test_excluded_scenes_are_read_only_when_named(tmp_path):
    make_scene(tmp_path, "Truck")
    make_scene(tmp_path, "Courthouse")
    data = TanksAndTemples(tmp_path)
    assert data.names() == ["Truck/000001", "Truck/000002"]
    assert data.subset("Truck/000001") == "Truck"
    named = TanksAndTemples(tmp_path, scenes=["Courthouse"])
    assert named.names() == ["Courthouse/000001", "Courthouse/000002"]
    assert np.isfinite(named.load("Courthouse/000001").reference).any()
    assert not set(SCENES) & set(EXCLUDED)
    with pytest.raises(FileError, match="holds no frames of the scene Barn"):
        TanksAndTemples(tmp_path, scenes=["Barn"]).names()
    with pytest.raises(InputError, match="did you mean 'Courthouse'"):
        TanksAndTemples(tmp_path, scenes=["Courtouse"])
    with pytest.raises(FileError, match="holds no images"):
        TanksAndTemples(tmp_path / "Truck").names()


@pytest.mark.parametrize(
    "options",
    [{"scale": 0.0}, {"scale": 2.0}, {"see_through_ratio": 1.0}, {"see_through_radius": -1}, {"max_depth": -1.0}],
)
def test_wrong_options_are_named(tmp_path, options):
    with pytest.raises(InputError, match=f"`{next(iter(options))}`"):
        TanksAndTemples(tmp_path, **options)


def test_errors_name_missing_files(tmp_path):
    folder = make_scene(tmp_path)
    for path, message in (
        (tmp_path / "Barn" / "Barn.ply", r"Barn\.ply: no such file"),
        (tmp_path / "Barn" / "Barn_trans.txt", r"Barn_trans\.txt: no such file"),
        (folder / "sparse" / "0" / "images.bin", r"images\.bin: no such file"),
        (folder / "images" / "000001.jpg", r"000001\.jpg"),
    ):
        aside = path.with_name("aside")
        shutil.move(path, aside)
        with pytest.raises(FileError, match=message):
            TanksAndTemples(tmp_path).load("Barn/000001")
        shutil.move(aside, path)
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "images" / "000003.jpg")
    with pytest.raises(FileError, match=r"has no pose of 000003\.jpg"):
        TanksAndTemples(tmp_path).load("Barn/000003")
    Image.new("RGB", (WIDTH, HEIGHT - 8)).save(folder / "images" / "000001.jpg")
    with pytest.raises(FileError, match="aspect ratio of its calibration, 80x46"):
        TanksAndTemples(tmp_path).load("Barn/000001")
    with pytest.raises(InputError, match="no scene 'Bran'; did you mean 'Barn'"):
        TanksAndTemples(tmp_path).load("Bran/000001")


def test_smaller_images_of_the_same_crop_are_accepted(tmp_path):
    folder = make_scene(tmp_path)
    before = TanksAndTemples(tmp_path).load("Barn/000001")
    with Image.open(folder / "images" / "000001.jpg") as picture:
        small = picture.resize((WIDTH // 2, HEIGHT // 2))
    small.save(folder / "images" / "000001.jpg")
    after = TanksAndTemples(tmp_path).load("Barn/000001")
    assert after.image.shape == before.image.shape
    np.testing.assert_array_equal(after.reference, before.reference)


def test_matrices_that_are_not_similarities_raise(tmp_path):
    path = tmp_path / "t.txt"
    for matrix in (np.eye(3), np.diag([1.0, 2, 1, 1]), np.diag([-1.0, 1, 1, 1]), np.zeros((4, 4)), 1e200 * np.eye(4)):
        np.savetxt(path, matrix)
        with pytest.raises(FileError, match=r"t\.txt: must hold"):
            read_alignment(path)
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = SCALE * ALIGN, OFFSET
    np.savetxt(path, matrix)
    scale, turned, moved = read_alignment(path)
    assert scale == pytest.approx(SCALE, rel=1e-12)
    np.testing.assert_allclose(turned, ALIGN, atol=1e-12)
    np.testing.assert_allclose(moved, OFFSET, atol=1e-12)


def test_projected_depth_is_cached_and_renewed(tmp_path, monkeypatch):
    make_scene(tmp_path)
    data = TanksAndTemples(tmp_path, cache=tmp_path / "cache" / "deep")
    first = data.load("Barn/000001").reference
    (kept,) = (tmp_path / "cache" / "deep").iterdir()
    calls = []
    monkeypatch.setattr(tanks, "z_buffer", lambda *arguments: calls.append(1) or z_buffer(*arguments))
    np.testing.assert_array_equal(data.load("Barn/000001").reference, first)
    assert not calls
    kept.write_bytes(b"damaged")
    np.testing.assert_array_equal(data.load("Barn/000001").reference, first)
    assert len(calls) == 1
    # The unfiltered projection is stored, so that another radius needs no new one; another scan does.
    TanksAndTemples(tmp_path, cache=data.cache, see_through_radius=1).load("Barn/000001")
    assert len(calls) == 1
    os.utime(tmp_path / "Barn" / "Barn.ply", ns=(1, 1))
    data.load("Barn/000001")
    assert len(calls) == 2


def test_audit_looks_at_the_unfiltered_reference_and_checks_the_scan(tmp_path):
    folder = make_scene(tmp_path, "Courthouse", near=True)
    found = audit(TanksAndTemples(tmp_path, scenes=["Courthouse"]), far_ratio=1.05)
    filtered = TanksAndTemples(tmp_path, scenes=["Courthouse"], see_through_radius=3)
    assert audit(filtered, far_ratio=1.05).frames == found.frames
    frame = found.frames[0]
    scan = filtered.scan_projection("Courthouse/000001")
    # At half size a pixel is a thirtieth wide and the wall's slope is some 0.4, at 4 to 6 m: millimetres, not metres.
    assert 1 < frame.reprojection_mm < 1000 * 6 * PLANE_RTOL
    rows, columns = scan.pixels.T
    assert (scan.depth >= scan.reference[rows, columns] * (1 - 1e-6)).all()  # float32; nothing is before the nearest
    assert math.isnan(frame.colour_correlation)  # the scan is black
    # The scan in the colours of the first frame: its own pixels agree, shifted ones do not.
    points, _ = read_ply(tmp_path / "Courthouse" / "Courthouse.ply")
    smooth = np.indices((HEIGHT, WIDTH)).sum(axis=0) % 64
    image = np.repeat((3 * smooth).astype(np.uint8)[..., None], 3, axis=2)
    Image.fromarray(image).save(folder / "images" / "000001.jpg", quality=100)
    posed, camera = filtered._posed("Courthouse/000001")
    seen = transform_points(points.astype(float), filtered._scan_to_camera("Courthouse/000001", posed))
    places = np.clip(np.rint(camera.project(seen)), 0, (WIDTH - 1, HEIGHT - 1)).astype(int)
    write_ply(tmp_path / "Courthouse" / "Courthouse.ply", points, image[places[:, 1], places[:, 0]])
    frame = audit(filtered, far_ratio=1.05).frames[0]
    assert frame.colour_correlation > 0.9
    assert frame.shifted_correlation < 0.5
    # A cached rendering of another pose is found out: its depth is not that of the scan's points.
    moved = dataclasses.replace(scan, reference=scan.reference * np.float32(1.1))
    assert check_scan(moved)[0] == pytest.approx(500, rel=0.25)  # 10 % of 4 to 6 m


def test_source_can_be_pickled(tmp_path):
    make_scene(tmp_path)
    data = pickle.loads(pickle.dumps(TanksAndTemples(tmp_path, scenes=("Barn",))))
    assert np.isfinite(data.load("Barn/000001").reference).all()


def test_registry_and_commands_list_tanks(tmp_path):
    make_scene(tmp_path, "Courthouse", near=True)
    data = dataset("tanks", tmp_path, scenes=["Courthouse"], see_through_radius=0)
    assert data.names() == ["Courthouse/000001", "Courthouse/000002"]
    arguments = ["tanks", str(tmp_path), "--data-option", "scenes=Courthouse", "--data-option", "see_through_radius=0"]
    for command in (["geometry", *arguments, "-o", str(tmp_path / "out")], ["audit", *arguments, "--far", "1.05"]):
        done = CliRunner().invoke(group, ["datasets", *command], prog_name="leadline")
        assert done.exit_code == 0, done.output
    assert "Courthouse" in (tmp_path / "out" / "reference_geometry.csv").read_text()
    # The audit pools the full resolution, where the far side of the wall lies behind near points within 16 pixels.
    shares = re.findall(r"radius \d+ +(\d+\.\d)%", done.output)
    assert [float(share) for share in shares] == sorted(map(float, shares))
    assert float(shares[-1]) > 0
    assert re.search(r"reprojection +\d+\.\d\d mm in the median frame", done.output)
