"""`leadline figures`: the paper's figures from the records of a run, exported CSV files or published numbers."""

from __future__ import annotations

from pathlib import Path

import click

from leadline.apps.terminal.commands import INPUTS, OUTPUTS, PATH, grouped_command, option, say


@grouped_command(
    epilog="""\b
Examples:
  leadline figures RUN -o FIGURES
  leadline figures RUN macro percentiles -o FIGURES
  leadline figures RUN qualitative --image room-1 --case outer -o FIGURES
  leadline figures --csv TABLES -o FIGURES
  leadline figures --published -o FIGURES
  leadline figures --list

\b
Each figure is written as NAME.png, NAME.svg and NAME.pdf, and the numbers in it
as NAME.json. Figures of single images compute depth maps again from the protocol
of the run, so its data must still be available. The others are drawn from CSV
files as well: 'leadline bench report RUN --format csv -o TABLES' writes them.

\b
Exit code: 0 if a figure was drawn, 2 if none.
"""
)
@click.argument("folder", type=PATH, metavar="[RUN]", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@option("--prior", group=INPUTS, help="Label of the prior.  [default: the first with scores; with --published MoGe-3]")
@option("--case", "cases", group=INPUTS, multiple=True, help="Use only this case; may be repeated.  [default: all]")
@option(
    "--image", group=INPUTS, help="Image of the figures of single images.  [default: chosen by the rule of each figure]"
)
@option(
    "--csv",
    "tables",
    group=INPUTS,
    type=PATH,
    metavar="TABLES",
    help="Draw the CSV files in this folder instead of a run.",
)
@option("--published", group=INPUTS, is_flag=True, help="Draw the paper's published numbers instead of a run.")
@option(
    "--largest-error",
    group=OUTPUTS,
    type=click.FloatRange(min=0, min_open=True),
    metavar="METRES",
    help="End of the colour scale of error maps; larger errors are purple.  [default: 0.3 in 'qualitative', as in the "
    "paper; percentile 95 in the others]",
)
@option("-o", "--output", group=OUTPUTS, type=PATH, help="Folder for the figures; created if it does not exist.")
@option("--list", "listing", is_flag=True, help="List the figures and what they show.")
def command(
    folder: Path | None,
    names: tuple[str, ...],
    output: Path | None,
    prior: str | None,
    cases: tuple[str, ...],
    image: str | None,
    tables: Path | None,
    published: bool,
    largest_error: float | None,
    listing: bool,
) -> int:
    """Draw the paper's figures from the records of RUN, all of them or those with the given names.

    A figure that needs records that the run does not have is left out with a note.
    """
    from leadline.base.errors import InputError, LeadlineError, MissingExtra
    from leadline.report.figures import FIGURES, describe, draw, exported_source, published_source, run_source
    from leadline.report.figures.plotting import save

    if listing:
        width = max(map(len, FIGURES))
        click.echo("\n".join(f"{name:<{width}}  {describe(name)}" for name in FIGURES))
        return 0
    if published and tables is not None:
        raise InputError("--csv and --published exclude each other; choose one.")
    if published or tables is not None:
        if cases or image or largest_error:
            raise InputError("--case, --image and --largest-error need the images of a run; leave them out.")
        # Without a run, the first argument is the name of a figure.
        names = (*((str(folder),) if folder is not None else ()), *names)
    elif folder is None:
        raise InputError(
            "RUN is missing: the folder that 'leadline bench run' wrote; or give --csv TABLES or --published."
        )
    if output is None:
        raise InputError("-o is missing: the folder for the figures.")
    for name in names:
        FIGURES.check(name)
    if tables is not None:
        source, missing = exported_source(tables, prior=prior)
        if missing:
            say("note", f"{tables}: there is no {', '.join(missing)}; figures that need it are left out.")
    elif published or folder is None:
        source = published_source(prior=prior)
    else:
        source = run_source(folder, prior=prior, cases=cases, image=image, largest_error=largest_error)
    drawn = 0
    for name in names or FIGURES:
        try:
            files = save(draw(name, source), output, name)
        except MissingExtra:
            raise  # the other figures need it as well
        except LeadlineError as error:
            say("note", f"{name} was not drawn: {error}")
            continue
        drawn += 1
        click.echo(f"wrote {files[1]} (also {', '.join(path.suffix[1:] for path in (*files[2:], files[0]))})")
    return 0 if drawn else 2
