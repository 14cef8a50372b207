"""Dense depth for every image of a COLMAP model, from the points that the image sees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, is_measured
from leadline.base.errors import InputError, LeadlineError, param
from leadline.base.strict_json import dump_json
from leadline.batch.folder import IMAGE_SUFFIXES, LISTED
from leadline.batch.frame import FrameJob, complete_frame, ensure_compiled
from leadline.batch.outcome import Outcome, State, outcome_of, package_version, recorded_unit
from leadline.batch.posed_inputs import PosedFrame
from leadline.batch.views import ViewsProgress, complete_views
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.geometry.poses import invert_transform
from leadline.io.colmap import (
    ColmapImage,
    ColmapModel,
    Tracks,
    feature_deviation,
    position_covariances,
    track_noise,
)
from leadline.io.depth import read_depth, read_image_size, read_values, write_depth
from leadline.io.files import write_text
from leadline.io.frames import FrameFiles, Measurements
from leadline.io.notes import Note, NoteKind
from leadline.io.placement import scale_camera
from leadline.io.views.gsplat import write_gsplat
from leadline.io.views.maps import DepthMaps, stem_of
from leadline.io.views.nerfstudio import check_dn_splatter, check_nerfstudio, write_dn_splatter, write_nerfstudio
from leadline.io.views.splatting import check_3dgs, write_3dgs, write_lichtfeld
from leadline.views.rounds import Round

ExportFormat = Literal["3dgs", "nerfstudio", "dn-splatter", "gsplat", "lichtfeld"]
EXPORTS: tuple[ExportFormat, ...] = get_args(ExportFormat)
MAX_DEVIATION = 0.02
"""Largest median distance of features from the projections of their points, relative to the image's size. It is below
0.002 in models of COLMAP, and reaches 0.01 with a lens that is only roughly right. Inverted poses have a multiple."""


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
class SeenPoints:
    """The points that an image sees, in the camera's frame; called, they are measurements and their noise.

    A pixel with several points gets the nearest one, as a z-buffer would.
    """

    points: NDArray[np.float64]  # (N, 3) metres
    sigma: NDArray[np.float64]  # (N,): standard deviation of the depth in metres
    camera: Camera | ColmapCamera  # at the size of the picture
    notes: tuple[Note, ...] = ()

    def __call__(self) -> tuple[Measurements, FloatArray]:
        width, height = self.camera.width, self.camera.height
        with np.errstate(invalid="ignore"):
            columns, rows = np.floor(self.camera.project(self.points) + 0.5).T
            inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        order = np.flatnonzero(inside)
        order = order[np.argsort(-self.points[order, 2], kind="stable")]  # the nearest is written last
        where = rows[order].astype(int), columns[order].astype(int)
        depth, sigma = (np.full((height, width), np.nan, np.float32) for _ in range(2))
        depth[where], sigma[where] = self.points[order, 2], self.sigma[order]
        return Measurements(depth, notes=self.notes), sigma


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

    def read_maps(self, image: ColmapImage) -> DepthMaps:
        """The depth that was written for an image, and its standard deviation if there is one, in the model's unit."""
        paths = self.frames.outputs.paths(self.frames.folder, stem_of(image.name))
        scale = np.float32(self.limits.scale)
        depth = read_depth(paths["depth"], recorded_unit(paths["sidecar"])).values / scale
        sigma = read_values(paths["sigma"]) / scale if "sigma" in paths else None
        return DepthMaps(depth, sigma)

    def posed_frame(self, image: ColmapImage) -> PosedFrame:
        """An image with its points, camera and pose, all in metres."""
        self._check_name(image)
        self._check_pose(image)
        picture = self.images / image.name
        camera, notes = self._camera(image, picture)
        points = self._seen(image, camera, notes)
        self._check_count(image, points()[0].depth)
        pose = invert_transform(image.transform)
        pose[:3, 3] *= self.limits.scale
        return PosedFrame(self._files(image, picture), camera, pose, points, matched=True)

    def _complete(self, image: ColmapImage) -> Outcome:
        self._check_name(image)
        self._check_pose(image)
        stem, picture = stem_of(image.name), self.images / image.name
        measurements = self._measure(image, *self._camera(image, picture))
        self._check_count(image, measurements.depth)
        sparse = self.frames.folder / "sparse" / f"{stem}.npy"
        for path in (sparse, self.frames.folder / stem):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_depth(sparse, measurements.depth, "m")
        return complete_frame(self._files(image, picture), self.frames, measurements=measurements)

    def _files(self, image: ColmapImage, picture: Path) -> FrameFiles:
        from leadline.priors.without_network import find_prediction

        stem = stem_of(image.name)
        prior = None if self.priors is None else find_prediction(self.priors, stem)
        return FrameFiles(image=picture, prior=prior, stem=stem)

    def _camera(self, image: ColmapImage, picture: Path) -> tuple[Camera | ColmapCamera, tuple[Note, ...]]:
        """The camera of an image at the size of its picture, and a note if it was scaled."""
        size, lens = read_image_size(picture), self.model.camera_of(image)
        try:
            return scale_camera(lens, size)
        except InputError as error:
            raise InputError(
                f"the model's camera is for {lens.width}x{lens.height} pixels and the picture has {size[0]}x{size[1]}, "
                f"which is not the same picture resized; give {param('images')} that are neither cropped nor turned."
            ) from error

    def _measure(self, image: ColmapImage, camera: Camera | ColmapCamera, notes: tuple[Note, ...]) -> Measurements:
        """Depth of the points that the image sees, on its pixels, with the distortion of its lens."""
        from leadline.geometry.projection import z_buffer

        limits = self.limits
        points = self.tracks.seen_by(image, min_track=limits.min_track, max_error=limits.max_error)
        transform = image.transform
        transform[:3, 3] *= limits.scale
        depth = z_buffer(points * limits.scale, transform, camera)
        return Measurements(depth, notes=notes)

    def _seen(self, image: ColmapImage, camera: Camera | ColmapCamera, notes: tuple[Note, ...]) -> SeenPoints:
        limits, tracks = self.limits, self.tracks
        seen = tracks.indices_seen_by(image)
        usable = (tracks.lengths[seen] >= limits.min_track) & (tracks.errors[seen] <= limits.max_error)
        sigma = track_noise(self.model, tracks, image, self._covariances)[usable]
        points = tracks.points[seen[usable]] @ image.rotation.T + image.translation
        return SeenPoints(points * limits.scale, sigma * limits.scale, camera, notes)

    @cached_property
    def _covariances(self) -> NDArray[np.float64]:
        return position_covariances(self.model, self.tracks)

    @cached_property
    def _stems(self) -> Counter[str]:
        return Counter(map(stem_of, self.model.images))

    def _check_count(self, image: ColmapImage, depth: FloatArray) -> None:
        count, limits = int(is_measured(depth).sum()), self.limits
        if count < limits.min_points:
            seen = len(self.tracks.seen_by(image))
            raise InputError(
                f"has {count} usable points and {param('min_points')} is {limits.min_points}; it sees "
                f"{seen} with any {param('min_track')} and {param('max_error')} (now "
                f"{limits.min_track} and {limits.max_error:g})."
            )

    def _check_pose(self, image: ColmapImage) -> None:
        """Refuse a pose by which the points that the image observes are not where it observes them.

        The messages have no numbers, so that they are printed once if all poses are wrong.
        """
        seen = self.tracks.seen_by(image)
        if ((seen @ image.rotation.T + image.translation)[:, 2] <= 0).sum() > len(seen) / 2:
            raise InputError(
                "most of its points lie behind the camera: the poses of the model are mirrored, or inverted; COLMAP's "
                "are from world to camera."
            )
        if feature_deviation(self.model, self.tracks, image) > MAX_DEVIATION:
            raise InputError(
                "its points do not project to its features: the poses of the model are mirrored, or inverted (COLMAP's "
                "are from world to camera), or they belong to other points."
            )

    def _check_name(self, image: ColmapImage) -> None:
        """Refuse names that point outside the folder, or that two images share up to the suffix."""
        name = PurePosixPath(image.name)
        if name.is_absolute() or ".." in name.parts:
            raise InputError(f"the name {image.name!r} points outside {param('images')}; rename it in the model.")
        if self._stems[stem_of(image.name)] > 1:
            raise InputError(f"{image.name!r} is not the only image of that name up to the suffix; rename one.")


def complete_model(job: ModelJob, on_outcome: Callable[[Outcome], None]) -> None:
    """Complete every image of a model by itself, in the order of the names; ``colmap.json`` records the limits."""
    _write_limits(job)
    ensure_compiled(job.frames.completion)
    for name in sorted(job.model.images):
        on_outcome(job.complete(job.model.images[name]))


def complete_consistently(
    job: ModelJob,
    on_outcome: Callable[[Outcome], None],
    *,
    rounds: int | None = None,
    workers: int = 1,
    on_progress: Callable[[ViewsProgress], None] | None = None,
) -> list[Round]:
    """Complete all images of a model so that their depth agrees; see `leadline.batch.views.complete_views`.

    The noise of each point follows from its reprojection error and the angles of its track.
    """
    _write_limits(job)
    frames = []
    for name, image in sorted(job.model.images.items()):
        try:
            frames.append(job.posed_frame(image))
        except LeadlineError as error:
            on_outcome(Outcome(stem_of(name), State.FAILED, error.args[0]))
    if not frames:
        return []
    return complete_views(frames, job.frames, on_outcome, rounds=rounds, workers=workers, on_progress=on_progress)


def unregistered_pictures(job: ModelJob) -> Note | None:
    """A note about pictures of the folder that the model has no pose for; None if there are none."""
    names = {
        path.relative_to(job.images).as_posix()
        for path in job.images.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    }
    without = sorted(names - job.model.images.keys())
    if not without:
        return None
    more = f" and {len(without) - LISTED} more" if len(without) > LISTED else ""
    text = f"{len(without)} pictures have no pose in the model and are left out: {', '.join(without[:LISTED])}{more}."
    return Note(NoteKind.UNMATCHED, text)


def find_transforms(images: Path) -> Path | None:
    """The ``transforms.json`` of nerfstudio beside the folder of the images; None if there is none."""
    beside = images.resolve().parent / "transforms.json"
    return beside if beside.is_file() else None


def check_exports(model: ColmapModel, formats: Sequence[ExportFormat], transforms: Path | None) -> None:
    """Refuse cameras and names that an export cannot represent, before the images are completed."""
    if "3dgs" in formats:
        check_3dgs(model)
    if "nerfstudio" in formats and transforms is None:
        check_nerfstudio(model)
    if "dn-splatter" in formats:
        check_dn_splatter(model)


def export_model(
    job: ModelJob, images: Sequence[ColmapImage], file_format: ExportFormat, transforms: Path | None
) -> tuple[Path, tuple[str, ...]]:
    """Write the depth of completed images for a trainer; returns the folder and notes."""
    folder, chosen = job.frames.folder / file_format, list(images)
    match file_format:
        case "3dgs":
            return folder, write_3dgs(folder, job.model, chosen, job.read_maps)
        case "lichtfeld":
            return folder, write_lichtfeld(folder, chosen, job.read_maps)
        case "dn-splatter":
            return folder, write_dn_splatter(folder, job.model, chosen, job.read_maps)
        case "gsplat":
            return folder, write_gsplat(folder, job.model, chosen, job.read_maps, job.images)
        case "nerfstudio":
            return folder, write_nerfstudio(folder, job.model, chosen, job.read_maps, job.images, transforms)


def _write_limits(job: ModelJob) -> None:
    record = {"leadline": package_version(), **asdict(job.limits)}
    write_text(job.frames.folder / "colmap.json", dump_json(record))
