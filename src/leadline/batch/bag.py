"""Dense depth for the images of a ROS bag, from its points or its depth images, written to a new bag."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.base.strict_json import dump_json
from leadline.batch.frame import ensure_compiled
from leadline.batch.outcome import Outcome, State, outcome_of, package_version
from leadline.core.options import CompletionOptions
from leadline.core.stream import Stream
from leadline.geometry.cameras import Camera, ColmapCamera
from leadline.io.files import write_text
from leadline.io.notes import Note, NoteKind
from leadline.io.placement import scale_camera
from leadline.io.ros import messages as ros_messages
from leadline.io.ros.bags import IMAGES, INFOS, POINTS, Bag, DepthWriter, match_stamps
from leadline.priors.predictor import Predictor

if TYPE_CHECKING:
    from leadline.geometry.poses import Transform


@dataclass(frozen=True, kw_only=True)
class BagOptions:
    """Topics of a bag, and how its measurements are projected. One of `points` and `depth` is needed."""

    image: str  # topics of the images and of their camera
    camera_info: str
    points: str | None = None  # topic of a point cloud
    depth: str | None = None  # topic of depth images
    depth_camera_info: str | None = None  # without one, the depth is registered to the images, pixel by pixel
    max_gap: float = 0.05  # largest difference in seconds between the stamps of an image and its measurements
    tf: bool | None = None  # whether /tf and /tf_static are used for poses and points; None: points by `extrinsics`
    extrinsics: Path | None = None  # JSON file of the transform from the points to the camera
    rectified: bool = False  # whether images are rectified: use the matrix P of the camera info and no distortion
    min_range: float = 0.0  # metres; nearer points are left out
    max_range: float = math.inf
    see_through: bool = True  # whether points that show through nearer surfaces are removed
    topic: str = "/leadline/depth/image"  # of the depth that is written
    millimetres: bool = False  # whether depth is written as 16UC1 in millimetres, not as 32FC1 in metres
    cloud: bool = False  # whether the depth is also written as a coloured point cloud
    edge_filter: bool = True  # whether points between two objects are NaN in the cloud
    limit: int | None = None  # largest number of images to complete

    def __post_init__(self) -> None:
        if (self.points is None) == (self.depth is None):
            raise InputError(f"give the topic of the measurements: one of {param('points')} and {param('depth')}.")
        registered = self.depth is not None and self.depth_camera_info is None
        if self.depth_camera_info and self.depth is None:
            raise InputError(f"{param('depth_camera_info')} is for {param('depth')}; leave it out.")
        if self.extrinsics is not None and registered:
            raise InputError(
                f"{param('extrinsics')} is for points, or for depth with a {param('depth_camera_info')}; leave it out."
            )
        if self.extrinsics and self.tf is not None:
            raise InputError(f"{param('extrinsics')} and {param('tf')} exclude each other; leave out one of them.")
        if not (self.edge_filter or self.cloud):
            raise InputError(f"{param('edge_filter', False)} is for {param('cloud', True)}; leave it out.")
        if not 0 <= self.max_gap < math.inf:
            raise InputError(f"{param('max_gap')} must be a number of seconds, at least 0, got {self.max_gap}.")
        if not self.topic.startswith("/") or self.topic.endswith(("/camera_info", "/points", "/")):
            raise InputError(
                f"{param('topic')} {self.topic}: must begin with / and end in a name of its own, e.g. /depth/image."
            )

    @property
    def measurements(self) -> str:
        """The topic of the measurements."""
        return self.points or self.depth or ""


@dataclass(frozen=True)
class BagCounts:
    """How many images a bag has, how many have measurements, how many were completed, and how many with a pose."""

    images: int
    matched: int
    done: int
    posed: int

    def notes(self) -> tuple[Note, ...]:
        """A note if only some of the images have a pose, because a stream of them is carried along with gaps."""
        if not 0 < self.posed < self.done:
            return ()
        text = (
            f"{self.posed} of {self.done} images have a pose by /tf: no depth is carried into the others, nor into an "
            "image that follows one of them."
        )
        return (Note(NoteKind.POSES, text),)


@dataclass(frozen=True, eq=False)
class Rig:
    """The cameras of a bag, and the transforms from the frame of the measurements to the frame of the images."""

    info: Any  # CameraInfo of the images
    camera: Camera | ColmapCamera
    depth_camera: Camera | ColmapCamera | None
    extrinsics: Transform | None
    transforms: Any  # transform tree of the bag
    options: BagOptions

    @classmethod
    def read(cls, source: Bag, options: BagOptions) -> Rig:
        """Read cameras and transforms; an error if no transform connects the frames."""
        from leadline.io.cameras import read_extrinsics

        info, second = source.first(options.camera_info), options.depth_camera_info
        extrinsics = None if options.extrinsics is None else read_extrinsics(options.extrinsics)
        depth_camera = None if second is None else ros_messages.decode_camera(source.first(second))
        camera = ros_messages.decode_camera(info, rectified=options.rectified)
        rig = cls(info, camera, depth_camera, extrinsics, source.transforms(), options)
        if extrinsics is None and options.tf is not False and (options.points or second):
            measured = ros_messages.frame_id(source.first(options.measurements).header)
            image = rig.image_frame(source.first(options.image))
            if measured != image:
                rig._check_connected(source.path, measured, image)
        return rig

    def image_frame(self, image: Any) -> str:
        """Name of the frame of an image."""
        return ros_messages.frame_id(image.header) or ros_messages.frame_id(self.info.header)

    def pose(self, frame: str, time: int) -> Transform | None:
        """Pose of the camera of that frame and time; None if tf does not have it or may not be used."""
        without_lens = isinstance(self.camera, ColmapCamera) and self.camera.pinhole() is None and not _has_pycolmap()
        return None if self.options.tf is False or without_lens else self.transforms.pose(frame, time)

    def _check_connected(self, path: Path, measured: str, image: str) -> None:
        if not self.transforms.frames:
            raise InputError(
                f"{path}: has no /tf and no /tf_static, and the points are in the frame {measured!r} and the images "
                f"in {image!r}; give {param('extrinsics')}, or {param('tf', False)} if these are the same frame."
            )
        try:
            self.transforms.chains(measured, image)
        except InputError as error:
            raise InputError(f"{path}: {error.args[0]}") from error

    def measure(self, camera: Camera | ColmapCamera, message: Any, frame: str, time: int) -> FloatArray:
        """Depth of the measurements of a message on the pixels of the image of that frame and time."""
        from leadline.geometry.cloud import cloud_from_depth
        from leadline.geometry.projection import project

        options = self.options
        if options.depth is not None:
            depth = ros_messages.decode_depth(message)
            if self.depth_camera is None:
                if depth.shape != (camera.height, camera.width):
                    raise InputError(
                        f"the depth is {depth.shape[1]}x{depth.shape[0]} and the image {camera.width}x{camera.height}; "
                        f"use the registered topic, or give {param('depth_camera_info')}."
                    )
                return depth
            points = cloud_from_depth(depth, self.depth_camera).points
        else:
            points = ros_messages.decode_cloud(message).points
        transform = self._transform(ros_messages.frame_id(message.header), frame, time)
        found = project(
            points,
            transform,
            camera,
            min_range=options.min_range,
            max_range=options.max_range,
            see_through_radius=None if options.see_through else 0,
        )
        if not found.covered:
            raise InputError(
                f"none of the {len(points)} points falls into the image; check /tf or {param('extrinsics')}."
            )
        return found.depth

    def _transform(self, source: str, target: str, time: int) -> Transform:
        if self.extrinsics is not None:
            return self.extrinsics
        if source == target or self.options.tf is False:
            return np.eye(4)
        transform: Transform = self.transforms.between(source, target, time)
        return transform


@dataclass(eq=False)
class BagJob:
    """Completes the images of a bag one after the other, as a stream."""

    rig: Rig
    predictor: Predictor
    stream: Stream
    writer: DepthWriter
    posed: int = 0

    def complete(self, time: int, image: Any, measurement: Any) -> Outcome:
        """Complete one image and add it to the new bag; errors become a failed outcome."""
        stamp = ros_messages.stamp_ns(image.header)
        name = f"{stamp // 10**9}.{stamp % 10**9:09d}"
        return outcome_of(name, lambda: self._complete(name, time, image, measurement))

    def _complete(self, name: str, time: int, image: Any, measurement: Any) -> Outcome:
        pixels = ros_messages.decode_image(image)
        camera, _ = scale_camera(self.rig.camera, (pixels.shape[1], pixels.shape[0]))
        frame, stamp = self.rig.image_frame(image), ros_messages.stamp_ns(image.header)
        sparse = self.rig.measure(camera, measurement, frame, stamp)
        found = self.predictor.predict(pixels, name)
        pose = self.rig.pose(frame, stamp)
        result = self.stream(found.prior, sparse, camera=None if pose is None else camera, camera_to_world=pose)
        if result.fit.count == 0 and not result.response_carried:
            raise InputError(f"{result.fit.status.describe(param)}.")
        beyond = self.writer.write(time, image.header, result.depth, self.rig.info)
        self.posed += pose is not None
        if self.rig.options.cloud:
            depth = result.depth
            if self.rig.options.edge_filter:
                from leadline.geometry.surface import surface_from_depth

                depth = np.where(surface_from_depth(depth, camera).mask(), depth, np.nan)
            self.writer.write_cloud(time, image.header, camera.points(depth), pixels)
        notes = list(found.notes)
        if beyond:
            text = f"{beyond} pixels are beyond 65.5 m, which 16UC1 cannot store, and are written as 0."
            notes.append(Note(NoteKind.BEYOND_FORMAT, text))
        return Outcome(name, State.DONE, result.summary(param), tuple(notes))


def check_bag_output(bag: Path, output: Path, *, overwrite: bool) -> None:
    """Refuse an output that is the input, exists already, or is in no folder."""
    place = f"{param('output')} {output}"
    if bag.exists() and output.resolve() == bag.resolve():
        raise InputError(f"{place}: is the input; choose another.")
    if output.exists():
        if not overwrite:
            raise InputError(f"{place}: exists already; add {param('overwrite', True)}, or choose another.")
        if output.is_dir() and not (output / "metadata.yaml").is_file():
            raise InputError(f"{place}: is a folder and not a bag, and will not be replaced; choose another.")
    if not output.resolve().parent.is_dir():
        raise FileError(f"{place}: the folder {output.parent} does not exist. Make it first.")


def complete_bag(
    bag: Path,
    output: Path,
    options: BagOptions,
    predictor: Predictor,
    completion: CompletionOptions,
    on_start: Callable[[int, tuple[Note, ...]], None],
    on_outcome: Callable[[Outcome], None],
    announce_compiling: Callable[[], None] | None = None,
) -> BagCounts:
    """Complete the images of a bag and write the depth, its camera info and, on request, clouds to a new bag.

    The images are a `Stream`; where tf has the poses of a moving camera, depth is carried from image to image.

    After Ctrl-C the new bag holds the images that were finished, and KeyboardInterrupt is raised.

    `on_start` is called once with the number of images that will be completed and notes, `on_outcome` with the outcome
    of each image.
    """
    with Bag(bag) as source:
        _check_topics(source, options)
        rig = Rig.read(source, options)
        stamps, others = source.stamps(options.image), source.stamps(options.measurements)
        partner = match_stamps(stamps, others, round(options.max_gap * 1e9))
        matched, notes = _count_matched(stamps, others, partner, options)
        total = min(matched, options.limit or matched)
        predictor.open()  # an error of the network is reported once, not for each image
        ensure_compiled(completion, announce_compiling)
        if options.tf is not False and rig.transforms.frames:
            from leadline.core.compilation import compile_carried  # not at the second image, where a robot would wait

            compile_carried()
        on_start(total, notes)
        with DepthWriter(output, options.topic, millimetres=options.millimetres) as writer:
            job = BagJob(rig, predictor, Stream(completion), writer)
            interrupted: KeyboardInterrupt | None = None
            try:
                for number, (time, image, measurement) in enumerate(
                    source.pairs(options.image, options.measurements, partner), start=1
                ):
                    on_outcome(job.complete(time, image, measurement))
                    if number == total:
                        break
            except KeyboardInterrupt as error:
                interrupted = error
    counts = BagCounts(len(stamps), matched, writer.count, job.posed)
    if writer.count:
        record = {
            "leadline": package_version(),
            "input": str(bag),
            **asdict(counts),
            "prior": predictor.spec,
            "options": {name: str(v) if isinstance(v, Path) else v for name, v in asdict(options).items()},
            "completion": asdict(completion),
        }
        write_text(output.with_name(f"{output.name}.json"), dump_json(record))
    if interrupted is not None:
        raise interrupted
    return counts


def _has_pycolmap() -> bool:
    return find_spec("pycolmap") is not None


def _check_topics(source: Bag, options: BagOptions) -> None:
    kinds = {"image": IMAGES, "camera_info": INFOS, "points": POINTS, "depth": IMAGES, "depth_camera_info": INFOS}
    for name, types in kinds.items():
        if topic := getattr(options, name):
            source.require(topic, name, types)


def _count_matched(
    stamps: NDArray[np.int64], others: NDArray[np.int64], partner: NDArray[np.int64], options: BagOptions
) -> tuple[int, tuple[Note, ...]]:
    """How many images have measurements, and a note about the others."""
    topic, matched = options.measurements, int((partner >= 0).sum())
    if not len(stamps) or not len(others):
        raise InputError(f"the topic {topic if len(stamps) else options.image} has no messages.")
    if not matched:
        gap = float(np.abs(stamps - others[match_stamps(stamps, others, np.iinfo(np.int64).max)]).min()) * 1e-9
        raise InputError(
            f"none of {len(stamps)} images has a message of {topic} within {param('max_gap', f'{options.max_gap:g}')} "
            f"s; the nearest is {gap:.3f} s away. Do the two clocks agree?"
        )
    left = len(stamps) - matched
    if not left:
        return matched, ()
    text = (
        f"{left} of {len(stamps)} images have no {topic} within {options.max_gap:g} s and are left out; "
        f"{param('max_gap')} changes the limit."
    )
    return matched, (Note(NoteKind.UNMATCHED, text),)
