"""`leadline bench`: run a protocol, show its progress and its tables, compare runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.terminal.commands import (
    PATH,
    LazyGroup,
    grouped_command,
    key_value_option,
    option,
    output_option,
    run_option,
    say,
)
from leadline.apps.terminal.progress import image_progress, record_progress, rich_table, table_console

if TYPE_CHECKING:
    from leadline.bench.results import Results
    from leadline.bench.tables import Table

# The subcommands: `{name: ("module:attribute", short help)}`.
SUBCOMMANDS = {
    "run": ("leadline.apps.bench:run", "Run a protocol and store its records."),
    "status": ("leadline.apps.bench:status", "Show the progress and the failures of a run."),
    "report": ("leadline.apps.bench:report", "Make tables, or a page with pictures, from a run."),
    "compare": ("leadline.apps.bench:compare", "Compare two runs image by image."),
    "paper": ("leadline.apps.bench:paper", "Show the published tables, or a run beside them."),
}
GEOMETRY, RATIOS = "geometry", "ratios"  # tables that are not computed from distributions of scores
_PROTOCOL = "Protocol"  # a heading of the help
_protocol_option, _table_option = partial(option, group=_PROTOCOL), partial(option, group="Tables")
_OPTION_HELP = "An option of all {}, or LABEL:KEY=VALUE of one of them; may be repeated."
_FOLDER = click.argument("folder", type=PATH, metavar="RUN")


@click.group(
    name="bench",
    cls=LazyGroup,
    lazy=SUBCOMMANDS,
    epilog="""\b
Examples:
  leadline bench run smoke -o RUN
  leadline bench run scenes --data SCENES --prior onnx:MODEL.onnx -o RUN --executor processes
  leadline bench status RUN
  leadline bench report RUN --format latex -o TABLES
  leadline bench compare RUN OTHER
  leadline bench paper RUN
""",
)
def command() -> None:
    """Benchmarks: run methods on data sets, and make the tables of the paper from the records."""


@grouped_command(
    epilog="""\b
Examples:
  leadline bench run smoke -o RUN
  leadline bench run my.toml -o RUN --executor processes --workers 4
  leadline bench run paper --data /data --only iBims --only ARKit -o RUN
  leadline bench run smoke -o RUN --data-option count=2 --method-option "Ours (paper):weight_data=0.01"
  leadline bench run my.toml -o RUN --executor ray --address auto
"""
)
@click.argument("protocol")
@run_option(
    "-o", "--output", type=PATH, required=True, metavar="RUN", help="Folder of the run; an existing run is continued."
)
@run_option(
    "--executor",
    type=click.Choice(["serial", "processes", "ray"]),
    default="serial",
    help="One image after the other, several processes, or a Ray cluster.",
)
@run_option("--workers", type=click.IntRange(1), help="Number of images at a time.  [default: one per core]")
@run_option("--address", help="Address of a Ray cluster.  [default: a new one on this machine]")
@run_option("--retry", is_flag=True, help="Compute failed records again.")
@_protocol_option("--limit", type=click.IntRange(1), help="Use only the first images of each data set.")
@_protocol_option("--only", multiple=True, metavar="LABEL", help="Use only this data set; may be repeated.")
@_protocol_option(
    "--data",
    type=PATH,
    help="Folder that paths in the protocol are relative to.  [default: the folder of the protocol]",
)
@_protocol_option("--root", "roots", multiple=True, metavar="LABEL=DIR", help="Folder of one data set.")
@_protocol_option(
    "--prior",
    "priors",
    multiple=True,
    metavar="[LABEL=]SOURCE",
    help="A prior instead of those of the protocol, e.g. onnx:MODEL.onnx; may be repeated.",
)
@key_value_option("--data-option", "data_options", group=_PROTOCOL, help=_OPTION_HELP.format("data sets"))
@key_value_option("--prior-option", "prior_options", group=_PROTOCOL, help=_OPTION_HELP.format("priors"))
@key_value_option("--method-option", "method_options", group=_PROTOCOL, help=_OPTION_HELP.format("methods"))
def run(
    protocol: str,
    output: Path,
    executor: Any,
    workers: int | None,
    address: str | None,
    retry: bool,
    roots: tuple[str, ...],
    **selection: Any,
) -> None:
    """Run PROTOCOL, a TOML file or the name of a protocol that comes with leadline, and store its records in RUN.

    A killed run continues when the same command is given again. What cannot be read or computed becomes a failed record
    with the reason, and the run continues.
    """
    from leadline.bench.protocol_files import read_protocol
    from leadline.bench.run import run_protocol

    chosen = read_protocol(protocol, roots=dict(map(_parse_root, roots)), **selection)
    settings = {"executor": executor, "workers": workers, "address": address, "retry": retry}
    begun = time.perf_counter()
    with record_progress() as show:
        end = run_protocol(chosen, output, report=show, **settings)
    seconds = time.perf_counter() - begun
    click.echo(f"{output}: {end.done} of {end.planned} records, {end.new} new in {seconds:.1f} s, {end.failed} failed.")
    if end.failed:
        _say_reasons(output)


@grouped_command(
    epilog="""\b
Example:
  leadline bench status RUN
"""
)
@_FOLDER
def status(folder: Path) -> None:
    """Show the progress of RUN: records planned, done and failed per data set and method, and reasons of failures."""
    from rich.table import Table as RichTable

    from leadline.bench.records import RecordStore

    with RecordStore(folder) as store:
        rows = store.counts()
    table = RichTable()
    for head in ("data set", "method", "planned", "done", "failed", "seconds per record"):
        table.add_column(head, justify="left" if head in ("data set", "method") else "right")
    for row in rows:
        scored = row.done - row.failed
        timed = f"{row.seconds / scored:.3f}" if scored else "--"
        table.add_row(row.dataset, row.method, str(row.planned), str(row.done), str(row.failed), timed)
    table_console().print(table)
    planned, done = sum(row.planned for row in rows), sum(row.done for row in rows)
    failed = sum(row.failed for row in rows)
    click.echo(f"{done} of {planned} records, {failed} failed.")
    if failed:
        _say_reasons(folder)
    if done < planned:
        click.echo("'leadline bench run' with the same protocol and folder continues the run.")


@grouped_command(
    epilog="""\b
Examples:
  leadline bench report RUN
  leadline bench report RUN --html report.html
  leadline bench report RUN --format markdown -o TABLES
  leadline bench report RUN --table percentiles --prior MoGe-3
  leadline bench report RUN --table geometry
  leadline bench report RUN --table ratios
"""
)
@_FOLDER
@_table_option(
    "--table",
    "names",
    multiple=True,
    help="Show only this table; may be repeated. 'ratios' compares every method with the paper's configuration. "
    "'geometry' reads every reference once; from then on it is shown by default.",
)
@_table_option("--prior", help="Prior of the tables about one prior.  [default: the first]")
@_table_option("--case", "cases", multiple=True, help="Use only this case; may be repeated.  [default: all]")
@output_option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "markdown", "latex", "csv"]),
    default="terminal",
    help="Format of the tables; csv writes four files with all percentiles.",
)
@output_option("-o", "--output", type=PATH, help="Folder for the tables.  [default: the standard output; RUN for csv]")
@output_option("--html", type=PATH, metavar="FILE", help="Write one page for a browser, with pictures.")
@output_option(
    "--panels",
    type=click.IntRange(0),
    metavar="N",
    help="With --html: pictures of the N best and N worst images of each method and subset.  [default: 3]",
)
def report(
    folder: Path,
    output_format: str,
    output: Path | None,
    names: tuple[str, ...],
    prior: str | None,
    cases: tuple[str, ...],
    html: Path | None,
    panels: int | None,
) -> None:
    """Make the tables of the paper from RUN: medians over images and cases, per subset and as Macro."""
    from leadline.base.errors import InputError
    from leadline.bench.compare import ratios_table
    from leadline.bench.records import read_records
    from leadline.bench.render import write_csvs
    from leadline.bench.results import measure_references, read_references, read_results
    from leadline.bench.tables import TABLES, geometry_table
    from leadline.report.page import PANELS, write_page

    if html is not None and (output_format != "terminal" or output is not None):
        raise InputError("--html writes one page; leave --format and -o out, or give them in a second call.")
    if html is None and panels is not None:
        raise InputError("--panels needs --html FILE.")
    results = read_results(folder, cases=cases)
    if output_format == "csv":
        for path in write_csvs(results, output or folder):
            click.echo(str(path))
        return
    tables = _score_tables(results, names or (tuple(TABLES) if html else ()), prior)
    if RATIOS in names and (ratios := ratios_table(read_records(folder))) is not None:
        tables.append(ratios)
    geometry = read_references(folder) if not names or GEOMETRY in names else None
    if geometry is None and GEOMETRY in names:
        with image_progress() as progress:
            for reason in measure_references(folder, progress=progress):
                say("note", f"an image was left out: {reason}")
        geometry = read_references(folder)
    if geometry is not None:
        tables.append(geometry_table(geometry))
    if html is None:
        _show(tables, output_format, output)
        return
    count = PANELS if panels is None else panels
    with image_progress() as progress:
        page = write_page(folder, html, tables, prior=prior, cases=cases, panels=count, progress=progress)
    for reason, number in page.reasons.items():
        say("note", f"{number} records without pictures: {reason}")
    click.echo(f"{html}: {page.size / 1e6:.1f} MB, {page.pictures} records with pictures.")


@grouped_command(
    epilog="""\b
Examples:
  leadline bench compare RUN OTHER
  leadline bench compare RUN RUN --method best --against knn --metric mae
"""
)
@click.argument("first", type=PATH, metavar="RUN")
@click.argument("second", type=PATH, metavar="RUN")
@option("--metric", "metrics", multiple=True, default=("absrel", "nmed"), help="May be repeated.")
@option("--method", help="Compare only this method: its label, or the name of a method with its default label.")
@option("--against", help="Method of the second run.  [default: the same method]")
@option("--worst", is_flag=True, help="Also list the ten images at which the second run is worse by most.")
def compare(
    first: Path, second: Path, metrics: tuple[str, ...], method: str | None, against: str | None, worst: bool
) -> None:
    """Compare two runs image by image: the score of the second run minus that of the first.

    The interval of the median difference is a bootstrap over images. A star marks intervals that exclude zero.
    """
    from rich.table import Table as RichTable

    from leadline.bench.compare import compare as compare_records
    from leadline.bench.records import read_records

    found = compare_records(read_records(first), read_records(second), metrics=metrics, method=method, against=against)
    table = RichTable(title=f"{second} minus {first}", title_justify="left")
    for head in ("subset", "prior", "method", "metric", "pairs", "median", "95 % interval", "", "wins", "losses"):
        table.add_column(head, justify="left" if head in ("subset", "prior", "method", "metric", "") else "right")
    for item in found:
        interval = f"{item.low:+.4f} to {item.high:+.4f}"
        labels = (item.dataset, item.prior, item.method, item.metric)
        counts = (str(item.wins), str(item.losses))
        star = "*" if item.is_significant else ""
        table.add_row(*labels, str(item.pairs), f"{item.median:+.4f}", interval, star, *counts)
    table_console().print(table)
    for item in found if worst else ():
        click.echo(f"\n{item.dataset}, {item.prior}, {item.method}: worst {item.metric}")
        for pair in item.worst:
            click.echo(f"  {pair.difference:+.4f}  {pair.first:.4f} -> {pair.second:.4f}  {pair.image} ({pair.case})")


@grouped_command(
    epilog="""\b
Examples:
  leadline bench paper
  leadline bench paper --table main --format latex
  leadline bench paper RUN
"""
)
@click.argument("folder", type=PATH, metavar="[RUN]", required=False)
@option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "markdown", "latex"]),
    default="terminal",
    help="Format of the tables.",
)
@option("-o", "--output", type=PATH, help="Folder for the tables.  [default: the standard output]")
@option("--table", "names", multiple=True, help="Show only this published table; may be repeated.")
def paper(folder: Path | None, output_format: str, output: Path | None, names: tuple[str, ...]) -> None:
    """Show the published tables of the paper; with RUN, the numbers of that run beside them."""
    from leadline.bench.compare import compare_with_paper
    from leadline.bench.results import published_reference_geometry, published_results, read_results
    from leadline.bench.tables import geometry_table

    if folder is not None:
        _show([compare_with_paper(read_results(folder), published_results())], output_format, output)
        return
    tables = _score_tables(published_results(), names)
    if not names or GEOMETRY in names:
        tables.append(geometry_table(published_reference_geometry()))
    _show(tables, output_format, output)


def _score_tables(results: Results, names: tuple[str, ...], prior: str | None = None) -> list[Table]:
    """The named tables that are computed from distributions of scores; without names, the default ones."""
    from leadline.bench.tables import tables_of

    scores = [name for name in names if name not in (GEOMETRY, RATIOS)]
    return tables_of(results, names=scores, prior=prior) if scores or not names else []


def _show(tables: list[Table], output_format: str, output: Path | None) -> None:
    from leadline.base.errors import InputError
    from leadline.bench.render import latex, markdown
    from leadline.io.files import write_text

    if not tables:
        raise InputError("There is nothing to show: no record has a score yet.")
    writers: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex}
    if output_format == "terminal":
        if output is not None:
            raise InputError("-o needs --format markdown, latex or csv.")
        for table in tables:
            table_console().print(rich_table(table))
        return
    for table in tables:
        text = writers[output_format](table)
        if output is None:
            click.echo(text)
            continue
        output.mkdir(parents=True, exist_ok=True)
        path = output / f"{table.name}.{'md' if output_format == 'markdown' else 'tex'}"
        write_text(path, text)
        click.echo(str(path))


def _say_reasons(folder: Path) -> None:
    from leadline.bench.records import RecordStore

    with RecordStore(folder) as store:
        for reason, count in store.reasons():
            click.echo(f"{count} failed: {reason}", err=True)


def _parse_root(text: str) -> tuple[str, str]:
    label, equals, folder = text.partition("=")
    if not (label and equals and folder):
        raise click.BadParameter(f"must be LABEL=DIR, got {text!r}.", param_hint="--root")
    return label, folder
