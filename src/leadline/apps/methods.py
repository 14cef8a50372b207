"""`leadline methods`: the list of methods, and the setup of the trained systems among them."""

from __future__ import annotations

import json
from typing import Any

import click

from leadline.apps.terminal.commands import LazyGroup, grouped_command, key_value_option, option

# The subcommands: `{name: ("module:attribute", short help)}`.
SUBCOMMANDS = {
    "setup": ("leadline.apps.methods:setup", "Set up a trained system that is installed."),
    "remove": ("leadline.apps.methods:remove", "Remove the setup of a trained system."),
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
@option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the methods: what each does, its licence, and whether it can run here."""
    if ctx.invoked_subcommand is not None:
        return
    from leadline.methods import METHODS, missing_requirement
    from leadline.methods.external.server_program import SYSTEMS

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "summary": facts.summary,
            "licence": facts.licence,
            "commercial": facts.commercial,
            "ready": not (state := missing_requirement(name)),
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
    for row in rows:  # below the table, so that no command is broken over lines
        if row["missing"]:
            command = f": {_setup_command(row['name'])}" if row["name"] in SYSTEMS else ""
            click.echo(f"{row['name']}: {row['missing']}{command}")


def _setup_command(name: str) -> str:
    from leadline.methods.external.systems import required_options

    options = "".join(f" --method-option {key}=VALUE" for key in required_options(name))
    return f"leadline methods setup {name} --python PATH --repo PATH{options}"


@grouped_command(
    epilog="""\b
Examples:
  leadline methods setup priorda --python ~/envs/priorda/bin/python
  leadline methods setup ldcm --python ~/envs/ldcm/bin/python --repo ~/LDCM --method-option device=cuda:1
  leadline methods setup any2full --python ~/a2f/bin/python --repo ~/Any2Full --method-option checkpoint=a2f.pth.tar
"""
)
@click.argument("name", metavar="NAME")
@option("--python", required=True, metavar="PATH", help="Interpreter of the system's own environment.")
@option("--repo", metavar="PATH", help="Its checkout; not needed if it is installed as a package.")
@key_value_option(
    "--method-option", "options", help="An option of the system for every call, e.g. device=cpu; may be repeated."
)
def setup(name: str, python: str, repo: str | None, options: dict[str, Any]) -> None:
    """Set up the trained system NAME: check that it can be imported, and record where it is.

    The system stays in its own environment: leadline starts it with that interpreter and exchanges files with it.
    """
    from leadline.methods.external.systems import set_up, setups_path

    found = set_up(name, python, repo, options)
    known = ", ".join(f"{what} {value}" for what, value in found.versions.items())
    click.echo(f"{name}: can be imported ({known}). Written to {setups_path()}.")


@grouped_command(
    epilog="""\b
Example:
  leadline methods remove priorda
"""
)
@click.argument("name", metavar="NAME")
def remove(name: str) -> None:
    """Remove the setup of the trained system NAME. The system itself is not deleted."""
    from leadline.methods.external.systems import remove_setup

    remove_setup(name)
    click.echo(f"{name}: no longer set up.")
