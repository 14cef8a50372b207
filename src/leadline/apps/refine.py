"""`leadline refine`: the depth of RGB-D frames without what is wrong, and with what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.complete import FORMATS, focal_length, parse_noise, refuse_unused
from leadline.apps.terminal.commands import (
    PATH,
    announce_compiling,
    error_text,
    flag_wording,
    grouped_command,
    input_option,
    key_value_option,
    output_option,
    refuse_given,
    run_option,
    say,
    say_notes,
)
from leadline.apps.terminal.flags import (
    PriorFlags,
    camera_flags,
    completion_flags_with,
    geometry_flags,
    min_confidence_flag,
    noise_flag,
    prior_flags,
    quiet_flag,
    sigma_flag,
    take_fields,
)
from leadline.base.errors import FileError, InputError, param, render
from leadline.core.options import CompletionOptions

if TYPE_CHECKING:
    from leadline.batch.folder import ExecutorName, Matches
    from leadline.batch.outcome import Outcome
    from leadline.batch.refine import SequenceKind
    from leadline.io.views.posed import PosedView

EXAMPLES = """\b
Examples:
  leadline refine scene/ --unit mm --prior onnx:model.onnx -o refined/
  leadline refine frames/ --depth depth/ --unit mm --prior priors/ -o refined/ --jobs 2
  leadline refine frames/ --depth depth/ --unit mm --prior priors/ -o refined/ --outliers regions --sigma
  leadline refine frames/ --depth depth/ --unit mm --prior priors/ -o refined/ --mesh glb --camera cam.json
  leadline refine scenes/ --dataset scenes --prior onnx:model.onnx -o refined/
  leadline refine seq-01/ --poses seq-01/ --prior onnx:model.onnx -o refined/

\b
INPUT is a folder with subfolders of images (rgb, color, images ...) and of depth
(depth, depth_raw ...), whose files have the same names up to the suffix; a folder
with the lists of TUM's benchmark, rgb.txt and depth.txt; a sequence of 7-Scenes; a
folder of images, with --depth or --points; or the folder of a --dataset.

\b
For each frame STEM it writes STEM_depth, STEM_mask.png (255 measured, 170 filled,
85 left out, 0 no depth) and, last, STEM.json, which records how the depth was
computed. Where the mask is 255, the depth is the measured one, bit for bit
(with --noise only near it).
frames.csv has a row for each frame, with the reason if it failed;
contact_sheet.png shows the frames that changed most. A run that was stopped
continues when the same command is run again.

\b
With --poses the frames are completed together, in rounds, so that their depth
agrees: what one frame did not measure, others did. alone/STEM.npy is the depth of
the frame by itself, STEM_reliable.png, with --sigma, 255 where the standard
deviation is at most a tenth of the depth. views.json lists all frames with cameras
and poses; 'leadline fuse refined' makes a mesh of them.

\b
Exit code: 0 all done; 1 a frame failed; 2 nothing could be done; 130 stopped by
Ctrl-C.
"""


@grouped_command(epilog=EXAMPLES)
@click.argument("input", type=PATH, metavar="INPUT")
@input_option("--depth", type=PATH, metavar="FOLDER", help="Folder of measured depth; INPUT then holds the images.")
@input_option(
    "--points",
    type=PATH,
    metavar="FOLDER",
    help="Folder of point clouds in place of --depth; needs --camera or --kitti.",
)
@input_option(
    "--unit", help="Unit of the depth: mm, cm, m, kitti, tum ... or metres per count.  [default: guessed, with a note]"
)
@input_option("--confidence", type=PATH, metavar="FOLDER", help="Folder with the confidence of each measurement.")
@min_confidence_flag
@noise_flag
@input_option("--valid", type=PATH, metavar="FOLDER", help="Folder of masks: > 0 where the inputs may be used.")
@input_option("--dataset", metavar="NAME", help="INPUT is the folder of this data set; 'leadline datasets' lists them.")
@key_value_option("--data-option", "data_options", group="Inputs", help="An option of the data set; may be repeated.")
@input_option(
    "--measured",
    metavar="LABEL",
    help="Measurements of the data set to refine, or 'reference' for its own depth.  [default: the first, or else the "
    "reference]",
)
@input_option(
    "--poses",
    type=PATH,
    metavar="PATH",
    help="Cameras and poses of the images: a folder of 7-Scenes, of TUM's benchmark or of a COLMAP model, nerfstudio's "
    "transforms.json, or views.json of leadline. The frames are then completed together.",
)
@input_option("--pose-scale", type=float, default=1.0, help="Metres per unit of --poses.")
@input_option("--limit", type=click.IntRange(1), help="Use only the first frames.")
@prior_flags(text="Dense relative depth: a folder, or a network by its name and, optionally, its model.")
@camera_flags
@output_option("-o", "--output", type=PATH, default=Path("leadline-refined"), help="Folder for the results.")
@output_option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    help="File format of the depth.  [default: png if the measured depth is PNG, else npy]",
)
@output_option("--output-unit", help="Unit of the depth.  [default: that of the measured depth for png, else m]")
@sigma_flag
@output_option("--preview", is_flag=True, help="Also write a picture of each frame.")
@geometry_flags
@output_option("--sheet", type=click.IntRange(0), default=12, help="Frames on the contact sheet; 0 writes none.")
@run_option(
    "--rounds", type=click.IntRange(1), help="Rounds for --poses.  [default: until the depth no longer changes]"
)
@run_option("--jobs", type=click.IntRange(1), default=1, help="Frames at a time.")
@run_option(
    "--executor",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    help="Processes of this machine, or a Ray cluster, whose nodes need the same paths.",
)
@run_option("--address", help="Address of a Ray cluster.  [default: a new one on this machine]")
@run_option("--overwrite", is_flag=True, help="Refine frames again that are refined already.")
@quiet_flag
@completion_flags_with(outliers="single")
def command(
    input: Path,
    depth: Path | None,
    points: Path | None,
    dataset: str | None,
    data_options: dict[str, Any],
    measured: str | None,
    poses: Path | None,
    pose_scale: float,
    limit: int | None,
    noise: tuple[float, ...] | None,
    min_confidence: float | None,
    prior: PriorFlags,
    intrinsics: tuple[float, ...] | None,
    camera: Path | None,
    output: Path,
    file_format: str | None,
    sheet: int,
    rounds: int | None,
    jobs: int,
    executor: ExecutorName,
    address: str | None,
    overwrite: bool,
    quiet: bool,
    completion: CompletionOptions,
    **values: Any,
) -> int:
    """Refine the depth of RGB-D frames: leave out what is wrong, complete what is missing, keep the rest bit for bit.

    --outliers decides which measurements are wrong: 'single' those that contradict all their neighbours, 'regions'
    whole regions, as behind glass, for which the prior must be good.
    """
    from leadline.apps.terminal.progress import FolderReport, make_output_folder
    from leadline.batch.folder import complete_folder
    from leadline.batch.frame import FrameJob, ensure_compiled
    from leadline.batch.outputs import OutputOptions
    from leadline.batch.posed_inputs import PosedFrame, pose_frames
    from leadline.batch.refine import SEQUENCE_UNITS, SceneFrame, SceneJob, measured_format, sequence_kind
    from leadline.batch.views import complete_views
    from leadline.io.files import why_no_folder
    from leadline.io.frames import MIN_CONFIDENCE, FrameOptions

    if not input.is_dir():
        raise FileError(f"{param('input')} {input}: {why_no_folder(input)}; check the path.")
    if depth is not None and points is not None:
        raise InputError(f"give one of {param('depth')}, depth maps, and {param('points')}, point clouds.")
    prior_file, predictor = prior.open(focal_length(intrinsics, camera))
    if prior_file is not None and not prior_file.is_dir():
        why = why_no_folder(prior_file)
        raise InputError(f"{param('prior')} {prior_file}: {why}; give one with a prior for each image.")
    outputs = take_fields(OutputOptions, values, mask=True)
    if poses is None:
        refuse_given(("rounds", "pose_scale"), "it is for --poses")
    else:
        refuse_given(("dataset", "executor", "address", "intrinsics"), "the frames are completed together by --poses")
        outputs = replace(outputs, reliable=outputs.sigma)
    refuse_unused(outputs, predictor, confidence=values["confidence"], points=points, poses=poses)
    if points is None:
        refuse_given(("extrinsics", "kitti"), "it is for --points")
    else:
        refuse_given(("unit", "confidence"), "it is for depth maps, and --points are clouds")
    folders = {name: values.pop(name) for name in ("confidence", "valid")}
    placement = {name: values.pop(name) for name in ("extrinsics", "kitti")}
    sequence = None if dataset or depth or points else sequence_kind(input)
    unit = values.pop("unit") or (None if sequence is None else SEQUENCE_UNITS[sequence])
    inputs = FrameOptions(
        unit=unit,
        prior_kind=prior.kind if prior_file else None,
        prior_floor=prior.floor if prior_file else None,
        resize_prior=True,
        scatter_sparse=points is None,
        min_confidence=MIN_CONFIDENCE if min_confidence is None else min_confidence,
        noise=parse_noise(noise),
        intrinsics=intrinsics,
    )
    make_output_folder(output)
    if predictor is not None:
        predictor.open()  # an error of the network is reported once, not for each frame
    scenes = None if dataset is None else _open_dataset(dataset, input, data_options)
    items: list[Any]  # FrameFiles, or SceneFrame of a data set
    known: tuple[Outcome, ...] = ()
    if scenes is not None:
        items, suggested = [SceneFrame(name) for name in scenes.names()[:limit]], "npy"
    else:
        refuse_given(("measured", "data_options"), "it is for --dataset")
        matches = _match(input, depth, points, folders, prior_file, camera, placement, sequence)
        say_notes(matches.notes)
        items, known = list(matches.frames[:limit]), matches.ambiguous
        if any(path.parent.resolve() == output.resolve() for item in items for path in item.paths().values()):
            raise InputError(f"{param('output')} {output}: is one of the input folders; choose another.")
        suggested = measured_format(items)
    frames = FrameJob(
        folder=output,
        inputs=inputs,
        outputs=replace(outputs, format=file_format or suggested),
        completion=completion,
        predictor=predictor,
        overwrite=overwrite,
    )
    job: Any = frames if scenes is None else SceneJob(scenes, frames, measured, prior_file)
    posed: list[PosedFrame] = []
    if poses is not None:
        posed, unposed = pose_frames(items, _read_poses(poses, camera), pose_scale)
        known = (*known, *unposed)
    ensure_compiled(completion, announce_compiling)
    with FolderReport(len(items if poses is None else posed), output, quiet=quiet, doing="refining") as report:
        if poses is None:
            complete_folder(items, job, report.add, workers=jobs, executor=executor, address=address)
        else:
            progress = None if quiet else report.show_step
            complete_views(posed, frames, report.add, rounds=rounds, workers=jobs, on_progress=progress)
    code = report.finish("finished frames are complete, and the same command continues from here.", known)
    if report.interrupted:
        return code
    written = _summarise(report.outcomes, {item.stem: item for item in items}, job, sheet, quiet=quiet)
    return code if written else max(code, 1)


def _summarise(outcomes: list[Outcome], items: dict[str, Any], job: Any, sheet: int, *, quiet: bool) -> bool:
    """Write the table and the contact sheet, and print what was measured, left out and filled.

    Returns whether both could be written. The frames are done either way, so an error of a full disk ends nothing.
    """
    from rich.table import Table

    from leadline.apps.terminal.progress import table_console
    from leadline.batch.refine import total_pixels, worst_frames, write_contact_sheet, write_table

    worst = worst_frames(outcomes, sheet)
    written, complete = [], True
    writers: tuple[Callable[[], Path | None], ...] = (
        lambda: write_table(outcomes, job.folder, lambda text: render(text, flag_wording)),
        lambda: write_contact_sheet(worst, items, job, total=len(outcomes)),
    )
    for write in writers:
        try:
            written.append(write())
        except FileError as error:
            say("error", error_text(error))
            complete = False
    if quiet:
        return complete
    total = total_pixels(outcomes)
    if total.total:
        title = "share of the pixels; the frames that changed most come first"
        table = Table(title=title, title_justify="left", header_style="")
        for head in ("frame", "measured", "left out", "filled", "no depth"):
            table.add_column(head, justify="left" if head == "frame" else "right")
        rows = {outcome.stem: outcome.pixels for outcome in worst}
        for name, counts in {**rows, f"all frames ({len(outcomes)})": total}.items():
            if counts is not None and counts.total:
                shares = (counts.measured, counts.left_out, counts.filled, counts.no_depth)
                table.add_row(name, *(f"{share / counts.total:.2%}" for share in shares))
        table_console().print(table)
    for path in filter(None, written):
        click.echo(f"wrote {path}")
    return complete


def _match(
    input: Path,
    depth: Path | None,
    points: Path | None,
    more: dict[str, Path | None],
    prior: Path | None,
    camera: Path | None,
    placement: dict[str, Path | None],
    sequence: SequenceKind | None,
) -> Matches:
    from leadline.batch.folder import Matches, match_frames
    from leadline.batch.refine import find_rgbd_folders, match_7scenes_frames, match_tum_frames
    from leadline.io.files import why_no_folder

    if sequence is not None:
        refuse_given(("confidence", "valid"), "the sequence has no such files")
        match = match_tum_frames if sequence == "tum" else match_7scenes_frames
        frames, notes = match(input, camera=camera, priors=prior)
        return Matches(frames, (), notes)
    folders = find_rgbd_folders(input) if depth is None and points is None else {"image": input}
    folders |= {name: path for name, path in {"sparse": depth, "points": points, **more}.items() if path is not None}
    if prior is not None:
        folders["prior"] = prior
    for name, path in folders.items():
        if not path.is_dir():
            raise FileError(f"{param(name)} {path}: {why_no_folder(path)}; check the path.")
    return match_frames(folders, camera=camera, **placement)


def _read_poses(source: Path, camera: Path | None) -> list[PosedView]:
    from leadline.io.cameras import read_camera
    from leadline.io.views.posed import read_views

    return read_views(source, camera=None if camera is None else read_camera(camera), allow_missing=True)


def _open_dataset(name: str, root: Path, options: dict[str, Any]) -> Any:
    from leadline.datasets import dataset

    files = ("depth", "points", "unit", "confidence", "min_confidence", "valid", "camera", "extrinsics", "kitti")
    refuse_given(files, "the data set has its own")
    if name == "scenes":
        options = {"listed": "all", **options}  # a scene needs measurements, not a reference
    return dataset(name, root, **options)
