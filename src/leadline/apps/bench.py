"""`leadline bench`: run a protocol and show its progress; `bench_tables` has the commands that show its results."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.apps.terminal.commands import (
    PATH,
    LazyGroup,
    announce_compiling,
    grouped_command,
    key_value_option,
    option,
    run_option,
    say,
)
from leadline.apps.terminal.progress import record_progress, table_console

if TYPE_CHECKING:
    from leadline.bench.protocol import Protocol

# The subcommands: `{name: ("module:attribute", short help)}`.
SUBCOMMANDS = {
    "run": ("leadline.apps.bench:run", "Run a protocol and store its records."),
    "status": ("leadline.apps.bench:status", "Show the progress and the failures of a run."),
    "report": ("leadline.apps.bench_tables:report", "Make tables, or a page with pictures, from a run."),
    "compare": ("leadline.apps.bench_tables:compare", "Compare two runs image by image."),
    "paper": ("leadline.apps.bench_tables:paper", "Show the published tables, or a run beside them."),
}
SOME_FAILED = 3  # exit code of a run that ended, but with failed records; an error that ended it has another
_PROTOCOL = "Protocol"  # a heading of the help
_protocol_option = partial(option, group=_PROTOCOL)
_OPTION_HELP = "An option of all {}, or LABEL:KEY=VALUE of one of them; may be repeated."
RUN_FOLDER = click.argument("folder", type=PATH, metavar="RUN")


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
  leadline bench run kitti-dc --data /data/kitti --prior net=onnx:MODEL.onnx -o RUN
  leadline bench run smoke -o RUN --data-option count=2 --method-option "Ours:weight_data=0.01"
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
@click.pass_context
def run(
    ctx: click.Context,
    /,
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
    with the reason, and the run continues. The exit code is 0 if all records have scores, 3 if the run ended but some
    records failed, and 2 if it could not begin.
    """
    from leadline.bench.protocol_files import read_protocol
    from leadline.bench.run import must_compile, run_protocol

    chosen = read_protocol(protocol, roots=dict(map(_parse_root, roots)), **selection)
    for line in _incomplete(chosen):
        say("note", line)
    settings = {"executor": executor, "workers": workers, "address": address, "retry": retry}
    if must_compile(chosen):
        announce_compiling()
    begun = time.perf_counter()
    with record_progress() as show:
        end = run_protocol(chosen, output, report=show, **settings)
    seconds = time.perf_counter() - begun
    click.echo(
        f"{output}: {end.done} of {end.planned} records, {end.new} new in {seconds:.1f} s, {end.failed} failed, "
        f"{end.unconverged} not converged."
    )
    if end.changed.images:
        say(
            "note",
            f"the data of {end.changed.images} of the images changed since; "
            f"{end.changed.records} records were computed again.",
        )
    for line in _left_out(output, chosen):
        say("note", line)
    if end.failed:
        _say_reasons(output)
        click.echo(f"The run ended with failed records; 'leadline bench status {output}' counts them.", err=True)
        ctx.exit(SOME_FAILED)


@grouped_command(
    epilog="""\b
Example:
  leadline bench status RUN
"""
)
@RUN_FOLDER
def status(folder: Path) -> None:
    """Show the progress of RUN: records planned, done and failed per data set and method, and reasons of failures.

    Records that are not converged have scores, but their fit or their solver stopped before it met its tolerance.
    """
    from rich.table import Table as RichTable

    from leadline.bench.records import RecordStore

    with RecordStore(folder) as store:
        rows = store.counts()
    table = RichTable()
    for head in ("data set", "method", "planned", "done", "failed", "not converged", "seconds per record"):
        table.add_column(head, justify="left" if head in ("data set", "method") else "right")
    for row in rows:
        scored = row.done - row.failed
        timed = f"{row.seconds / scored:.3f}" if scored else "--"
        counts = (row.planned, row.done, row.failed, row.unconverged)
        table.add_row(row.dataset, row.method, *map(str, counts), timed)
    table_console().print(table)
    planned, done = sum(row.planned for row in rows), sum(row.done for row in rows)
    failed, unconverged = sum(row.failed for row in rows), sum(row.unconverged for row in rows)
    click.echo(f"{done} of {planned} records, {failed} failed, {unconverged} not converged.")
    if failed:
        _say_reasons(folder)
    if done < planned:
        click.echo("'leadline bench run' with the same protocol and folder continues the run.")


def _incomplete(protocol: Protocol) -> list[str]:
    """Sentences about data sets with fewer images than were published."""
    from leadline.bench.plan import incomplete_datasets

    return [
        f"{entry.label} has {found} of the {published} published images; 'leadline datasets check {entry.name} "
        f"{entry.root}' says what is missing."
        for entry, found, published in incomplete_datasets(protocol)
    ]


def _left_out(folder: Path, protocol: Protocol) -> list[str]:
    """Sentences about priors that no scene has, and about methods that need a prior in metres."""
    from leadline.bench.records import RecordStore

    with RecordStore(folder) as store:
        pairs = store.pairs()
    used = {prior for prior, _ in pairs}
    labels = [prior.label for prior in protocol.priors]
    lines = [f"{label} has no records: no scene has such a stored prior." for label in labels if label not in used]
    for method in protocol.methods:
        absent = [label for label in labels if label in used and (label, method.label) not in pairs]
        if absent and method.priors == "all":
            lines.append(f"{method.label} has no records with {', '.join(absent)}: it needs a prior in metres.")
    return lines


def _say_reasons(folder: Path) -> None:
    from leadline.bench.records import RecordStore

    with RecordStore(folder) as store:
        for reason, count in store.reasons():
            click.echo(f"{count} failed: {reason.removeprefix('failed: ')}", err=True)


def _parse_root(text: str) -> tuple[str, str]:
    label, equals, folder = text.partition("=")
    if not (label and equals and folder):
        raise click.BadParameter(f"must be LABEL=DIR, got {text!r}.", param_hint="--root")
    return label, folder
