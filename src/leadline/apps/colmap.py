"""`leadline colmap`: dense depth for every image of a COLMAP model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from leadline.apps.complete import FORMATS
from leadline.apps.terminal.commands import PATH, grouped_command, input_option, option, output_option, run_option
from leadline.apps.terminal.flags import PriorFlags, completion_flags, prior_flags, take_fields
from leadline.base.errors import FileError, InputError, param
from leadline.core.options import CompletionOptions

EXAMPLES = """\b
Examples:
  leadline colmap sparse/0 --images images/ --prior onnx:model.onnx -o out/
  leadline colmap sparse/0 --images images/ --prior priors/ --prior-kind disparity -o out/
  leadline colmap sparse/0 --images images/ --prior priors/ -o out/ --scale 0.37
  leadline colmap sparse/0 --images images/ --prior priors/ -o out/ --export 3dgs --export nerfstudio

\b
For each image NAME it writes sparse/NAME.npy, NAME_depth.npy, NAME_preview.png
and, last, NAME.json. The depth has the pixels of the given image, with the
distortion of its lens unless model and images are undistorted. Its unit is the
model's, or metres with --scale. A run that was stopped continues when the same
command is run again.

\b
Exports, in the unit of the model whatever --scale is:
  3dgs        out/3dgs, to be copied over the scene's folder; train with -d depths
  nerfstudio  out/nerfstudio/transforms.json and depths

\b
Exit code: 0 all done; 1 an image failed or has too few points; 2 nothing could
be done; 130 stopped by Ctrl-C.
"""
EXPORTS = ("3dgs", "nerfstudio")


@grouped_command(epilog=EXAMPLES)
@click.argument("model", type=PATH)
@input_option("--images", type=PATH, required=True, help="Folder of the images that the model names.")
@input_option("--scale", type=float, default=1.0, help="Metres per unit of the model.")
@input_option("--min-track", type=click.IntRange(2), default=3, help="Use only points that this many images see.")
@input_option(
    "--max-error", type=float, default=2.0, help="Use only points of at most this mean reprojection error, in pixels."
)
@input_option("--min-points", type=click.IntRange(1), default=10, help="Leave out images with fewer points.")
@prior_flags(
    text="Dense relative depth: a folder with a file for each image, or a network, as for 'leadline complete'.",
    metavar="DIR|NAME[:MODEL]",
)
@option("--resize-prior", group="Prior", is_flag=True, help="Interpolate a prior of another size to the image.")
@output_option("-o", "--output", type=PATH, required=True, help="Folder for the results; made if it is not there.")
@output_option("--format", type=click.Choice(FORMATS), default="npy", help="File format of the depth.")
@output_option("--output-unit", help="Unit of the depth.  [default: m, i.e. the model's or --scale's; png mm]")
@output_option("--calibrated", is_flag=True, help="Also write the calibrated prior, before the solve.")
@output_option(
    "--export",
    "exports",
    type=click.Choice(EXPORTS),
    multiple=True,
    help="Also write the depth for a trainer, see below; may be repeated.",
)
@output_option(
    "--transforms",
    type=PATH,
    metavar="FILE",
    help="For --export nerfstudio: extend a copy of this file.  [default: the transforms.json beside --images, or a "
    "new one]",
)
@run_option("--overwrite", is_flag=True, help="Complete images again that are complete already.")
@run_option("--quiet", is_flag=True, help="Print only notes and errors.")
@completion_flags
def command(
    model: Path,
    images: Path,
    prior: PriorFlags,
    resize_prior: bool,
    output: Path,
    exports: tuple[str, ...],
    transforms: Path | None,
    overwrite: bool,
    quiet: bool,
    completion: CompletionOptions,
    **values: Any,
) -> int:
    """Complete every image of MODEL, the folder of a COLMAP model, binary or text."""
    from leadline.apps.terminal.commands import announce_compiling, say
    from leadline.apps.terminal.progress import FolderReport, make_output_folder
    from leadline.batch.colmap import (
        ExportFormat,
        ModelJob,
        PointLimits,
        check_exports,
        complete_model,
        export_model,
        find_transforms,
    )
    from leadline.batch.frame import FrameJob, ensure_compiled
    from leadline.batch.outcome import State
    from leadline.batch.outputs import OutputOptions
    from leadline.io.colmap import read_model, read_tracks
    from leadline.io.exports import stem_of
    from leadline.io.frames import FrameOptions

    if not images.is_dir():
        raise FileError(f"{param('images')} {images}: there is no such folder; give the folder of the images.")
    if output.resolve() == images.resolve():
        raise InputError(f"{param('output')} {output}: is the folder of the images; choose another.")
    if transforms is not None and "nerfstudio" not in exports:
        raise InputError(f"{param('transforms')} is for {param('export', 'nerfstudio')}; add it, or leave it out.")
    limits, outputs = take_fields(PointLimits, values), take_fields(OutputOptions, values)
    priors, predictor = prior.open()
    if priors is not None and not priors.is_dir():
        raise FileError(f"{param('prior')} {priors}: there is no such folder; give one with a file for each image.")
    kind = {"prior_kind": prior.kind, "prior_floor": prior.floor} if priors is not None else {}
    frames = FrameJob(
        folder=output,
        inputs=FrameOptions(resize_prior=resize_prior, **kind),  # type: ignore[arg-type]
        outputs=outputs,
        completion=completion,
        predictor=predictor,
        overwrite=overwrite,
    )
    registered = read_model(model)
    transforms = transforms or find_transforms(images)
    chosen: list[ExportFormat] = [name for name in get_args(ExportFormat) if name in exports]
    check_exports(registered, chosen, transforms)
    job = ModelJob(registered, read_tracks(model), images, priors, limits, frames)
    make_output_folder(output)
    if predictor is not None:
        predictor.open()  # an error of the network is reported once, not for each image
    if limits.scale == 1.0:
        say("note", "depth is in the unit of the model; --scale sets metres per unit.")
    ensure_compiled(completion, announce_compiling)
    with FolderReport(len(registered.images), output, quiet=quiet) as report:
        complete_model(job, report.add)
    code = report.finish("finished images are complete, and the same command continues from here.")
    completed = {outcome.stem for outcome in report.outcomes if outcome.state is not State.FAILED}
    finished = [image for name, image in sorted(registered.images.items()) if stem_of(name) in completed]
    if not finished or report.interrupted:
        return code
    for name in chosen:
        folder, notes = export_model(job, finished, name, transforms)
        for note in notes:
            say("note", note)
        advice = f"copy {folder} over the scene's folder and train with -d depths"
        if name == "nerfstudio":
            origin = "made from the model" if transforms is None else f"a copy of {transforms}"
            advice = f"transforms.json is {origin}"
        if not quiet:
            click.echo(f"{name}: {len(finished)} images in {folder}; {advice}")
    return code
