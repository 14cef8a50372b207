"""Projection of a point cloud into the camera of an image, with counts of the points dropped at each step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.errors import InputError, param
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.grids import rotate90
from leadline.io.files import file_hash
from leadline.io.notes import Note, NoteKind
from leadline.io.placement import (
    CloudFiles,
    PlacedCloud,
    ProjectionOptions,
    move_cloud,
    read_placed_cloud,
    scale_camera,
)
from leadline.io.units import as_unit

if TYPE_CHECKING:
    from leadline.geometry.projection import Projection

_MAX_SIDECAR_BYTES = 1 << 20


@dataclass(frozen=True)
class ProjectionFacts:
    """What the sidecar of a projected cloud states about the depth map beside it."""

    unit: str
    camera: Camera | ColmapCamera | None  # of the image; None if the map was turned after the projection
    note: Note


@dataclass(frozen=True)
class PointCounts:
    """How many points were dropped at each step. `seen_through` and `pixels` count pixels."""

    read: int
    low_confidence: int
    out_of_range: int
    outside: int
    hidden_in_pixel: int
    seen_through: int
    pixels: int


@dataclass(frozen=True, eq=False)
class CloudProjection:
    """A point cloud as sparse depth on the grid of an image.

    Parameters
    ----------
    depth : (H, W) float32 array
        Metres along the optical axis, NaN where no point is.
    camera : Camera or ColmapCamera
        At the size of the image, before `ProjectionOptions.rotate`.
    options : ProjectionOptions
    placed : PlacedCloud
        The points that were projected.
    doubtful : PlacedCloud or None
        The points of low confidence, which were not projected.
    projection : Projection
        With the maps of the dropped points, before `ProjectionOptions.rotate`.
    counts : PointCounts
    notes : tuple of Note
    """

    depth: NDArray[np.float32]
    camera: Camera | ColmapCamera
    options: ProjectionOptions
    placed: PlacedCloud
    doubtful: PlacedCloud | None
    projection: Projection
    counts: PointCounts
    notes: tuple[Note, ...]

    def __str__(self) -> str:
        near, far = float(np.nanmin(self.depth)), float(np.nanmax(self.depth))
        reasons = {
            "low_confidence": "of low confidence",
            "out_of_range": "out of range",
            "outside": "outside the image",
            "hidden_in_pixel": "behind another point in the same pixel",
            "seen_through": "as see-through",
        }
        counts = asdict(self.counts)
        removed = ", ".join(f"{counts[name]} {reason}" for name, reason in reasons.items() if counts[name])
        return (
            f"{self.counts.pixels} of {self.depth.size} pixels have a depth, {near:.2f} to {far:.2f} m. "
            f"Points removed: {removed or 'none'}, of {self.counts.read}."
        )

    def record(self) -> dict[str, Any]:
        """Camera, transform and counts, ready for JSON."""
        from leadline.io.cameras import camera_record

        turns, camera = self.options.quarter_turns, self.camera
        if isinstance(camera, Camera):
            turns, camera = 0, camera.rotated(turns)
        return {
            "camera": camera_record(camera),
            "turned_after_projection": turns,
            "cloud_to_camera": self.placed.transform.tolist(),
            "see_through_radius": self.projection.see_through_radius,
            "points": asdict(self.counts),
        }

    def dropped(self) -> dict[str, NDArray[np.float32]]:
        """Depth maps of the dropped points on the grid of the image; each key is the reason and the number.

        The map of the points outside the image is larger than the image by the same margin on all sides.
        """
        from leadline.geometry.projection import project, project_around_image

        counts = self.counts
        margin = max(self.depth.shape) // 16
        around = project_around_image(self.placed.cloud.points, self.placed.transform, self.camera, margin=margin)
        maps = {
            f"seen through, {counts.seen_through}": self.projection.removed,
            f"out of range, {counts.out_of_range}": self.projection.out_of_range,
            f"outside the image, {counts.outside} in all": around,
        }
        if self.doubtful is not None:
            points, transform = self.doubtful.cloud.points, self.doubtful.transform
            shown = project(points, transform, self.camera, see_through_radius=0).depth
            maps[f"below the confidence, {counts.low_confidence}"] = shown
        return {words: rotate90(values, self.options.quarter_turns) for words, values in maps.items()}


def projection_sidecar(path: Path) -> Path:
    """The sidecar of a depth map that `leadline project` wrote; it need not exist."""
    return path.parent / f"{path.stem}.json"  # `with_suffix` refuses "."


def read_projection_facts(path: Path) -> ProjectionFacts | None:
    """The sidecar of a projected cloud; None if there is none, or if it describes another file."""
    from leadline.io.cameras import parse_camera

    sidecar = projection_sidecar(path)
    if not sidecar.is_file() or sidecar.stat().st_size > _MAX_SIDECAR_BYTES:
        return None
    try:
        facts = json.loads(sidecar.read_text(encoding="utf-8"))
        unit, stated = facts["unit"], facts["depth_sha256"]
        near, far = map(float, facts["range"])
        camera = None if facts["turned_after_projection"] else parse_camera(sidecar, facts["camera"])
        if stated != file_hash(path):
            return None
        as_unit(unit)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # a JSON file of something else
        return None
    text = f"the unit is {unit}, as {sidecar.name} says: {near:.2f} to {far:.2f} m."
    return ProjectionFacts(unit, camera, Note(NoteKind.UNIT_FROM_SIDECAR, text))


def project_cloud(
    files: CloudFiles,
    options: ProjectionOptions | None = None,
    *,
    image: Path | None = None,
    size: tuple[int, int] | None = None,
) -> CloudProjection:
    """Read a point cloud and project it into the camera of an image.

    Parameters
    ----------
    files : CloudFiles
    options : ProjectionOptions, optional
    image : Path, optional
        File of the image. Its name selects the image of a COLMAP model.
    size : (int, int), optional
        Width and height of the image in pixels. Default: the camera's.

    Returns
    -------
    CloudProjection

    Raises
    ------
    FileError
        A file cannot be read.
    InputError
        The files and options do not fit together, or no point falls into the image.
    """
    options = options or ProjectionOptions()
    turns = options.quarter_turns
    if size is not None and turns % 2:
        size = (size[1], size[0])
    read = read_placed_cloud(files, options, image=image, size=size)
    placed = move_cloud(read, files, options)
    camera, notes = scale_camera(placed.camera, size)
    projection = _project(files, placed, camera, options)
    depth = rotate90(projection.depth, turns)
    pixels = int((depth > 0).sum())
    counts = PointCounts(
        read=len(read.cloud),
        low_confidence=len(read.cloud) - len(placed.cloud),
        out_of_range=len(placed.cloud) - projection.in_range,
        outside=projection.in_range - projection.in_image,
        hidden_in_pixel=projection.in_image - projection.covered,
        seen_through=projection.covered - pixels,
        pixels=pixels,
    )
    doubtful = move_cloud(read, files, options, doubtful=True) if counts.low_confidence else None
    return CloudProjection(depth, camera, options, placed, doubtful, projection, counts, (*placed.notes, *notes))


def _project(
    files: CloudFiles, placed: PlacedCloud, camera: Camera | ColmapCamera, options: ProjectionOptions
) -> Projection:
    from leadline.geometry.poses import invert_transform
    from leadline.geometry.projection import project

    removes = not placed.all_visible if options.see_through is None else options.see_through
    chosen: dict[str, Any] = {
        "min_range": options.min_range,
        "max_range": options.max_range,
        "see_through_radius": options.see_through_radius if removes else 0,
        "see_through_ratio": options.see_through_ratio,
    }
    points = placed.cloud.points
    found = project(points, placed.transform, camera, **chosen)
    if found.covered:
        return found
    inverted = project(points, invert_transform(placed.transform), camera, **chosen).covered
    hint = f"check the extrinsics, the camera and {param('scale')}"
    if files.extrinsics is None and files.kitti is None and not placed.all_visible:
        hint = f"give the {param('extrinsics')}: the axes of a LiDAR are not those of a camera"
    if inverted:
        hint = f'with the inverse of the extrinsics {inverted} pixels would have one: try {{"inverse": ...}}'
    elif not found.in_range:
        hint = f"no point lies within {param('min_range')}, {param('max_range')} and {param('min_confidence')}"
    if not len(points):
        raise InputError(f"{files.cloud}: has no point, or none that was measured.")
    raise InputError(f"{files.cloud}: none of its {len(points)} points falls into the image; {hint}.")
