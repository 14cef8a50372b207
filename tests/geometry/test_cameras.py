"""Camera models: points and projection against each other and against pycolmap."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from leadline.base.errors import InputError, MissingExtra
from leadline.bench.metrics import normals
from leadline.geometry.cameras import MODELS, Camera, ColmapCamera, RayCamera

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
    camera = ColmapCamera(model, WIDTH, HEIGHT, LENSES[model]).rays()
    depth = np.random.default_rng(1).uniform(0.5, 20.0, (HEIGHT, WIDTH))
    back = project(model, LENSES[model], camera.points(depth).reshape(-1, 3)).reshape(HEIGHT, WIDTH, 2)
    rows, columns = np.indices((HEIGHT, WIDTH))
    np.testing.assert_allclose(back[..., 0], columns, atol=PIXEL_ATOL)
    np.testing.assert_allclose(back[..., 1], rows, atol=PIXEL_ATOL)


@pytest.mark.parametrize("model", LENSES)
def test_rays_of_a_resized_picture_look_at_the_same_places(model):
    """Pixel (i, j) of the half-size picture lies in the middle of four pixels, and so does its ray."""
    half = ColmapCamera(model, WIDTH, HEIGHT, LENSES[model]).scaled(WIDTH // 2, HEIGHT // 2).rays()
    back = project(model, LENSES[model], half.points(np.ones((HEIGHT // 2, WIDTH // 2))).reshape(-1, 3))
    rows, columns = np.indices((HEIGHT // 2, WIDTH // 2))
    np.testing.assert_allclose(back[:, 0], columns.ravel() * 2 + 0.5, atol=PIXEL_ATOL)
    np.testing.assert_allclose(back[:, 1], rows.ravel() * 2 + 0.5, atol=PIXEL_ATOL)


@pytest.mark.parametrize("size", [None, (WIDTH // 2, HEIGHT // 2), (37, 101)])
def test_rays_of_a_pinhole_are_those_of_the_pinhole(size):
    fx, fy, cx, cy = LENSES["PINHOLE"]
    pinhole = Camera(WIDTH, HEIGHT, fx, fy, cx - 0.5, cy - 0.5)
    pinhole = pinhole if size is None else pinhole.scaled(*size)
    camera = ColmapCamera("PINHOLE", WIDTH, HEIGHT, LENSES["PINHOLE"])
    rays = (camera if size is None else camera.scaled(*size)).rays()
    assert (rays.width, rays.height) == (pinhole.width, pinhole.height)
    ones = np.ones((rays.height, rays.width))
    np.testing.assert_allclose(rays.points(ones), pinhole.points(ones), atol=1e-6)


@pytest.mark.parametrize("model", LENSES)
def test_normals_of_a_slanted_plane_are_constant(model):
    camera = ColmapCamera(model, WIDTH, HEIGHT, LENSES[model]).rays()
    truth = np.array([0.3, -0.2, -1.0]) / np.linalg.norm([0.3, -0.2, -1.0])
    found = normals(plane(camera, truth, -4.0), camera)[1:-1, 1:-1]
    angle = np.degrees(np.arcsin(np.clip(np.linalg.norm(np.cross(found, truth), axis=-1), 0, 1)))
    assert angle.max() < NORMAL_ATOL_DEG
    assert (found @ truth > 0).all()  # towards the camera


def test_ignoring_distortion_would_bend_the_plane():
    """The check above can fail: the same depth through a pinhole of the same focal length is no plane."""
    params = LENSES["OPENCV"]
    truth = np.array([0.3, -0.2, -1.0]) / np.linalg.norm([0.3, -0.2, -1.0])
    depth = plane(ColmapCamera("OPENCV", WIDTH, HEIGHT, params).rays(), truth, -4.0)
    found = normals(depth, Camera(WIDTH, HEIGHT, *params[:2], params[2] - 0.5, params[3] - 0.5))[1:-1, 1:-1]
    assert np.degrees(np.arccos(np.clip(found @ truth, -1, 1))).max() > 1.0


def test_pixels_beyond_the_lens_have_no_ray():
    # 400 pixels a radian: the left border would lie 2.4 rad, 138 degrees, from the axis.
    fisheye = ColmapCamera("OPENCV_FISHEYE", 1920, 10, [400, 400, 960, 5, 0, 0, 0, 0]).rays()
    angle = (np.arange(1920) + 0.5 - 960) / 400
    seen = np.isfinite(fisheye.rays[5, :, 0])
    assert not seen[np.abs(angle) > np.pi / 2].any()
    assert seen[np.abs(angle) < 1.5].all()
    # r (1 - 0.4 r^2) has its largest value, 0.61, at r = 0.91: nothing is imaged beyond.
    barrel = ColmapCamera("OPENCV", 1920, 10, [400, 400, 960, 5, -0.4, 0, 0, 0]).rays()
    assert np.isnan(barrel.rays[5, 0]).all()
    assert np.isfinite(barrel.rays[5, 960]).all()
    assert np.isnan(normals(np.ones((10, 1920)), barrel)[5, 1]).all()


CAMERAS = {
    "pinhole": Camera(WIDTH, HEIGHT, 60.0, 61.0, 46.5, 27.5),
    **{model: ColmapCamera(model, WIDTH, HEIGHT, params) for model, params in LENSES.items()},
}


@pytest.mark.parametrize("name", CAMERAS)
def test_projection_inverts_back_projection(name):
    camera = CAMERAS[name]
    depth = np.random.default_rng(2).uniform(0.5, 20.0, (HEIGHT, WIDTH))
    points = camera.points(depth).reshape(-1, 3)
    rows, columns = np.indices((HEIGHT, WIDTH))
    pixels = camera.project(points)
    np.testing.assert_allclose(pixels, np.stack((columns.ravel(), rows.ravel()), axis=1), atol=PIXEL_ATOL)
    assert np.isnan(camera.project(points * (1, 1, -1))).all()


@pytest.mark.parametrize("name", CAMERAS)
def test_scaled_cameras_see_the_same(name):
    points = np.random.default_rng(3).uniform((-0.5, -0.3, 1), (0.5, 0.3, 4), (50, 3))
    camera = CAMERAS[name]
    half, whole = camera.scaled(WIDTH // 2, HEIGHT // 2).project(points), camera.project(points)
    np.testing.assert_allclose(half + 0.5, (whole + 0.5) / 2, atol=PIXEL_ATOL)


@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (WIDTH // 2, HEIGHT // 2), (37, 101)])
def test_scaled_rays_are_those_of_the_scaled_pinhole(size):
    """The rays of a pinhole are linear in the pixel, so linear interpolation is exact."""
    pinhole = CAMERAS["pinhole"]
    rays = RayCamera(pinhole.points(np.ones((HEIGHT, WIDTH)))[..., :2]).scaled(*size)
    ones = np.ones(size[::-1])
    np.testing.assert_allclose(rays.points(ones), pinhole.scaled(*size).points(ones), atol=1e-6)


def test_wrong_cameras_are_named():
    with pytest.raises(InputError, match="the camera model must be one of"):
        ColmapCamera("FOO", 4, 4, (1.0,))
    for params in ([1.0, 1.0, 2.0], [1.0, 1.0, 2.0, np.nan], [0.0, 1.0, 2.0, 2.0]):
        with pytest.raises(InputError, match="the parameters of PINHOLE"):
            ColmapCamera("PINHOLE", 4, 4, params)
    with pytest.raises(InputError, match="pixels a side"):
        ColmapCamera("PINHOLE", 0, 4, (1.0, 1.0, 2.0, 2.0))
    with pytest.raises(InputError, match="cannot project"):
        RayCamera(np.zeros((2, 2, 2))).project(np.ones((1, 3)))
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


def test_without_pycolmap_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    distorted = ColmapCamera("OPENCV", 5, 4, LENSES["OPENCV"])  # of a size that no other test computes rays for
    for use in (distorted.rays, lambda: distorted.project(np.ones((1, 3)))):
        with pytest.raises(MissingExtra, match=r"leadline\[lens\]"):
            use()
    pinhole = ColmapCamera("PINHOLE", 5, 4, LENSES["PINHOLE"])
    np.testing.assert_array_equal(pinhole.points(np.ones((4, 5))), pinhole.pinhole().points(np.ones((4, 5))))
