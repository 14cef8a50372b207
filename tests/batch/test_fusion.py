"""`leadline fuse`: the mesh against the exact surface, its files as others read them, and its page in a browser."""

from __future__ import annotations

import json
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from leadline.apps.cli import LazyGroup
from leadline.base.errors import InputError, MissingExtra
from leadline.batch.fusion import DepthView, FusionOptions, fuse, typical_voxel
from leadline.geometry.cameras import ColmapCamera
from leadline.io.ply import read_ply
from leadline.io.views.posed import PosedView, write_views
from support.browser import chromium, quiet_page  # noqa: F401  (fixtures)
from support.posed_scene import RoomView, room_views, surface_distance

pytestmark = pytest.mark.skipif(find_spec("open3d") is None, reason="needs the extra 'mesh'")
group = LazyGroup(name="leadline", lazy={"fuse": ("leadline.apps.colmap:fuse_command", "")})
VOXEL = 0.05


@pytest.fixture(scope="module")
def views() -> list[RoomView]:
    return room_views(5, 128, 96)


def as_depth_views(views: list[RoomView]) -> list[DepthView]:
    return [DepthView(view.depth, view.image, view.camera, view.camera_to_world) for view in views]


def test_the_surface_is_that_of_the_room(views: list[RoomView]) -> None:
    surface = fuse(as_depth_views(views), FusionOptions(voxel=VOXEL))
    assert surface.views == 5
    distance = surface_distance(surface.points)
    assert np.median(distance) < 0.1 * VOXEL
    assert np.quantile(distance, 0.9) < VOXEL
    assert surface.triangles.max() == len(surface.points) - 1
    # Colours are those that the cameras see: the centre of the first picture, where its ray meets the mesh.
    view = views[0]
    place = view.camera.points(view.depth)[48, 64] @ view.camera_to_world[:3, :3].T + view.camera_to_world[:3, 3]
    nearest = np.argmin(np.linalg.norm(surface.points - place, axis=1))
    assert np.abs(surface.colours[nearest].astype(int) - view.image[48, 64]).max() < 30


def test_doubtful_far_and_lonely_pixels_are_left_out(views: list[RoomView]) -> None:
    doubtful = []
    for index, view in enumerate(as_depth_views(views)):
        depth, sigma = view.depth.copy(), np.full(view.depth.shape, 0.01)
        depth[:48] *= 1.5  # wrong, and known to be uncertain
        sigma[:48] = 5.0
        if index == 0:
            depth[70:80, 20:30] = 0.4  # a surface that one picture alone sees
        doubtful.append(DepthView(depth, view.image, view.camera, view.camera_to_world, sigma))
    surface = fuse(doubtful, FusionOptions(voxel=VOXEL, max_depth=4.0))
    assert np.quantile(surface_distance(surface.points), 0.99) < 2 * VOXEL
    distance = np.linalg.norm(surface.points - views[0].camera_to_world[:3, 3], axis=1)
    assert distance.max() < 4.0 * 1.5  # depth is along the axis, distance along the ray
    with pytest.raises(InputError, match="no pixel of 5 depth maps can be used"):
        fuse(doubtful, FusionOptions(voxel=VOXEL, max_depth=0.01))


def test_a_lens_is_straightened(views: list[RoomView]) -> None:
    """Depth on the pixels of a distorted picture gives the same surface."""
    pytest.importorskip("pycolmap", reason="needs the extra 'lens'")
    made = []
    for view in views:
        camera = view.camera
        numbers = (camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5, -0.2, 0.05, 0.0, 0.0)
        lens = ColmapCamera("OPENCV", camera.width, camera.height, numbers)
        rays = lens.points(np.ones(view.depth.shape)).reshape(-1, 3)
        columns, rows = np.rint(camera.project(rays)).astype(int).T
        inside = (columns >= 0) & (columns < camera.width) & (rows >= 0) & (rows < camera.height)
        depth = np.full(view.depth.size, np.nan)
        depth[inside] = view.depth[rows[inside], columns[inside]]
        made.append(DepthView(depth.reshape(view.depth.shape), view.image, lens, view.camera_to_world))
    surface = fuse(made, FusionOptions(voxel=VOXEL))
    assert np.median(surface_distance(surface.points)) < 0.3 * VOXEL


def test_default_voxel_follows_the_scale_of_the_scene(views: list[RoomView]) -> None:
    given = as_depth_views(views)
    small = [DepthView(view.depth / 100, view.image, view.camera, view.camera_to_world) for view in given]
    assert typical_voxel(given) == pytest.approx(100 * typical_voxel(small))


@pytest.fixture
def listed(tmp_path: Path, views: list[RoomView]) -> Path:
    made = []
    for view in views:
        Image.fromarray(view.image).save(tmp_path / f"{view.name}.png")
        np.save(tmp_path / f"{view.name}_depth.npy", view.depth)
        np.save(tmp_path / f"{view.name}_alone.npy", view.depth * 1.02)
        maps = {"depth": tmp_path / f"{view.name}_depth.npy", "alone": tmp_path / f"{view.name}_alone.npy"}
        made.append(PosedView(view.name, tmp_path / f"{view.name}.png", view.camera, view.camera_to_world, **maps))
    rounds = [{"number": 0, "moved": None, "disagreement": 0.02}, {"number": 1, "moved": 0.01, "disagreement": 0.001}]
    write_views(tmp_path / "views.json", made, rounds=rounds)
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(group, ["fuse", *arguments])
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def test_progress_counts_the_pictures(listed: Path, views: list[RoomView], monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[tuple[int, int]] = []
    given = as_depth_views(views)
    blind = DepthView(np.zeros_like(given[1].depth), given[1].image, given[1].camera, given[1].camera_to_world)
    surface = fuse([given[0], blind, *given[2:]], FusionOptions(voxel=0.1), lambda *count: counts.append(count))
    assert surface.views == 4
    assert counts == [(number, 5) for number in range(1, 6)]  # also those of which no pixel is used

    lines = run(str(listed), "--voxel", "0.1", "--report", str(listed / "page.html")).splitlines()
    assert [line for line in lines if line.startswith("fusing:")] == [f"fusing: {n}/5 pictures" for n in range(1, 6)]
    assert "fusing each alone: 5/5 pictures" in lines
    assert "pictures" not in run(str(listed), "--voxel", "0.1", "--quiet")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then writes as to a terminal
    shown = run(str(listed), "--voxel", "0.1")
    assert "5/5" in shown
    assert "fusing: 5/5 pictures" not in shown  # a bar in place of lines


def test_meshes_and_points_are_files_that_others_read(listed: Path) -> None:
    output = run(str(listed), "-o", str(listed / "mesh.glb"), "--points", str(listed / "cloud.ply"), "--voxel", "0.05")
    assert "5 pictures: " in output
    points, colours = read_ply(listed / "cloud.ply")
    assert colours is not None
    assert len(points) > 1000
    content = (listed / "mesh.glb").read_bytes()
    magic, version, size, length = struct.unpack_from("<4sIII", content)
    assert (magic, version, size) == (b"glTF", 2, len(content))
    described = json.loads(content[20 : 20 + length])
    (primitive,) = described["meshes"][0]["primitives"]
    assert described["accessors"][primitive["attributes"]["POSITION"]]["count"] == len(points)
    assert "COLOR_0" in primitive["attributes"]
    run(str(listed), "--voxel", "0.05", "--alone")
    vertices, colours = read_ply(listed / "mesh.ply")
    assert colours is not None
    assert len(vertices) > 1000
    assert b"element face" in (listed / "mesh.ply").read_bytes()[:600]
    assert not list(listed.glob(".*.part*"))


def test_the_same_depth_gives_the_same_files(listed: Path) -> None:
    """The threads of Open3D find the vertices in another order each time. What a killed run left is removed."""
    left = listed / ".mesh.ply.0123abcd.part"
    other = listed / ".other.ply.0123abcd.part"
    left.touch(), other.touch()
    meshes = []
    for _ in range(2):
        run(str(listed), "--voxel", "0.05")
        meshes.append((listed / "mesh.ply").read_bytes())
    assert meshes[0] == meshes[1]
    assert not left.exists()
    assert other.exists()


def test_examples_in_the_help_run(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(listed)
    (listed / "out").mkdir()
    content = json.loads((listed / "views.json").read_text())
    for view in content["views"]:
        view |= {name: f"../{view[name]}" for name in ("image", "depth", "alone")}
    (listed / "out" / "views.json").write_text(json.dumps(content))
    lines = CliRunner().invoke(group, ["fuse", "--help"]).output.splitlines()
    lines = [line.strip() for line in lines if line.strip().startswith("leadline fuse")]
    assert len(lines) == 3
    for line in lines:
        assert "wrote" in run(*line.replace("--voxel 0.01", "--voxel 0.1").split()[2:])


def test_the_page_shows_turntables_and_slices(listed: Path, page: Any) -> None:
    run(str(listed), "--voxel", "0.05", "--report", str(listed / "page.html"))
    page.goto((listed / "page.html").as_uri())
    assert page.locator("#turntable img").count() == 2
    assert page.locator("#slices img").count() == 2
    assert page.locator("#pictures img").count() == 3
    widths = page.locator("img").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert min(widths) > 100  # every picture can be decoded
    assert "2.000%" in page.locator("#summary").inner_text()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["-o", "mesh.xyz"], "a mesh is written as .ply"),
        (["--report", "page.pdf"], "must end in .html"),
        (["--voxel", "-1"], "--voxel must be a positive number"),
        (["-o", "no/where/mesh.ply"], "does not exist; make it first"),
    ],
)
def test_refusals_are_one_line(listed: Path, extra: list[str], words: str) -> None:
    output = run(str(listed), *extra, code=2)
    assert words in output
    assert output.count("\n") == 1


def test_without_open3d_the_message_says_what_to_install(
    views: list[RoomView], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leadline\[mesh\]'"):
        fuse(as_depth_views(views))
