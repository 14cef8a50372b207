"""`leadline complete`: what the command accepts, and the checks that come before any work."""

from __future__ import annotations

import difflib
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from leadline.apps.cli import say
from leadline.apps.network import Network, given_flags, prior_flags
from leadline.apps.options import Numbers, completion_flags, completion_options
from leadline.base.errors import FileError, InputError
from leadline.batch.frame import FORMS, run_frame
from leadline.io.frames import Frame, Settings

EXAMPLES = """\b
Examples:
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior disparity.npy --prior-kind disparity -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/ --ply --camera cam.json
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior onnx:model.onnx -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior none -o out/
  leadline complete photo.jpg --points sweep.npy --camera cam.json --extrinsics T.json --prior prior.npy -o out/
  leadline complete photo.jpg --sparse tof.png --scatter-sparse --confidence levels.png --prior prior.npy -o out/
  leadline complete frames/ --sparse depth/ --unit mm --prior priors/ -o out/ --jobs 2
  leadline complete frames/ --sparse depth/ --unit mm --prior onnx:model.onnx -o out/

\b
For each frame STEM it writes STEM_depth.png (16 bit, in the unit of --sparse),
STEM_preview.png and, last, STEM.json, which says how the depth came about. A
folder that was stopped goes on where it was. 'leadline priors' lists the names
that --prior takes.

\b
Exit code: 0 all done; 1 a frame of a folder failed; 2 nothing could be done;
130 stopped by Ctrl-C.
"""

MIN_CONFIDENCE = 2
_PATH = click.Path(path_type=Path)


@click.command(epilog=EXAMPLES)
@click.argument("image", type=_PATH)
@click.option(
    "--sparse",
    type=_PATH,
    help="Measured depth, a file or a folder; 0, NaN and inf mean not measured.",
)
@click.option(
    "--points",
    type=_PATH,
    metavar="CLOUD",
    help="In place of --sparse: a point cloud, projected first as 'leadline project' does; with --camera or --kitti.",
)
@click.option(
    "--prior",
    required=True,
    metavar="PATH|NAME[:MODEL]",
    help="Dense relative depth: a file, a folder, or a network by its name, with the path or id of its model.",
)
@click.option("-o", "--output", type=_PATH, required=True, help="Folder for the results; made if it is not there.")
@click.option(
    "--unit", help="Unit of --sparse: mm, cm, m, kitti, tum ... or metres per count. If missing, guessed aloud."
)
@prior_flags
@click.option("--valid", type=_PATH, help="Mask, a file or a folder: > 0 where prior and measurements may be used.")
@click.option("--resize-prior", is_flag=True, help="Interpolate a prior of another size to the image's.")
@click.option(
    "--scatter-sparse",
    is_flag=True,
    help="Move measurements of a map of another size to the nearest pixels; of several in one, the nearest stays.",
)
@click.option(
    "--confidence", type=_PATH, help="How far each pixel of --sparse is trusted, of its size: a file or a folder."
)
@click.option(
    "--min-confidence",
    type=float,
    help=f"Leave out measurements with less.  [default: {MIN_CONFIDENCE}, the highest of ARKit's levels]",
)
@click.option("--form", type=click.Choice(list(FORMS)), default="png", show_default=True, help="Form of the depth.")
@click.option(
    "--output-unit",
    help="Unit of the depth written.  [default: m; for png that of --sparse if it is a centimetre or finer and holds "
    "the depth, else mm]",
)
@click.option("--calibrated", is_flag=True, help="Also write the response-only depth.")
@click.option(
    "--sigma",
    is_flag=True,
    help="Also write the depth's standard deviation in metres (.npy beside a png), at three times the cost.",
)
@click.option(
    "--noise",
    type=Numbers(),
    metavar="C[,P[,Q]]",
    help="Standard deviation of a measurement z: C metres, P z and Q z^2, added in the square.  [default: exact]",
)
@click.option("--ply", is_flag=True, help="Also write a coloured point cloud, with your camera or the prior's.")
@click.option(
    "--intrinsics", type=Numbers(), metavar="FX,FY,CX,CY", help="Pinhole camera in pixels; centres at integers."
)
@click.option(
    "--camera",
    type=_PATH,
    metavar="FILE",
    help="The same as JSON: {width, height, fx, fy, cx, cy}; a lens adds model and params.",
)
@click.option("--extrinsics", type=_PATH, metavar="FILE", help="Of --points, from the cloud to the camera, JSON.")
@click.option("--kitti", type=_PATH, metavar="PATH", help="Of --points: KITTI's calibration in place of these two.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Worker processes, for folders.")
@click.option("--overwrite", is_flag=True, help="Redo frames that are complete already.")
@click.option("--quiet", is_flag=True, help="Only notes and errors.")
@completion_flags
def command(image: Path, sparse: Path | None, prior: str, output: Path, **flags: Any) -> int:
    """Complete IMAGE, a picture or a folder of pictures, from sparse metric depth and a dense relative prior.

    In folders, the files of a frame have the same name up to the suffix.
    """
    file = prior_file(prior)
    measured = _measurements(sparse, flags)
    named = {"IMAGE": image, **measured, "--prior": file, "--valid": flags["valid"]}
    named["--confidence"] = flags["confidence"]
    inputs = {name: path for name, path in named.items() if path is not None}
    network = _network(prior, flags) if file is None else None
    flags["min_confidence"] = _least(flags)
    settings = _settings(flags, network)
    folders = _are_folders(inputs)
    if not folders and flags["jobs"] > 1:
        raise InputError("--jobs is for folders; one image uses all cores by itself.")
    if folders and any(path.resolve() == output.resolve() for path in inputs.values()):
        raise InputError(
            f"-o {output}: is one of the input folders, and results would be taken for inputs; choose another."
        )
    make_writable(output)
    if network is not None:
        network.source  # noqa: B018  what is wrong with it is better said once than for each frame
    if folders:
        from leadline.batch.folder import run_folder

        return run_folder(
            inputs,
            settings,
            output,
            network=network,
            jobs=flags["jobs"],
            overwrite=flags["overwrite"],
            quiet=flags["quiet"],
        )
    if sparse is None:
        sparse, unit = _projected(image, output, flags)
        settings = replace(settings, unit=unit)
    frame = Frame(image.stem, image, sparse, file, flags["valid"], flags["confidence"])
    outcome = run_frame(frame, settings, output, network=network, overwrite=flags["overwrite"])
    for note in outcome.notes:
        say("note", note)
    if not flags["quiet"]:
        written = [f"wrote {path}" for path in outcome.outputs]
        click.echo("\n".join([f"{image.stem}: {outcome.message}", *written]))
    return 0


def _measurements(sparse: Path | None, flags: Mapping[str, Any]) -> dict[str, Path]:
    """The file of the measurements by its flag; what only concerns the other kind of them is refused."""
    points = flags["points"]
    if (sparse is None) == (points is None):
        raise InputError("give one of --sparse, measured depth, and --points, a point cloud: the measurements.")
    if sparse is not None:
        for name in ("extrinsics", "kitti"):
            if flags[name] is not None:
                raise InputError(f"--{name} is for --points; leave it out.")
        return {"--sparse": sparse}
    for name in ("unit", "scatter_sparse", "confidence"):
        if flags[name]:
            raise InputError(f"--{name.replace('_', '-')} is for --sparse, and --points is a cloud; leave it out.")
    if flags["intrinsics"] is not None:
        raise InputError("--points takes the camera as a file: give --camera in place of --intrinsics.")
    if points.is_dir():
        raise InputError(
            f"--points {points}: is a folder; give one cloud, or project them first (leadline project). "
            "A COLMAP model is for leadline colmap."
        )
    return {"--points": points}


def _projected(image: Path, output: Path, flags: Mapping[str, Any]) -> tuple[Path, str]:
    """The cloud as a sparse map among the outputs, as 'leadline project' makes it, and its unit."""
    from leadline.apps.project import command as project

    sparse = output / f"{image.stem}_sparse.png"
    files = {name: flags[name] for name in ("camera", "extrinsics", "kitti")}
    click.get_current_context().invoke(
        project, cloud=flags["points"], output=sparse, image=image, quiet=flags["quiet"], **files
    )
    return sparse, json.loads(sparse.with_suffix(".json").read_text(encoding="utf-8"))["unit"]


def _least(flags: Mapping[str, Any]) -> float | None:
    if flags["confidence"] is None:
        if flags["min_confidence"] is not None:
            raise InputError("--min-confidence is about a map of confidence; add --confidence.")
        return None
    return MIN_CONFIDENCE if flags["min_confidence"] is None else flags["min_confidence"]


def prior_file(prior: str) -> Path | None:
    """The file or folder that ``--prior`` names; None if it names a network.

    Raises
    ------
    FileError
        It is neither.
    """
    from leadline.io.depth.files import DEPTH_SUFFIXES
    from leadline.priors import PRIORS

    path, (name, _, argument) = Path(prior), prior.partition(":")
    if path.exists():
        return path
    if name == "files" and argument:
        return Path(argument)
    if name in PRIORS:
        return None
    if path.suffix.lower() in DEPTH_SUFFIXES or len(path.parts) > 1:
        return path  # that it is missing is said where the other files are looked for
    close = difflib.get_close_matches(name, PRIORS, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "'leadline priors' lists the names."
    raise FileError(f"--prior {prior}: there is no such file or folder, and no prior of that name; {hint}")


def _network(prior: str, flags: Mapping[str, Any]) -> Network:
    """The network with the options that flags of other things stand for."""
    from leadline.io.cameras import camera_record, read_camera
    from leadline.priors import prior_options

    meant = {"kind": flags["prior_kind"], "floor": flags["prior_floor"]}
    options = {name: value for name, value in meant.items() if value is not None}
    known = flags["intrinsics"] or ([camera_record(read_camera(flags["camera"]))["fx"]] if flags["camera"] else None)
    taken = prior_options(prior.partition(":")[0])
    if known and "focal" in taken and not {"focal", "fov_x"} & flags["prior_option"].keys():
        options["focal"] = known[0]
    return Network.from_flags(prior, flags, **options)


def _settings(flags: Mapping[str, Any], network: Network | None) -> Settings:
    """The flags as `Settings`; those that would be ignored are refused."""
    from leadline.io.cameras import read_camera

    intrinsics, camera = flags["intrinsics"], flags["camera"]
    told = network is not None and "focal" in network.options
    if (intrinsics or camera) and not (flags["ply"] or flags["points"] or told):
        raise InputError("--intrinsics and --camera are for the point cloud; add --ply, or leave them out.")
    if intrinsics is not None and camera is not None:
        raise InputError("--intrinsics and --camera say the same; give one of them.")
    if intrinsics is not None and len(intrinsics) != 4:
        raise InputError(f"--intrinsics must be the four numbers fx,fy,cx,cy, got {len(intrinsics)} instead.")
    if network is None and given_flags(flags):
        raise InputError(f"{given_flags(flags)[0]} is for a prior that is predicted, and --prior is a file.")
    if flags["noise"] is not None and not (1 <= len(flags["noise"]) <= 3 and min(flags["noise"]) >= 0):
        raise InputError(f"--noise must be one to three numbers of at least 0, got {flags['noise']} instead.")
    for name in ("unit", "output_unit"):
        _check_unit(name, flags[name])
    plain = ("unit", "prior_kind", "prior_floor", "resize_prior", "scatter_sparse", "min_confidence", "form")
    return Settings(
        **{name: flags[name] for name in (*plain, "output_unit", "calibrated", "sigma", "noise", "ply")},
        intrinsics=intrinsics,
        camera=None if camera is None or (flags["points"] and not flags["ply"]) else read_camera(camera),
        completion=completion_options(flags),
    )


def _check_unit(name: str, unit: str | None) -> None:
    """Refuse an unknown unit before the first file is read."""
    from leadline.io.depth.units import as_unit

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


def make_writable(output: Path) -> None:
    """Make the folder, and find out now rather than after the first solve whether it takes files."""
    probe = output / f".{secrets.token_hex(4)}.part"
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"-o {output}: cannot write there ({error.strerror}); choose a folder of your own.") from error
