"""Real bags for the tests, written and read back with rosbags alone."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from leadline.geometry.cameras import Camera


class Recorder:
    """A bag being written with rosbags' own writers."""

    def __init__(self, path: Path) -> None:
        self.old = path.suffix == ".bag"
        self.store = get_typestore(Stores.ROS1_NOETIC if self.old else Stores.ROS2_HUMBLE)
        definition = "geometry_msgs/TransformStamped[] transforms"  # of a package that rosbags' store of ROS 1 lacks
        if self.old:
            self.store.register(get_types_from_msg(definition, "tf2_msgs/msg/TFMessage"))
        self.path, self.folder = path, path.with_name(f"{path.stem}_made") if path.suffix == ".mcap" else path
        plugin = StoragePlugin.MCAP if path.suffix == ".mcap" else StoragePlugin.SQLITE3
        self.writer: Any = Writer1(path) if self.old else Writer2(self.folder, version=8, storage_plugin=plugin)
        self.connections: dict[str, Any] = {}
        self.writer.open()

    def close(self) -> None:
        self.writer.close()
        if self.path.suffix == ".mcap":
            next(self.folder.glob("*.mcap")).rename(self.path)
            shutil.rmtree(self.folder)

    def new(self, kind: str, **fields: Any) -> Any:
        return self.store.types[kind](**fields)

    def header(self, stamp: int, frame: str) -> Any:
        time = self.new("builtin_interfaces/msg/Time", sec=stamp // 10**9, nanosec=stamp % 10**9)
        return self.new("std_msgs/msg/Header", stamp=time, frame_id=frame, **({"seq": 7} if self.old else {}))

    def add(self, topic: str, kind: str, stamp: int, **fields: Any) -> None:
        message = self.new(kind, **fields)
        if topic not in self.connections:
            self.connections[topic] = self.writer.add_connection(topic, kind, typestore=self.store)
        serialise = self.store.serialize_ros1 if self.old else self.store.serialize_cdr
        self.writer.write(self.connections[topic], stamp + 1000, serialise(message, kind))

    def image(self, topic: str, stamp: int, values: np.ndarray, encoding: str, frame: str = "optical") -> None:
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(values.shape[0], -1)
        padded = np.pad(flat, ((0, 0), (0, 8)))  # rows may be longer than their pixels
        size = {"height": values.shape[0], "width": values.shape[1], "step": padded.shape[1]}
        self.add(
            topic, "sensor_msgs/msg/Image", stamp, header=self.header(stamp, frame), encoding=encoding,
            is_bigendian=0, data=padded.reshape(-1), **size,
        )  # fmt: skip

    def info(self, topic: str, stamp: int, camera: Camera) -> None:
        k = np.array([camera.fx, 0, camera.cx, 0, camera.fy, camera.cy, 0, 0, 1.0])
        matrices = {"d": np.zeros(5), "k": k, "r": np.eye(3).ravel(), "p": np.insert(k, (3, 6, 9), 0.0)}
        roi = self.new("sensor_msgs/msg/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False)
        self.add(
            topic, "sensor_msgs/msg/CameraInfo", stamp, header=self.header(stamp, "optical"), height=camera.height,
            width=camera.width, distortion_model="plumb_bob", binning_x=0, binning_y=0, roi=roi,
            **{name.upper() if self.old else name: values for name, values in matrices.items()},
        )  # fmt: skip

    def points(self, topic: str, stamp: int, points: np.ndarray) -> None:
        """Two rows with padding, x as float64 behind the others, and a field that is of no interest."""
        table = np.zeros((2, len(points) // 2), {"names": ["i", "z", "y", "x"], "formats": ["<u2", "<f4", "<f4", "<f8"],
                                                 "offsets": [0, 4, 8, 16], "itemsize": 32})  # fmt: skip
        for place, name in enumerate("xyz"):
            table[name] = points[: table.size, place].reshape(2, -1)
        fields = [
            self.new("sensor_msgs/msg/PointField", name=name, offset=offset, datatype=kind, count=1)
            for name, offset, kind in (("i", 0, 4), ("z", 4, 7), ("y", 8, 7), ("x", 16, 8))
        ]
        rows = np.pad(table.view(np.uint8).reshape(2, -1), ((0, 0), (0, 12)))
        self.add(
            topic, "sensor_msgs/msg/PointCloud2", stamp, header=self.header(stamp, "lidar"), height=2,
            width=table.shape[1], fields=fields, is_bigendian=False, point_step=32, row_step=rows.shape[1],
            data=rows.reshape(-1), is_dense=True,
        )  # fmt: skip

    def tf(
        self,
        stamp: int,
        chain: Mapping[str, tuple[str, tuple[float, ...], tuple[float, ...]]],
        topic: str = "/tf_static",
    ) -> None:
        """Poses as quaternion w, x, y, z and translation, with their parent, by the frame's name."""
        entries = []
        for child, (parent, (w, x, y, z), shift) in chain.items():
            rotation = self.new("geometry_msgs/msg/Quaternion", x=x, y=y, z=z, w=w)
            translation = self.new("geometry_msgs/msg/Vector3", **dict(zip("xyz", shift, strict=True)))
            moved = self.new("geometry_msgs/msg/Transform", translation=translation, rotation=rotation)
            entries.append(
                self.new(
                    "geometry_msgs/msg/TransformStamped",
                    header=self.header(stamp, parent),
                    child_frame_id=child,
                    transform=moved,
                )
            )
        self.add(topic, "tf2_msgs/msg/TFMessage", stamp, transforms=entries)


def read(path: Path) -> dict[str, list[tuple[int, Any]]]:
    with AnyReader([path]) as reader:
        found: dict[str, list[tuple[int, Any]]] = {}
        for connection, time, raw in reader.messages():
            found.setdefault(connection.topic, []).append((time, reader.deserialize(raw, connection.msgtype)))
    return found


def depth_of(message: Any) -> np.ndarray:
    """As REP 118 has it."""
    if message.encoding == "16UC1":
        return message.data.view("<u2").reshape(message.height, message.width) / 1e3
    assert message.encoding == "32FC1"
    return message.data.view("<f4").reshape(message.height, message.width)
