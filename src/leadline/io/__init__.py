"""Files and sensors: depth maps, pictures, point clouds, calibrations."""

from leadline.geometry.cloud import Cloud
from leadline.geometry.lenses import ColmapCamera
from leadline.io.cameras import read_camera, read_extrinsics, read_kitti
from leadline.io.clouds.files import read_cloud, read_ply, write_ply
from leadline.io.depth.files import (
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
