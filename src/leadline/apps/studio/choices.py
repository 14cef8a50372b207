"""What a person chose on the page, checked; and the form that offers it, made from the options themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

import click

from leadline.apps.options import DEFAULT, PRESETS, completion_flags, completion_options
from leadline.base.errors import InputError
from leadline.core.options import CompletionOptions
from leadline.core.prior import PriorKind

FILE = "file"
"""The prior of a file, as against a network's name."""
SWITCH = ("no", "yes")
_NOT_OFFERED = ("strict",)  # a fallback is told on the page in any case


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Everything that shapes a completion but the files."""

    prior: str = FILE
    unit: str | None = None
    prior_kind: PriorKind | None = None
    reference_unit: str | None = None
    uncertainty: bool = False
    flags: tuple[str, ...] = ()  # options that were chosen, as on the command line
    options: CompletionOptions = field(default_factory=PRESETS[DEFAULT])


def choice_of(wish: Mapping[str, Any]) -> Choice:
    """A page's wish as a `Choice`.

    Raises
    ------
    InputError
        A value is not one that the form offers.
    """
    from leadline.io.depth.units import as_unit

    texts: dict[str, str | None] = {}
    for name in ("prior", "unit", "prior_kind", "reference_unit"):
        value = wish.get(name)
        if value is not None and not (isinstance(value, str) and len(value) < 200):
            raise InputError(f"`{name}` must be a short text, got {value!r:.60} instead.")
        texts[name] = value or None
    for name in ("unit", "reference_unit"):
        given = texts[name]
        if given is not None:
            as_unit(given)
    kind = texts["prior_kind"]
    if kind is not None and kind not in get_args(PriorKind):
        raise InputError(f"the prior must hold one of {', '.join(get_args(PriorKind))}, got {kind!r} instead.")
    flags, options = _options(wish.get("options") or {})
    return Choice(
        prior=texts["prior"] or FILE,
        unit=texts["unit"],
        prior_kind=kind,  # type: ignore[arg-type]
        reference_unit=texts["reference_unit"],
        uncertainty=wish.get("uncertainty") is True,
        flags=flags,
        options=options,
    )


def form() -> list[dict[str, Any]]:
    """The options of a completion for the page: name, flag, help, default, and the choices if there are only some.

    A default, and a choice, that is empty leaves it to the preset.
    """
    rows = []
    for option in _parser().params:
        if option.name in _NOT_OFFERED or not isinstance(option, click.Option):
            continue
        kind = option.type
        choices = list(kind.choices) if isinstance(kind, click.Choice) else list(SWITCH) if option.is_flag else None
        if choices and option.default is None:
            choices.insert(0, "")
        rows.append(
            {
                "name": option.name,
                "flag": option.opts[0],
                "help": option.help,
                "default": option.default or "",
                "choices": choices,
            }
        )
    return rows


@cache
def _parser() -> click.Command:
    return click.command("options")(completion_flags(lambda **values: values))


def _options(wish: Any) -> tuple[tuple[str, ...], CompletionOptions]:
    known = {row["name"]: row for row in form()}
    if not isinstance(wish, Mapping) or not wish.keys() <= known.keys():
        raise InputError(f"`options` must be some of {', '.join(known)}.")
    changed = {name: str(value).strip() for name, value in wish.items()}
    flags = tuple(
        _flag(known[name], value) for name, value in changed.items() if value not in ("", known[name]["default"])
    )
    try:
        context = _parser().make_context("options", list(flags))
    except click.ClickException as error:
        raise InputError(error.format_message()) from error
    return flags, completion_options(context.params)


def _flag(row: Mapping[str, Any], value: str) -> str:
    flag: str = row["flag"]
    if row["choices"] == ["", *SWITCH] and value in SWITCH:
        return flag if value == SWITCH[True] else f"--no-{flag[2:]}"
    return f"{flag}={value}"
