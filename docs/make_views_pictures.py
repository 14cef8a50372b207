"""The pictures of docs/colmap.md and docs/streams.md: the rendered room seen by many cameras.

    python docs/make_views_pictures.py [FOLDER]

The room has a COLMAP model in text files, with points that a third of the cameras that could see them observe. Their
depth is wrong by about a pixel of disparity. The priors have the errors of a network, others in each picture. Nothing
is downloaded. FOLDER is docs/images by default.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from picture_files import Pictures, draw_pictures, output_folder, run_command
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

import leadline
from leadline.base.arrays import BoolArray, FloatArray
from leadline.batch.fusion import FusedSurface, FusionOptions, StoredViews, fuse
from leadline.bench.metrics import relative_error
from leadline.datasets import rendered
from leadline.datasets.rendered.renderer import render_setting
from leadline.datasets.rendered.room import ROOM
from leadline.geometry.cameras import Camera
from leadline.geometry.poses import invert_transform, transform_points
from leadline.io.views.posed import read_views
from leadline.report.colour import colourise, draw_measurements
from leadline.report.tiles import ColourBar, Tile, draw_panel
from leadline.report.turntable import (
    Mesh,
    draw_mesh,
    draw_slice,
    slice_bounds,
    slice_points,
)

VIEWS, WIDTH, HEIGHT = 16, 480, 360
POINTS = 60  # that are made from each picture
TRACK = 4  # pictures that observe a point
FEATURE_PX = 0.8  # error of a feature
VOXEL = 0.01  # metres: larger ones average more of the pictures' disagreement away
SLAB = 0.04  # metres, thickness of the slice
TOWARDS_LIGHT = (0.8, -0.4, -0.45)  # right, down and forward of the middle camera
AMBIENT = 0.2  # brightness of a face that the light does not reach
CLOSER = (-0.9, -0.6, 0.8)  # metres right, down and forward of the middle camera: the corner with the shelf
FRAMES, FRAME_SIZE = 40, (320, 240)  # of a video
MEASURED, NOISE = 80, 0.03  # measurements of each frame, and their relative error
# Another error of the prior, as of a network: size in log depth, width in pixels, correlation between frames.
DRIFT, DRIFT_WIDTH, DRIFT_MEMORY = 0.1, 30, 0.95
SLICE = 150  # row whose errors are shown over time
ERROR = 0.1  # relative error at the dark end


class View(NamedTuple):
    """A picture of the room."""

    name: str
    camera: Camera
    pose: NDArray[np.float64]  # camera to world
    image: NDArray[np.uint8]
    depth: NDArray[np.float32]


def pose_of(position: NDArray[np.float64], yaw: float, pitch: float) -> NDArray[np.float64]:
    """Camera to world with y down; the axes of the renderer, with y up, are not right-handed."""
    pose = np.eye(4)
    pose[:3, 0] = (math.cos(yaw), 0, -math.sin(yaw))
    pose[:3, 1] = (math.sin(yaw) * math.sin(pitch), math.cos(pitch), math.cos(yaw) * math.sin(pitch))
    pose[:3, 2] = (math.sin(yaw) * math.cos(pitch), -math.sin(pitch), math.cos(yaw) * math.cos(pitch))
    pose[:3, 3] = position * (1, -1, 1)
    return pose


def render_views(shares: FloatArray, width: int, height: int) -> list[View]:
    """Views at some `shares` of an arc through the room, between -1 and 1."""
    views = []
    for number, share in enumerate(shares.tolist()):
        moved = np.array([0.7 * share, 0.12 * math.sin(5 * share), 0.1 * abs(share)])
        position = np.array(ROOM.eye) + moved
        yaw, pitch = ROOM.yaw - 0.16 * share, ROOM.pitch + 0.05 * math.cos(4 * share)
        x, y, z = position.tolist()
        scene = render_setting(replace(ROOM, eye=(x, y, z), yaw=yaw, pitch=pitch), width, height)
        assert isinstance(scene.camera, Camera)
        assert scene.reference is not None
        views.append(View(f"{number:03d}", scene.camera, pose_of(position, yaw, pitch), scene.image, scene.reference))
    return views


def write_model(views: Sequence[View]) -> None:
    """Write pictures, priors and a COLMAP model into the current folder."""
    rng = np.random.default_rng(0)
    for name in ("images", "priors", "sparse/0"):
        Path(name).mkdir(parents=True)
    poses: list[str] = []
    rows: list[str] = []
    for number, (name, camera, pose, image, depth) in enumerate(views):
        Image.fromarray(image).save(f"images/{name}.jpg", quality=95)
        np.save(f"priors/{name}.npy", rendered.network_like_prior(depth, seed=number))
        transform = invert_transform(pose)
        x, y, z, w = Rotation.from_matrix(transform[:3, :3]).as_quat()
        numbers = " ".join(repr(float(value)) for value in (w, x, y, z, *transform[:3, 3]))
        poses += [f"{number + 1} {numbers} 1 {name}.jpg", ""]
        chosen = rng.choice(depth.size, POINTS, replace=False)
        places = transform_points(camera.points(depth).reshape(-1, 3)[chosen], pose)
        seen = np.array([sees(other, places) for other in views])
        for place, column in zip(places, seen.T, strict=True):
            observers = np.flatnonzero(column)
            if len(observers) >= TRACK:
                track = np.sort(rng.choice(observers, TRACK, replace=False))
                spread = np.ptp([views[index].pose[0, 3] for index in track])  # baseline in metres
                distance = float(np.linalg.norm(place - pose[:3, 3]))
                error = rng.normal(0, FEATURE_PX * distance / (camera.fx * max(spread, 0.2)))
                moved = pose[:3, 3] + (place - pose[:3, 3]) * (1 + error)
                text = " ".join(f"{index + 1} 0" for index in track)
                rows.append(f"{len(rows) + 1} {' '.join(map(repr, moved.tolist()))} 9 9 9 {FEATURE_PX} {text}")
    camera = views[0].camera
    lens = " ".join(map(repr, (camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5)))
    Path("sparse/0/cameras.txt").write_text(f"1 PINHOLE {WIDTH} {HEIGHT} {lens}\n", encoding="utf-8")
    Path("sparse/0/images.txt").write_text("\n".join(poses) + "\n", encoding="utf-8")
    Path("sparse/0/points3D.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")


def sees(view: View, places: NDArray[np.float64]) -> BoolArray:
    _, camera, pose, _, depth = view
    points = transform_points(places, invert_transform(pose))
    with np.errstate(invalid="ignore"):
        columns, rows = np.floor(camera.project(points) + 0.5).T
        inside = (columns >= 0) & (columns < WIDTH) & (rows >= 0) & (rows < HEIGHT)
    result = np.zeros(len(places), bool)
    there = depth[rows[inside].astype(int), columns[inside].astype(int)]
    result[inside] = np.abs(there / points[inside, 2] - 1) < 0.01
    return result


def shade(surface: FusedSurface, light: NDArray[np.float64]) -> Mesh:
    """The mesh in grey: each triangle has the brightness of its own plane in the light of that direction."""
    corners = surface.points[surface.triangles]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    lit = np.clip(normals @ (light / np.linalg.norm(light)), 0, 1)
    grey = np.rint(240 * (AMBIENT + (1 - AMBIENT) * lit)).astype(np.uint8)
    triangles = np.arange(3 * len(corners), dtype=np.int32).reshape(-1, 3)
    return Mesh(corners.reshape(-1, 3), np.repeat(grey, 3)[:, None].repeat(3, axis=1), triangles)


def draw_views() -> Pictures:
    """The mesh and the slice of the room, each picture alone and all together."""
    listed = read_views("out")
    middle = listed[len(listed) // 2].camera_to_world
    meshes, slices = [], []
    for alone in (True, False):
        surface = fuse(StoredViews(listed, alone=alone), FusionOptions(voxel=VOXEL))
        meshes.append(shade(surface, middle[:3, :3] @ TOWARDS_LIGHT))
        parts = []
        for view in StoredViews(listed, alone=alone):
            points = view.camera.points(view.depth).reshape(-1, 3)
            parts.append(transform_points(points[np.isfinite(points).all(axis=1)], view.camera_to_world))
        slices.append(slice_points(np.concatenate(parts), middle, SLAB))
    closer = middle.copy()
    closer[:3, 3] += middle[:3, :3] @ CLOSER
    titles = ("each picture alone", "all pictures together")
    rows = []
    for pose, angle in ((middle, 62.0), (closer, 40.0)):
        camera = Camera.from_view_angle(1440, 1080, angle)  # the panel reduces it, so that edges are smooth
        rows.append(
            [Tile(draw_mesh(mesh, camera, [pose])[0], title) for mesh, title in zip(meshes, titles, strict=True)]
        )
    bounds = slice_bounds(slices[1])
    cuts = [[Tile(draw_slice(points, bounds), title) for title, points in zip(titles, slices, strict=True)]]
    return {"views-mesh": draw_panel(rows, tile_width=500), "views-slice": draw_panel(cuts, tile_width=480)}


def room() -> Pictures:
    """The room through the command, in the current folder."""
    write_model(render_views(np.linspace(-1, 1, VIEWS), WIDTH, HEIGHT))
    run_command("colmap sparse/0 --images images --prior priors -o out --consistent --min-track 2 --quiet")
    return draw_views()


def stream() -> Pictures:
    """A camera that moves slowly: the errors in one row of the image over time, as single frames and as a stream."""
    rng = np.random.default_rng(0)
    frames = render_views(np.linspace(-0.6, 0.2, FRAMES), *FRAME_SIZE)
    video = leadline.Stream()
    depths: dict[str, list[FloatArray]] = {"complete(...)": [], "stream(..., camera_to_world=...)": []}
    drift = np.zeros(FRAME_SIZE[::-1])
    for number, (_, camera, pose, _, depth) in enumerate(frames):
        change = gaussian_filter(rng.normal(size=drift.shape), DRIFT_WIDTH)
        change /= change.std()
        drift = change if number == 0 else DRIFT_MEMORY * drift + math.sqrt(1 - DRIFT_MEMORY**2) * change
        prior = rendered.network_like_prior(depth) * np.exp(DRIFT * drift)
        sparse = np.full_like(depth, np.nan)
        chosen = rng.choice(depth.size, MEASURED, replace=False)
        sparse.flat[chosen] = depth.flat[chosen] * (1 + NOISE * rng.normal(size=MEASURED))
        results = (
            leadline.complete(prior, sparse),
            video(prior, sparse, camera=camera, camera_to_world=pose),
        )
        for found, result in zip(depths.values(), results, strict=True):
            found.append(result.depth)
    last = draw_measurements(sparse, frames[-1].image, low=float(depth.min()), high=float(depth.max()))
    tiles = [Tile(last, f"frame {FRAMES} of {FRAMES}", f"{MEASURED} measurements with {NOISE:.0%} noise")]
    for title, found in depths.items():
        errors = [relative_error(result, view.depth) for result, view in zip(found, frames, strict=True)]
        rows = np.repeat([error[SLICE] for error in errors], FRAME_SIZE[1] // FRAMES, axis=0)
        picture = colourise(rows, low=0, high=ERROR, scheme="error")
        caption = f"one row over time, AbsRel {100 * float(np.mean(errors)):.1f} %"
        tiles.append(Tile(picture, title, caption, ColourBar("error", "0", f"{ERROR:.0%}")))
    return {"guide-stream": draw_panel([tiles], tile_width=400)}


if __name__ == "__main__":
    draw_pictures([room, stream], output_folder(sys.argv[1:]))
