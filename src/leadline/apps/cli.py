"""The `leadline` command: a group whose commands are imported only when they are used.

Top-level help must answer at once, so this module imports nothing heavier than click, and the help text of
each command in the list is written here.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

COMMANDS = {
    "complete": ("leadline.apps.complete:command", "Complete one image, or a folder of them."),
    "priors": ("leadline.apps.priors:command", "Which networks and files can be the prior, and what they need."),
    "prior": ("leadline.apps.priors:predict", "Save a network's predictions for later."),
    "project": ("leadline.apps.project:command", "Point clouds and other sensors to sparse depth."),
    "colmap": ("leadline.apps.colmap:command", "Dense depth for every image of a COLMAP model."),
    "bag": ("leadline.apps.bag:command", "Dense depth for the pictures of a ROS bag."),
    "demo": ("leadline.apps.cli:demo", "A whole run on a scene that leadline renders itself."),
    "datasets": ("leadline.apps.datasets:command", "Which data sets there are, and whether a tree is complete."),
    "methods": ("leadline.apps.methods:command", "Which methods there are, and where trained systems are set up."),
    "bench": ("leadline.apps.bench:command", "The paper's benchmark: run it, report it, compare runs."),
    "figures": ("leadline.apps.figures:command", "The paper's figures from the records of a run."),
    "diagnose": ("leadline.apps.diagnose:command", "How predicted depth relates to the reference."),
    "studio": ("leadline.apps.studio.command:command", "A page in the browser: drop files, look, compare, download."),
    "warm-up": ("leadline.apps.cli:warm_up", "Compile the kernels now rather than at the first frame."),
    "info": ("leadline.apps.cli:info", "Versions, threads and which extras are installed."),
}

EXAMPLES = """\b
Examples:
  leadline demo -o demo/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/
  leadline complete frames/ --sparse depth/ --unit mm --prior onnx:model.onnx -o out/
  leadline priors
  leadline complete --help
"""

_COLOURS = {"error": "red", "note": "yellow"}


def version() -> str:
    """Version of the installed package, or of the sources when they run without being installed."""
    from importlib import metadata

    from leadline import __version__

    try:
        return metadata.version("leadline")
    except metadata.PackageNotFoundError:
        return __version__


def say(kind: str, message: str) -> None:
    """One line on stderr: a coloured ``error:`` or ``note:`` and the message with its line breaks removed."""
    line = click.style(f"{kind}:", fg=_COLOURS[kind], bold=True) + " " + " ".join(message.split())
    click.echo(line, err=True, color=False if os.environ.get("NO_COLOR") else None)


class LazyGroup(click.Group):
    """A group that knows its commands by name: `{name: ("module:attribute", short help)}`.

    Known errors end in one line on stderr and exit code 2; anything else is a bug and keeps its traceback.
    """

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, attribute = self.lazy[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], self.lazy, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the commands are {', '.join(self.lazy)}."
            ctx.fail(f"there is no command {args[0]!r}: {hint}")
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
            say("error", "stopped by the keyboard.")
            sys.exit(130)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "leadline"
            say("error", f"{error.format_message()} ('{where} --help' lists the options.)")
            sys.exit(2)
        except click.ClickException as error:
            say("error", error.format_message())
            sys.exit(error.exit_code)
        except Exception as error:
            _exit_if_known(error)
            raise
        sys.exit(code if isinstance(code, int) else 0)


def _exit_if_known(error: Exception) -> None:
    from leadline.base.errors import LeadlineError  # here, because it brings numpy along

    if isinstance(error, LeadlineError):
        say("error", str(error))
        sys.exit(2)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"leadline {version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    invoke_without_command=True,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.pass_context
def group(ctx: click.Context) -> None:
    """Dense metric depth from a relative depth map and a few metric measurements. It trains nothing."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@click.command(
    epilog="""\b
Examples:
  leadline demo
  leadline demo -o demo/ --width 320 --height 240 --seed 1
"""
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("leadline-demo"),
    show_default=True,
    help="Folder for what it writes.",
)
@click.option("--width", type=click.IntRange(16), default=640, show_default=True, help="Columns of the image.")
@click.option("--height", type=click.IntRange(16), default=480, show_default=True, help="Rows of the image.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the room and of the prior's faults."
)
def demo(output: Path, width: int, height: int, seed: int) -> None:
    """A whole run on a scene that leadline renders itself: no download, no model."""
    from rich.console import Console

    from leadline.apps.demo import run_demo
    from leadline.batch.frame import compile_kernels

    compile_kernels()
    run_demo(output, width=width, height=height, seed=seed, console=Console())


@click.command(
    name="warm-up",
    epilog="""\b
Example:
  leadline warm-up
""",
)
def warm_up() -> None:
    """Compile the kernels now rather than at the first frame.

    The compiled code is kept on disk, so this is needed once per installation, e.g. while building an image
    for a robot or a container.
    """
    import time

    from leadline.batch.frame import compile_kernels
    from leadline.core import pipeline
    from leadline.core.options import CompletionOptions

    start = time.perf_counter()
    fresh = False
    for preset in (CompletionOptions.best(), CompletionOptions.paper()):
        fresh |= compile_kernels(preset, quiet=fresh)
        pipeline.warm_up(options=preset)  # a cache may be there and yet not be complete
    click.echo(f"{'compiled' if fresh else 'already compiled'}, {time.perf_counter() - start:.1f} s")


@click.command(
    epilog="""\b
Example:
  leadline info
"""
)
def info() -> None:
    """Versions, threads and which extras are installed: what a bug report needs."""
    import platform

    import numba
    import numpy

    rows = [
        ("leadline", version()),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("numpy", numpy.__version__),
        ("numba", numba.__version__),
        ("threads", str(numba.get_num_threads())),
        ("threading layer", numba.threading_layer()),  # known once the threads of the row above have started
    ]
    rows += [(f"extra {extra}", packages) for extra, packages in _extras().items()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def _extras() -> dict[str, str]:
    """What each extra needs, with the versions found, read from the installed package's own metadata."""
    import re
    from importlib import metadata

    found: dict[str, list[str]] = {}
    try:
        requirements = metadata.requires("leadline") or []
    except metadata.PackageNotFoundError:
        return {}
    for requirement in requirements:
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if extra is None or name is None or name[0] == "leadline":
            continue
        try:
            state = f"{name[0]} {metadata.version(name[0])}"
        except metadata.PackageNotFoundError:
            state = f"{name[0]} missing"
        found.setdefault(extra[1], []).append(state)
    return {extra: ", ".join(states) for extra, states in found.items()}


def main() -> NoReturn:
    """Entry point of the `leadline` script."""
    group.main(prog_name="leadline")
    raise AssertionError("click's main always exits")  # tells type checkers what NoReturn means here
