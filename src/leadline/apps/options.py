"""Command-line flags made from the frozen option dataclasses, so that a default and its help exist once.

One rule names the flags: a field of `ReconstructionOptions` or `CompletionOptions` is its own name
(``--weight-data``, ``--tolerance``, ``--strict``), a field of `FitOptions` carries the prefix ``--fit-``
(``--fit-tolerance``), because both stages have a tolerance and a limit of iterations.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from leadline.core.types import CompletionOptions, InputError

Options = TypeVar("Options")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PREFIXES = {"fit": "fit_"}
_DEFAULT = click.core.ParameterSource.DEFAULT


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


PRESETS = {"paper": CompletionOptions.paper, "best": CompletionOptions.best}


def completion_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with ``--preset`` and one flag per field of `CompletionOptions` and of what it nests."""
    preset = click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        default="paper",
        show_default=True,
        help="The paper's settings, or the most accurate ones; flags below change single ones of them.",
    )
    return preset(flags_of(CompletionOptions, PREFIXES)(function))


def completion_options(values: Mapping[str, Any], ctx: click.Context | None = None) -> CompletionOptions:
    """`CompletionOptions` from a command's parameters: the preset's, but for the flags that were given.

    Parameters
    ----------
    values : mapping
        Parameters by name.
    ctx : click.Context, optional
        Where they come from; default: the running command.

    Raises
    ------
    InputError
        With the flag's name where the dataclass would give the field's.
    """
    ctx = ctx or click.get_current_context()
    given = {name: value for name, value in values.items() if ctx.get_parameter_source(name) is not _DEFAULT}
    return from_flags(CompletionOptions, {**_values(PRESETS[values["preset"]](), PREFIXES), **given}, PREFIXES)


def _values(options: Any, prefixes: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """The fields of an instance by the names of their parameters: the inverse of `from_flags`."""
    found: dict[str, Any] = {}
    for entry in fields(options):
        value = getattr(options, entry.name)
        if is_dataclass(value):
            found |= _values(value, prefixes, prefixes.get(entry.name, ""))
        else:
            found[f"{prefix}{entry.name}"] = value
    return found


def flags_of(cls: type, prefixes: Mapping[str, str], prefix: str = "") -> Decorator:
    """A decorator that adds one click option per field of the dataclass `cls`, in the order of the fields.

    Parameters
    ----------
    cls : type
        A frozen dataclass with a default for each field; ``metadata["help"]`` is the flag's help. Fields
        may be bool, int, float, Literal of strings, any of these or None, tuples of float, or dataclasses.
    prefixes : mapping
        For fields that are dataclasses themselves, what to put before the names of their fields.
    prefix : str
        What to put before the names of this one's.
    """
    hints = get_type_hints(cls)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(fields(cls)):  # decorators apply from the inside out
            hint = hints[field.name]
            if isinstance(hint, type) and is_dataclass(hint):
                function = flags_of(hint, prefixes, prefixes.get(field.name, ""))(function)
                continue
            settings: dict[str, Any] = {"help": _sentence(field.metadata["help"]), "default": field.default}
            if hint is bool:
                settings["is_flag"] = True
            else:
                settings |= {"type": _click_type(hint), "show_default": _shown(field.default)}
            function = click.option(_flag(prefix, field.name), f"{prefix}{field.name}", **settings)(function)
        return function

    return decorate


def from_flags(cls: type[Options], values: Mapping[str, Any], prefixes: Mapping[str, str], prefix: str = "") -> Options:
    """An instance of the dataclass `cls` from the parameters that `flags_of` made."""
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    chosen = {
        name: from_flags(hints[name], values, prefixes, prefixes.get(name, ""))
        if is_dataclass(hints[name])
        else values[f"{prefix}{name}"]
        for name in names
    }
    try:
        return cls(**chosen)
    except InputError as error:
        message = str(error)
        for name in names:
            message = message.replace(f"`{name}`", _flag(prefix, name))
        raise InputError(message) from error


def _flag(prefix: str, name: str) -> str:
    return f"--{prefix}{name}".replace("_", "-")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _shown(default: Any) -> str | bool:
    return ",".join(f"{number:g}" for number in default) if isinstance(default, tuple) else default is not None


def _click_type(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (member for member in get_args(hint) if member is not type(None))
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        return Numbers()
    if hint in (int, float):
        return hint
    raise TypeError(f"no flag can be made for a field of type {hint}")
