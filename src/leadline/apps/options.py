"""Command-line flags made from the option dataclasses and their presets, so that values and help exist once.

One rule names the flags: a field of `ReconstructionOptions` or `CompletionOptions` has its own name
(``--weight-data``, ``--tolerance``, ``--strict``), a field of `FitOptions` has the prefix ``--fit-``
(``--fit-tolerance``), because both stages have a tolerance and a limit of iterations.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from functools import wraps
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from leadline.apps.terminal.help import PRESET, Numbers, option
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions

PRESETS = {"best": CompletionOptions.best, "paper": CompletionOptions.paper}
DEFAULT = "best"
PREFIXES = {"": "", "fit": "fit_", "reconstruction": ""}
"""Prefixes of the flags, by the field of `CompletionOptions` that holds the options; "" for its own fields."""
_CLASSES = {"": CompletionOptions, "fit": FitOptions, "reconstruction": ReconstructionOptions}
_HEADINGS = {"": PRESET, "fit": "Fit of the response", "reconstruction": "Solve for the residual"}


@dataclass(frozen=True)
class OptionField:
    """A field of the options, and the flag that is made from it."""

    owner: str  # "", "fit" or "reconstruction"
    field: Field[Any]
    hint: Any

    @property
    def parameter(self) -> str:
        """Name of the parameter of a command."""
        return f"{PREFIXES[self.owner]}{self.field.name}"

    @property
    def flag(self) -> str:
        return f"--{self.parameter}".replace("_", "-")

    def value(self, options: CompletionOptions) -> Any:
        return getattr(getattr(options, self.owner) if self.owner else options, self.field.name)

    def help(self) -> str:
        """The help of the field, and the value in each preset."""
        text = self.field.metadata["help"]
        shown = {name: _text(self.value(make())) for name, make in PRESETS.items()}
        if len(set(shown.values())) > 1:
            default = "; ".join(f"{name}: {value}" for name, value in shown.items())
        else:
            default = f"default: {shown[DEFAULT]}"
        unset = all(self.value(make()) is None for make in PRESETS.values())  # the help then says what applies
        return f"{text[0].upper()}{text[1:]}." + ("" if unset else f"  [{default}]")


def option_fields() -> Iterator[OptionField]:
    """All fields of `CompletionOptions` and of the options in it."""
    for owner, cls in _CLASSES.items():
        hints = get_type_hints(cls)
        for field in fields(cls):
            if field.name not in _CLASSES:
                yield OptionField(owner, field, hints[field.name])


def completion_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with ``--preset`` and a flag for each option; it receives them as `completion`.

    The flags of the fit and of the reconstruction are advanced: ``--help-advanced`` lists them.
    """
    entries = list(option_fields())

    @wraps(function)
    def collect(*args: Any, **values: Any) -> Any:
        chosen = {entry.parameter: values.pop(entry.parameter) for entry in entries}
        return function(*args, completion=completion_options({"preset": values.pop("preset"), **chosen}), **values)

    for entry in reversed(entries):  # decorators apply from the inside out
        is_bool = entry.hint is bool
        collect = option(
            f"{entry.flag}/--no-{entry.flag[2:]}" if is_bool else entry.flag,
            entry.parameter,
            group=_HEADINGS[entry.owner],
            advanced=bool(entry.owner),
            default=None,
            help=entry.help(),
            **({} if is_bool else {"type": _click_type(entry.hint)}),
        )(collect)
    with_preset: Callable[..., Any] = option(
        "--preset",
        group=PRESET,
        type=click.Choice(list(PRESETS)),
        default=DEFAULT,
        show_default=True,
        help="The most accurate settings, or those of the paper. Other flags change single settings of the preset.",
    )(collect)
    return with_preset


def completion_options(values: Mapping[str, Any]) -> CompletionOptions:
    """The preset ``values["preset"]``, with the flags that were given (are not None) in place of its values.

    Raises
    ------
    InputError
        A value is not allowed.
    """
    options = PRESETS[values["preset"]]()
    given: dict[str, dict[str, Any]] = {owner: {} for owner in _CLASSES}
    for entry in option_fields():
        if values.get(entry.parameter) is not None:
            given[entry.owner][entry.field.name] = values[entry.parameter]
    return replace(
        options,
        fit=replace(options.fit, **given["fit"]),
        reconstruction=replace(options.reconstruction, **given["reconstruction"]),
        **given[""],
    )


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
