"""`leadline datasets`: which data sets there are, and whether a tree on disk is one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.cli import LazyGroup

if TYPE_CHECKING:
    from leadline.datasets.check import TreeReport

# The subcommands: `{name: ("module:attribute", short help)}`.
SUBCOMMANDS = {
    "check": ("leadline.apps.datasets:check", "Say what is missing or wrong in a tree on disk."),
    "geometry": ("leadline.apps.dataset_statistics:geometry", "Coverage, holes, connectivity and depth of references."),
    "audit": ("leadline.apps.dataset_statistics:audit", "Count far pixels and what pooling recovers of them."),
}

SHOWN = 5  # of a list of faults


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
    """List the data sets: images in the paper, what each needs on disk, where that comes from, its licence."""
    if ctx.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from leadline.datasets import DATASETS, ORIGINS

    table = Table(show_lines=True)
    for title in ("name", "images in the paper", "needs on disk, in its folder", "source", "licence"):
        table.add_column(
            title, overflow="fold", no_wrap=title == "name", justify="right" if "paper" in title else "left"
        )
    for name in DATASETS:
        origin = ORIGINS[name]
        images = "-" if origin.images is None else str(origin.images)
        table.add_row(*map(Text, (name, images, origin.needs, origin.source, origin.licence)))
    Console().print(table)


def parse_options(ctx: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """`key=value`, the value as JSON where it is JSON (numbers, lists, true, null) and as text where not."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not of the form key=value.", ctx, parameter)
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text
    return options


@click.command(
    epilog="""\b
Examples:
  leadline datasets check ibims data/ibims1
  leadline datasets check ibims data/ibims1 --set form=raw --set max_depth=20
  leadline datasets check scenes data/scenes --read all
"""
)
@click.argument("name", metavar="NAME")
@click.argument("root", metavar="ROOT", type=click.Path(path_type=Path))
@click.option("--read", "reads", default="8", show_default=True, metavar="N|all", help="How many images to read.")
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_options,
    help="An option of the data set, e.g. max_depth=20 or size=[756,504].",
)
@click.pass_context
def check(ctx: click.Context, name: str, root: Path, reads: str, options: dict[str, Any]) -> None:
    """Say what is missing or wrong in the tree of data set NAME in the folder ROOT.

    Looks for every file of every image and reads a few images. Ends with exit code 0 if all is well, 1 if files are
    missing or wrong, 2 if there is no such data set in ROOT at all.
    """
    from leadline.datasets import ORIGINS, dataset
    from leadline.datasets.check import check_tree

    if reads != "all" and not reads.isdigit():
        raise click.BadParameter(f"must be a number of images or 'all', got {reads!r}.", ctx, param_hint="--read")
    if name == "scenes":
        options = {"reference_only": False, **options}  # those without a reference are to be read, too
    tree = dataset(name, root, **options)
    report = check_tree(tree, None if reads == "all" else int(reads))
    for line in _lines(report, ORIGINS[name].images if name in ORIGINS else None):
        click.echo(line)
    ctx.exit(0 if report.sound else 1)


def _lines(report: TreeReport, expected: int | None) -> list[str]:
    lines = [f"images     {report.images}" + (f" (the paper has {expected})" if expected is not None else "")]
    lines.append(f"missing    {_counted(len(report.missing), 'file')}")
    lines += _shown([str(path) for path in report.missing])
    sizes = ", ".join(f"{size} ({count})" for size, count in sorted(report.sizes.items()))
    lines.append(f"read       {_counted(report.read, 'image')}{f': {sizes}' if sizes else ''}")
    if report.coverage:
        low, high = min(report.coverage), max(report.coverage)
        lines.append(
            f"reference  in {len(report.coverage)} of {report.read}, valid in {low:.1%} to {high:.1%} of the pixels"
        )
    if report.read:
        lines.append(f"camera     in {report.cameras} of {report.read}{'' if report.cameras else ': no normals'}")
    lines.append(f"faults     {_counted(len(report.faults), 'image')}")
    lines += _shown([reason for _, reason in report.faults])
    lines.append("complete" if report.sound else "not complete")
    return lines


def _shown(entries: list[str]) -> list[str]:
    more = [f"  and {len(entries) - SHOWN} more"] if len(entries) > SHOWN else []
    return [f"  {entry}" for entry in entries[:SHOWN]] + more


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
