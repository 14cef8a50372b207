"""Dense depth for every image of a COLMAP model, from the points that the image sees."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import dump_json
from leadline.batch.frame import FrameJob, complete_frame, ensure_compiled
from leadline.batch.outcome import Outcome, outcome_of, package_version
from leadline.io.colmap import ColmapImage, ColmapModel, Tracks
from leadline.io.depth import read_depth, read_image, write_depth
from leadline.io.exports import check_cameras, stem_of, write_3dgs, write_nerfstudio
from leadline.io.files import write_text
from leadline.io.frames import FrameFiles, Measurements
from leadline.io.placement import scale_camera

ExportFormat = Literal["3dgs", "nerfstudio"]


@dataclass(frozen=True, kw_only=True)
class PointLimits:
    """Which points of a COLMAP model are used."""

    scale: float = 1.0  # metres per unit of the model
    min_track: int = 3  # number of images that must see a point
    max_error: float = 2.0  # largest mean reprojection error of a point, in pixels
    min_points: int = 10  # images with fewer usable points are not completed

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise InputError(f"{param('scale')} must be a positive number of metres per unit, got {self.scale}.")
        if not self.max_error > 0:
            raise InputError(f"{param('max_error')} must be a positive number of pixels, got {self.max_error}.")


@dataclass(frozen=True, eq=False)
class ModelJob:
    """The settings for completing each image of a COLMAP model."""

    model: ColmapModel
    tracks: Tracks
    images: Path  # folder of the images that the model names
    priors: Path | None  # folder with a prior for each image; None if they are predicted
    limits: PointLimits
    frames: FrameJob

    def complete(self, image: ColmapImage) -> Outcome:
        """Complete one image; errors become a failed outcome."""
        return outcome_of(stem_of(image.name), lambda: self._complete(image))

    def read_depth(self, image: ColmapImage) -> FloatArray:
        """The depth that was written for an image, in the unit of the model."""
        paths = self.frames.outputs.paths(self.frames.folder, stem_of(image.name))
        try:
            unit = json.loads(paths["sidecar"].read_text(encoding="utf-8"))["units"]["depth"]["unit"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(
                f"{paths['sidecar']}: is not a sidecar that leadline wrote; use {param('overwrite', True)}."
            ) from error
        return read_depth(paths["depth"], unit).values / np.float32(self.limits.scale)

    def _complete(self, image: ColmapImage) -> Outcome:
        from leadline.priors.without_network import find_prediction

        self._check_name(image)
        stem, picture = stem_of(image.name), self.images / image.name
        size = read_image(picture).shape[1::-1]
        measurements = self._measure(image, (size[0], size[1]))
        self._check_count(image, measurements.depth)
        sparse = self.frames.folder / "sparse" / f"{stem}.npy"
        for path in (sparse, self.frames.folder / stem):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_depth(sparse, measurements.depth, "m")
        prior = None if self.priors is None else find_prediction(self.priors, stem)
        return complete_frame(FrameFiles(image=picture, prior=prior, stem=stem), self.frames, measurements=measurements)

    def _measure(self, image: ColmapImage, size: tuple[int, int]) -> Measurements:
        """Depth of the points that the image sees, on its pixels, with the distortion of its lens."""
        from leadline.geometry.projection import z_buffer

        camera, notes = scale_camera(self.model.camera_of(image), size)
        limits = self.limits
        points = self.tracks.seen_by(image, min_track=limits.min_track, max_error=limits.max_error)
        transform = image.transform
        transform[:3, 3] *= limits.scale
        depth = z_buffer(points * limits.scale, transform, camera)
        return Measurements(depth, notes=notes)

    def _check_count(self, image: ColmapImage, depth: FloatArray) -> None:
        count, limits = int((depth > 0).sum()), self.limits
        if count < limits.min_points:
            raise InputError(
                f"has {count} usable points and {param('min_points')} is {limits.min_points}; it sees "
                f"{len(self.tracks.seen_by(image))} with any {param('min_track')} and {param('max_error')} (now "
                f"{limits.min_track} and {limits.max_error:g})."
            )

    def _check_name(self, image: ColmapImage) -> None:
        """Refuse names that point outside the folder, or that two images share up to the suffix."""
        name = PurePosixPath(image.name)
        if name.is_absolute() or ".." in name.parts:
            raise InputError(f"the name {image.name!r} points outside {param('images')}; rename it in the model.")
        if Counter(map(stem_of, self.model.images))[stem_of(image.name)] > 1:
            raise InputError(f"{image.name!r} is not the only image of that name up to the suffix; rename one.")


def complete_model(job: ModelJob, on_outcome: Callable[[Outcome], None]) -> None:
    """Complete every image of a model, in the order of the names; ``colmap.json`` records the limits."""
    record = {"leadline": package_version(), **asdict(job.limits)}
    write_text(job.frames.folder / "colmap.json", dump_json(record))
    ensure_compiled(job.frames.completion)
    for name in sorted(job.model.images):
        on_outcome(job.complete(job.model.images[name]))


def find_transforms(images: Path) -> Path | None:
    """The ``transforms.json`` of nerfstudio beside the folder of the images; None if there is none."""
    beside = images.resolve().parent / "transforms.json"
    return beside if beside.is_file() else None


def check_exports(model: ColmapModel, formats: Sequence[ExportFormat], transforms: Path | None) -> None:
    """Refuse cameras that an export cannot represent, before the images are completed."""
    for name in formats:
        if name == "3dgs" or transforms is None:
            check_cameras(model, name)


def export_model(
    job: ModelJob, images: Sequence[ColmapImage], file_format: ExportFormat, transforms: Path | None
) -> tuple[Path, tuple[str, ...]]:
    """Write the depth of completed images for a trainer; returns the folder and notes."""
    folder = job.frames.folder / file_format
    if file_format == "3dgs":
        return folder, write_3dgs(folder, job.model, list(images), job.read_depth)
    return folder, write_nerfstudio(folder, job.model, list(images), job.read_depth, job.images, transforms)
