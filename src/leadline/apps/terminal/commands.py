"""Commands whose help is in groups, and errors and notes that name the flags of the command that runs.

`grouped_command` and `option` are click's, with two additions: an option has a ``group``, which is a heading in the
help, and may be ``advanced``, which leaves it out of ``--help`` and shows it with ``--help-advanced``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from leadline.base.errors import LeadlineError
    from leadline.io.notes import Note


_COLOURS = {"error": "red", "note": "yellow"}
# Parameters whose flags have other names. A command's own flag of the plain name comes first.
_FLAG_NAMES = {
    "kind": "prior_kind",
    "floor": "prior_floor",
    "workers": "jobs",
    "output_folder": "output",
    "sparse": "depth",  # of refine, whose measurements are dense
}
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


def refuse_given(names: Collection[str], why: str, *, but: Collection[str] = ()) -> None:
    """Refuse given options that would be ignored: those of `names`, or all except `but`."""
    from leadline.base.errors import InputError

    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        wanted = name in names or (bool(but) and name not in but)
        if wanted and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"{parameter.opts[0]} has no effect here: {why}.")


INPUTS, PRIOR, CAMERA, OUTPUTS, PRESET, RUN = "Inputs", "Prior", "Camera", "Outputs", "Preset", "Run"
"""Headings that several commands share."""
OTHER = "Other"


class UsablePath(click.Path):
    """A path that may or may not exist, but that the system can look up: not too long, and no endless link."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self.fail(f"{value}: {error.strerror}.", param, ctx)
        return path


PATH = UsablePath()
_ADVANCED = "leadline.help_advanced"


class Option(click.Option):
    """An option with a heading for the help, shown only by ``--help-advanced`` if it is `advanced`."""

    def __init__(self, *args: Any, group: str = OTHER, advanced: bool = False, **settings: Any) -> None:
        settings.setdefault("show_default", settings.get("default") is not None)
        super().__init__(*args, **settings)
        self.group, self.advanced = group, advanced


class KnownError(click.ClickException):
    """An error of the library, with flags in place of parameter names."""

    exit_code = 2


class Command(click.Command):
    """A command whose help lists its options in groups, and whose errors name flags."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if any(getattr(parameter, "advanced", False) for parameter in self.params):
            self.params.append(
                Option(
                    ["--help-advanced"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_show_advanced_help,
                    help="Show all options, also those that are rarely needed.",
                )
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            hidden = getattr(parameter, "advanced", False) and not ctx.meta.get(_ADVANCED)
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) and not hidden else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", OTHER), []).append(record)
        others = groups.pop(OTHER, [])
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        with formatter.section(OTHER if groups else "Options"):
            formatter.write_dl(others)

    def invoke(self, ctx: click.Context) -> Any:
        from leadline.base.errors import LeadlineError

        try:
            return super().invoke(ctx)
        except LeadlineError as error:
            raise KnownError(error_text(error)) from error  # here, where the command's flags are known


class LazyGroup(click.Group):
    """A group that imports a command when it is used: `{name: ("module:attribute", short help)}`.

    Known errors end in one line on stderr and exit code 2; anything else is a bug and keeps its traceback.
    """

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, attribute = self.lazy[cmd_name][0].split(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            from leadline.base.registry import suggestion

            ctx.fail(f"there is no command {args[0]!r}; {suggestion(args[0], self.lazy)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])

    def main(self, *args: Any, **settings: Any) -> Any:
        standalone = settings.get("standalone_mode", True)
        settings["standalone_mode"] = False  # so that errors come here
        if not standalone:
            return super().main(*args, **settings)
        try:
            code = super().main(*args, **settings)
        except click.Abort:  # click's name for Ctrl-C
            say("error", "stopped by Ctrl-C.")
            sys.exit(130)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "leadline"
            say("error", f"{error.format_message()} ('{where} --help' lists the options.)")
            sys.exit(2)
        except click.ClickException as error:
            say("error", error.format_message())
            sys.exit(error.exit_code)
        except Exception as error:
            from leadline.base.errors import LeadlineError

            if isinstance(error, LeadlineError):
                say("error", error_text(error))
                sys.exit(2)
            if isinstance(error, OSError) and error.filename is not None:  # a full disk, no permission, ...
                say("error", f"{error.filename}: {error.strerror}.")
                sys.exit(2)
            raise
        sys.exit(code if isinstance(code, int) else 0)


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic only in later versions of click
    """Comma-separated numbers, e.g. ``-1,0,1``."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if not isinstance(value, str):
            return tuple(value)
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers separated by commas, e.g. -1,0,1.", param, ctx)


def grouped_command(**settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """As `click.command`, for a `Command`."""
    return click.command(cls=Command, **settings)


def option(*names: str, group: str = OTHER, advanced: bool = False, **settings: Any) -> Callable[..., Any]:
    """As `click.option`, with a heading for the help."""
    return click.option(*names, cls=Option, group=group, advanced=advanced, **settings)


input_option, camera_option, output_option, run_option = (
    partial(option, group=heading) for heading in (INPUTS, CAMERA, OUTPUTS, RUN)
)


def key_value_option(flag: str, name: str, **settings: Any) -> Callable[..., Any]:
    """An option ``KEY=VALUE`` that may be repeated and gives a dictionary.

    Values are read as JSON (numbers, lists, true, null) where they are JSON, and as text otherwise.
    """
    return option(flag, name, multiple=True, metavar="KEY=VALUE", callback=_parse_pairs, **settings)


def _parse_pairs(ctx: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    import json

    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} must have the shape KEY=VALUE.", ctx, parameter)
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text
    return options


def _show_advanced_help(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ADVANCED] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
