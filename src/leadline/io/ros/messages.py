"""What ROS messages hold: pictures, depth images, point clouds, cameras and transforms, of ROS 1 and ROS 2 alike.

Messages are objects with the fields of their definition, as rosbags makes them; nothing here needs ROS or rosbags.
ROS has pixel centres at integer coordinates, as this package has.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera
from leadline.geometry.cloud import Cloud
from leadline.geometry.lenses import ColmapCamera
from leadline.geometry.motion import Trajectory
from leadline.geometry.poses import Transform, inverse, rotation_of

# By encoding of sensor_msgs/Image: type, and which channels are red, green and blue.
_PICTURES: dict[str, tuple[str, tuple[int, ...]]] = {
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
# REP 118: metres with NaN and inf for unknown, or millimetres with 0.
_DEPTHS = {"32FC1": ("f4", 1.0), "16UC1": ("u2", 1e-3), "mono16": ("u2", 1e-3)}
# sensor_msgs/PointField's numbers for types.
_FIELDS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
FLOAT32 = 7
_PINHOLES, _FISHEYES = ("plumb_bob", "rational_polynomial"), ("equidistant", "fisheye", "kannala_brandt4")
_LARGEST_PICTURE = 1 << 28  # pixels: a broken header must not ask for all memory
_DEPTH_HEADER = struct.Struct("<iff")  # of compressed_depth_image_transport: form, and two numbers of its code


def nanoseconds(header: Any) -> int:
    """The header's stamp as one number; ROS 1 and 2 call the parts differently only in their definitions."""
    return int(header.stamp.sec) * 10**9 + int(header.stamp.nanosec)


def frame_of(header: Any) -> str:
    """The header's frame without the slash that old drivers put before it."""
    return str(header.frame_id).lstrip("/")


def picture(message: Any) -> NDArray[np.uint8]:
    """The picture of an Image or CompressedImage, (H, W, 3) uint8 RGB; grey is repeated, transparency dropped.

    Raises
    ------
    InputError
        The encoding is none of those above (Bayer patterns and YUV are not read), or the data are too short.
    """
    if not hasattr(message, "encoding"):
        return _decoded(bytes(message.data), "RGB")
    if message.encoding not in _PICTURES:
        raise InputError(
            f"the picture's encoding is {message.encoding!r}, and {', '.join(_PICTURES)} are read; convert it, e.g. "
            "with image_proc (Bayer patterns) or image_transport republish."
        )
    kind, order = _PICTURES[message.encoding]
    values = _pixels(message, kind, len(order))
    if kind == "u2":
        values = values >> 8
    values = values[..., order[:3]].astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def depth_image(message: Any) -> NDArray[np.float32]:
    """The depth of an Image or a compressedDepth image, (H, W) float32 metres, NaN where nothing was measured.

    Raises
    ------
    InputError
        The encoding is neither 32FC1 nor 16UC1, or the data are too short or of another form.
    """
    if hasattr(message, "encoding"):
        if message.encoding not in _DEPTHS:
            raise InputError(
                f"the depth's encoding is {message.encoding!r} and must be 32FC1 (metres) or 16UC1 (mm), see REP 118."
            )
        kind, unit = _DEPTHS[message.encoding]
        return _measured(_pixels(message, kind, 1)[..., 0].astype(np.float64) * unit)
    data, form = bytes(message.data), str(message.format)
    if len(data) < _DEPTH_HEADER.size or "compressedDepth" not in form or "rvl" in form:
        raise InputError(f"the depth's format is {form!r}; of compressed depth, compressedDepth with PNG is read.")
    _, first, second = _DEPTH_HEADER.unpack_from(data)
    codes = _decoded(data[_DEPTH_HEADER.size :], "I;16").astype(np.float64)
    if not form.startswith("32FC1"):
        return _measured(codes * 1e-3)
    with np.errstate(divide="ignore"):
        return _measured(np.where(codes > 0, first / (codes - second), np.nan))


def cloud(message: Any) -> Cloud:
    """The points of a PointCloud2 that are finite; its fields may have any type, order, padding and byte order.

    Raises
    ------
    InputError
        It has no x, y and z, or its sizes contradict each other.
    """
    fields = {field.name: field for field in message.fields}
    if not {"x", "y", "z"} <= fields.keys():
        raise InputError(f"the points have the fields {', '.join(fields) or 'none'}, and need x, y and z.")
    order = ">" if message.is_bigendian else "<"
    height, width, step, stride = (
        int(getattr(message, name)) for name in ("height", "width", "point_step", "row_step")
    )
    columns = []
    data = _bytes(message.data, height * stride if height > 1 else width * step)
    rows = data.reshape(height, stride)[:, : width * step] if height > 1 else data[None, : width * step]
    if rows.shape[1] < width * step:
        raise InputError(f"the points' row_step is {stride}, less than {width} points of {step} bytes.")
    records = np.ascontiguousarray(rows).reshape(-1, step) if step else rows.reshape(0, 1)
    for name in "xyz":
        field = fields[name]
        if field.datatype not in _FIELDS:
            raise InputError(f"the points' field {name} has the unknown datatype {field.datatype}.")
        kind = np.dtype(order + _FIELDS[field.datatype])
        end = int(field.offset) + kind.itemsize
        if len(records) and end > step:
            raise InputError(f"the points' field {name} ends at byte {end} of {step}.")
        columns.append(np.ascontiguousarray(records[:, int(field.offset) : end]).view(kind).reshape(-1))
    wide = any(column.dtype.itemsize > 4 for column in columns)
    points = np.stack(columns, axis=1).astype(np.float64 if wide else np.float32)
    return Cloud(points[np.isfinite(points).all(axis=1)])


def camera(message: Any, *, rectified: bool = False) -> Camera | ColmapCamera:
    """The camera of a CameraInfo, as its binning and region of interest leave it.

    Parameters
    ----------
    message : CameraInfo
    rectified : bool
        The picture was rectified: P applies, without distortion, and not K.

    Raises
    ------
    InputError
        It is not calibrated, or its distortion model is neither plumb_bob, rational_polynomial nor equidistant.
    """
    name, distortion = str(message.distortion_model), [float(value) for value in _upper(message, "d")]
    matrix = np.reshape(_upper(message, "p"), (3, 4)) if rectified else np.reshape(_upper(message, "k"), (3, 3))
    fx, fy, cx, cy = (float(matrix[place]) for place in ((0, 0), (1, 1), (0, 2), (1, 2)))
    if not (fx > 0 and fy > 0):
        raise InputError(f"the camera info's {'P' if rectified else 'K'} has the focal lengths {fx:g} and {fy:g}.")
    if rectified or not any(distortion):
        model, lens = "PINHOLE", []
    elif name in _FISHEYES:
        model, lens = "OPENCV_FISHEYE", distortion[:4]
    elif name in _PINHOLES and len(distortion) in (4, 5, 8):
        plain = not any(distortion[4:])
        model, lens = ("OPENCV", distortion[:4]) if plain else ("FULL_OPENCV", (distortion + [0.0] * 3)[:8])
    else:
        raise InputError(
            f"the camera info's distortion is {name!r} with {len(distortion)} numbers; read are plumb_bob (4 or 5), "
            "rational_polynomial (8) and equidistant (4)."
        )
    region = message.roi
    x, y, width, height = (
        region.x_offset,
        region.y_offset,
        region.width or message.width,
        region.height or message.height,
    )
    found = ColmapCamera(model, int(width), int(height), (fx, fy, cx + 0.5 - x, cy + 0.5 - y, *lens))
    across, down = max(int(message.binning_x), 1), max(int(message.binning_y), 1)
    if across * down > 1:
        found = found.scaled(int(width) // across, int(height) // down)
    return found.plain()


class Transforms:
    """The tree of frames that tf and tf_static messages describe."""

    def __init__(self, messages: Iterable[tuple[bool, Any]]) -> None:
        """`messages` are TFMessages, each with whether it is static."""
        self._parents: dict[str, str] = {}
        poses: dict[str, dict[float, tuple[float, ...]]] = {}
        fixed: set[str] = set()
        for static, message in messages:
            for entry in message.transforms:
                child = str(entry.child_frame_id).lstrip("/")
                self._parents[child] = frame_of(entry.header)
                shift, turn = entry.transform.translation, entry.transform.rotation
                pose = (turn.w, turn.x, turn.y, turn.z, shift.x, shift.y, shift.z)
                if static:
                    fixed.add(child)
                    poses[child] = {0.0: pose}
                elif child not in fixed:
                    poses.setdefault(child, {})[nanoseconds(entry.header) * 1e-9] = pose
        self._moving: dict[str, Trajectory] = {}
        self._still: dict[str, Transform] = {}
        for child, known in poses.items():
            times, rows = np.array(sorted(known)), np.array([known[time] for time in sorted(known)])
            if len(times) > 1:
                self._moving[child] = Trajectory(times, rows[:, 4:], rows[:, :4])
            else:
                self._still[child] = _matrix(rows[0, :4], rows[0, 4:])

    @property
    def frames(self) -> tuple[str, ...]:
        """The names that are known."""
        return tuple(sorted({*self._parents, *self._parents.values()}))

    def between(self, source: str, target: str, time: int) -> Transform:
        """From the frame `source` to `target` at `time` in nanoseconds, interpolated between moving poses.

        Raises
        ------
        InputError
            No chain of frames connects the two, or a pose is not known at that time.
        """
        up, down = self.chains(source, target)
        return inverse(self._to_root(down, time)) @ self._to_root(up, time)

    def chains(self, source: str, target: str) -> tuple[list[str], list[str]]:
        """The frames from each of the two up to the root that they share.

        Raises
        ------
        InputError
            There is none.
        """
        up, down = self._chain(source), self._chain(target)
        if up[-1] != down[-1]:
            known = ", ".join(self.frames) or "none"
            raise InputError(
                f"tf does not connect the frames {source!r} and {target!r} (known are {known}); give --extrinsics."
            )
        return up, down

    def _chain(self, frame: str) -> list[str]:
        chain = [frame]
        while chain[-1] in self._parents:
            if self._parents[chain[-1]] in chain:
                raise InputError(f"tf has a loop at the frame {chain[-1]!r}; give --extrinsics.")
            chain.append(self._parents[chain[-1]])
        return chain

    def _to_root(self, chain: list[str], time: int) -> Transform:
        result = np.eye(4)
        for frame in chain[:-1]:
            result = self._pose(frame, time) @ result
        return result

    def _pose(self, frame: str, time: int) -> Transform:
        if frame in self._still:
            return self._still[frame]
        try:
            turns, shifts = self._moving[frame].at(np.array([time * 1e-9]))
        except InputError as error:
            raise InputError(f"tf of {frame!r}: {error}") from error
        return _matrix(turns[0], shifts[0])


def _matrix(turn: FloatArray, shift: FloatArray) -> Transform:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation_of(tuple(turn)), shift
    return matrix


def _upper(message: Any, name: str) -> Any:
    """ROS 1 writes the fields of CameraInfo in capitals."""
    return getattr(message, name if hasattr(message, name) else name.upper())


def _bytes(data: Any, needed: int) -> NDArray[np.uint8]:
    found = np.frombuffer(bytes(data), np.uint8)
    if len(found) < needed:
        raise InputError(f"the message has {len(found)} bytes of data where its sizes ask for {needed}.")
    return found[:needed]


def _pixels(message: Any, kind: str, channels: int) -> NDArray[Any]:
    """An Image's values, (H, W, channels), without the padding at the end of its rows."""
    height, width, step = int(message.height), int(message.width), int(message.step)
    type_ = np.dtype((">" if message.is_bigendian else "<") + kind)
    row = width * channels * type_.itemsize
    if not (0 < height * width <= _LARGEST_PICTURE and step >= row):
        raise InputError(f"the image is {width}x{height} with rows of {step} bytes, and {row} are needed.")
    rows = _bytes(message.data, height * step).reshape(height, step)[:, :row]
    return np.ascontiguousarray(rows).view(type_).reshape(height, width, channels)


def _decoded(data: bytes, mode: str) -> NDArray[Any]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as opened:
            if mode == "RGB":
                return np.asarray(opened.convert("RGB"))
            if not opened.mode.startswith("I"):
                raise InputError(f"the compressed depth has the mode {opened.mode} and must have 16 bits.")
            return np.asarray(opened)
    except InputError:
        raise
    except Exception as error:  # decoders raise anything when fed with damaged bytes
        raise InputError(f"the compressed image cannot be read as JPEG or PNG ({error}).") from error


def _measured(depth: FloatArray) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float32)
