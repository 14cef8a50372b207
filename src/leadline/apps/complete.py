"""`leadline complete`: one image, or folders of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.terminal.commands import (
    PATH,
    announce_compiling,
    grouped_command,
    input_option,
    option,
    output_option,
    refuse_given,
    run_option,
    say_notes,
)
from leadline.apps.terminal.flags import (
    PriorFlags,
    camera_flags,
    completion_flags,
    geometry_flags,
    min_confidence_flag,
    noise_flag,
    prior_flags,
    quiet_flag,
    sigma_flag,
    take_fields,
)
from leadline.base.errors import FileError, InputError, param
from leadline.core.options import CompletionOptions

if TYPE_CHECKING:
    from leadline.batch.outputs import OutputOptions
    from leadline.core.noise import Noise
    from leadline.priors.predictor import Predictor

FORMATS = ("png", "npy", "npz", "exr", "pfm", "tiff")
EXAMPLES = """\b
Examples:
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior disparity.npy --prior-kind disparity -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/ --ply --camera cam.json
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/ --mesh glb --camera cam.json
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior onnx:model.onnx -o out/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior none -o out/
  leadline complete photo.jpg --points sweep.npy --camera cam.json --extrinsics T.json --prior prior.npy -o out/
  leadline complete photo.jpg --sparse tof.png --scatter-sparse --confidence levels.png --prior prior.npy -o out/
  leadline complete frames/ --sparse depth/ --unit mm --prior priors/ -o out/ --jobs 2
  leadline complete frames/ --sparse depth/ --unit mm --prior onnx:model.onnx -o out/
  leadline complete photo.jpg --prior onnx:model.onnx -o out/

\b
For each frame STEM it writes STEM_depth.png (16 bit, in the unit of --sparse),
STEM_preview.png and, last, STEM.json, which records how the depth was computed.
With --points it also writes STEM_sparse.png, the projected points, and
STEM_points.png, a picture of them. Without measurements, as in
'leadline complete photo.jpg', it writes the prior, which has no unit: STEM.npy,
STEM.prior.json and STEM_preview.png. A folder run that was stopped continues when
the same command is run again. 'leadline priors' lists the names for --prior.

\b
Exit code: 0 all done; 1 a frame of a folder failed; 2 nothing could be done;
130 stopped by Ctrl-C.
"""


@grouped_command(epilog=EXAMPLES)
@click.argument("image", type=PATH)
@input_option("--sparse", type=PATH, help="Measured depth, a file or a folder; 0, NaN and inf mean not measured.")
@input_option(
    "--points", type=PATH, metavar="CLOUD", help="A point cloud in place of --sparse; it needs --camera or --kitti."
)
@input_option(
    "--unit", help="Unit of --sparse: mm, cm, m, kitti, tum ... or metres per count.  [default: guessed, with a note]"
)
@input_option(
    "--scatter-sparse",
    is_flag=True,
    help="If --sparse has another size than the image: move its measurements to the nearest pixels.",
)
@input_option("--confidence", type=PATH, help="Confidence of each pixel of --sparse, a file or a folder.")
@min_confidence_flag
@noise_flag
@input_option("--valid", type=PATH, help="Mask, a file or a folder: > 0 where the inputs may be used.")
@prior_flags(text="Dense relative depth: a file, a folder, or a network by its name and, optionally, its model.")
@option("--resize-prior", group="Prior", is_flag=True, help="Interpolate a prior of another size to the image.")
@camera_flags
@output_option(
    "-o", "--output", type=PATH, default=Path("leadline-out"), help="Folder for the results; made if it is not there."
)
@output_option("--format", type=click.Choice(FORMATS), default="png", help="File format of the depth.")
@output_option(
    "--output-unit",
    help="Unit of the depth.  [default: m; for png the unit of --sparse if it is a centimetre or finer and 16 bits of "
    "it hold the depth, else mm, else kitti]",
)
@output_option("--calibrated", is_flag=True, help="Also write the calibrated prior, before the solve.")
@sigma_flag
@output_option(
    "--mask", is_flag=True, help="Also write a mask: 255 measured, 170 filled, 85 left out as an outlier, 0 no depth."
)
@geometry_flags
@run_option("--jobs", type=click.IntRange(1), default=1, help="Worker processes, for folders.")
@run_option("--overwrite", is_flag=True, help="Complete frames again that are complete already.")
@quiet_flag
@completion_flags
def command(
    image: Path,
    sparse: Path | None,
    points: Path | None,
    confidence: Path | None,
    min_confidence: float | None,
    noise: tuple[float, ...] | None,
    valid: Path | None,
    prior: PriorFlags,
    intrinsics: tuple[float, ...] | None,
    camera: Path | None,
    extrinsics: Path | None,
    kitti: Path | None,
    output: Path,
    jobs: int,
    overwrite: bool,
    quiet: bool,
    completion: CompletionOptions,
    **values: Any,
) -> int:
    """Complete IMAGE, an image or a folder of images, from sparse metric depth and a dense relative prior.

    In folders, the files of a frame have the same name up to the suffix. Without measurements the prior itself is
    written: relative depth, which has no unit.
    """
    from leadline.apps.terminal.progress import FolderReport, make_output_folder, print_outcome
    from leadline.batch.folder import complete_folder, match_frames
    from leadline.batch.frame import FrameJob, complete_frame, ensure_compiled
    from leadline.batch.outputs import OutputOptions
    from leadline.io.frames import MIN_CONFIDENCE, FrameFiles, FrameOptions

    if sparse is not None and points is not None:
        raise InputError(f"give one of {param('sparse')}, a depth map, and {param('points')}, a point cloud.")
    given = {"image": image, "sparse": sparse, "points": points, "valid": valid, "confidence": confidence}
    _require_files({name: path for name, path in given.items() if path is not None})  # before a network is loaded
    if sparse is None and points is None:
        return _predict_only(image, prior, output, values["format"], overwrite=overwrite, quiet=quiet)
    prior_file, predictor = prior.open(focal_length(intrinsics, camera))
    outputs = take_fields(OutputOptions, values)
    refuse_unused(outputs, predictor, confidence=confidence, points=points)
    inputs = FrameOptions(
        **values,
        prior_kind=prior.kind if prior_file else None,
        prior_floor=prior.floor if prior_file else None,
        min_confidence=MIN_CONFIDENCE if min_confidence is None else min_confidence,
        noise=parse_noise(noise),
        intrinsics=intrinsics,
    )
    given["prior"] = prior_file
    paths = {name: path for name, path in given.items() if path is not None}
    _require_files(paths)
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
    matches = match_frames(paths, camera=camera, extrinsics=extrinsics, kitti=kitti)
    say_notes(matches.notes)
    ensure_compiled(completion, announce_compiling)
    with FolderReport(len(matches.frames), output, quiet=quiet) as report:
        complete_folder(matches.frames, job, report.add, workers=jobs)
    return report.finish("finished frames are complete, and the same command continues from here.", matches.ambiguous)


# Flags that have a meaning without measurements.
_WITHOUT_MEASUREMENTS = (
    *("image", "output", "format", "overwrite", "quiet", "prior_spec", "prior_kind", "prior_floor", "prior_device"),
    *("prior_dtype", "prior_option", "prior_cache", "prior_no_cache", "prior_download"),
)


def _predict_only(
    image: Path, prior: PriorFlags, output: Path, file_format: str, *, overwrite: bool, quiet: bool
) -> int:
    """Save the relative depth of an image, or of a folder of them, with a picture of it."""
    from functools import partial

    from leadline.apps.terminal.progress import FolderReport, make_output_folder, print_outcome
    from leadline.batch.folder import list_images
    from leadline.batch.outcome import outcome_of
    from leadline.batch.relative_depth import save_relative_depth

    refuse_given((), "there are no measurements; add --sparse or --points", but=_WITHOUT_MEASUREMENTS)
    images = list_images((image,))
    prior_file, predictor = prior.open()
    if predictor is None:
        raise InputError(
            f"{param('prior')} {prior_file} is relative depth already; give {param('sparse')}, a depth map, or "
            f"{param('points')}, a point cloud, to make it metric."
        )
    predictor.open()  # an error of the network is reported once, not for each image
    make_output_folder(output)
    save = partial(
        save_relative_depth,
        predictor=predictor,
        folder=output,
        file_format="npy" if file_format == "png" else file_format,  # 16 bits would round it
        overwrite=overwrite,
    )
    if image.is_file():
        print_outcome(save(image), quiet=quiet)
        return 0
    with FolderReport(len(images), output, quiet=quiet, doing="predicting") as report:
        for one in images:
            report.add(outcome_of(one.stem, partial(save, one)))
    return report.finish("the same command continues from here.")


def refuse_unused(
    outputs: OutputOptions,
    predictor: Predictor | None,
    *,
    confidence: Path | None,
    points: Path | None,
    poses: Path | None = None,
) -> None:
    """Refuse flags of inputs that nothing would use: a limit of confidence, and a camera."""
    if confidence is None:
        refuse_given(("min_confidence",), "there is no map of confidence; add --confidence")
    takes_focal = predictor is not None and "focal" in predictor.options
    if not (outputs.ply or outputs.mesh or points is not None or poses is not None or takes_focal):
        refuse_given(("intrinsics", "camera"), "a camera is for a point cloud or a mesh; add --ply or --mesh")


def parse_noise(numbers: tuple[float, ...] | None) -> Noise | None:
    """The noise of one to three numbers of a flag."""
    from leadline.core.noise import Noise

    if numbers is None:
        return None
    if not 1 <= len(numbers) <= 3:
        raise InputError(f"{param('noise')} must be one to three numbers, got {len(numbers)} instead.")
    return Noise(**dict(zip(("constant", "proportional", "quadratic"), numbers, strict=False)))


def focal_length(intrinsics: tuple[float, ...] | None, camera: Path | None) -> float | None:
    """The focal length in pixels of the camera that was given; None without one."""
    from leadline.io.cameras import camera_record, read_camera

    if intrinsics is not None:
        return intrinsics[0]
    return None if camera is None else float(camera_record(read_camera(camera))["fx"])


def _require_files(inputs: Mapping[str, Path]) -> None:
    """Refuse files and folders that do not exist."""
    from leadline.base.registry import suggestion

    for name, path in inputs.items():
        if not path.exists():
            if path.is_symlink():
                raise FileError(f"{param(name)} {path}: is a link to {path.readlink()}, which does not exist.")
            near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = suggestion(path.name, near, "check the path.")
            raise FileError(f"{param(name)} {path}: there is no such file; {hint}")


def _are_folders(inputs: Mapping[str, Path]) -> bool:
    """Whether the inputs are folders; refuses files mixed with folders."""
    kinds = {name: path.is_dir() for name, path in inputs.items()}
    if len(set(kinds.values())) > 1:
        named = ", ".join(f"{param(name)} is a {'folder' if folder else 'file'}" for name, folder in kinds.items())
        raise InputError(f"{named}; give files only, or folders only.")
    return kinds["image"]
