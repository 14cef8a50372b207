"""Command-line flags made from the frozen option dataclasses and their presets, so that values and help exist once.

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

from leadline.base.errors import InputError
from leadline.core.options import CompletionOptions

Options = TypeVar("Options")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PREFIXES = {"fit": "fit_"}
PRESETS = {"best": CompletionOptions.best, "paper": CompletionOptions.paper}
DEFAULT = "best"
"""The preset of the commands and of the page. In Python the default is the paper's."""
WEIGHTS = ("weight_gradient", "weight_data", "weight_laplacian")  # of the fixed system; the adaptive one has its own


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


def completion_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with ``--preset`` and one flag per field of `CompletionOptions` and of what it nests."""
    preset = click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        default=DEFAULT,
        show_default=True,
        help="The most accurate settings, or the paper's; flags below change single ones of them.",
    )
    return preset(flags_of({name: make() for name, make in PRESETS.items()}, PREFIXES)(function))


def completion_options(values: Mapping[str, Any]) -> CompletionOptions:
    """`CompletionOptions` from a command's parameters by name: the preset's, but for the flags that were given.

    Raises
    ------
    InputError
        With the flag's name where the dataclass would give the field's.
    """
    given = {name: value for name, value in values.items() if value is not None}
    chosen = {**_values(PRESETS[values["preset"]](), PREFIXES), **given}
    weights = [_flag("", name) for name in WEIGHTS if name in given]
    if weights and chosen["system"] == "adaptive":
        raise InputError(
            f"--system adaptive chooses the weights for each image; leave {weights[0]} out, or add --system fixed or "
            "--preset paper."
        )
    return from_flags(CompletionOptions, chosen, PREFIXES)


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


def flags_of(presets: Mapping[str, Any], prefixes: Mapping[str, str], prefix: str = "") -> Decorator:
    """A decorator that adds one click option per field of a dataclass, in the order of the fields.

    A flag that is not given is None, since what then applies is the preset's; the help says what that is.

    Parameters
    ----------
    presets : mapping
        Instances of one frozen dataclass by name; ``metadata["help"]`` of a field is the flag's help. Fields
        may be bool, int, float, Literal of strings, any of these or None, tuples of float, or dataclasses.
    prefixes : mapping
        For fields that are dataclasses themselves, what to put before the names of their fields.
    prefix : str
        What to put before the names of this one's.
    """
    (cls,) = {type(preset) for preset in presets.values()}
    hints = get_type_hints(cls)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(fields(cls)):  # decorators apply from the inside out
            hint = hints[field.name]
            values = {name: getattr(preset, field.name) for name, preset in presets.items()}
            if isinstance(hint, type) and is_dataclass(hint):
                function = flags_of(values, prefixes, prefixes.get(field.name, ""))(function)
                continue
            flag = _flag(prefix, field.name)
            kind: dict[str, Any] = {} if hint is bool else {"type": _click_type(hint)}
            function = click.option(
                f"{flag}/--no-{flag[2:]}" if hint is bool else flag,
                f"{prefix}{field.name}",
                default=None,
                help=_sentence(field.metadata["help"]) + _defaults(field.name, values),
                **kind,
            )(function)
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


def _defaults(name: str, values: Mapping[str, Any]) -> str:
    """What applies where the flag is not given, by preset where they differ; a None of all is explained by the help."""
    texts = {preset: _text(value) for preset, value in values.items()}
    if len(set(texts.values())) > 1:
        return f"  [{'; '.join(f'{preset}: {text}' for preset, text in texts.items())}]"
    if None in values.values():
        return ""
    return f"  [{'with --system fixed' if name in WEIGHTS else 'default'}: {next(iter(texts.values()))}]"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


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
