"""Labels of the page for parameters, and the form for the options of the method.

The form is made from the options of the command line, so that both accept the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import click

from leadline.apps.terminal import flags
from leadline.base.errors import InputError, param
from leadline.core.options import CompletionOptions

LABELS = {
    "image": "Image",
    "sparse": "Measurements",
    "points": "Measurements",
    "cloud": "Measurements",
    "prior": "Prior",
    "prior.kind": "The prior holds",
    "prior_kind": "The prior holds",
    "kind": "The prior holds",
    "unit": "Unit of the measurements",
    "sparse_unit": "Unit of the measurements",
    "reference": "Ground truth",
    "reference_unit": "Unit of the ground truth",
    "camera": "Camera",
    "intrinsics": "Camera",
    "extrinsics": "Extrinsics",
    "mask": "the drawn mask",
    "uncertainty": "Estimate the uncertainty",
    "sigma": "Estimate the uncertainty",
    "options": "Options of the method",
    "preset": "Preset",
    "exponent": "Exponent λ",
}
"""Labels of the controls of the page, by the Python name of what they set."""
_GROUPS = {"fit": "Fit", "reconstruction": "Reconstruction"}
_SWITCH = {"no": False, "yes": True}
_OMITTED = ("strict",)  # the page reports a fallback in any case


@dataclass(frozen=True)
class FormField:
    """A field of the form. An empty default leaves the value to the preset."""

    name: str
    label: str
    help: str
    default: str
    choices: list[str] | None


def label_of(name: str) -> str:
    """The page's label of a parameter; names of nested options are dotted.

    Examples
    --------
    >>> label_of("unit"), label_of("fit.max_iterations"), label_of("outliers")
    ('Unit of the measurements', 'Fit: max iterations', 'Outliers')
    """
    if name in LABELS:
        return LABELS[name]
    group, _, field = name.rpartition(".")
    words = field.replace("_", " ")
    return f"{_GROUPS[group]}: {words}" if group in _GROUPS else words.capitalize()


def wording(name: str, value: str | None) -> str:
    """How the page refers to a parameter, and to a value that it should be given.

    Examples
    --------
    >>> wording("prior.kind", "disparity"), wording("unit", None)
    ('“The prior holds: disparity”', '“Unit of the measurements”')
    """
    return f"“{label_of(name)}”" if value is None else f"“{label_of(name)}: {value}”"


@cache
def form_fields() -> dict[str, FormField]:
    """The fields of the form by name."""
    text = "The most accurate settings, or those of the paper. The fields below change single settings."
    found = {"preset": FormField("preset", label_of("preset"), text, flags.DEFAULT, list(flags.PRESETS))}
    types = {option.name: option.type for option in _parser().params}
    for name, entry in _options().items():
        kind = types[name]
        choices = list(kind.choices) if isinstance(kind, click.Choice) else None
        choices = list(_SWITCH) if entry.hint is bool else choices
        found[name] = FormField(name, label_of(_dotted(name)), entry.help(), "", choices and ["", *choices])
    return found


def parse_options(values: Mapping[str, str]) -> tuple[tuple[str, ...], CompletionOptions]:
    """The flags of the command line for what was entered into the form, and the options that they stand for."""
    known = form_fields()
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise InputError(f"{param('options')}: there is no option {unknown[0]!r}.")
    entered = {name: value.strip() for name, value in values.items()}
    words = tuple(_flag(name, value) for name, value in entered.items() if value not in ("", known[name].default))
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


@cache
def _options() -> dict[str, flags.OptionField]:
    return {entry.parameter: entry for entry in flags.option_fields() if entry.parameter not in _OMITTED}


def _dotted(name: str) -> str:
    """The dotted name of an option, as in messages of the library, by its name on the command line."""
    entry = _options().get(name)
    return f"{entry.owner}.{entry.field.name}" if entry is not None and entry.owner else name


def _flag(name: str, value: str) -> str:
    flag = name.replace("_", "-")
    if name in _options() and _options()[name].hint is bool and value in _SWITCH:
        return f"--{flag}" if _SWITCH[value] else f"--no-{flag}"
    return f"--{flag}={value}"
