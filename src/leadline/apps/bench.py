"""`leadline bench`: run a protocol, look at it, make the paper's tables, compare."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from leadline.bench.campaign import Progress
    from leadline.bench.tables import Table

FOLDER = click.Path(path_type=Path)


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
    with _Meter(console) as meter:
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
  leadline bench report RUN --format markdown -o TABLES
  leadline bench report RUN --table percentiles --prior MoGe-2
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
@click.option("--table", "names", multiple=True, help="Only this table; may be given again.")
@click.option("--prior", help="For tables about one prior. Default: the first.")
@click.option("--case", "cases", multiple=True, help="Pool only this case; may be given again. Default: all.")
def report(
    folder: Path, form: str, output: Path | None, names: tuple[str, ...], prior: str | None, cases: tuple[str, ...]
) -> None:
    """The paper's tables of RUN: medians over images and cases, per subset and as Macro."""
    from leadline.bench.render import write_csvs
    from leadline.bench.results import read_results
    from leadline.bench.tables import tables_of

    results = read_results(folder, cases=cases)
    if form == "csv":
        for path in write_csvs(results, output or folder):
            click.echo(str(path))
        return
    _show(tables_of(results, names=names, prior=prior), form, output)


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
    from leadline.bench.paper import beside, published
    from leadline.bench.results import read_results
    from leadline.bench.tables import tables_of

    numbers = published()
    if folder is None:
        _show(tables_of(numbers, names=names), form, output)
    else:
        _show([beside(read_results(folder), numbers)], form, output)


class _Meter:
    """Live progress of a run: records done, rate, time left, failures."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}"),
            console=console,
            speed_estimate_period=300.0,  # units differ; the rate of the last minutes is what the rest will take
        )
        self._task = self._bar.add_task("records", total=None, rate="", failed="")
        self._begun: float | None = None

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        if self._begun is None:  # not before the plan is made, which may end in an error of one line
            self._begun = time.perf_counter()
            self._bar.start()
        passed = time.perf_counter() - self._begun
        self._bar.update(
            self._task,
            total=progress.planned,
            completed=progress.done,
            rate=f"{progress.fresh / passed:.1f}/s" if progress.fresh else "",
            failed=f"{progress.failed} failed" if progress.failed else "",
        )


def _console() -> Console:
    """For tables: as wide as the terminal, or as they need where there is none."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=240)


def _show(tables: list[Table], form: str, output: Path | None) -> None:
    from leadline.bench.render import latex, markdown, terminal
    from leadline.core.types import InputError
    from leadline.sensors.atomic import atomic_write

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
        atomic_write(path, partial(_write, text))
        click.echo(str(path))


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


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
