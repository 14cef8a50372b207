"""`leadline bag`: dense depth for the pictures of a ROS bag, from its points or its depth images, as a new bag."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from leadline.apps.cli import say, version
from leadline.apps.complete import prior_file
from leadline.apps.network import Network, given_flags, network_flags
from leadline.apps.options import completion_flags, completion_options
from leadline.apps.placement import fitted
from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.base.strict_json import json_ready
from leadline.batch.folder import Report, conclude, guarded
from leadline.batch.frame import Outcome, compile_kernels
from leadline.core.options import CompletionOptions
from leadline.core.prior import PriorKind
from leadline.geometry.cameras import Camera
from leadline.io.atomic import write_text
from leadline.io.ros import messages as ros_messages
from leadline.io.ros.bags import IMAGES, INFOS, POINTS, Bag, DepthWriter, nearest

if TYPE_CHECKING:
    from leadline.geometry.lenses import ColmapCamera
    from leadline.geometry.poses import Transform

EXAMPLES = """\b
Examples:
  leadline bag drive.mcap --image /camera/image --camera-info /camera/camera_info \\
      --points /lidar/points --prior onnx:model.onnx -o depth.mcap
  leadline bag drive.bag --image /camera/image --camera-info /camera/camera_info \\
      --points /lidar/points --extrinsics lidar_to_camera.json --prior none -o depth.bag --cloud
  leadline bag recording/ --image /camera/image --camera-info /camera/camera_info \\
      --depth /camera/depth --prior onnx:model.onnx -o dense/ --millimetres

\b
IN and OUT are rosbag1 files (.bag), .mcap files, or rosbag2 folders; ROS is not
needed. Points get into the camera's frame by /tf and /tf_static, or --extrinsics.
OUT has, with the stamps and the frame of the pictures, the depth as --topic, its
camera_info and, with --cloud, points beside it; OUT.json says how it came about.

\b
Exit code: 0 all done; 1 a picture failed; 2 nothing could be done; 130 stopped
by Ctrl-C, with what was finished in OUT.
"""

_PATH = click.Path(path_type=Path)


@click.command(epilog=EXAMPLES)
@click.argument("bag", metavar="IN", type=_PATH)
@click.option("--image", metavar="TOPIC", required=True, help="Pictures: Image or CompressedImage (JPEG, PNG).")
@click.option("--camera-info", metavar="TOPIC", required=True, help="Their camera; its first message is taken.")
@click.option("--points", metavar="TOPIC", help="Measurements: PointCloud2.")
@click.option("--depth", metavar="TOPIC", help="Or: depth images, 32FC1, 16UC1 or compressedDepth.")
@click.option(
    "--depth-camera-info",
    metavar="TOPIC",
    help="Camera of --depth.  [default: they are registered to the pictures, pixel by pixel]",
)
@click.option(
    "--prior",
    required=True,
    metavar="DIR|NAME[:MODEL]",
    help="Dense relative depth: a network, as for 'leadline complete', or a folder of SECONDS.NANOSECONDS.npy.",
)
@click.option("-o", "--output", type=_PATH, required=True, help="New bag: .bag, .mcap, or a rosbag2 folder.")
@click.option(
    "--max-gap",
    "--time-tolerance",
    "max_gap",
    type=float,
    default=0.05,
    show_default=True,
    help="Seconds between the stamps of a picture and of its measurements, at most; the nearest are taken.",
)
@click.option(
    "--tf/--no-tf",
    default=None,
    help="Points get into the camera's frame by /tf and /tf_static, or are in it already.  [default: --tf, without "
    "--extrinsics]",
)
@click.option("--extrinsics", type=_PATH, metavar="FILE", help="Points to camera, JSON, in place of tf.")
@click.option("--rectified", is_flag=True, help="The pictures are rectified: take the camera info's P, no distortion.")
@click.option("--min-range", type=float, default=0.0, show_default=True, help="Leave out points nearer, in metres.")
@click.option("--max-range", type=float, default=math.inf, help="Leave out points farther, in metres.")
@click.option(
    "--see-through/--no-see-through",
    default=True,
    show_default=True,
    help="Remove points that show through nearer surfaces.",
)
@click.option("--topic", default="/leadline/depth/image", show_default=True, help="Of the dense depth.")
@click.option("--millimetres", is_flag=True, help="Write 16UC1 in mm and not 32FC1 in metres.")
@click.option("--cloud", is_flag=True, help="Also write the depth as coloured PointCloud2.")
@click.option("--limit", type=click.IntRange(1), help="Only so many of the first matched pictures.")
@click.option("--prior-kind", type=click.Choice(get_args(PriorKind)), help="What the prior's numbers are.")
@click.option("--prior-floor", type=float, help="For disparity: the least share of the largest one.")
@network_flags
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
@click.option("--quiet", is_flag=True, help="Only notes and errors.")
@completion_flags
def command(bag: Path, prior: str, output: Path, **flags: Any) -> int:
    """Complete the pictures of the ROS bag IN from its points or depth images."""
    network, options = _choices(bag, prior, output, flags)
    measured = flags["points"] or flags["depth"]
    with Bag(bag) as source:
        source.require(flags["image"], "--image", IMAGES)
        source.require(flags["camera_info"], "--camera-info", INFOS)
        source.require(measured, "--points" if flags["points"] else "--depth", POINTS if flags["points"] else IMAGES)
        if flags["depth_camera_info"]:
            source.require(flags["depth_camera_info"], "--depth-camera-info", INFOS)
        rig = Rig.of(source, flags)
        stamps, others = source.stamps(flags["image"]), source.stamps(measured)
        partner = nearest(stamps, others, round(flags["max_gap"] * 1e9))
        matched = _matched(stamps, others, partner, flags)
        network.source  # noqa: B018  what is wrong with it is better said once than for each picture
        report = Report(min(matched, flags["limit"] or matched), output, flags["quiet"])
        with DepthWriter(output, flags["topic"], millimetres=flags["millimetres"]) as writer:
            work = Work(rig, network, options, writer, flags["cloud"])

            stopped = False

            def run() -> None:
                nonlocal stopped
                compile_kernels(options)
                try:
                    with report:
                        for time, image, measurement in source.pairs(flags["image"], measured, partner):
                            report.take(work(time, image, measurement))
                            if len(report.outcomes) == report.total:
                                break
                except KeyboardInterrupt:  # not for `conclude`: the same command would not go on but begin again
                    stopped = True

            code = conclude(report, run)
    counts = {"pictures": len(stamps), "matched": matched, "done": writer.count}
    if writer.count:
        _write_record(output, {"input": str(bag), **counts, "flags": flags})
    if stopped:
        say("error", f"stopped by the keyboard; {output} holds the {writer.count} pictures that were finished.")
    return 130 if stopped else code


def _choices(bag: Path, prior: str, output: Path, flags: Mapping[str, Any]) -> tuple[Network, CompletionOptions]:
    """The flags as what they stand for; those that would be ignored are refused."""
    if (flags["points"] is None) == (flags["depth"] is None):
        raise InputError("give one of --points TOPIC and --depth TOPIC: the measurements.")
    if flags["depth_camera_info"] and flags["depth"] is None:
        raise InputError("--depth-camera-info is for --depth; leave it out.")
    if flags["extrinsics"] and flags["depth"] and not flags["depth_camera_info"]:
        raise InputError("--extrinsics is for points, or for depth with a --depth-camera-info; leave it out.")
    if flags["extrinsics"] and flags["tf"] is not None:
        raise InputError("--extrinsics take the place of tf; leave out one of the two.")
    if flags["tf"] is not None and flags["depth"] and not flags["depth_camera_info"]:
        raise InputError("--tf is for points, or for depth with a --depth-camera-info; leave it out.")
    if not 0 <= flags["max_gap"] < math.inf:
        raise InputError(f"--max-gap must be a number of seconds, at least 0, got {flags['max_gap']}.")
    if not flags["topic"].startswith("/") or flags["topic"].endswith(("/camera_info", "/points", "/")):
        raise InputError(
            f"--topic {flags['topic']}: must begin with / and end in a name of its own, e.g. /depth/image."
        )
    if bag.exists() and output.resolve() == bag.resolve():
        raise InputError(f"-o {output}: is the input; choose another.")
    if output.exists():
        if not flags["overwrite"]:
            raise InputError(f"-o {output}: is there already; add --overwrite, or choose another.")
        if output.is_dir() and not (output / "metadata.yaml").is_file():
            raise InputError(f"-o {output}: is a folder and no bag, and will not be replaced; choose another.")
    if not output.resolve().parent.is_dir():
        raise FileError(f"-o {output}: the folder {output.parent} does not exist. Make it first.")
    folder = prior_file(prior)
    if folder is not None and not folder.is_dir():
        raise FileError(f"--prior {prior}: there is no such folder.")
    if folder is not None and given_flags(flags):
        raise InputError(f"{given_flags(flags)[0]} is for a prior that is predicted, and --prior is a folder.")
    kind = {"kind": flags["prior_kind"], "floor": flags["prior_floor"]}
    chosen = {name: value for name, value in kind.items() if value is not None}
    return Network.from_flags(prior if folder is None else f"files:{folder}", flags, **chosen), completion_options(
        flags
    )


def _matched(stamps: Any, others: Any, partner: Any, flags: Mapping[str, Any]) -> int:
    """How many pictures have measurements; says how many have not, and refuses if none has."""
    import numpy as np

    measured = flags["points"] or flags["depth"]
    matched = int((partner >= 0).sum())
    if not len(stamps) or not len(others):
        raise InputError(f"the topic {measured if len(stamps) else flags['image']} has no messages.")
    if not matched:
        gap = float(np.abs(stamps - others[nearest(stamps, others, np.iinfo(np.int64).max)]).min()) * 1e-9
        raise InputError(
            f"none of {len(stamps)} pictures has a message of {measured} within --max-gap {flags['max_gap']:g} s; "
            f"the nearest is {gap:.3f} s away. Do the two clocks agree?"
        )
    left = len(stamps) - matched
    if left:
        say("note", f"{left} of {len(stamps)} pictures have no {measured} within {flags['max_gap']:g} s, left out.")
    return matched


@dataclass(frozen=True, eq=False)
class Rig:
    """The cameras of a bag, and the way from the measurements' frame to the pictures'."""

    info: Any  # CameraInfo of the pictures
    camera: Camera | ColmapCamera
    depth_camera: Camera | ColmapCamera | None
    extrinsics: Transform | None
    transforms: ros_messages.Transforms
    flags: Mapping[str, Any]

    @classmethod
    def of(cls, source: Bag, flags: Mapping[str, Any]) -> Rig:
        from leadline.io.cameras import read_extrinsics

        info, second = source.first(flags["camera_info"]), flags["depth_camera_info"]
        extrinsics = None if flags["extrinsics"] is None else read_extrinsics(flags["extrinsics"])
        other = None if second is None else ros_messages.camera(source.first(second))
        camera = ros_messages.camera(info, rectified=flags["rectified"])
        rig = cls(info, camera, other, extrinsics, source.transforms(), flags)
        if extrinsics is None and flags["tf"] is not False and (flags["points"] or second):
            # Frames that nothing connects are better said once than for each picture.
            measured = ros_messages.frame_of(source.first(flags["points"] or flags["depth"]).header)
            picture = rig.frame(source.first(flags["image"]))
            if measured != picture:
                rig.connect(source.path, measured, picture)
        return rig

    def frame(self, image: Any) -> str:
        """The frame of a picture."""
        return ros_messages.frame_of(image.header) or ros_messages.frame_of(self.info.header)

    def connect(self, path: Path, measured: str, picture: str) -> None:
        """Refuse a bag whose tf does not lead from the one frame to the other."""
        if not self.transforms.frames:
            raise InputError(
                f"{path}: has no /tf and no /tf_static, and the points are in the frame {measured!r} and the pictures "
                f"in {picture!r}; give --extrinsics, or --no-tf if that is the same."
            )
        try:
            self.transforms.chains(measured, picture)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def camera_for(self, image: Any) -> Camera | ColmapCamera:
        """The camera at the picture's size."""
        return fitted(self.camera, (image.shape[1], image.shape[0]))[0]

    def sparse(self, camera: Camera | ColmapCamera, message: Any, frame: str, time: int) -> FloatArray:
        """The measurements of a message on the grid of the picture of that frame and time."""
        from leadline.geometry.projection import project
        from leadline.geometry.tof import depth_cloud

        if self.flags["depth"]:
            depth = ros_messages.depth_image(message)
            if self.depth_camera is None:
                if depth.shape != (camera.height, camera.width):
                    raise InputError(
                        f"the depth is {depth.shape[1]}x{depth.shape[0]} and the picture {camera.width}x"
                        f"{camera.height}; take the registered topic, or give --depth-camera-info."
                    )
                return depth
            points = depth_cloud(depth, self.depth_camera).points
        else:
            points = ros_messages.cloud(message).points
        limits = {name: self.flags[name] for name in ("min_range", "max_range")}
        transform = self._transform(ros_messages.frame_of(message.header), frame, time)
        radius = None if self.flags["see_through"] else 0
        found = project(points, transform, camera, see_through_radius=radius, **limits)
        if not found.covered:
            raise InputError(f"none of the {len(points)} points falls into the picture; check tf or --extrinsics.")
        return found.depth

    def _transform(self, source: str, target: str, time: int) -> Transform:
        import numpy as np

        if self.extrinsics is not None:
            return self.extrinsics
        same = source == target or self.flags["tf"] is False
        return np.eye(4) if same else self.transforms.between(source, target, time)


@dataclass(frozen=True, eq=False)
class Work:
    """What is to be done with each picture."""

    rig: Rig
    network: Network
    options: CompletionOptions
    writer: DepthWriter
    cloud: bool

    def __call__(self, time: int, image: Any, measurement: Any) -> Outcome:
        stamp = ros_messages.nanoseconds(image.header)
        name = f"{stamp // 10**9}.{stamp % 10**9:09d}"
        return guarded(name, lambda: self._run(name, time, image, measurement))

    def _run(self, name: str, time: int, image: Any, measurement: Any) -> Outcome:
        from leadline.core.pipeline import complete

        picture = ros_messages.picture(image)
        camera = self.rig.camera_for(picture)
        frame = self.rig.frame(image)
        sparse = self.rig.sparse(camera, measurement, frame, ros_messages.nanoseconds(image.header))
        prior, _ = self.network.predict(picture, name)
        result = complete(prior, sparse, options=self.options)
        if result.fit.count == 0:
            raise InputError(f"{result.fit.status}.")
        lost = self.writer.write(time, image.header, result.depth, self.rig.info)
        if self.cloud:
            lens = camera if isinstance(camera, Camera) else camera.at_size()
            self.writer.write_cloud(time, image.header, lens.points(result.depth), picture)
        far = f"{lost} pixels are beyond 65.5 m, which 16UC1 cannot say, and are 0." if lost else ""
        notes = tuple(note for note in (self.network.note, far) if note)
        return Outcome(name, "done", str(result), notes)


def _write_record(output: Path, record: Mapping[str, Any]) -> None:
    text = json.dumps(json_ready({"leadline": version(), **record}), indent=2, default=str, allow_nan=False) + "\n"
    write_text(output.with_name(f"{output.name}.json"), text)
