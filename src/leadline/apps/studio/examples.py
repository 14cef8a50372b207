"""Scenes to try without a file of one's own: rooms that leadline renders, written as anyone's files would be."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from leadline.apps.studio.sessions import Session
from leadline.base.errors import InputError
from leadline.core.prior import Prior
from leadline.datasets.scene import Scene
from leadline.geometry.cameras import Camera

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, HEIGHT = 480, 360
_LOCK = threading.Lock()  # two visitors must not render the same room at the same time


@dataclass(frozen=True)
class Example:
    """A room, and which of its pixels are measured."""

    title: str
    text: str
    seed: int
    pattern: str
    as_cloud: bool = False  # given as points and a camera, and not as a map


EXAMPLES = {
    "grid": Example(
        "Depth sensor", "A coarse grid over the whole room, as a small ToF sensor gives.", 0, "distributed"
    ),
    "hole": Example("Missing middle", "The same sensor with nothing in the middle of the picture.", 1, "central"),
    "lidar": Example("LiDAR", "Sixteen scan lines as a point cloud, with the camera's file.", 2, "lidar:16", True),
}


def put_example(session: Session, name: str) -> None:
    """Make an example's files those of the session.

    Raises
    ------
    InputError
        There is no such example.
    """
    import numpy as np
    from PIL import Image

    from leadline.bench.patterns import Sensor
    from leadline.io.clouds.files import write_ply
    from leadline.io.depth.files import write_depth

    example = _example(name)
    session.clear()
    scene, camera, values = _scene(example.seed, WIDTH, HEIGHT)
    sparse = Sensor(scene, dataset="studio").measure(example.pattern).sparse
    files = {"image": f"{name}.png", "reference": f"{name}_true.npy", "prior": f"{name}_prior.npy"}
    files |= {"camera": f"{name}_camera.json"}
    files["sparse"] = f"{name}_points.ply" if example.as_cloud else f"{name}_sparse.png"
    places = {role: session.place(role, file) for role, file in files.items()}
    Image.fromarray(scene.image).save(places["image"].path)
    write_depth(places["reference"].path, scene.reference, "m")  # type: ignore[arg-type]
    np.save(places["prior"].path, values.values)
    _camera_file(places["camera"].path, camera)
    if example.as_cloud:
        known = sparse > 0
        write_ply(places["sparse"].path, camera.points(sparse)[known], scene.image[known])
    else:
        write_depth(places["sparse"].path, sparse, "mm")
    for upload in places.values():
        session.keep(upload)
    session.example = name


@cache
def thumbnail(name: str) -> bytes:
    """A small JPEG of an example: the picture, and in its right half what is measured.

    Raises
    ------
    InputError
        There is no such example.
    """
    import numpy as np
    from PIL import Image

    from leadline.bench.patterns import Sensor
    from leadline.report.colour import dots, limits

    example = _example(name)
    scene, _, _ = _scene(example.seed, 240, 180)
    sparse = Sensor(scene, dataset="studio").measure(example.pattern).sparse
    low, high = limits(sparse)
    measured = dots(sparse, scene.image, low=low, high=high)
    stream = io.BytesIO()
    Image.fromarray(np.hstack((scene.image[:, :120], measured[:, 120:]))).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def _example(name: str) -> Example:
    if name not in EXAMPLES:
        raise InputError(f"there is no example {name!r}; there are {', '.join(EXAMPLES)}.")
    return EXAMPLES[name]


def _scene(seed: int, width: int, height: int) -> tuple[Scene, Camera, Prior]:
    with _LOCK:
        return _rendered(seed, width, height)


@cache
def _rendered(seed: int, width: int, height: int) -> tuple[Scene, Camera, Prior]:
    from leadline.datasets.rendered import network_like_prior, render

    scene = render(width, height, seed=seed)
    if scene.reference is None or not isinstance(scene.camera, Camera):
        raise TypeError("a rendered scene has a reference and a pinhole camera")
    return scene, scene.camera, Prior(network_like_prior(scene.reference, seed=seed))


def _camera_file(path: Path, camera: Camera) -> None:
    from leadline.io.cameras import camera_record

    path.write_text(json.dumps(camera_record(camera)), encoding="utf-8")
