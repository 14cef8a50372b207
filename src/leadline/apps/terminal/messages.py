"""Errors and notes on stderr, with parameters named as the flags of the command that runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from leadline.base.errors import LeadlineError
    from leadline.io.notes import Note

_COLOURS = {"error": "red", "note": "yellow"}
# Parameters whose flags have other names. A command's own flag of the plain name comes first.
_FLAG_NAMES = {"kind": "prior_kind", "floor": "prior_floor", "workers": "jobs", "output_folder": "output"}
# Parameters that only one other command has a flag for.
_OTHER_COMMANDS = {"rotate": "'leadline project --rotate'"}


def say(kind: Literal["error", "note"], message: str) -> None:
    """Print one line to stderr: a coloured ``error:`` or ``note:`` and the message without its line breaks."""
    line = click.style(f"{kind}:", fg=_COLOURS[kind], bold=True) + " " + " ".join(message.split())
    click.echo(line, err=True, color=False if os.environ.get("NO_COLOR") else None)


def say_notes(notes: Iterable[Note]) -> None:
    """Print notes to stderr."""
    for note in notes:
        say("note", note.render(flag_wording))


def announce_compiling() -> None:
    """Say why the first frame takes longer than the others."""
    click.echo("compiling kernels (once per installation, up to a minute) ...", err=True)


def error_text(error: LeadlineError) -> str:
    """The message of an error with flags in place of parameter names."""
    return error.render(flag_wording)


def flag_wording(name: str, value: str | None) -> str:
    """A parameter as the flag of the current command, e.g. ``--prior-kind disparity``; see `leadline.base.errors`.

    Fields of the fit keep their group (``fit.tolerance`` is ``--fit-tolerance``), those of the reconstruction do not
    (``reconstruction.tolerance`` is ``--tolerance``).

    Examples
    --------
    >>> flag_wording("fit.max_iterations", None), flag_wording("reconstruction.tolerance", "1e-6")
    ('--fit-max-iterations', '--tolerance 1e-6')
    >>> flag_wording("resize_prior", "True"), flag_wording("tf", "False"), flag_wording("kind", "disparity")
    ('--resize-prior', '--no-tf', '--prior-kind disparity')
    """
    plain = name.removeprefix("reconstruction.").replace(".", "_")
    parameter = _current_parameter(plain)
    if parameter is None:
        if plain in _OTHER_COMMANDS:
            return _OTHER_COMMANDS[plain]
        plain = _FLAG_NAMES.get(plain, plain)
        parameter = _current_parameter(plain)
    flag = f"--{plain}".replace("_", "-")
    if isinstance(parameter, click.Argument):
        flag = parameter.human_readable_name
    elif isinstance(parameter, click.Option):
        flag = max(parameter.opts, key=len)
    if value is None or value == "True":
        return flag
    return f"--no-{flag[2:]}" if value == "False" else f"{flag} {value}"


def _current_parameter(name: str) -> click.Parameter | None:
    context = click.get_current_context(silent=True)
    parameters = context.command.params if context is not None else []
    return next((parameter for parameter in parameters if parameter.name == name), None)
