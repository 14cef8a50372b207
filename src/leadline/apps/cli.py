"""The `leadline` command: a group whose commands are imported only when they are used.

Top-level help must answer at once, so this module imports nothing heavier than click, and the help text of each command
in the list is written here.
"""

from __future__ import annotations

import _thread
import signal
import sys
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import NoReturn

import click

from leadline.apps.terminal.commands import PATH, LazyGroup, grouped_command, option

COMMANDS = {
    "complete": ("leadline.apps.complete:command", "Complete one image, or a folder of them."),
    "refine": ("leadline.apps.refine:command", "Refine the depth of RGB-D frames: a folder or a data set."),
    "priors": ("leadline.apps.priors:command", "List the networks and files that can be the prior."),
    "prior": ("leadline.apps.priors:predict", "Save the predictions of a network for later."),
    "project": ("leadline.apps.project:command", "Project a point cloud or another sensor to sparse depth."),
    "colmap": ("leadline.apps.colmap:command", "Complete every image of a COLMAP model."),
    "fuse": ("leadline.apps.colmap:fuse_command", "Fuse the depth of posed pictures into a mesh."),
    "bag": ("leadline.apps.bag:command", "Complete the images of a ROS bag."),
    "demo": ("leadline.apps.cli:demo", "Run several methods on a rendered scene: no download, no model."),
    "datasets": ("leadline.apps.datasets:command", "List the data sets, and check a folder of one."),
    "methods": ("leadline.apps.methods:command", "List the methods, and set up trained systems."),
    "bench": ("leadline.apps.bench:command", "Run the paper's benchmark, report it, compare runs."),
    "figures": ("leadline.apps.figures:command", "Draw the paper's figures from the records of a run."),
    "diagnose": ("leadline.apps.diagnose:command", "Show how predicted depth relates to the reference."),
    "studio": ("leadline.apps.studio.command:command", "Complete images on a page in the browser."),
    "warm-up": ("leadline.apps.cli:warm_up", "Compile the kernels now, not at the first frame."),
    "doctor": ("leadline.apps.doctor:command", "Print versions, extras and caches, and test the installation."),
}

EXAMPLES = """\b
Examples:
  leadline demo -o demo/
  leadline complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy -o out/
  leadline complete frames/ --sparse depth/ --unit mm --prior onnx:model.onnx -o out/
  leadline priors
  leadline complete --help
"""


def version() -> str:
    """Version of the installed package, or of the sources when they run without being installed."""
    from leadline.batch.outcome import package_version

    return package_version()


def _show_version(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
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
    """Dense metric depth from a relative depth map and a few metric measurements, without training."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@grouped_command(
    epilog="""\b
Examples:
  leadline demo
  leadline demo -o demo/ --width 320 --height 240 --seed 1
"""
)
@option("-o", "--output", type=PATH, default=Path("leadline-demo"), help="Folder for the results.")
@option("--width", type=click.IntRange(16), default=640, help="Width of the image.")
@option("--height", type=click.IntRange(16), default=480, help="Height of the image.")
@option("--seed", type=click.IntRange(0), default=0, help="Seed of the room and of the errors of the prior.")
def demo(output: Path, width: int, height: int, seed: int) -> None:
    """Run several methods on a scene that leadline renders itself: no download, no model."""
    from rich.console import Console

    from leadline.apps.demo import run_demo
    from leadline.apps.terminal.commands import announce_compiling
    from leadline.batch.frame import ensure_compiled
    from leadline.core.options import CompletionOptions

    ensure_compiled(CompletionOptions.best(), announce_compiling)
    run_demo(output, width=width, height=height, seed=seed, console=Console())


@grouped_command(
    name="warm-up",
    epilog="""\b
Example:
  leadline warm-up
""",
)
def warm_up() -> None:
    """Compile the kernels now, not at the first frame.

    The compiled code is stored on disk, so this is needed once per installation, e.g. while building the image of a
    robot or a container.
    """
    import time

    from leadline.apps.terminal.commands import announce_compiling
    from leadline.batch.frame import ensure_compiled
    from leadline.core.compilation import compile_carried
    from leadline.core.options import CompletionOptions

    start = time.perf_counter()
    best, paper = CompletionOptions.best(), CompletionOptions.paper()
    compiled = ensure_compiled(best, announce_compiling)
    compiled |= ensure_compiled(paper, None if compiled else announce_compiling)
    compiled |= compile_carried()
    click.echo(f"{'compiled' if compiled else 'already compiled'}, {time.perf_counter() - start:.1f} s")


def _after_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that arrived inside a destructor, where Python drops it, and print nothing."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        Timer(0.1, _thread.interrupt_main).start()  # later: Python drops what is raised inside this function, too


def _interrupt(_signum: int, _frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt.

    The signal may arrive inside a constructor. The destructor of the half-made object then fails, and Python prints
    its traceback between the messages of the command.
    """
    sys.unraisablehook = _after_interrupt
    raise KeyboardInterrupt


def main() -> NoReturn:
    """Entry point of the `leadline` script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has set it to be ignored
        signal.signal(signal.SIGINT, _interrupt)
    group.main(prog_name="leadline")
    raise AssertionError("click's main always exits")  # for type checkers, which do not know this
