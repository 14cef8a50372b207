"""`leadline project`: a point cloud, or another camera's depth map, as sparse depth on an image's grid."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.cli import say, version
from leadline.apps.options import Numbers
from leadline.apps.placement import Placed, fitted, moved, place
from leadline.base.errors import FileError, InputError
from leadline.base.strict_json import json_ready
from leadline.geometry.cameras import Camera

if TYPE_CHECKING:
    from leadline.geometry.lenses import ColmapCamera
    from leadline.geometry.projection import Projection

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
T.json takes points from the cloud's frame to the camera's: 4x4, or {"rotation":
quaternion w, x, y, z, "translation"}, {"inverse": ...}, {"chain": [...]}.

\b
It writes the depth, a sidecar .json that says how it came about and, with --image,
NAME_points.png: the points over the image, and those that were dropped, by reason.

\b
Exit code: 0 done; 1 with --strict, if the points do not line up with the image; 2 nothing could be done.
"""

_PATH = click.Path(path_type=Path)
_FILES = ("camera", "extrinsics", "kitti", "depth_camera", "confidence", "trajectory")  # among the flags
_TURNS = {"0": 0, "90": -1, "180": 2, "270": 1}  # clockwise degrees as counter-clockwise quarters


@click.command(epilog=EXAMPLES)
@click.argument("cloud", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="Sparse depth: .png (16 bit), .npy, .npz, .exr ...")
@click.option("--camera", type=_PATH, metavar="FILE", help="Camera of the image, JSON.")
@click.option("--extrinsics", type=_PATH, metavar="FILE", help="Cloud to camera, JSON.  [default: the same frame]")
@click.option(
    "--kitti",
    type=_PATH,
    metavar="PATH",
    help="KITTI's calibration in place of the two above: the folder of calib_*.txt, or the one file of its benchmarks.",
)
@click.option("--kitti-camera", type=click.IntRange(0, 3), default=2, show_default=True, help="Which of its cameras.")
@click.option("--colmap-image", metavar="NAME", help="Image of a COLMAP model.  [default: the file name of --image]")
@click.option("--image", type=_PATH, help="The picture: checks that the points line up, and draws them over it.")
@click.option("--key", help="Array of an npz cloud.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Metres per unit of the cloud.")
@click.option("--min-confidence", type=float, help="Leave out points below it; COLMAP's is sqrt(track length) / error.")
@click.option("--confidence", type=_PATH, metavar="FILE", help="Of a depth map with --depth-camera, of its size.")
@click.option("--min-range", type=float, default=0.0, show_default=True, help="Leave out points nearer, in metres.")
@click.option("--max-range", type=float, default=math.inf, help="Leave out points farther, in metres.")
@click.option(
    "--see-through/--no-see-through",
    default=None,
    help="Remove points that show through nearer surfaces.  [default: yes, but not for COLMAP's]",
)
@click.option(
    "--see-through-radius", type=click.IntRange(1), help="Pixels it bridges.  [default: 1.75 mean distances of points]"
)
@click.option("--see-through-ratio", type=float, default=1.1, show_default=True, help="How much nearer hides a point.")
@click.option(
    "--rotate",
    type=click.Choice(list(_TURNS)),
    default="0",
    show_default=True,
    help="Degrees clockwise that the image is turned from the camera's own grid.",
)
@click.option("--velocity", type=Numbers(), metavar="X,Y,Z", help="Of the sensor along its own axes, m/s.")
@click.option("--turn-rate", type=Numbers(), metavar="X,Y,Z", help="Of the sensor about its own axes, rad/s.")
@click.option("--trajectory", type=_PATH, metavar="FILE", help="Sensor poses, 'time x y z qx qy qz qw' a line.")
@click.option("--at", type=float, metavar="TIME", help="Time of the image on the points' clock.  [default: 0]")
@click.option("--period", type=float, metavar="S", help="Of one turn: times from azimuth, 0 straight ahead.")
@click.option("--counter-clockwise", is_flag=True, help="The sensor turns so, seen from above; with --period.")
@click.option("--depth-camera", type=_PATH, metavar="FILE", help="CLOUD is a depth map of this camera.")
@click.option("--depth-unit", metavar="UNIT", help="Of such a map: mm, m, ...  [default: guessed aloud]")
@click.option("--range", "ranges", is_flag=True, help="Such a map holds distances along its rays, not depth.")
@click.option("--output-unit", metavar="UNIT", help="[default: mm for png, kitti beyond 65 m; m for the others]")
@click.option("--strict", is_flag=True, help="Exit with 1 if the points do not line up with --image.")
@click.option("--quiet", is_flag=True, help="Only notes and errors.")
def command(cloud: Path, output: Path, image: Path | None, **flags: Any) -> int:
    """Project CLOUD into a camera: sparse metric depth for `leadline complete`."""
    _refuse_idle(flags, image)
    files = _outputs(output, image, cloud)
    from leadline.geometry.grids import turn
    from leadline.io.depth.files import read_image

    picture = None if image is None else read_image(image)
    turns = _TURNS[flags["rotate"]]
    size = None if picture is None else (picture.shape[1], picture.shape[0])
    if size is not None and turns % 2:
        size = size[1], size[0]
    read = place(cloud, image, flags, size)
    placed = moved(read, flags)
    camera, notes = fitted(placed.camera, size)
    projection = _projected(cloud, placed, camera, flags)
    depth = turn(projection.depth, turns)
    counts = _counts(len(read.cloud), len(placed.cloud), projection)
    from leadline.geometry.alignment import check_alignment
    from leadline.geometry.projection import project, surroundings
    from leadline.io.atomic import atomic_write, write_text
    from leadline.report.points import points_picture

    alignment = None if picture is None else check_alignment(depth, picture)
    unit, wide = _write(files["depth"], depth, flags["output_unit"])
    notes = (*placed.notes, *notes, *wide)
    if alignment is not None and not (alignment.aligned and alignment.known):
        notes = (*notes, str(alignment))
    if picture is not None and alignment is not None:
        around = surroundings(placed.cloud.points, placed.transform, camera, margin=max(picture.shape) // 16)
        dropped = {
            f"seen through, {counts['seen_through']}": projection.removed,
            f"out of range, {counts['out_of_range']}": projection.out_of_range,
            f"outside the picture, {counts['outside']} in all": around,
        }
        if counts["doubted"]:
            doubted = moved(read, flags, doubted=True)
            shown = project(doubted.cloud.points, doubted.transform, camera, see_through_radius=0).depth
            dropped[f"below the confidence, {counts['doubted']}"] = shown
        turned = {words: turn(values, turns) for words, values in dropped.items()}
        drawn = points_picture(picture, depth, turned, heading=files["picture"].stem, note=alignment.verdict)
        atomic_write(files["picture"], lambda part: drawn.save(part, format="PNG"))
    inputs = {"cloud": cloud, "image": image, **{name: flags[name] for name in _FILES}}
    record = {
        "leadline": version(),
        "inputs": {name: str(path) for name, path in inputs.items() if path is not None},
        "outputs": {name: path.name for name, path in files.items() if name != "sidecar"},
        "unit": unit,
        **_described(camera, placed, projection, turns),
        "points": counts,
        "alignment": None if alignment is None else {**vars(alignment), "aligned": alignment.aligned},
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()},
        "notes": notes,
    }
    write_text(files["sidecar"], json.dumps(json_ready(record), indent=2, allow_nan=False) + "\n")
    for note in notes:
        say("note", note)
    if not flags["quiet"]:
        click.echo(_summary(depth, counts))
        click.echo("\n".join(f"wrote {path}" for path in files.values()))
    return 1 if flags["strict"] and alignment is not None and not alignment.aligned else 0


def _refuse_idle(flags: Mapping[str, Any], image: Path | None) -> None:
    """Refuse options that would be ignored."""
    if flags["kitti"] is not None and (flags["camera"] or flags["extrinsics"]):
        raise InputError("--kitti has the camera and the extrinsics; leave out --camera and --extrinsics.")
    if flags["see_through"] is False and flags["see_through_radius"]:
        raise InputError("--see-through-radius is for --see-through; leave one of the two out.")
    if flags["depth_camera"] is None and (flags["ranges"] or flags["depth_unit"] or flags["confidence"]):
        raise InputError(
            "--range, --depth-unit and --confidence are for a depth map; add its --depth-camera, or leave them out."
        )
    if flags["confidence"] is not None and flags["min_confidence"] is None:
        raise InputError("--confidence alone leaves nothing out; say with --min-confidence what is enough.")
    moving = flags["velocity"] or flags["turn_rate"]
    if moving and flags["trajectory"]:
        raise InputError("--trajectory says how the sensor moves; leave out --velocity and --turn-rate.")
    if not (moving or flags["trajectory"]) and (flags["period"] or flags["at"] is not None):
        raise InputError(
            "--period and --at are for a moving sensor; add --velocity or --trajectory, or leave them out."
        )
    if flags["counter_clockwise"] and not flags["period"]:
        raise InputError("--counter-clockwise is about the times that --period makes; add --period.")
    if flags["strict"] and image is None:
        raise InputError("--strict is about points that do not line up with the image; add --image.")
    for name in ("velocity", "turn_rate"):
        if flags[name] is not None and len(flags[name]) != 3:
            raise InputError(f"--{name.replace('_', '-')} must be three numbers x,y,z, got {len(flags[name])} instead.")
    if not (flags["scale"] > 0 and math.isfinite(flags["scale"])):
        raise InputError(f"--scale must be a positive number of metres per unit, got {flags['scale']}.")


def _outputs(output: Path, image: Path | None, cloud: Path) -> dict[str, Path]:
    from leadline.io.depth.files import DEPTH_SUFFIXES

    if output.suffix.lower() not in DEPTH_SUFFIXES:
        raise InputError(f"-o {output}: give a file with one of the suffixes {', '.join(DEPTH_SUFFIXES)}.")
    if not output.parent.is_dir():
        raise FileError(f"-o {output}: the folder {output.parent} does not exist. Make it first.")
    files = {"depth": output}
    if image is not None:
        files["picture"] = output.with_name(f"{output.stem}_points.png")
    files["sidecar"] = output.with_suffix(".json")
    inputs = {path.resolve() for path in (image, cloud) if path is not None}
    for path in files.values():
        if path.resolve() in inputs:
            raise InputError(f"{path}: would be written over an input; choose another -o.")
    return files


def _projected(path: Path, placed: Placed, camera: Camera | ColmapCamera, flags: Mapping[str, Any]) -> Projection:
    from leadline.geometry.poses import inverse
    from leadline.geometry.projection import project

    wanted = not placed.visible if flags["see_through"] is None else flags["see_through"]
    options = {
        "min_range": flags["min_range"],
        "max_range": flags["max_range"],
        "see_through_radius": flags["see_through_radius"] if wanted else 0,
        "see_through_ratio": flags["see_through_ratio"],
    }
    points = placed.cloud.points
    found = project(points, placed.transform, camera, **options)
    if found.covered:
        return found
    back = project(points, inverse(placed.transform), camera, **options).covered
    hint = "check the extrinsics, the camera and --scale"
    if flags["extrinsics"] is None and flags["kitti"] is None and not placed.visible:
        hint = "give the --extrinsics: the axes of a LiDAR are not those of a camera"
    if back:
        hint = f'with the inverse of the extrinsics {back} pixels would have one: try {{"inverse": ...}}'
    elif not found.points:
        hint = "no point is inside --min-range, --max-range and --min-confidence"
    raise InputError(f"{path}: none of its {len(points)} points falls into the image; {hint}.")


def _write(path: Path, depth: Any, unit: str | None) -> tuple[str, tuple[str, ...]]:
    """Write the depth; 16 bits in millimetres end at 65.5 m, which a LiDAR does not."""
    from leadline.io.depth.files import write_depth

    first = unit or ("mm" if path.suffix.lower() == ".png" else "m")
    try:
        write_depth(path, depth, first)
        return first, ()
    except InputError:
        if unit is not None or first != "mm":
            raise
    write_depth(path, depth, "kitti")
    return "kitti", ("the depth reaches beyond 65.5 m and was written in 1/256 m: read it with --unit kitti.",)


def _described(camera: Camera | ColmapCamera, placed: Placed, projection: Projection, turns: int) -> dict[str, Any]:
    from leadline.geometry.lenses import turn_camera
    from leadline.io.cameras import camera_record

    seen = turn_camera(camera, turns) if isinstance(camera, Camera) else camera
    return {
        "camera": camera_record(seen),
        "turned_after_projection": 0 if isinstance(camera, Camera) else turns,
        "cloud_to_camera": placed.transform.tolist(),
        "see_through_radius": projection.radius,
    }


def _counts(read: int, trusted: int, projection: Projection) -> dict[str, int]:
    """What became of the points that were read; `seen_through` and `pixels` count pixels, and so does their sum."""
    left = int((projection.depth > 0).sum())
    return {
        "read": read,
        "doubted": read - trusted,
        "out_of_range": trusted - projection.points,
        "outside": projection.points - projection.inside,
        "hidden_in_a_pixel": projection.inside - projection.covered,
        "seen_through": projection.covered - left,
        "pixels": left,
    }


def _summary(depth: Any, counts: Mapping[str, int]) -> str:
    import numpy as np

    near, far = (float(value) for value in (np.nanmin(depth), np.nanmax(depth)))
    names = {
        "doubted": "below the confidence",
        "out_of_range": "out of range",
        "outside": "outside the picture",
        "hidden_in_a_pixel": "behind another in their pixel",
        "seen_through": "seen through",
    }
    dropped = ", ".join(f"{counts[name]} {words}" for name, words in names.items() if counts[name])
    return (
        f"{counts['pixels']} of {depth.size} pixels have a depth, {near:.2f} to {far:.2f} m; "
        f"of {counts['read']} points {dropped or 'none'} were dropped."
    )
