"""`leadline methods`: which methods there are, and where the trained systems among them are set up."""

from __future__ import annotations

import json
from typing import Any

import click

from leadline.apps.cli import LazyGroup
from leadline.apps.datasets import parse_options

# The subcommands: `{name: ("module:attribute", short help)}`.
SUBCOMMANDS = {
    "setup": ("leadline.apps.methods:setup", "Say where a trained system is installed."),
    "remove": ("leadline.apps.methods:remove", "Forget where a trained system is installed."),
}


@click.group(
    cls=LazyGroup,
    lazy=SUBCOMMANDS,
    invoke_without_command=True,
    epilog="""\b
Examples:
  leadline methods
  leadline methods --json
  leadline methods setup --help
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the methods: what each does, its licence, and whether it can run here."""
    if ctx.invoked_subcommand is not None:
        return
    from leadline.methods import METHODS
    from leadline.methods.systems import readiness

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "summary": facts.summary,
            "licence": facts.licence,
            "commercial": facts.commercial,
            "ready": not (state := readiness(name)),
            "missing": state,
        }
        for name, facts in METHODS.items()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for title in ("name", "what it is", "licence", "ready"):
        table.add_column(title, overflow="fold", no_wrap=title == "name")
    for row in rows:
        licence = row["licence"] if row["commercial"] else f"{row['licence']} (non-commercial)"
        table.add_row(*map(Text, (row["name"], row["summary"], licence, "yes" if row["ready"] else "no")))
    Console().print(table)
    for row in rows:  # below it, whole: they are commands to be copied
        if row["missing"]:
            click.echo(f"{row['name']}: {row['missing']}")


@click.command(
    epilog="""\b
Examples:
  leadline methods setup priorda --python ~/envs/priorda/bin/python
  leadline methods setup ldcm --python ~/envs/ldcm/bin/python --repo ~/LDCM --option device=cuda:1
  leadline methods setup any2full --python ~/envs/a2f/bin/python --repo ~/Any2Full --option checkpoint=a2f.pth.tar
"""
)
@click.argument("name", metavar="NAME")
@click.option("--python", required=True, metavar="PATH", help="Interpreter of the system's own environment.")
@click.option("--repo", metavar="PATH", help="Its checkout; not needed where it is installed as a package.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_options,
    help="Of the system, for every call, e.g. device=cpu; may be given again.",
)
def setup(name: str, python: str, repo: str | None, options: dict[str, Any]) -> None:
    """Say where the trained system NAME is installed, after it could be imported there.

    The system stays in its own environment: leadline starts it with that interpreter and exchanges files with it.
    """
    from leadline.methods.systems import set_up, setup_file

    found = set_up(name, python, repo, options)
    known = ", ".join(f"{what} {value}" for what, value in found.versions.items())
    click.echo(f"{name}: can be imported ({known}). Written to {setup_file()}.")


@click.command(
    epilog="""\b
Example:
  leadline methods remove priorda
"""
)
@click.argument("name", metavar="NAME")
def remove(name: str) -> None:
    """Forget where the trained system NAME is installed; nothing of it is deleted."""
    from leadline.methods.systems import forget

    forget(name)
    click.echo(f"{name}: no longer set up.")
