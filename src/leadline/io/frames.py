"""The files of one frame, read into the arrays that `leadline.complete` takes.

A frame is an image, its measurements (a sparse depth map or a point cloud) and its prior (a file or a network's
prediction). `read_frame` brings them to the pixels of the image, raises an error for inconsistent input, and adds a
note about each assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import BoolArray, FloatArray, is_measured
from leadline.base.errors import InputError, param
from leadline.core.prior import Prior, PriorKindOrAuto
from leadline.geometry.cameras import Camera, CameraModel, ColmapCamera
from leadline.geometry.grids import scatter_nearest
from leadline.io.cloud_projection import (
    CloudProjection,
    project_cloud,
    projection_sidecar,
    read_projection_facts,
)
from leadline.io.depth import read_depth, read_image, read_orientation
from leadline.io.frame_checks import (
    check_content,
    check_plausible,
    check_sizes,
    read_mask,
    resize_prior,
    size_text,
    without_doubtful,
)
from leadline.io.notes import Note, NoteKind
from leadline.io.placement import CloudFiles, ProjectionOptions, scale_camera
from leadline.io.priors import SourcedPrior, read_prior, sidecar_path
from leadline.io.units import as_unit

if TYPE_CHECKING:
    from leadline.core.noise import Noise

__all__ = ["FrameFiles", "FrameInputs", "FrameOptions", "Measurements", "Note", "NoteKind", "read_frame"]

Predict = Callable[[NDArray[np.uint8], str], SourcedPrior]
"""From an (H, W, 3) image and the name of its frame to the prior, e.g. `Predictor.predict`."""

# The highest of ARKit's three levels, which excludes most of the wrong measurements at edges and on shiny surfaces.
MIN_CONFIDENCE = 2.0


@dataclass(frozen=True, kw_only=True)
class FrameFiles:
    """The files of one frame.

    Parameters
    ----------
    image : Path
    sparse : Path, optional
        Measured depth, of the size of the image unless `FrameOptions.scatter_sparse` is set.
    points : Path, optional
        A point cloud, in place of `sparse`. It needs `camera` or `kitti`.
    prior : Path, optional
        Dense relative depth. Not needed if it is predicted.
    valid : Path, optional
        Mask of the size of the image, > 0 where prior and measurements may be used.
    confidence : Path, optional
        Confidence of each pixel of `sparse`.
    camera : Path, optional
        JSON file, see `leadline.io.read_camera`. For `points`, and for point clouds of the result.
    extrinsics, kitti : Path, optional
        For `points`, see `leadline.io.CloudFiles`.
    stem : str
        Name of the frame; the names of its results begin with it. Default: the name of the image without its suffix.
    """

    image: Path
    sparse: Path | None = None
    points: Path | None = None
    prior: Path | None = None
    valid: Path | None = None
    confidence: Path | None = None
    camera: Path | None = None
    extrinsics: Path | None = None
    kitti: Path | None = None
    stem: str = ""

    def __post_init__(self) -> None:
        if not self.stem:
            object.__setattr__(self, "stem", self.image.stem)
        if self.sparse is not None and self.points is not None:
            raise InputError(f"{param('sparse')} and {param('points')} are both measurements; give one of them.")
        if self.points is None:
            for name in ("extrinsics", "kitti"):
                if getattr(self, name) is not None:
                    raise InputError(f"{param(name)} is for {param('points')}; leave it out.")
        elif self.points.is_dir():
            raise InputError(
                f"{param('points')} {self.points}: is a folder; give the file of one cloud. COLMAP models have a "
                "command of their own, leadline colmap."
            )

    def paths(self) -> dict[str, Path]:
        """All files that are read, by what they are, with the sidecar of the prior if there is one."""
        names = ("image", "sparse", "points", "prior", "valid", "confidence", "camera", "extrinsics", "kitti")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.prior is not None and sidecar_path(self.prior).exists():
            found["prior_sidecar"] = sidecar_path(self.prior)
        if self.sparse is not None and projection_sidecar(self.sparse).is_file():
            found["sparse_sidecar"] = projection_sidecar(self.sparse)
        return found


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """How the files of a frame are read.

    Parameters
    ----------
    unit : str, optional
        Unit of the sparse map, see `leadline.io.UNITS`, or metres per count. Default: guessed, with a note.
    prior_kind : {"depth", "disparity", "log_depth", "auto"}, optional
        What the numbers of the prior are; see `leadline.Prior` for "auto". Default: as stated in its sidecar; depth
        without a sidecar.
    prior_floor : float, optional
        See `leadline.Prior.floor`; for disparity only.
    resize_prior : bool
        Whether a prior of another size is interpolated to the size of the image. Otherwise it is refused.
    scatter_sparse : bool
        Whether the measurements of a map of another size are moved to the nearest pixels of the image. Where several
        fall into one pixel, the nearest one is kept. Otherwise such a map is refused.
    min_confidence : float
        Measurements of lower confidence are left out, if there is a file of confidences.
    noise : Noise, optional
        Standard deviation of the measurements. Default: they are exact.
    intrinsics : (fx, fy, cx, cy), optional
        A pinhole camera in pixels, in place of the file `FrameFiles.camera`.
    projection : ProjectionOptions
        How a point cloud is projected.
    """

    unit: str | None = None
    prior_kind: PriorKindOrAuto | None = None
    prior_floor: float | None = None
    resize_prior: bool = False
    scatter_sparse: bool = False
    min_confidence: float = MIN_CONFIDENCE
    noise: Noise | None = None
    intrinsics: tuple[float, ...] | None = None
    projection: ProjectionOptions = field(default_factory=ProjectionOptions)

    def __post_init__(self) -> None:
        if self.unit is not None:
            as_unit(self.unit)
        if self.intrinsics is not None and len(self.intrinsics) != 4:
            raise InputError(
                f"{param('intrinsics')} must be the four numbers fx, fy, cx, cy, got {len(self.intrinsics)} instead."
            )


@dataclass(frozen=True, eq=False)
class Measurements:
    """Sparse metric depth, and where it comes from.

    Parameters
    ----------
    depth : (h, w) float array
        Metres, NaN where nothing was measured.
    unit : str
        Unit of the file that it was read from, ``"m"`` for a point cloud.
    unit_guessed : bool
    camera, cloud : optional
        Camera of the image and the projection, if the measurements are a point cloud. The camera, also if they are a
        map that was projected from one.
    notes : tuple of Note
    record : dict
        Further entries of the sidecar, ready for JSON.
    """

    depth: FloatArray
    unit: str = "m"
    unit_guessed: bool = False
    camera: Camera | ColmapCamera | None = None
    cloud: CloudProjection | None = None
    notes: tuple[Note, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FrameInputs:
    """A frame as arrays of one size, ready for `leadline.complete`.

    Parameters
    ----------
    image : (H, W, 3) uint8 array
    sparse : (H, W) float array
        Metres, NaN where nothing was measured.
    prior : Prior
    valid : (H, W) bool array or None
    noise : Noise or None
    camera : CameraModel or None
        At the size of the image.
    camera_source : {"user", "prior"} or None
        Whether the camera was given or is the one that the network predicted.
    measurements : Measurements
        As they were read, at their own size.
    notes : tuple of Note
    record : dict
        Sizes, units, prior and camera, ready for JSON.
    """

    image: NDArray[np.uint8]
    sparse: FloatArray
    prior: Prior
    valid: BoolArray | None
    noise: Noise | None
    camera: CameraModel | None
    camera_source: Literal["user", "prior"] | None
    measurements: Measurements
    notes: tuple[Note, ...]
    record: dict[str, Any]

    @property
    def unit(self) -> str:
        """Unit of the file of the measurements."""
        return self.measurements.unit


def read_frame(
    files: FrameFiles,
    options: FrameOptions | None = None,
    predict: Predict | None = None,
    *,
    measurements: Measurements | None = None,
    image: NDArray[np.uint8] | None = None,
) -> FrameInputs:
    """Read a frame and bring its maps to the pixels of the image.

    Parameters
    ----------
    files : FrameFiles
    options : FrameOptions, optional
    predict : callable, optional
        Predicts the prior from the image if ``files.prior`` is None.
    measurements : Measurements, optional
        In place of the files of measurements.
    image : (H, W, 3) uint8 array, optional
        In place of the file of the image, e.g. of a data set that keeps its images in another way.

    Returns
    -------
    FrameInputs

    Raises
    ------
    FileError
        A file cannot be read.
    InputError
        The sizes differ, a map has no usable pixel, or the options do not fit the files.

    Examples
    --------
    >>> files = FrameFiles(image=Path("photo.jpg"), sparse=Path("lidar.png"), prior=Path("prior.npy"))
    >>> frame = read_frame(files, FrameOptions(unit="mm"))  # doctest: +SKIP
    >>> leadline.complete(frame.prior, frame.sparse, valid=frame.valid)  # doctest: +SKIP
    """
    from leadline.io.cameras import camera_record

    options = options or FrameOptions()
    turned = "" if image is not None else read_orientation(files.image)
    image = read_image(files.image) if image is None else image
    shape = (image.shape[0], image.shape[1])
    measured = read_measurements(files, options, image) if measurements is None else measurements
    camera, camera_notes = _read_camera(files, options, measured, shape)
    if files.prior is not None:
        sourced = read_prior(files.prior, kind=options.prior_kind, floor=options.prior_floor)
    elif predict is not None:
        sourced = predict(image, files.stem)
    else:
        raise InputError(f"the {param('prior')} is missing: give its file, or a network that predicts it.")
    prior, sparse = sourced.prior, measured.depth
    sizes: dict[str, tuple[int, ...]] = {"image": shape, "sparse": sparse.shape, "prior": prior.shape}
    check_content(files.paths(), sparse, prior)
    check_sizes(sizes, resized=options.resize_prior, scattered=options.scatter_sparse, exif=turned)
    prior = resize_prior(prior, shape)
    lost = 0
    notes = [*measured.notes, *camera_notes, *sourced.notes]
    if sparse.shape != shape:
        sparse, lost = scatter_nearest(sparse, shape)
        text = "the sparse map has another size than the image: its measurements were moved, not interpolated."
        shared = " Where several fell into one pixel, the nearest was kept." if lost else ""
        notes.append(Note(NoteKind.RESIZED, text + shared))
    if prior.kind == "auto":
        prior = prior.resolved(sparse, is_measured(sparse))
        rises = "rises" if prior.kind == "depth" else "falls"
        text = f"the prior was taken as {prior.kind}, because it {rises} where the measured depth rises."
        notes.append(Note(NoteKind.PRIOR, text))
    notes += check_plausible(sizes, sparse, measured.unit)
    if turned:
        notes.append(Note(NoteKind.TURNED, f"{turned} The depth is that of the stored pixels, which are not turned."))
    source: Literal["user", "prior"] | None = "user" if camera is not None else None
    if camera is None and prior.camera is not None:
        camera, source = prior.camera, "prior"
    record: dict[str, Any] = {
        "sizes": {name: size_text(size) for name, size in sizes.items()},
        "units": {"sparse": {"unit": measured.unit, "guessed": measured.unit_guessed}},
        "measurements_lost_in_shared_pixels": lost,
        **measured.record,
        "prior": {"quantity": prior.kind, "floor": prior.floor, **sourced.record},
    }
    if camera is not None:
        record["camera"] = {**camera_record(camera), "source": source}
    valid = None if files.valid is None else read_mask(files.valid, shape)
    return FrameInputs(image, sparse, prior, valid, options.noise, camera, source, measured, tuple(notes), record)


def read_measurements(files: FrameFiles, options: FrameOptions, image: NDArray[np.uint8]) -> Measurements:
    """The measurements of a frame: a depth map, or a cloud projected to the pixels of the image."""
    if files.points is not None:
        return _project_points(files, files.points, options, image)
    if files.sparse is None:
        raise InputError(
            f"the measurements are missing: give {param('sparse')}, a depth map, or {param('points')}, a point cloud."
        )
    facts = read_projection_facts(files.sparse)
    measured = read_depth(files.sparse, facts.unit if facts and options.unit is None else options.unit)
    notes: tuple[Note, ...] = () if measured.note is None else (measured.note,)
    if facts is not None and options.unit is None:
        notes = (facts.note,)
    elif facts is not None and options.unit is not None and as_unit(options.unit).metres != as_unit(facts.unit).metres:
        text = (
            f"{files.sparse.name} was written in the unit {facts.unit}, as its sidecar says, but is read in "
            f"{options.unit}; leave out {param('unit')} if that is not meant."
        )
        notes += (Note(NoteKind.UNIT_CONTRADICTED, text),)
    depth = measured.values
    if files.confidence is not None:
        depth, more = without_doubtful(files.sparse, files.confidence, depth, options.min_confidence)
        notes += more
    camera = None if facts is None else facts.camera
    return Measurements(depth, measured.unit, measured.guessed, camera=camera, notes=notes)


def _project_points(files: FrameFiles, points: Path, options: FrameOptions, image: NDArray[np.uint8]) -> Measurements:
    from leadline.geometry.registration import check_registration

    for_maps = {"unit": options.unit, "scatter_sparse": options.scatter_sparse, "confidence": files.confidence}
    for name, value in for_maps.items():
        if value:
            raise InputError(f"{param(name)} is for {param('sparse')}, and {param('points')} is a cloud; leave it out.")
    if options.intrinsics is not None:
        raise InputError(
            f"{param('points')} needs the camera as a file: give {param('camera')} in place of {param('intrinsics')}."
        )
    cloud = CloudFiles(cloud=points, camera=files.camera, extrinsics=files.extrinsics, kitti=files.kitti)
    found = project_cloud(cloud, options.projection, image=files.image, size=(image.shape[1], image.shape[0]))
    alignment = check_registration(found.depth, image)
    notes = [Note(NoteKind.PROJECTED, str(found)), *found.notes]
    if not (alignment.aligned and alignment.known):
        notes.append(Note(NoteKind.ALIGNMENT, str(alignment)))
    record = {"projection": found.record(), "alignment": {**vars(alignment), "aligned": alignment.aligned}}
    camera = None if options.projection.rotate else found.camera
    return Measurements(found.depth, camera=camera, cloud=found, notes=tuple(notes), record=record)


def _read_camera(
    files: FrameFiles, options: FrameOptions, measured: Measurements, shape: tuple[int, int]
) -> tuple[Camera | ColmapCamera | None, tuple[Note, ...]]:
    """The given camera at the size of the image; None if none was given."""
    from leadline.io.cameras import read_camera

    height, width = shape
    if options.intrinsics is not None:
        if files.camera is not None:
            raise InputError(f"{param('intrinsics')} and {param('camera')} say the same; give one of them.")
        return Camera(width, height, *options.intrinsics), ()
    if files.camera is not None and measured.cloud is None:
        return scale_camera(read_camera(files.camera), (width, height))
    if measured.camera is None or measured.cloud is not None:
        return measured.camera, ()
    try:
        return scale_camera(measured.camera, (width, height))
    except InputError:  # a sidecar's camera that nobody asked for; the image is a crop
        return None, ()
