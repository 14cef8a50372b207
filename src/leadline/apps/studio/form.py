"""The form for the options of the method, made from the options of the command line, so that both accept the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import click

from leadline.apps import options as flags
from leadline.apps.studio.messages import OptionField
from leadline.apps.studio.wording import label_of
from leadline.base.errors import InputError, param
from leadline.core.options import CompletionOptions

_PRESET = "preset"
_SWITCH = ("no", "yes")
_OMITTED = ("strict",)  # the page reports a fallback in any case


@cache
def option_fields() -> dict[str, OptionField]:
    """The fields of the form by name. Those without a value are left to the preset."""
    text = "The most accurate settings, or those of the paper. The fields below change single settings."
    found = {_PRESET: OptionField(_PRESET, label_of(_PRESET), text, flags.DEFAULT, list(flags.PRESETS))}
    types = {option.name: option.type for option in _parser().params}
    for entry in flags.option_fields():
        name, kind = entry.parameter, types[entry.parameter]
        if name in _OMITTED:
            continue
        choices = list(kind.choices) if isinstance(kind, click.Choice) else None
        choices = list(_SWITCH) if entry.hint is bool else choices
        found[name] = OptionField(name, label_of(_dotted(name)), entry.help(), "", choices and ["", *choices])
    return found


def parse_options(values: Mapping[str, str]) -> tuple[tuple[str, ...], CompletionOptions]:
    """The flags of the command line for what was entered into the form, and the options that they stand for.

    Raises
    ------
    InputError
        A name or a value is not one that the form offers.
    """
    known = option_fields()
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise InputError(f"{param('options')}: there is no option {unknown[0]!r}.")
    entered = {name: value.strip() for name, value in values.items()}
    words = tuple(
        _flag(known[name], value) for name, value in entered.items() if value not in ("", known[name].default)
    )
    try:
        context = _parser().make_context("options", list(words))
    except click.BadParameter as error:
        name = "options" if error.param is None or error.param.name is None else _dotted(error.param.name)
        raise InputError(f"{param(name)}: {error.message}") from error
    except click.ClickException as error:
        raise InputError(f"{param('options')}: {error.format_message()}") from error
    return words, flags.completion_options(context.params)


@cache
def _parser() -> click.Command:
    return click.command("options")(flags.completion_flags(lambda **values: values))


def _dotted(name: str) -> str:
    """The dotted name of an option, as in messages of the library, by its name on the command line."""
    for entry in flags.option_fields():
        if entry.parameter == name and entry.owner:
            return f"{entry.owner}.{entry.field.name}"
    return name


def _flag(field: OptionField, value: str) -> str:
    flag = "--" + field.name.replace("_", "-")
    if field.choices == ["", *_SWITCH] and value in _SWITCH:
        return flag if value == _SWITCH[True] else f"--no-{flag[2:]}"
    return f"{flag}={value}"
