"""`leadline project`: a point cloud, or the depth map of another camera, as sparse depth on the pixels of an image."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import click

from leadline.apps.terminal.commands import (
    PATH,
    Numbers,
    camera_option,
    grouped_command,
    input_option,
    option,
    output_option,
    run_option,
    say_notes,
)
from leadline.apps.terminal.flags import quiet_flag, take_fields
from leadline.base.errors import InputError, param

EXAMPLES = """\b
Examples:
  leadline project sweep.pcd --camera cam.json --extrinsics lidar_to_camera.json -o sparse.png
  leadline project sweep.pcd --camera cam.json --extrinsics lidar_to_camera.json --image photo.jpg -o sparse.png
  leadline project 0000000005.bin --kitti calib/ --image 0000000005.png -o sparse.png
  leadline project 0000000005.bin --kitti calib/ --velocity 12.8,0,0 --period 0.1036 -o sparse.png
  leadline project 000042.bin --kitti 000042.txt --image 000042.png -o sparse.png
  leadline project sparse/0 --image images/frame_0001.jpg -o sparse.npy
  leadline project tof.png --depth-camera tof.json --depth-unit mm --camera cam.json --extrinsics T.json -o sparse.png

\b
CLOUD is PLY, PCD, LAS, LAZ, KITTI's .bin, npy, npz, or the folder of a COLMAP model.
cam.json: {"width", "height", "fx", "fy", "cx", "cy"}; a lens adds "model" and "params".
T.json transforms points from the cloud's frame to the camera's: 4x4, or {"rotation":
quaternion w, x, y, z, "translation"}, {"inverse": ...}, {"chain": [...]}.

\b
It writes the depth, a sidecar .json that records how it was computed and, with
--image, NAME_points.png: the points over the image, and the dropped points by reason.

\b
Exit code: 0 done; 1 with --strict, if the points do not line up with the image; 2 nothing could be done.
"""
motion_option = partial(option, group="Moving sensor")
depth_map_option = partial(option, group="Depth map of another camera")
see_through_option = partial(option, group="See-through points")


@grouped_command(epilog=EXAMPLES)
@click.argument("cloud", type=PATH)
@input_option("--image", type=PATH, help="The image; the points are compared with it and drawn over it.")
@input_option("--key", help="Name of the array in an npz cloud.")
@input_option("--scale", type=float, default=1.0, help="Metres per unit of the cloud.")
@input_option(
    "--min-confidence",
    type=float,
    help="Leave out points of lower confidence; for COLMAP that is sqrt(track length) / error.",
)
@input_option("--min-range", type=float, default=0.0, help="Leave out nearer points, metres.")
@input_option("--max-range", type=float, default=math.inf, show_default=False, help="Leave out farther points (m).")
@camera_option("--camera", type=PATH, metavar="FILE", help="Camera of the image, JSON.")
@camera_option(
    "--extrinsics",
    type=PATH,
    metavar="FILE",
    help="Transform from the cloud to the camera, JSON.  [default: they have the same frame]",
)
@camera_option(
    "--kitti",
    type=PATH,
    metavar="PATH",
    help="KITTI's calibration in place of the two above: the folder of calib_*.txt, or the one file of a benchmark.",
)
@camera_option(
    "--kitti-camera", type=click.IntRange(0, 3), default=2, help="Number of the camera in KITTI's calibration."
)
@camera_option(
    "--colmap-image", metavar="NAME", help="Name of the image in a COLMAP model.  [default: the file name of --image]"
)
@camera_option(
    "--rotate",
    type=click.Choice(["0", "90", "180", "270"]),
    default="0",
    help="Degrees clockwise by which the image is turned from the grid of the camera.",
)
@see_through_option(
    "--see-through/--no-see-through",
    default=None,
    help="Remove points that show through nearer surfaces.  [default: yes, except for COLMAP's points]",
)
@see_through_option(
    "--see-through-radius",
    advanced=True,
    type=click.IntRange(1),
    help="Largest gap between near points, in pixels, that the removal bridges.  [default: 1.75 mean distances of "
    "points]",
)
@see_through_option(
    "--see-through-ratio",
    advanced=True,
    type=float,
    default=1.1,
    help="A point hides another one if it is nearer by this factor.",
)
@motion_option("--velocity", type=Numbers(), metavar="X,Y,Z", help="Along the sensor's own axes, m/s.")
@motion_option("--turn-rate", type=Numbers(), metavar="X,Y,Z", help="About the sensor's own axes, rad/s.")
@motion_option(
    "--trajectory", type=PATH, metavar="FILE", help="Poses of the sensor, 'time x y z qx qy qz qw' on each line."
)
@motion_option("--at", type=float, metavar="TIME", help="Time of the image on the points' clock.  [default: 0]")
@motion_option(
    "--period",
    type=float,
    metavar="S",
    help="Seconds of one turn of the sensor: times follow from the azimuth, 0 straight ahead.",
)
@motion_option(
    "--counter-clockwise", is_flag=True, help="With --period: the sensor turns counter-clockwise, seen from above."
)
@depth_map_option("--depth-camera", type=PATH, metavar="FILE", help="CLOUD is a depth map of this camera, JSON.")
@depth_map_option("--depth-unit", metavar="UNIT", help="Its unit: mm, m, ...  [default: guessed, with a note]")
@depth_map_option("--range", "ranges", is_flag=True, help="It holds distances along the rays, not depth.")
@depth_map_option("--confidence", type=PATH, metavar="FILE", help="Confidence of each of its pixels.")
@output_option("-o", "--output", type=PATH, required=True, help="Sparse depth: .png (16 bit), .npy, .npz, .exr ...")
@output_option("--output-unit", metavar="UNIT", help="[default: mm for png, kitti beyond 65 m; m for other formats]")
@run_option("--strict", is_flag=True, help="Exit with code 1 if the points do not line up with --image.")
@quiet_flag
def command(
    image: Path | None, rotate: str, output: Path, output_unit: str | None, strict: bool, quiet: bool, **values: Any
) -> int:
    """Project the points of CLOUD into a camera: sparse metric depth for 'leadline complete'."""
    from leadline.batch.projection import write_projection
    from leadline.io.placement import CloudFiles, ProjectionOptions

    if strict and image is None:
        raise InputError(f"{param('strict')} compares the points with the image; add {param('image')}.")
    files = take_fields(CloudFiles, values)
    options = ProjectionOptions(rotate=int(rotate), **values)  # type: ignore[arg-type]
    result = write_projection(files, options, output, image=image, output_unit=output_unit)
    say_notes(result.notes)
    if not quiet:
        click.echo(str(result.projection))
        click.echo("\n".join(f"wrote {path}" for path in result.files))
    return 1 if strict and not result.aligned else 0
