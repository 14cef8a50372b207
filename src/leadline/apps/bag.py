"""`leadline bag`: dense depth for the images of a ROS bag, as a new bag."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.apps.options import completion_flags
from leadline.apps.terminal.help import CAMERA, INPUTS, OUTPUTS, PATH, RUN, grouped_command, option
from leadline.apps.terminal.prior_flags import PriorFlags, prior_flags
from leadline.base.errors import FileError, param
from leadline.core.options import CompletionOptions

if TYPE_CHECKING:
    from leadline.io.notes import Note

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
needed. Points are transformed to the frame of the camera by /tf and /tf_static,
or by --extrinsics. OUT holds the depth as --topic, its camera_info and, with
--cloud, points beside it, with the stamps and the frame of the images. OUT.json
records how it was computed.

\b
Exit code: 0 all done; 1 an image failed; 2 nothing could be done; 130 stopped
by Ctrl-C; OUT then holds the finished images.
"""


@grouped_command(epilog=EXAMPLES)
@click.argument("bag", metavar="IN", type=PATH)
@option(
    "--image",
    group=INPUTS,
    metavar="TOPIC",
    required=True,
    help="Topic of the images: Image or CompressedImage (JPEG, PNG).",
)
@option("--points", group=INPUTS, metavar="TOPIC", help="Topic of the measurements: PointCloud2.")
@option(
    "--depth",
    group=INPUTS,
    metavar="TOPIC",
    help="In place of --points: topic of depth images, 32FC1, 16UC1 or compressedDepth.",
)
@option(
    "--max-gap",
    group=INPUTS,
    type=float,
    default=0.05,
    show_default=True,
    help="Largest difference in seconds between the stamps of an image and its measurements.",
)
@option(
    "--min-range", group=INPUTS, type=float, default=0.0, show_default=True, help="Leave out nearer points, metres."
)
@option("--max-range", group=INPUTS, type=float, default=math.inf, help="Leave out farther points (m).")
@option(
    "--see-through/--no-see-through",
    group=INPUTS,
    default=True,
    show_default=True,
    help="Remove points that show through nearer surfaces.",
)
@option("--limit", group=INPUTS, type=click.IntRange(1), help="Complete only this many images.")
@option(
    "--camera-info",
    group=CAMERA,
    metavar="TOPIC",
    required=True,
    help="Topic of the camera of the images; its first message is used.",
)
@option(
    "--depth-camera-info",
    group=CAMERA,
    metavar="TOPIC",
    help="Topic of the camera of --depth.  [default: the depth is registered to the images, pixel by pixel]",
)
@option(
    "--tf/--no-tf",
    group=CAMERA,
    default=None,
    help="Whether points are transformed by /tf and /tf_static, or are in the frame of the camera already.  [default: "
    "--tf, unless --extrinsics is given]",
)
@option("--extrinsics", group=CAMERA, type=PATH, metavar="FILE", help="Transform from the points to the camera, JSON.")
@option(
    "--rectified",
    group=CAMERA,
    is_flag=True,
    help="The images are rectified: use the matrix P of the camera info and no distortion.",
)
@prior_flags(
    text="Dense relative depth: a network, as for 'leadline complete', or a folder of SECONDS.NANOSECONDS.npy.",
    metavar="DIR|NAME[:MODEL]",
)
@option("-o", "--output", group=OUTPUTS, type=PATH, required=True, help="New bag: .bag, .mcap, or a rosbag2 folder.")
@option("--topic", group=OUTPUTS, default="/leadline/depth/image", show_default=True, help="Topic of the depth.")
@option("--millimetres", group=OUTPUTS, is_flag=True, help="Write 16UC1 in millimetres, not 32FC1 in metres.")
@option("--cloud", group=OUTPUTS, is_flag=True, help="Also write the depth as coloured PointCloud2.")
@option("--overwrite", group=RUN, is_flag=True, help="Replace OUT if it exists.")
@option("--quiet", group=RUN, is_flag=True, help="Print only notes and errors.")
@completion_flags
def command(
    bag: Path,
    image: str,
    points: str | None,
    depth: str | None,
    max_gap: float,
    min_range: float,
    max_range: float,
    see_through: bool,
    limit: int | None,
    camera_info: str,
    depth_camera_info: str | None,
    tf: bool | None,
    extrinsics: Path | None,
    rectified: bool,
    prior: PriorFlags,
    output: Path,
    topic: str,
    millimetres: bool,
    cloud: bool,
    overwrite: bool,
    quiet: bool,
    completion: CompletionOptions,
) -> int:
    """Complete the images of the ROS bag IN from its points or depth images."""
    from leadline.apps.terminal.folder_report import FolderReport
    from leadline.apps.terminal.messages import announce_compiling, say_notes
    from leadline.batch.bag import BagOptions, check_bag_output, complete_bag
    from leadline.batch.outcome import State

    options = BagOptions(
        image=image,
        camera_info=camera_info,
        points=points,
        depth=depth,
        depth_camera_info=depth_camera_info,
        max_gap=max_gap,
        tf=tf,
        extrinsics=extrinsics,
        rectified=rectified,
        min_range=min_range,
        max_range=max_range,
        see_through=see_through,
        topic=topic,
        millimetres=millimetres,
        cloud=cloud,
        limit=limit,
    )
    check_bag_output(bag, output, overwrite=overwrite)
    folder, predictor = prior.open()
    if predictor is None:
        if folder is None or not folder.is_dir():
            raise FileError(f"{param('prior')} {prior.spec}: there is no such folder.")
        predictor = prior.predictor(spec=f"files:{folder}")
    report = FolderReport(0, output, quiet=quiet)

    def start(total: int, notes: tuple[Note, ...]) -> None:
        report.total = total
        say_notes(notes)
        report.start()

    interrupted = ""
    try:
        complete_bag(
            bag,
            output,
            options,
            predictor,
            completion,
            on_start=start,
            on_outcome=report.add,
            announce_compiling=announce_compiling,
        )
    except KeyboardInterrupt:
        count = sum(outcome.state is State.DONE for outcome in report.outcomes)
        interrupted = f"stopped by Ctrl-C; {output} holds the {count} images that were finished."
    finally:
        report.stop()
    return report.finish(interrupted=interrupted)
