"""`leadline bag`: dense depth for the images of a ROS bag, as a new bag."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.terminal.commands import (
    PATH,
    announce_compiling,
    camera_option,
    grouped_command,
    input_option,
    output_option,
    run_option,
    say_notes,
)
from leadline.apps.terminal.flags import PriorFlags, completion_flags, edge_filter_flag, prior_flags, quiet_flag
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
or by --extrinsics. The images are completed as a stream: where /tf has the poses
of a moving camera, the depth of each image is used for the next one. OUT holds the
depth as --topic, its camera_info and, with --cloud, points beside it, with the
stamps and the frame of the images. OUT.json records how it was computed.

\b
Exit code: 0 all done; 1 an image failed; 2 nothing could be done; 130 stopped
by Ctrl-C; OUT then holds the finished images.
"""


@grouped_command(epilog=EXAMPLES)
@click.argument("bag", metavar="IN", type=PATH)
@input_option(
    "--image", metavar="TOPIC", required=True, help="Topic of the images: Image or CompressedImage (JPEG, PNG)."
)
@input_option("--points", metavar="TOPIC", help="Topic of the measurements: PointCloud2.")
@input_option(
    "--depth", metavar="TOPIC", help="In place of --points: topic of depth images, 32FC1, 16UC1 or compressedDepth."
)
@input_option(
    "--max-gap",
    type=float,
    default=0.05,
    help="Largest difference in seconds between the stamps of an image and its measurements.",
)
@input_option("--min-range", type=float, default=0.0, help="Leave out nearer points, metres.")
@input_option("--max-range", type=float, default=math.inf, show_default=False, help="Leave out farther points (m).")
@input_option("--see-through/--no-see-through", default=True, help="Remove points that show through nearer surfaces.")
@input_option("--limit", type=click.IntRange(1), help="Complete only this many images.")
@camera_option(
    "--camera-info",
    metavar="TOPIC",
    required=True,
    help="Topic of the camera of the images; its first message is used.",
)
@camera_option(
    "--depth-camera-info",
    metavar="TOPIC",
    help="Topic of the camera of --depth.  [default: the depth is registered to the images, pixel by pixel]",
)
@camera_option(
    "--tf/--no-tf",
    default=None,
    help="Transform points to the camera by /tf and /tf_static, and carry depth from image to image by the camera's "
    "poses. With --no-tf, points are in the frame of the camera already.  [default: --tf; --extrinsics replaces it for "
    "points]",
)
@camera_option("--extrinsics", type=PATH, metavar="FILE", help="Transform from the points to the camera, JSON.")
@camera_option(
    "--rectified", is_flag=True, help="The images are rectified: use the matrix P of the camera info and no distortion."
)
@prior_flags(
    text="Dense relative depth: a network, as for 'leadline complete', or a folder of SECONDS.NANOSECONDS.npy.",
    metavar="DIR|NAME[:MODEL]",
)
@output_option("-o", "--output", type=PATH, required=True, help="New bag: .bag, .mcap, or a rosbag2 folder.")
@output_option("--topic", default="/leadline/depth/image", help="Topic of the depth.")
@output_option("--millimetres", is_flag=True, help="Write 16UC1 in millimetres, not 32FC1 in metres.")
@output_option("--cloud", is_flag=True, help="Also write the depth as coloured PointCloud2.")
@edge_filter_flag
@run_option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@quiet_flag
@completion_flags
def command(
    bag: Path,
    prior: PriorFlags,
    output: Path,
    overwrite: bool,
    quiet: bool,
    completion: CompletionOptions,
    **values: Any,
) -> int:
    """Complete the images of the ROS bag IN from its points or depth images."""
    from leadline.apps.terminal.progress import FolderReport
    from leadline.batch.bag import BagOptions, check_bag_output, complete_bag
    from leadline.batch.outcome import State

    options = BagOptions(**values)
    check_bag_output(bag, output, overwrite=overwrite)
    folder, predictor = prior.open()
    if predictor is None:
        if folder is None or not folder.is_dir():
            raise FileError(f"{param('prior')} {prior.spec}: there is no such folder.")
        predictor = prior.predictor(spec=f"files:{folder}")
    with FolderReport(None, output, quiet=quiet) as report:

        def start(total: int, notes: tuple[Note, ...]) -> None:
            say_notes(notes)
            report.start(total)

        counts = complete_bag(bag, output, options, predictor, completion, start, report.add, announce_compiling)
        say_notes(counts.notes())
    count = sum(outcome.state is State.DONE for outcome in report.outcomes)
    return report.finish(f"{output} holds the {count} images that were finished.")
