"""Files of depth maps, images, point clouds, calibrations and whole frames. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leadline.base.registry import import_on_first_use

if TYPE_CHECKING:
    from leadline.geometry.cameras import ColmapCamera
    from leadline.geometry.cloud import Cloud
    from leadline.io.cameras import read_camera, read_extrinsics, read_kitti, read_trajectory
    from leadline.io.cloud_projection import CloudProjection, project_cloud
    from leadline.io.clouds import read_cloud
    from leadline.io.colmap import read_model
    from leadline.io.depth import DEPTH_SUFFIXES, DepthMap, read_depth, read_image, read_values, write_depth
    from leadline.io.frames import FrameFiles, FrameInputs, FrameOptions, Measurements, read_frame
    from leadline.io.notes import Note, NoteKind
    from leadline.io.placement import CloudFiles, ProjectionOptions
    from leadline.io.ply import read_ply, write_ply
    from leadline.io.units import UNITS

_NAMES = {
    "geometry.cameras": ("ColmapCamera",),
    "geometry.cloud": ("Cloud",),
    "io.cameras": ("read_camera", "read_extrinsics", "read_kitti", "read_trajectory"),
    "io.cloud_projection": ("CloudProjection", "project_cloud"),
    "io.clouds": ("read_cloud",),
    "io.colmap": ("read_model",),
    "io.depth": ("DEPTH_SUFFIXES", "DepthMap", "read_depth", "read_image", "read_values", "write_depth"),
    "io.frames": ("FrameFiles", "FrameInputs", "FrameOptions", "Measurements", "read_frame"),
    "io.notes": ("Note", "NoteKind"),
    "io.placement": ("CloudFiles", "ProjectionOptions"),
    "io.ply": ("read_ply", "write_ply"),
    "io.units": ("UNITS",),
}
_MODULES = {name: f"leadline.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "DEPTH_SUFFIXES",
    "UNITS",
    "Cloud",
    "CloudFiles",
    "CloudProjection",
    "ColmapCamera",
    "DepthMap",
    "FrameFiles",
    "FrameInputs",
    "FrameOptions",
    "Measurements",
    "Note",
    "NoteKind",
    "ProjectionOptions",
    "project_cloud",
    "read_camera",
    "read_cloud",
    "read_depth",
    "read_extrinsics",
    "read_frame",
    "read_image",
    "read_kitti",
    "read_model",
    "read_ply",
    "read_trajectory",
    "read_values",
    "write_depth",
    "write_ply",
]

__getattr__, __dir__ = import_on_first_use(__name__, _MODULES)
