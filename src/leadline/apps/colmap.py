"""`leadline colmap`: dense depth for every image of a COLMAP model, and `leadline fuse`: one mesh from all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.complete import FORMATS
from leadline.apps.terminal.commands import PATH, grouped_command, input_option, option, output_option, run_option
from leadline.apps.terminal.flags import PriorFlags, completion_flags, prior_flags, quiet_flag, take_fields
from leadline.base.errors import FileError, InputError, param
from leadline.core.options import CompletionOptions

if TYPE_CHECKING:
    from leadline.views.rounds import Round

EXAMPLES = """\b
Examples:
  leadline colmap sparse/0 --images images/ --prior onnx:model.onnx -o out/
  leadline colmap sparse/0 --images images/ --prior priors/ --prior-kind disparity -o out/
  leadline colmap sparse/0 --images images/ --prior priors/ -o out/ --scale 0.37
  leadline colmap sparse/0 --images images/ --prior priors/ -o out/ --export 3dgs --export nerfstudio
  leadline colmap sparse/0 --images images/ --prior onnx:model.onnx -o out/ --consistent

\b
For each image NAME it writes sparse/NAME.npy, NAME_depth.npy, NAME_preview.png
and, last, NAME.json. The depth has the pixels of the given image, with the
distortion of its lens unless model and images are undistorted. Its unit is the
model's, or metres with --scale. A run that was stopped continues when the same
command is run again.

\b
With --consistent the images are completed together, in rounds, so that their
depth agrees: NAME_sigma.npy is its standard deviation, NAME_reliable.png is 255
where that is at most a tenth of the depth, alone/NAME.npy the depth of the image
by itself. out/views.json lists all images with cameras and poses; 'leadline
fuse out' makes a mesh of them.

\b
Exports, in the unit of the model whatever --scale is:
  3dgs        out/3dgs, to be copied over the scene's folder; train with -d depths
  nerfstudio  out/nerfstudio/transforms.json and depths
  dn-splatter out/dn-splatter/mono_depth, for its data parser coolermap
  gsplat      out/gsplat/sparse/0, a model with dense points and their tracks
  lichtfeld   out/lichtfeld/depths, for LichtFeld Studio
Each has depth_reliable/, and with --consistent depth_sigma/.

\b
Exit code: 0 all done; 1 an image failed or has too few points; 2 nothing could
be done; 130 stopped by Ctrl-C.
"""
FORMATS_FOR_TRAINERS = ("3dgs", "nerfstudio", "dn-splatter", "gsplat", "lichtfeld")


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
    type=click.Choice(FORMATS_FOR_TRAINERS),
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
@run_option(
    "--consistent",
    is_flag=True,
    help="Complete all images together, so that their depth agrees. Further points are measured by matching the "
    "images with each other. With --outliers single, points that contradict the others in most images are left out.",
)
@run_option(
    "--rounds", type=click.IntRange(1), help="Rounds for --consistent.  [default: until the depth no longer changes]"
)
@run_option("--jobs", type=click.IntRange(1), default=1, help="Worker processes, for --consistent.")
@run_option("--overwrite", is_flag=True, help="Complete images again that are complete already.")
@quiet_flag
@completion_flags
def command(
    model: Path,
    images: Path,
    prior: PriorFlags,
    resize_prior: bool,
    output: Path,
    exports: tuple[str, ...],
    transforms: Path | None,
    consistent: bool,
    rounds: int | None,
    jobs: int,
    overwrite: bool,
    quiet: bool,
    completion: CompletionOptions,
    **values: Any,
) -> int:
    """Complete every image of MODEL, the folder of a COLMAP model, binary or text."""
    from leadline.apps.terminal.commands import announce_compiling, say
    from leadline.apps.terminal.progress import FolderReport, make_output_folder
    from leadline.batch.colmap import (
        EXPORTS,
        ModelJob,
        PointLimits,
        check_exports,
        complete_consistently,
        complete_model,
        export_model,
        find_transforms,
        unregistered_pictures,
    )
    from leadline.batch.frame import FrameJob, ensure_compiled
    from leadline.batch.outcome import State
    from leadline.batch.outputs import OutputOptions
    from leadline.io.colmap import read_model, read_tracks
    from leadline.io.files import why_no_folder
    from leadline.io.frames import FrameOptions
    from leadline.io.views.maps import stem_of

    if not images.is_dir():
        raise FileError(f"{param('images')} {images}: {why_no_folder(images)}; give the folder of the images.")
    if output.resolve() == images.resolve():
        raise InputError(f"{param('output')} {output}: is the folder of the images; choose another.")
    if transforms is not None and "nerfstudio" not in exports:
        raise InputError(f"{param('transforms')} is for {param('export', 'nerfstudio')}; add it, or leave it out.")
    if not consistent and (jobs > 1 or rounds is not None):
        raise InputError(f"{param('jobs')} and {param('rounds')} are for {param('consistent', True)}; add it.")
    limits, outputs = take_fields(PointLimits, values), take_fields(OutputOptions, values)
    if consistent:
        outputs = replace(outputs, sigma=True, reliable=True)
    priors, predictor = prior.open()
    if priors is not None and not priors.is_dir():
        raise FileError(f"{param('prior')} {priors}: {why_no_folder(priors)}; give one with a file for each image.")
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
    if not registered.images:
        raise InputError(f"{param('model')} {model}: has no images; give the folder of a model that COLMAP registered.")
    transforms = transforms or find_transforms(images)
    chosen = [name for name in EXPORTS if name in exports]
    check_exports(registered, chosen, transforms)
    job = ModelJob(registered, read_tracks(model), images, priors, limits, frames)
    make_output_folder(output)
    if predictor is not None:
        predictor.open()  # an error of the network is reported once, not for each image
    if limits.scale == 1.0:
        say("note", "depth is in the unit of the model; --scale sets metres per unit.")
    ensure_compiled(completion, announce_compiling)
    missing = unregistered_pictures(job)
    if missing is not None:
        say("note", missing.text)
    statistics: list[Round] = []
    with FolderReport(len(registered.images), output, quiet=quiet) as report:
        if consistent:
            statistics = complete_consistently(
                job, report.add, rounds=rounds, workers=jobs, on_progress=None if quiet else report.show_step
            )
        else:
            complete_model(job, report.add)
    code = report.finish("finished images are complete, and the same command continues from here.")
    if consistent and not quiet:
        line = _describe_rounds(statistics)
        if line is not None:
            click.echo(line)
    completed = {outcome.stem for outcome in report.outcomes if outcome.state is not State.FAILED}
    finished = [image for name, image in sorted(registered.images.items()) if stem_of(name) in completed]
    if not finished or report.interrupted:
        return code
    for name in chosen:
        folder, notes = export_model(job, finished, name, transforms)
        for note in notes:
            say("note", note)
        if not quiet:
            click.echo(f"{name}: {len(finished)} images in {folder}; {_advice(name, folder, transforms)}")
    return code


def _advice(name: str, folder: Path, transforms: Path | None) -> str:
    """What to do with the folder of an export."""
    if name == "nerfstudio":
        return f"transforms.json is {'made from the model' if transforms is None else f'a copy of {transforms}'}"
    if name == "gsplat":
        return "put the pictures beside sparse/ as images/ and train with --depth_loss"
    training = {
        "3dgs": "with -d depths",
        "dn-splatter": "dn-splatter with the data parser coolermap",
        "lichtfeld": "with --use-depth-loss --depth-loss-mode ssi-depth",
    }
    return f"copy {folder} over the scene's folder and train {training[name]}"


def _describe_rounds(rounds: Sequence[Round]) -> str | None:
    """How far neighbouring pictures disagreed before and after the rounds; None if that is not known."""
    known = [part.disagreement for part in rounds if math.isfinite(part.disagreement)]
    if len(known) < 2:
        return None
    return f"neighbouring pictures disagree by {known[0]:.2%} of the depth before and {known[-1]:.2%} after (median)"


FUSE_EXAMPLES = """\b
Examples:
  leadline fuse out/
  leadline fuse out/ -o mesh.glb --points cloud.ply --voxel 0.01
  leadline fuse out/ --report page.html

\b
VIEWS is the output of 'leadline colmap --consistent' or of 'leadline refine
--poses', or its views.json; or posed depth of others: nerfstudio's
transforms.json, a sequence of 7-Scenes.
Lengths are in the unit of the depth: metres, or the model's.

\b
Exit code: 0 done; 2 nothing could be done.
"""


@grouped_command(name="fuse", epilog=FUSE_EXAMPLES)
@click.argument("views", type=PATH)
@input_option("--alone", is_flag=True, help="Fuse the depth that each picture has by itself, to compare.")
@output_option("-o", "--output", type=PATH, help="Mesh: .ply, .glb, .obj or .stl.  [default: mesh.ply in VIEWS]")
@output_option("--points", type=PATH, metavar="FILE", help="Also write the fused point cloud, as .ply.")
@output_option("--report", type=PATH, metavar="FILE", help="Also write a page with a turntable and slices, as .html.")
@option(
    "--voxel",
    group="Fusion",
    type=float,
    help="Edge of a voxel, in the unit of the depth.  [default: three pixels at the median depth]",
)
@option(
    "--truncation",
    group="Fusion",
    type=float,
    default=5.0,
    help="Distance in voxels from the surface up to which a depth map is used.",
)
@option(
    "--max-depth", group="Fusion", type=float, help="Leave out pixels farther away than this, in the unit of the depth."
)
@option(
    "--max-sigma",
    group="Fusion",
    type=float,
    default=0.1,
    help="Leave out pixels whose standard deviation is larger, relative to their depth.",
)
@option(
    "--min-views", group="Fusion", type=click.IntRange(1), default=2, help="Pictures that must see a piece of surface."
)
@option("--edge-filter/--no-edge-filter", group="Fusion", default=True, help="Leave out pixels between two objects.")
@quiet_flag
def fuse_command(
    views: Path,
    alone: bool,
    output: Path | None,
    points: Path | None,
    report: Path | None,
    quiet: bool,
    **values: Any,
) -> int:
    """Fuse the depth maps of VIEWS into one mesh with colours, by a truncated signed distance function."""
    from leadline.apps.terminal.progress import picture_progress
    from leadline.batch.fusion import MESH_SUFFIXES, FusionOptions, StoredViews, fuse, write_report
    from leadline.io.files import remove_parts_of
    from leadline.io.views.posed import read_views

    options = take_fields(FusionOptions, values)
    folder = views if views.is_dir() else views.parent
    output = output or folder / "mesh.ply"
    if output.suffix.lower() not in MESH_SUFFIXES:
        raise InputError(f"{param('output')} {output}: a mesh is written as {', '.join(MESH_SUFFIXES)}.")
    for path, suffix in ((points, ".ply"), (report, ".html")):
        if path is not None and path.suffix.lower() != suffix:
            raise InputError(f"{path}: must end in {suffix}.")
    for path in (output, points, report):
        if path is not None and not path.resolve().parent.is_dir():
            raise FileError(f"{path}: the folder {path.parent} does not exist; make it first.")
        if path is not None:
            remove_parts_of(path)
    listed = read_views(views)
    with picture_progress("fusing", quiet=quiet) as show:
        surface = fuse(StoredViews(listed, alone=alone), options, show)
    surface.write_mesh(output)
    written = [output]
    if points is not None:
        surface.write_points(points)
        written.append(points)
    if report is not None:
        if not quiet:
            click.echo("drawing the report ...", err=True)
        with picture_progress("fusing each alone", quiet=quiet) as show:
            write_report(report, views, listed, surface, options, show)
        written.append(report)
    if not quiet:
        click.echo(
            f"{surface.views} pictures: {len(surface.triangles)} triangles, {len(surface.points)} points, voxels of "
            f"{surface.voxel:.3g}"
        )
        for path in written:
            click.echo(f"wrote {path}")
    return 0
