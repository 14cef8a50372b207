"""Pictures of a fused surface: seen from a camera that swings around it, and cut by a plane."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import LeadlineError, MissingExtra
from leadline.geometry.cameras import Camera
from leadline.geometry.poses import Transform, invert_transform, transform_points
from leadline.report.colour import Picture

SWING = 35.0  # degrees to each side
BACKGROUND = 255
_DISTANCE = 1.25  # of the swinging camera from the centre, relative to that of the pictures' cameras
_INK = (31, 78, 121)


@dataclass(frozen=True, eq=False)
class Mesh:
    """A surface to draw, in the frame of the world."""

    points: NDArray[np.float32]  # (N, 3)
    colours: NDArray[np.uint8]  # (N, 3)
    triangles: NDArray[np.int32]  # (T, 3)


def swing_poses(poses: Sequence[Transform], centre: FloatArray, frames: int) -> list[Transform]:
    """Poses, camera to world, that swing about `centre` from the mean direction of the given cameras and back."""
    axes = np.array([pose[:3, :3] for pose in poses])
    down = _unit(axes[:, :, 1].mean(axis=0))
    positions = np.array([pose[:3, 3] for pose in poses])
    towards = np.asarray(centre) - np.median(positions, axis=0)
    radius = _DISTANCE * float(np.linalg.norm(towards))
    forward = _unit(towards)
    result = []
    for angle in SWING * np.sin(np.arange(frames) * 2 * math.pi / frames):
        direction = _rotate(forward, down, math.radians(angle))
        right = _unit(np.cross(down, direction))
        pose = np.eye(4)
        pose[:3, :3] = np.stack((right, np.cross(direction, right), direction), axis=1)
        pose[:3, 3] = np.asarray(centre) - radius * direction
        result.append(pose)
    return result


def import_open3d(purpose: str) -> Any:
    """Open3D, or an error that says how to install it or what it lacks."""
    from leadline.base.threads import numba_lock

    numba_lock()  # numba chooses its threads first: it would find the old TBB that Open3D loads, and warn
    try:
        import open3d
    except OSError as error:
        raise LeadlineError(
            f"{purpose} needs Open3D, which does not find a library of the system: {error}. On Debian or Ubuntu: "
            "sudo apt-get install libgl1 libegl1 libx11-6 libusb-1.0-0"
        ) from error
    except ImportError as error:
        raise MissingExtra("open3d", "mesh", purpose) from error
    open3d.utility.set_verbosity_level(open3d.utility.VerbosityLevel.Error)
    return open3d


def draw_mesh(mesh: Mesh, camera: Camera, poses: Iterable[Transform]) -> list[Picture]:
    """The mesh in its colours, seen from each pose, by ray casting; background is white.

    Surfaces that face away are not drawn, so that the camera may stand behind a wall.
    """
    open3d = import_open3d("Drawing a mesh")
    faces = np.ascontiguousarray(mesh.triangles)
    scene = open3d.t.geometry.RaycastingScene()
    tensor = open3d.core.Tensor
    scene.add_triangles(tensor(np.ascontiguousarray(mesh.points)), tensor(faces.astype(np.uint32)))
    return [_draw(scene, tensor, mesh, faces, camera, pose) for pose in poses]


def _draw(scene: Any, tensor: Any, mesh: Mesh, faces: NDArray[np.int32], camera: Camera, pose: Transform) -> Picture:
    rays = camera.points(np.ones((camera.height, camera.width))).reshape(-1, 3) @ pose[:3, :3].T
    picture = np.full((len(rays), 3), float(BACKGROUND))
    origins = np.broadcast_to(pose[:3, 3], rays.shape).copy()
    open_rays = np.arange(len(rays))
    for _ in range(4):  # a ray passes up to three surfaces that face away
        both = np.concatenate((origins[open_rays], rays[open_rays]), axis=1).astype(np.float32)
        hits = {name: value.numpy() for name, value in scene.cast_rays(tensor(both)).items()}
        struck = np.isfinite(hits["t_hit"])
        away = struck & ((hits["primitive_normals"] * rays[open_rays]).sum(axis=1) > 0)
        seen = struck & ~away
        corners = mesh.colours[faces[hits["primitive_ids"][seen]]].astype(np.float64)
        across = hits["primitive_uvs"][seen]
        weights = np.column_stack((1 - across.sum(axis=1), across))
        picture[open_rays[seen]] = (corners * weights[:, :, None]).sum(axis=1)
        step = hits["t_hit"][away] * (1 + 1e-4)
        open_rays = open_rays[away]
        origins[open_rays] += rays[open_rays] * step[:, None]
        if not len(open_rays):
            break
    drawn: Picture = np.rint(picture).astype(np.uint8).reshape(camera.height, camera.width, 3)
    return drawn


def slice_points(points: FloatArray, pose: Transform, thickness: float) -> NDArray[np.float64]:
    """The points within a slab around the horizontal plane of a camera, (M, 2): right and forward of it."""
    seen = transform_points(points, invert_transform(pose))
    chosen = (np.abs(seen[:, 1]) <= thickness / 2) & (seen[:, 2] > 0)
    return seen[chosen][:, [0, 2]]


def draw_slice(points: FloatArray, bounds: tuple[float, float, float, float], width: int = 640) -> Picture:
    """Points of a slice seen from above, darker where more of them lie; `bounds` are left, right, near, far."""
    left, right, near, far = bounds
    height = max(1, round(width * (far - near) / (right - left)))
    counts, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=(height, width), range=((near, far), (left, right)))
    share = np.clip(counts[::-1] / max(1.0, float(np.quantile(counts[counts > 0], 0.9)) if counts.any() else 1.0), 0, 1)
    ink = np.where(counts[::-1] > 0, 0.25 + 0.75 * share, 0.0)[..., None]
    drawn: Picture = np.rint((1 - ink) * BACKGROUND + ink * np.array(_INK)).astype(np.uint8)
    return drawn


def slice_bounds(points: FloatArray) -> tuple[float, float, float, float]:
    """Bounds of a slice that hold nearly all of its points: left, right, near, far."""
    low, high = np.quantile(points, (0.01, 0.99), axis=0)
    margin = 0.05 * (high - low)
    return tuple(map(float, (low[0] - margin[0], high[0] + margin[0], low[1] - margin[1], high[1] + margin[1])))  # type: ignore[return-value]


def save_animation(frames: Sequence[Picture], stream: Any, *, milliseconds: int = 80) -> None:
    """Write pictures as one WebP that moves."""
    from PIL import Image as Pillow

    first, *rest = [Pillow.fromarray(frame) for frame in frames]
    first.save(stream, "WEBP", save_all=True, append_images=rest, duration=milliseconds, loop=0, quality=70, method=4)


def _unit(vector: FloatArray) -> NDArray[np.float64]:
    return np.asarray(vector, np.float64) / max(float(np.linalg.norm(vector)), 1e-12)


def _rotate(vector: FloatArray, axis: FloatArray, angle: float) -> NDArray[np.float64]:
    """`vector` turned about the unit vector `axis` (Rodrigues)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    along = np.asarray(axis, np.float64) * float(np.dot(axis, vector)) * (1 - cosine)
    return np.asarray(vector, np.float64) * cosine + np.cross(axis, vector) * sine + along
