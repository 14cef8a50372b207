"""Files and sensors: depth maps, pictures, point clouds."""

from leadline.sensors.clouds import read_ply, write_ply
from leadline.sensors.depth_files import (
    DEPTH_SUFFIXES,
    UNITS,
    DepthMap,
    atomic_write,
    read_depth,
    read_image,
    read_values,
    write_depth,
)

__all__ = [
    "DEPTH_SUFFIXES",
    "UNITS",
    "DepthMap",
    "atomic_write",
    "read_depth",
    "read_image",
    "read_ply",
    "read_values",
    "write_depth",
    "write_ply",
]
