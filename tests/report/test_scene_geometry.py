"""The points of the 3D view and the map of the regions of outliers."""

from __future__ import annotations

import numpy as np

import leadline
from leadline.core.outliers import Outliers, Region, RegionReason
from leadline.geometry.surface import surface_from_depth
from leadline.report.completed_scene import CompletedScene
from leadline.report.scene_geometry import encode_points, map_regions
from support.studio_client import read_points

HEIGHT, WIDTH = 40, 60


def make_scene() -> CompletedScene:
    """A box before a wall, flying pixels beside it, and one measurement that contradicts its neighbours."""
    depth = np.full((HEIGHT, WIDTH), 2.0, np.float32)
    depth[10:30, 20:40], depth[10:30, 19] = 1.0, 1.5
    sparse = np.full_like(depth, np.nan)
    sparse[2::4, 2::4] = depth[2::4, 2::4]
    sparse[6, 6] = 8.0
    image = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    completion = leadline.complete(depth**1.2, sparse, options=leadline.CompletionOptions(outliers="single"))
    camera = leadline.Camera.from_view_angle(WIDTH, HEIGHT, 60)
    return CompletedScene("box", image, leadline.Prior(depth**1.2), sparse, None, camera, completion)


def test_points_on_depth_edges_come_last() -> None:
    scene = make_scene()
    depth = scene.completion.depth
    header, arrays = read_points(encode_points(scene, depth))
    clean = surface_from_depth(depth, scene.camera)
    assert header["points"] == depth.size
    assert header["clean"] == len(clean.points) < depth.size
    np.testing.assert_array_equal(arrays["points"][: header["clean"]], clean.points)
    np.testing.assert_array_equal(arrays["image"][: header["clean"]], scene.image.reshape(-1, 3)[clean.pixels])
    assert np.unique(arrays["points"][:, 2]).size == np.unique(depth).size
    corner = scene.camera.points(np.ones((HEIGHT, WIDTH)))[0, 0]
    np.testing.assert_allclose(header["corners"][0], corner, rtol=1e-6)


def test_outliers_come_last_among_the_measurements() -> None:
    scene = make_scene()
    header, arrays = read_points(encode_points(scene, scene.completion.depth))
    assert (header["measurements"], header["left_out"]) == (np.isfinite(scene.sparse).sum(), 1)
    np.testing.assert_allclose(arrays["measurements"][-1], scene.camera.points(scene.sparse)[6, 6], rtol=1e-6)


def test_a_region_covers_the_pixels_between_its_measurements() -> None:
    sparse = np.full((1200, 900), np.nan, np.float32)
    sparse[5:600:10, 5::10] = 2.0  # nothing is measured in the lower half
    rows, columns = np.divmod(np.flatnonzero(np.isfinite(sparse)), 900)
    inside = (rows >= 200) & (rows < 300) & (columns >= 300) & (columns < 500)
    where = (rows * 900 + columns)[inside]
    region = np.where(columns[inside] < 400, 1, 2).astype(np.int32)
    regions = (Region(100, 0.2, (0, 9), (0, 9), RegionReason.PRIOR_CONTINUES),) * 2
    zeros = np.zeros(where.size)
    labels = map_regions(Outliers(where, zeros, zeros, region, regions, 0.01), sparse)
    assert labels.shape == (400, 300)  # three pixels a cell
    dense = np.kron(labels, np.ones((3, 3), np.uint16))
    assert (dense[205:295, 305:395] == 1).all()
    assert (dense[205:295, 405:495] == 2).all()
    outside = np.ones(dense.shape, np.bool_)
    outside[190:310, 290:510] = False
    assert not dense[outside].any()
