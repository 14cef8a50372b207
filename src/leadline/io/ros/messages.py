"""Decoding of ROS messages: images, depth images, point clouds, cameras and transforms, of ROS 1 and ROS 2.

Messages are objects with the fields of their definition, as rosbags makes them; nothing here needs ROS or rosbags.
ROS has pixel centres at integer coordinates, as this package has.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, is_measured
from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.cloud import Cloud
from leadline.geometry.poses import FramePose
from leadline.io.ply import stack_xyz

# By encoding of sensor_msgs/Image: dtype, and the indices of the channels red, green and blue.
_COLOUR_ENCODINGS: dict[str, tuple[str, tuple[int, ...]]] = {
    "rgb8": ("u1", (0, 1, 2)),
    "bgr8": ("u1", (2, 1, 0)),
    "8UC3": ("u1", (2, 1, 0)),  # OpenCV's order
    "rgba8": ("u1", (0, 1, 2, 3)),
    "bgra8": ("u1", (2, 1, 0, 3)),
    "mono8": ("u1", (0,)),
    "8UC1": ("u1", (0,)),
    "mono16": ("u2", (0,)),
    "rgb16": ("u2", (0, 1, 2)),
    "bgr16": ("u2", (2, 1, 0)),
}
# REP 118: metres with NaN and inf for unknown depth, or millimetres with 0. By encoding: dtype and metres per count.
_DEPTH_ENCODINGS = {"32FC1": ("f4", 1.0), "16UC1": ("u2", 1e-3), "mono16": ("u2", 1e-3)}
# dtypes by their number in sensor_msgs/PointField.
_POINT_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
FLOAT32 = 7
_POLYNOMIAL_MODELS = ("plumb_bob", "rational_polynomial")
_FISHEYE_MODELS = ("equidistant", "fisheye", "kannala_brandt4")
_MAX_PIXELS = 1 << 28  # a damaged header must not make us allocate all memory
# Header of compressed_depth_image_transport: format, and the two parameters of its inverse-depth quantisation.
_DEPTH_HEADER = struct.Struct("<iff")


def stamp_ns(header: Any) -> int:
    """The time stamp of a header in nanoseconds."""
    return int(header.stamp.sec) * 10**9 + int(header.stamp.nanosec)


def frame_id(header: Any) -> str:
    """The frame of a header, without the leading slash that old drivers write."""
    return str(header.frame_id).lstrip("/")


def decode_image(message: Any) -> NDArray[np.uint8]:
    """The pixels of an Image or CompressedImage, (H, W, 3) uint8 RGB; grey is repeated, transparency dropped."""
    if not hasattr(message, "encoding"):
        return _decompress(bytes(message.data), "RGB")
    if message.encoding not in _COLOUR_ENCODINGS:
        raise InputError(
            f"the encoding of the image is {message.encoding!r}; supported are {', '.join(_COLOUR_ENCODINGS)}. Convert "
            "it, e.g. with image_proc (Bayer patterns) or image_transport republish."
        )
    kind, order = _COLOUR_ENCODINGS[message.encoding]
    values = _pixels(message, kind, len(order))
    if kind == "u2":
        values = values >> 8
    values = values[..., order[:3]].astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def decode_depth(message: Any) -> NDArray[np.float32]:
    """The depth of an Image or a compressedDepth image, (H, W) float32 metres, NaN where nothing was measured."""
    if hasattr(message, "encoding"):
        if message.encoding not in _DEPTH_ENCODINGS:
            raise InputError(
                f"the encoding of the depth is {message.encoding!r}; it must be 32FC1 (metres) or 16UC1 (mm)."
            )
        kind, unit = _DEPTH_ENCODINGS[message.encoding]
        return _mask_invalid(_pixels(message, kind, 1)[..., 0].astype(np.float64) * unit)
    data, encoding = bytes(message.data), str(message.format)
    if len(data) < _DEPTH_HEADER.size or "compressedDepth" not in encoding or "rvl" in encoding:
        raise InputError(f"the format of the depth is {encoding!r}; only compressedDepth with PNG is supported.")
    _, first, second = _DEPTH_HEADER.unpack_from(data)
    codes = _decompress(data[_DEPTH_HEADER.size :], "I;16").astype(np.float64)
    if not encoding.startswith("32FC1"):
        return _mask_invalid(codes * 1e-3)
    with np.errstate(divide="ignore"):
        return _mask_invalid(np.where(codes > 0, first / (codes - second), np.nan))


def decode_cloud(message: Any) -> Cloud:
    """The finite points of a PointCloud2; its fields may have any type, order, padding and byte order."""
    fields = {field.name: field for field in message.fields}
    if not {"x", "y", "z"} <= fields.keys():
        raise InputError(f"the points must have the fields x, y and z, got {', '.join(fields) or 'none'}.")
    order = ">" if message.is_bigendian else "<"
    height, width, step, stride = (
        int(getattr(message, name)) for name in ("height", "width", "point_step", "row_step")
    )
    if not height * width:
        return Cloud(np.empty((0, 3), np.float32))
    data = _bytes(message.data, height * stride if height > 1 else width * step)
    rows = data.reshape(height, stride)[:, : width * step] if height > 1 else data[None, : width * step]
    if rows.shape[1] < width * step:
        raise InputError(f"the points' row_step is {stride}, less than {width} points of {step} bytes.")
    try:
        kinds = [order + _POINT_DTYPES[fields[name].datatype] for name in "xyz"]
        offsets = [int(fields[name].offset) for name in "xyz"]
        record = np.dtype({"names": list("xyz"), "formats": kinds, "offsets": offsets, "itemsize": step})
    except (KeyError, ValueError) as error:
        raise InputError(f"a field of the points has an unknown datatype or ends beyond its {step} bytes.") from error
    points = stack_xyz(np.ascontiguousarray(rows).view(record).reshape(-1))
    return Cloud(points[np.isfinite(points).all(axis=1)])


def decode_camera(message: Any, *, rectified: bool = False) -> Camera | ColmapCamera:
    """The camera of a CameraInfo, with its binning and region of interest applied.

    If the image is `rectified`, the matrix P is used, without distortion, instead of K.
    """
    name, distortion = str(message.distortion_model), [float(value) for value in info_field(message, "d")]
    matrix = np.reshape(info_field(message, "p" if rectified else "k"), (3, 4 if rectified else 3))
    fx, fy, cx, cy = (float(matrix[place]) for place in ((0, 0), (1, 1), (0, 2), (1, 2)))
    if not (fx > 0 and fy > 0):
        raise InputError(f"{'P' if rectified else 'K'} of the camera info has the focal lengths {fx:g} and {fy:g}.")
    if rectified or not any(distortion):
        model, lens = "PINHOLE", []
    elif name in _FISHEYE_MODELS:
        model, lens = "OPENCV_FISHEYE", distortion[:4]
    elif name in _POLYNOMIAL_MODELS and len(distortion) in (4, 5, 8):
        plain = not any(distortion[4:])
        model, lens = ("OPENCV", distortion[:4]) if plain else ("FULL_OPENCV", (distortion + [0.0] * 3)[:8])
    else:
        raise InputError(
            f"the distortion model of the camera info is {name!r} with {len(distortion)} numbers; supported are "
            "plumb_bob (4 or 5), rational_polynomial (8) and equidistant (4)."
        )
    region = message.roi
    x, y = region.x_offset, region.y_offset
    width, height = region.width or message.width, region.height or message.height
    camera = ColmapCamera(model, int(width), int(height), (fx, fy, cx + 0.5 - x, cy + 0.5 - y, *lens))
    across, down = max(int(message.binning_x), 1), max(int(message.binning_y), 1)
    if across * down > 1:
        camera = camera.scaled(int(width) // across, int(height) // down)
    return camera.pinhole() or camera


def frame_poses(messages: Iterable[tuple[bool, Any]]) -> Iterator[FramePose]:
    """The poses in TFMessages; `messages` are pairs (whether the topic is static, message)."""
    for static, message in messages:
        for entry in message.transforms:
            shift, turn = entry.transform.translation, entry.transform.rotation
            yield FramePose(
                child=str(entry.child_frame_id).lstrip("/"),
                parent=frame_id(entry.header),
                time=None if static else stamp_ns(entry.header),
                translation=(shift.x, shift.y, shift.z),
                quaternion=(turn.w, turn.x, turn.y, turn.z),
            )


def info_field(message: Any, name: str) -> Any:
    """A field of CameraInfo, which ROS 1 writes in capitals."""
    return getattr(message, name if hasattr(message, name) else name.upper())


def _bytes(data: Any, needed: int) -> NDArray[np.uint8]:
    found = np.frombuffer(bytes(data), np.uint8)
    if len(found) < needed:
        raise InputError(f"the message has {len(found)} bytes of data; its sizes need {needed}.")
    return found[:needed]


def _pixels(message: Any, kind: str, channels: int) -> NDArray[Any]:
    """The values of an Image, (H, W, channels), without the padding at the end of its rows."""
    height, width, step = int(message.height), int(message.width), int(message.step)
    type_ = np.dtype((">" if message.is_bigendian else "<") + kind)
    row = width * channels * type_.itemsize
    if not (0 < height * width <= _MAX_PIXELS and step >= row):
        raise InputError(f"the image is {width}x{height} with rows of {step} bytes; {row} are needed.")
    rows = _bytes(message.data, height * step).reshape(height, step)[:, :row]
    return np.ascontiguousarray(rows).view(type_).reshape(height, width, channels)


def _decompress(data: bytes, mode: str) -> NDArray[Any]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as opened:
            if mode == "RGB":
                return np.asarray(opened.convert("RGB"))
            if not opened.mode.startswith("I"):
                raise InputError(f"the compressed depth has the mode {opened.mode}; it must have 16 bits.")
            return np.asarray(opened)
    except InputError:
        raise
    except Exception as error:  # decoders raise any exception on damaged bytes
        raise InputError(f"the compressed image cannot be read as JPEG or PNG ({error}).") from error


def _mask_invalid(depth: FloatArray) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.where(is_measured(depth), depth, np.nan).astype(np.float32)
