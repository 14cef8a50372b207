"""`leadline bench`: run a protocol, look at it, make the paper's tables, compare."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.cli import say
from leadline.apps.progress import Meter, image_progress

if TYPE_CHECKING:
    from rich.console import Console

    from leadline.bench.results import Results
    from leadline.bench.tables import Table

FOLDER = click.Path(path_type=Path)
GEOMETRY, RATIOS = "geometry", "ratios"  # tables that are not made from the distributions of scores
_PANELS = "For --html: pictures of the N best and N worst images of each method and subset. Default: 3."


@click.group(
    name="bench",
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
    """The paper's benchmark: data sets, cases, priors and methods to records, and records to tables."""


@command.command(
    epilog="""\b
Examples:
  leadline bench run smoke -o RUN
  leadline bench run my.toml -o RUN --executor processes --workers 4
  leadline bench run paper --data /data --only iBims --only ARKit -o RUN
  leadline bench run my.toml -o RUN --executor ray --address auto
"""
)
@click.argument("protocol")
@click.option(
    "-o", "--output", type=FOLDER, required=True, metavar="RUN", help="Folder of the run; begun anew or resumed."
)
@click.option(
    "--data", type=FOLDER, help="Folder that the protocol's relative paths are in. Default: the protocol's own."
)
@click.option("--root", "roots", multiple=True, metavar="LABEL=DIR", help="Where one data set is.")
@click.option("--only", multiple=True, metavar="LABEL", help="Only this data set; may be given again.")
@click.option("--prior", "priors", multiple=True, metavar="[LABEL=]SOURCE", help="Priors in place of the protocol's.")
@click.option("--limit", type=click.IntRange(1), help="Only the first images of each data set.")
@click.option(
    "--executor",
    type=click.Choice(["serial", "processes", "ray"]),
    default="serial",
    show_default=True,
    help="Where the work is done.",
)
@click.option("--workers", type=click.IntRange(1), help="How many at a time. Default: one per core.")
@click.option("--address", help="Of a Ray cluster. Default: a new one on this machine.")
@click.option("--retry", is_flag=True, help="Do failed records again.")
def run(
    protocol: str,
    output: Path,
    data: Path | None,
    roots: tuple[str, ...],
    only: tuple[str, ...],
    priors: tuple[str, ...],
    limit: int | None,
    executor: Any,
    workers: int | None,
    address: str | None,
    retry: bool,
) -> None:
    """Run PROTOCOL, a TOML file or the name of one that comes with leadline, into the folder RUN.

    Killed and called again, it goes on where it was. A file that cannot be read becomes failed records, and the
    rest goes on.
    """
    from rich.console import Console

    from leadline.bench.campaign import conduct
    from leadline.bench.protocol import read_protocol

    chosen = read_protocol(protocol, data=data, roots=dict(map(_root, roots)), only=only, priors=priors, limit=limit)
    console = Console(stderr=True)
    begun = time.perf_counter()
    with Meter(console) as meter:
        end = conduct(
            chosen,
            output,
            executor=executor,
            workers=workers,
            address=address,
            retry=retry,
            report=meter.show,
        )
    seconds = time.perf_counter() - begun
    click.echo(
        f"{output}: {end.done} of {end.planned} records, {end.fresh} new in {seconds:.1f} s, {end.failed} failed."
    )
    if end.failed:
        _say_reasons(output)


@command.command(
    epilog="""\b
Example:
  leadline bench status RUN
"""
)
@click.argument("folder", type=FOLDER, metavar="RUN")
def status(folder: Path) -> None:
    """How far RUN is: records planned, done and failed per data set and method, and what failed."""
    from rich.table import Table as RichTable

    from leadline.bench.records import RecordStore

    with RecordStore(folder) as store:
        rows = store.counts()
    table = RichTable()
    for head in ("data set", "method", "planned", "done", "failed", "s per image"):
        table.add_column(head, justify="left" if head in ("data set", "method") else "right")
    for dataset, method, planned, done, bad, seconds in rows:
        timed = f"{seconds / (done - bad):.3f}" if done > bad else "--"
        table.add_row(dataset, method, str(planned), str(done), str(bad), timed)
    _console().print(table)
    planned, done, bad = (
        (sum(column) for column in zip(*(row[2:5] for row in rows), strict=True)) if rows else (0, 0, 0)
    )
    click.echo(f"{done} of {planned} records, {bad} failed.")
    if bad:
        _say_reasons(folder)
    if done < planned:
        click.echo("'leadline bench run' with the same protocol and folder goes on.")


@command.command(
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
@click.argument("folder", type=FOLDER, metavar="RUN")
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "markdown", "latex", "csv"]),
    default="terminal",
    show_default=True,
    help="Of the tables; csv writes the four files with all percentiles.",
)
@click.option("-o", "--output", type=FOLDER, help="Folder for the tables. Default: the standard output; for csv, RUN.")
@click.option(
    "--table",
    "names",
    multiple=True,
    help="Only this table; may be given again. Also 'ratios' to the paper's method, and "
    "'geometry', which reads every reference once and is shown from then on.",
)
@click.option("--prior", help="For tables about one prior. Default: the first.")
@click.option("--case", "cases", multiple=True, help="Pool only this case; may be given again. Default: all.")
@click.option("--html", type=FOLDER, metavar="FILE", help="Write all of it as one page for a browser, with pictures.")
@click.option("--panels", type=click.IntRange(0), metavar="N", help=_PANELS)
def report(
    folder: Path,
    form: str,
    output: Path | None,
    names: tuple[str, ...],
    prior: str | None,
    cases: tuple[str, ...],
    html: Path | None,
    panels: int | None,
) -> None:
    """The paper's tables of RUN: medians over images and cases, per subset and as Macro; or a page with pictures."""
    from leadline.base.errors import InputError
    from leadline.bench.ratios import ratios_table
    from leadline.bench.records import read_records
    from leadline.bench.reference import geometry_table, measure_references, read_references
    from leadline.bench.render import write_csvs
    from leadline.bench.results import read_results
    from leadline.bench.tables import TABLES
    from leadline.report.page.build import PANELS, write_page

    if html is not None and (form != "terminal" or output is not None):
        raise InputError("--html writes one page of its own; leave --format and -o out, or call again for them.")
    if html is None and panels is not None:
        raise InputError("--panels is for --html FILE, which is not given.")
    results = read_results(folder, cases=cases)
    if form == "csv":
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
                say("note", f"left out: {reason}")
        geometry = read_references(folder)
    if geometry is not None:
        tables.append(geometry_table(geometry))
    if html is None:
        _show(tables, form, output)
        return
    count = PANELS if panels is None else panels
    with image_progress() as progress:
        page = write_page(folder, html, tables, prior=prior, cases=cases, panels=count, progress=progress)
    for reason, number in page.reasons.items():
        say("note", f"{number} records without pictures: {reason}")
    click.echo(f"{html}: {page.size / 1e6:.1f} MB, {page.pictures} records with pictures.")


@command.command(
    epilog="""\b
Examples:
  leadline bench compare RUN OTHER
  leadline bench compare RUN RUN --method Ours --against KNN --metric mae
"""
)
@click.argument("first", type=FOLDER, metavar="RUN")
@click.argument("second", type=FOLDER, metavar="RUN")
@click.option(
    "--metric", "metrics", multiple=True, default=("absrel", "nmed"), show_default=True, help="May be given again."
)
@click.option("--method", help="Only this method (its label).")
@click.option("--against", help="The second run's method, if another.")
@click.option("--worst", is_flag=True, help="Also list the ten images at which the second run loses most.")
def compare(
    first: Path, second: Path, metrics: tuple[str, ...], method: str | None, against: str | None, worst: bool
) -> None:
    """Compare two runs image by image: the second's score minus the first's.

    The interval of the median difference is from resampling images; a star marks those that leave out zero.
    """
    from rich.table import Table as RichTable

    from leadline.bench.compare import compare as paired
    from leadline.bench.records import read_records

    found = paired(read_records(first), read_records(second), metrics=metrics, method=method, against=against)
    table = RichTable(title=f"{second} minus {first}", title_justify="left")
    for head in ("subset", "prior", "method", "metric", "pairs", "median", "95 % interval", "", "wins", "losses"):
        table.add_column(head, justify="left" if head in ("subset", "prior", "method", "metric", "") else "right")
    for item in found:
        interval = f"{item.low:+.4f} to {item.high:+.4f}"
        place = (item.dataset, item.prior, item.method, item.metric)
        counts = (str(item.wins), str(item.losses))
        table.add_row(*place, str(item.pairs), f"{item.median:+.4f}", interval, "*" * item.clear, *counts)
    _console().print(table)
    for item in found if worst else ():
        click.echo(f"\n{item.dataset}, {item.prior}, {item.method}: worst {item.metric}")
        for pair in item.worst:
            click.echo(f"  {pair.difference:+.4f}  {pair.first:.4f} -> {pair.second:.4f}  {pair.image} ({pair.case})")


@command.command(
    epilog="""\b
Examples:
  leadline bench paper
  leadline bench paper --table main --format latex
  leadline bench paper RUN
"""
)
@click.argument("folder", type=FOLDER, metavar="[RUN]", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "markdown", "latex"]),
    default="terminal",
    show_default=True,
    help="Of the tables.",
)
@click.option("-o", "--output", type=FOLDER, help="Folder for the tables. Default: the standard output.")
@click.option("--table", "names", multiple=True, help="Only this published table; may be given again.")
def paper(folder: Path | None, form: str, output: Path | None, names: tuple[str, ...]) -> None:
    """The paper's published tables; with RUN, that run's numbers beside them."""
    from leadline.bench.paper import beside, published, reference_geometry
    from leadline.bench.reference import geometry_table
    from leadline.bench.results import read_results

    numbers = published()
    if folder is None:
        tables = _score_tables(numbers, names)
        if not names or GEOMETRY in names:
            tables.append(geometry_table(reference_geometry()))
        _show(tables, form, output)
    else:
        _show([beside(read_results(folder), numbers)], form, output)


def _score_tables(results: Results, names: tuple[str, ...], prior: str | None = None) -> list[Table]:
    """Those of the names that are made from distributions of scores; without names, the usual ones."""
    from leadline.bench.tables import tables_of

    scores = [name for name in names if name not in (GEOMETRY, RATIOS)]
    return tables_of(results, names=scores, prior=prior) if scores or not names else []


def _console() -> Console:
    """For tables: as wide as the terminal, or as they need where there is none."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=240)


def _show(tables: list[Table], form: str, output: Path | None) -> None:
    from leadline.base.errors import InputError
    from leadline.bench.render import latex, markdown, terminal
    from leadline.io.atomic import write_text

    if not tables:
        raise InputError("There is nothing to show yet: no record has a score.")
    writers: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex}
    if form == "terminal":
        if output is not None:
            raise InputError("-o needs --format markdown, latex or csv: the terminal's tables are not for files.")
        for table in tables:
            _console().print(terminal(table))
        return
    for table in tables:
        text = writers[form](table)
        if output is None:
            click.echo(text)
            continue
        output.mkdir(parents=True, exist_ok=True)
        path = output / f"{table.name}.{'md' if form == 'markdown' else 'tex'}"
        write_text(path, text)
        click.echo(str(path))


def _say_reasons(folder: Path) -> None:
    from leadline.bench.records import RecordStore

    with RecordStore(folder) as store:
        for reason, count in store.reasons():
            click.echo(f"{count} failed: {reason}", err=True)


def _root(text: str) -> tuple[str, str]:
    label, equals, folder = text.partition("=")
    if not (label and equals and folder):
        raise click.BadParameter(f"must be LABEL=DIR, got {text!r}.", param_hint="--root")
    return label, folder
