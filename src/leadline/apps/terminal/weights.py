"""The question before the weights of a network are downloaded, and the progress of the download."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from leadline.base.errors import InputError, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from leadline.priors.hub import HubModel
    from leadline.priors.predictor import Predictor


def ensure_weights(predictor: Predictor, *, approved: bool) -> None:
    """Download the weights of a network that are not on this machine, if the user agrees.

    The question states size, licence and folder. Without a terminal to ask on, `approved` must be True.
    """
    from leadline.priors.hub import supervise
    from leadline.priors.model_files import needs_download

    if not needs_download(predictor.spec):
        return
    with ExitStack() as stack:
        show: list[Callable[[int, int], None]] = []

        def approve(model: HubModel) -> None:
            _ask(predictor.spec, model, approved=approved)
            show.append(_progress_bar(stack, model.name))

        stack.enter_context(supervise(approve, lambda arrived, size: show[0](arrived, size)))
        predictor.open()


def _ask(spec: str, model: HubModel, *, approved: bool) -> None:
    from leadline.priors import PRIORS
    from leadline.priors.hub import endpoint
    from leadline.priors.model_files import hub_cache

    facts = PRIORS.get(spec)
    licence = facts.licence if facts is not None else model.licence or "not stated"
    terms = "" if facts is None or facts.commercial else ", non-commercial"
    offer = (
        f"{model.name}: {_megabytes(model.size)} from {urlsplit(endpoint()).netloc}, licence {licence}{terms}, to "
        f"{hub_cache()}"
    )
    if approved:
        click.echo(f"downloading {offer}", err=True)
    elif not _is_terminal():
        raise InputError(
            f"the weights are not on this machine. {offer}; add {param('download', True)} to download them."
        )
    elif not click.confirm(f"The weights are not on this machine. {offer}. Download?", default=True, err=True):
        raise InputError(f"the weights of {model.name} were not downloaded; choose another {param('prior')}.")


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _progress_bar(stack: ExitStack, name: str) -> Callable[[int, int], None]:
    """A bar on stderr where that is a terminal, else a line for every tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        tenths: set[int] = set()

        def say(arrived: int, size: int) -> None:
            tenth = 10 * arrived // max(size, 1)
            if tenth not in tenths:
                tenths.add(tenth)
                click.echo(f"{name}: {_megabytes(arrived)} of {_megabytes(size)}", err=True)

        return say
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = stack.enter_context(Progress(*columns, console=console))
    task = progress.add_task(name.rpartition("/")[2])
    return lambda arrived, size: progress.update(task, completed=arrived, total=size)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.2g} MB"
