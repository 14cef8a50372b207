"""Example scenes: a room, a street and a desk that leadline renders, written to files like those of a user."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from leadline.apps.studio.sessions import Role, Session
from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.base.registry import suggestion
from leadline.geometry.cameras import Camera

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from leadline.datasets.rendered import Kind

WIDTH, HEIGHT = 480, 360
EXAMPLE_UNITS = {Role.SPARSE: "mm", Role.REFERENCE: "m"}
"""Units of the depth maps of the examples."""
_LOCK = threading.Lock()  # two visitors must not render at the same time


@dataclass(frozen=True)
class Example:
    """A rendered scene, and which of its pixels are measured."""

    title: str
    text: str
    kind: Kind
    pattern: str
    as_cloud: bool = False  # the measurements are a point cloud and not a depth map
    options: Mapping[str, str] = field(default_factory=dict, hash=False)  # fields of the form that it sets


EXAMPLES = {
    "hole": Example("A room", "A depth sensor without measurements in the centre of the image.", "room", "central"),
    "lidar": Example("A street", "32 lines of a LiDAR as a point cloud, with its camera.", "street", "lidar:32", True),
    "glass": Example(
        "Behind glass",
        "A depth camera measures what lies behind a pane and a jar; these regions are left out.",
        "desk",
        "random:5000",
        options={"outliers": "regions"},
    ),
}


def write_example(session: Session, name: str) -> None:
    """Replace the files of the session by those of an example."""
    import numpy as np
    from PIL import Image

    from leadline.batch.outputs import write_cloud
    from leadline.io.cameras import camera_record
    from leadline.io.depth import write_depth

    example = _example(name)
    session.clear()
    image, sparse, prior, reference, camera = _render(example, WIDTH, HEIGHT)
    names = {
        Role.IMAGE: f"{name}.png",
        Role.SPARSE: f"{name}_points.ply" if example.as_cloud else f"{name}_sparse.png",
        Role.PRIOR: f"{name}_prior.npy",
        Role.REFERENCE: f"{name}_ground_truth.npy",
        Role.CAMERA: f"{name}_camera.json",
    }
    uploads = {role: session.plan_upload(role, file) for role, file in names.items()}
    Image.fromarray(image).save(uploads[Role.IMAGE].path)
    write_depth(uploads[Role.REFERENCE].path, reference, "m")
    np.save(uploads[Role.PRIOR].path, prior)
    uploads[Role.CAMERA].path.write_text(json.dumps(camera_record(camera)), encoding="utf-8")
    if example.as_cloud:
        write_cloud(uploads[Role.SPARSE].path, camera, sparse, image, edge_filter=False)
    else:
        write_depth(uploads[Role.SPARSE].path, sparse, "mm")
    for upload in uploads.values():
        session.add(upload)
    session.example = name


@cache
def thumbnail(name: str) -> bytes:
    """A small JPEG of an example: the left half of the image, and in the right half the measurements."""
    import numpy as np
    from PIL import Image

    from leadline.report.colour import colour_range, draw_measurements

    image, sparse, _, _, _ = _render(_example(name), 240, 180)
    low, high = colour_range(sparse)
    measured = draw_measurements(sparse, image, low=low, high=high)
    stream = io.BytesIO()
    Image.fromarray(np.hstack((image[:, :120], measured[:, 120:]))).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def _example(name: str) -> Example:
    if name not in EXAMPLES:
        raise InputError(f"there is no example {name!r}; {suggestion(name, EXAMPLES)}")
    return EXAMPLES[name]


@cache
def _render(
    example: Example, width: int, height: int
) -> tuple[NDArray[np.uint8], FloatArray, FloatArray, FloatArray, Camera]:
    """Image, measurements, prior, ground truth and camera of an example."""
    from leadline.bench.observations import simulate
    from leadline.datasets.rendered import network_like_prior, render

    with _LOCK:
        scene = render(width, height, kind=example.kind)
        if scene.reference is None or not isinstance(scene.camera, Camera):
            raise TypeError("a rendered scene has a reference and a pinhole camera")
        measured = scene.sparse["sensor"].values if scene.sparse else scene.reference  # they differ behind glass
        sparse = simulate(replace(scene, reference=measured), example.pattern, dataset="studio").sparse
        prior = network_like_prior(scene.reference)
    return scene.image, sparse, prior, scene.reference, scene.camera
