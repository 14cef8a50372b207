"""The pictures at the top of guides: what the first command of each writes, on rendered scenes.

    python docs/make_guide_pictures.py [FOLDER]

Nothing is downloaded, and the same pictures come out each time. FOLDER is docs/images by default. ``make pictures``
runs this script and the others beside it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from leadline.apps.cli import group
from leadline.batch.outputs import write_cloud
from leadline.bench.observations import simulate
from leadline.datasets import Scene
from leadline.datasets.rendered import network_like_prior, render
from leadline.geometry.cameras import Camera
from leadline.io.cameras import camera_record
from leadline.io.ros.messages import decode_depth
from leadline.report.colour import colour_range, colourise
from leadline.report.tiles import ColourBar, Tile, draw_panel, draw_preview

WIDTH, HEIGHT = 640, 480
LARGEST = 150_000  # bytes of a picture
COLMAP_POINTS = 900
SHOWN_GRADIENT = 99.5  # percentile at the dark end of its colours


def leadline(line: str) -> None:
    group.main(line.split(), prog_name="leadline", standalone_mode=False)


def write_files(scene: Scene) -> tuple[np.ndarray, Camera]:
    """Image, prior and camera of a scene in the current folder; returns its depth and camera."""
    assert scene.reference is not None
    assert isinstance(scene.camera, Camera)
    Image.fromarray(scene.image).save("photo.png")
    np.save("prior.npy", network_like_prior(scene.reference))
    Path("cam.json").write_text(json.dumps(camera_record(scene.camera)), encoding="utf-8")
    return scene.reference, scene.camera


def lidar() -> Image.Image:
    """The preview of a street that a LiDAR with 32 lines has measured."""
    scene = render(WIDTH, HEIGHT, kind="street")
    _, camera = write_files(scene)
    sparse = simulate(scene, "lidar:32", dataset="docs").sparse
    write_cloud(Path("sweep.ply"), camera, sparse, scene.image, edge_filter=False)
    leadline("complete photo.png --points sweep.ply --camera cam.json --prior prior.npy -o out --quiet")
    return Image.open("out/photo_preview.png").convert("RGB")


def colmap() -> Image.Image:
    """The preview of an image of a COLMAP model with points at the corners of a rendered room."""
    scene = render(WIDTH, HEIGHT)
    _, camera = write_files(scene)
    sparse = simulate(scene, f"corners:{COLMAP_POINTS}", dataset="docs").sparse
    rows, columns = np.nonzero(np.isfinite(sparse))
    points = camera.points(sparse)[rows, columns]
    Path("sparse").mkdir()
    Path("images").mkdir()
    Path("priors").mkdir()
    names = ("photo", "second", "third")
    for name in names:
        Image.open("photo.png").save(f"images/{name}.png")
        np.save(f"priors/{name}.npy", np.load("prior.npy"))
    places = enumerate(zip(columns, rows, strict=True), 1)
    features = " ".join(f"{x + 0.5} {y + 0.5} {k}" for k, (x, y) in places)
    # COLMAP counts the centre of the first pixel as 0.5.
    numbers = f"{camera.fx} {camera.fy} {camera.cx + 0.5} {camera.cy + 0.5}"
    files = {
        "cameras": f"1 PINHOLE {camera.width} {camera.height} {numbers}\n",
        # A point counts if three images see it, so three are at the same place.
        "images": "".join(f"{k} 1 0 0 0 0 0 0 1 {name}.png\n{features}\n" for k, name in enumerate(names, 1)),
        "points3D": "".join(
            f"{k} {x} {y} {z} 128 128 128 0.5" + "".join(f" {image} {k - 1}" for image in (1, 2, 3)) + "\n"
            for k, (x, y, z) in enumerate(points, 1)
        ),
    }
    for name, text in files.items():
        Path(f"sparse/{name}.txt").write_text(text, encoding="utf-8")
    leadline("colmap sparse --images images --prior priors -o out --quiet")
    return Image.open("out/photo_preview.png").convert("RGB")


def bag() -> Image.Image:
    """The depth topic that `leadline bag` adds for a frame of the street, beside the image."""
    from rosbags.highlevel import AnyReader
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    scene = render(WIDTH, HEIGHT, kind="street", seed=2)
    _, camera = write_files(scene)
    sparse = simulate(scene, "lidar:32", dataset="docs").sparse
    points = np.ascontiguousarray(camera.points(sparse)[np.isfinite(sparse)].astype(np.float32))
    store = get_typestore(Stores.ROS2_HUMBLE)
    types = {name.rpartition("/")[2]: kind for name, kind in store.types.items()}
    header = types["Header"](stamp=types["Time"](sec=1, nanosec=0), frame_id="camera")
    size = {"height": HEIGHT, "width": WIDTH}
    k = np.array([camera.fx, 0, camera.cx, 0, camera.fy, camera.cy, 0, 0, 1.0])
    roi = types["RegionOfInterest"](x_offset=0, y_offset=0, height=0, width=0, do_rectify=False)
    fields = [types["PointField"](name=name, offset=4 * i, datatype=7, count=1) for i, name in enumerate("xyz")]
    messages = {
        "/camera/image": types["Image"](
            header=header, **size, encoding="rgb8", is_bigendian=0, step=3 * WIDTH, data=scene.image.reshape(-1)
        ),
        "/camera/camera_info": types["CameraInfo"](
            header=header, **size, distortion_model="plumb_bob", d=np.zeros(5), k=k, r=np.eye(3).ravel(),
            p=np.insert(k, (3, 6, 9), 0.0), binning_x=0, binning_y=0, roi=roi,
        ),
        "/lidar/points": types["PointCloud2"](
            header=header, height=1, width=len(points), fields=fields, is_bigendian=False, point_step=12,
            row_step=12 * len(points), data=points.view(np.uint8).reshape(-1), is_dense=True,
        ),
    }  # fmt: skip
    with Writer("drive", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        for topic, message in messages.items():
            kind = type(message).__msgtype__
            connection = writer.add_connection(topic, kind, typestore=store)
            writer.write(connection, 1_000_000_000, store.serialize_cdr(message, kind))
    topics = "--image /camera/image --camera-info /camera/camera_info --points /lidar/points"
    Path("priors").mkdir()
    Path("prior.npy").rename("priors/1.000000000.npy")
    leadline(f"bag drive {topics} --prior priors -o depth.mcap --quiet")
    with AnyReader([Path("depth.mcap")]) as reader:
        found = [
            decode_depth(reader.deserialize(raw, connection.msgtype))
            for connection, _, raw in reader.messages()
            if connection.topic == "/leadline/depth/image"
        ]
    return draw_preview(scene.image, found[0])


def diagnosis() -> Image.Image:
    """The plot of linearity of an image of a small run."""
    leadline("bench run smoke -o RUN")
    leadline("diagnose --run RUN --image room-0 -o DIAGNOSIS")
    return Image.open("DIAGNOSIS/linearity.png").convert("RGB")


def gradient() -> Image.Image:
    """A completion on tensors, and the gradient of its error with respect to the prior."""
    import torch

    import leadline.torch as lt

    scene = render(WIDTH // 2, HEIGHT // 2)
    depth, _ = write_files(scene)
    sparse = torch.from_numpy(simulate(scene, "distributed", dataset="docs").sparse)
    prior = torch.from_numpy(np.load("prior.npy")).requires_grad_()
    found = lt.complete(prior, sparse)
    (found.depth - torch.from_numpy(depth)).abs().mean().backward()
    assert prior.grad is not None
    size = prior.grad.abs().numpy()
    high = float(np.percentile(size, SHOWN_GRADIENT))
    low, far = colour_range(depth)
    completed = colourise(found.depth.detach().numpy(), low=low, high=far)
    bar = ColourBar("depth", f"{low:.1f} m", f"{far:.1f} m")
    tiles = [
        Tile(colourise(prior.detach().numpy()), "prior", "relative depth"),
        Tile(completed, "out.depth", "", bar),
        Tile(colourise(size, low=0, high=high, scheme="error"), "prior.grad of the mean error", "dark: large"),
    ]
    return draw_panel([tiles], tile_width=360)


PICTURES = {
    "guide-lidar": lidar,
    "guide-colmap": colmap,
    "guide-bag": bag,
    "guide-diagnosis": diagnosis,
    "guide-torch": gradient,
}


def save(picture: Image.Image, path: Path) -> None:
    if picture.width > 1400:
        picture = picture.resize((1400, round(picture.height * 1400 / picture.width)), Image.Resampling.LANCZOS)
    for quality in (88, 80, 70, 60):
        picture.save(path, "JPEG", quality=quality, optimize=True)
        if path.stat().st_size <= LARGEST:
            return
    raise ValueError(f"{path} has {path.stat().st_size} bytes")


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0] if arguments else Path(__file__).parent / "images").resolve()
    start = Path.cwd()
    for name, make in PICTURES.items():
        with tempfile.TemporaryDirectory() as temporary:
            os.chdir(temporary)
            try:
                save(make(), folder / f"{name}.jpg")
            finally:
                os.chdir(start)
        sys.stdout.write(f"wrote {folder / name}.jpg\n")


if __name__ == "__main__":
    main(sys.argv[1:])
