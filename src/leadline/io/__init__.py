"""Files: depth maps, images, point clouds, calibrations, and whole frames of them. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline.geometry.cloud import Cloud
    from leadline.geometry.lenses import ColmapCamera
    from leadline.io.cameras import read_camera, read_extrinsics, read_kitti, read_trajectory
    from leadline.io.cloud_projection import CloudProjection, project_cloud
    from leadline.io.clouds.files import read_cloud
    from leadline.io.clouds.ply import read_ply, write_ply
    from leadline.io.colmap import read_model
    from leadline.io.depth.files import DEPTH_SUFFIXES, DepthMap, read_depth, read_image, read_values, write_depth
    from leadline.io.depth.units import UNITS
    from leadline.io.frames import FrameFiles, FrameInputs, FrameOptions, Measurements, read_frame
    from leadline.io.notes import Note, NoteKind
    from leadline.io.placement import CloudFiles, ProjectionOptions

_MODULES = {
    "Cloud": "geometry.cloud",
    "CloudFiles": "io.placement",
    "CloudProjection": "io.cloud_projection",
    "ColmapCamera": "geometry.lenses",
    "DEPTH_SUFFIXES": "io.depth.files",
    "DepthMap": "io.depth.files",
    "FrameFiles": "io.frames",
    "FrameInputs": "io.frames",
    "FrameOptions": "io.frames",
    "Measurements": "io.frames",
    "Note": "io.notes",
    "NoteKind": "io.notes",
    "ProjectionOptions": "io.placement",
    "UNITS": "io.depth.units",
    "project_cloud": "io.cloud_projection",
    "read_camera": "io.cameras",
    "read_cloud": "io.clouds.files",
    "read_depth": "io.depth.files",
    "read_extrinsics": "io.cameras",
    "read_frame": "io.frames",
    "read_image": "io.depth.files",
    "read_kitti": "io.cameras",
    "read_model": "io.colmap",
    "read_ply": "io.clouds.ply",
    "read_trajectory": "io.cameras",
    "read_values": "io.depth.files",
    "write_depth": "io.depth.files",
    "write_ply": "io.clouds.ply",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'leadline.io' has no attribute {name!r}")
    value = getattr(import_module(f"leadline.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
