"""ROS messages of any layout, without a bag: point clouds, cameras, transforms, compressed depth."""

from __future__ import annotations

import io
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.poses import FramePose
from leadline.io.ros import messages as ros_messages


def tf_entry(child: str, parent: str, seconds: float, x: float) -> SimpleNamespace:
    stamp = SimpleNamespace(sec=int(seconds), nanosec=round(seconds % 1 * 1e9))
    moved = SimpleNamespace(translation=SimpleNamespace(x=x, y=0.0, z=0.0),
                            rotation=SimpleNamespace(w=1.0, x=0.0, y=0.0, z=0.0))  # fmt: skip
    header = SimpleNamespace(stamp=stamp, frame_id=f"/{parent}")
    return SimpleNamespace(transforms=[SimpleNamespace(header=header, child_frame_id=child, transform=moved)])


def test_poses_of_tf_messages() -> None:
    entries = [(False, tf_entry("arm", "base", 1.25, 2.0)), (True, tf_entry("tool", "arm", 0.0, 0.5))]
    moving, fixed = ros_messages.frame_poses(entries)
    assert moving == FramePose("arm", "base", 1_250_000_000, (2.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    assert fixed == FramePose("tool", "arm", None, (0.5, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))


def info(distortion: str, d: list[float], **changes: Any) -> SimpleNamespace:
    roi = SimpleNamespace(x_offset=0, y_offset=0, width=0, height=0)
    k, p = [100.0, 0, 50, 0, 110, 40, 0, 0, 1], [90.0, 0, 48, 0, 0, 90, 41, 0, 0, 0, 1, 0]
    fields = {"width": 100, "height": 80, "distortion_model": distortion, "d": d, "k": k, "p": p, "roi": roi}
    return SimpleNamespace(**{**fields, "binning_x": 0, "binning_y": 0, **changes})


def test_cameras() -> None:
    """The half pixel between ROS and COLMAP, each distortion, binning and regions of interest."""
    base = (100.0, 110.0, 50.5, 40.5)
    assert ros_messages.decode_camera(info("plumb_bob", [0.0] * 5)) == Camera(100, 80, 100.0, 110.0, 50.0, 40.0)
    lens = [0.1, 0.2, 0.01, 0.02]
    assert ros_messages.decode_camera(info("plumb_bob", [*lens, 0.0])) == ColmapCamera(
        "OPENCV", 100, 80, (*base, *lens)
    )
    wide = ros_messages.decode_camera(info("plumb_bob", [*lens, 0.3]))
    assert wide == ColmapCamera("FULL_OPENCV", 100, 80, (*base, *lens, 0.3, 0, 0, 0))
    fish = ros_messages.decode_camera(info("equidistant", lens))
    assert fish == ColmapCamera("OPENCV_FISHEYE", 100, 80, (*base, *lens))
    assert ros_messages.decode_camera(info("equidistant", lens), rectified=True) == Camera(
        100, 80, 90.0, 90.0, 48.0, 41.0
    )
    part = SimpleNamespace(x_offset=10, y_offset=20, width=60, height=40)
    cut = ros_messages.decode_camera(info("", [], roi=part, binning_x=2, binning_y=2))
    assert cut == Camera(60, 40, 100.0, 110.0, 40.0, 20.0).scaled(30, 20)
    with pytest.raises(InputError, match="'omni' with 4 numbers"):
        ros_messages.decode_camera(info("omni", lens))
    with pytest.raises(InputError, match="focal lengths 0 and 0"):
        ros_messages.decode_camera(info("plumb_bob", [], k=[0.0] * 9))


def points_message(order: str, kinds: tuple[int, ...], **changes: Any) -> SimpleNamespace:
    codes = {3: "i2", 5: "i4", 7: "f4", 8: "f8"}
    table = np.zeros(3, {"names": list("xyz"), "formats": [order + codes[kind] for kind in kinds],
                         "offsets": [1, 9, 20], "itemsize": 30})  # fmt: skip
    for place, name in enumerate("xyz"):
        table[name] = [place + 1, place - 7, 300 + place]
    fields = [SimpleNamespace(name=n, offset=o, datatype=k, count=1) for n, o, k in zip("xyz", (1, 9, 20), kinds, strict=True)]  # fmt: skip # noqa: E501
    given = {"fields": fields, "is_bigendian": order == ">", "height": 1, "width": 3, "point_step": 30}
    return SimpleNamespace(**{**given, "row_step": 90, "data": table.view(np.uint8), **changes})


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kinds", [(7, 7, 7), (8, 3, 5), (3, 8, 7)])
def test_point_clouds_of_any_layout(order: str, kinds: tuple[int, ...]) -> None:
    expected = [[1, 2, 3], [-7, -6, -5], [300, 301, 302]]
    assert ros_messages.decode_cloud(points_message(order, kinds)).points.tolist() == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fields": []}, "must have the fields x, y and z"),
        ({"width": 99}, "90 bytes of data; its sizes need 2970"),
        ({"height": 2, "row_step": 40, "width": 3}, "row_step is 40"),
        ({"point_step": 22, "row_step": 66}, "ends beyond its 22 bytes"),
    ],
)
def test_contradictory_point_clouds(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ros_messages.decode_cloud(points_message("<", (7, 7, 7), **changes))


def test_compressed_depth() -> None:
    depth = np.array([[1.5, 0.0], [2.25, 9.0]])
    png = io.BytesIO()
    Image.fromarray(np.rint(depth * 1e3).astype(np.uint16)).save(png, "PNG")
    plain = SimpleNamespace(format="16UC1; compressedDepth png", data=struct.pack("<iff", 0, 0, 0) + png.getvalue())
    np.testing.assert_allclose(ros_messages.decode_depth(plain), np.where(depth > 0, depth, np.nan), rtol=1e-6)
    coded = io.BytesIO()  # 1 / depth on a line, as compressed_depth_image_transport has it
    codes = np.where(depth > 0, np.rint(9000.0 / np.where(depth > 0, depth, 1) + 3), 0).astype(np.uint16)
    Image.fromarray(codes).save(coded, "PNG")
    data = struct.pack("<iff", 0, 9000.0, 3.0) + coded.getvalue()
    found = ros_messages.decode_depth(SimpleNamespace(format="32FC1; compressedDepth", data=data))
    np.testing.assert_allclose(found, np.where(depth > 0, depth, np.nan), rtol=1e-3)
    with pytest.raises(InputError, match="compressedDepth with PNG"):
        ros_messages.decode_depth(SimpleNamespace(format="jpeg", data=data))


def image_message(values: np.ndarray, encoding: str, **changes: Any) -> SimpleNamespace:
    flat = values.view(np.uint8).reshape(values.shape[0], -1)
    big = values.dtype.byteorder == ">"
    size = {"height": values.shape[0], "width": values.shape[1], "step": flat.shape[1], "is_bigendian": big}
    return SimpleNamespace(**{**size, "encoding": encoding, "data": flat.reshape(-1), **changes})


def test_pictures_of_each_encoding(rng: np.random.Generator) -> None:
    rgb = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    full = np.full((3, 4, 1), 255, np.uint8)
    wide = (rgb.astype(">u2") << 8) + np.uint16(77)
    grey = np.repeat(rgb[..., :1], 3, axis=2)
    cases = {
        "rgb8": (rgb, rgb),
        "bgr8": (rgb[..., ::-1].copy(), rgb),
        "rgba8": (np.concatenate((rgb, full), axis=2), rgb),
        "bgra8": (np.concatenate((rgb[..., ::-1], full), axis=2), rgb),
        "mono8": (rgb[..., 0].copy(), grey),
        "mono16": (np.ascontiguousarray(wide[..., 0]), grey),
        "rgb16": (np.ascontiguousarray(wide), rgb),
    }
    for encoding, (values, expected) in cases.items():
        found = ros_messages.decode_image(image_message(values, encoding))
        assert np.array_equal(found, expected), encoding
    with pytest.raises(InputError, match="rows of 4 bytes; 12 are needed"):
        ros_messages.decode_image(image_message(rgb, "rgb8", step=4))
    with pytest.raises(InputError, match="cannot be read as JPEG or PNG"):
        ros_messages.decode_image(SimpleNamespace(format="jpeg", data=b"\xff\xd8 broken"))


def test_depth_images_of_either_byte_order() -> None:
    metres = np.array([[1.25, np.nan, np.inf, -1.0, 0.0]])
    expected = np.array([[1.25, np.nan, np.nan, np.nan, np.nan]])
    for order in "<>":
        found = ros_messages.decode_depth(image_message(metres.astype(f"{order}f4"), "32FC1"))
        np.testing.assert_array_equal(found, expected)
        counts = np.array([[1250, 0]], f"{order}u2")
        np.testing.assert_array_equal(ros_messages.decode_depth(image_message(counts, "16UC1")), expected[:, :2])
    with pytest.raises(InputError, match="'rgb8'; it must be 32FC1"):
        ros_messages.decode_depth(image_message(np.zeros((1, 1, 3), np.uint8), "rgb8"))
