"""The pictures at the top of guides: what the first command of each writes, on rendered scenes.

    python docs/make_guide_pictures.py [FOLDER]

Nothing is downloaded, and the same pictures come out each time. FOLDER is docs/images by default. ``make pictures``
runs this script and the others beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from picture_files import Pictures, draw_pictures, output_folder, run_command, write_scene
from PIL import Image

from leadline.batch.outputs import write_cloud
from leadline.bench.metrics import relative_error
from leadline.bench.observations import simulate
from leadline.datasets.rendered import Kind, render
from leadline.io.ros.messages import decode_depth
from leadline.report.colour import colour_range, colourise, draw_measurements
from leadline.report.tiles import ColourBar, Tile, draw_panel, draw_preview

WIDTH, HEIGHT = 640, 480
COLMAP_POINTS = 900
PRIOR_POINTS = 200
SENSORS: dict[Kind, str] = {"street": "a LiDAR with 32 lines", "desk": "a depth camera, which sees through glass"}
PATTERNS: dict[Kind, dict[str, str]] = {
    "room": {
        "randperm:500": "NYU: random points",
        "corners:150": "points of odometry, as VOID's",
        "lowres:16": "PriorDA: low resolution",
        "square:160": "PriorDA: a missing square",
    },
    "street": {
        "lidar:64": "KITTI: 64 lines",
        "lidar:64+lines:16": "thinned to 16 lines",
        "lidar:64+outliers:0.05": "robustness: outliers",
        "lidar:64+shift:12:6": "robustness: registration",
    },
}
SHOWN_GRADIENT = 99.5  # percentile at the dark end of its colours


def lidar() -> Pictures:
    """The preview of a street that a LiDAR with 32 lines has measured."""
    scene = render(WIDTH, HEIGHT, kind="street")
    _, camera = write_scene(scene)
    sparse = simulate(scene, "lidar:32", dataset="docs").sparse
    write_cloud(Path("sweep.ply"), camera, sparse, scene.image, edge_filter=False)
    run_command("complete photo.png --points sweep.ply --camera cam.json --prior prior.npy -o out --quiet")
    return {"guide-lidar": Image.open("out/photo_preview.png").convert("RGB")}


def colmap() -> Pictures:
    """The preview of an image of a COLMAP model with points at the corners of a rendered room."""
    scene = render(WIDTH, HEIGHT)
    _, camera = write_scene(scene)
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
    run_command("colmap sparse --images images --prior priors -o out --quiet")
    return {"guide-colmap": Image.open("out/photo_preview.png").convert("RGB")}


def bag() -> Pictures:
    """The depth topic that `leadline bag` adds for a frame of the street, beside the image."""
    from rosbags.highlevel import AnyReader
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    scene = render(WIDTH, HEIGHT, kind="street", seed=2)
    _, camera = write_scene(scene)
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
    run_command(f"bag drive {topics} --prior priors -o depth.mcap --quiet")
    with AnyReader([Path("depth.mcap")]) as reader:
        found = [
            decode_depth(reader.deserialize(raw, connection.msgtype))
            for connection, _, raw in reader.messages()
            if connection.topic == "/leadline/depth/image"
        ]
    return {"guide-bag": draw_preview(scene.image, found[0])}


def diagnosis() -> Pictures:
    """The plot of linearity of an image of a small run."""
    run_command("bench run smoke -o RUN")
    run_command("diagnose --run RUN --image room-0 -o DIAGNOSIS")
    return {"guide-diagnosis": Image.open("DIAGNOSIS/linearity.png").convert("RGB")}


def gradient() -> Pictures:
    """A completion on tensors, and the gradient of its error with respect to the prior."""
    import torch

    import leadline.torch as lt

    scene = render(WIDTH // 2, HEIGHT // 2)
    depth, _ = write_scene(scene)
    sparse = torch.from_numpy(simulate(scene, "distributed", dataset="docs").sparse)
    prior = torch.from_numpy(np.load("prior.npy")).requires_grad_()
    found = lt.complete(prior, sparse)
    (found.depth - torch.from_numpy(depth)).abs().mean().backward()  # type: ignore[no-untyped-call]
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
    return {"guide-torch": draw_panel([tiles], tile_width=360)}


def prior() -> Pictures:
    """The same measurements without a prior and with one that has the errors of a network."""
    scene = render(WIDTH, HEIGHT)
    depth, _ = write_scene(scene)
    sparse = simulate(scene, f"random:{PRIOR_POINTS}", dataset="docs").sparse
    np.save("sparse.npy", sparse)
    low, high = colour_range(depth)
    bar = ColourBar("depth", f"{low:.1f} m", f"{high:.1f} m")
    measured = draw_measurements(sparse, scene.image, low=low, high=high)
    tiles = [
        Tile(measured, "photo.png, sparse.npy", f"{PRIOR_POINTS} measurements"),
        Tile(colourise(np.load("prior.npy")), "prior.npy", "relative depth, without a unit"),
    ]
    for name in ("none", "prior.npy"):
        run_command(f"complete photo.png --sparse sparse.npy --unit m --prior {name} -o out --format npy --overwrite")
        found = np.load("out/photo_depth.npy")
        caption = f"AbsRel {100 * float(np.nanmean(relative_error(found, depth))):.1f} %"
        tiles.append(Tile(colourise(found, low=low, high=high), f"--prior {name}", caption, bar))
    return {"guide-prior": draw_panel([tiles], tile_width=320)}


def patterns() -> Pictures:
    """What the benchmarks of the field measure, on a rendered room and street."""
    rows = []
    for kind, names in PATTERNS.items():
        scene = render(WIDTH, HEIGHT, kind=kind)
        assert scene.reference is not None
        low, high = colour_range(scene.reference)
        tiles = []
        for name, title in names.items():
            found = simulate(scene, name, dataset="docs")
            picture = draw_measurements(found.sparse, scene.image, low=low, high=high)
            tiles.append(Tile(picture, title, f"{name}, {found.count} pixels"))
        rows.append(tiles)
    return {"guide-patterns": draw_panel(rows, tile_width=330)}


def scenes() -> Pictures:
    """What a data set gives for an image, on the three rendered ones."""
    rows: list[list[Tile]] = []
    for kind in SENSORS:
        scene = render(WIDTH, HEIGHT, kind=kind)
        assert scene.reference is not None
        low, high = colour_range(scene.reference)
        bar = ColourBar("depth", f"{low:.1f} m", f"{high:.1f} m")
        sparse = scene.sparse["sensor"].values if scene.sparse else simulate(scene, "lidar:32", dataset="docs").sparse
        measured = draw_measurements(sparse, scene.image, low=low, high=high)
        if scene.sparse:
            measured = colourise(sparse, low=low, high=high)
        rows.append(
            [
                Tile(scene.image, "scene.image", scene.name),
                Tile(colourise(scene.reference, low=low, high=high), "scene.reference", "NaN is grey", bar),
                Tile(measured, "scene.sparse", SENSORS[kind]),
            ]
        )
    return {"guide-scenes": draw_panel(rows, tile_width=330)}


if __name__ == "__main__":
    makers = (lidar, colmap, bag, diagnosis, gradient, prior, patterns, scenes)
    draw_pictures(makers, output_folder(sys.argv[1:]))
