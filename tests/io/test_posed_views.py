"""Lists of posed pictures, and exports decoded as the trainers decode them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import FileError, InputError
from leadline.geometry.cameras import ColmapCamera
from leadline.io.colmap import ColmapImage, ColmapModel, read_model, read_tracks
from leadline.io.views.gsplat import SPACING, write_gsplat
from leadline.io.views.maps import DepthMaps
from leadline.io.views.nerfstudio import check_dn_splatter, write_dn_splatter, write_nerfstudio
from leadline.io.views.posed import PosedView, read_views, write_views
from leadline.io.views.splatting import write_lichtfeld
from support.posed_scene import RoomView, room_views, write_scene


@pytest.fixture(scope="module")
def views() -> list[RoomView]:
    return room_views(4)


@pytest.fixture
def scene(tmp_path: Path, views: list[RoomView], rng: np.random.Generator) -> Path:
    write_scene(tmp_path, views, rng)
    return tmp_path


def model_of(scene: Path) -> ColmapModel:
    return read_model(scene / "sparse" / "0")


def load_from(views: list[RoomView], *, doubtful: int = 20) -> tuple[dict[str, RoomView], object]:
    """Exact depth whose first rows have a large standard deviation."""
    by_name = {f"{view.name}.png": view for view in views}

    def load(image: ColmapImage) -> DepthMaps:
        depth = by_name[image.name].depth.astype(np.float32)
        sigma = 0.01 * depth
        sigma[:doubtful] = depth[:doubtful]
        return DepthMaps(depth, sigma, max_sigma=0.1)

    return by_name, load


def test_lists_are_read_back(tmp_path: Path, views: list[RoomView]) -> None:
    lens = ColmapCamera("OPENCV", 96, 72, (75.0, 76.0, 48.0, 36.0, 0.1, -0.02, 0.001, 0.0))
    made = [
        PosedView(view.name, tmp_path / f"{view.name}.png", lens, view.camera_to_world, tmp_path / "d.png", unit="mm")
        for view in views
    ]
    write_views(tmp_path / "views.json", made, rounds=[])
    for before, after in zip(made, read_views(tmp_path), strict=True):
        assert (after.name, after.camera, after.unit, after.sigma) == (before.name, lens, "mm", None)
        assert after.image.resolve() == before.image.resolve()
        np.testing.assert_array_equal(after.camera_to_world, before.camera_to_world)


def test_nerfstudio_is_read_as_it_is_written(scene: Path, views: list[RoomView]) -> None:
    _, load = load_from(views)
    model = model_of(scene)
    images = [model.images[name] for name in sorted(model.images)]
    write_nerfstudio(scene / "out", model, images, load, scene / "images")
    for view, exact in zip(read_views(scene / "out"), views, strict=True):
        np.testing.assert_allclose(view.camera_to_world, exact.camera_to_world, atol=1e-12)
        assert view.camera == exact.camera
        assert view.depth is not None
        counts = np.asarray(Image.open(view.depth))
        assert (counts[:20] == 0).all()  # not reliable, and 0 is left out of the loss
        np.testing.assert_allclose(counts[20:] * view.unit, exact.depth[20:], atol=0.51e-3)


def test_sequences_of_7scenes_and_tum(tmp_path: Path, views: list[RoomView]) -> None:
    camera = views[0].camera
    for kind in ("7scenes", "tum"):
        (tmp_path / kind).mkdir()
    matrix = [[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]]
    np.savetxt(tmp_path / "7scenes" / "camera-intrinsics.txt", matrix)
    facts = {"width": 96, "height": 72, "fx": camera.fx, "fy": camera.fy, "cx": camera.cx, "cy": camera.cy}
    (tmp_path / "tum" / "camera.json").write_text(json.dumps(facts))
    poses, pictures = ["# time x y z qx qy qz qw"], []
    from scipy.spatial.transform import Rotation

    for number, view in enumerate(views):
        Image.fromarray(view.image).save(tmp_path / "7scenes" / f"frame-{view.name}.color.png")
        Image.fromarray(view.image).save(tmp_path / "tum" / f"{number}.5.png")
        np.savetxt(tmp_path / "7scenes" / f"frame-{view.name}.pose.txt", view.camera_to_world)
        numbers = (*view.camera_to_world[:3, 3], *Rotation.from_matrix(view.camera_to_world[:3, :3]).as_quat())
        poses.append(" ".join(map(repr, map(float, (number + 0.5, *numbers)))))
        pictures.append(f"{number}.5 {number}.5.png")
    (tmp_path / "tum" / "groundtruth.txt").write_text("\n".join(poses) + "\n")
    (tmp_path / "tum" / "rgb.txt").write_text("\n".join(pictures) + "\n")
    for kind in ("7scenes", "tum"):
        for view, exact in zip(read_views(tmp_path / kind), views, strict=True):
            np.testing.assert_allclose(view.camera_to_world, exact.camera_to_world, atol=1e-9)
            assert (view.camera.width, view.camera.height) == (96, 72)
    (tmp_path / "7scenes" / "frame-0001.pose.txt").unlink()
    with pytest.raises(InputError, match=r"frame-0001\.color\.png: has no pose; add frame-0001\.pose\.txt"):
        read_views(tmp_path / "7scenes")
    (tmp_path / "tum" / "rgb.txt").write_text("77.0 0.5.png\n")
    with pytest.raises(InputError, match=r"has no pose; groundtruth\.txt has none within"):
        read_views(tmp_path / "tum")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"camera_to_world": None}, "'0001' has no pose"),
        ({"camera_to_world": np.diag([1, 1, -1, 1]).tolist()}, "'0001': .*it mirrors"),
        ({"camera": {"width": 96}}, "cannot be read as a camera"),
    ],
)
def test_bad_lists_are_one_line(tmp_path: Path, views: list[RoomView], change: dict, message: str) -> None:
    made = [PosedView(view.name, tmp_path / "a.png", view.camera, view.camera_to_world) for view in views]
    write_views(tmp_path / "views.json", made)
    content = json.loads((tmp_path / "views.json").read_text())
    content["views"][1] |= change
    (tmp_path / "views.json").write_text(json.dumps(content))
    with pytest.raises((InputError, FileError), match=message) as caught:
        read_views(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="has no posed pictures"):
        read_views(tmp_path.parent / tmp_path.name / "..")


def test_lichtfeld_reads_depth_and_leaves_out_zeros(scene: Path, views: list[RoomView]) -> None:
    """As its loss does in the mode ssi-depth: codes / 65535 above 0 count, and depth is an affine function of them."""
    by_name, load = load_from(views)
    model = model_of(scene)
    write_lichtfeld(scene / "out", list(model.images.values()), load)
    for name, view in by_name.items():
        codes = np.asarray(Image.open(scene / "out" / "depths" / name))
        assert (codes.dtype, codes.max()) == (np.uint16, 65535)
        assert (codes[:20] == 0).all()
        prior, floor = codes[20:] / 65535, 0.05 * np.median(view.depth)
        scale, shift = np.polyfit(prior.ravel()[::97], view.depth[20:].ravel()[::97], 1)  # at a few points of the model
        assert scale > 0
        target = 1 / (scale * prior + shift + floor)
        np.testing.assert_allclose(target, 1 / (view.depth[20:] + floor), rtol=1e-4)
        assert (np.asarray(Image.open(scene / "out" / "depth_reliable" / name)) == 255).sum() == codes[20:].size


def test_dn_splatter_refuses_names_that_its_parser_mixes_up(scene: Path) -> None:
    """Sorted as natsort does, by numbers: a.png before a_1.png, but a_1_aligned.npy before a_aligned.npy."""
    model = model_of(scene)
    image = model.images["0002.png"]
    for names in (["f2.png", "f10.png", "f1.png"], ["a.png", "b_2.png", "b_10.png"]):
        check_dn_splatter(ColmapModel(model.cameras, dict.fromkeys(names, image)))
    with pytest.raises(InputError, match=r"would take the depth of 'a_1\.png' for 'a\.png'"):
        check_dn_splatter(ColmapModel(model.cameras, dict.fromkeys(["a.png", "a_1.png"], image)))


def test_dn_splatter_pairs_files_with_pictures(scene: Path, views: list[RoomView]) -> None:
    """As its parser does: sorted files beside sorted pictures, as many of both; 0 is left out."""
    by_name, load = load_from(views)
    model = model_of(scene)
    without = model.images["0002.png"]
    images = [image for image in model.images.values() if image is not without]
    notes = write_dn_splatter(scene / "out", model, images, load)
    assert notes == ("dn-splatter: 1 pictures without depth have a map of zeros.",)
    files = sorted((scene / "out" / "mono_depth").glob("*_aligned.npy"))
    assert len(files) == len(model.images)
    for file, name in zip(files, sorted(model.images), strict=True):
        depth = np.load(file)
        if name == without.name:
            assert not depth.any()
        else:
            np.testing.assert_allclose(depth[20:], by_name[name].depth[20:], rtol=1e-6)
            assert not depth[:20].any()
    nested = ColmapModel(model.cameras, {"left/a.png": without})
    with pytest.raises(InputError, match=r"'left/a\.png' is in a folder"):
        write_dn_splatter(scene / "out", nested, [], load)


def test_gsplat_reads_dense_points_with_their_tracks(scene: Path, views: list[RoomView]) -> None:
    """As its parser does: each picture's points, moved into its frame, have the depth of the picture at their pixel."""
    pycolmap = pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")
    by_name, load = load_from(views)
    model = model_of(scene)
    (note,) = write_gsplat(scene / "out", model, list(model.images.values()), load, scene / "images")
    assert "pictures each" in note

    def without_one(image: ColmapImage) -> DepthMaps:
        maps = load(image)
        return DepthMaps(maps.depth, np.full_like(maps.depth, np.nan)) if image.name == "0003.png" else maps

    # The trainer stops at a picture that observes no point.
    notes = write_gsplat(scene / "less", model, list(model.images.values()), without_one, scene / "images")
    assert notes[1] == "gsplat: 1 pictures have no reliable depth and are left out."
    assert sorted(read_model(scene / "less" / "sparse" / "0").images) == ["0000.png", "0001.png", "0002.png"]
    read = pycolmap.Reconstruction(scene / "out" / "sparse" / "0")
    assert read.num_reg_images() == 4
    own, tracks = read_model(scene / "out" / "sparse" / "0"), read_tracks(scene / "out" / "sparse" / "0")
    assert len(tracks.points) == read.num_points3D()
    assert tracks.lengths.mean() > 1.5  # most points are observed by several pictures
    for name, view in by_name.items():
        image = own.images[name]
        np.testing.assert_allclose(image.transform, model.images[name].transform, atol=1e-12)
        seen = tracks.points[tracks.indices_seen_by(image)] @ image.rotation.T + image.translation
        assert len(seen) > 0.5 * (72 - 20) * 96 / SPACING**2
        columns, rows = np.floor(view.camera.project(seen) + 0.5).astype(int).T
        error = np.abs(seen[:, 2] / view.depth[rows, columns] - 1)
        # A cell is as wide as eight pixels, so a point of several pictures may lie some pixels beside its samples.
        assert np.median(error) < 0.02
        assert rows.min() >= 20 - SPACING
