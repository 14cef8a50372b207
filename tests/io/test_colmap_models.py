"""COLMAP models: files against pycolmap's own writer."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.base.errors import FileError
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.io.colmap import (
    ColmapImage,
    ColmapModel,
    Tracks,
    feature_deviation,
    read_model,
    read_tracks,
    track_noise,
)

pycolmap = pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")

WIDTH, HEIGHT = 96, 54
LENSES = {
    "OPENCV": [60.0, 61.0, 47.0, 28.0, 0.06, -0.02, 0.002, -0.003],
    "THIN_PRISM_FISHEYE": [60.0, 61.0, 47.0, 28.0, 0.05, -0.02, 0.001, -0.002, 0.001, 0.0, 0.002, -0.001],
}


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


def test_pinhole_of_a_model_is_a_pinhole(tmp_path):
    (tmp_path / "cameras.txt").write_text("# comment\n1 PINHOLE 4 2 8 8 2 1\n2 SIMPLE_PINHOLE 4 2 8 2 1\n")
    (tmp_path / "images.txt").write_text("# comment\n5 1 0 0 0 0 0 0 2 x.png\n\n")
    model = read_model(tmp_path)
    assert model.cameras[1].pinhole() == Camera(4, 2, 8.0, 8.0, 1.5, 0.5) == model.cameras[2].pinhole()
    assert model.cameras[1].scaled(2, 1).pinhole() == Camera(2, 1, 4.0, 4.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("cameras", "images", "message"),
    [
        ("1 FOO 4 2 8", "", "cameras.txt: .*FOO"),
        ("1 PINHOLE 4 2 8 8 2", "", "cameras.txt: .*4 finite numbers"),
        ("1 PINHOLE 4 two 8 8 2 1", "", "cameras.txt: cannot be read as a file"),
        ("1 PINHOLE 4 2 8 8 2 1", "5 1 0 0 0 0 0 0 1", "images.txt: cannot be read as a file"),
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


@pytest.mark.parametrize(
    ("track", "spread"),
    # The root of the sum of squares of the centres about their mean: b / sqrt(2) for a pair with the baseline b.
    [((0, 1), 0.2 / np.sqrt(2)), ((0, 1, 2), np.sqrt(0.38 / 3))],
)
def test_noise_of_tracks_is_that_of_stereo_and_falls_with_more_images(track: tuple[int, ...], spread: float) -> None:
    """s z^2 / (f spread), where s, of a feature in pixels, follows from the mean reprojection error."""
    feature = 0.4 / np.sqrt(np.pi / 2) * np.sqrt(2 * len(track) / (2 * len(track) - 3))
    assert noise_of(track) == pytest.approx(feature * 4.0**2 / (500.0 * spread), rel=0.01)


def test_a_track_without_parallax_does_not_determine_the_depth() -> None:
    assert noise_of((0, 3)) > 2.0  # at a depth of 4


def noise_of(track: tuple[int, ...]) -> float:
    """Noise in the first of four images of the depth of a point with this track, 4 in front of it."""
    camera = ColmapCamera("PINHOLE", 640, 480, (500.0, 500.0, 320.0, 240.0))
    centres = (0.0, 0.2, -0.3, 0.0)
    images = [ColmapImage(f"{k}", 1, np.eye(3), np.array([-x, 0.0, 0.0]), k) for k, x in enumerate(centres)]
    model = ColmapModel({1: camera}, {image.name: image for image in images})
    point, length = np.array([[0.0, 0.0, 4.0]]), np.array([len(track)])
    tracks = Tracks(point, np.array([0.4]), length, np.array(track), np.zeros(len(track), dtype=int))
    (noise,) = track_noise(model, tracks, images[0])
    return float(noise)


def write_observed(folder: Path, *, binary: bool, features: bool = True) -> None:
    """A model of 30 points that two images observe; without `features` all of these are at the origin."""
    rng = np.random.default_rng(5)
    model = pycolmap.Reconstruction()
    camera = pycolmap.Camera(model="OPENCV", width=WIDTH, height=HEIGHT, params=LENSES["OPENCV"], camera_id=1)
    model.add_camera_with_trivial_rig(camera)
    points = rng.uniform((-1, -0.6, 3), (1, 0.6, 5), (30, 3))
    for number, angle in ((1, 0.3), (2, -0.4)):
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([0.0, angle, 0.4])), np.array([0.4, 0.2 * number, 0.3]))
        image = pycolmap.Image(name=f"{number}.png", camera_id=1, image_id=number)
        seen = [camera.img_from_cam(pose * point) for point in points]
        # A feature without a point comes first, so that the numbers of features and of points differ.
        positions = [np.array([1.0, 2.0]), *seen] if features else [np.zeros(2)] * 31
        image.points2D = pycolmap.Point2DList([pycolmap.Point2D(position) for position in positions])
        model.add_image_with_trivial_frame(image, pose)
    for index, point in enumerate(points, start=1):
        track = pycolmap.Track(elements=[pycolmap.TrackElement(number, index) for number in (1, 2)])
        model.add_point3D(point, track, np.zeros(3, np.uint8))
    folder.mkdir(exist_ok=True)
    (model.write_binary if binary else model.write_text)(str(folder))


@pytest.mark.parametrize("binary", [True, False])
def test_points_that_do_not_project_to_their_features(tmp_path: Path, binary: bool) -> None:
    write_observed(tmp_path, binary=binary)
    model, tracks = read_model(tmp_path), read_tracks(tmp_path)
    for image in model.images.values():
        assert feature_deviation(model, tracks, image) < 1e-6
        smaller = replace(model, cameras={1: model.cameras[1].scaled(WIDTH // 2, HEIGHT // 2)})
        assert feature_deviation(smaller, tracks, image) < 1e-6  # the features are those of the larger picture
        inverse = np.linalg.inv(image.transform)
        inverted = replace(image, rotation=inverse[:3, :3], translation=inverse[:3, 3])
        mirrored = replace(tracks, points=tracks.points * (-1, 1, 1))
        assert feature_deviation(model, tracks, inverted) > 0.02
        assert feature_deviation(model, mirrored, image) > 0.02


def test_features_that_are_not_known(tmp_path: Path) -> None:
    write_observed(tmp_path / "origin", binary=True, features=False)
    write_observed(tmp_path / "few", binary=True)
    origin, few = (read_tracks(tmp_path / name) for name in ("origin", "few"))
    assert few.features is not None
    few.features[few.point_indices > 8] = np.nan
    model = read_model(tmp_path / "few")
    for tracks in (origin, few, replace(few, features=None)):
        assert np.isnan(feature_deviation(model, tracks, model.images["1.png"]))
    (tmp_path / "few" / "images.bin").unlink()
    assert read_tracks(tmp_path / "few").features is None
