"""A room with a ball, seen by several cameras: exact depth, pictures, priors, and a COLMAP model in text files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from leadline.datasets.rendered import network_like_prior
from leadline.geometry.cameras import Camera
from leadline.geometry.poses import invert_transform, transform_points

LOW, HIGH = np.array([-2.0, -1.2, -2.0]), np.array([2.0, 1.2, 3.0])  # corners of the room in metres
CENTRE, RADIUS = np.array([0.3, 0.4, 1.2]), 0.5  # of the ball
AGREES = 0.01  # relative difference of depth up to which a camera sees a point


@dataclass(frozen=True, eq=False)
class RoomView:
    name: str
    camera: Camera
    camera_to_world: np.ndarray
    depth: np.ndarray
    image: np.ndarray


def room_views(count: int = 6, width: int = 96, height: int = 72) -> list[RoomView]:
    """Cameras on a line across the room that look at its far wall."""
    views = []
    camera = Camera.from_view_angle(width, height, 65.0)
    for number, place in enumerate(np.linspace(-0.6, 0.6, count)):
        pose = np.eye(4)
        pose[:3, :3] = Rotation.from_euler("yx", [-12 * place, 3 * number], degrees=True).as_matrix()
        pose[:3, 3] = (place, 0.05 * number, -1.4)
        depth, image = _trace(camera, pose)
        views.append(RoomView(f"{number:04d}", camera, pose, depth, image))
    return views


def surface_distance(points: np.ndarray) -> np.ndarray:
    """Distance of points from the walls or the ball, whichever is nearer, (N,)."""
    walls = np.minimum(np.abs(points - LOW), np.abs(points - HIGH)).min(axis=1)
    return np.minimum(walls, np.abs(np.linalg.norm(points - CENTRE, axis=1) - RADIUS))


def write_scene(folder: Path, views: list[RoomView], rng: np.random.Generator, *, points: int = 150) -> None:
    """Write ``images/``, ``priors/`` and ``sparse/0`` with points whose depth has an error of about half a pixel."""
    for name in ("images", "priors", "sparse/0"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index, view in enumerate(views):
        Image.fromarray(view.image).save(folder / "images" / f"{view.name}.png")
        np.save(folder / "priors" / f"{view.name}.npy", network_like_prior(view.depth, seed=index))
    world, tracks = _points(views, rng, points)
    camera = views[0].camera
    numbers = (camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5)
    text = " ".join(map(repr, numbers))
    (folder / "sparse" / "0" / "cameras.txt").write_text(f"1 PINHOLE {camera.width} {camera.height} {text}\n")
    lines = []
    for index, view in enumerate(views):
        transform = invert_transform(view.camera_to_world)
        x, y, z, w = Rotation.from_matrix(transform[:3, :3]).as_quat()
        pose = " ".join(repr(float(value)) for value in (w, x, y, z, *transform[:3, 3]))
        lines += [f"{index + 1} {pose} 1 {view.name}.png", ""]
    (folder / "sparse" / "0" / "images.txt").write_text("\n".join(lines) + "\n")
    rows = []
    for index, (place, seen) in enumerate(zip(world, tracks, strict=True)):
        track = " ".join(f"{view + 1} 0" for view in seen)
        rows.append(f"{index + 1} {' '.join(repr(float(value)) for value in place)} 9 9 9 0.4 {track}")
    (folder / "sparse" / "0" / "points3D.txt").write_text("\n".join(rows) + "\n")


def _points(views: list[RoomView], rng: np.random.Generator, count: int) -> tuple[np.ndarray, list[list[int]]]:
    world, tracks = [], []
    for view in views:
        chosen = rng.choice(view.depth.size, count // len(views), replace=False)
        exact = view.camera.points(view.depth).reshape(-1, 3)[chosen]
        for place in transform_points(exact, view.camera_to_world):
            seen = [index for index, other in enumerate(views) if _sees(other, place)]
            if len(seen) >= 3:
                world.append(place + rng.normal(0, 0.004, 3))
                # Features are not found in every picture, so the others can learn from those that have them.
                tracks.append(sorted(rng.choice(seen, 3, replace=False).tolist()))
    return np.array(world), tracks


def _sees(view: RoomView, place: np.ndarray) -> bool:
    seen = transform_points(place[None], invert_transform(view.camera_to_world))
    column, row = np.floor(view.camera.project(seen)[0] + 0.5)
    if not (0 <= column < view.camera.width and 0 <= row < view.camera.height):
        return False
    return bool(abs(view.depth[int(row), int(column)] / seen[0, 2] - 1) < AGREES)


def _trace(camera: Camera, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rays = camera.points(np.ones((camera.height, camera.width))) @ pose[:3, :3].T
    origin = pose[:3, 3]
    with np.errstate(divide="ignore"):
        depth = np.maximum((LOW - origin) / rays, (HIGH - origin) / rays).min(axis=-1)
    square, half = (rays**2).sum(-1), (rays * (origin - CENTRE)).sum(-1)
    inside = half**2 - square * (((origin - CENTRE) ** 2).sum() - RADIUS**2)
    ball = (-half - np.sqrt(np.maximum(inside, 0))) / square
    depth = np.where((inside > 0) & (ball > 0), np.minimum(ball, depth), depth)
    places = origin + rays * depth[..., None]
    pattern = np.sin(7 * places) @ np.array([0.5, 0.3, 0.4])
    colours = 128 + 60 * np.stack((pattern, np.cos(3 * places[..., 0]), np.sin(5 * places[..., 2])), axis=-1)
    return depth, np.clip(np.rint(colours), 0, 255).astype(np.uint8)
