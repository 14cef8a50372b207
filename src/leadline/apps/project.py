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
from leadline.core.types import Camera, FileError, InputError, json_ready

if TYPE_CHECKING:
    from leadline.sensors.alignment import Alignment
    from leadline.sensors.cameras import ColmapCamera
    from leadline.sensors.projection import Projection

EXAMPLES = """\b
Examples:
  leadline project sweep.pcd --camera cam.json --extrinsics lidar_to_camera.json -o sparse.png
  leadline project sweep.pcd --camera cam.json --extrinsics lidar_to_camera.json --image photo.jpg -o sparse.png
  leadline project 0000000005.bin --kitti calib/ --image 0000000005.png -o sparse.png
  leadline project 0000000005.bin --kitti calib/ --velocity 12.8,0,0 --period 0.1036 -o sparse.png
  leadline project sparse/0 --image images/frame_0001.jpg -o sparse.npy
  leadline project tof.png --depth-camera tof.json --depth-unit mm --camera cam.json --extrinsics T.json -o sparse.png

\b
CLOUD is PLY, PCD, LAS, LAZ, KITTI's .bin, npy, npz, or the folder of a COLMAP model.
cam.json: {"width", "height", "fx", "fy", "cx", "cy"}; a lens adds "model" and "params".
T.json takes points from the cloud's frame to the camera's: 4x4, or {"rotation":
quaternion w, x, y, z, "translation"}, {"inverse": ...}, {"chain": [...]}.

\b
It writes the depth, a sidecar .json that says how it came about and, with --image,
NAME_points.png with the points over the image.

\b
Exit code: 0 done; 1 with --strict, if the points do not line up with the image; 2 nothing could be done.
"""

_PATH = click.Path(path_type=Path)
_TURNS = {"0": 0, "90": -1, "180": 2, "270": 1}  # clockwise degrees as counter-clockwise quarters


@click.command(epilog=EXAMPLES)
@click.argument("cloud", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="Sparse depth: .png (16 bit), .npy, .npz, .exr ...")
@click.option("--camera", type=_PATH, metavar="FILE", help="Camera of the image, JSON.")
@click.option("--extrinsics", type=_PATH, metavar="FILE", help="Cloud to camera, JSON.  [default: the same frame]")
@click.option("--kitti", type=_PATH, metavar="DIR", help="calib_*.txt of KITTI, in place of the two above.")
@click.option("--kitti-camera", type=click.IntRange(0, 3), default=2, show_default=True, help="Which of its cameras.")
@click.option("--colmap-image", metavar="NAME", help="Image of a COLMAP model.  [default: the file name of --image]")
@click.option("--image", type=_PATH, help="The picture: checks that the points line up, and draws them over it.")
@click.option("--key", help="Array of an npz cloud.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Metres per unit of the cloud.")
@click.option("--min-confidence", type=float, help="Leave out points below it; COLMAP's is sqrt(track length) / error.")
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
    from leadline.sensors.depth_files import read_image
    from leadline.sensors.grids import turn

    picture = None if image is None else read_image(image)
    placed = moved(place(cloud, image, flags), flags)
    turns = _TURNS[flags["rotate"]]
    size = None if picture is None else (picture.shape[1], picture.shape[0])
    if size is not None and turns % 2:
        size = size[1], size[0]
    camera, notes = fitted(placed.camera, size)
    projection = _projected(cloud, placed, camera, flags)
    depth, removed = (turn(values, turns) for values in (projection.depth, projection.removed))
    from leadline.sensors.alignment import check_alignment
    from leadline.sensors.atomic import write_text

    alignment = None if picture is None else check_alignment(depth, picture)
    unit, wide = _write(files["depth"], depth, flags["output_unit"])
    notes = (*placed.notes, *notes, *wide)
    if alignment is not None and not (alignment.aligned and alignment.known):
        notes = (*notes, str(alignment))
    if picture is not None and alignment is not None:
        _draw(files["picture"], depth, removed, picture, projection, alignment)
    named = {name: flags[name] for name in ("camera", "extrinsics", "kitti", "depth_camera", "trajectory")}
    inputs = {"cloud": cloud, "image": image, **named}
    record = {
        "leadline": version(),
        "inputs": {name: str(path) for name, path in inputs.items() if path is not None},
        "outputs": {name: path.name for name, path in files.items() if name != "sidecar"},
        "unit": unit,
        **_described(camera, placed, projection, turns),
        "alignment": None if alignment is None else {**vars(alignment), "aligned": alignment.aligned},
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()},
        "notes": notes,
    }
    write_text(files["sidecar"], json.dumps(json_ready(record), indent=2, allow_nan=False) + "\n")
    for note in notes:
        say("note", note)
    if not flags["quiet"]:
        click.echo(_summary(projection, depth))
        click.echo("\n".join(f"wrote {path}" for path in files.values()))
    return 1 if flags["strict"] and alignment is not None and not alignment.aligned else 0


def _refuse_idle(flags: Mapping[str, Any], image: Path | None) -> None:
    """Refuse options that would be ignored."""
    if flags["kitti"] is not None and (flags["camera"] or flags["extrinsics"]):
        raise InputError("--kitti has the camera and the extrinsics; leave out --camera and --extrinsics.")
    if flags["see_through"] is False and flags["see_through_radius"]:
        raise InputError("--see-through-radius is for --see-through; leave one of the two out.")
    if flags["depth_camera"] is None and (flags["ranges"] or flags["depth_unit"]):
        raise InputError("--range and --depth-unit are for a depth map; add its --depth-camera, or leave them out.")
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
    from leadline.sensors.depth_files import DEPTH_SUFFIXES

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
    from leadline.sensors.extrinsics import inverse
    from leadline.sensors.projection import project

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
    from leadline.sensors.depth_files import write_depth

    first = unit or ("mm" if path.suffix.lower() == ".png" else "m")
    try:
        write_depth(path, depth, first)
        return first, ()
    except InputError:
        if unit is not None or first != "mm":
            raise
    write_depth(path, depth, "kitti")
    return "kitti", ("the depth reaches beyond 65.5 m and was written in 1/256 m: read it with --unit kitti.",)


def _draw(path: Path, depth: Any, removed: Any, image: Any, projection: Projection, alignment: Alignment) -> None:
    import numpy as np

    from leadline.report.colour import dots, limits
    from leadline.report.panel import Bar, Tile, panel
    from leadline.sensors.depth_files import atomic_write

    low, high = limits(depth)
    bar = Bar("depth", f"{low:.1f} m", f"{high:.1f} m")
    tiles = [Tile(dots(depth, image, low=low, high=high), "points", f"{int(np.isfinite(depth).sum())} pixels", bar)]
    if projection.radius:
        count = int(np.isfinite(removed).sum())
        shown = dots(removed, image, low=low, high=high, radius=3)
        tiles.append(Tile(shown, "removed as seen through", f"{count} pixels, window of {projection.radius}", bar))
    width = min(image.shape[1], 1200)
    picture = panel([[tile] for tile in tiles], heading=path.stem, note=alignment.verdict, tile_width=max(width, 120))
    atomic_write(path, lambda part: picture.save(part, format="PNG"))


def _described(camera: Camera | ColmapCamera, placed: Placed, projection: Projection, turns: int) -> dict[str, Any]:
    from leadline.sensors.cameras import camera_record, turn_camera

    seen = turn_camera(camera, turns) if isinstance(camera, Camera) else camera
    return {
        "camera": camera_record(seen),
        "turned_after_projection": 0 if isinstance(camera, Camera) else turns,
        "cloud_to_camera": placed.transform.tolist(),
        "points": {
            "read": len(placed.cloud),
            "in_range": projection.points,
            "pixels": projection.covered,
            "removed": projection.covered - int((projection.depth > 0).sum()),
        },
        "see_through_radius": projection.radius,
    }


def _summary(projection: Projection, depth: Any) -> str:
    import numpy as np

    left = int(np.isfinite(depth).sum())
    near, far = (float(value) for value in (np.nanmin(depth), np.nanmax(depth)))
    return (
        f"{left} of {depth.size} pixels have a depth, {near:.2f} to {far:.2f} m; "
        f"{projection.covered - left} were removed as seen through."
    )
