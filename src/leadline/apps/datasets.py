"""`leadline datasets`: the list of data sets, checks of a folder, and statistics of its reference depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.terminal.commands import PATH, LazyGroup, grouped_command, key_value_option, option, say
from leadline.apps.terminal.progress import image_progress
from leadline.base.errors import FileError, param

if TYPE_CHECKING:
    from leadline.datasets import DatasetFacts
    from leadline.datasets.tree_check import TreeReport

# The subcommands: `{name: ("module:attribute", short help)}`.
SUBCOMMANDS = {
    "check": ("leadline.apps.datasets:check", "Report what is missing or wrong in a folder."),
    "geometry": ("leadline.apps.datasets:geometry", "Coverage, holes, connectivity and depth of the references."),
    "audit": ("leadline.apps.datasets:audit", "Count background depth in the pixels of near objects."),
}
# Number of faults or unreadable images that are listed before "and n more".
LISTED = 5

# Lines of the audit about the scan: title, field of a frame's audit, unit.
_AUDIT_CHECKS = (
    ("reprojection", "reprojection_mm", " mm"),
    ("colour", "colour_correlation", " correlation"),
    ("colour, shifted", "shifted_correlation", " correlation"),
)

_NAME = click.argument("name", metavar="NAME")
_ROOT = click.argument("root", metavar="ROOT", type=PATH)
_OPTIONS = key_value_option(
    "--data-option", "options", help="An option of the data set, e.g. max_depth=20 or size=[756,504]; may be repeated."
)


@click.group(
    cls=LazyGroup,
    lazy=SUBCOMMANDS,
    invoke_without_command=True,
    epilog="""\b
Examples:
  leadline datasets
  leadline datasets check --help
""",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the data sets: images in the paper or published evaluation, files, where they come from, the licence."""
    if ctx.invoked_subcommand is not None:
        return
    from leadline.datasets import DATASETS

    # Not a table: in a narrow terminal its columns would break the addresses, which are to be copied.
    for name, facts in DATASETS.items():
        images = "" if facts.images is None else f", {facts.images} published images"
        click.echo(f"{click.style(name, bold=True)}{images}")
        for title, text in (("files", facts.needs), ("source", facts.source), ("licence", facts.licence)):
            click.echo(f"  {title:8} {text}")


@grouped_command(
    epilog="""\b
Examples:
  leadline datasets check ibims data/ibims1
  leadline datasets check ibims data/ibims1 --data-option format=raw --data-option max_depth=20
  leadline datasets check scenes data/scenes --read all
"""
)
@_NAME
@_ROOT
@option("--read", "reads", default="8", metavar="N|all", help="How many images to read.")
@_OPTIONS
@click.pass_context
def check(ctx: click.Context, name: str, root: Path, reads: str, options: dict[str, Any]) -> None:
    """Report what is missing or wrong in the folder ROOT of the data set NAME.

    Looks for every file of every image and reads some images. The number of images is compared with the published one,
    unless an option selects other images. The exit code is 0 if all is well, 1 if images or files are missing or files
    are wrong, and 2 if the folder does not hold the data set at all.
    """
    from leadline.datasets import DATASETS, dataset
    from leadline.datasets.tree_check import check_tree

    if reads != "all" and not reads.isdigit():
        raise click.BadParameter(f"must be a number of images or 'all', got {reads!r}.", ctx, param_hint="--read")
    if name == "scenes":
        options = {"listed": "all", **options}  # scenes without a reference are checked, too
    tree = dataset(name, root, **options)
    report = check_tree(tree, None if reads == "all" else int(reads))
    facts = DATASETS[name]
    absent = facts.absent(report.images, options)
    for line in _report_lines(report, facts, absent):
        click.echo(line)
    ctx.exit(0 if report.sound and not absent else 1)


@grouped_command(
    epilog="""\b
Examples:
  leadline datasets geometry ibims data/ibims1 -o statistics/
  leadline datasets geometry tanks data/tanks --data-option scenes=Barn -o statistics/
"""
)
@_NAME
@_ROOT
@option("-o", "--output", type=PATH, required=True, help="Folder for the tables; made if it is not there.")
@option("--subset", help="Name of the subset in the table.  [default: as in the paper]")
@_OPTIONS
@click.pass_context
def geometry(
    ctx: click.Context, name: str, root: Path, output: Path, subset: str | None, options: dict[str, Any]
) -> None:
    """Coverage, holes, connectivity and depth of the references of the data set NAME in the folder ROOT.

    Writes reference_geometry.csv, with seven percentiles of each subset, and reference_geometry_images.csv, with a row
    per image. The exit code is 1 if images could not be read; the tables are then of the others.
    """
    from rich.console import Console
    from rich.table import Table

    from leadline.datasets import dataset
    from leadline.datasets.reference_statistics import reference_geometry, write_reference_geometry

    tree = dataset(name, root, **options)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{param('output')} {output}: the folder cannot be made ({error.strerror}).") from error
    with image_progress() as progress:
        found = reference_geometry(tree, subset=subset, progress=progress)
    table = Table()
    for title in ("subset", "images", "percentile", "valid", "holes", "largest", "depth (m)"):
        table.add_column(title, justify="left" if title == "subset" else "right")
    for row in found.rows:
        shares = (f"{share:.4f}" for share in (row.valid_fraction, row.hole_fraction, row.largest_component))
        table.add_row(row.subset, str(row.images), f"p{row.percentile}", *shares, f"{row.depth_m:.3f}")
    Console().print(table)
    for path in write_reference_geometry(found, output):
        click.echo(f"wrote {path}")
    ctx.exit(_report_failures(found.failures))


@grouped_command(
    epilog="""\b
Examples:
  leadline datasets audit tanks data/tanks --data-option scenes=Courthouse
  leadline datasets audit ibims data/ibims1 --radius 2 --radius 4 -o frames.csv
"""
)
@_NAME
@_ROOT
@option("-o", "--output", type=PATH, help="Also write a table with a row per image.")
@option("--far", "far_ratio", type=float, default=2.0, help="Pixels beyond this many medians of their image are far.")
@option("--share", type=click.FloatRange(0, 1), default=0.1, help="Count the images with a larger share of far pixels.")
@option(
    "--radius",
    "radii",
    type=click.IntRange(0),
    multiple=True,
    default=(4, 8, 16),
    help="Radius of the window, in pixels of the full resolution; may be repeated.",
)
@_OPTIONS
@click.pass_context
def audit(
    ctx: click.Context,
    name: str,
    root: Path,
    output: Path | None,
    far_ratio: float,
    share: float,
    radii: tuple[int, ...],
    options: dict[str, Any],
) -> None:
    """Look for background depth in the pixels of near objects, in the data set NAME in the folder ROOT.

    Counts the pixels beyond twice the median of their image, the images that have more than 10 % of them, and how many
    of them have a near depth in a window around them. Tanks and Temples is audited without any filter, and its scan is
    checked against the rendered depth (in mm) and against the colours of the images, also shifted by a quarter of
    their width for comparison. The exit code is 1 if images could not be read.
    """
    from leadline.datasets import dataset
    from leadline.datasets.far_pixel_audit import audit as run
    from leadline.datasets.far_pixel_audit import write_audit

    tree = dataset(name, root, **options)
    with image_progress() as progress:
        found = run(tree, radii=radii, far_ratio=far_ratio, progress=progress)
    click.echo(f"images          {len(found.frames)}")
    click.echo(f"far pixels      {found.far_fraction:.2%} of the valid pixels are beyond {far_ratio:g} medians")
    click.echo(f"images affected {found.fraction_of_frames(share):.1%} have more than {share:.0%} far pixels")
    for radius, recovered in zip(found.radii, found.recovered, strict=True):
        click.echo(f"radius {radius:<8} {recovered:.1%} of the far pixels recovered")
    for title, check, unit in _AUDIT_CHECKS:
        quartiles = found.quartiles(check)
        if quartiles is not None:
            low, middle, high = quartiles
            click.echo(f"{title:<15} {middle:.2f}{unit} in the median frame, quartiles {low:.2f} and {high:.2f}")
    if output is not None:
        write_audit(found, output)
        click.echo(f"wrote {output}")
    ctx.exit(_report_failures(found.failures))


def _report_lines(report: TreeReport, facts: DatasetFacts, absent: int) -> list[str]:
    expected = "" if facts.images is None else f" ({facts.counted_by} has {facts.images})"
    lines = [f"images     {report.images}{expected}"]
    lines.append(f"missing    {_count(len(report.missing), 'file')}")
    lines += _shorten([str(path) for path in report.missing])
    sizes = ", ".join(f"{size} ({count})" for size, count in sorted(report.sizes.items()))
    lines.append(f"read       {_count(report.read, 'image')}{f': {sizes}' if sizes else ''}")
    if report.coverage:
        low, high = min(report.coverage), max(report.coverage)
        lines.append(
            f"reference  in {len(report.coverage)} of {report.read}, valid in {low:.1%} to {high:.1%} of the pixels"
        )
    for label, images in report.measurements.items():
        lines.append(f"measured   {label!r} in {images} of {report.read}")
    if report.read:
        lines.append(f"camera     in {report.cameras} of {report.read}{'' if report.cameras else ': no normals'}")
    lines.append(f"faults     {_count(len(report.faults), 'image')}")
    lines += _shorten([reason for _, reason in report.faults])
    if absent:
        lines.append(f"absent     {_count(absent, 'image')} of {facts.images} are not in this folder at all")
    lines.append("complete" if report.sound and not absent else "not complete")
    return lines


def _shorten(entries: list[str]) -> list[str]:
    more = [f"  and {len(entries) - LISTED} more"] if len(entries) > LISTED else []
    return [f"  {entry}" for entry in entries[:LISTED]] + more


def _count(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def _report_failures(failures: tuple[tuple[str, str], ...]) -> int:
    """Print the images that could not be read; returns the exit code."""
    for _, reason in failures[:LISTED]:
        say("note", reason)
    if failures:
        say("note", f"{len(failures)} images could not be read and are left out.")
    return 1 if failures else 0
