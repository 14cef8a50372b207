"""COLMAP cameras: rays against pycolmap's own projection, model files against pycolmap's own writer."""

from __future__ import annotations

import contextlib
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.bench.metrics import normals
from leadline.geometry.cameras import Camera, RayCamera
from leadline.geometry.lenses import MODELS, camera_rays
from leadline.io.colmap import read_model

pycolmap = pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")

WIDTH, HEIGHT = 96, 54
# float32 rays up to 2 in size, times a focal length of some 60 pixels.
PIXEL_ATOL = 2e-5
# float32 rays (6e-8) over the 1/60 between neighbours, and depth in float64.
NORMAL_ATOL_DEG = 1e-3
LENSES = {
    "SIMPLE_PINHOLE": [60.0, 47.0, 28.0],
    "PINHOLE": [60.0, 61.0, 47.0, 28.0],
    "SIMPLE_RADIAL": [60.0, 47.0, 28.0, 0.06],
    "RADIAL": [60.0, 47.0, 28.0, 0.06, -0.01],
    "OPENCV": [60.0, 61.0, 47.0, 28.0, 0.06, -0.02, 0.002, -0.003],
    "OPENCV_FISHEYE": [60.0, 61.0, 47.0, 28.0, 0.05, -0.02, 0.003, -0.001],
    "THIN_PRISM_FISHEYE": [60.0, 61.0, 47.0, 28.0, 0.05, -0.02, 0.001, -0.002, 0.001, 0.0, 0.002, -0.001],
}


def project(model, params, points):
    camera = pycolmap.Camera(model=model, width=WIDTH, height=HEIGHT, params=params)
    return camera.img_from_cam(points) - 0.5


def plane(camera, normal, distance):
    """Depth of n . x = distance along the rays of a camera."""
    rays = camera.points(np.ones((camera.height, camera.width)))
    return distance / (rays @ normal)


@pytest.mark.parametrize("model", LENSES)
def test_rays_project_onto_their_own_pixels(model):
    camera = camera_rays(model, LENSES[model], WIDTH, HEIGHT)
    depth = np.random.default_rng(1).uniform(0.5, 20.0, (HEIGHT, WIDTH))
    back = project(model, LENSES[model], camera.points(depth).reshape(-1, 3)).reshape(HEIGHT, WIDTH, 2)
    rows, columns = np.indices((HEIGHT, WIDTH))
    np.testing.assert_allclose(back[..., 0], columns, atol=PIXEL_ATOL)
    np.testing.assert_allclose(back[..., 1], rows, atol=PIXEL_ATOL)


@pytest.mark.parametrize("model", LENSES)
def test_rays_of_a_resized_picture_look_at_the_same_places(model):
    """Pixel (i, j) of the half-size picture lies in the middle of four pixels, and so does its ray."""
    half = camera_rays(model, LENSES[model], WIDTH, HEIGHT, size=(WIDTH // 2, HEIGHT // 2))
    back = project(model, LENSES[model], half.points(np.ones((HEIGHT // 2, WIDTH // 2))).reshape(-1, 3))
    rows, columns = np.indices((HEIGHT // 2, WIDTH // 2))
    np.testing.assert_allclose(back[:, 0], columns.ravel() * 2 + 0.5, atol=PIXEL_ATOL)
    np.testing.assert_allclose(back[:, 1], rows.ravel() * 2 + 0.5, atol=PIXEL_ATOL)


@pytest.mark.parametrize("size", [None, (WIDTH // 2, HEIGHT // 2), (37, 101)])
def test_rays_of_a_pinhole_are_those_of_the_pinhole(size):
    fx, fy, cx, cy = LENSES["PINHOLE"]
    pinhole = Camera(WIDTH, HEIGHT, fx, fy, cx - 0.5, cy - 0.5)
    pinhole = pinhole if size is None else pinhole.scaled(*size)
    rays = camera_rays("PINHOLE", LENSES["PINHOLE"], WIDTH, HEIGHT, size=size)
    assert (rays.width, rays.height) == (pinhole.width, pinhole.height)
    ones = np.ones((rays.height, rays.width))
    np.testing.assert_allclose(rays.points(ones), pinhole.points(ones), atol=1e-6)


@pytest.mark.parametrize("model", LENSES)
def test_normals_of_a_slanted_plane_are_constant(model):
    camera = camera_rays(model, LENSES[model], WIDTH, HEIGHT)
    truth = np.array([0.3, -0.2, -1.0]) / np.linalg.norm([0.3, -0.2, -1.0])
    found = normals(plane(camera, truth, -4.0), camera)[1:-1, 1:-1]
    angle = np.degrees(np.arcsin(np.clip(np.linalg.norm(np.cross(found, truth), axis=-1), 0, 1)))
    assert angle.max() < NORMAL_ATOL_DEG
    assert (found @ truth > 0).all()  # towards the camera


def test_ignoring_distortion_would_bend_the_plane():
    """The check above can fail: the same depth through a pinhole of the same focal length is no plane."""
    params = LENSES["OPENCV"]
    truth = np.array([0.3, -0.2, -1.0]) / np.linalg.norm([0.3, -0.2, -1.0])
    depth = plane(camera_rays("OPENCV", params, WIDTH, HEIGHT), truth, -4.0)
    found = normals(depth, Camera(WIDTH, HEIGHT, *params[:2], params[2] - 0.5, params[3] - 0.5))[1:-1, 1:-1]
    assert np.degrees(np.arccos(np.clip(found @ truth, -1, 1))).max() > 1.0


def test_pixels_beyond_the_lens_have_no_ray():
    # 400 pixels a radian: the left border would lie 2.4 rad, 138 degrees, from the axis.
    fisheye = camera_rays("OPENCV_FISHEYE", [400, 400, 960, 5, 0, 0, 0, 0], 1920, 10)
    angle = (np.arange(1920) + 0.5 - 960) / 400
    seen = np.isfinite(fisheye.rays[5, :, 0])
    assert not seen[np.abs(angle) > np.pi / 2].any()
    assert seen[np.abs(angle) < 1.5].all()
    # r (1 - 0.4 r^2) has its largest value, 0.61, at r = 0.91: nothing is imaged beyond.
    barrel = camera_rays("OPENCV", [400, 400, 960, 5, -0.4, 0, 0, 0], 1920, 10)
    assert np.isnan(barrel.rays[5, 0]).all()
    assert np.isfinite(barrel.rays[5, 960]).all()
    assert np.isnan(normals(np.ones((10, 1920)), barrel)[5, 1]).all()


def test_wrong_cameras_are_named():
    with pytest.raises(InputError, match="`model_name` must be one of"):
        camera_rays("FOO", [1.0], 4, 4)
    for params in ([1.0, 1.0, 2.0], [1.0, 1.0, 2.0, np.nan], [0.0, 1.0, 2.0, 2.0]):
        with pytest.raises(InputError, match="`params` of PINHOLE"):
            camera_rays("PINHOLE", params, 4, 4)
    with pytest.raises(InputError, match="pixels a side"):
        camera_rays("PINHOLE", [1.0, 1.0, 2.0, 2.0], 0, 4)
    with pytest.raises(InputError, match="`size`"):
        camera_rays("PINHOLE", [1.0, 1.0, 2.0, 2.0], 4, 4, size=(0, 4))
    for rays in (np.zeros((2, 2)), np.zeros((2, 2, 3)), np.zeros((2, 2, 2), int)):
        with pytest.raises(InputError, match="`rays`"):
            RayCamera(rays)
    with pytest.raises(InputError, match="`depth`"):
        RayCamera(np.zeros((2, 2, 2))).points(np.ones((2, 3)))


def test_model_ids_are_pycolmaps():
    for number, (name, count) in enumerate(MODELS.items()):
        model = getattr(pycolmap.CameraModelId, name)
        assert int(model) == number
        assert len(pycolmap.Camera.create_from_model_id(1, model, 100.0, 640, 480).params) == count


def write_reconstruction(folder: Path, *, binary: bool) -> dict[str, tuple[str, np.ndarray]]:
    """Two cameras and three images written by pycolmap; gives the model and the 3x4 pose of each image."""
    rng = np.random.default_rng(7)
    reconstruction = pycolmap.Reconstruction()
    for number, model in enumerate(("OPENCV", "THIN_PRISM_FISHEYE"), start=1):
        reconstruction.add_camera_with_trivial_rig(
            pycolmap.Camera(model=model, width=WIDTH, height=HEIGHT, params=LENSES[model], camera_id=number)
        )
    truth = {}
    for number, name in enumerate(("a b.jpg", "dslr_images/c.JPG", "\u00fc.png"), start=1):
        quaternion = rng.normal(size=4)
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(quaternion / np.linalg.norm(quaternion)), rng.normal(size=3))
        camera_id = 1 + number % 2
        image = pycolmap.Image(name=name, camera_id=camera_id, image_id=number)
        image.points2D = pycolmap.Point2DList([pycolmap.Point2D(xy) for xy in rng.uniform(0, 50, (number - 1, 2))])
        reconstruction.add_image_with_trivial_frame(image, pose)
        truth[name] = (("OPENCV", "THIN_PRISM_FISHEYE")[camera_id - 1], pose.matrix())
    folder.mkdir(exist_ok=True)
    (reconstruction.write_binary if binary else reconstruction.write_text)(str(folder))
    return truth


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("points", [True, False])
def test_models_are_read_as_pycolmap_writes_them(tmp_path, binary, points):
    truth = write_reconstruction(tmp_path / "model", binary=binary)
    if not points:  # what calibrations are often shipped as
        for path in (tmp_path / "model").iterdir():
            if path.stem not in ("cameras", "images"):
                path.unlink()
    model = read_model(tmp_path / "model")
    assert set(model.images) == set(truth)
    for name, (lens, pose) in truth.items():
        image = model.images[name]
        camera = model.camera_of(image)
        assert (camera.model, camera.width, camera.height) == (lens, WIDTH, HEIGHT)
        assert camera.params == tuple(LENSES[lens])
        np.testing.assert_allclose(np.column_stack((image.rotation, image.translation)), pose, atol=1e-12)
    assert isinstance(model.cameras[1].at_size((48, 27)), RayCamera)


def test_pinhole_of_a_model_is_a_pinhole(tmp_path):
    (tmp_path / "cameras.txt").write_text("# comment\n1 PINHOLE 4 2 8 8 2 1\n2 SIMPLE_PINHOLE 4 2 8 2 1\n")
    (tmp_path / "images.txt").write_text("# comment\n5 1 0 0 0 0 0 0 2 x.png\n\n")
    model = read_model(tmp_path)
    assert model.cameras[1].at_size() == Camera(4, 2, 8.0, 8.0, 1.5, 0.5) == model.cameras[2].at_size()
    assert model.cameras[1].at_size((2, 1)) == Camera(2, 1, 4.0, 4.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("cameras", "images", "message"),
    [
        ("1 FOO 4 2 8", "", "cameras.txt: .*FOO"),
        ("1 PINHOLE 4 2 8 8 2", "", "cameras.txt: .*4 finite numbers"),
        ("1 PINHOLE 4 two 8 8 2 1", "", "cameras.txt: is not a file"),
        ("1 PINHOLE 4 2 8 8 2 1", "5 1 0 0 0 0 0 0 1", "images.txt: is not a file"),
        ("1 PINHOLE 4 2 8 8 2 1", "5 0 0 0 0 0 0 0 1 x.png", "images.txt: .*no valid pose"),
        ("1 PINHOLE 4 2 8 8 2 1", "5 1 0 0 0 0 0 nan 1 x.png", "images.txt: .*no valid pose"),
        ("1 PINHOLE 4 2 8 8 2 1", "5 1 0 0 0 0 0 0 7 x.png", "images.txt: .*camera 7"),
        ("1 PINHOLE 4 2 8 8 2 1", "5 1 0 0 0 0 0 0 1 x.png\n\n6 1 0 0 0 0 0 0 1 x.png", "two images"),
    ],
)
def test_damaged_text_models(tmp_path, cameras, images, message):
    (tmp_path / "cameras.txt").write_text(cameras + "\n")
    (tmp_path / "images.txt").write_text(images + "\n")
    with pytest.raises(FileError, match=message):
        read_model(tmp_path)


def test_missing_model_says_what_it_needs(tmp_path):
    with pytest.raises(FileError, match=r"needs cameras\.bin and images\.bin"):
        read_model(tmp_path)


def test_every_truncation_of_a_binary_model_is_refused(tmp_path):
    write_reconstruction(tmp_path, binary=True)
    for name in ("cameras.bin", "images.bin"):
        whole = (tmp_path / name).read_bytes()
        for length in range(len(whole)):
            (tmp_path / name).write_bytes(whole[:length])
            with pytest.raises(FileError, match=name):
                read_model(tmp_path)
        (tmp_path / name).write_bytes(struct.pack("<Q", 2**60) + whole[8:])
        with pytest.raises(FileError, match=name):
            read_model(tmp_path)
        (tmp_path / name).write_bytes(whole)
    assert len(read_model(tmp_path).images) == 3


@settings(max_examples=60)
@given(place=st.integers(0, 400), value=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(tmp_path_factory, place, value):
    folder = tmp_path_factory.getbasetemp() / "changed"
    write_reconstruction(folder, binary=True)
    for name in ("cameras.bin", "images.bin"):
        data = bytearray((folder / name).read_bytes())
        data[place % len(data)] = value
        (folder / name).write_bytes(data)
        with contextlib.suppress(FileError):  # any other exception is a bug
            read_model(folder)


def test_without_pycolmap_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingExtra, match=r"leadline\[colmap\]"):
        camera_rays("PINHOLE", LENSES["PINHOLE"], WIDTH, HEIGHT)
