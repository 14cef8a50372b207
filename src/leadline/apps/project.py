"""`leadline project`: a point cloud, or the depth map of another camera, as sparse depth on the pixels of an image."""

from __future__ import annotations

import math
from pathlib import Path

import click

from leadline.apps.terminal.help import CAMERA, INPUTS, OUTPUTS, PATH, RUN, Numbers, grouped_command, option
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
MOTION, DEPTH_MAP, SEE_THROUGH = "Moving sensor", "Depth map of another camera", "See-through points"


@grouped_command(epilog=EXAMPLES)
@click.argument("cloud", type=PATH)
@option("--image", group=INPUTS, type=PATH, help="The image; the points are compared with it and drawn over it.")
@option("--key", group=INPUTS, help="Name of the array in an npz cloud.")
@option("--scale", group=INPUTS, type=float, default=1.0, show_default=True, help="Metres per unit of the cloud.")
@option(
    "--min-confidence",
    group=INPUTS,
    type=float,
    help="Leave out points of lower confidence; for COLMAP that is sqrt(track length) / error.",
)
@option(
    "--min-range", group=INPUTS, type=float, default=0.0, show_default=True, help="Leave out nearer points, metres."
)
@option("--max-range", group=INPUTS, type=float, default=math.inf, help="Leave out farther points (m).")
@option("--camera", group=CAMERA, type=PATH, metavar="FILE", help="Camera of the image, JSON.")
@option(
    "--extrinsics",
    group=CAMERA,
    type=PATH,
    metavar="FILE",
    help="Transform from the cloud to the camera, JSON.  [default: they have the same frame]",
)
@option(
    "--kitti",
    group=CAMERA,
    type=PATH,
    metavar="PATH",
    help="KITTI's calibration in place of the two above: the folder of calib_*.txt, or the one file of a benchmark.",
)
@option(
    "--kitti-camera",
    group=CAMERA,
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="Number of the camera in KITTI's calibration.",
)
@option(
    "--colmap-image",
    group=CAMERA,
    metavar="NAME",
    help="Name of the image in a COLMAP model.  [default: the file name of --image]",
)
@option(
    "--rotate",
    group=CAMERA,
    type=click.Choice(["0", "90", "180", "270"]),
    default="0",
    show_default=True,
    help="Degrees clockwise by which the image is turned from the grid of the camera.",
)
@option(
    "--see-through/--no-see-through",
    group=SEE_THROUGH,
    default=None,
    help="Remove points that show through nearer surfaces.  [default: yes, except for COLMAP's points]",
)
@option(
    "--see-through-radius",
    group=SEE_THROUGH,
    advanced=True,
    type=click.IntRange(1),
    help="Largest gap between near points, in pixels, that the removal bridges.  [default: 1.75 mean distances of "
    "points]",
)
@option(
    "--see-through-ratio",
    group=SEE_THROUGH,
    advanced=True,
    type=float,
    default=1.1,
    show_default=True,
    help="A point hides another one if it is nearer by this factor.",
)
@option("--velocity", group=MOTION, type=Numbers(), metavar="X,Y,Z", help="Along the sensor's own axes, m/s.")
@option("--turn-rate", group=MOTION, type=Numbers(), metavar="X,Y,Z", help="About the sensor's own axes, rad/s.")
@option(
    "--trajectory",
    group=MOTION,
    type=PATH,
    metavar="FILE",
    help="Poses of the sensor, 'time x y z qx qy qz qw' on each line.",
)
@option("--at", group=MOTION, type=float, metavar="TIME", help="Time of the image on the points' clock.  [default: 0]")
@option(
    "--period",
    group=MOTION,
    type=float,
    metavar="S",
    help="Seconds of one turn of the sensor: times follow from the azimuth, 0 straight ahead.",
)
@option("--counter-clockwise", group=MOTION, is_flag=True, help="The sensor turns so, seen from above; with --period.")
@option("--depth-camera", group=DEPTH_MAP, type=PATH, metavar="FILE", help="CLOUD is a depth map of this camera, JSON.")
@option("--depth-unit", group=DEPTH_MAP, metavar="UNIT", help="Its unit: mm, m, ...  [default: guessed, with a note]")
@option(
    "--range",
    "ranges",
    group=DEPTH_MAP,
    is_flag=True,
    help="It holds distances along the rays, not depth.",
)
@option("--confidence", group=DEPTH_MAP, type=PATH, metavar="FILE", help="Confidence of each of its pixels.")
@option(
    "-o", "--output", group=OUTPUTS, type=PATH, required=True, help="Sparse depth: .png (16 bit), .npy, .npz, .exr ..."
)
@option(
    "--output-unit", group=OUTPUTS, metavar="UNIT", help="[default: mm for png, kitti beyond 65 m; m for other formats]"
)
@option("--strict", group=RUN, is_flag=True, help="Exit with code 1 if the points do not line up with --image.")
@option("--quiet", group=RUN, is_flag=True, help="Print only notes and errors.")
def command(
    cloud: Path,
    image: Path | None,
    key: str | None,
    scale: float,
    min_confidence: float | None,
    min_range: float,
    max_range: float,
    camera: Path | None,
    extrinsics: Path | None,
    kitti: Path | None,
    kitti_camera: int,
    colmap_image: str | None,
    rotate: str,
    see_through: bool | None,
    see_through_radius: int | None,
    see_through_ratio: float,
    velocity: tuple[float, ...] | None,
    turn_rate: tuple[float, ...] | None,
    trajectory: Path | None,
    at: float | None,
    period: float | None,
    counter_clockwise: bool,
    depth_camera: Path | None,
    depth_unit: str | None,
    ranges: bool,
    confidence: Path | None,
    output: Path,
    output_unit: str | None,
    strict: bool,
    quiet: bool,
) -> int:
    """Project the points of CLOUD into a camera: sparse metric depth for 'leadline complete'."""
    from leadline.apps.terminal.messages import say_notes
    from leadline.batch.projection import write_projection
    from leadline.io.placement import CloudFiles, ProjectionOptions

    if strict and image is None:
        raise InputError(f"{param('strict')} compares the points with the image; add {param('image')}.")
    files = CloudFiles(
        cloud=cloud,
        camera=camera,
        extrinsics=extrinsics,
        kitti=kitti,
        depth_camera=depth_camera,
        confidence=confidence,
        trajectory=trajectory,
    )
    options = ProjectionOptions(
        key=key,
        kitti_camera=kitti_camera,
        colmap_image=colmap_image,
        depth_unit=depth_unit,
        ranges=ranges,
        scale=scale,
        min_confidence=min_confidence,
        min_range=min_range,
        max_range=max_range,
        see_through=see_through,
        see_through_radius=see_through_radius,
        see_through_ratio=see_through_ratio,
        rotate=int(rotate),  # type: ignore[arg-type]
        velocity=velocity,
        turn_rate=turn_rate,
        at=at,
        period=period,
        counter_clockwise=counter_clockwise,
    )
    result = write_projection(files, options, output, image=image, output_unit=output_unit)
    say_notes(result.notes)
    if not quiet:
        click.echo(str(result.projection))
        click.echo("\n".join(f"wrote {path}" for path in result.files))
    return 1 if strict and not result.aligned else 0
