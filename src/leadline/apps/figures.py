"""`leadline figures`: the paper's figures from the records of a run."""

from __future__ import annotations

from pathlib import Path

import click

from leadline.apps.cli import say

_PATH = click.Path(path_type=Path)


@click.command(
    epilog="""\b
Examples:
  leadline figures RUN -o FIGURES
  leadline figures RUN macro percentiles -o FIGURES
  leadline figures RUN qualitative --image room-1 --case outer -o FIGURES
  leadline figures --published -o FIGURES
  leadline figures --list

\b
Each figure is written as NAME.png, NAME.svg and NAME.pdf, and the numbers in it
as NAME.json. Figures of single images are computed again from the protocol that
the run carries; its data must still be there.

\b
Exit code: 0 if anything was drawn, 2 if nothing could be.
"""
)
@click.argument("folder", type=_PATH, metavar="[RUN]", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-o", "--output", type=_PATH, help="Folder for the figures; made if it is not there.")
@click.option("--prior", help="Of the run, by its label. Default: the first.")
@click.option("--case", "cases", multiple=True, help="Pool only this case; may be given again. Default: all.")
@click.option("--image", help="For the figures of one image. Default: by each figure's own rule.")
@click.option("--published", is_flag=True, help="Draw the paper's published numbers instead of a run.")
@click.option("--list", "listing", is_flag=True, help="List the figures and what they show.")
def command(
    folder: Path | None,
    names: tuple[str, ...],
    output: Path | None,
    prior: str | None,
    cases: tuple[str, ...],
    image: str | None,
    published: bool,
    listing: bool,
) -> int:
    """Draw the paper's figures, or those of them that are named, from the records of RUN.

    A figure that the run has no records for is left out with a note, and the others are drawn.
    """
    from leadline.base.errors import InputError, LeadlineError, MissingExtra
    from leadline.report.figures.catalogue import FIGURES, check_names, draw, published_source, run_source
    from leadline.report.figures.plotting import save

    if listing:
        width = max(map(len, FIGURES))
        click.echo("\n".join(f"{name:<{width}}  {text}" for name, (_, text) in FIGURES.items()))
        return 0
    if published:
        if prior or cases or image:
            raise InputError("--prior, --case and --image choose from a run; --published has none.")
        # Then the first argument is a figure and not a run.
        names = (*((str(folder),) if folder is not None else ()), *names)
    elif folder is None:
        raise InputError("a RUN is missing: the folder that 'leadline bench run' made; or give --published.")
    if output is None:
        raise InputError("-o is missing: the folder for the figures.")
    check_names(names)
    if folder is None or published:
        source = published_source()
    else:
        source = run_source(folder, prior=prior, cases=cases, image=image)
    drawn = 0
    for name in names or FIGURES:
        try:
            files = save(draw(name, source), output, name)
        except MissingExtra:
            raise  # none of the others would do better
        except LeadlineError as error:
            say("note", f"no figure {name}: {error}")
            continue
        drawn += 1
        click.echo(f"wrote {files[1]} (also {', '.join(path.suffix[1:] for path in (*files[2:], files[0]))})")
    return 0 if drawn else 2
