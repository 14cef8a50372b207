"""`leadline complete`: one image, or folders of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.apps.options import completion_flags
from leadline.apps.terminal.help import CAMERA, INPUTS, OUTPUTS, PATH, RUN, Numbers, grouped_command, option
from leadline.apps.terminal.prior_flags import PriorFlags, prior_flags
from leadline.base.errors import FileError, InputError, param
from leadline.core.options import CompletionOptions

if TYPE_CHECKING:
    from leadline.core.noise import Noise

FORMATS = ("png", "npy", "npz", "exr", "pfm", "tiff")
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
STEM_preview.png and, last, STEM.json, which records how the depth was computed.
With --points it also writes STEM_sparse.png, the projected points, and
STEM_points.png, a picture of them. A folder run that was stopped continues when
the same command is run again. 'leadline priors' lists the names for --prior.

\b
Exit code: 0 all done; 1 a frame of a folder failed; 2 nothing could be done;
130 stopped by Ctrl-C.
"""


@grouped_command(epilog=EXAMPLES)
@click.argument("image", type=PATH)
@option(
    "--sparse",
    group=INPUTS,
    type=PATH,
    help="Measured depth, a file or a folder; 0, NaN and inf mean not measured.",
)
@option(
    "--points",
    group=INPUTS,
    type=PATH,
    metavar="CLOUD",
    help="A point cloud in place of --sparse; it needs --camera or --kitti.",
)
@option(
    "--unit",
    group=INPUTS,
    help="Unit of --sparse: mm, cm, m, kitti, tum ... or metres per count.  [default: guessed, with a note]",
)
@option(
    "--scatter-sparse",
    group=INPUTS,
    is_flag=True,
    help="If --sparse has another size than the image: move its measurements to the nearest pixels.",
)
@option("--confidence", group=INPUTS, type=PATH, help="Confidence of each pixel of --sparse, a file or a folder.")
@option(
    "--min-confidence",
    group=INPUTS,
    type=float,
    help="Leave out measurements of lower confidence.  [default: 2, the highest of ARKit's levels]",
)
@option(
    "--noise",
    group=INPUTS,
    type=Numbers(),
    metavar="C[,P[,Q]]",
    help="Standard deviation of a measurement z: the root of C^2 + (P z)^2 + (Q z^2)^2, in metres.  [default: the "
    "measurements are exact]",
)
@option("--valid", group=INPUTS, type=PATH, help="Mask, a file or a folder: > 0 where the inputs may be used.")
@prior_flags(text="Dense relative depth: a file, a folder, or a network by its name and, optionally, its model.")
@option("--resize-prior", group="Prior", is_flag=True, help="Interpolate a prior of another size to the image.")
@option(
    "--intrinsics",
    group=CAMERA,
    type=Numbers(),
    metavar="FX,FY,CX,CY",
    help="Pinhole camera in pixels, for --ply; pixel centres are at integers.",
)
@option(
    "--camera",
    group=CAMERA,
    type=PATH,
    metavar="FILE",
    help="Camera as JSON, for --ply and --points: {width, height, fx, fy, cx, cy}; a lens adds model and params.",
)
@option(
    "--extrinsics",
    group=CAMERA,
    type=PATH,
    metavar="FILE",
    help="For --points: transform from the cloud to the camera, JSON.",
)
@option(
    "--kitti",
    group=CAMERA,
    type=PATH,
    metavar="PATH",
    help="For --points: KITTI's calibration, in place of --camera and --extrinsics.",
)
@option(
    "-o", "--output", group=OUTPUTS, type=PATH, required=True, help="Folder for the results; made if it is not there."
)
@option(
    "--format",
    "file_format",
    group=OUTPUTS,
    type=click.Choice(FORMATS),
    default="png",
    show_default=True,
    help="File format of the depth.",
)
@option(
    "--output-unit",
    group=OUTPUTS,
    help="Unit of the depth.  [default: m; for png the unit of --sparse if it is a centimetre or finer and 16 bits of "
    "it hold the depth, else mm, else kitti]",
)
@option("--calibrated", group=OUTPUTS, is_flag=True, help="Also write the calibrated prior, before the solve.")
@option(
    "--sigma",
    group=OUTPUTS,
    is_flag=True,
    help="Also write the standard deviation of the depth in metres (npy beside a png). It takes three times as long.",
)
@option("--ply", group=OUTPUTS, is_flag=True, help="Also write a coloured point cloud; needs a camera.")
@option(
    "--jobs", group=RUN, type=click.IntRange(1), default=1, show_default=True, help="Worker processes, for folders."
)
@option("--overwrite", group=RUN, is_flag=True, help="Complete frames again that are complete already.")
@option("--quiet", group=RUN, is_flag=True, help="Print only notes and errors.")
@completion_flags
def command(
    image: Path,
    sparse: Path | None,
    points: Path | None,
    unit: str | None,
    scatter_sparse: bool,
    confidence: Path | None,
    min_confidence: float | None,
    noise: tuple[float, ...] | None,
    valid: Path | None,
    prior: PriorFlags,
    resize_prior: bool,
    intrinsics: tuple[float, ...] | None,
    camera: Path | None,
    extrinsics: Path | None,
    kitti: Path | None,
    output: Path,
    file_format: str,
    output_unit: str | None,
    calibrated: bool,
    sigma: bool,
    ply: bool,
    jobs: int,
    overwrite: bool,
    quiet: bool,
    completion: CompletionOptions,
) -> int:
    """Complete IMAGE, an image or a folder of images, from sparse metric depth and a dense relative prior.

    In folders, the files of a frame have the same name up to the suffix.
    """
    from leadline.apps.terminal.folder_report import FolderReport, make_output_folder, print_outcome
    from leadline.apps.terminal.messages import announce_compiling, say_notes
    from leadline.batch.folder import complete_folder, match_frames
    from leadline.batch.frame import FrameJob, OutputOptions, complete_frame, ensure_compiled
    from leadline.io.frames import MIN_CONFIDENCE, FrameFiles, FrameOptions

    if (sparse is None) == (points is None):
        raise InputError(f"give one of {param('sparse')}, a depth map, and {param('points')}, a point cloud.")
    if min_confidence is not None and confidence is None:
        raise InputError(f"{param('min_confidence')} needs a map of confidence; add {param('confidence')}.")
    prior_file, predictor = prior.open(_focal_length(intrinsics, camera))
    used = ply or points is not None or (predictor is not None and "focal" in predictor.options)
    if (intrinsics or camera) and not used:
        raise InputError(
            f"{param('intrinsics')} and {param('camera')} are for a point cloud; add {param('ply', True)}, or leave "
            "them out."
        )
    inputs = FrameOptions(
        unit=unit,
        prior_kind=prior.kind if prior_file else None,
        prior_floor=prior.floor if prior_file else None,
        resize_prior=resize_prior,
        scatter_sparse=scatter_sparse,
        min_confidence=MIN_CONFIDENCE if min_confidence is None else min_confidence,
        noise=_noise(noise),
        intrinsics=intrinsics,
    )
    outputs = OutputOptions(format=file_format, output_unit=output_unit, calibrated=calibrated, sigma=sigma, ply=ply)
    given = {"image": image, "sparse": sparse, "points": points, "prior": prior_file}
    given |= {"valid": valid, "confidence": confidence}
    paths = {name: path for name, path in given.items() if path is not None}
    is_folder = _are_folders({name: path for name, path in paths.items() if not (path is points and path.is_dir())})
    if not is_folder and jobs > 1:
        raise InputError(f"{param('jobs')} is for folders; one image uses all cores by itself.")
    if is_folder and any(path.resolve() == output.resolve() for path in paths.values()):
        raise InputError(
            f"{param('output')} {output}: is one of the input folders, and results would be read as inputs; choose "
            "another."
        )
    job = FrameJob(
        folder=output, inputs=inputs, outputs=outputs, completion=completion, predictor=predictor, overwrite=overwrite
    )
    if not is_folder:
        files = FrameFiles(**given, camera=camera, extrinsics=extrinsics, kitti=kitti)  # type: ignore[arg-type]
        make_output_folder(output)
        print_outcome(complete_frame(files, job, announce_compiling=announce_compiling), quiet=quiet)
        return 0
    make_output_folder(output)
    if predictor is not None:
        predictor.open()  # an error of the network is reported once, not for each frame
    matches = match_frames(paths, camera=camera)
    say_notes(matches.notes)
    ensure_compiled(completion, announce_compiling)
    report = FolderReport(len(matches.frames), output, quiet=quiet)
    interrupted = ""
    try:
        with report:
            complete_folder(matches.frames, job, report.add, workers=jobs)
    except KeyboardInterrupt:
        interrupted = "stopped by Ctrl-C; finished frames are complete, and the same command continues from here."
    return report.finish(interrupted=interrupted, also=matches.ambiguous)


def _noise(numbers: tuple[float, ...] | None) -> Noise | None:
    from leadline.core.noise import Noise

    if numbers is None:
        return None
    if not 1 <= len(numbers) <= 3:
        raise InputError(f"{param('noise')} must be one to three numbers, got {len(numbers)} instead.")
    return Noise(**dict(zip(("constant", "proportional", "quadratic"), numbers, strict=False)))


def _focal_length(intrinsics: tuple[float, ...] | None, camera: Path | None) -> float | None:
    from leadline.io.cameras import camera_record, read_camera

    if intrinsics is not None:
        return intrinsics[0]
    return None if camera is None else float(camera_record(read_camera(camera))["fx"])


def _are_folders(inputs: Mapping[str, Path]) -> bool:
    """Whether the inputs are folders; refuses missing ones, and files mixed with folders."""
    from leadline.base.registry import suggestion

    for name, path in inputs.items():
        if not path.exists():
            near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = suggestion(path.name, near, "check the path.")
            raise FileError(f"{param(name)} {path}: there is no such file; {hint}")
    kinds = {name: path.is_dir() for name, path in inputs.items()}
    if len(set(kinds.values())) > 1:
        named = ", ".join(f"{param(name)} is a {'folder' if folder else 'file'}" for name, folder in kinds.items())
        raise InputError(f"{named}; give files only, or folders only.")
    return kinds["image"]
