"""Help in groups, advanced options, and parameters rendered as flags."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from leadline.apps import cli
from leadline.apps.terminal.commands import LazyGroup, Option, flag_wording, grouped_command, key_value_option, option
from leadline.base.errors import InputError, param
from support.cli_frames import environment, leadline

GROUPED = ("complete", "refine", "bag", "colmap", "diagnose", "project")


@pytest.mark.parametrize("name", GROUPED)
def test_help_lists_the_options_in_groups(name: str) -> None:
    output = leadline(f"{name} --help").output
    headings = re.findall(r"^([A-Z][\w ]+):$", output, flags=re.MULTILINE)
    assert headings[0] == "Inputs"
    assert {"Outputs", "Other"} <= set(headings)
    assert len(headings) == len(set(headings))


@pytest.mark.parametrize("name", GROUPED)
def test_advanced_help_has_every_option_and_help_all_but_the_advanced(name: str) -> None:
    command = cli.group.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    plain, all_options = (leadline(f"{name} {flag}").output for flag in ("--help", "--help-advanced"))
    advanced = [entry for entry in command.params if isinstance(entry, Option) and entry.advanced]
    assert advanced
    for entry in command.params:
        if isinstance(entry, click.Option):
            shown = re.compile(rf"^  (?:-\w, )?{entry.opts[-1]}\b", flags=re.MULTILINE)
            assert shown.search(all_options), entry.opts
            assert bool(shown.search(plain)) == (entry not in advanced), entry.opts


def test_help_shows_the_default_of_the_command() -> None:
    for name, default in (("complete", "keep"), ("refine", "single")):
        words = " ".join(leadline(f"{name} --help").output.split())
        assert f"as behind glass. [default: {default}]" in words


@pytest.mark.parametrize("name", ["complete", "refine", "project", "colmap", "bag", "prior", "priors"])
def test_help_of_a_command_imports_no_compiler_and_no_framework(name: str) -> None:
    code = (
        "import sys; from leadline.apps.cli import group\n"
        f"try: group.main(['{name}', '--help'], prog_name='leadline')\n"
        "except SystemExit: pass\n"
        "sys.exit(', '.join({'numba', 'rich', 'PIL', 'scipy', 'torch', 'onnxruntime'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""


@grouped_command()
@click.argument("image")
@option("-o", "--output")
@option("--range", "ranges", is_flag=True)
@key_value_option("--data-option", "options")
def example(image: str, output: str | None, ranges: bool, options: dict[str, object]) -> None:
    if output == "fail":
        names = ("image", "output", "ranges", "fit.tolerance", "rotate", "workers")
        raise InputError(", ".join(map(param, names)))
    click.echo(repr(options))


group = LazyGroup(name="leadline", lazy={"example": (f"{__name__}:example", "An example.")})


def test_errors_name_the_arguments_and_flags_of_the_command() -> None:
    result = CliRunner().invoke(group, ["example", "photo.jpg", "-o", "fail"])
    assert result.exit_code == 2
    expected = "IMAGE, --output, --range, --fit-tolerance, 'leadline project --rotate', --jobs"
    assert result.output == f"error: {expected}\n"


def test_pairs_are_read_as_json_or_text() -> None:
    pairs = ["--data-option", "size=[3,4]", "--data-option", "name=room", "--data-option", "flip=true"]
    result = CliRunner().invoke(group, ["example", "photo.jpg", *pairs])
    assert result.output == "{'size': [3, 4], 'name': 'room', 'flip': True}\n"
    result = CliRunner().invoke(group, ["example", "photo.jpg", "--data-option", "size"])
    assert "'size' must have the shape KEY=VALUE" in result.output


def test_values_follow_their_flag() -> None:
    assert flag_wording("prior.kind", "disparity") == "--prior-kind disparity"
    assert flag_wording("reconstruction.solver", "multigrid") == "--solver multigrid"
    assert flag_wording("overwrite", "True") == "--overwrite"
