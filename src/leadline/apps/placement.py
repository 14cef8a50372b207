"""Which cloud goes into which camera, and how it gets there: the inputs of `leadline project`, made ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.base.errors import InputError
from leadline.geometry.cameras import Camera

if TYPE_CHECKING:
    from leadline.geometry.cloud import Cloud
    from leadline.geometry.lenses import ColmapCamera
    from leadline.geometry.poses import Transform


@dataclass(frozen=True, eq=False)
class Placed:
    """What is to be projected, and into what."""

    cloud: Cloud
    camera: Camera | ColmapCamera
    transform: Transform
    notes: tuple[str, ...]
    visible: bool  # each point is known to be seen by the camera


def place(path: Path, image: Path | None, flags: Mapping[str, Any], size: tuple[int, int] | None = None) -> Placed:
    """The cloud, its camera and its extrinsics, from whichever files say them; `size` is the picture's."""
    import numpy as np

    from leadline.io.cameras import read_camera, read_extrinsics, read_kitti
    from leadline.io.clouds.files import read_cloud

    if path.is_dir() and flags["camera"] is None and flags["kitti"] is None:
        return _from_colmap(path, image, flags)
    if flags["colmap_image"]:
        raise InputError("--colmap-image is for a COLMAP model that has the camera; leave it out.")
    if flags["camera"] is None and flags["kitti"] is None:
        raise InputError("the camera is missing: give --camera cam.json, or --kitti with KITTI's calibration.")
    notes: tuple[str, ...] = ()
    if flags["kitti"] is not None:
        camera: Camera | ColmapCamera
        camera, transform = read_kitti(flags["kitti"], flags["kitti_camera"], size)
    else:
        camera, transform = read_camera(flags["camera"]), np.eye(4)
        if flags["extrinsics"] is not None:
            transform = read_extrinsics(flags["extrinsics"])
        else:
            notes = ("no --extrinsics: the cloud is taken to be in the camera's frame (x right, y down, z forward).",)
    if flags["depth_camera"] is not None:
        from leadline.geometry.tof import depth_cloud
        from leadline.io.depth.files import read_depth, read_values

        measured = read_depth(path, flags["depth_unit"], key=flags["key"])
        levels = None if flags["confidence"] is None else read_values(flags["confidence"])
        camera_of_it = read_camera(flags["depth_camera"])
        cloud = depth_cloud(measured.values, camera_of_it, ranges=flags["ranges"], confidence=levels)
        notes = (*notes, measured.note) if measured.guessed else notes
    else:
        cloud = read_cloud(path, key=flags["key"])
    return Placed(cloud, camera, transform, notes, visible=False)


def _from_colmap(folder: Path, image: Path | None, flags: Mapping[str, Any]) -> Placed:
    from leadline.io.colmap import read_model, read_points

    name = flags["colmap_image"] or (image.name if image is not None else None)
    if name is None:
        raise InputError(f"{folder}: say which image of the COLMAP model, with --image or --colmap-image.")
    if flags["extrinsics"] is not None:
        raise InputError("a COLMAP model has its own poses; leave out --extrinsics, or give a --camera as well.")
    model = read_model(folder)
    posed = model.find(name)
    cloud, plain = read_points(folder, posed), model.camera_of(posed).plain()
    note = "COLMAP's unit is that of its reconstruction, taken to be metres; --scale changes it."
    return Placed(cloud, plain, posed.transform, (note,) if flags["scale"] == 1.0 else (), visible=True)


def moved(placed: Placed, flags: Mapping[str, Any], *, doubted: bool = False) -> Placed:
    """The cloud without what is not trusted, or only that, in metres, and as of the time of the image."""
    from leadline.geometry.motion import azimuth_time, compensate, compensate_along
    from leadline.io.cameras import read_trajectory

    cloud, transform = placed.cloud, placed.transform
    if flags["min_confidence"] is not None:
        if cloud.confidence is None:
            raise InputError("--min-confidence: this cloud has no confidence; leave it out.")
        cloud = cloud.select((cloud.confidence >= flags["min_confidence"]) != doubted)
    if flags["scale"] != 1.0:
        cloud = replace(cloud, points=cloud.points * flags["scale"])
        if placed.visible:  # a reconstruction's poses have its unit, too
            transform = transform.copy()
            transform[:3, 3] *= flags["scale"]
    if flags["velocity"] or flags["turn_rate"] or flags["trajectory"]:
        time = cloud.time
        if flags["period"]:
            time = azimuth_time(cloud.points, flags["period"], clockwise=not flags["counter_clockwise"])
        elif time is None:
            raise InputError("this cloud has no times of its points; give the --period of one turn of the sensor.")
        at = flags["at"] or 0.0
        if flags["trajectory"]:
            points = compensate_along(cloud.points, time, read_trajectory(flags["trajectory"]), at)
        else:
            rest = (0.0, 0.0, 0.0)
            velocity, turn_rate = flags["velocity"] or rest, flags["turn_rate"] or rest
            points = compensate(cloud.points, time - at, velocity=velocity, turn_rate=turn_rate)
        cloud = replace(cloud, points=points)
    return replace(placed, cloud=cloud, transform=transform)


def fitted(
    camera: Camera | ColmapCamera, size: tuple[int, int] | None
) -> tuple[Camera | ColmapCamera, tuple[str, ...]]:
    """The camera at the picture's size, if that is only another resolution of it."""
    if size is None or size == (camera.width, camera.height):
        return camera, ()
    across, down = size[0] / camera.width, size[1] / camera.height
    if abs(across - down) * max(camera.width, camera.height) > 1:  # more than the rounding of a side
        raise InputError(
            f"the camera is for {camera.width}x{camera.height} pixels and the image has {size[0]}x{size[1]}, which is "
            "not the same picture resized; give the camera of that crop, or --rotate."
        )
    note = f"the camera was scaled from {camera.width}x{camera.height} to the image's {size[0]}x{size[1]}."
    return camera.scaled(*size), (note,)
