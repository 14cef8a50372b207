"""`leadline complete`: what the command accepts, and the checks that come before any work."""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import click

from leadline.apps.cli import say
from leadline.apps.frame import FORMS, run_frame
from leadline.apps.inputs import Frame, Settings, read_camera
from leadline.apps.options import Numbers, completion_flags, completion_options
from leadline.core.types import FileError, InputError, PriorKind

EXAMPLES = """\b
Examples:
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior disparity.npy --prior-kind disparity -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/ --ply --camera cam.json
  leadline complete frames/ --sparse depth/ --unit mm --prior priors/ -o out/ --jobs 2

\b
For each frame STEM it writes STEM_depth.png (16 bit, mm), STEM_preview.png and,
last, STEM.json, which says how the depth came about. A folder that was stopped
goes on where it was.

\b
Exit code: 0 all done; 1 a frame of a folder failed; 2 nothing could be done;
130 stopped by Ctrl-C.
"""

_PATH = click.Path(path_type=Path)


@click.command(epilog=EXAMPLES)
@click.argument("image", type=_PATH)
@click.option(
    "--sparse",
    type=_PATH,
    required=True,
    help="Measured depth, a file or a folder; 0, NaN and inf mean not measured.",
)
@click.option("--prior", type=_PATH, required=True, help="Dense relative depth, a file or a folder.")
@click.option("-o", "--output", type=_PATH, required=True, help="Folder for the results; made if it is not there.")
@click.option(
    "--unit", help="Unit of --sparse: mm, cm, m, kitti, tum ... or metres per count. If missing, guessed aloud."
)
@click.option(
    "--prior-kind",
    type=click.Choice(get_args(PriorKind)),
    default="depth",
    show_default=True,
    help="What the prior's numbers are.",
)
@click.option(
    "--prior-floor",
    type=float,
    default=0.0,
    show_default=True,
    help="For disparity: raise values below this share of the largest one to it.",
)
@click.option("--valid", type=_PATH, help="Mask, a file or a folder: > 0 where prior and measurements may be used.")
@click.option("--resize-prior", is_flag=True, help="Interpolate a prior of another size to the image's.")
@click.option(
    "--scatter-sparse",
    is_flag=True,
    help="Move measurements of a map of another size to the nearest pixels; of several in one, the nearest stays.",
)
@click.option("--form", type=click.Choice(list(FORMS)), default="png", show_default=True, help="Form of the depth.")
@click.option("--output-unit", help="Unit of the depth written.  [default: mm for png, m for the others]")
@click.option("--calibrated", is_flag=True, help="Also write the response-only depth.")
@click.option("--ply", is_flag=True, help="Also write a coloured point cloud; needs --intrinsics or --camera.")
@click.option(
    "--intrinsics", type=Numbers(), metavar="FX,FY,CX,CY", help="Pinhole camera in pixels; centres at integers."
)
@click.option("--camera", type=_PATH, metavar="FILE", help="The same as JSON: {width, height, fx, fy, cx, cy}.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Worker processes, for folders.")
@click.option("--overwrite", is_flag=True, help="Redo frames that are complete already.")
@click.option("--quiet", is_flag=True, help="Only notes and errors.")
@completion_flags
def command(image: Path, sparse: Path, prior: Path, valid: Path | None, output: Path, **flags: Any) -> int:
    """Complete IMAGE, a picture or a folder of pictures, from sparse metric depth and a dense relative prior.

    In folders, the files of a frame have the same name up to the suffix.
    """
    inputs = {"IMAGE": image, "--sparse": sparse, "--prior": prior}
    if valid is not None:
        inputs["--valid"] = valid
    settings = _settings(flags)
    folders = _are_folders(inputs)
    if not folders and flags["jobs"] > 1:
        raise InputError("--jobs is for folders; one image uses all cores by itself.")
    if folders and any(path.resolve() == output.resolve() for path in inputs.values()):
        raise InputError(
            f"-o {output}: is one of the input folders, and results would be taken for inputs; choose another."
        )
    _make_writable(output)
    if folders:
        from leadline.apps.folder import run_folder

        return run_folder(
            inputs, settings, output, jobs=flags["jobs"], overwrite=flags["overwrite"], quiet=flags["quiet"]
        )
    outcome = run_frame(Frame(image.stem, image, sparse, prior, valid), settings, output, overwrite=flags["overwrite"])
    for note in outcome.notes:
        say("note", note)
    if not flags["quiet"]:
        written = [f"wrote {path}" for path in outcome.outputs]
        click.echo("\n".join([f"{image.stem}: {outcome.message}", *written]))
    return 0


def _settings(flags: Mapping[str, Any]) -> Settings:
    """The flags as `Settings`; those that would be ignored are refused."""
    intrinsics, camera = flags["intrinsics"], flags["camera"]
    if (intrinsics or camera) and not flags["ply"]:
        raise InputError("--intrinsics and --camera are for the point cloud; add --ply, or leave them out.")
    if flags["ply"] and (intrinsics is None) == (camera is None):
        raise InputError("--ply needs one of --intrinsics fx,fy,cx,cy and --camera cam.json.")
    if intrinsics is not None and len(intrinsics) != 4:
        raise InputError(f"--intrinsics must be the four numbers fx,fy,cx,cy, got {len(intrinsics)} instead.")
    if flags["prior_floor"] and flags["prior_kind"] != "disparity":
        raise InputError(f"--prior-floor is for --prior-kind disparity only, got --prior-kind {flags['prior_kind']}.")
    for name in ("unit", "output_unit"):
        _check_unit(name, flags[name])
    plain = ("unit", "prior_kind", "prior_floor", "resize_prior", "scatter_sparse", "form", "calibrated", "ply")
    return Settings(
        **{name: flags[name] for name in plain},
        output_unit=flags["output_unit"] or FORMS[flags["form"]][1],
        intrinsics=intrinsics,
        camera=None if camera is None else read_camera(camera),
        completion=completion_options(flags),
    )


def _check_unit(name: str, unit: str | None) -> None:
    """Refuse an unknown unit before the first file is read."""
    from leadline.sensors.units import as_unit

    if unit is not None:
        try:
            as_unit(unit)
        except InputError as error:
            raise InputError(str(error).replace("`unit`", f"--{name}".replace("_", "-"))) from error


def _are_folders(inputs: Mapping[str, Path]) -> bool:
    """Whether the inputs are folders; refuses missing ones, and files mixed with folders."""
    for name, path in inputs.items():
        if not path.exists():
            near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            close = difflib.get_close_matches(path.name, near, n=1)
            hint = f"did you mean {path.parent / close[0]}?" if close else "check the path."
            raise FileError(f"{name} {path}: there is no such file; {hint}")
    kinds = {name: path.is_dir() for name, path in inputs.items()}
    if len(set(kinds.values())) > 1:
        named = ", ".join(f"{name} is a {'folder' if folder else 'file'}" for name, folder in kinds.items())
        raise InputError(f"{named}; give files only, or folders only.")
    return kinds["IMAGE"]


def _make_writable(output: Path) -> None:
    """Make the folder, and find out now rather than after the first solve whether it takes files."""
    probe = output / f".{secrets.token_hex(4)}.part"
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"-o {output}: cannot write there ({error.strerror}); choose a folder of your own.") from error
