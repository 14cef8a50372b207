"""Point clouds and depth maps of other sensors: their files, and the transform to the frame of the image's camera."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from leadline.base.errors import InputError, param
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.cloud import Cloud, cloud_from_depth
from leadline.io.depth import read_depth, read_values
from leadline.io.notes import Note, NoteKind, rename_parameter

if TYPE_CHECKING:
    from leadline.geometry.poses import Transform

Rotation = Literal[0, 90, 180, 270]
# Degrees clockwise as quarter turns counter-clockwise, which is how NumPy counts them.
_LARGEST_SCALE = 1e6  # metres per unit of a cloud; larger ones would overflow
_QUARTER_TURNS = {0: 0, 90: -1, 180: 2, 270: 1}


@dataclass(frozen=True, kw_only=True)
class CloudFiles:
    """The files that determine where the points of a cloud lie in an image.

    Parameters
    ----------
    cloud : Path
        PLY, PCD, LAS, LAZ, KITTI's ``.bin``, ``.npy``, ``.npz``, the folder of a COLMAP model, or, together with
        `depth_camera`, a depth map.
    camera, extrinsics : Path, optional
        JSON files, see `leadline.io.read_camera` and `leadline.io.read_extrinsics`. Without extrinsics the cloud is
        taken to be in the frame of the camera.
    kitti : Path, optional
        KITTI's calibration, in place of `camera` and `extrinsics`.
    depth_camera : Path, optional
        JSON file of the camera that took the depth map `cloud`.
    confidence : Path, optional
        Confidence of each pixel of such a depth map.
    trajectory : Path, optional
        Poses of a moving sensor, ``time x y z qx qy qz qw`` on each line.
    """

    cloud: Path
    camera: Path | None = None
    extrinsics: Path | None = None
    kitti: Path | None = None
    depth_camera: Path | None = None
    confidence: Path | None = None
    trajectory: Path | None = None

    def __post_init__(self) -> None:
        if self.kitti is not None and (self.camera or self.extrinsics):
            raise InputError(
                f"{param('kitti')} contains the camera and the extrinsics; leave out {param('camera')} and "
                f"{param('extrinsics')}."
            )


@dataclass(frozen=True, kw_only=True)
class ProjectionOptions:
    """How a point cloud is read, moved and projected.

    Parameters
    ----------
    key : str, optional
        Name of the array in an ``.npz`` file.
    kitti_camera : int
        Number of the camera in KITTI's calibration.
    colmap_image : str, optional
        Image of a COLMAP model. Default: the one with the name of the image file.
    depth_unit : str, optional
        Unit of a depth map that is used as the cloud. Default: guessed, with a note.
    ranges : bool
        Whether such a map holds distances along its rays, not depth.
    scale : float
        Metres per unit of the cloud.
    min_confidence : float, optional
        Points of lower confidence are left out.
    min_range, max_range : float
        Points outside these distances from the camera, in metres, are left out.
    see_through : bool, optional
        Remove points that show through nearer surfaces. Default: yes, except for a COLMAP model, whose points are all
        visible.
    see_through_radius : int, optional
        Radius in pixels of the window that is searched for nearer points. Default: from the density of the points.
    see_through_ratio : float
        A point hides another one if it is nearer by more than this factor.
    rotate : {0, 90, 180, 270}
        Degrees clockwise by which the image is turned from the grid of the camera.
    velocity, turn_rate : (float, float, float), optional
        Motion of the sensor along and about its own axes, in m/s and rad/s.
    at : float, optional
        Time of the image on the clock of the points. Default: 0.
    period : float, optional
        Seconds of one turn of the sensor. The times of the points then follow from their azimuth.
    counter_clockwise : bool
        Direction in which the sensor turns, seen from above.
    """

    key: str | None = None
    kitti_camera: int = 2
    colmap_image: str | None = None
    depth_unit: str | None = None
    ranges: bool = False
    scale: float = 1.0
    min_confidence: float | None = None
    min_range: float = 0.0
    max_range: float = math.inf
    see_through: bool | None = None
    see_through_radius: int | None = None
    see_through_ratio: float = 1.1
    rotate: Rotation = 0
    velocity: tuple[float, ...] | None = None
    turn_rate: tuple[float, ...] | None = None
    at: float | None = None
    period: float | None = None
    counter_clockwise: bool = False

    def __post_init__(self) -> None:
        if self.see_through is False and self.see_through_radius:
            raise InputError(
                f"{param('see_through_radius')} needs {param('see_through', True)}; leave one of them out."
            )
        if self.rotate not in _QUARTER_TURNS:
            raise InputError(f"{param('rotate')} must be 0, 90, 180 or 270 degrees, got {self.rotate!r} instead.")
        if self.counter_clockwise and not self.period:
            raise InputError(f"{param('counter_clockwise')} is the direction of {param('period')}; add the period.")
        for name in ("velocity", "turn_rate"):
            vector = getattr(self, name)
            if vector is not None and len(vector) != 3:
                raise InputError(f"{param(name)} must be three numbers x, y, z, got {len(vector)} instead.")
        if not 0 < self.scale <= _LARGEST_SCALE:
            raise InputError(
                f"{param('scale')} must be a positive number of metres per unit, at most {_LARGEST_SCALE:g}, got "
                f"{self.scale}."
            )

    @property
    def quarter_turns(self) -> int:
        """Counter-clockwise quarter turns from the grid of the camera to the image, as for `numpy.rot90`."""
        return _QUARTER_TURNS[self.rotate]


@dataclass(frozen=True, eq=False)
class PlacedCloud:
    """A cloud with the camera that it is projected into, and the transform from its frame to the camera's."""

    cloud: Cloud
    camera: Camera | ColmapCamera
    transform: Transform
    notes: tuple[Note, ...]
    all_visible: bool  # every point is known to be seen by the camera, as in a COLMAP model


def read_placed_cloud(
    files: CloudFiles, options: ProjectionOptions, *, image: Path | None = None, size: tuple[int, int] | None = None
) -> PlacedCloud:
    """Read the cloud, its camera and its extrinsics; see `leadline.io.project_cloud`."""
    from leadline.io.cameras import read_camera, read_extrinsics, read_kitti
    from leadline.io.clouds import read_cloud

    _check_consistent(files, options)
    if files.cloud.is_dir() and files.camera is None and files.kitti is None:
        return _read_colmap(files, options, image)
    if options.colmap_image:
        raise InputError(f"{param('colmap_image')} is for a COLMAP model, which contains the camera; leave it out.")
    if files.camera is None and files.kitti is None:
        raise InputError(
            f"a point cloud needs the camera of the image: give {param('camera', 'cam.json')}, or {param('kitti')} "
            "with KITTI's calibration."
        )
    notes: tuple[Note, ...] = ()
    camera: Camera | ColmapCamera
    if files.kitti is not None:
        camera, transform = read_kitti(files.kitti, options.kitti_camera, size)
    else:
        camera, transform = read_camera(files.camera), np.eye(4)  # type: ignore[arg-type]
        if files.extrinsics is not None:
            transform = read_extrinsics(files.extrinsics)
        else:
            text = (
                f"without {param('extrinsics')} the cloud is taken to be in the frame of the camera (x right, y down, "
                "z forward)."
            )
            notes = (Note(NoteKind.NO_EXTRINSICS, text),)
    if files.depth_camera is None:
        return PlacedCloud(read_cloud(files.cloud, key=options.key), camera, transform, notes, all_visible=False)
    measured = read_depth(files.cloud, options.depth_unit, key=options.key)
    confidence = None if files.confidence is None else read_values(files.confidence)
    depth_camera = read_camera(files.depth_camera)
    cloud = cloud_from_depth(measured.values, depth_camera, ranges=options.ranges, confidence=confidence)
    if measured.note is not None:
        notes = (*notes, Note(NoteKind.UNIT_GUESSED, rename_parameter(measured.note.text, "unit", "depth_unit")))
    return PlacedCloud(cloud, camera, transform, notes, all_visible=False)


def move_cloud(
    placed: PlacedCloud, files: CloudFiles, options: ProjectionOptions, *, doubtful: bool = False
) -> PlacedCloud:
    """The cloud in metres, at the time of the image, without points of low confidence, or with only these."""
    from leadline.geometry.poses import compensate_along_trajectory, compensate_motion, time_from_azimuth
    from leadline.io.cameras import read_trajectory

    cloud, transform = placed.cloud, placed.transform
    if options.min_confidence is not None:
        if cloud.confidence is None:
            raise InputError(f"{param('min_confidence')}: the points of this cloud have no confidence; leave it out.")
        cloud = cloud.select((cloud.confidence >= options.min_confidence) != doubtful)
    if options.scale != 1.0:
        cloud = replace(cloud, points=cloud.points * options.scale)
        if placed.all_visible:  # the poses of a reconstruction have its unit, too
            transform = transform.copy()
            transform[:3, 3] *= options.scale
    if options.velocity or options.turn_rate or files.trajectory:
        time, at, still = cloud.time, options.at or 0.0, (0.0, 0.0, 0.0)
        if options.period:
            time = time_from_azimuth(cloud.points, options.period, clockwise=not options.counter_clockwise)
        elif time is None:
            raise InputError(f"the points of this cloud have no times; give the {param('period')} of the sensor.")
        if files.trajectory:
            points = compensate_along_trajectory(cloud.points, time, read_trajectory(files.trajectory), at)
        else:
            twist = {"velocity": options.velocity or still, "turn_rate": options.turn_rate or still}
            points = compensate_motion(cloud.points, time - at, **twist)  # type: ignore[arg-type]
        cloud = replace(cloud, points=points)
    return replace(placed, cloud=cloud, transform=transform)


def scale_camera(
    camera: Camera | ColmapCamera, size: tuple[int, int] | None
) -> tuple[Camera | ColmapCamera, tuple[Note, ...]]:
    """The camera for an image of `size` (width, height), and a note if it had to be scaled.

    Raises `InputError` if the image is not the image of the camera at another resolution.
    """
    if size is None or size == (camera.width, camera.height):
        return camera, ()
    across, down = size[0] / camera.width, size[1] / camera.height
    if abs(across - down) * max(camera.width, camera.height) > 1:  # more than the rounding of a side
        raise InputError(
            f"{param('camera')} is for {camera.width}x{camera.height} pixels and the image has {size[0]}x{size[1]}, "
            f"which is not the same picture resized; give the camera of that crop, or use {param('rotate')} if the "
            "image is turned."
        )
    text = f"the camera was scaled from {camera.width}x{camera.height} to the size of the image, {size[0]}x{size[1]}."
    return camera.scaled(*size), (Note(NoteKind.CAMERA_SCALED, text),)


def _check_consistent(files: CloudFiles, options: ProjectionOptions) -> None:
    """Refuse options that would be ignored."""
    if files.depth_camera is None and (options.ranges or options.depth_unit or files.confidence):
        raise InputError(
            f"{param('ranges')}, {param('depth_unit')} and {param('confidence')} are for a depth map; add its "
            f"{param('depth_camera')}, or leave them out."
        )
    if files.confidence is not None and options.min_confidence is None:
        raise InputError(f"{param('confidence')} has no effect without {param('min_confidence')}; add it.")
    moving = options.velocity or options.turn_rate
    if moving and files.trajectory:
        raise InputError(
            f"{param('trajectory')} says how the sensor moves; leave out {param('velocity')} and {param('turn_rate')}."
        )
    if not (moving or files.trajectory) and (options.period or options.at is not None):
        raise InputError(
            f"{param('period')} and {param('at')} are for a moving sensor; add {param('velocity')} or "
            f"{param('trajectory')}, or leave them out."
        )


def _read_colmap(files: CloudFiles, options: ProjectionOptions, image: Path | None) -> PlacedCloud:
    from leadline.io.colmap import read_model, read_points

    name = options.colmap_image or (image.name if image is not None else None)
    if name is None:
        raise InputError(
            f"{files.cloud}: is a COLMAP model; say which of its images is meant with {param('image')} or "
            f"{param('colmap_image')}."
        )
    if files.extrinsics is not None:
        raise InputError(
            f"a COLMAP model has its own poses; leave out {param('extrinsics')}, or add a {param('camera')}."
        )
    model = read_model(files.cloud)
    posed = model.find(name)
    notes: tuple[Note, ...] = ()
    if options.scale == 1.0:
        text = f"the unit of the COLMAP model is taken to be metres; {param('scale')} changes it."
        notes = (Note(NoteKind.SCALE_UNKNOWN, text),)
    camera = model.camera_of(posed)
    cloud = read_points(files.cloud, posed)
    return PlacedCloud(cloud, camera.pinhole() or camera, posed.transform, notes, all_visible=True)
