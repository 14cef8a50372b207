"""`leadline datasets geometry` and `leadline datasets audit`: what the references of a data set look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from leadline.apps.cli import say
from leadline.apps.datasets import parse_options
from leadline.apps.progress import image_progress

SHOWN = 5  # of the images that could not be read

_NAME = click.argument("name", metavar="NAME")
_ROOT = click.argument("root", metavar="ROOT", type=click.Path(path_type=Path))
_SET = click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_options,
    help="An option of the data set, e.g. max_depth=20 or scenes=Courthouse.",
)


@click.command(
    epilog="""\b
Examples:
  leadline datasets geometry ibims data/ibims1 -o statistics/
  leadline datasets geometry tanks data/tanks --set scenes=Barn -o statistics/
"""
)
@_NAME
@_ROOT
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder for the tables; made if need be."
)
@click.option("--subset", help="Name in the table; by default the paper's.")
@_SET
@click.pass_context
def geometry(
    ctx: click.Context, name: str, root: Path, output: Path, subset: str | None, options: dict[str, Any]
) -> None:
    """Coverage, holes, connectivity and depth of the references of data set NAME in the folder ROOT.

    Writes reference_geometry.csv, with seven percentiles of each subset, and reference_geometry_images.csv, with a row
    per image. Ends with exit code 1 if images could not be read; the tables are then of the others.
    """
    from rich.console import Console
    from rich.table import Table

    from leadline.base.errors import FileError
    from leadline.datasets import dataset
    from leadline.datasets.geometry import reference_geometry, write_reference_geometry

    tree = dataset(name, root, **options)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"-o {output}: the folder cannot be made ({error.strerror}).") from error
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
    ctx.exit(_failures(found.failures))


@click.command(
    epilog="""\b
Examples:
  leadline datasets audit tanks data/tanks --set scenes=Courthouse
  leadline datasets audit ibims data/ibims1 --radius 2 --radius 4 -o frames.csv
"""
)
@_NAME
@_ROOT
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write a table with a row per image.")
@click.option(
    "--far", "far_ratio", type=float, default=2.0, show_default=True, help="Far is beyond this many medians of a frame."
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Frames with a larger share of far pixels are counted.",
)
@click.option(
    "--radius",
    "radii",
    type=click.IntRange(0),
    multiple=True,
    default=(4, 8, 16),
    show_default=True,
    help="Of a window of least depth, in pixels of the full resolution; may be repeated.",
)
@_SET
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
    """Look for depth of the background in the pixels of things before it, in data set NAME in the folder ROOT.

    Counts the pixels beyond twice the median of their frame, the frames that have more than 10 % of them, and how many
    are recovered by the least depth in a window around them. Ends with exit code 1 if images could not be read.
    """
    from leadline.datasets import dataset
    from leadline.datasets.audit import audit as run
    from leadline.datasets.audit import write_audit

    tree = dataset(name, root, **options)
    with image_progress() as progress:
        found = run(tree, radii=radii, far_ratio=far_ratio, progress=progress)
    click.echo(f"frames          {len(found.frames)}")
    click.echo(f"far pixels      {found.far_share:.2%} of the valid ones are beyond {far_ratio:g} medians")
    click.echo(f"frames affected {found.share_of_frames(share):.1%} have more than {share:.0%} far pixels")
    for radius, recovered in zip(found.radii, found.recovered, strict=True):
        click.echo(f"radius {radius:<8} {recovered:.1%} of the far pixels recovered")
    if output is not None:
        write_audit(found, output)
        click.echo(f"wrote {output}")
    ctx.exit(_failures(found.failures))


def _failures(failures: tuple[tuple[str, str], ...]) -> int:
    """Say which images were left out; the exit code."""
    for _, reason in failures[:SHOWN]:
        say("note", reason)
    if failures:
        say("note", f"{len(failures)} images could not be read and are left out.")
    return 1 if failures else 0
