"""Meshes: read back by another reader, with their colours; bad arrays are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import trimesh

from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera
from leadline.geometry.surface import surface_from_depth
from leadline.io.mesh import write_mesh, write_surface_mesh
from leadline.io.ply import read_ply

SHAPE = (24, 33)  # a width that is no multiple of four, so that padding shows
CAMERA = Camera(33, 24, 30.0, 31.0, 16.0, 11.5)
ROWS, COLUMNS = np.indices(SHAPE)
IMAGE = np.stack((COLUMNS * 7, ROWS * 10, 90 + 0 * ROWS), axis=-1).astype(np.uint8)
DEPTH = 2 + 0.02 * COLUMNS - 0.8 * ((ROWS > 8) & (COLUMNS > 12) & (ROWS < 18) & (COLUMNS < 24))


def load(path: Path) -> trimesh.Trimesh:
    return trimesh.load(path, force="mesh", process=False)


@pytest.mark.parametrize("suffix", ["glb", "ply"])
def test_the_surface_of_a_depth_map_comes_back_with_the_colours_of_its_image(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    surface = write_surface_mesh(path, DEPTH, CAMERA, IMAGE)
    assert surface.triangles.shape[0] < 2 * 23 * 32  # it is cut around the box
    mesh = load(path)
    axes = (1, -1, -1) if suffix == "glb" else (1, 1, 1)  # glTF's y points up and z to the viewer
    np.testing.assert_array_equal(mesh.vertices, surface.points * np.array(axes, np.float32))
    np.testing.assert_array_equal(mesh.faces, surface.triangles)
    assert (np.einsum("ij,ij->i", mesh.face_normals, mesh.triangles_center) < 0).all()  # the camera is outside
    expected = IMAGE.reshape(-1, 3)[surface.pixels].astype(int)
    if suffix == "glb":  # trimesh's v goes up, glTF's goes down
        uv = np.asarray(mesh.visual.uv)
        np.testing.assert_allclose(np.stack((uv[:, 0], 1 - uv[:, 1]), axis=1), surface.texture_coordinates(), atol=1e-6)
        texture = np.asarray(mesh.visual.material.baseColorTexture.convert("RGB")).astype(int)
        assert np.abs(texture - IMAGE).max() <= 12  # JPEG
    else:
        np.testing.assert_array_equal(mesh.visual.vertex_colors[:, :3], expected)
        assert np.einsum("ij,ij->i", mesh.vertex_normals, surface.normals).min() > 0.9  # weighted by angle there


def test_glb_colours_of_points_are_stored_linearly(tmp_path: Path) -> None:
    surface = surface_from_depth(DEPTH, CAMERA)
    colours = IMAGE.reshape(-1, 3)[surface.pixels]
    path = tmp_path / "a.glb"
    write_mesh(path, surface.points, surface.triangles, normals=surface.normals, colours=colours)
    # trimesh drops the colours of points beside a material, so the file is parsed by the words of the specification.
    content = path.read_bytes()
    length = int.from_bytes(content[12:16], "little")
    scene, arrays = json.loads(content[20 : 20 + length]), content[28 + length :]
    accessor = scene["accessors"][scene["meshes"][0]["primitives"][0]["attributes"]["COLOR_0"]]
    view = scene["bufferViews"][accessor["bufferView"]]
    stored = np.frombuffer(arrays, "<u2", 4 * accessor["count"], view["byteOffset"]).reshape(-1, 4)
    linear = stored[:, :3] / 65535
    shown = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    np.testing.assert_array_equal(np.rint(shown * 255), colours)


def test_a_cloud_has_normals_that_other_readers_see(tmp_path: Path) -> None:
    from leadline.batch.outputs import write_cloud

    for name, filtered in (("a.ply", True), ("b.ply", False)):
        write_cloud(tmp_path / name, CAMERA, DEPTH, IMAGE, edge_filter=filtered)
    surface = surface_from_depth(DEPTH, CAMERA)
    points, colours = read_ply(tmp_path / "a.ply")
    np.testing.assert_array_equal(points, surface.points)
    np.testing.assert_array_equal(colours, IMAGE.reshape(-1, 3)[surface.pixels])
    cloud = trimesh.load(tmp_path / "a.ply")
    stored = cloud.metadata["_ply_raw"]["vertex"]["data"]
    np.testing.assert_array_equal(np.stack([stored[name] for name in ("nx", "ny", "nz")], axis=1), surface.normals)
    assert len(read_ply(tmp_path / "b.ply")[0]) == DEPTH.size


def test_bad_meshes_are_refused(tmp_path: Path) -> None:
    points, triangles = np.zeros((4, 3)), np.array([[0, 1, 2]])
    grey = np.zeros((4, 3), np.uint8)
    with pytest.raises(InputError, match=r"written as \.glb or \.ply"):
        write_mesh(tmp_path / "a.obj", points, triangles)
    with pytest.raises(InputError, match="indices of the 4 points"):
        write_mesh(tmp_path / "a.glb", points, triangles + 2)
    with pytest.raises(InputError, match="`points` must be finite"):
        write_mesh(tmp_path / "a.glb", points * np.nan, triangles)
    with pytest.raises(InputError, match="must be uint8"):
        write_mesh(tmp_path / "a.glb", points, triangles, colours=points)
    with pytest.raises(InputError, match="`texture` and `texture_coordinates` need each other"):
        write_mesh(tmp_path / "a.glb", points, triangles, texture=IMAGE)
    with pytest.raises(InputError, match="has `colours` and no `texture`"):
        write_mesh(tmp_path / "a.ply", points, triangles)
    with pytest.raises(InputError, match="`normals` must"):
        write_mesh(tmp_path / "a.ply", points, triangles, colours=grey, normals=points[:2])
    with pytest.raises(InputError, match="`image` must have the shape"):
        write_surface_mesh(tmp_path / "a.ply", DEPTH, CAMERA, IMAGE[:-1])
    with pytest.raises(InputError, match="neighbouring pixels with a depth"):
        write_surface_mesh(tmp_path / "a.glb", np.full(SHAPE, np.nan), CAMERA, IMAGE)
    assert not list(tmp_path.iterdir())
