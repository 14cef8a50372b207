"""The flags that are made from the option dataclasses, and the presets whose values they replace."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import get_type_hints

import click
import pytest

from leadline.apps import cli
from leadline.apps.terminal.commands import error_text
from leadline.apps.terminal.flags import completion_flags, completion_options
from leadline.base.errors import InputError
from leadline.core.options import CompletionOptions


def test_every_field_is_a_flag_and_its_help_says_what_applies_without_it() -> None:
    command = cli.group.get_command(None, "complete")  # type: ignore[arg-type]
    made = {parameter.name: parameter for parameter in command.params}  # type: ignore[union-attr]
    for name, hint in get_type_hints(CompletionOptions).items():
        prefix = "fit_" if name == "fit" else ""
        for field in fields(hint) if is_dataclass(hint) else [f for f in fields(CompletionOptions) if f.name == name]:
            flag = made[f"{prefix}{field.name}"]
            assert flag.opts == [f"--{prefix}{field.name}".replace("_", "-")]
            assert flag.default is None
    shown = {name: re.findall(r"\[(.*)\]", flag.help) for name, flag in made.items() if getattr(flag, "help", None)}
    assert shown["tolerance"] == ["best: 0.0003; paper: 1e-06"]
    assert shown["fit_screen_outliers"] == ["best: yes; paper: no"]
    assert shown["fit_exponent_spread"] == ["best: 2; paper: no"]
    assert shown["fit_starts"] == ["default: -1,0,1"]
    assert shown["weight_data"] == ["default: 0.001"]
    assert shown["max_iterations"] == []
    assert preset() == preset("--preset=best") == CompletionOptions.best()
    assert preset("--preset=paper") == CompletionOptions.paper()


def preset(*flags: str) -> CompletionOptions:
    command = click.command()(completion_flags(lambda **values: values))
    context = command.make_context("options", list(flags))
    return completion_options(context.params)


def test_a_preset_is_changed_by_the_flags_that_are_given() -> None:
    best = CompletionOptions.best()
    assert preset("--preset=best") == best != CompletionOptions.paper()
    # Given in full, a flag counts even where it says what is the paper's default.
    assert preset("--preset=best", "--fit-loss=squared") == replace(best, fit=replace(best.fit, loss="squared"))
    assert preset("--no-fit-screen-outliers") == replace(best, fit=replace(best.fit, screen_outliers=False))
    assert preset("--preset=paper", "--outliers=single") == CompletionOptions.paper(outliers="single")


def test_weights_that_the_preset_would_ignore_are_refused_with_the_way_out() -> None:
    with pytest.raises(InputError) as error:
        preset("--weight-data=1e-2")
    assert error_text(error.value).startswith("--weight-data needs --system fixed")
    best = CompletionOptions.best()
    fixed = replace(best.reconstruction, system="fixed", weight_data=1e-2)
    assert preset("--system=fixed", "--weight-data=1e-2") == replace(best, reconstruction=fixed)
    assert preset("--preset=paper", "--weight-data=1e-2").reconstruction.weight_data == 1e-2
