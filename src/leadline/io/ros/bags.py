"""ROS bags: rosbag1 (.bag), rosbag2 folders and single .mcap or .db3 files, read and written without ROS.

The package rosbags reads and writes the containers; `leadline.io.ros.messages` decodes the messages.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, LeadlineError, MissingExtra, param
from leadline.base.registry import suggestion
from leadline.geometry.poses import TransformTree
from leadline.io.ros.messages import FLOAT32, frame_poses, info_field

IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
POINTS = ("sensor_msgs/msg/PointCloud2",)
INFOS = ("sensor_msgs/msg/CameraInfo",)
_TF_TOPICS = {"/tf": False, "/tf_static": True}  # topic: whether its transforms are static

_SUFFIXES = (".bag", ".mcap", ".db3")

MAX_MM = 65535  # largest value of 16UC1


class Bag:
    """A bag to read from; use it in a ``with`` statement."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        _rosbags()
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore

        if not self.path.exists():
            raise FileError(f"{self.path}: there is no such bag; check the path.")
        if self.path.is_file() and self.path.suffix not in _SUFFIXES:
            raise FileError(f"{self.path}: is no bag, which is a folder or has a suffix {', '.join(_SUFFIXES)}.")
        with self._reading():
            # Older sqlite bags do not contain their message definitions.
            self._reader = AnyReader([self.path], default_typestore=get_typestore(Stores.ROS2_HUMBLE))
            self._reader.open()
        self.topics: dict[str, str] = {entry.topic: entry.msgtype for entry in self._reader.connections}

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    def require(self, topic: str, parameter: str, types: tuple[str, ...]) -> None:
        """Refuse a topic that does not exist or whose messages are not of `types`; the error mentions `parameter`."""
        fitting = sorted(name for name, kind in self.topics.items() if kind in types)
        short = " or ".join(kind.rpartition("/")[2] for kind in types)
        listed = f"its topics of type {short} are {', '.join(fitting)}" if fitting else f"it has none of type {short}"
        given = f"{param(parameter)} {topic}"
        if topic in self.topics and topic not in fitting:
            raise InputError(f"{given}: is a {self.topics[topic]}, expected {short}; {listed}.")
        if topic not in self.topics:
            others = "" if fitting else f"; all topics: {', '.join(sorted(self.topics)) or 'none'}"
            hint = suggestion(topic, fitting, fallback=f"{listed}{others}.")
            raise InputError(f"{given}: {self.path} has no such topic; {hint}")

    def stamps(self, topic: str) -> NDArray[np.int64]:
        """Header stamps of the messages of a topic, (N,) nanoseconds, in the order of the bag."""
        return np.array([self._stamp(raw) for _, _, raw in self._raw((topic,))], dtype=np.int64)

    def messages(self, *topics: str) -> Iterator[tuple[str, int, Any]]:
        """Topic, time of recording in nanoseconds, and message, in the order of the bag."""
        for kind, time, raw in self._raw(topics):
            with self._reading():
                message = self._reader.deserialize(raw, kind.msgtype)
            yield kind.topic, time, message

    def first(self, topic: str) -> Any:
        """The first message of a topic."""
        for _, _, message in self.messages(topic):
            return message
        raise InputError(f"{self.path}: the topic {topic} has no messages.")

    def transforms(self) -> TransformTree:
        """The frames of /tf and /tf_static."""
        found = ((_TF_TOPICS[topic], message) for topic, _, message in self.messages(*_TF_TOPICS))
        return TransformTree(frame_poses(found))

    def pairs(self, topic: str, other: str, partner: NDArray[np.int64]) -> Iterator[tuple[int, Any, Any]]:
        """Time of recording and message n of `topic`, with the message of `other` that has the index ``partner[n]``.

        Messages with a negative partner are left out. The bag is read once: only messages that wait for their partner,
        or that a later message needs, are held in memory.
        """
        wanted = Counter(partner[partner >= 0].tolist())
        counts: Counter[str] = Counter()
        kept: dict[int, Any] = {}
        waiting: dict[int, list[tuple[int, Any]]] = {}
        for name, time, message in self.messages(topic, other):
            index = counts[name]
            counts[name] += 1
            if name == topic:
                mate = int(partner[index])
                if mate in kept:
                    yield time, message, kept[mate]
                    wanted[mate] -= 1
                elif mate >= 0:
                    waiting.setdefault(mate, []).append((time, message))
            elif wanted[index]:
                kept[index] = message
                for earlier, mine in waiting.pop(index, []):
                    yield earlier, mine, message
                    wanted[index] -= 1
            for done in [mate for mate in kept if not wanted[mate]]:
                del kept[done]

    def _raw(self, topics: tuple[str, ...]) -> Iterator[tuple[Any, int, bytes]]:
        chosen = [entry for entry in self._reader.connections if entry.topic in topics]
        if not chosen:
            return  # an empty list would select all topics
        found = self._reader.messages(chosen)
        while True:
            with self._reading():
                entry = next(found, None)
            if entry is None:
                return
            yield entry

    def _stamp(self, raw: bytes) -> int:
        """The stamp of a message that begins with a header, without decoding the rest of the message."""
        with self._reading():
            if not self._reader.is2:
                seconds, rest = struct.unpack_from("<II", raw, 4)  # after the sequence number
            else:
                seconds, rest = struct.unpack_from("<iI" if raw[1] & 1 else ">iI", raw, 4)
        return int(seconds) * 10**9 + int(rest)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn every error of a reader on a damaged bag into a `FileError` that names the bag."""
        try:
            yield
        except LeadlineError:
            raise
        except Exception as error:  # decoders raise any exception on damaged bytes
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise FileError(
                f"{self.path}: cannot be read as a bag ({reason}). Is it truncated? 'ros2 bag reindex' or 'rosbag "
                "reindex' may repair it."
            ) from error


def match_stamps(times: NDArray[np.int64], others: NDArray[np.int64], tolerance: int) -> NDArray[np.int64]:
    """For each of `times` the index of the nearest of `others`, or -1 if it is farther than `tolerance`.

    Examples
    --------
    >>> match_stamps(np.array([10, 50, 90]), np.array([48, 12, 70]), 5)
    array([ 1,  0, -1])
    """
    if not len(others):
        return np.full(len(times), -1)
    order = np.argsort(others, kind="stable")
    right = np.clip(np.searchsorted(others[order], times), 1, max(len(others) - 1, 1))
    candidates = order[np.stack((right - 1, np.minimum(right, len(others) - 1)))]
    distances = np.abs(others[candidates] - times)
    best = np.argmin(distances, axis=0)
    chosen = np.take_along_axis(candidates, best[None], axis=0)[0]
    return np.where(distances.min(axis=0) <= tolerance, chosen, -1)


class DepthWriter:
    """Writes a new bag with dense depth. The bag appears under its name only when it is complete and not empty.

    The suffix ``.bag`` is rosbag1, ``.mcap`` one file of ROS 2, anything else a rosbag2 folder with sqlite3.
    ``camera_info`` and ``points`` are written beside `topic`. With `millimetres` depth is 16UC1 instead of 32FC1 in
    metres (REP 118).
    """

    def __init__(self, path: Path, topic: str, *, millimetres: bool = False) -> None:
        _rosbags()
        from rosbags.rosbag1 import Writer as Writer1
        from rosbags.rosbag2 import StoragePlugin
        from rosbags.rosbag2 import Writer as Writer2
        from rosbags.typesys import Stores, get_typestore

        self.path, self.topic, self.millimetres, self.count = path, topic, millimetres, 0
        try:
            self._work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
        except OSError as error:
            raise FileError(f"{path}: cannot be written ({error.strerror}); choose another folder.") from error
        self._ros1, single = path.suffix == ".bag", path.suffix == ".mcap"
        self._made = self._work / (path.stem if single else path.name)
        if self._ros1:
            self._writer: Any = Writer1(self._made)
        else:
            plugin = StoragePlugin.MCAP if single else StoragePlugin.SQLITE3
            self._writer = Writer2(self._made, version=8, storage_plugin=plugin)
        self._store = get_typestore(Stores.ROS1_NOETIC if self._ros1 else Stores.ROS2_HUMBLE)
        self._writer.open()
        self._connections: dict[str, Any] = {}

    def __enter__(self) -> DepthWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            with suppress(Exception) if kind is not None else _writing(self.path):
                self._writer.close()
                if self.count:
                    made = next(self._made.glob("*.mcap")) if self.path.suffix == ".mcap" else self._made
                    if self.path.is_dir():
                        os.replace(self.path, self._work / "old")  # os.replace cannot replace a folder with files
                    os.replace(made, self.path)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def write(self, time: int, header: Any, depth: FloatArray, info: Any) -> int:
        """Add a depth image, (H, W) metres with NaN where unknown, and its camera.

        `time` is the time of recording in nanoseconds. Stamp and frame of `header`, that of the colour image, are
        copied. Returns the number of pixels beyond the range of 16UC1.
        """
        values, encoding, lost = np.where(np.isfinite(depth), depth, np.nan).astype("<f4"), "32FC1", 0
        if self.millimetres:
            counts = np.rint(np.nan_to_num(depth.astype(np.float64), posinf=0, neginf=0) * 1e3)
            lost = int((counts > MAX_MM).sum())
            values, encoding = np.where(counts > MAX_MM, 0, counts).astype("<u2"), "16UC1"
        height, width = depth.shape
        fields = {"height": height, "width": width, "encoding": encoding, "step": width * values.itemsize}
        data = values.view(np.uint8).reshape(-1)
        message = self._new("sensor_msgs/msg/Image", header=self._header(header), is_bigendian=0, data=data, **fields)
        self._add(self.topic, message, time)
        self._add(self._beside("camera_info"), self._info(header, info), time)
        self.count += 1
        return lost

    def write_cloud(self, time: int, header: Any, points: FloatArray, colours: NDArray[np.uint8]) -> None:
        """Add an organised cloud of (H, W, 3) points in metres, NaN where unknown, with (H, W, 3) uint8 colours."""
        height, width = points.shape[:2]
        table = np.empty((height, width), dtype=[("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("rgb", "<u4")])
        for place, name in enumerate("xyz"):
            table[name] = points[..., place]
        red, green, blue = (colours[..., channel].astype(np.uint32) for channel in range(3))
        table["rgb"] = red << 16 | green << 8 | blue  # its field is declared as float32, which is ROS's convention
        fields = [
            self._new("sensor_msgs/msg/PointField", name=name, offset=4 * place, datatype=FLOAT32, count=1)
            for place, name in enumerate(("x", "y", "z", "rgb"))
        ]
        message = self._new(
            "sensor_msgs/msg/PointCloud2",
            header=self._header(header),
            fields=fields,
            data=table.view(np.uint8).reshape(-1),
            **{"height": height, "width": width, "point_step": table.itemsize, "row_step": table.itemsize * width},
            **{"is_bigendian": False, "is_dense": False},
        )
        self._add(self._beside("points"), message, time)

    def _beside(self, name: str) -> str:
        return f"{self.topic.rpartition('/')[0]}/{name}"

    def _new(self, kind: str, **fields: Any) -> Any:
        return self._store.types[kind](**fields)

    def _header(self, header: Any) -> Any:
        stamp = self._new("builtin_interfaces/msg/Time", sec=header.stamp.sec, nanosec=header.stamp.nanosec)
        sequence = {"seq": self.count} if self._ros1 else {}
        return self._new("std_msgs/msg/Header", stamp=stamp, frame_id=header.frame_id, **sequence)

    def _info(self, header: Any, info: Any) -> Any:
        region = {name: getattr(info.roi, name) for name in ("x_offset", "y_offset", "height", "width", "do_rectify")}
        names = ("height", "width", "distortion_model", "binning_x", "binning_y")
        plain = {name: getattr(info, name) for name in names}
        matrices = {name.upper() if self._ros1 else name: info_field(info, name) for name in "dkrp"}
        roi = self._new("sensor_msgs/msg/RegionOfInterest", **region)
        return self._new("sensor_msgs/msg/CameraInfo", header=self._header(header), roi=roi, **plain, **matrices)

    def _add(self, topic: str, message: Any, time: int) -> None:
        kind = message.__msgtype__
        with _writing(self.path):
            if topic not in self._connections:
                self._connections[topic] = self._writer.add_connection(topic, kind, typestore=self._store)
            serialise = self._store.serialize_ros1 if self._ros1 else self._store.serialize_cdr
            self._writer.write(self._connections[topic], time, serialise(message, kind))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error}).") from error


def _rosbags() -> None:
    try:
        import rosbags.highlevel  # noqa: F401
    except ImportError as error:
        raise MissingExtra("rosbags", "ros", "Reading and writing ROS bags") from error
