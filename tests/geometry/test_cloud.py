"""Point clouds from the depth maps of other cameras."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.cloud import cloud_from_depth
from leadline.geometry.projection import project

pytest.importorskip("pycolmap", reason="needs the extra 'colmap'")

WIDTH, HEIGHT = 80, 46
LENS = (60.0, 61.0, 39.0, 24.0, 0.06, -0.02, 0.002, -0.003)
LENSES = {
    "PINHOLE": LENS[:4],
    "OPENCV": LENS,
    "THIN_PRISM_FISHEYE": (60.0, 61.0, 39.0, 24.0, 0.05, -0.02, 0.001, -0.002, 0.001, 0.0, 0.002, -0.001),
}
CAMERAS = {
    "pinhole": Camera(WIDTH, HEIGHT, 60.0, 61.0, 38.5, 23.5),
    "lens": ColmapCamera("OPENCV", WIDTH, HEIGHT, LENS),
}
DEPTH_RTOL = 1e-6  # one rounding to float32


@pytest.mark.parametrize("camera", CAMERAS.values(), ids=CAMERAS.keys())
def test_ranges_become_depth(rng, camera):
    depth = rng.uniform(1, 9, (HEIGHT, WIDTH))
    ranges = np.linalg.norm(camera.points(depth), axis=-1)
    assert (ranges / depth).max() > 1.1
    np.testing.assert_allclose(
        cloud_from_depth(ranges, camera, ranges=True).points[:, 2], depth.ravel(), rtol=DEPTH_RTOL
    )


@pytest.mark.parametrize("model", ["PINHOLE", "OPENCV", "THIN_PRISM_FISHEYE"])
def test_another_cameras_depth_map_lands_on_its_own_grid(rng, model):
    camera = ColmapCamera(model, WIDTH, HEIGHT, LENSES[model])
    depth = np.where(rng.random((HEIGHT, WIDTH)) < 0.5, rng.uniform(1, 9, (HEIGHT, WIDTH)), np.nan)
    cloud = cloud_from_depth(depth, camera)
    back = project(cloud.points, np.eye(4), camera, see_through_radius=0).depth
    np.testing.assert_allclose(back, depth, rtol=DEPTH_RTOL)
    with pytest.raises(InputError, match="its camera's size"):
        cloud_from_depth(depth[:-1], camera)
