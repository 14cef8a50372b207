"""`leadline bench report`, `compare` and `paper`: the tables of a run, two runs paired, a run beside the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.apps.bench import RUN_FOLDER
from leadline.apps.terminal.commands import PATH, grouped_command, option, output_option, say
from leadline.apps.terminal.progress import image_progress, rich_table, table_console

if TYPE_CHECKING:
    from leadline.bench.results import Results
    from leadline.bench.tables import Table

# Tables that are not made from distributions of scores alone.
GEOMETRY, RATIOS, WINS, SUPPORT, CLAIMS = "geometry", "ratios", "wins", "promptda", "claims"
_table_option = partial(option, group="Tables")


@grouped_command(
    epilog="""\b
Examples:
  leadline bench report RUN
  leadline bench report RUN --html report.html
  leadline bench report RUN --format markdown -o TABLES
  leadline bench report RUN --table percentiles --prior MoGe-3
  leadline bench report RUN --table geometry
  leadline bench report RUN --table ratios --table wins
"""
)
@RUN_FOLDER
@_table_option(
    "--table",
    "names",
    multiple=True,
    help="Show only this table; may be repeated. 'ratios' compares every method with the paper's configuration, "
    "'wins' with the default one and counts where each is first. 'geometry' reads every reference once; from then on "
    "it is shown by default.",
)
@_table_option("--prior", help="Prior of the tables about one prior.  [default: the first with scores]")
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
    from leadline.bench.compare import ratios_table, wins_table
    from leadline.bench.records import read_records
    from leadline.bench.render import write_csvs
    from leadline.bench.results import measure_references, read_references, read_results
    from leadline.bench.tables import TABLES
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
    for name, compared in ((RATIOS, ratios_table), (WINS, wins_table)):
        if name in names:
            records = [record for record in read_records(folder) if not cases or record.case in cases]
            table = compared(records, convention=results.scoring.describe())
            tables += [] if table is None else [table]
    geometry = read_references(folder)
    if geometry is None and GEOMETRY in names:
        with image_progress() as progress:
            for reason in measure_references(folder, progress=progress):
                say("note", f"an image was left out: {reason}")
        geometry = read_references(folder)
    tables += _reference_tables(results, names, prior, geometry)
    if html is None:
        _show(tables, output_format, output, results, names)
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
@click.argument("second", type=PATH, metavar="OTHER")
@option("--metric", "metrics", multiple=True, default=("absrel", "nmed"), help="Score to compare; may be repeated.")
@option("--method", help="Compare only this method: its label, or the name of a method with its default label.")
@option("--against", help="Method of the second run.  [default: the same method]")
@option("--worst", is_flag=True, help="Also list the ten images at which the second run is worse by most.")
def compare(
    first: Path, second: Path, metrics: tuple[str, ...], method: str | None, against: str | None, worst: bool
) -> None:
    """Compare two runs image by image: the score of the second run minus that of the first.

    The interval of the median difference is a bootstrap over images. A star marks intervals that exclude zero. The last
    two columns count the images and cases at which the second score is better and worse.
    """
    from rich.table import Table as RichTable

    from leadline.bench.compare import compare_runs

    found = compare_runs(first, second, metrics=metrics, method=method, against=against)
    runs = f"{second} minus {first}" if second != first else f"{first}: the second method minus the first"
    table = RichTable(title=runs, title_justify="left")
    for head in ("subset", "prior", "method", "metric", "pairs", "median", "95 % interval", "better", "worse"):
        table.add_column(head, justify="left" if head in ("subset", "prior", "method", "metric") else "right")
    for item in found:
        interval = f"{item.low:+.4f} to {item.high:+.4f} {'*' if item.is_significant else ' '}"
        labels = (item.dataset, item.prior, item.method, item.metric)
        counts = (str(item.wins), str(item.losses))
        table.add_row(*labels, str(item.pairs), f"{item.median:+.4f}", interval, *counts)
    table_console().print(table)
    for item in found if worst else ():
        click.echo(
            f"\n{item.dataset}, {item.prior}, {item.method}: {item.metric} worse at {item.losses} of {item.pairs}"
        )
        for pair in item.worst[: item.losses]:
            click.echo(f"  {pair.difference:+.4f}  {pair.first:.4f} -> {pair.second:.4f}  {pair.image} ({pair.case})")


@grouped_command(
    epilog="""\b
Examples:
  leadline bench paper
  leadline bench paper --table main --format latex
  leadline bench paper RUN
  leadline bench paper --field
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
@option("--field", is_flag=True, help="Numbers of other projects instead of the paper's, with their sources.")
def paper(folder: Path | None, output_format: str, output: Path | None, names: tuple[str, ...], field: bool) -> None:
    """Show the published tables and claims of the paper; with RUN, the numbers of that run beside them.

    A run is shown only beside numbers that were scored by its own convention. The claims are statements in the text of
    the paper. For each one the table says whether it holds for the run, does not hold, or cannot be decided, and why.
    """
    from leadline.base.errors import InputError
    from leadline.bench.published.claims import Evidence, claims_table
    from leadline.bench.published.numbers import published_reference_geometry, published_results

    published, geometry = published_results(), published_reference_geometry()
    if field:
        if names:
            raise InputError("--table chooses among the tables of the paper; leave it or --field out.")
        _show(_field_tables(folder), output_format, output, published)
        return
    if folder is not None:
        if names:
            raise InputError("--table chooses among the published tables; leave it or RUN out.")
        _show(_beside_paper(folder, published, geometry), output_format, output, published)
        return
    tables = _score_tables(published, names) + _reference_tables(published, names, None, geometry)
    if not names or CLAIMS in names:
        tables.append(claims_table(Evidence(published, (), geometry)))
    _show(tables, output_format, output, published, names)


def _field_tables(folder: Path | None) -> list[Table]:
    from leadline.bench.published.field import beside_field, field_tables
    from leadline.bench.results import read_results

    return field_tables() if folder is None else [beside_field(read_results(folder))]


def _beside_paper(folder: Path, published: Results, geometry: Sequence[Mapping[str, str]]) -> list[Table]:
    """The run's numbers beside the published ones, as far as labels agree, and the claims."""
    from leadline.bench.published.claims import Evidence, claims_table
    from leadline.bench.published.pairing import compare_geometry_with_paper, compare_with_paper, missing_labels
    from leadline.bench.records import read_records
    from leadline.bench.results import read_references, read_results
    from leadline.bench.scoring import require_papers_scoring

    results, references = read_results(folder), read_references(folder)
    require_papers_scoring(results.scoring)
    paired = compare_with_paper(results, published)
    if paired is None:
        say("note", missing_labels(results, published))
    beside = compare_geometry_with_paper(references or [], geometry)
    claims = claims_table(Evidence(results, read_records(folder), references))
    return [table for table in (paired, beside, claims) if table is not None]


def _score_tables(results: Results, names: tuple[str, ...], prior: str | None = None) -> list[Table]:
    """The named tables that are computed from distributions of scores; without names, the default ones."""
    from leadline.bench.tables import tables_of

    scores = [name for name in names if name not in (GEOMETRY, RATIOS, WINS, SUPPORT, CLAIMS)]
    return tables_of(results, names=scores, prior=prior) if scores or not names else []


def _reference_tables(
    results: Results, names: Sequence[str], prior: str | None, geometry: Sequence[Mapping[str, str]] | None
) -> list[Table]:
    """The tables about the reference depth that are wanted and known."""
    from leadline.bench.published.reference_tables import geometry_table, support_table

    tables = [geometry_table(geometry)] if geometry is not None and (not names or GEOMETRY in names) else []
    if not names or SUPPORT in names:
        support = support_table(results, prior or results.first_prior, geometry)
        tables += [] if support is None else [support]
    return tables


def _show(
    tables: list[Table], output_format: str, output: Path | None, results: Results, names: Sequence[str] = ()
) -> None:
    from leadline.base.errors import InputError
    from leadline.bench.render import latex, markdown
    from leadline.io.files import write_text

    if not tables:
        if any(found.count for found in results.distributions.values()):
            raise InputError(f"The run has no numbers for {', '.join(names)}: no record that it needs has a score.")
        raise InputError("There is nothing to show: no record has a score yet.")
    writers: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex}
    if output_format == "terminal":
        if output is not None:
            raise InputError("-o needs --format markdown, latex or csv.")
        for table in tables:
            table_console().print(rich_table(table))
            for note in table.notes:
                table_console().print(note, highlight=False, markup=False)
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
