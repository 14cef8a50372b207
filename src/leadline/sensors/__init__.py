"""Files and sensors: depth maps, pictures, point clouds, calibrations."""

from leadline.sensors.cameras import ColmapCamera, read_camera
from leadline.sensors.clouds import Cloud, read_cloud, read_ply, write_ply
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
from leadline.sensors.extrinsics import read_extrinsics, read_kitti

__all__ = [
    "DEPTH_SUFFIXES",
    "UNITS",
    "Cloud",
    "ColmapCamera",
    "DepthMap",
    "atomic_write",
    "read_camera",
    "read_cloud",
    "read_depth",
    "read_extrinsics",
    "read_image",
    "read_kitti",
    "read_ply",
    "read_values",
    "write_depth",
    "write_ply",
]
