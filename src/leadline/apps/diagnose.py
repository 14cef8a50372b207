"""`leadline diagnose`: how a prediction relates to the reference, for files or for an image of a run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from leadline.apps.cli import say
from leadline.apps.network import Network, given_flags, prior_flags
from leadline.apps.options import completion_flags, completion_options
from leadline.base.errors import FileError, InputError

if TYPE_CHECKING:
    from leadline.report.trial import Trial

_PATH = click.Path(path_type=Path)
_RUN = ("run", "name", "dataset", "case", "methods", "prior", "output", "bin_width")


@click.command(
    epilog="""\b
Examples:
  leadline diagnose photo.jpg --sparse lidar.png --unit mm --prior prior.npy --reference depth.npy -o OUT
  leadline diagnose --run RUN --image room-0 -o DIAGNOSIS
  leadline diagnose --run RUN --image room-0 --case outer --method Ours --method KNN -o DIAGNOSIS

\b
It writes diagnosis.json with all numbers, and as PNG, SVG and PDF:
  linearity   error maps, and predicted against reference depth
  response    the gain along depth, and the error along the exponent
  errors      along depth, and along the distance to the nearest measurement
  groups      bands of points that follow lines of their own
"""
)
@click.argument("image", type=_PATH, required=False)
@click.option("--sparse", type=_PATH, help="Measured depth; 0, NaN and inf mean not measured.")
@click.option(
    "--prior",
    metavar="PATH|NAME[:MODEL]",
    help="Dense relative depth: a file or a network by its name. With --run: the prior's label; default: the first.",
)
@click.option("--reference", type=_PATH, help="True depth to compare with, where it was not measured.")
@click.option("-o", "--output", type=_PATH, required=True, help="Folder for the results; made if it is not there.")
@click.option(
    "--unit", help="Unit of --sparse: mm, cm, m, kitti, tum ... or metres per count. If missing, guessed aloud."
)
@click.option("--reference-unit", help="Unit of --reference. If missing, guessed aloud.")
@prior_flags
@click.option("--valid", type=_PATH, help="Mask: > 0 where prior and measurements may be used.")
@click.option("--resize-prior", is_flag=True, help="Interpolate a prior of another size to the image's.")
@click.option(
    "--scatter-sparse", is_flag=True, help="Move measurements of a map of another size to the nearest pixels."
)
@click.option("--run", type=_PATH, metavar="RUN", help="A benchmark run to take the image from, instead of files.")
@click.option("--image", "name", help="With --run: the image's name in it.")
@click.option("--dataset", help="With --run: the data set's label, if several have such an image.")
@click.option("--case", help="With --run: which measurements. Default: the run's first case.")
@click.option("--method", "methods", multiple=True, help="With --run: a method's label; may be given again.")
@click.option(
    "--bin", "bin_width", type=float, default=0.05, show_default=True, help="Width of the depth bins in metres."
)
@completion_flags
def command(image: Path | None, run: Path | None, output: Path, bin_width: float, **flags: Any) -> int:
    """Diagnose how linear the relation of predicted to true depth is, and what each response makes of it.

    Give files, as to 'leadline complete' and with a --reference; or --run and --image for an image of a benchmark
    run, whose maps are computed again from its protocol.
    """
    if run is None:
        trial = _from_files(image, flags)
    else:
        if image is not None:
            raise InputError("with --run the image is named by --image, and no file is given.")
        _refuse_given((), "with --run, files and options are the run's own", but=_RUN)
        trial = _from_run(run, flags)
    from leadline.report import diagnostic_plots as plots
    from leadline.report.diagnosis import SCALED, diagnose
    from leadline.report.figures.plotting import save_figure, save_numbers

    found = diagnose(trial, bin_width=bin_width)
    numbers = found.to_dict()
    drawings = {
        "linearity": plots.linearity(trial, found.relations),
        "response": plots.response_plot(found),
        "errors": plots.error_plot(found),
    }
    try:
        groups = plots.group_plot(trial)
        drawings["groups"], numbers["groups"] = groups.figure, groups.numbers
    except InputError as error:
        say("note", f"no groups: {error}")
    files = [save_numbers(numbers, output, "diagnosis")]
    for name, figure in drawings.items():
        files += save_figure(figure, output, name)[:1]
    click.echo(f"{trial.title}: exponent {found.profile.chosen:.4g}")
    for label, entry in found.relations.items():
        errors = "" if label == SCALED else f"  trend {entry.trend_cm:7.2f} cm  MAE {entry.mae:.4f} m"
        click.echo(f"  {label:<20} r {entry.pearson:.4f}{errors}")
    click.echo("\n".join(f"wrote {path}" for path in files))
    few = [label for label, entry in found.relations.items() if entry.sparse]
    if few:
        say("note", f"most pixels lie in bins of {bin_width:g} m with too few others ({', '.join(few)}); widen --bin.")
    return 0


def _refuse_given(names: Collection[str], why: str, *, but: Collection[str] = ()) -> None:
    """Refuse options that would be ignored: those of `names`, or all but some, that were given by hand."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        wanted = name in names or (bool(but) and name not in but)
        if wanted and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"{parameter.opts[0]} does not go with this: {why}.")


def _from_files(image: Path | None, flags: dict[str, Any]) -> Trial:
    from leadline.apps.complete import prior_file
    from leadline.io.depth.files import read_depth
    from leadline.io.frames import Frame, Settings, read_maps
    from leadline.report.trial import try_methods

    _refuse_given(("name", "dataset", "case", "methods"), "it chooses from a --run, and there is none")
    needed = {"IMAGE": image, **{f"--{name}": flags[name] for name in ("sparse", "prior", "reference")}}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise InputError(f"{', '.join(missing)} missing: give all four of {', '.join(needed)}, or --run and --image.")
    file = prior_file(flags["prior"])
    for name, path in {**needed, "--prior": file}.items():
        if path is not None and not path.is_file():
            raise FileError(f"{name} {path}: there is no such file; check the path.")
    network = None
    if file is None:
        meant = {"kind": flags["prior_kind"], "floor": flags["prior_floor"]}
        told = {name: value for name, value in meant.items() if value is not None}
        network = Network.from_flags(flags["prior"], flags, **told)
    elif given_flags(flags):
        raise InputError(f"{given_flags(flags)[0]} is for a prior that is predicted, and --prior is a file.")
    picture = Path(str(image))
    options = completion_options(flags)
    plain = ("unit", "prior_kind", "prior_floor", "resize_prior", "scatter_sparse")
    settings = Settings(**{name: flags[name] for name in plain}, completion=options)
    maps = read_maps(Frame(picture.stem, picture, flags["sparse"], file, flags["valid"]), settings, network)
    measured = read_depth(flags["reference"], flags["reference_unit"])
    for note in (*maps.notes, *((f"reference: {measured.note}",) if measured.guessed else ())):
        say("note", note)
    if measured.values.shape != maps.image.shape[:2]:
        sizes = [f"{shape[1]}x{shape[0]}" for shape in (measured.values.shape, maps.image.shape)]
        raise InputError(f"--reference {flags['reference']}: is {sizes[0]} and the image {sizes[1]}; make them equal.")
    return try_methods(
        picture.stem, maps.image, maps.prior, maps.sparse, measured.values, valid=maps.valid, options=options
    )


def _from_run(run: Path, flags: dict[str, Any]) -> Trial:
    from leadline.report.figures.catalogue import run_source
    from leadline.report.trial import TRIED, recompute

    if flags["name"] is None:
        raise InputError("--image is missing: the name of an image of the run.")
    cases = () if flags["case"] is None else (flags["case"],)
    source = run_source(run, prior=flags["prior"], cases=cases, image=flags["name"])
    places = [place for place in source.places() if flags["dataset"] in (None, place.dataset)]
    if not places:
        raise InputError(f"--dataset {flags['dataset']}: has no image {flags['name']!r} in the run.")
    sets = list(dict.fromkeys(place.dataset for place in places))
    if len(sets) > 1:
        raise InputError(
            f"several data sets have an image {flags['name']!r}; choose one by --dataset: {', '.join(sets)}."
        )
    there = source.at(places[0])
    methods = flags["methods"] or tuple(label for label in TRIED.values() if label in there)
    if not methods:
        raise InputError(f"{places[0]}: the run has no usual method; choose by --method from {', '.join(there)}.")
    return recompute(run, places[0], methods)
