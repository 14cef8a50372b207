"""`leadline diagnose`: diagnostics of one image with a ground truth, from files or from a benchmark run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.apps.terminal.commands import (
    INPUTS,
    OUTPUTS,
    PATH,
    PRIOR,
    announce_compiling,
    grouped_command,
    option,
    refuse_given,
    say,
    say_notes,
)
from leadline.apps.terminal.flags import PriorFlags, completion_flags, prior_flags
from leadline.base.errors import FileError, InputError, param
from leadline.core.options import CompletionOptions
from leadline.priors import RECOMMENDED

if TYPE_CHECKING:
    from leadline.io.frames import FrameFiles, FrameOptions
    from leadline.priors.predictor import Predictor
    from leadline.report.image_results import ImageResults

BENCHMARK = "Image of a benchmark run"
_RUN = ("run", "name", "dataset", "case", "methods", "prior_spec", "output", "bin_width")


@grouped_command(
    epilog="""\b
Examples:
  leadline diagnose photo.jpg --sparse lidar.png --unit mm --prior prior.npy --reference depth.npy -o OUT
  leadline diagnose --run RUN --image room-0 -o DIAGNOSIS
  leadline diagnose --run RUN --image room-0 --case outer --method ours --method knn -o DIAGNOSIS

\b
It writes diagnosis.json with all numbers, and as PNG, SVG and PDF:
  linearity   error maps, and true against predicted depth
  response    slope of the response along depth, and error along the exponent
  errors      errors along depth and along the distance to the nearest measurement
  groups      groups of pixels that follow different lines of depth over the prior
"""
)
@click.argument("image", type=PATH, required=False)
@option("--sparse", group=INPUTS, type=PATH, help="Measured depth; 0, NaN and inf mean not measured.")
@option(
    "--unit",
    group=INPUTS,
    help="Unit of --sparse: mm, cm, m, kitti, tum ... or metres per count.  [default: guessed, with a note]",
)
@option("--reference", group=INPUTS, type=PATH, help="True depth; scored at pixels that were not measured.")
@option(
    "--reference-unit",
    group=INPUTS,
    help="Unit of --reference.  [default: that of --sparse if it fits, otherwise guessed; with a note]",
)
@option("--valid", group=INPUTS, type=PATH, help="Mask: > 0 where the inputs may be used.")
@option(
    "--scatter-sparse",
    group=INPUTS,
    is_flag=True,
    help="If --sparse has another size than the image: move its measurements to the nearest pixels.",
)
@prior_flags(
    text="Dense relative depth: a file or a network by its name. With --run: the label of a prior.",
    default=f"{RECOMMENDED}; with --run the first",
)
@option("--resize-prior", group=PRIOR, is_flag=True, help="Interpolate a prior of another size to the image.")
@option("--run", group=BENCHMARK, type=PATH, metavar="RUN", help="A benchmark run to take the image from.")
@option("--image", "name", group=BENCHMARK, help="Name of the image in the run.")
@option("--dataset", group=BENCHMARK, help="Label of the data set, if several have such an image.")
@option("--case", group=BENCHMARK, help="Case of the measurements.  [default: the first of the run]")
@option("--method", "methods", group=BENCHMARK, multiple=True, help="Label of a method; may be repeated.")
@option(
    "-o", "--output", group=OUTPUTS, type=PATH, required=True, help="Folder for the results; made if it is not there."
)
@option(
    "--bin",
    "bin_width",
    group=OUTPUTS,
    type=float,
    default=0.05,
    show_default=True,
    help="Width of the bins of predicted depth in metres.",
)
@completion_flags
def command(
    image: Path | None,
    sparse: Path | None,
    unit: str | None,
    reference: Path | None,
    reference_unit: str | None,
    valid: Path | None,
    scatter_sparse: bool,
    prior: PriorFlags,
    resize_prior: bool,
    run: Path | None,
    name: str | None,
    dataset: str | None,
    case: str | None,
    methods: tuple[str, ...],
    output: Path,
    bin_width: float,
    completion: CompletionOptions,
) -> int:
    """Diagnose how linear the relation between predicted and true depth is, and which response coordinate fits best.

    Give the files of 'leadline complete' and a --reference. Or give --run and --image for an image of a benchmark run,
    whose depth maps are computed again from its protocol.
    """
    from leadline.io.frames import FrameFiles, FrameOptions

    if run is None:
        refuse_given(("name", "dataset", "case", "methods"), "it selects from a --run, which is not given")
        needed = {"image": image, "sparse": sparse, "reference": reference}
        if image is None or sparse is None or reference is None:
            missing = ", ".join(param(name) for name, value in needed.items() if value is None)
            raise InputError(
                f"{missing} missing: give all three of {', '.join(map(param, needed))}, or {param('run')} and --image."
            )
        prior_file, predictor = prior.open()
        frame_files = FrameFiles(image=image, sparse=sparse, prior=prior_file, valid=valid)
        options = FrameOptions(
            unit=unit,
            prior_kind=prior.kind if prior_file else None,
            prior_floor=prior.floor if prior_file else None,
            resize_prior=resize_prior,
            scatter_sparse=scatter_sparse,
        )
        results = _from_files(frame_files, options, predictor, reference, reference_unit, completion)
    else:
        if image is not None:
            raise InputError("with --run, --image names the image; leave the file out.")
        refuse_given((), "with --run, the inputs and options are those of the run", but=_RUN)
        results = _from_run(run, prior.spec, name, dataset, case, methods)
    from leadline.report.diagnostics import SCALED_PRIOR, diagnose, write_diagnosis

    found = diagnose(results, bin_width=bin_width)
    paths, no_groups = write_diagnosis(found, results, output)
    if no_groups:
        say("note", f"there is no plot of groups: {no_groups}")
    width = max(map(len, found.linearity))
    click.echo(f"{found.title}: exponent {found.profile.chosen:.4g}")
    for label, entry in found.linearity.items():
        errors = "" if label == SCALED_PRIOR else f"  trend error {entry.trend_cm:7.2f} cm  MAE {entry.mae:.4f} m"
        click.echo(f"  {label:<{width}}  r {entry.pearson:.4f}{errors}")
    click.echo("\n".join(f"wrote {path}" for path in paths))
    few = [label for label, entry in found.linearity.items() if entry.few_displayed]
    if few:
        say(
            "note",
            f"most pixels lie in bins of {bin_width:g} m with fewer than 30 pixels ({', '.join(few)}); widen --bin.",
        )
    return 0


def _from_files(
    files: FrameFiles,
    options: FrameOptions,
    predictor: Predictor | None,
    reference: Path,
    reference_unit: str | None,
    completion: CompletionOptions,
) -> ImageResults:
    from leadline.batch.frame import ensure_compiled
    from leadline.io.frame_checks import read_reference
    from leadline.io.frames import read_frame
    from leadline.report.image_results import compare_methods

    for name, path in {**files.paths(), "reference": reference}.items():
        if not path.is_file():
            problem = "is a folder, not a file" if path.is_dir() else "there is no such file"
            raise FileError(f"{param(name)} {path}: {problem}; check the path.")
    frame = read_frame(files, options, None if predictor is None else predictor.predict)
    stated = None if frame.measurements.unit_guessed else frame.unit
    truth, notes = read_reference(reference, reference_unit, frame.sparse, stated)
    say_notes((*frame.notes, *notes))
    ensure_compiled(completion, announce_compiling)
    return compare_methods(
        files.stem, frame.image, frame.prior, frame.sparse, truth, valid=frame.valid, options=completion
    )


def _from_run(
    run: Path, prior: str | None, name: str | None, dataset: str | None, case: str | None, methods: tuple[str, ...]
) -> ImageResults:
    from leadline.report.figures import run_source
    from leadline.report.image_results import COMPARED_METHODS, recompute_results

    if name is None:
        raise InputError("--image is missing: the name of an image of the run.")
    source = run_source(run, prior=prior, cases=() if case is None else (case,), image=name)
    image_cases = [found for found in source.image_cases() if dataset in (None, found.dataset)]
    if not image_cases:
        raise InputError(f"{param('dataset')} {dataset}: the run has no image {name!r} of this data set.")
    sets = list(dict.fromkeys(found.dataset for found in image_cases))
    if len(sets) > 1:
        raise InputError(
            f"several data sets have an image {name!r}; choose one with {param('dataset')}: {', '.join(sets)}."
        )
    there = source.records_of(image_cases[0])
    chosen = methods or tuple(label for label in COMPARED_METHODS if label in there)
    if not chosen:
        raise InputError(
            f"{image_cases[0]}: the run has none of the methods compared by default; choose with --method from "
            f"{', '.join(there)}."
        )
    return recompute_results(run, image_cases[0], chosen)
